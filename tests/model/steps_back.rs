//! The clock steps back and runs on. In true time no limit lets more pass than it should, no wait is over early, and copies are
//! equal.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseResult;
use redis_rl_core::encoding::encode;
use redis_rl_core::limiter::key::Answer;
use redis_rl_core::limiter::{
    Algorithm, Calendar, Cost, Limiter, Mode, Quota, Recorded, Request, Time, UnixMs, WindowMs,
};

use crate::calls::{MemoryKey, apply, quota};
use crate::cases;
use crate::naive::{length_of, number_of, start_of};

/// A key with a time to live, and a copy that gets only effects.
#[derive(Clone)]
struct Host {
    algorithm: Algorithm,
    limiter: Limiter,
    expires_at: Option<UnixMs>,
    copy: Limiter,
    copy_expires_at: Option<UnixMs>,
    clock: u64,
    /// How often the key was moved back.
    moves: usize,
}

impl Host {
    fn new(algorithm: Algorithm, clock: u64) -> Host {
        let (limiter, copy) = (Limiter::new(algorithm), Limiter::new(algorithm));
        Host { algorithm, limiter, expires_at: None, copy, copy_expires_at: None, clock, moves: 0 }
    }

    /// Sets the clock. A key is still served in the millisecond that it expires in.
    fn set_clock(&mut self, clock: u64) {
        self.clock = clock;
        if self.expires_at.is_some_and(|end| end.get() < clock) {
            *self = Host { moves: self.moves + 1, ..Host::new(self.algorithm, clock) };
        }
    }

    fn take(&mut self, quotas: &[Quota], cost: i64, mode: Mode, at: Option<u64>) -> Answer {
        let time = Time { clock: UnixMs::saturating(self.clock), at: at.map(UnixMs::saturating) };
        let (algorithm, cost) = (self.algorithm, Cost::new(cost).expect("a cost"));
        let request = Request { algorithm, quotas, cost, mode, time };
        let mut key = MemoryKey { limiter: &mut self.limiter, expires_at: &mut self.expires_at };
        let (mut fresh, before) = (None, *key.expires_at);
        let answer = request.run(&mut key, &mut fresh).expect("the windows fit");
        if answer.pending.is_any() {
            let recorded = || Recorded::of(algorithm, quotas, cost, &answer.outcome);
            let effect = answer.pending.effect(recorded);
            apply(&mut self.copy, &mut self.copy_expires_at, &effect);
        }
        key.carry_out(fresh, answer.pending);
        self.moves += usize::from(answer.pending.moved.back.is_some());
        if cost.get() < 0 {
            assert!(self.expires_at <= before, "giving back keeps the key no longer");
        }
        assert_eq!(encode(&self.copy), encode(&self.limiter), "the copy is equal");
        assert_eq!(self.copy_expires_at, self.expires_at, "the copy expires at the same time");
        answer
    }

    /// Whether a request would be refused after `ms` in which nothing touches the key.
    fn refuses(&self, quotas: &[Quota], cost: i64, clock: u64) -> bool {
        let mut later = self.clone();
        later.set_clock(clock);
        let time = Time { clock: UnixMs::saturating(clock), at: None };
        let cost = Cost::new(cost).expect("a cost");
        let algorithm = later.limiter.algorithm();
        let request = Request { algorithm, quotas, cost, mode: Mode::AllOrNothing, time };
        later.limiter.peek(request).expect("the windows fit").verdict.limited
    }
}

#[derive(Clone, Debug)]
enum Act {
    Take(i64),
    Partial(i64),
    /// WITHIN so many milliseconds; not of a bucket, a plain request.
    Within(i64, u64),
    /// With FORCE, unless a bucket could not count all of it.
    Force(i64),
    /// Gives back the newest units.
    GiveBack(i64),
    /// Gives back units as of the time that they were counted at.
    Settle(i64, Index),
}

#[derive(Clone, Debug)]
struct Step {
    pass_ms: u64,
    /// How far the clock steps back meanwhile.
    back_ms: u64,
    act: Act,
}

