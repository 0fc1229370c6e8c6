//! The limiters: quotas, a cost and a time go in, a verdict comes out.
//!
//! Pure: no clock, no server, no unsafe code. `W` is a window's length and `now` the time, both
//! in milliseconds.

pub mod counters;
mod fixed;
pub mod log;
mod run;
mod sliding;
pub mod varint;

use std::ffi::CStr;
use std::num::NonZeroU64;
use std::ops::Add;

use counters::{Counters, Method};
use log::Log;

/// The largest limit, cost and time: 2^53 - 1, exact in every client language.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// Counts saturate here: 2^63 - 1.
pub const MAX_COUNT: u64 = i64::MAX as u64;

/// Tiers in a call, and windows in a key.
pub const MAX_TIERS: usize = 8;

/// A time in milliseconds since the Unix epoch, at most [`MAX_SAFE_INTEGER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMs(pub u64);

impl UnixMs {
    /// The last time that there is.
    pub const MAX: UnixMs = UnixMs(MAX_SAFE_INTEGER);

    /// Milliseconds from `earlier` to this time; 0 if it is not earlier.
    #[inline]
    pub fn since(self, earlier: UnixMs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<WindowMs> for UnixMs {
    type Output = UnixMs;

    #[inline]
    fn add(self, window: WindowMs) -> UnixMs {
        UnixMs(self.0 + window.get())
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

/// What one tier allows: `limit` units, at most [`MAX_SAFE_INTEGER`], in each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Units.
    pub limit: u64,
    /// The length of the window.
    pub window: WindowMs,
}

/// Units that a request takes, or gives back if negative: within ±[`MAX_SAFE_INTEGER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost(pub i64);

impl Cost {
    /// Units to take; 0 for a cost that takes none.
    #[inline]
    pub fn taken(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }
}

/// How long until a request fits. `Never` is the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// Milliseconds.
    Ms(u64),
    /// The request costs more than the limit.
    Never,
}

/// What a caller is told, about one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request was over a limit.
    pub limited: bool,
    /// The limit of the tier that the other figures speak of.
    pub limit: u64,
    /// Units left in it.
    pub remaining: u64,
    /// Milliseconds after which the same request is allowed; `None` when it was, or never is.
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until the whole limit is available again.
    pub reset_after_ms: u64,
}

impl Verdict {
    /// The same verdict where the key itself goes `ms` milliseconds from now.
    pub fn within(self, ms: u64) -> Verdict {
        Verdict {
            retry_after_ms: self.retry_after_ms.map(|wait| wait.min(ms)),
            reset_after_ms: self.reset_after_ms.min(ms),
            ..self
        }
    }
}

/// How a window is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// One count in each window, aligned to the Unix epoch.
    Fixed,
    /// This window's count, plus the last one's by how much of it still overlaps.
    Sliding,
    /// Each unit's own time.
    Log,
}

impl Algorithm {
    /// The command that counts by it.
    pub fn command(self) -> &'static CStr {
        match self {
            Algorithm::Fixed => c"RL.FIXED",
            Algorithm::Sliding => c"RL.SLIDING",
            Algorithm::Log => c"RL.LOG",
        }
    }
}

/// What an algorithm remembers of one key.
trait Memory {
    type Standing<'a>: Standing
    where
        Self: 'a;

    /// What counts in a window of this length at `now`.
    fn standing(&self, window: WindowMs, now: UnixMs) -> Self::Standing<'_>;
}

/// What counts in one window at one time: found once, asked several times.
trait Standing {
    /// Units that count.
    fn used(&self) -> u64;

    /// Milliseconds until at most `room` units count, where more do now.
    fn wait_beyond(&self, room: u64) -> u64;

    /// Milliseconds until at most `room` units count.
    #[inline]
    fn wait_until(&self, room: u64) -> u64 {
        if self.used() <= room { 0 } else { self.wait_beyond(room) }
    }

    /// The exact time until `units` more fit `quota`, if nothing else is counted: the retry after
    /// of a request of that cost, and for the whole limit the reset after.
    #[inline]
    fn wait_for(&self, units: u64, quota: Quota) -> Wait {
        match quota.limit.checked_sub(units) {
            None => Wait::Never,
            Some(_) if units == 0 => Wait::Ms(0),
            Some(room) => Wait::Ms(self.wait_until(room)),
        }
    }
}

/// A quota and what counts in its window.
struct Tier<S> {
    quota: Quota,
    standing: S,
}

impl<S: Standing> Tier<S> {
    #[inline]
    fn remaining(&self) -> u64 {
        self.quota.limit.saturating_sub(self.standing.used())
    }

