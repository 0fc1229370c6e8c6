//! Decide, then commit: nothing is written until everything has been decided.
//!
//! Commands use [`Decision`]. An algorithm implements [`State`] to be read and [`StateMut`] to be changed.

use super::Limiter;
use super::counters::{CounterState, Counters};
use super::lifetime::{ExpiryFacts, Lifetime, TimeSource};
use super::log::Log;
use super::quota::{Cost, PerQuota, Quota, Quotas, Time, UnixMs};
use super::short::Short;

/// How long until a request fits. `Never` compares greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// Milliseconds.
    Ms(u64),
    /// The request costs more than the limit.
    Never,
}

impl Wait {
    /// The wait, at most `ms`, when the key expires.
    #[inline(always)]
    pub fn within(self, ms: u64) -> Wait {
        match self {
            Wait::Ms(wait) => Wait::Ms(wait.min(ms)),
            Wait::Never => Wait::Never,
        }
    }

    /// The wait in milliseconds; `None` if no wait helps.
    #[inline(always)]
    pub fn ms(self) -> Option<u64> {
        match self {
            Wait::Ms(ms) => Some(ms),
            Wait::Never => None,
        }
    }
}

/// The reply to a request, with the figures of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request was over a limit.
    pub limited: bool,
    /// The limit of the tier.
    pub limit: u64,
    /// Units left in the tier.
    pub remaining: u64,
    /// Milliseconds until the same request is allowed; `None` if it was allowed or never will be.
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until the whole limit is available again.
    pub reset_after_ms: u64,
}

impl Verdict {
    /// The verdict with both waits at most `ms`, when the key expires.
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
    /// The key is counted by this algorithm, not by the requested one.
    OtherAlgorithm(super::Algorithm),
    /// See [`TooManyWindows`].
    TooManyWindows,
}

/// The key would have more than [`MAX_TIERS`](super::MAX_TIERS) windows that still count.
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
    /// Units counted or given back, in the tier with the most.
    pub units: u64,
    /// Whether the time at which nothing counts any more has moved, or may have.
    pub end_moved: bool,
}

/// The effects of a request, apart from its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What it changed.
    pub change: Change,
    /// The time it was applied as of. A copy that repeats the request as of this time ends up equal.
    pub as_of: UnixMs,
    /// Whether it left the key empty.
    pub emptied: bool,
    /// Whether the key may expire before the waits in the reply are over.
    pub outlook: Outlook,
}

impl Outcome {
    /// Whether anything was counted or given back.
    #[inline(always)]
    pub fn changed(&self) -> bool {
        self.change.units > 0
    }

    /// The facts that the key's expiry depends on.
    #[inline(always)]
    pub fn expiry_facts(&self, time: Time) -> ExpiryFacts {
        let Change { end_moved, .. } = self.change;
        let Outlook { ahead, source, .. } = self.outlook;
        ExpiryFacts { time, changed: self.changed(), end_moved, ahead, source }
    }
}

/// Reasons why a key may expire before a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Whether the key is in a window, or has a timestamp, later than the request's time.
    pub ahead: bool,
    /// Where the time that set the key's expiry came from, before this request.
    pub source: TimeSource,
    /// Whether the key keeps its units for less time than a window of the request.
    pub retention_too_short: bool,
}

impl Outlook {
    /// Whether the key may expire, by the server's clock, before a wait is over.
    #[inline(always)]
    pub fn may_expire_early(&self) -> bool {
        self.ahead | self.retention_too_short | (self.source == TimeSource::Loaded)
    }
}

/// A decided request about one key, not yet counted. It borrows the key's limiter, so nothing can happen
/// between the decision and its commit.
pub struct Decision<'a, Q: Quotas>(pub(super) ByAlgorithm<'a, Q>);

