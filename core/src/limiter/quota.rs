//! Times, windows, quotas and costs, each checked against its bounds when it is made.

use std::num::NonZeroU64;
use std::ops::Add;

use arrayvec::ArrayVec;

/// The largest limit, cost and time: 2^53 - 1, which every client language represents exactly.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// The decimal integer from 0 to [`MAX_SAFE_INTEGER`] at the start of `arg`, without leading zeros, and the rest.
///
/// ```
/// # use redis_rl_core::limiter::leading_integer;
/// assert_eq!(leading_integer(b"60s"), Some((60, b"s".as_slice())));
/// assert_eq!(leading_integer(b"060s"), None);
/// ```
#[inline(always)]
pub fn leading_integer(arg: &[u8]) -> Option<(u64, &[u8])> {
    let (mut value, mut digits) = (0, 0);
    // 17 digits do not overflow, and more than 16 are refused, so what follows them need not be read.
    for byte in &arg[..arg.len().min(17)] {
        let digit = u64::from(*byte).wrapping_sub(u64::from(b'0'));
        if digit > 9 {
            break;
        }
        value = value * 10 + digit;
        digits += 1;
    }
    let valid = (1..=16).contains(&digits) && value <= MAX_SAFE_INTEGER && (digits == 1 || arg[0] != b'0');
    valid.then(|| (value, &arg[digits..]))
}

/// The units of windows with a length, in milliseconds.
pub const SECOND_MS: u64 = 1_000;
pub const MINUTE_MS: u64 = 60 * SECOND_MS;
pub const HOUR_MS: u64 = 60 * MINUTE_MS;
pub const DAY_MS: u64 = 24 * HOUR_MS;

/// The decimal digits of an integer, at the end of `buffer`.
pub fn digits(integer: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let (mut start, mut rest) = (buffer.len(), integer);
    loop {
        start -= 1;
        buffer[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &buffer[start..];
        }
    }
}

/// Counts saturate at 2^63 - 1.
pub const MAX_COUNT: u64 = i64::MAX as u64;

/// The most tiers in a request, and live windows in a key.
pub const MAX_TIERS: usize = 8;

/// A time in milliseconds since the Unix epoch, at most [`MAX_SAFE_INTEGER`]. Only a sum may exceed that: the end of a window, say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMs(u64);

impl UnixMs {
    /// The last time that a request can name.
    pub const MAX: UnixMs = UnixMs(MAX_SAFE_INTEGER);

    /// A time of `ms` milliseconds; `None` if later than [`UnixMs::MAX`].
    pub const fn new(ms: u64) -> Option<UnixMs> {
        if ms <= MAX_SAFE_INTEGER { Some(UnixMs(ms)) } else { None }
    }

    /// A time of `ms` milliseconds, at most [`UnixMs::MAX`].
    pub const fn saturating(ms: u64) -> UnixMs {
        if ms <= MAX_SAFE_INTEGER { UnixMs(ms) } else { UnixMs::MAX }
    }

    /// Milliseconds since the Unix epoch.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Milliseconds from `earlier` to this time; 0 if `earlier` is later.
    pub const fn since(self, earlier: UnixMs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time `ms` milliseconds later, at most [`UnixMs::MAX`].
    pub const fn plus_up_to_max(self, ms: u64) -> UnixMs {
        UnixMs::saturating(self.0.saturating_add(ms))
    }

    /// This time rounded up to a multiple of `step_ms`, which must not be 0.
    pub const fn rounded_up_to(self, step_ms: u64) -> UnixMs {
        UnixMs(self.0.next_multiple_of(step_ms))
    }

    /// The number of the window that this time is in: `floor(time / window)`.
    pub fn window_number(self, window: WindowMs) -> u64 {
        self.0 / window.0
    }

    /// The first millisecond of window `number`, which must begin by [`UnixMs::MAX`].
    pub fn start_of_window(number: u64, window: WindowMs) -> UnixMs {
        UnixMs(number * window.get())
    }
}

impl Add<WindowMs> for UnixMs {
    type Output = UnixMs;

    fn add(self, window: WindowMs) -> UnixMs {
        UnixMs(self.0 + window.get())
    }
}

impl Add<u64> for UnixMs {
    type Output = UnixMs;

    fn add(self, ms: u64) -> UnixMs {
        UnixMs(self.0.saturating_add(ms))
    }
}

/// When a request is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// The clock of the store: the server's, or that of the caller of a map in memory.
    pub clock: UnixMs,
    /// The caller's AT.
    pub at: Option<UnixMs>,
}

impl Time {
    /// The time to decide as of: AT if given, else the clock.
    pub fn as_of(self) -> UnixMs {
        self.at.unwrap_or(self.clock)
    }
}

