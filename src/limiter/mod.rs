//! The limiters: from quotas, a cost and a time to a verdict.
//!
//! Pure: no clock, no server, no unsafe code. From the bottom up:
//!
//! - [`quota`]: times, windows, quotas and costs, each within its bounds.
//! - [`lifetime`]: when a key must expire.
//! - [`counter`]: one counter; [`fixed`] and [`sliding`]: two ways to read it; `packed`: a counter in 15 bytes.
//! - [`varint`], `run`, `starts`: a log's bytes, and where its shorter windows begin.
//! - [`counters`], [`log`], and `short`, a log of few units: the state of one key.
//! - [`decision`]: decide, then commit.

pub(crate) mod counter;
pub(crate) mod counters;
mod decision;
mod fixed;
mod lifetime;
pub(crate) mod log;
mod packed;
mod quota;
mod run;
mod short;
mod sliding;
mod starts;
pub(crate) mod varint;

use std::ffi::CStr;

pub use decision::{Change, Decision, Outcome, TakeError, TooManyWindows, Verdict, Wait};
pub use lifetime::{ExpiryFacts, Lifetime, TimeSource};
pub use quota::{
    Cost, MAX_COUNT, MAX_SAFE_INTEGER, MAX_TIERS, Quota, QuotaList, Quotas, Time, UnixMs, WindowMs,
};

use counters::{Counters, Method};
use decision::{RequestOn, State};
use log::{Entry, Log};
use short::Short;

/// How units are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// One count for each window, aligned to the Unix epoch.
    Fixed,
    /// This window's count, plus the previous one's weighted by how much of it still overlaps.
    Sliding,
    /// Every unit with its own time.
    Log,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 3] = [Algorithm::Fixed, Algorithm::Sliding, Algorithm::Log];

    /// The name of its command.
    pub const fn command(self) -> &'static CStr {
        match self {
            Algorithm::Fixed => c"RL.FIXED",
            Algorithm::Sliding => c"RL.SLIDING",
            Algorithm::Log => c"RL.LOG",
        }
    }

    /// Its name in RL.INFO; in RL.ALL, in either case.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Fixed => "fixed",
            Algorithm::Sliding => "sliding",
            Algorithm::Log => "log",
        }
    }
}

/// One window of a limiter, as RL.INFO shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowUsage {
    /// Its length.
    pub window: WindowMs,
    /// Units that count now.
    pub used: u64,
    /// Milliseconds until none do.
    pub reset_after_ms: u64,
    /// The two counts behind `used`, for a sliding window.
    pub parts: Option<Parts>,
}

/// The two counts of a sliding window: all of `current` and a share of `previous` are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Units counted in this window.
    pub current: u64,
    /// Units counted in the window before.
    pub previous: u64,
}

/// Moves allocations without changing their content, for active defrag.
pub trait Mover {
    /// Returns the same box, reallocated if that helps.
    fn move_box<T>(&mut self, piece: Box<T>) -> Box<T>;
    /// Returns the same vector, reallocated if that helps.
    fn move_vec<T>(&mut self, piece: Vec<T>) -> Vec<T>;
}

/// The state of one key. 16 bytes, since there may be millions of keys.
#[derive(Clone, Debug)]
pub enum Limiter {
    /// RL.FIXED or RL.SLIDING.
    Counters(Counters),
    /// RL.LOG with many units.
    Log(Box<Log>),
    /// RL.LOG with few units, in an allocation of one of the sizes in `short`. The variant is the size: a
    /// slice pointer would make `Limiter` larger.
    Short32(Box<[u8; 32]>),
    /// The same.
    Short48(Box<[u8; 48]>),
    /// The same.
    Short64(Box<[u8; 64]>),
    /// The same.
    Short128(Box<[u8; 128]>),
    /// The same.
    Short256(Box<[u8; 256]>),
}

/// Matches a short log of any size.
macro_rules! any_short {
    ($bytes:pat) => {
        Limiter::Short32($bytes)
            | Limiter::Short48($bytes)
            | Limiter::Short64($bytes)
            | Limiter::Short128($bytes)
            | Limiter::Short256($bytes)
    };
}