    /// How long until a request of this cost fits: 0 ms if it does now.
    #[inline]
    fn wait_for(&self, cost: Cost) -> Wait {
        self.standing.wait_for(cost.taken(), self.quota)
    }

    #[inline]
    fn verdict(&self, cost: Cost, limited: bool) -> Verdict {
        let ms = |wait| match wait {
            Wait::Ms(ms) => Some(ms),
            Wait::Never => None,
        };
        let Quota { limit, .. } = self.quota;
        Verdict {
            limited,
            limit,
            remaining: self.remaining(),
            retry_after_ms: if limited { ms(self.wait_for(cost)) } else { None },
            reset_after_ms: ms(self.standing.wait_for(limit, self.quota)).unwrap_or(0),
        }
    }
}

/// Whether a request of this cost is over the limit of any tier.
#[inline(always)]
fn refuses(memory: &impl Memory, quotas: &[Quota], cost: Cost, now: UnixMs) -> bool {
    let units = cost.taken();
    units > 0 && quotas.iter().any(|quota| memory.standing(quota.window, now).used() + units > quota.limit)
}

/// See [`Limiter::verdict`].
#[inline(always)]
fn verdict(memory: &impl Memory, quotas: &[Quota], cost: Cost, now: UnixMs, limited: bool) -> Verdict {
    let [first, rest @ ..] = quotas else { unreachable!("a request names at least one tier") };
    let tier = |quota: &Quota| Tier { quota: *quota, standing: memory.standing(quota.window, now) };
    let mut shown = tier(first);
    for other in rest.iter().map(tier) {
        let more_telling = if limited {
            other.wait_for(cost) > shown.wait_for(cost)
        } else {
            other.remaining() < shown.remaining()
        };
        if more_telling {
            shown = other;
        }
    }
    shown.verdict(cost, limited)
}

/// One window of a limiter, as RL.INFO shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowState {
    /// Its length.
    pub window: WindowMs,
    /// Units that count now.
    pub used: u64,
    /// Milliseconds until none do.
    pub reset_after_ms: u64,
}

/// A call names more windows than fit into the key beside those that still count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyWindows;

/// All that is remembered of one key. 16 bytes: there may be millions of them.
#[derive(Clone, Debug)]
pub enum Limiter {
    /// RL.FIXED or RL.SLIDING.
    Counters(Counters),
    /// RL.LOG.
    Log(Box<Log>),
}

const _: () = assert!(size_of::<Limiter>() == 16);

impl Limiter {
    /// One that has counted nothing yet.
    #[inline]
    pub fn new(algorithm: Algorithm) -> Limiter {
        match algorithm {
            Algorithm::Fixed => Limiter::Counters(Counters::new(Method::Fixed)),
            Algorithm::Sliding => Limiter::Counters(Counters::new(Method::Sliding)),
            Algorithm::Log => Limiter::Log(Box::default()),
        }
    }

