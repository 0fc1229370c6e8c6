//! Decide, then commit: nothing is written until everything has been decided.
//!
//! An algorithm implements [`State`] to be read and [`StateMut`] to be changed.

use super::lifetime::{ExpiryFacts, Lifetime, TimeSource};
use super::quota::{Cost, Quota, QuotaList, QuotaVisitor, Quotas, Time, UnixMs};

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
    /// The verdict with the same figures on a request that is not limited.
    pub fn allowed(self) -> Verdict {
        Verdict { limited: false, retry_after_ms: None, ..self }
    }

    /// How long until the tier allows the same request.
    pub fn retry_after(&self) -> Wait {
        if self.limited { self.retry_after_ms.map_or(Wait::Never, Wait::Ms) } else { Wait::Ms(0) }
    }

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// A decided request about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The reply.
    pub verdict: Verdict,
    /// The other effects; none if nothing was counted.
    pub outcome: Outcome,
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

/// The state of one key, for changing.
pub(super) trait StateMut: State {
    /// Counts `units`, at least one, in all tiers, and updates their usage. Counts saturate at
    /// [`MAX_COUNT`](super::MAX_COUNT).
    fn add(&mut self, tiers: &mut [Tier<Self::Usage>], units: u64, now: UnixMs) -> Change;

    /// Gives back up to `units` in the windows of all quotas, the newest first, among those that were counted at
    /// `as_of` or before and still count.
    fn refund(&mut self, quotas: &[Quota], units: u64, as_of: UnixMs) -> Change;
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

    /// The tier of `quota` in a request of this cost.
    #[inline(always)]
    fn decide<S: State<Usage = U>>(state: &S, quota: Quota, cost: Cost, time: Time) -> Tier<U> {
        let usage = state.usage(quota, time.now());
        let refuses = cost.taken() > 0 && state.used(&usage) + cost.taken() > quota.limit();
        Tier { quota, usage, refuses }
    }
}

/// A request with its tiers.
struct Decided<'t, S: State> {
    state: S,
    tiers: &'t mut [Tier<S::Usage>],
    cost: Cost,
    time: Time,
    limited: bool,
    change: Change,
}

impl<'t, S: State> Decided<'t, S> {
    #[inline(always)]
    fn new(state: S, tiers: &'t mut [Tier<S::Usage>], cost: Cost, time: Time) -> Self {
        let limited = tiers.iter().any(|tier| tier.refuses);
        Decided { state, tiers, cost, time, limited, change: Change::default() }
    }

    #[inline(always)]
    fn decision(&self) -> Decision {
        Decision { verdict: self.verdict(), outcome: self.outcome() }
    }

    #[inline(always)]
    fn outcome(&self) -> Outcome {
        Outcome { change: self.change, as_of: self.time.now(), emptied: false, outlook: self.outlook() }
    }

    /// The reply, with the figures of one tier: the longest wait if limited, else the fewest units remaining;
    /// on a tie, the earlier tier.
    #[inline(always)]
    fn verdict(&self) -> Verdict {
        let [first, rest @ ..] = &*self.tiers else { unreachable!("a request names a tier") };
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
            retention_too_short: self.tiers.iter().any(|tier| self.state.retention_too_short_for(tier.quota)),
        }
    }
}

impl<S: StateMut> Decided<'_, S> {
    #[inline(always)]
    fn count(&mut self) {
        if self.cost.taken() > 0 {
            self.change = self.state.add(self.tiers, self.cost.taken(), self.time.now());
        }
    }
}

#[inline(always)]
fn check_windows_fit(
    state: &impl State,
    quotas: &impl Quotas,
    cost: Cost,
    time: Time,
) -> Result<(), TooManyWindows> {
    if cost.taken() > 0 { state.check_windows_fit(quotas.as_ref(), time.now()) } else { Ok(()) }
}

/// Decides on a request. Changes nothing.
pub(super) struct Decide<S> {
    pub state: S,
    pub cost: Cost,
    pub time: Time,
}

impl<S: State> Decide<S> {
    #[inline(always)]
    pub(super) fn run(self, quotas: &impl Quotas) -> Result<Decision, TooManyWindows> {
        check_windows_fit(&self.state, quotas, self.cost, self.time)?;
        Ok(quotas.visit(self))
    }
}

impl<S: State> QuotaVisitor for Decide<S> {
    type Made = Tier<S::Usage>;
    type Answer = Decision;

    #[inline(always)]
    fn make(&self, quota: Quota) -> Tier<S::Usage> {
        Tier::decide(&self.state, quota, self.cost, self.time)
    }

    #[inline(always)]
    fn answer(self, tiers: &mut [Tier<S::Usage>]) -> Decision {
        Decided::new(self.state, tiers, self.cost, self.time).decision()
    }
}

/// Decides on a request, and counts it, or gives units back, if it is allowed or forced.
pub(super) struct Take<S> {
    pub state: S,
    pub cost: Cost,
    pub force: bool,
    pub time: Time,
}

impl<S: StateMut> Take<S> {
    /// Changes nothing if the windows do not fit.
    #[inline(always)]
    pub(super) fn run(self, quotas: &impl Quotas) -> Result<Decision, TooManyWindows> {
        check_windows_fit(&self.state, quotas, self.cost, self.time)?;
        Ok(self.run_unchecked(quotas))
    }

    /// The same for windows that were found to fit.
    #[inline(always)]
    pub(super) fn run_unchecked(self, quotas: &impl Quotas) -> Decision {
        if self.cost.get() < 0 {
            return refund(self.state, quotas.as_ref().iter().copied().collect(), self.cost, self.time);
        }
        quotas.visit(self)
    }
}

impl<S: StateMut> QuotaVisitor for Take<S> {
    type Made = Tier<S::Usage>;
    type Answer = Decision;

    #[inline(always)]
    fn make(&self, quota: Quota) -> Tier<S::Usage> {
        Tier::decide(&self.state, quota, self.cost, self.time)
    }

    #[inline(always)]
    fn answer(self, tiers: &mut [Tier<S::Usage>]) -> Decision {
        let mut decided = Decided::new(self.state, tiers, self.cost, self.time);
        if self.force || !decided.limited {
            decided.count();
        }
        decided.decision()
    }
}

/// Gives units back. Apart from [`Take`], so that a request that takes units keeps its state in registers.
#[cold]
#[inline(never)]
fn refund<S: StateMut>(mut state: S, quotas: QuotaList, cost: Cost, time: Time) -> Decision {
    // Without AT, everything there can be given back, even if it is ahead of the clock.
    let as_of = time.at.unwrap_or_else(|| state.newest().max(time.clock));
    let change = state.refund(&quotas, cost.get().unsigned_abs(), as_of);
    let emptied = change.units > 0 && state.is_empty();
    let Decision { verdict, outcome } = quotas.visit(Decide { state, cost, time });
    Decision { verdict, outcome: Outcome { change, as_of, emptied, ..outcome } }
}
