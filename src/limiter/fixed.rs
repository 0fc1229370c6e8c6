//! RL.FIXED: one count in each window, and windows aligned to the Unix epoch.
//!
//! Every function reads a counter that already stands at `now`.

use super::UnixMs;
use super::counters::Counter;

/// Units counted in this window.
#[inline]
pub fn used(counter: &Counter) -> u64 {
    counter.current
}

/// Milliseconds from `now` until at most `room` units count: the next window is empty.
#[inline]
pub fn wait_until(counter: &Counter, room: u64, now: UnixMs) -> u64 {
    if used(counter) <= room { 0 } else { counter.end().since(now) }
}

/// The first millisecond at which nothing in it can count any more.
#[inline]
pub fn dies(counter: &Counter) -> UnixMs {
    counter.end()
}