    /// The algorithm it counts by.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Limiter::Counters(counters) => counters.method().into(),
            Limiter::Log(_) => Algorithm::Log,
        }
    }

    /// Units that count in a window of this length at `now`.
    pub fn used(&self, window: WindowMs, now: UnixMs) -> u64 {
        match self {
            Limiter::Counters(counters) => counters.standing(window, now).used(),
            Limiter::Log(log) => log.standing(window, now).used(),
        }
    }

    /// The exact time from `now` until `units` more fit `quota`, if nothing else is counted.
    pub fn wait_for(&self, units: u64, quota: Quota, now: UnixMs) -> Wait {
        match self {
            Limiter::Counters(counters) => counters.standing(quota.window, now).wait_for(units, quota),
            Limiter::Log(log) => log.standing(quota.window, now).wait_for(units, quota),
        }
    }

    /// Whether a request of this cost is over the limit of any tier.
    #[inline]
    pub fn refuses(&self, quotas: &[Quota], cost: Cost, now: UnixMs) -> bool {
        match self {
            Limiter::Counters(counters) => refuses(counters, quotas, cost, now),
            Limiter::Log(log) => refuses(log.as_ref(), quotas, cost, now),
        }
    }

    /// Counts or gives back, in all tiers; `over` tells that the request was refused and is
    /// counted all the same. Returns whether anything was counted or given back.
    ///
    /// On an error nothing has changed.
    #[inline]
    pub fn record(
        &mut self,
        quotas: &[Quota],
        cost: Cost,
        now: UnixMs,
        over: bool,
    ) -> Result<bool, TooManyWindows> {
        let units = cost.0.unsigned_abs();
        match self {
            Limiter::Counters(counters) if cost.0 > 0 => {
                if !counters.have_room_for(quotas, now) {
                    return Err(TooManyWindows);
                }
                let add = |counted, quota: &Quota| counters.add(quota.window, units, now) || counted;
                Ok(quotas.iter().fold(false, add))
            }
            Limiter::Counters(counters) => {
                let give = |given, quota: &Quota| counters.give_back(quota.window, units, now) || given;
                Ok(quotas.iter().fold(false, give))
            }
            Limiter::Log(log) if cost.0 > 0 => Ok(log.add(quotas, units, now, over)),
            Limiter::Log(log) => Ok(log.give_back(quotas, units, now)),
        }
    }

    /// What to tell about a request, as things stand at `now`: of the tiers that refuse it the one
    /// with the longest wait, or, if it was not `limited`, the tier with the fewest units left;
    /// the earlier named on a tie.
    #[inline]
    pub fn verdict(&self, quotas: &[Quota], cost: Cost, now: UnixMs, limited: bool) -> Verdict {
        match self {
            Limiter::Counters(counters) => verdict(counters, quotas, cost, now, limited),
            Limiter::Log(log) => verdict(log.as_ref(), quotas, cost, now, limited),
        }
    }

    /// Whether nothing is counted in it any more.
    #[inline]
    pub fn is_empty(&self) -> bool {
        match self {
            Limiter::Counters(counters) => counters.is_empty(),
            Limiter::Log(log) => log.is_empty(),
        }
    }

    /// Milliseconds from `now` until nothing in it can matter any more: for counters exact, for a
    /// log up to an eighth of its window more. At a time before its own, as of its own.
    #[inline]
    pub fn lifetime(&self, now: UnixMs) -> u64 {
        match self {
            Limiter::Counters(counters) => counters.lifetime(now),
            Limiter::Log(log) => log.lifetime(now),
        }
    }

    /// Whether a wait in `quotas` can be longer than what was counted is kept.
    #[inline]
    pub fn keeps_too_little_for(&self, quotas: &[Quota]) -> bool {
        match self {
            Limiter::Counters(_) => false,
            Limiter::Log(log) => log.keeps_too_little_for(quotas),
        }
    }

    /// Whether the key is known to live as long as it has to: spares nearly every request a look
    /// at its time to live.
    #[inline]
    pub fn is_settled(&self) -> bool {
        match self {
            Limiter::Counters(counters) => counters.are_settled(),
            Limiter::Log(log) => log.is_settled(),
        }
    }

    /// Notes until when, by the server's clock, the key lives; `None` if that is not to be relied on.
    pub fn settle(&mut self, until: Option<UnixMs>) {
        match self {
            Limiter::Counters(counters) => counters.set_settled(until.is_some()),
            Limiter::Log(log) => log.settle_until(until.unwrap_or(UnixMs(0))),
        }
    }

    /// Whether `now` is before its own time: a clock stepped back, or it was written with a
    /// later one.
    #[inline]
    pub fn is_ahead_of(&self, now: UnixMs) -> bool {
        match self {
            Limiter::Counters(counters) => counters.are_ahead_of(now),
            Limiter::Log(log) => log.is_ahead_of(now),
        }
    }

    /// The windows that can still count at `now`, shortest first; of a log its longest.
    pub fn windows(&self, now: UnixMs) -> Vec<WindowState> {
        let windows: Vec<WindowMs> = match self {
            Limiter::Counters(counters) => counters.live_windows(now).collect(),
            Limiter::Log(log) => log.keep().into_iter().collect(),
        };
        let reset_after = |window| match self.wait_for(1, Quota { limit: 1, window }, now) {
            Wait::Ms(ms) => ms,
            Wait::Never => unreachable!("1 is not more than 1"),
        };
        let state = |window| WindowState {
            window,
            used: self.used(window, now),
            reset_after_ms: reset_after(window),
        };
        windows.into_iter().map(state).collect()
    }

    /// Of a log, the distinct timestamps that count at `now`.
    pub fn entries(&self, now: UnixMs) -> Option<u64> {
        match self {
            Limiter::Counters(_) => None,
            Limiter::Log(log) => Some(log.entries(now)),
        }
    }

    /// Bytes on the heap, apart from itself.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Limiter::Counters(counters) => counters.heap_bytes(),
            Limiter::Log(log) => log.heap_bytes(),
        }
    }

    /// How many separate pieces of memory it holds: what freeing it takes.
    pub fn allocations(&self) -> usize {
        match self {
            Limiter::Counters(_) => 1,
            Limiter::Log(log) => 1 + log.allocations(),
        }
    }
}
