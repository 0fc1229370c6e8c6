//! Whatever limits, windows, tiers and times a give-back names, the units of others stay.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use redis_rl_core::limiter::{Algorithm, Bucket, Limiter, MoveBack, Quota, Time, UnixMs, WindowMs};

use crate::calls::{Act, Call, History, answer, quota};
use crate::cases;
use crate::history::{Shape, history, small};

/// The limits of buckets, and a number that all of them divide: so the share of a bucket that is missing stays a whole number.
const LIMITS: [u64; 6] = [1, 2, 3, 7, 10, 1_000];
const SHARES: u64 = 21_000;

/// Gives units back at the end of a history.
fn frees_no_more_than_it_names(history: &History, back: &Call) -> TestCaseResult {
    let mut before = history.limiter();
    if !back.at {
        let most = before.source().most_ahead();
        before.move_back(MoveBack { clock: UnixMs::saturating(back.now), most });
    }
    let (mut after, algorithm) = (before.clone(), history.algorithm);
    let reply = answer(&mut after, back).expect("a give-back is always allowed");
    let units = back.cost.unsigned_abs();
    prop_assert!(reply.granted.is_none_or(|granted| (back.cost..=0).contains(&granted)));
    let (windows, end) = history.windows_and_end();
    let now = history.calls.iter().map(|call| call.now).max().unwrap_or(end).max(back.now);
    for window in windows {
        let window = WindowMs::new(window).expect("a window");
        if before.retention().is_some_and(|retention| retention < window) {
            // A log keeps no units for it.
            continue;
        }
        let named = back.quotas.iter().find(|quota| quota.window() == window);
        let own = before.buckets().into_iter().find(|bucket| bucket.window == window);
        let own = own.map_or(1, |bucket| bucket.limit);
        let quota = quota(named.map_or(own, |quota| quota.limit().max(own)), window);
        for ms in 0..=2 * window.get() {
            let at = UnixMs::saturating(now + ms);
            let (was, is) = (before.used(quota, at), after.used(quota, at));
            prop_assert!(is <= was && was - is <= units, "{} to {} in {:?} at {:?}", was, is, quota, at);
            // A log has one list of units for all windows.
            if named.is_none() && algorithm != Algorithm::Log {
                prop_assert_eq!(is, was, "{:?} is not named", quota);
            }
        }
    }
    // The limit of a bucket stays, and its time.
    for bucket in after.buckets() {
        let Bucket { level, awaited, .. } = bucket;
        let as_it_was = |old: &Bucket| Bucket { level, awaited, ..*old } == bucket;
        prop_assert!(before.buckets().iter().any(as_it_was), "{:?}", bucket);
    }
    Ok(())
}

/// A step of one of two who share a key.
#[derive(Clone, Debug)]
struct Step {
    pass_ms: u64,
    mine: bool,
    units: u64,
    /// The limit of each window, if the step names it.
    limits: Vec<Option<u64>>,
    /// What I give back of what I took there, and after how many more steps.
    back: Option<(u64, usize)>,
}

fn step(windows: usize) -> impl Strategy<Value = Step> {
    let limit = prop::option::weighted(0.7, prop::sample::select(&LIMITS[..]));
    let back = prop::option::weighted(0.7, (1..=4u64, 0..6usize));
    let pass = prop_oneof![3 => Just(0), 6 => 1..=6u64, 3 => 7..=40u64];
    (pass, any::<bool>(), 1..=4u64, vec(limit, windows), back)
        .prop_map(|(pass_ms, mine, units, limits, back)| Step { pass_ms, mine, units, limits, back })
}

/// What is missing from a bucket of which only the others took: the milliseconds until it is full, times [`SHARES`].
#[derive(Clone, Copy, Default)]
struct Missing {
    share: u64,
    last: u64,
}

impl Missing {
    fn at(self, now: u64) -> u64 {
        self.share.saturating_sub((now - self.last) * SHARES)
    }
}

