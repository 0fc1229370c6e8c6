//! RL.FIXED: one count in each window, and windows aligned to the Unix epoch.
//!
//! Every function reads a counter that already stands at `now`.

use super::UnixMs;
use super::counters::Counter;

/// Units counted in this window.
#[inline(always)]
pub fn used(counter: &Counter) -> u64 {
    counter.current
}

/// Milliseconds from `now` until fewer count: the next window is empty.
#[inline(always)]
pub fn wait(counter: &Counter, now: UnixMs) -> u64 {
    counter.end().since(now)
}

/// The first millisecond at which nothing in it can count any more.
#[inline(always)]
pub fn dies(counter: &Counter) -> UnixMs {
    counter.end()
}
