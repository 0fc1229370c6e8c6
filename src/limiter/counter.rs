//! The counter of one window length: units in its current window and in the one before.

use super::quota::{MAX_COUNT, UnixMs, WindowMs};

/// The counter of one window length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The window length. Windows are aligned to the Unix epoch.
    pub window: WindowMs,
    /// Number of the current window: `floor(now / window)` when it last counted.
    pub number: u64,
    /// Units counted in the current window.
    pub current: u64,
    /// Units counted in the previous window; always 0 for RL.FIXED.
    pub previous: u64,
}

impl Counter {
    /// An empty counter in the window of `now`.
    #[inline(always)]
    pub fn new(window: WindowMs, now: UnixMs) -> Counter {
        Counter { window, number: now.window_number(window), current: 0, previous: 0 }
    }

    /// The first millisecond of the current window.
    #[inline(always)]
    pub fn start(&self) -> UnixMs {
        UnixMs::start_of_window(self.number, self.window)
    }

    /// The first millisecond after the current window.
    #[inline(always)]
    pub fn end(&self) -> UnixMs {
        self.start() + self.window
    }

    /// Whether it counts nothing.
    pub fn is_zero(&self) -> bool {
        self.current == 0 && self.previous == 0
    }

    /// Adds `units` to the current window, up to [`MAX_COUNT`]. Returns how many were added.
    #[inline(always)]
    pub(super) fn add(&mut self, units: u64) -> u64 {
        let units = units.min(MAX_COUNT - self.current);
        self.current += units;
        units
    }

    /// Takes up to `units` from the current window. Returns how many were taken.
    pub(super) fn refund_current(&mut self, units: u64) -> u64 {
        let refunded = units.min(self.current);
        self.current -= refunded;
        refunded
    }

    /// Takes up to `units` from the previous window. Returns how many were taken.
    pub(super) fn refund_previous(&mut self, units: u64) -> u64 {
        let refunded = units.min(self.previous);
        self.previous -= refunded;
        refunded
    }
}
