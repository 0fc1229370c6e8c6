//! The limiters: from quotas, a cost and a time to a verdict.
//!
//! Pure: no clock, no server, no unsafe code. From the bottom up:
//!
//! - `quota`: times, windows, quotas and costs, each within its bounds.
//! - `lifetime`: when a key must expire.
//! - `decision`: what is decided about one key, by the same steps for every algorithm.
//! - [`counters`]: the state of RL.FIXED and RL.SLIDING.
//! - [`log`]: the state of RL.LOG.
//! - this module: [`Limiter`], the state of a key: decide, then commit.
//! - `effect`: what a request did to a key, for its copies.
//! - [`several`]: the same for several keys, all or nothing.

// Inlined where that saves an RL.FIXED 100 of its 6,800 instructions.

pub(crate) mod counters;
mod decision;
mod effect;
mod lifetime;
pub(crate) mod log;
mod quota;
pub mod several;

use std::ffi::CStr;

pub use decision::{Change, Decision, Outcome, RowVerdict, Rows, TakeError, Verdict, Wait};
pub use effect::{Accepted, Applied, Before, Counted, Effect, Expires};
pub use lifetime::{ExpiryFacts, Lifetime, TimeSource};
pub use quota::{Cost, MAX_COUNT, MAX_SAFE_INTEGER, MAX_TIERS, Quota, QuotaList, Time, UnixMs, WindowMs};

