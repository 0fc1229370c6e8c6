//! The units of the arithmetic: times, windows, quotas and costs, each within its bounds.

use std::num::NonZeroU64;
use std::ops::Add;

use arrayvec::ArrayVec;

/// The largest limit, cost and time: 2^53 - 1, exact in every client language.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// Counts saturate here: 2^63 - 1.
pub const MAX_COUNT: u64 = i64::MAX as u64;

/// Tiers in a request, and windows in a key.
pub const MAX_TIERS: usize = 8;

/// A time in milliseconds since the Unix epoch, at most [`MAX_SAFE_INTEGER`].
///
/// Only the end of a window may lie beyond that: by at most a few windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMs(u64);

impl UnixMs {
    /// The last time that a request can name.
    pub const MAX: UnixMs = UnixMs(MAX_SAFE_INTEGER);

    /// The time of `ms`; `None` if that is later than [`UnixMs::MAX`].
    #[inline]
    pub const fn new(ms: u64) -> Option<UnixMs> {
        if ms <= MAX_SAFE_INTEGER { Some(UnixMs(ms)) } else { None }
    }

    /// The time of `ms`, or [`UnixMs::MAX`] if that is earlier.
    #[inline]
    pub const fn saturating(ms: u64) -> UnixMs {
        if ms <= MAX_SAFE_INTEGER { UnixMs(ms) } else { UnixMs::MAX }
    }

    /// In milliseconds.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Milliseconds from `earlier` to this time; 0 if it is not earlier.
    #[inline]
    pub const fn since(self, earlier: UnixMs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The next multiple of `step_ms`, which is not 0; this time if it is one.
    #[inline]
    pub const fn rounded_up_to(self, step_ms: u64) -> UnixMs {
        UnixMs(self.0.next_multiple_of(step_ms))
    }

    /// The number of the window that this time is in: windows are aligned to the Unix epoch.
    #[inline]
    pub fn window_number(self, window: WindowMs) -> u64 {
        self.0 / window.0
    }

    /// The first millisecond of the window of this number.
    #[inline]
    pub fn start_of_window(number: u64, window: WindowMs) -> UnixMs {
        UnixMs(number * window.get())
    }
}

/// When a request is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// What the server's clock shows.
    pub clock: UnixMs,
    /// The time that the caller named in AT.
    pub at: Option<UnixMs>,
}

impl Time {
    /// As of when it is decided.
    #[inline(always)]
    pub fn now(self) -> UnixMs {
        self.at.unwrap_or(self.clock)
    }
}

impl Add<WindowMs> for UnixMs {
    type Output = UnixMs;

    #[inline]
    fn add(self, window: WindowMs) -> UnixMs {
        UnixMs(self.0 + window.get())
    }
}

impl Add<u64> for UnixMs {
    type Output = UnixMs;

    /// Milliseconds later.
    #[inline]
    fn add(self, ms: u64) -> UnixMs {
        UnixMs(self.0.saturating_add(ms))
    }
}

/// The length of a window: 1 ms to 3650 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindowMs(NonZeroU64);

impl WindowMs {
    /// 1 ms.
    pub const MIN: WindowMs = WindowMs(NonZeroU64::MIN);

    /// 3650 days.
    pub const MAX: WindowMs = WindowMs(NonZeroU64::new(3650 * 24 * 60 * 60 * 1000).expect("not zero"));

    /// A window of `ms` milliseconds; `None` if that is 0 or more than [`WindowMs::MAX`].
    #[inline]
    pub fn new(ms: u64) -> Option<WindowMs> {
        NonZeroU64::new(ms).map(WindowMs).filter(|window| *window <= WindowMs::MAX)
    }

    /// In milliseconds.
    #[inline]
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// What one tier allows: so many units in each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    limit: u64,
    window: WindowMs,
}

impl Quota {
    /// `limit` units in each `window`; `None` if the limit is more than [`MAX_SAFE_INTEGER`].
    #[inline]
    pub const fn new(limit: u64, window: WindowMs) -> Option<Quota> {
        if limit <= MAX_SAFE_INTEGER { Some(Quota { limit, window }) } else { None }
    }

    /// Units allowed in each window.
    #[inline]
    pub const fn limit(self) -> u64 {
        self.limit
    }

    /// The length of the window.
    #[inline]
    pub const fn window(self) -> WindowMs {
        self.window
    }
}

/// Units that a request takes, or gives back if negative: within ±[`MAX_SAFE_INTEGER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost(i64);

impl Cost {
    /// What a request takes that names no cost.
    pub const ONE: Cost = Cost(1);

    /// A cost of `units`; `None` if they are more than [`MAX_SAFE_INTEGER`], taken or given back.
    #[inline]
    pub const fn new(units: i64) -> Option<Cost> {
        if units.unsigned_abs() <= MAX_SAFE_INTEGER { Some(Cost(units)) } else { None }
    }

    /// Units to take; negative: to give back.
    #[inline]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Units to take; 0 for a cost that takes none.
    #[inline]
    pub const fn taken(self) -> u64 {
        if self.0 > 0 { self.0.unsigned_abs() } else { 0 }
    }
}

/// The quotas of a request, in the order in which they were named: at least one, each window different.
///
/// A request has a single one, or a list. What is generic over this is compiled for each, so that
/// nearly every request, which has one, pays nothing for the walks over several. This is the only
/// place where the two differ.
pub trait Quotas: AsRef<[Quota]> {
    /// Something for each of them.
    type Each<T>: AsRef<[T]> + AsMut<[T]>;

    /// Makes something for each of them.
    fn each<M: PerQuota>(&self, maker: &M) -> Self::Each<M::Made>;
}

/// Makes something for a quota. A closure would do, but only a method can be told to be inlined.
pub trait PerQuota {
    /// What it makes.
    type Made;

    /// Makes it.
    fn make(&self, quota: Quota) -> Self::Made;
}

impl Quotas for [Quota; 1] {
    type Each<T> = [T; 1];

    #[inline(always)]
    fn each<M: PerQuota>(&self, maker: &M) -> [M::Made; 1] {
        let [quota] = *self;
        [maker.make(quota)]
    }
}

/// Up to [`MAX_TIERS`] quotas.
pub type QuotaList = ArrayVec<Quota, MAX_TIERS>;

impl Quotas for QuotaList {
    type Each<T> = ArrayVec<T, MAX_TIERS>;

    #[inline(always)]
    fn each<M: PerQuota>(&self, maker: &M) -> ArrayVec<M::Made, MAX_TIERS> {
        let mut each = ArrayVec::new();
        for quota in self {
            each.push(maker.make(*quota));
        }
        each
    }
}
