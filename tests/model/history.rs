//! Random histories of one key.

use std::ops::{Range, RangeInclusive};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use redis_rl_core::limiter::{Algorithm, Calendar, MAX_SAFE_INTEGER, Quota, WindowMs};

use crate::calls::{Act, Call, History};

/// The distribution of random histories.
pub struct Shape {
    pub algorithms: &'static [Algorithm],
    /// Window lengths in milliseconds or the numbers of windows of the calendar, and how many different ones a history has.
    pub window: BoxedStrategy<u64>,
    pub windows: RangeInclusive<usize>,
    pub tiers: RangeInclusive<usize>,
    pub limit: BoxedStrategy<u64>,
    pub cost: BoxedStrategy<i64>,
    pub act: BoxedStrategy<Act>,
    pub start: BoxedStrategy<u64>,
    pub pace: BoxedStrategy<Pace>,
    pub calls: Range<usize>,
}

/// The time from one call to the next, possibly negative: some quarters of a window, plus some milliseconds.
#[derive(Clone, Debug)]
pub struct Pace {
    pub quarters: i64,
    /// Chooses the window.
    pub of: Index,
    pub ms: i64,
}

pub fn pace(
    quarters: impl Strategy<Value = i64> + 'static,
    ms: impl Strategy<Value = i64> + 'static,
) -> BoxedStrategy<Pace> {
    (quarters, any::<Index>(), ms).prop_map(|(quarters, of, ms)| Pace { quarters, of, ms }).boxed()
}

pub const ALL: &[Algorithm] = &Algorithm::ALL;

/// Small figures, so that nearly every call meets a limit, the edge of a window, or both.
pub fn small() -> Shape {
    Shape {
        algorithms: ALL,
        window: (1..=40u64).boxed(),
        windows: 1..=4,
        tiers: 1..=3,
        limit: prop_oneof![1 => Just(0), 12 => 1..=8u64].boxed(),
        cost: prop_oneof![8 => Just(1), 4 => 2..=3i64, 1 => 4..=8i64, 1 => Just(0), 3 => -5..0i64].boxed(),
        act: prop_oneof![
            2 => Just(Act::Peek),
            5 => Just(Act::Take),
            2 => Just(Act::Force),
            2 => Just(Act::Partial),
            4 => (1..=60u64).prop_map(Act::Within),
        ]
        .boxed(),
        start: prop_oneof![Just(0), 0..100u64, Just(1_700_000_000_000)].boxed(),
        pace: pace(
            Just(0),
            prop_oneof![4 => Just(0), 8 => 1..=4i64, 4 => 5..=40i64, 1 => -60..0i64, 1 => 41..=300i64],
        ),
        calls: 1..50,
    }
}

/// Figures over the whole range of the arguments, and counts that saturate.
pub fn huge() -> Shape {
    let cost = || up_to(MAX_SAFE_INTEGER).prop_map(|units| units as i64);
    Shape {
        window: up_to(WindowMs::MAX.get()).prop_map(|window| window.max(1)).boxed(),
        limit: prop_oneof![1 => up_to(MAX_SAFE_INTEGER), 2 => 0..=MAX_SAFE_INTEGER].boxed(),
        cost: prop_oneof![3 => cost(), 1 => cost().prop_map(|units| -units)].boxed(),
        act: prop_oneof![
            4 => Just(Act::Peek),
            10 => Just(Act::Take),
            5 => Just(Act::Force),
            4 => Just(Act::Partial),
            6 => up_to(WindowMs::MAX.get()).prop_map(|ms| Act::Within(ms.max(1))),
            1 => (1000..1100u32).prop_map(|times| Act::Flood { times, apart_ms: 0 }),
        ]
        .boxed(),
        start: prop_oneof![
            up_to(MAX_SAFE_INTEGER),
            MAX_SAFE_INTEGER - WindowMs::MAX.get()..=MAX_SAFE_INTEGER
        ]
        .boxed(),
        pace: pace(prop_oneof![2 => Just(0), 6 => 0..=9i64, 1 => -9..=0i64], -2..=2i64),
        calls: 1..40,
        ..small()
    }
}

/// Numbers with every bit length equally likely, and the last few before `max`.
fn up_to(max: u64) -> impl Strategy<Value = u64> {
    let of_length = (0..max.ilog2(), any::<u64>()).prop_map(|(bits, number)| number & ((2 << bits) - 1));
    prop_oneof![8 => of_length, 1 => max - 3..=max].prop_map(move |number| number.min(max))
}