/// A limiter to read, with short logs of all sizes in one variant.
enum Form<'a> {
    Counters(&'a Counters),
    Short(Short<&'a Limiter>),
    Log(&'a Log),
}

/// Evaluates an expression about the state of a limiter, whatever its form.
macro_rules! read {
    ($limiter:expr, $state:ident => $then:expr) => {
        match $limiter.form() {
            Form::Counters(counters) => {
                let $state = counters.state();
                $then
            }
            Form::Short($state) => $then,
            Form::Log($state) => $then,
        }
    };
}

const _: () = assert!(size_of::<Limiter>() == 16);

impl Limiter {
    /// An empty limiter.
    #[inline]
    pub fn new(algorithm: Algorithm) -> Limiter {
        match algorithm {
            Algorithm::Fixed => Limiter::Counters(Counters::new(Method::Fixed)),
            Algorithm::Sliding => Limiter::Counters(Counters::new(Method::Sliding)),
            Algorithm::Log => short::empty(),
        }
    }

    #[inline(always)]
    fn form(&self) -> Form<'_> {
        match self {
            Limiter::Counters(counters) => Form::Counters(counters),
            Limiter::Log(log) => Form::Log(log),
            any_short!(_) => Form::Short(Short::of(self)),
        }
    }

    /// The allocation of a short log; empty for any other limiter.
    #[inline(always)]
    fn short_bytes(&self) -> &[u8] {
        match self {
            Limiter::Counters(_) | Limiter::Log(_) => &[],
            Limiter::Short32(bytes) => &bytes[..],
            Limiter::Short48(bytes) => &bytes[..],
            Limiter::Short64(bytes) => &bytes[..],
            Limiter::Short128(bytes) => &bytes[..],
            Limiter::Short256(bytes) => &bytes[..],
        }
    }

    #[inline(always)]
    fn short_bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Limiter::Counters(_) | Limiter::Log(_) => &mut [],
            Limiter::Short32(bytes) => &mut bytes[..],
            Limiter::Short48(bytes) => &mut bytes[..],
            Limiter::Short64(bytes) => &mut bytes[..],
            Limiter::Short128(bytes) => &mut bytes[..],
            Limiter::Short256(bytes) => &mut bytes[..],
        }
    }

    /// The algorithm it counts by.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Limiter::Counters(counters) => counters.method().into(),
            Limiter::Log(_) | any_short!(_) => Algorithm::Log,
        }
    }

    /// Decides whether `cost` units fit every quota. Returns every error that [`Limiter::take`] can.
    #[inline(always)]
    pub fn decide(
        &self,
        algorithm: Algorithm,
        quotas: &impl Quotas,
        cost: Cost,
        time: Time,
    ) -> Result<Decision, TakeError> {
        if self.algorithm() != algorithm {
            return Err(TakeError::OtherAlgorithm(self.algorithm()));
        }
        Ok(self.peek(quotas, cost, time)?)
    }

    /// Counts a request that was decided without an error, or gives units back, in all tiers.
    pub fn commit(&mut self, quotas: &impl Quotas, cost: Cost, time: Time) -> Outcome {
        let force = true;
        let decision = match self {
            Limiter::Counters(counters) => {
                RequestOn { state: counters.state_mut(), cost, time }.take_unchecked(quotas, force)
            }
            Limiter::Log(log) => {
                let taken = RequestOn { state: log.as_mut(), cost, time }.take_unchecked(quotas, force);
                self.shorten();
                taken
            }
            any_short!(_) => RequestOn { state: Short::of(self), cost, time }.take_unchecked(quotas, force),
        };
        decision.outcome
    }

    /// Decides on a request, and commits it if it is allowed or if `force` is set. An error changes nothing.
    #[inline(always)]
    pub fn take(
        &mut self,
        algorithm: Algorithm,
        quotas: &impl Quotas,
        cost: Cost,
        force: bool,
        time: Time,
    ) -> Result<Decision, TakeError> {
        // One pass over the tiers, where `decide` and `commit` take two.
        match self {
            Limiter::Counters(counters) => {
                let own = counters.method().into();
                let state = counters.counted_by(algorithm).ok_or(TakeError::OtherAlgorithm(own))?;
                Ok(RequestOn { state, cost, time }.take(quotas, force)?)
            }
            Limiter::Log(_) | any_short!(_) if algorithm != Algorithm::Log => {
                Err(TakeError::OtherAlgorithm(Algorithm::Log))
            }
            Limiter::Log(log) => {
                let taken = RequestOn { state: log.as_mut(), cost, time }.take(quotas, force)?;
                self.shorten();
                Ok(taken)
            }
            any_short!(_) => Ok(RequestOn { state: Short::of(self), cost, time }.take(quotas, force)?),
        }
    }

    /// Turns a log that has shrunk into a short one.
    #[inline(always)]
    fn shorten(&mut self) {
        if let Limiter::Log(log) = self
            && let Some(short) = short::shortened(log, true)
        {
            *self = short;
        }
    }

    /// Decides like [`Limiter::decide`], whatever the algorithm.
    #[inline(always)]
    pub fn peek(&self, quotas: &impl Quotas, cost: Cost, time: Time) -> Result<Decision, TooManyWindows> {
        read!(self, state => RequestOn { state, cost, time }.decide(quotas))
    }

    /// The verdict on one tier of a request that was decided without an error.
    #[inline(always)]
    pub fn verdict_on(&self, quota: Quota, cost: Cost, time: Time) -> Verdict {
        read!(self, state => RequestOn { state, cost, time }.decide_unchecked(&[quota])).verdict
    }

    /// Units that count in a window of this length at `now`.
    pub fn used(&self, window: WindowMs, now: UnixMs) -> u64 {
        read!(self, state => state.usage(window, now).used)
    }

    /// Milliseconds from `now` until nothing counts in a window of this length.
    pub fn reset_after_ms(&self, window: WindowMs, now: UnixMs) -> u64 {
        read!(self, state => {
            let usage = state.usage(window, now);
            if usage.used == 0 { 0 } else { state.wait_until(&usage, 0) }
        })
    }

    /// Whether it holds no units, not even expired ones.
    #[inline]
    pub fn is_empty(&self) -> bool {
        read!(self, state => state.is_empty())
    }

    /// How long from `now` it can affect a decision: exact for counters, rounded up by at most an eighth of the
    /// longest window for a log.
    ///
    /// Normally it ends when the last unit stops counting. A limiter ahead of `now` by more than its
    /// longest possible lifetime plus `slack_ms` ends earlier.
    pub fn lifetime(&self, now: UnixMs, slack_ms: u64) -> Lifetime {
        read!(self, state => state.lifetime(now, slack_ms))
    }

    /// Where the time that set the key's expiry came from.
    pub fn source(&self) -> TimeSource {
        read!(self, state => state.source())
    }

    /// Records where the time that set the key's expiry came from.
    pub fn set_source(&mut self, source: TimeSource) {
        match self {
            Limiter::Counters(counters) => counters.set_source(source),
            Limiter::Log(log) => log.set_source(source),
            any_short!(_) => Short::of(self).set_source(source),
        }
    }

    /// Whether its own time is later than `now`: a clock stepped back, or AT named a later time.
    pub fn is_ahead_of(&self, now: UnixMs) -> bool {
        read!(self, state => state.is_ahead_of(now))
    }

    /// The latest time that anything was counted at: in any window for a log, in those of `quotas` for counters,
    /// where it is the start of the window.
    pub fn newest_of(&self, quotas: &[Quota]) -> UnixMs {
        read!(self, state => state.newest_of(quotas))
    }

    /// The windows that can still count at `now`, shortest first. A log has one: its longest.
    pub fn windows(&self, now: UnixMs) -> Vec<WindowUsage> {
        let windows: Vec<WindowMs> = match self.counters() {
            Some(counters) => counters.live_windows(now).collect(),
            None => self.retention().into_iter().collect(),
        };
        let usage = |window| WindowUsage {
            window,
            used: self.used(window, now),
            reset_after_ms: self.reset_after_ms(window, now),
            parts: self.counters().and_then(|counters| counters.parts(window, now)),
        };
        windows.into_iter().map(usage).collect()
    }

    /// The counters of RL.FIXED or RL.SLIDING; `None` if it is a log.
    pub fn counters(&self) -> Option<&Counters> {
        match self.form() {
            Form::Counters(counters) => Some(counters),
            Form::Short(_) | Form::Log(_) => None,
        }
    }

    /// How long a log keeps its units; `None` for counters, and for a log that never held any.
    pub fn retention(&self) -> Option<WindowMs> {
        match self.form() {
            Form::Counters(_) => None,
            Form::Short(short) => short.retention(),
            Form::Log(log) => log.retention(),
        }
    }

    /// The entries of a log, oldest first.
    pub fn log_entries(&self) -> impl Iterator<Item = Entry> {
        let (short, large) = match self.form() {
            Form::Counters(_) => (None, None),
            Form::Short(short) => (Some(short.into_entries()), None),
            Form::Log(log) => (None, Some(log.iter())),
        };
        short.into_iter().flatten().chain(large.into_iter().flatten())
    }

    /// The number of distinct timestamps in a log that count at `now`; `None` for counters.
    pub fn entries(&self, now: UnixMs) -> Option<u64> {
        match self.form() {
            Form::Counters(_) => None,
            Form::Short(short) => Some(short.entries(now)),
            Form::Log(log) => Some(log.entries(now)),
        }
    }

    /// Bytes on the heap, apart from itself.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Limiter::Counters(counters) => counters.heap_bytes(),
            Limiter::Log(log) => log.heap_bytes(),
            any_short!(_) => self.short_bytes().len(),
        }
    }

    /// The effort of freeing it: roughly its number of allocations.
    pub fn allocations(&self) -> usize {
        match self {
            Limiter::Counters(_) => 1,
            Limiter::Log(log) => 1 + log.allocations(),
            any_short!(_) => 2,
        }
    }

    /// Returns the same limiter, with every allocation passed through `mover`.
    pub fn relocate(self, mover: &mut impl Mover) -> Limiter {
        match self {
            Limiter::Counters(counters) => Limiter::Counters(counters.relocate(mover)),
            Limiter::Log(log) => {
                let mut log = mover.move_box(log);
                log.relocate(mover);
                Limiter::Log(log)
            }
            Limiter::Short32(bytes) => Limiter::Short32(mover.move_box(bytes)),
            Limiter::Short48(bytes) => Limiter::Short48(mover.move_box(bytes)),
            Limiter::Short64(bytes) => Limiter::Short64(mover.move_box(bytes)),
            Limiter::Short128(bytes) => Limiter::Short128(mover.move_box(bytes)),
            Limiter::Short256(bytes) => Limiter::Short256(mover.move_box(bytes)),
        }
    }
}

impl From<Log> for Limiter {
    /// Converts it, to a short log if it fits.
    fn from(log: Log) -> Limiter {
        short::shortened(&log, false).unwrap_or_else(|| Limiter::Log(Box::new(log)))
    }
}