use counters::{ByMethod, Counter, Counters, Method};
use decision::{Request, State, TierList};
use log::large::Large;
use log::short::{self, Short};
use log::{Cursor, Entries, Entry};

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
    Large(Box<Large>),
    /// RL.LOG with few units: see [`short`]. The variant is the size of the allocation, since a slice pointer would
    /// make `Limiter` larger.
    Short32(Box<[u8; 32]>),
    /// A short log in 48 bytes.
    Short48(Box<[u8; 48]>),
    /// A short log in 64 bytes.
    Short64(Box<[u8; 64]>),
    /// A short log in 128 bytes.
    Short128(Box<[u8; 128]>),
    /// A short log in 256 bytes.
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
pub(crate) enum Form<'a> {
    Counters(ByMethod<&'a Counters>),
    Short(Short<&'a Limiter>),
    Large(&'a Large),
}

/// Evaluates an expression about the state of a limiter, whatever its form.
macro_rules! read {
    ($limiter:expr, $state:ident => $then:expr) => {
        match $limiter.form() {
            Form::Counters($state) => {
                let $state = &$state;
                $then
            }
            Form::Short($state) => {
                let $state = &$state;
                $then
            }
            Form::Large($state) => $then,
        }
    };
}

const _: () = assert!(size_of::<Limiter>() == 16);

impl Limiter {
    /// An empty limiter.
    pub fn new(algorithm: Algorithm) -> Limiter {
        match algorithm {
            Algorithm::Fixed => Limiter::Counters(Counters::new(Method::Fixed)),
            Algorithm::Sliding => Limiter::Counters(Counters::new(Method::Sliding)),
            Algorithm::Log => short::empty(),
        }
    }

    #[inline(always)]
    pub(crate) fn form(&self) -> Form<'_> {
        match self {
            Limiter::Counters(counters) => Form::Counters(counters.by_method()),
            Limiter::Large(large) => Form::Large(large),
            any_short!(_) => Form::Short(Short::in_limiter(self)),
        }
    }

    /// The allocation of a short log; empty for any other limiter.
    #[inline(always)]
    fn short_bytes(&self) -> &[u8] {
        match self {
            Limiter::Counters(_) | Limiter::Large(_) => &[],
            Limiter::Short32(bytes) => &bytes[..],
            Limiter::Short48(bytes) => &bytes[..],
            Limiter::Short64(bytes) => &bytes[..],
            Limiter::Short128(bytes) => &bytes[..],
            Limiter::Short256(bytes) => &bytes[..],
        }
    }

    fn short_bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Limiter::Counters(_) | Limiter::Large(_) => &mut [],
            Limiter::Short32(bytes) => &mut bytes[..],
            Limiter::Short48(bytes) => &mut bytes[..],
            Limiter::Short64(bytes) => &mut bytes[..],
            Limiter::Short128(bytes) => &mut bytes[..],
            Limiter::Short256(bytes) => &mut bytes[..],
        }
    }

    /// The algorithm it counts by.
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Limiter::Counters(counters) => counters.algorithm(),
            Limiter::Large(_) | any_short!(_) => Algorithm::Log,
        }
    }

    /// Decides whether `cost` units fit every quota. Changes nothing. `tiers` is room for what is looked up.
    #[inline(always)]
    pub fn decide<'a>(
        &'a mut self,
        algorithm: Algorithm,
        quotas: &[Quota],
        cost: Cost,
        time: Time,
        tiers: &'a mut Tiers,
    ) -> Result<Decided<'a>, TakeError> {
        let request = Request { cost, time };
        self.check(algorithm, quotas, request)?;
        let limited = match self.form() {
            Form::Counters(counters) => request.look_up(&counters, quotas, tiers.in_counters()),
            Form::Short(short) => request.look_up(&short, quotas, tiers.in_log()),
            Form::Large(large) => request.look_up(large, quotas, tiers.in_log()),
        };
        Ok(Decided { limiter: self, request, limited, tiers })
    }

    /// Decides, and commits the request if it is allowed or if `force` is set. An error changes nothing.
    ///
    /// In one pass, which saves an RL.FIXED 400 of its 6,800 instructions, and an RL.LOG 470.
    #[inline(always)]
    pub fn decide_and_commit(
        &mut self,
        algorithm: Algorithm,
        quotas: &[Quota],
        cost: Cost,
        force: bool,
        time: Time,
    ) -> Result<Decision, TakeError> {
        let request = Request { cost, time };
        match self {
            _ if cost.get() < 0 || self.algorithm() != algorithm => {}
            Limiter::Counters(counters) => {
                // Not returned as it is: RL.APPLY drops the verdict, and would compute it then (`make bench`, loading).
                let decision =
                    request.decide_and_commit(&mut counters.counted_by(algorithm), quotas, force)?;
                return Ok(decision);
            }
            Limiter::Large(large) => {
                let decision = request.decide_and_commit(large.as_mut(), quotas, force)?;
                self.shorten();
                return Ok(decision);
            }
            any_short!(_) => {
                let mut short = Short::in_limiter(&mut *self);
                if short.surely_has_room(cost.taken(), time.now()) {
                    return request.decide_and_commit(&mut short, quotas, force);
                }
            }
        }
        self.decide_then_commit(algorithm, quotas.iter().copied().collect(), cost, force, time)
    }

    /// Counts as many of the units as fit every quota. If not all do, the verdict is that of a request for one more.
    pub fn take_what_fits(
        &mut self,
        algorithm: Algorithm,
        quotas: &[Quota],
        cost: Cost,
        time: Time,
    ) -> Result<Decision, TakeError> {
        let mut decision = self.decide_and_commit(algorithm, quotas, cost, false, time)?;
        if decision.verdict.limited {
            // Allowed, so that it tells of the tier with the least room: fewer units than the cost.
            let room = self.peek(quotas, Cost::ZERO, time)?.verdict.remaining;
            let part = cost.at_most(room);
            if part != Cost::ZERO {
                decision.outcome = self.decide_and_commit(algorithm, quotas, part, false, time)?.outcome;
            }
            decision.verdict = self.peek(quotas, Cost::ONE, time)?.verdict;
        }
        Ok(decision)
    }

    /// Gives units back, counts them in a short log that may have to grow, or refuses another algorithm: apart, so that
    /// other requests keep their state in registers: that saves an RL.LOG with three tiers 40 of its 9,700 instructions.
    #[cold]
    #[inline(never)]
    fn decide_then_commit(
        &mut self,
        algorithm: Algorithm,
        quotas: QuotaList,
        cost: Cost,
        force: bool,
        time: Time,
    ) -> Result<Decision, TakeError> {
        let mut tiers = Tiers::default();
        let decided = self.decide(algorithm, &quotas, cost, time, &mut tiers)?;
        Ok(decided.settle(force))
    }

    /// Decides whatever the algorithm, on a request that will not be counted.
    #[inline(always)]
    pub fn peek(&self, quotas: &[Quota], cost: Cost, time: Time) -> Result<Decision, TakeError> {
        read!(self, state => Request { cost, time }.peek(state, quotas))
    }

    /// Checks everything that can prevent a decision. Changes nothing that counts.
    #[inline(always)]
    fn check(&mut self, algorithm: Algorithm, quotas: &[Quota], request: Request) -> Result<(), TakeError> {
        if self.algorithm() != algorithm {
            self.change_to(algorithm)?;
        }
        read!(self, state => request.check_windows_fit(state, quotas))
    }

    /// Turns a limiter that holds nothing, as files of earlier versions may, into one of another algorithm.
    #[cold]
    #[inline(never)]
    fn change_to(&mut self, algorithm: Algorithm) -> Result<(), TakeError> {
        if !self.is_empty() {
            return Err(TakeError::OtherAlgorithm(self.algorithm()));
        }
        *self = Limiter::new(algorithm);
        Ok(())
    }

    /// Turns a large log that has shrunk into a short one.
    fn shorten(&mut self) {
        if let Limiter::Large(large) = self
            && let Some(short) = short::shortened(large, true)
        {
            *self = short;
        }
    }

    /// Units that count in a window of this length at `now`.
    pub fn used(&self, window: WindowMs, now: UnixMs) -> u64 {
        read!(self, state => state.usage(window, now).used)
    }

    /// Milliseconds from `now` until nothing counts in a window of this length.
    pub fn reset_after_ms(&self, window: WindowMs, now: UnixMs) -> u64 {
        read!(self, state => state.reset_after_ms(window, now))
    }

    /// Whether it holds no units, not even expired ones.
    pub fn is_empty(&self) -> bool {
        read!(self, state => state.is_empty())
    }

    /// Whether no unit counts at `now` or later, in the windows that it holds and in those of `quotas`.
    pub fn counts_nothing(&self, quotas: &[Quota], now: UnixMs) -> bool {
        read!(self, state => state.counts_nothing(quotas, now))
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
            Limiter::Large(large) => large.set_source(source),
            any_short!(_) => Short::in_limiter(self).set_source(source),
        }
    }

    /// Whether its own time is later than `now`: a clock stepped back, or AT named a later time.
    pub fn is_ahead_of(&self, now: UnixMs) -> bool {
        read!(self, state => state.is_ahead_of(now))
    }

    /// The latest time that anything was counted at: in any window for a log, in those of `quotas` for counters,
    /// where it is the start of the window.
    pub fn newest_in(&self, quotas: &[Quota]) -> UnixMs {
        read!(self, state => state.newest_in(quotas))
    }

    /// The windows that can still count at `now`, shortest first. A log has one: its longest.
    pub fn windows(&self, now: UnixMs) -> Vec<WindowUsage> {
        let windows: Vec<WindowMs> = match self.form() {
            Form::Counters(counters) => counters.counters().live_windows(now).collect(),
            Form::Short(short) => short.retention().into_iter().collect(),
            Form::Large(large) => large.retention().into_iter().collect(),
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
            Form::Counters(counters) => Some(counters.counters()),
            Form::Short(_) | Form::Large(_) => None,
        }
    }

    /// How long a log keeps its units; `None` for counters, and for a log that never held any.
    pub fn retention(&self) -> Option<WindowMs> {
        match self.form() {
            Form::Counters(_) => None,
            Form::Short(short) => short.retention(),
            Form::Large(large) => large.retention(),
        }
    }

    /// The entries of a log, oldest first.
    pub fn log_entries(&self) -> Vec<Entry> {
        match self.form() {
            Form::Counters(_) => Vec::new(),
            Form::Short(short) => short.iter().collect(),
            Form::Large(large) => large.iter().collect(),
        }
    }

    /// The number of distinct timestamps in a log that count at `now`; `None` for counters.
    pub fn entries(&self, now: UnixMs) -> Option<u64> {
        match self.form() {
            Form::Counters(_) => None,
            Form::Short(short) => Some(short.count(now)),
            Form::Large(large) => Some(large.count(now)),
        }
    }

    /// Bytes on the heap, apart from itself.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Limiter::Counters(counters) => counters.heap_bytes(),
            Limiter::Large(large) => large.heap_bytes(),
            any_short!(_) => self.short_bytes().len(),
        }
    }

    /// The effort of freeing it: roughly its number of allocations.
    pub fn allocations(&self) -> usize {
        match self {
            Limiter::Counters(_) => 1,
            Limiter::Large(large) => 1 + large.allocations(),
            any_short!(_) => 2,
        }
    }

    /// Returns the same limiter, with every allocation passed through `mover`.
    pub fn relocate(self, mover: &mut impl Mover) -> Limiter {
        match self {
            Limiter::Counters(counters) => Limiter::Counters(counters.relocate(mover)),
            Limiter::Large(large) => {
                let mut large = mover.move_box(large);
                large.relocate(mover);
                Limiter::Large(large)
            }
            Limiter::Short32(bytes) => Limiter::Short32(mover.move_box(bytes)),
            Limiter::Short48(bytes) => Limiter::Short48(mover.move_box(bytes)),
            Limiter::Short64(bytes) => Limiter::Short64(mover.move_box(bytes)),
            Limiter::Short128(bytes) => Limiter::Short128(mover.move_box(bytes)),
            Limiter::Short256(bytes) => Limiter::Short256(mover.move_box(bytes)),
        }
    }
}

