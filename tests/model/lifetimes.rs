//! A key lives until nothing in it counts.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use redis_rl_core::limiter::UnixMs;

use crate::calls::History;
use crate::cases;
use crate::history::{calendar, history, huge, small};

proptest! {
    #![proptest_config(cases(1200))]

    #[test]
    fn a_key_lives_until_nothing_in_it_counts_and_not_much_longer(
        history in prop_oneof![history(small()), history(huge()), history(calendar())],
    ) {
        lives_long_enough(&history)?;
    }
}

fn lives_long_enough(history: &History) -> TestCaseResult {
    let limiter = history.limiter();
    // At its own time: no call was later.
    let now = history.calls.iter().map(|call| call.now).max().unwrap_or(0);
    let lifetime = limiter.lifetime_ms(UnixMs::saturating(now));
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