pub(super) enum ByAlgorithm<'a, Q: Quotas> {
    Counters(Decided<CounterState<&'a mut Counters>, Q>),
    Short(Decided<Short<&'a mut Limiter>, Q>),
    Log(Decided<&'a mut Log, Q>),
}

/// Evaluates `$then` for whichever algorithm decided.
macro_rules! for_each_algorithm {
    ($decision:expr, $decided:ident => $then:expr) => {
        match $decision {
            ByAlgorithm::Counters($decided) => $then,
            ByAlgorithm::Short($decided) => $then,
            ByAlgorithm::Log($decided) => $then,
        }
    };
}

impl<Q: Quotas> Decision<'_, Q> {
    /// Whether a tier refuses the request.
    #[inline(always)]
    pub fn limited(&self) -> bool {
        for_each_algorithm!(&self.0, decided => decided.limited)
    }

    /// Counts the request, or gives units back, in all tiers, even if some refuse.
    #[inline(always)]
    pub fn commit(&mut self) {
        for_each_algorithm!(&mut self.0, decided => decided.commit())
    }

    /// The effects so far.
    #[inline(always)]
    pub fn outcome(&self) -> Outcome {
        for_each_algorithm!(&self.0, decided => decided.outcome())
    }

    /// The reply, before or after the commit.
    #[inline(always)]
    pub fn verdict(&self) -> Verdict {
        for_each_algorithm!(&self.0, decided => decided.verdict())
    }

    /// How long until every tier allows the same request, if nothing else is counted.
    pub fn retry_after(&self) -> Wait {
        for_each_algorithm!(&self.0, decided => decided.longest_wait())
    }

    /// The reply for one tier alone, by its index in the caller's order; `None` if out of range.
    pub fn verdict_of(&self, tier: usize) -> Option<Verdict> {
        for_each_algorithm!(&self.0, decided => decided.verdict_of(tier))
    }
}

/// The state of one key, for reading.
pub(super) trait State {
    /// What counts in one window at one time: looked up once, queried several times.
    type Usage;

    /// Looks up what counts in the window of `quota` at `now`.
    fn usage(&self, quota: Quota, now: UnixMs) -> Self::Usage;

    /// Units that count.
    fn used(&self, usage: &Self::Usage) -> u64;

    /// The exact time until at most `room` units count, in milliseconds. More must count now.
    fn wait_until(&self, usage: &Self::Usage, room: u64) -> u64;

    /// Checks that the key can hold the windows of these quotas beside those that still count.
    fn check_windows_fit(&self, quotas: &[Quota], now: UnixMs) -> Result<(), TooManyWindows>;

    /// See [`Outlook::ahead`].
    fn is_ahead_of(&self, now: UnixMs) -> bool;

    /// The latest time that anything was counted at, to the precision of the state.
    fn newest(&self) -> UnixMs;

    /// Where the time that set the key's expiry came from.
    fn source(&self) -> TimeSource;

    /// Whether it holds no units, not even expired ones.
    fn is_empty(&self) -> bool;

    /// See [`Limiter::lifetime`].
    fn lifetime(&self, now: UnixMs, slack_ms: u64) -> Lifetime;

    /// Whether units are kept for less time than the window of `quota`.
    fn retention_too_short_for(&self, quota: Quota) -> bool;

    /// The exact time until `units` more fit `quota`, if nothing else is counted: `retry_after` for the
    /// request's cost, `reset_after` for the whole limit.
    #[inline(always)]
    fn wait_for(&self, usage: &Self::Usage, units: u64, quota: Quota) -> Wait {
        match quota.limit().checked_sub(units) {
            None => Wait::Never,
            Some(room) if units == 0 || self.used(usage) <= room => Wait::Ms(0),
            Some(room) => Wait::Ms(self.wait_until(usage, room)),
        }
    }
}

/// The state of one key, for changing. Every change also updates the usage in `tiers`.
pub(super) trait StateMut: State {
    /// Counts `units`, at least one, in all tiers. Counts saturate at [`MAX_COUNT`](super::MAX_COUNT).
    fn add(&mut self, tiers: &mut [Tier<Self::Usage>], units: u64, now: UnixMs) -> Change;

    /// Gives back up to `units` in all tiers, the newest first, among those that were counted at `as_of` or
    /// before and still count.
    fn refund(&mut self, tiers: &mut [Tier<Self::Usage>], units: u64, as_of: UnixMs) -> Change;
}

/// A quota, and what counts in its window.
pub(super) struct Tier<U> {
    pub quota: Quota,
    pub usage: U,
    /// Whether it refuses the request.
    refuses: bool,
}

impl<U> Tier<U> {
    /// A tier that does not refuse.
    pub(super) fn new(quota: Quota, usage: U) -> Tier<U> {
        Tier { quota, usage, refuses: false }
    }
}

/// Makes the tiers of a request for `units` at `now`.
struct TierMaker<'a, S> {
    state: &'a S,
    units: u64,
    now: UnixMs,
}