impl From<Large> for Limiter {
    /// Converts it, to a short log if it fits.
    fn from(large: Large) -> Limiter {
        short::shortened(&large, false).unwrap_or_else(|| Limiter::Large(Box::new(large)))
    }
}

/// A decided request. Its limiter cannot change before the request is committed or dropped.
#[must_use = "it is not counted yet"]
pub struct Decided<'a> {
    limiter: &'a mut Limiter,
    request: Request,
    limited: bool,
    tiers: &'a mut Tiers,
}

/// What deciding looks up about each tier. The caller keeps it, since eight tiers are too large to be moved.
pub enum Tiers {
    /// In counters.
    Counters(TierList<Counter>),
    /// In a log.
    Log(TierList<Cursor>),
}

impl Default for Tiers {
    fn default() -> Tiers {
        Tiers::Counters(TierList::new())
    }
}

impl Tiers {
    fn in_counters(&mut self) -> &mut TierList<Counter> {
        *self = Tiers::Counters(TierList::new());
        let Tiers::Counters(tiers) = self else { unreachable!("it was just made") };
        tiers
    }

    fn in_log(&mut self) -> &mut TierList<Cursor> {
        *self = Tiers::Log(TierList::new());
        let Tiers::Log(tiers) = self else { unreachable!("it was just made") };
        tiers
    }
}

