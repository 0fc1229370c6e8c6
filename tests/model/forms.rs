//! Short and large logs: the form of a log shows in its memory and in nothing else.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use redis_rl_core::encoding::{decode, encode};
use redis_rl_core::limiter::{Algorithm, Limiter, WindowMs};

use crate::calls::{Act, Call, History, answer, quota};
use crate::cases;
use crate::history::history;
use crate::replies::at_the_edge;

/// The size of the largest short log.
const SHORT_BYTES: usize = 256;

fn is_short(limiter: &Limiter) -> bool {
    limiter.heap_bytes() <= SHORT_BYTES
}

pub fn forced(cost: i64, now: u64, window_ms: u64) -> Call {
    let window = WindowMs::new(window_ms).expect("a window");
    Call { act: Act::Force, quotas: vec![quota(1_000_000, window)], cost, now, at: true }
}

/// A log of `units`, one a second.
fn filled(units: u64, window_ms: u64) -> Limiter {
    let calls = (1..=units).map(|i| forced(1, i * 1_000, window_ms)).collect();
    History { algorithm: Algorithm::Log, calls }.limiter()
}

#[test]
fn a_log_of_few_units_takes_few_bytes_grown_loaded_or_copied() {
    const DAY_MS: u64 = 86_400_000;
    for (units, bytes) in [(1, 32), (2, 32), (5, 32), (10, 48), (20, 64), (50, 128), (100, 256)] {
        let grown = filled(units, DAY_MS);
        assert_eq!(grown.heap_bytes(), bytes, "{units} units");
        assert_eq!(grown.allocations(), 2);
        let loaded = decode(&encode(&grown)).expect("a log");
        assert_eq!(loaded.heap_bytes(), bytes, "{units} units, loaded");
        assert_eq!(grown.clone().heap_bytes(), bytes, "{units} units, copied");
    }
    assert!(!is_short(&filled(200, DAY_MS)));
}

#[test]
fn a_large_log_that_shrinks_to_three_units_takes_the_memory_of_three() {
    let last_ms = 100_000 * 1_000;
    let mut expired = filled(100_000, 50_000_000);
    assert!(!is_short(&expired));
    // Only two older units are still in the window of this request.
    answer(&mut expired, &forced(1, last_ms + 50_000_000 - 1_500, 50_000_000)).expect("the windows fit");
    assert_eq!((expired.entries(Default::default()), expired.heap_bytes()), (Some(3), 32));

    let mut refunded = filled(100_000, WindowMs::MAX.get());
    answer(&mut refunded, &forced(-99_997, last_ms, WindowMs::MAX.get())).expect("the windows fit");
    assert_eq!((refunded.entries(Default::default()), refunded.heap_bytes()), (Some(3), 32));
}

#[test]
fn a_log_at_the_boundary_between_its_forms_does_not_alternate() {
    for limit in 90..130 {
        let mut limiter = Limiter::new(Algorithm::Log);
        let window = WindowMs::new(limit * 1_000).expect("a window");
        let mut changes = 0;
        for i in 1..2_000 {
            let was_short = is_short(&limiter);
            // Entries of one byte and of two.
            let now = i * 1_000 + i % 3 * 300;
            answer(&mut limiter, &Call { quotas: vec![quota(limit, window)], ..forced(1, now, 1) })
                .expect("the windows fit");
            // Now and then a unit is given back.
            if i % 5 == 0 {
                answer(&mut limiter, &forced(-1, now, window.get())).expect("the windows fit");
            }
            changes += u32::from(is_short(&limiter) != was_short);
        }
        assert!(changes <= 1, "{changes} times with a limit of {limit}");
    }
}

/// After every call, the log encodes to the same bytes as one that was just loaded.
fn is_stored_alike(history: &History) -> TestCaseResult {
    let mut limiter = Limiter::new(Algorithm::Log);
    let (mut copy, mut times_crossed) = (limiter.clone(), 0);
    for call in &history.calls {
        let was_short = is_short(&limiter);
        prop_assert_eq!(answer(&mut limiter, call), answer(&mut copy, call), "{:?}", call);
        let bytes = encode(&limiter);
        prop_assert_eq!(&encode(&copy), &bytes, "{:?}", call);
        copy = decode(&bytes).unwrap_or(copy);
        times_crossed += u32::from(is_short(&limiter) != was_short);
    }
    let most = history.calls.len() as u32 / 10;
    prop_assert!(times_crossed <= most, "the form changed {} times", times_crossed);
    Ok(())
}

proptest! {
    #![proptest_config(cases(30))]

    #[test]
    fn both_forms_of_a_log_have_the_same_encoding(history in history(at_the_edge())) {
        is_stored_alike(&history)?;
    }
}
