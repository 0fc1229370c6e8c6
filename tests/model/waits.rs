//! Waits are exact, without a model: the same limiter is queried at later times.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use redis_rl_core::limiter::{MAX_SAFE_INTEGER, Quota, UnixMs};

use crate::calls::{Call, History, peek};
use crate::cases;
use crate::history::{history, huge, small};

/// Chooses the milliseconds of a wait to try.
type Tried = fn(u64) -> Vec<u64>;

fn all(wait_ms: u64) -> Vec<u64> {
    (0..wait_ms).collect()
}

fn first_and_last(wait_ms: u64) -> Vec<u64> {
    if wait_ms == 0 { vec![] } else { vec![0, wait_ms / 2, wait_ms - 1] }
}

/// Peeks with the last call of a history, and checks the waits that it gets.
fn waits_are_exact(history: &History, tried: Tried) -> TestCaseResult {
    let mut earlier = history.clone();
    let Call { quotas, cost, now, .. } = earlier.calls.pop().expect("a history has a call");
    let limiter = earlier.limiter();
    let peek = |quotas: &[Quota], cost, ms| peek(&limiter, quotas, cost, now + ms);
    let refuses = |quotas: &[Quota], cost, ms| peek(quotas, cost, ms).limited;
    let limited = refuses(&quotas, cost, 0);
    let verdict = peek(&quotas, cost, 0);

    match verdict.retry_after_ms {
        Some(wait) => {
            prop_assert!(wait > 0);
            waits(&|ms| refuses(&quotas, cost, ms), wait, now, tried)?;
        }
        None => {
            let hopeless = quotas.iter().any(|quota| cost > 0 && cost as u64 > quota.limit());
            prop_assert_eq!(limited, hopeless, "-1 only when allowed, or when no wait can help");
        }
    }

    // The figures are those of one tier, but several may have its limit.
    let exact = |quota: &Quota| {
        let refuses = |ms| refuses(&[*quota], quota.limit() as i64, ms);
        // Of a limit of 0, a bucket tells when it is full of its own.
        let own = limiter.buckets().into_iter().find(|bucket| bucket.window == quota.window());
        match own.and_then(|bucket| Quota::new(bucket.limit, bucket.window)) {
            Some(own) if quota.limit() == 0 => {
                let refuses = |ms| peek(&[own], own.limit() as i64, ms).limited;
                waits(&refuses, verdict.reset_after_ms, now, tried)
            }
            _ => waits(&refuses, verdict.reset_after_ms, now, tried),
        }
    };
    let tiers: Vec<_> = quotas.iter().filter(|quota| quota.limit() == verdict.limit).map(exact).collect();
    prop_assert!(
        tiers.iter().any(|tier| tier.is_ok()),
        "reset after {}: {:?}",
        verdict.reset_after_ms,
        tiers
    );
    Ok(())
}

/// Refused at each millisecond before the wait is over, allowed then.
fn waits(refuses: &dyn Fn(u64) -> bool, wait_ms: u64, now: u64, tried: Tried) -> TestCaseResult {
    for ms in tried(wait_ms).into_iter().filter(|ms| now + ms <= MAX_SAFE_INTEGER) {
        prop_assert!(refuses(ms), "allowed {} ms after {}, before {}", ms, now, wait_ms);
    }
    if now + wait_ms <= MAX_SAFE_INTEGER {
        prop_assert!(!refuses(wait_ms), "refused {} ms after {}", wait_ms, now);
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(1200))]

    #[test]
    fn waiting_exactly_the_wait_is_enough_and_one_ms_less_is_not(history in history(small())) {
        waits_are_exact(&history, all)?;
    }

    #[test]
    fn waits_of_years_and_counts_of_63_bits_are_as_exact(history in history(huge())) {
        waits_are_exact(&history, first_and_last)?;
    }

    #[test]
    fn a_key_lives_until_nothing_in_it_counts_and_not_much_longer(history in history(small())) {
        lives_long_enough(&history)?;
    }

    #[test]
    fn a_key_of_huge_figures_lives_until_nothing_in_it_counts(history in history(huge())) {
        lives_long_enough(&history)?;
    }
}

fn lives_long_enough(history: &History) -> TestCaseResult {
    let limiter = history.limiter();
    // At its own time: no call was later.
    let now = history.calls.iter().map(|call| call.now).max().unwrap_or(0);
    let lifetime = limiter.lifetime(UnixMs::saturating(now), 0).ms;
    match limiter.counters() {
        Some(_) => {
            let live = |ms| !limiter.windows(UnixMs::saturating(now) + ms).is_empty();
            prop_assert!(!live(lifetime), "expires before the last of its windows");
            prop_assert!(lifetime == 0 || live(lifetime - 1), "stays after the last of its windows");
        }
        None => {
            let windows = limiter.windows(UnixMs::saturating(now));
            let exact = windows.iter().map(|window| window.reset_after_ms).max().unwrap_or(0);
            let longest = history.windows_and_end().0.last().copied().unwrap_or(0);
            prop_assert!(lifetime >= exact, "expires {} ms after, before {}", lifetime, exact);
            prop_assert!(lifetime <= exact + longest / 8, "expires {} ms after {}", lifetime, exact);
        }
    }
    Ok(())
}