impl Decided<'_> {
    /// Whether it is over a limit.
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// Counts the units in all tiers, or gives them back, if it is within the limits or if `force` is set. Otherwise leaves
    /// the limiter as it is.
    pub fn settle(self, force: bool) -> Decision {
        let counts = force || !self.limited;
        self.finish(counts, &mut Rows::new())
    }

    /// Commits the request if it `counts`. Appends the verdict on each tier to `rows`.
    fn finish(mut self, counts: bool, rows: &mut Rows) -> Decision {
        if counts {
            self.make_room();
        }
        let Decided { limiter, request, limited, tiers } = self;
        match (&mut *limiter, tiers) {
            (Limiter::Counters(counters), Tiers::Counters(tiers)) => {
                request.finish(&mut counters.by_method_mut(), tiers, limited, counts, rows)
            }
            (Limiter::Large(large), Tiers::Log(tiers)) => {
                let decision = request.finish(large.as_mut(), tiers, limited, counts, rows);
                limiter.shorten();
                decision
            }
            (any_short!(_), Tiers::Log(tiers)) => {
                request.finish(&mut Short::in_limiter(limiter), tiers, limited, counts, rows)
            }
            (Limiter::Counters(_), Tiers::Log(_))
            | (Limiter::Large(_) | any_short!(_), Tiers::Counters(_)) => {
                unreachable!("the tiers were looked up in this limiter")
            }
        }
    }

    /// Turns a short log into a large one if the units do not fit.
    fn make_room(&mut self) {
        let (any_short!(_), Tiers::Log(tiers)) = (&*self.limiter, &mut *self.tiers) else { return };
        let (units, now) = (self.request.cost.taken(), self.request.time.now());
        let mut short = Short::in_limiter(&mut *self.limiter);
        if units > 0 && !short.make_room(tiers, units, now) {
            let large = short::lengthened(&short);
            for tier in tiers {
                tier.set_usage(large.in_window(tier.quota.window(), now));
            }
            *self.limiter = Limiter::Large(large);
        }
    }
}
