//! Decide, then commit: nothing is written before everything has been decided.
//!
//! [`Decision`] is what a command sees. Below it stands what an algorithm has to answer: [`State`]
//! to be read, [`StateMut`] to be changed.

use super::Limiter;
use super::counters::{Counters, Read};
use super::lifetime::{TimeSource, Touch};
use super::log::Log;
use super::quota::{Cost, PerQuota, Quota, Quotas, Time, UnixMs};
use super::short::Short;

/// How long until a request fits. `Never` is the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// Milliseconds.
    Ms(u64),
    /// The request costs more than the limit.
    Never,
}

impl Wait {
    /// The same wait for a key that expires `ms` milliseconds from now.
    #[inline(always)]
    pub fn within(self, ms: u64) -> Wait {
        match self {
            Wait::Ms(wait) => Wait::Ms(wait.min(ms)),
            Wait::Never => Wait::Never,
        }
    }

    /// Milliseconds; `None` if no wait helps.
    #[inline(always)]
    pub fn ms(self) -> Option<u64> {
        match self {
            Wait::Ms(ms) => Some(ms),
            Wait::Never => None,
        }
    }
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
    /// The same verdict about a key that expires `ms` milliseconds from now.
    #[inline(always)]
    pub fn within(self, ms: u64) -> Verdict {
        Verdict {
            retry_after_ms: self.retry_after_ms.map(|wait| wait.min(ms)),
            reset_after_ms: self.reset_after_ms.min(ms),
            ..self
        }
    }
}

/// Why a request cannot be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeError {
    /// The key is counted by this algorithm, not by the one named.
    OtherAlgorithm(super::Algorithm),
    /// See [`TooManyWindows`].
    TooManyWindows,
}

/// A request names more windows than fit into the key beside those that still count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyWindows;

impl From<TooManyWindows> for TakeError {
    fn from(_: TooManyWindows) -> TakeError {
        TakeError::TooManyWindows
    }
}

/// What a commit did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Units counted, or given back: of the tier that had the most.
    pub units: u64,
    /// Whether the end of what counts moved, or may have.
    pub end_moved: bool,
}

/// What came of a request, apart from what its caller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What it changed.
    pub change: Change,
    /// As of when it did: a copy that does the same as of this time becomes the same.
    pub as_of: UnixMs,
    /// Whether it left nothing.
    pub emptied: bool,
    /// How far its waits can be relied on.
    pub outlook: Outlook,
}

impl Outcome {
    /// Whether anything was counted or given back.
    #[inline(always)]
    pub fn changed(&self) -> bool {
        self.change.units > 0
    }

    /// What it means for the key's time to live.
    #[inline(always)]
    pub fn touch(&self, time: Time) -> Touch {
        let Change { end_moved, .. } = self.change;
        let Outlook { ahead, source, .. } = self.outlook;
        Touch { time, changed: self.changed(), end_moved, ahead, source }
    }
}

/// How a key stands to the time that it was asked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Whether the key is in a window, or has a timestamp, later than that time.
    pub ahead: bool,
    /// Whose time set the end of the key, before this request.
    pub source: TimeSource,
    /// Whether a wait can be longer than what was counted is kept.
    pub keeps_too_little: bool,
}

impl Outlook {
    /// Whether the key may expire, by the server's clock, before a wait is over.
    #[inline(always)]
    pub fn may_expire_early(&self) -> bool {
        self.ahead | self.keeps_too_little | (self.source == TimeSource::Loaded)
    }
}

/// A request about one key, decided and not yet counted. It holds the key's limiter, so nothing can
/// come between the decision and its commit.
pub struct Decision<'a, Q: Quotas>(pub(super) Decide<'a, Q>);