/// Counts what others take in a key of their own too, and checks that a key that they share with me never counts less.
fn units_of_others_stay(algorithm: Algorithm, windows: &[WindowMs], steps: &[Step]) -> TestCaseResult {
    let (mut shared, mut alone) = (Limiter::new(algorithm), Limiter::new(algorithm));
    let mut missing = vec![Missing::default(); windows.len()];
    let (mut now, mut due) = (5_000, Vec::<(usize, Call)>::new());
    for (index, Step { pass_ms, mine, units, limits, back }) in steps.iter().enumerate() {
        now += pass_ms;
        let at = UnixMs::saturating(now);
        let named = windows.iter().zip(limits);
        let mut quotas: Vec<Quota> =
            named.filter_map(|(window, limit)| Some(quota((*limit)?, *window))).collect();
        if algorithm == Algorithm::Log {
            // It keeps units for the longest window that was named.
            quotas = vec![quota(1, windows[windows.len() - 1])];
        }
        // What FORCE could not count of a bucket is not remembered.
        let is_counted = |quota: &Quota| {
            algorithm != Algorithm::Bucket || shared.used(*quota, at) + units <= 2 * quota.limit()
        };
        if !quotas.is_empty() && quotas.iter().all(is_counted) {
            let take = Call { act: Act::Force, quotas, cost: *units as i64, now, at: false };
            answer(&mut shared, &take).expect("the windows fit");
            if let (true, Some((units, later))) = (mine, back) {
                let cost = -((*units).min(take.cost as u64) as i64);
                due.push((index + later, Call { act: Act::Take, cost, at: true, ..take }));
            } else if !mine {
                answer(&mut alone, &take).expect("the windows fit");
                for (missing, (window, limit)) in missing.iter_mut().zip(windows.iter().zip(limits)) {
                    if let Some(limit) = limit {
                        let share = missing.at(now) + units * window.get() * (SHARES / limit);
                        *missing = Missing { share, last: now };
                    }
                }
            }
        }
        for (_, call) in due.extract_if(.., |(due, _)| *due <= index) {
            // As of the time that the units were counted at, and decided now.
            let time = Time { clock: at, at: Some(UnixMs::saturating(call.now)) };
            let outcome = shared.record(call.request(algorithm, time), false).expect("it is always allowed");
            if outcome.emptied {
                shared = Limiter::new(algorithm);
            }
        }
        for (window, missing) in windows.iter().zip(&missing) {
            if algorithm == Algorithm::Bucket {
                let bucket = shared.buckets().into_iter().find(|bucket| bucket.window == *window);
                let share = bucket.map_or(0, |bucket| {
                    let share = bucket.level * u128::from(SHARES) / u128::from(bucket.limit);
                    (share as u64).saturating_sub(at.since(bucket.last) * SHARES)
                });
                prop_assert!(share >= missing.at(now), "{} of {} in {:?}", share, missing.at(now), window);
                continue;
            }
            for ms in [0, 1, window.get() / 2, window.get() - 1, window.get(), 2 * window.get() - 1] {
                let quota = quota(1, *window);
                let (with_me, alone) = (shared.used(quota, at + ms), alone.used(quota, at + ms));
                prop_assert!(with_me >= alone, "{} of {} in {:?}, {} ms later", with_me, alone, window, ms);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn a_give_back_frees_no_more_than_it_names_and_only_in_the_windows_that_it_names(
        history in history(Shape { windows: 1..=6, ..small() }),
        partial: bool,
        units in 1..12i64,
        limit in prop_oneof![0..=10u64, Just(1_000)],
    ) {
        let mut history = history;
        let mut back = history.calls.pop().expect("a history has a call");
        for quota in &mut back.quotas {
            *quota = crate::calls::quota(limit, quota.window());
        }
        (back.act, back.cost) = (if partial { Act::Partial } else { Act::Take }, -units);
        frees_no_more_than_it_names(&history, &back)?;
    }

    #[test]
    fn what_is_given_back_as_it_was_taken_leaves_the_units_of_others(
        algorithm in prop::sample::select(&Algorithm::ALL[..]),
        windows in prop::collection::btree_set(1..=40u64, 1..=3),
        steps in vec(step(3), 1..40),
    ) {
        let windows: Vec<_> = windows.into_iter().filter_map(WindowMs::new).collect();
        units_of_others_stay(algorithm, &windows, &steps)?;
    }
}