#[derive(Clone, Debug)]
struct Story {
    algorithm: Algorithm,
    quotas: Vec<Quota>,
    start: u64,
    steps: Vec<Step>,
    /// How far the clock may step back at most, about.
    most_back_ms: u64,
}

const WINDOW_MS: u64 = 800;

/// A story in weeks and months, with a tier of seven days at times: a plain story, with longer windows and times. It begins some
/// milliseconds before or after a month does.
fn story_of_the_calendar() -> impl Strategy<Value = Story> {
    const LONGER: u64 = 7 * 24 * 3_600_000 / WINDOW_MS;
    let of_calendar = prop_oneof![
        2 => Just(Calendar::Weeks(1)),
        1 => Just(Calendar::Weeks(2)),
        3 => Just(Calendar::Months(1)),
        1 => Just(Calendar::Months(3)),
    ];
    let week = WindowMs::new(WINDOW_MS * LONGER).expect("a window");
    let windows = (of_calendar.clone(), prop_oneof![Just(None), of_calendar.prop_map(Some)]);
    let edge = (360..=840i128, -2..=2i64);
    let ms = vec(0..=2u64, 60);
    (story(), windows, edge, ms).prop_map(move |(mut story, (window, other), (month, ms), jitter)| {
        let of = |calendar| WindowMs::of_calendar(calendar).expect("a window");
        story.algorithm = Algorithm::Fixed;
        story.quotas[0] = quota(story.quotas[0].limit(), of(window));
        if let [_, second] = &mut story.quotas[..] {
            *second = quota(second.limit(), other.filter(|other| *other != window).map_or(week, of));
        }
        let month_begins = start_of(of(Calendar::Months(1)).get().into(), month) as u64;
        story.start = month_begins.saturating_add_signed(ms);
        for (step, ms) in story.steps.iter_mut().zip(jitter) {
            step.pass_ms = step.pass_ms * LONGER + ms;
            step.back_ms *= LONGER;
        }
        Story { most_back_ms: story.most_back_ms * LONGER, ..story }
    })
}

/// When a window begins while the clock runs on from `clock`, in milliseconds from then.
fn begins(quota: Quota, clock: u64, pass_ms: u64) -> impl Iterator<Item = u64> {
    let window = i128::from(quota.window().get());
    let number = move |ms: u64| number_of(window, ms.into());
    let numbers = number(clock) + 1..=number(clock + pass_ms);
    numbers.map(move |number| start_of(window, number) as u64 - clock)
}

fn story() -> impl Strategy<Value = Story> {
    let tiers = (1..=12u64, prop::option::weighted(0.3, (1..=12u64, 1..=2 * WINDOW_MS)));
    let pass = prop_oneof![
        2 => Just(0),
        4 => 1..=20u64,
        4 => 0..=WINDOW_MS / 4,
        2 => 0..=2 * WINDOW_MS,
    ];
    let back = prop_oneof![
        6 => Just(0),
        1 => Just(1),
        1 => 1..=WINDOW_MS / 2,
        2 => 1..=3 * WINDOW_MS,
    ];
    let units = || prop_oneof![4 => 1..=3i64, 1 => 4..=12i64];
    let act = prop_oneof![
        8 => units().prop_map(Act::Take),
        2 => units().prop_map(Act::Partial),
        4 => (units(), 1..=4 * WINDOW_MS).prop_map(|(units, ms)| Act::Within(units, ms)),
        1 => units().prop_map(Act::Force),
        1 => units().prop_map(Act::GiveBack),
        1 => (units(), any::<Index>()).prop_map(|(units, of)| Act::Settle(units, of)),
    ];
    let step = (pass, back, act).prop_map(|(pass_ms, back_ms, act)| Step { pass_ms, back_ms, act });
    let start = 1_000_000..1_000_000 + WINDOW_MS;
    (prop::sample::select(&Algorithm::ALL[..]), tiers, start, vec(step, 1..60)).prop_map(
        |(algorithm, (limit, other), start, mut steps)| {
            let mut quotas = vec![quota(limit, WindowMs::new(WINDOW_MS).expect("a window"))];
            if let Some((limit, window)) = other.filter(|(_, window)| *window != WINDOW_MS) {
                quotas.push(quota(limit, WindowMs::new(window).expect("a window")));
            }
            if quotas.len() > 1 && steps.iter().any(|step| matches!(step.act, Act::Within(..))) {
                // If one bucket is ahead of the clock, units are used later than another has them: see docs/promises.md.
                steps.iter_mut().for_each(|step| step.back_ms = 0);
            }
            Story { algorithm, quotas, start, steps, most_back_ms: 3 * WINDOW_MS }
        },
    )
}

