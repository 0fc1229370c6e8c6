//! RL.FIXED: one count for each window, aligned to the Unix epoch.
//!
//! All functions except [`advance`] and [`refund`] expect a counter that was advanced to the present.

use super::counter::Counter;
use super::quota::UnixMs;

/// Returns the counter as of `now`: empty in a later window, unchanged at an earlier time.
#[inline(always)]
pub fn advance(counter: Counter, now: UnixMs) -> Counter {
    let number = now.window_number(counter.window);
    if number <= counter.number { counter } else { Counter { number, current: 0, ..counter } }
}

/// Units counted in the current window.
#[inline(always)]
pub fn used(counter: &Counter) -> u64 {
    counter.current
}

/// Takes up to `units` from the window of `as_of`, if the counter is still in it. Returns how many were
/// taken.
pub fn refund(counter: &mut Counter, units: u64, as_of: UnixMs) -> u64 {
    if as_of.window_number(counter.window) == counter.number { counter.refund_current(units) } else { 0 }
}

/// Milliseconds from `now` until the next window, which is empty.
#[inline(always)]
pub fn wait(counter: &Counter, now: UnixMs) -> u64 {
    counter.end().since(now)
}

/// The first millisecond at which the counter no longer counts.
#[inline(always)]
pub fn ends(counter: &Counter) -> UnixMs {
    counter.end()
}