pub(super) enum Decide<'a, Q: Quotas> {
    Counters(Decided<Read<&'a mut Counters>, Q>),
    Short(Decided<Short<&'a mut Limiter>, Q>),
    Log(Decided<&'a mut Log, Q>),
}

/// Does the same for every algorithm.
macro_rules! for_each_algorithm {
    ($decision:expr, $decided:ident => $then:expr) => {
        match $decision {
            Decide::Counters($decided) => $then,
            Decide::Short($decided) => $then,
            Decide::Log($decided) => $then,
        }
    };
}

impl<Q: Quotas> Decision<'_, Q> {
    /// Whether a tier refuses the request.
    #[inline(always)]
    pub fn limited(&self) -> bool {
        for_each_algorithm!(&self.0, decided => decided.limited)
    }

    /// Counts the request, or gives units back, in all tiers, whether or not they refuse it.
    #[inline(always)]
    pub fn commit(&mut self) {
        for_each_algorithm!(&mut self.0, decided => decided.commit())
    }

    /// What came of it.
    #[inline(always)]
    pub fn outcome(&self) -> Outcome {
        for_each_algorithm!(&self.0, decided => decided.outcome())
    }

    /// What the caller is told, as things stand now.
    #[inline(always)]
    pub fn verdict(&self) -> Verdict {
        for_each_algorithm!(&self.0, decided => decided.verdict())
    }

    /// How long until every tier allows the same request, if nothing else is counted.
    pub fn retry_after(&self) -> Wait {
        for_each_algorithm!(&self.0, decided => decided.longest_wait())
    }

    /// What the caller is told about one tier alone; `None` beyond the last. They stand in the order in
    /// which they were named.
    pub fn verdict_of(&self, tier: usize) -> Option<Verdict> {
        for_each_algorithm!(&self.0, decided => decided.verdict_of(tier))
    }
}

/// What an algorithm remembers of one key, to be read.
pub(super) trait State {
    /// What counts in one window at one time: found once, asked several times.
    type Usage;

    /// What counts in the window of `quota` at `now`.
    fn usage(&self, quota: Quota, now: UnixMs) -> Self::Usage;

    /// Units that count.
    fn used(&self, usage: &Self::Usage) -> u64;

    /// Milliseconds until at most `room` units count, where more do now.
    fn wait_until(&self, usage: &Self::Usage, room: u64) -> u64;

    /// Whether the windows of these quotas fit into the key.
    fn make_sure_of_room(&self, quotas: &[Quota], now: UnixMs) -> Result<(), TooManyWindows>;

    /// See [`Outlook::ahead`].
    fn is_ahead_of(&self, now: UnixMs) -> bool;

    /// The latest time that anything was counted at, as far as it is known.
    fn newest(&self) -> UnixMs;

    /// Whose time set the end of the key.
    fn source(&self) -> TimeSource;

    /// Whether a wait in `quota` can be longer than what was counted is kept.
    fn keeps_too_little_for(&self, quota: Quota) -> bool;

    /// The exact time until `units` more fit `quota`, if nothing else is counted: the retry after
    /// of a request of that cost, and for the whole limit the reset after.
    #[inline(always)]
    fn wait_for(&self, usage: &Self::Usage, units: u64, quota: Quota) -> Wait {
        match quota.limit().checked_sub(units) {
            None => Wait::Never,
            Some(room) if units == 0 || self.used(usage) <= room => Wait::Ms(0),
            Some(room) => Wait::Ms(self.wait_until(usage, room)),
        }
    }
}

/// What an algorithm remembers of one key, to be changed. Each change brings the usage of its tiers
/// up to date.
pub(super) trait StateMut: State {
    /// Counts `units`, more than none, in all tiers, as far as counts do not saturate.
    fn add(&mut self, tiers: &mut [Tier<Self::Usage>], units: u64, now: UnixMs) -> Change;

    /// Takes away up to `units` in all tiers, of those that were counted at `as_of` or before and still
    /// count: the most recently counted first.
    fn refund(&mut self, tiers: &mut [Tier<Self::Usage>], units: u64, as_of: UnixMs) -> Change;

    /// Whether nothing is counted in it.
    fn is_empty(&self) -> bool;
}

/// A quota, and what counts in its window.
pub(super) struct Tier<U> {
    pub quota: Quota,
    pub usage: U,
    /// Whether it refuses the request.
    refuses: bool,
}

impl<U> Tier<U> {
    /// One that does not refuse.
    pub(super) fn new(quota: Quota, usage: U) -> Tier<U> {
        Tier { quota, usage, refuses: false }
    }
}

/// Units asked for at a time.
struct Asked<'a, S> {
    state: &'a S,
    units: u64,
    now: UnixMs,
}

impl<S: State> PerQuota for Asked<'_, S> {
    type Made = Tier<S::Usage>;

    #[inline(always)]
    fn make(&self, quota: Quota) -> Tier<S::Usage> {
        let usage = self.state.usage(quota, self.now);
        let refuses = self.units > 0 && self.state.used(&usage) + self.units > quota.limit();
        Tier { quota, usage, refuses }
    }
}

/// The decision by one algorithm.
pub(super) struct Decided<S: State, Q: Quotas> {
    state: S,
    tiers: Q::Each<Tier<S::Usage>>,
    cost: Cost,
    time: Time,
    limited: bool,
    change: Change,
    as_of: UnixMs,
}

impl<S: State, Q: Quotas> Decided<S, Q> {
    /// Whether `cost` units fit every quota. Changes nothing.
    #[inline(always)]
    pub(super) fn decide(state: S, quotas: &Q, cost: Cost, time: Time) -> Result<Self, TooManyWindows> {
        Self::make_sure_of_room(&state, quotas, cost, time)?;
        Ok(Decided::with_room(state, quotas, cost, time))
    }