/// Units that were counted and not given back.
#[derive(Debug)]
struct Passed {
    true_ms: u64,
    /// The key's own time then.
    at: u64,
    units: u64,
    forced: bool,
    /// Whether who took the units was told to wait for them.
    waited: bool,
    /// [`Host::moves`] then: what was counted before the key was moved is not found as of the time it was counted at.
    moves: usize,
}

fn nothing_is_free_early(story: &Story) -> TestCaseResult {
    let Story { algorithm, quotas, start, steps, most_back_ms } = story;
    let mut host = Host::new(*algorithm, *start);
    let (mut true_ms, mut passed) = (0, Vec::<Passed>::new());
    let mut begun = quotas.iter().map(|_| Vec::new()).collect::<Vec<Vec<u64>>>();
    for Step { pass_ms, back_ms, act } in steps {
        for (quota, begun) in quotas.iter().zip(&mut begun) {
            begun.extend(begins(*quota, host.clock, *pass_ms).map(|ms| true_ms + ms));
        }
        true_ms += pass_ms;
        host.set_clock(host.clock + pass_ms);
        // It may have ended while the clock ran on.
        host.set_clock(host.clock.saturating_sub(*back_ms));
        if host.limiter.is_empty() {
            // By a clock that runs through the same time again, nobody can tell that a unit is of an earlier key.
            host.moves += 1;
        }
        let waited = passed.iter().any(|passed| passed.waited);
        let mut count = |host: &Host, units: u64, forced| {
            let at = host.limiter.newest_in(quotas).get().max(host.clock);
            passed.push(Passed { true_ms, at, units, forced, waited: false, moves: host.moves });
        };
        let act = match *act {
            Act::Within(units, _) if *algorithm != Algorithm::Bucket => &Act::Take(units),
            _ => act,
        };
        match act {
            Act::Take(units) => {
                let reply = host.take(quotas, *units, Mode::AllOrNothing, None).reply();
                if !reply.limited {
                    count(&host, *units as u64, false);
                } else if let Some(wait) = reply.retry_after_ms {
                    for back in [0, 1, *back_ms, *most_back_ms] {
                        let clock = (host.clock + wait - 1).saturating_sub(back);
                        prop_assert!(host.refuses(quotas, *units, clock), "{act:?} before {wait} ms");
                    }
                    prop_assert!(!host.refuses(quotas, *units, host.clock + wait), "{act:?} after {wait} ms");
                }
            }
            Act::Partial(units) => {
                let granted = host.take(quotas, *units, Mode::Partial, None).granted.expect("PARTIAL").units;
                if granted.get() > 0 {
                    count(&host, granted.to_take(), false);
                }
            }
            Act::Within(units, ms) => {
                let within = Mode::Within(WindowMs::new(*ms).expect("a wait"));
                let answer = host.take(quotas, *units, within, None);
                let (reply, granted) = (answer.reply(), answer.granted.expect("WITHIN"));
                if reply.limited {
                    // One millisecond less is not enough.
                    if let Some(wait) = reply.retry_after_ms {
                        let mut later = host.clone();
                        later.set_clock(host.clock + wait - 1);
                        prop_assert!(later.take(quotas, *units, within, None).verdict.limited);
                        let mut later = host.clone();
                        later.set_clock(host.clock + wait);
                        prop_assert!(!later.take(quotas, *units, within, None).verdict.limited);
                    }
                } else {
                    let wait = reply.retry_after_ms.unwrap_or(0);
                    prop_assert!(wait <= *ms);
                    let (units, at, waited) = (*units as u64, granted.at.get(), wait > 0);
                    let true_ms = true_ms + wait;
                    passed.push(Passed { true_ms, at, units, forced: false, waited, moves: host.moves });
                }
            }
            Act::Force(units) => {
                let now = UnixMs::saturating(host.clock);
                let is_counted =
                    |quota: &Quota| host.limiter.used(*quota, now) + *units as u64 <= 2 * quota.limit();
                if *algorithm != Algorithm::Bucket || quotas.iter().all(is_counted) {
                    host.take(quotas, *units, Mode::Force, None);
                    count(&host, *units as u64, true);
                }
            }
            Act::GiveBack(units) => {
                let newest = passed.iter().rfind(|passed| passed.units > 0);
                let units = match newest {
                    Some(newest) if newest.waited => newest.units as i64,
                    _ if waited => continue,
                    _ => *units,
                };
                let mut back = host.take(quotas, -units, Mode::AllOrNothing, None).outcome.change.units;
                for Passed { units, .. } in passed.iter_mut().rev() {
                    let less = back.min(*units);
                    *units -= less;
                    back -= less;
                }
            }
            // Once somebody waits, only who was told to wait gives anything back: the whole request. Of several windows that may be
            // ahead of the clock, no single time is as of all.
            Act::Settle(units, of) => {
                let held = passed.iter_mut().filter(|p| p.moves == host.moves && p.waited == waited);
                let mut held: Vec<_> = held.collect();
                if held.is_empty() || quotas.len() > 1 && !waited {
                    continue;
                }
                let entry = of.index(held.len());
                let entry = &mut held[entry];
                let units = if waited { entry.units as i64 } else { (*units).min(entry.units as i64) };
                let answer = host.take(quotas, -units, Mode::AllOrNothing, Some(entry.at));
                let back = answer.outcome.change.units;
                prop_assert!(back <= units as u64, "never more than named");
                entry.units -= if waited { entry.units } else { back };
                if waited {
                    // One cancels while others stand behind: of several, a later one may be given back what they stand for.
                    host.moves += 1;
                }
            }
        }
    }
    let waited = passed.iter().any(|passed| passed.waited);
    // In the order in which they are used.
    passed.sort_by_key(|passed| passed.true_ms);
    for (quota, begun) in quotas.iter().zip(&begun) {
        bounded(*algorithm, *quota, &passed, begun, u64::from(waited))?;
    }
    Ok(())
}