/// The length of a window: 1 ms to 3650 days. RL.FIXED also has windows of the [`Calendar`]: each has a number here that is no length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindowMs(NonZeroU64);

impl WindowMs {
    /// 1 ms.
    pub const MIN: WindowMs = WindowMs(NonZeroU64::MIN);

    /// 3650 days.
    pub const MAX: WindowMs = WindowMs(NonZeroU64::new(3650 * DAY_MS).expect("not zero"));

    /// A window of `ms` milliseconds; `None` if 0 or more than [`WindowMs::MAX`].
    pub fn new(ms: u64) -> Option<WindowMs> {
        NonZeroU64::new(ms).map(WindowMs).filter(|window| *window <= WindowMs::MAX)
    }

    /// A window of the calendar: 1 to 521 weeks, which last no longer than other windows, or 1 to 120 months; `None` for others.
    pub fn of_calendar(calendar: Calendar) -> Option<WindowMs> {
        let (number, is_valid) = match calendar {
            Calendar::Weeks(weeks) => (WEEKS + weeks, (1..=521).contains(&weeks)),
            Calendar::Months(months) => (MONTHS + months, (1..=120).contains(&months)),
        };
        NonZeroU64::new(number).map(WindowMs).filter(|_| is_valid)
    }

    /// The window of this number: a length, or one of the calendar.
    pub fn of_number(number: u64) -> Option<WindowMs> {
        WindowMs::new(number)
            .or_else(|| WindowMs::of_calendar(WindowMs(NonZeroU64::new(number)?).calendar()?))
    }

    /// The window of the calendar that it is; `None` if it is a length.
    pub fn calendar(self) -> Option<Calendar> {
        match self.get() {
            number @ MONTHS.. => Some(Calendar::Months(number - MONTHS)),
            number @ WEEKS.. => Some(Calendar::Weeks(number - WEEKS)),
            _ => None,
        }
    }

    /// Whether it is a window of the calendar.
    #[inline(always)]
    pub fn is_of_calendar(self) -> bool {
        self > WindowMs::MAX
    }

    /// Its length, as other algorithms than RL.FIXED take it: a week is seven days. A month has none.
    pub fn length(self) -> Option<WindowMs> {
        match self.calendar() {
            None => Some(self),
            Some(Calendar::Weeks(weeks)) => WindowMs::new(weeks * 7 * DAY_MS),
            Some(Calendar::Months(_)) => None,
        }
    }

    /// The length in milliseconds; of a window of the calendar, its number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// What is added to the number of weeks or months of a window of the calendar: more than any length.
const WEEKS: u64 = 1 << 40;
const MONTHS: u64 = 1 << 41;

const _: () = assert!(WindowMs::MAX.get() < WEEKS);

/// The length of a window of the calendar. All begin at 00:00 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calendar {
    /// So many weeks, counted from Monday, 29 December 1969.
    Weeks(u64),
    /// So many months, counted from January 1970.
    Months(u64),
}

/// What one tier allows: `limit` units in each `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    limit: u64,
    window: WindowMs,
}

impl Quota {
    /// `limit` units in each `window`; `None` if the limit is more than [`MAX_SAFE_INTEGER`].
    pub const fn new(limit: u64, window: WindowMs) -> Option<Quota> {
        if limit <= MAX_SAFE_INTEGER { Some(Quota { limit, window }) } else { None }
    }

    /// Units allowed in each window.
    pub const fn limit(self) -> u64 {
        self.limit
    }

    /// The length of the window.
    pub const fn window(self) -> WindowMs {
        self.window
    }
}

/// Units that a request takes, or gives back if negative. At most [`MAX_SAFE_INTEGER`] either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost(i64);

impl Cost {
    /// The cost of a request that only looks.
    pub const ZERO: Cost = Cost(0);

    /// The default cost.
    pub const ONE: Cost = Cost(1);

    /// A cost of `units`; `None` if they are more than [`MAX_SAFE_INTEGER`] either way.
    pub const fn new(units: i64) -> Option<Cost> {
        if units.unsigned_abs() <= MAX_SAFE_INTEGER { Some(Cost(units)) } else { None }
    }

    /// Units to take, or to give back if negative.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// This cost, but at most `units` either way.
    #[inline(always)]
    pub const fn at_most(self, units: u64) -> Cost {
        if units < self.0.unsigned_abs() { Cost(self.0.signum() * units as i64) } else { self }
    }

    /// Units to take; 0 if it gives some back.
    pub const fn to_take(self) -> u64 {
        if self.0 > 0 { self.0.unsigned_abs() } else { 0 }
    }
}

/// The quotas of a request, in the caller's order: at least one, each with a different window.
pub type QuotaList = ArrayVec<Quota, MAX_TIERS>;
