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

/// Whether keys with windows of the calendar have code of their own, so that others never look at a calendar. In WebAssembly, which is
/// to be small, all keys look at it.
pub const CALENDAR_APART: bool = cfg!(not(target_family = "wasm"));

/// How windows are numbered: those of a key with windows of the calendar, or by their [`Method`] those of all other keys.
pub trait Numbering: Copy {
    fn method(self) -> Method;

    /// The number of the window that `now` is in.
    fn number(self, window: WindowMs, now: UnixMs) -> u64;

    /// The first millisecond of window `number`.
    fn start(self, window: WindowMs, number: u64) -> UnixMs;
}

impl Numbering for Method {
    #[inline(always)]
    fn method(self) -> Method {
        self
    }

    #[inline(always)]
    fn number(self, window: WindowMs, now: UnixMs) -> u64 {
        if CALENDAR_APART { now.window_number(window) } else { ByCalendar.number(window, now) }
    }

    #[inline(always)]
    fn start(self, window: WindowMs, number: u64) -> UnixMs {
        if CALENDAR_APART {
            UnixMs::start_of_window(number, window)
        } else {
            ByCalendar.start(window, number)
        }
    }
}

/// The windows of an RL.FIXED key, of which some are of the calendar.
#[derive(Clone, Copy)]
pub struct ByCalendar;

impl Numbering for ByCalendar {
    fn method(self) -> Method {
        Method::Fixed
    }

    fn number(self, window: WindowMs, now: UnixMs) -> u64 {
        window.calendar().map_or_else(|| now.window_number(window), |calendar| calendar.number(now))
    }

    fn start(self, window: WindowMs, number: u64) -> UnixMs {
        let by_length = || UnixMs::start_of_window(number, window);
        window.calendar().map_or_else(by_length, |calendar| calendar.start(number))
    }
}

/// The counter of one window length.
///
/// [`Counter::used`] and [`Counter::wait_until`] expect a counter that was advanced to the present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The window length. Windows are aligned to the Unix epoch, or to the calendar.
    pub window: WindowMs,
    /// Number of the current window when it last counted: `floor(now / window)`, or that of the calendar.
    pub number: u64,
    /// Units counted in the current window.
    pub current: u64,
    /// Units counted in the previous window; always 0 for RL.FIXED.
    pub previous: u64,
}

impl Counter {
    /// An empty counter in the window of `now`.
    pub fn new(window: WindowMs, by: impl Numbering, now: UnixMs) -> Counter {
        Counter { window, number: by.number(window, now), current: 0, previous: 0 }
    }

    pub fn start(&self, by: impl Numbering) -> UnixMs {
        by.start(self.window, self.number)
    }

    /// The first millisecond after the current window.
    fn end(&self, by: impl Numbering) -> UnixMs {
        by.start(self.window, self.number + 1)
    }

    /// The length of the current window in milliseconds. The first weeks begin with 1970.
    pub fn length_ms(&self, by: impl Numbering) -> u64 {
        self.end(by).since(self.start(by))
    }

    pub fn is_zero(&self) -> bool {
        self.current == 0 && self.previous == 0
    }

    /// The counter as of `now`. In a later window it is empty, except that in the next one the current units of a
    /// sliding window become the previous ones. At an earlier time it is unchanged.
    #[inline(always)]
    pub fn advance(self, by: impl Numbering, now: UnixMs) -> Counter {
        let number = by.number(self.window, now);
        if number <= self.number {
            return self;
        }
        let fades = by.method() == Method::Sliding && number == self.number + 1;
        Counter { number, current: 0, previous: if fades { self.current } else { 0 }, ..self }
    }

    /// Units that count at `now`, at most [`MAX_COUNT`].
    #[inline(always)]
    pub fn used(&self, now: UnixMs) -> u64 {
        if self.previous == 0 {
            return self.current;
        }
        let window = self.window.get();
        let left = window - now.since(self.start(Method::Sliding));
        (self.current + scale(self.previous, left, window)).min(MAX_COUNT)
    }

    /// Milliseconds from `now` until at most `most` units count, if more do now.
    ///
    /// In a fixed window, that is the next window, which is empty. In a sliding one, the previous units fade during
    /// the current window, and the current ones during the next.
    #[inline(always)]
    pub fn wait_until(&self, by: impl Numbering, most: u64, now: UnixMs) -> u64 {
        let fits = match by.method() {
            Method::Fixed => self.end(by),
            Method::Sliding if self.current <= most => {
                self.start(by) + fades_to(most - self.current, self.previous, self.window)
            }
            Method::Sliding => self.end(by) + fades_to(most, self.current, self.window),
        };
        fits.since(now)
    }

    /// The first millisecond at which it no longer counts.
    pub fn ends(&self, by: impl Numbering) -> UnixMs {
        match by.method() {
            Method::Sliding if self.current > 0 => self.end(by) + self.window,
            Method::Fixed | Method::Sliding => self.end(by),
        }
    }

    /// Puts a counter that is too far ahead of the clock into the window after the present one, which may end at once. Returns
    /// whether it was.
    pub fn move_back(&mut self, by: impl Numbering, to: MoveBack) -> bool {
        let moves = to.applies(self.start(by), self.length_ms(by));
        if moves {
            self.number = by.number(self.window, to.clock) + 1;
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
    pub fn refund(&mut self, by: impl Numbering, units: u64, as_of: UnixMs) -> u64 {
        let named = by.number(self.window, as_of);
        let from_current =
            named == self.number || (by.method() == Method::Sliding && named == self.number + 1);
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