impl<S: State> PerQuota for TierMaker<'_, S> {
    type Made = Tier<S::Usage>;

    #[inline(always)]
    fn make(&self, quota: Quota) -> Tier<S::Usage> {
        let usage = self.state.usage(quota, self.now);
        let refuses = self.units > 0 && self.state.used(&usage) + self.units > quota.limit();
        Tier { quota, usage, refuses }
    }
}

/// A request decided by one algorithm.
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
    /// Decides whether `cost` units fit every quota. Changes nothing.
    #[inline(always)]
    pub(super) fn decide(state: S, quotas: &Q, cost: Cost, time: Time) -> Result<Self, TooManyWindows> {
        Self::check_windows_fit(&state, quotas, cost, time)?;
        Ok(Decided::decide_unchecked(state, quotas, cost, time))
    }

    #[inline(always)]
    fn check_windows_fit(state: &S, quotas: &Q, cost: Cost, time: Time) -> Result<(), TooManyWindows> {
        if cost.taken() > 0 { state.check_windows_fit(quotas.as_ref(), time.now()) } else { Ok(()) }
    }

    /// Decides, after [`Self::check_windows_fit`].
    #[inline(always)]
    fn decide_unchecked(state: S, quotas: &Q, cost: Cost, time: Time) -> Self {
        let (units, now) = (cost.taken(), time.now());
        let tiers = quotas.each(&TierMaker { state: &state, units, now });
        let limited = tiers.as_ref().iter().any(|tier| tier.refuses);
        Decided { state, tiers, cost, time, limited, change: Change::default(), as_of: now }
    }

    /// The reply, with the figures of one tier: the longest wait if limited, else the fewest units remaining;
    /// on a tie, the earlier tier.
    #[inline(always)]
    fn verdict(&self) -> Verdict {
        let [first, rest @ ..] = self.tiers.as_ref() else { unreachable!("a request names a tier") };
        let mut shown = first;
        for other in rest {
            let is_tighter = if self.limited {
                self.retry_after(other) > self.retry_after(shown)
            } else {
                self.remaining(other) < self.remaining(shown)
            };
            if is_tighter {
                shown = other;
            }
        }
        self.verdict_on(shown, self.limited)
    }

    /// The reply of a peek, and whether the key may expire before its waits are over.
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
            retention_too_short: self
                .tiers
                .as_ref()
                .iter()
                .any(|tier| self.state.retention_too_short_for(tier.quota)),
        }
    }
}

impl<S: StateMut, Q: Quotas> Decided<S, Q> {
    /// Decides, and commits if allowed or forced. Returns the reply and the effects.
    #[inline(always)]
    pub(super) fn take(
        state: S,
        quotas: &Q,
        cost: Cost,
        force: bool,
        time: Time,
    ) -> Result<(Verdict, Outcome), TooManyWindows> {
        Self::check_windows_fit(&state, quotas, cost, time)?;
        // Taking it out of a `Result` would copy up to eight tiers.
        let mut decided = Decided::decide_unchecked(state, quotas, cost, time);
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
                // Without AT, everything there can be given back, even if it is ahead of the clock.
                self.as_of = self.time.at.unwrap_or_else(|| self.state.newest().max(self.time.clock));
                self.state.refund(tiers, units.unsigned_abs(), self.as_of)
            }
        };
    }
}
