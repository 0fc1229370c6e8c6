//! The counter of one window length, and the two methods to read it.
//!
//! RL.FIXED counts the current window. RL.SLIDING also counts the units of the window before, weighted by its
//! overlap with a window that ends now: `current + floor(previous * (window - elapsed) / window)`. Everything is
//! exact: a count of 63 bits times a window of 39 bits fits in 128 bits.

use super::super::lifetime::MoveBack;
use super::super::quota::{MAX_COUNT, UnixMs, WindowMs};

/// How a counter is read: an [`Algorithm`](crate::limiter::Algorithm) with aligned windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// RL.FIXED: the units of the current window.
    Fixed,
    /// RL.SLIDING: those, and a share of the units of the window before.
    Sliding,
}

/// The counter of one window length.
///
/// [`Counter::used`] and [`Counter::wait_until`] expect a counter that was advanced to the present.
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
    pub fn new(window: WindowMs, now: UnixMs) -> Counter {
        Counter { window, number: now.window_number(window), current: 0, previous: 0 }
    }

    pub fn start(&self) -> UnixMs {
        UnixMs::start_of_window(self.number, self.window)
    }

    /// The first millisecond after the current window.
    fn end(&self) -> UnixMs {
        self.start() + self.window
    }

    pub fn is_zero(&self) -> bool {
        self.current == 0 && self.previous == 0
    }

    /// The counter as of `now`. In a later window it is empty, except that in the next one the current units of a
    /// sliding window become the previous ones. At an earlier time it is unchanged.
    #[inline(always)]
    pub fn advance(self, method: Method, now: UnixMs) -> Counter {
        let number = now.window_number(self.window);
        if number <= self.number {
            return self;
        }
        let fades = method == Method::Sliding && number == self.number + 1;
        Counter { number, current: 0, previous: if fades { self.current } else { 0 }, ..self }
    }

    /// Units that count at `now`, at most [`MAX_COUNT`].
    #[inline(always)]
    pub fn used(&self, now: UnixMs) -> u64 {
        if self.previous == 0 {
            return self.current;
        }
        let window = self.window.get();
        let left = window - now.since(self.start());
        (self.current + scale(self.previous, left, window)).min(MAX_COUNT)
    }

    /// Milliseconds from `now` until at most `most` units count, if more do now.
    ///
    /// In a fixed window, that is the next window, which is empty. In a sliding one, the previous units fade during
    /// the current window, and the current ones during the next.
    #[inline(always)]
    pub fn wait_until(&self, method: Method, most: u64, now: UnixMs) -> u64 {
        let fits = match method {
            Method::Fixed => self.end(),
            Method::Sliding if self.current <= most => {
                self.start() + fades_to(most - self.current, self.previous, self.window)
            }
            Method::Sliding => self.end() + fades_to(most, self.current, self.window),
        };
        fits.since(now)
    }

    /// The first millisecond at which it no longer counts.
    pub fn ends(&self, method: Method) -> UnixMs {
        match method {
            Method::Sliding if self.current > 0 => self.end() + self.window,
            Method::Fixed | Method::Sliding => self.end(),
        }
    }

    /// Puts a counter that is too far ahead of the clock into the window after the present one, which may end at once. Returns
    /// whether it was.
    pub fn move_back(&mut self, to: MoveBack) -> bool {
        let moves = to.applies(self.start(), self.window.get());
        if moves {
            self.number = to.clock.window_number(self.window) + 1;
        }
        moves
    }

    /// Adds `units` to the current window, up to [`MAX_COUNT`]. Returns how many were added.
    pub fn add(&mut self, units: u64) -> u64 {
        let units = units.min(MAX_COUNT - self.current);
        self.current += units;
        units
    }

    /// Gives back up to `units` from the window of `as_of` and, if sliding, from the one before it, if it still holds
    /// them. Returns how many. It stays in its window, also if `as_of` is in the next.
    pub fn refund(&mut self, method: Method, units: u64, as_of: UnixMs) -> u64 {
        let named = as_of.window_number(self.window);
        let from_current = named == self.number || (method == Method::Sliding && named == self.number + 1);
        let from_previous = named == self.number || named + 1 == self.number;
        let mut left = units;
        for (count, counted_by_then) in
            [(&mut self.current, from_current), (&mut self.previous, from_previous)]
        {
            if counted_by_then {
                let refunded = left.min(*count);
                *count -= refunded;
                left -= refunded;
            }
        }
        units - left
    }
}

/// The smallest `elapsed`, at most `window`, for which `floor(units * (window - elapsed) / window) <= most`.
fn fades_to(most: u64, units: u64, window: WindowMs) -> u64 {
    if units <= most {
        return 0;
    }
    // units * (window - elapsed) < (most + 1) * window
    let overlap = ((u128::from(most) + 1) * u128::from(window.get()) - 1) / u128::from(units);
    window.get() - overlap as u64
}

/// `floor(units * part / whole)`; `part` is at most `whole`.
fn scale(units: u64, part: u64, whole: u64) -> u64 {
    match units.checked_mul(part) {
        // Spares nearly every request a 128-bit division, which takes much longer.
        Some(product) => product / whole,
        None => (u128::from(units) * u128::from(part) / u128::from(whole)) as u64,
    }
}