    #[inline(always)]
    fn make_sure_of_room(state: &S, quotas: &Q, cost: Cost, time: Time) -> Result<(), TooManyWindows> {
        if cost.taken() > 0 { state.make_sure_of_room(quotas.as_ref(), time.now()) } else { Ok(()) }
    }

    /// The decision where there is room for every window.
    #[inline(always)]
    fn with_room(state: S, quotas: &Q, cost: Cost, time: Time) -> Self {
        let (units, now) = (cost.taken(), time.now());
        let tiers = quotas.each(&Asked { state: &state, units, now });
        let limited = tiers.as_ref().iter().any(|tier| tier.refuses);
        Decided { state, tiers, cost, time, limited, change: Change::default(), as_of: now }
    }

    /// What to tell: of the tiers, if the request is limited, the one with the longest wait, or else
    /// the one with the fewest units left; the earlier named on a tie.
    #[inline(always)]
    fn verdict(&self) -> Verdict {
        let [first, rest @ ..] = self.tiers.as_ref() else { unreachable!("a request names a tier") };
        let mut shown = first;
        for other in rest {
            let more_telling = if self.limited {
                self.retry_after(other) > self.retry_after(shown)
            } else {
                self.remaining(other) < self.remaining(shown)
            };
            if more_telling {
                shown = other;
            }
        }
        self.verdict_on(shown, self.limited)
    }

    /// What a request that was not counted is told, and how far its waits can be relied on.
    #[inline(always)]
    pub(super) fn peeked(&self) -> (Verdict, Outlook) {
        (self.verdict(), self.outlook())
    }

    fn longest_wait(&self) -> Wait {
        self.tiers.as_ref().iter().map(|tier| self.retry_after(tier)).max().unwrap_or(Wait::Ms(0))
    }

    fn verdict_of(&self, tier: usize) -> Option<Verdict> {
        self.tiers.as_ref().get(tier).map(|tier| self.verdict_on(tier, tier.refuses))
    }

    #[inline(always)]
    fn verdict_on(&self, tier: &Tier<S::Usage>, limited: bool) -> Verdict {
        let limit = tier.quota.limit();
        Verdict {
            limited,
            limit,
            remaining: self.remaining(tier),
            retry_after_ms: if limited { self.retry_after(tier).ms() } else { None },
            reset_after_ms: self.state.wait_for(&tier.usage, limit, tier.quota).ms().unwrap_or(0),
        }
    }

    #[inline(always)]
    fn retry_after(&self, tier: &Tier<S::Usage>) -> Wait {
        self.state.wait_for(&tier.usage, self.cost.taken(), tier.quota)
    }

    #[inline(always)]
    fn remaining(&self, tier: &Tier<S::Usage>) -> u64 {
        tier.quota.limit().saturating_sub(self.state.used(&tier.usage))
    }

    #[inline(always)]
    fn outlook(&self) -> Outlook {
        Outlook {
            ahead: self.state.is_ahead_of(self.time.now()),
            source: self.state.source(),
            keeps_too_little: self
                .tiers
                .as_ref()
                .iter()
                .any(|tier| self.state.keeps_too_little_for(tier.quota)),
        }
    }
}

impl<S: StateMut, Q: Quotas> Decided<S, Q> {
    /// Decides, and commits what is allowed or forced: what the caller is told, and what came of it.
    #[inline(always)]
    pub(super) fn take(
        state: S,
        quotas: &Q,
        cost: Cost,
        force: bool,
        time: Time,
    ) -> Result<(Verdict, Outcome), TooManyWindows> {
        Self::make_sure_of_room(&state, quotas, cost, time)?;
        // Out of a `Result` it would be copied, with up to eight tiers.
        let mut decided = Decided::with_room(state, quotas, cost, time);
        if force || !decided.limited {
            decided.commit();
        }
        Ok((decided.verdict(), decided.outcome()))
    }

    #[inline(always)]
    fn outcome(&self) -> Outcome {
        Outcome {
            change: self.change,
            as_of: self.as_of,
            emptied: self.change.units > 0 && self.state.is_empty(),
            outlook: self.outlook(),
        }
    }

    #[inline(always)]
    fn commit(&mut self) {
        let tiers = self.tiers.as_mut();
        self.change = match self.cost.get() {
            0 => Change::default(),
            1.. => self.state.add(tiers, self.cost.taken(), self.time.now()),
            units @ ..0 => {
                // Without AT all that is there, also what is ahead of the clock.
                self.as_of = self.time.at.unwrap_or_else(|| self.state.newest().max(self.time.clock));
                self.state.refund(tiers, units.unsigned_abs(), self.as_of)
            }
        };
    }
}