/// Checks what passed in every span. Of aligned windows, those that have `begun` in it let a limit pass each, beside the one
/// that it begins in. Waits are in whole milliseconds, so a span of time may be `short_ms` longer than it looks.
fn bounded(
    algorithm: Algorithm,
    quota: Quota,
    passed: &[Passed],
    begun: &[u64],
    short_ms: u64,
) -> TestCaseResult {
    // Of the calendar, about its length: no longer spans are looked at.
    let window = i128::from(quota.window().get());
    let (limit, window) = (quota.limit(), length_of(window, 1) as u64);
    for (i, first) in passed.iter().enumerate() {
        let mut units = 0;
        for last in passed[i..].iter().filter(|passed| !passed.forced) {
            units += last.units;
            let span = last.true_ms - first.true_ms;
            let most = match algorithm {
                Algorithm::Bucket => limit + limit * (span + short_ms) / window,
                _ if span >= window => break,
                Algorithm::Log => limit,
                Algorithm::Fixed | Algorithm::Sliding => {
                    let begun = begun.iter().filter(|ms| (first.true_ms + 1..=last.true_ms).contains(ms));
                    limit * (1 + begun.count() as u64)
                }
            };
            prop_assert!(units <= most, "{} units, not {}, of {:?} in {} ms", units, most, quota, span);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn nothing_passes_early_in_true_time_however_the_clock_steps_back(story in story()) {
        nothing_is_free_early(&story)?;
    }

    #[test]
    fn of_weeks_and_months_neither(story in story_of_the_calendar()) {
        nothing_is_free_early(&story)?;
    }
}