/// More window lengths than fit into a key.
pub fn crowded() -> Shape {
    Shape {
        algorithms: &[Algorithm::Fixed, Algorithm::Sliding, Algorithm::Bucket],
        windows: 8..=14,
        tiers: 1..=8,
        limit: (1..=20u64).boxed(),
        pace: pace(Just(0), prop_oneof![12 => 0..=3i64, 4 => 4..=40i64, 1 => -60..0i64]),
        ..small()
    }
}

/// Weeks and months beside days, at times of all years: calls at the edges, some windows apart, and steps back.
pub fn calendar() -> Shape {
    let weeks = prop_oneof![3 => Just(1), 1 => 1..=521u64].prop_map(Calendar::Weeks);
    let months = prop_oneof![3 => Just(1), 2 => prop::sample::select(&[3, 12, 120][..]), 1 => 1..=120u64]
        .prop_map(Calendar::Months);
    let of_calendar =
        prop_oneof![weeks, months].prop_map(|window| WindowMs::of_calendar(window).expect("a window"));
    let days = prop::sample::select(&[1, 7, 28, 30, 31][..]).prop_map(|days| days * DAY_MS);
    let month = (1970..287_396u64, 0..12u64).prop_map(|(year, month)| first_of_month(year, month));
    let near = |edges: BoxedStrategy<u64>| {
        (edges, -2..=2i64).prop_map(|(edge, ms)| edge.saturating_add_signed(ms).min(MAX_SAFE_INTEGER))
    };
    Shape {
        algorithms: &[Algorithm::Fixed],
        window: prop_oneof![4 => of_calendar.prop_map(WindowMs::get), 1 => days].boxed(),
        limit: prop_oneof![1 => Just(0), 12 => 1..=8u64].boxed(),
        start: prop_oneof![
            2 => near((2023..=2029u64, 0..12u64).prop_map(|(year, month)| first_of_month(year, month)).boxed()),
            2 => near(month.boxed()),
            1 => near((0..20_000u64).prop_map(|week| (7 * week + 4) * DAY_MS).boxed()),
            1 => 0..100u64,
            1 => MAX_SAFE_INTEGER - 400 * DAY_MS..=MAX_SAFE_INTEGER,
        ]
        .boxed(),
        pace: pace(prop_oneof![4 => Just(0), 6 => 0..=9i64, 1 => -9..=0i64], -2..=2i64),
        ..small()
    }
}

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// The beginning of a month, counted from 0.
fn first_of_month(year: u64, month: u64) -> u64 {
    crate::naive::start_of(
        i128::from(WindowMs::of_calendar(Calendar::Months(1)).expect("a window").get()),
        i128::from((year - 1970) * 12 + month),
    ) as u64
}

/// The length of a window; of one of the calendar, about that.
fn about_ms(window: u64) -> u64 {
    match WindowMs::of_number(window).expect("windows are drawn in range").calendar() {
        None => window,
        Some(Calendar::Weeks(weeks)) => weeks * 7 * DAY_MS,
        Some(Calendar::Months(months)) => months * 30 * DAY_MS,
    }
}

pub fn history(shape: Shape) -> impl Strategy<Value = History> {
    let tier = (any::<Index>(), shape.limit);
    // How long ago units are given back as of, in thousandths of a window.
    let ago = prop_oneof![Just(0), 0..1_100u64];
    let step = (shape.act, vec(tier, shape.tiers), shape.cost, shape.pace, any::<bool>(), ago);
    let parts = (
        prop::sample::select(shape.algorithms),
        vec(shape.window, shape.windows),
        shape.start,
        vec(step, shape.calls),
    );
    parts.prop_map(|(algorithm, windows, start, steps)| {
        let mut clock = start;
        let calls = steps.into_iter().map(|(act, tiers, cost, pace, at, ago)| {
            let mut quotas: Vec<Quota> = Vec::new();
            for (index, limit) in tiers {
                let window = WindowMs::of_number(*index.get(&windows)).expect("windows are drawn in range");
                if quotas.iter().all(|quota| quota.window() != window) {
                    quotas.push(Quota::new(limit, window).expect("limits are drawn in range"));
                }
            }
            let window = about_ms(*pace.of.get(&windows));
            let step = window as i64 / 4 * pace.quarters + pace.ms;
            let mut now = clock.saturating_add_signed(step).min(MAX_SAFE_INTEGER);
            let looks_back = at && cost < 0 && ago > 0;
            if looks_back {
                now = clock.saturating_sub((u128::from(window) * u128::from(ago) / 1_000) as u64);
            }
            // A peek may look ahead and a refund back; they do not move the time of the next call.
            if act != Act::Peek && !looks_back {
                clock = now;
            }
            let act = match act {
                Act::Within(_) if algorithm != Algorithm::Bucket => Act::Take,
                act => act,
            };
            Call { act, quotas, cost, now, at }
        });
        History { algorithm, calls: calls.collect() }
    })
}
