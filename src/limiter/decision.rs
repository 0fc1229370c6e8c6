//! Decide, then commit: nothing is written until everything has been decided.
//!
//! An algorithm implements [`State`] to be read and [`StateMut`] to be changed.

use super::lifetime::{ExpiryFacts, Lifetime, TimeSource};
use super::quota::{Cost, Quota, QuotaList, QuotaVisitor, Quotas, Time, UnixMs, WindowMs};

/// How long until a request fits. `Never` compares greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// Milliseconds.
    Ms(u64),
    /// The request costs more than the limit.
    Never,
}

impl Wait {
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

/// What a request counted or gave back.
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
    /// Whether it gave back the last units that counted.
    pub emptied: bool,
    /// Whether the key is in a window, or has a timestamp, later than the request's time.
    pub ahead: bool,
    /// Where the time that set the key's expiry came from, before this request.
    pub source: TimeSource,
    /// Whether the key keeps its units for less time than a window of the request.
    pub retention_too_short: bool,
}

impl Outcome {
    /// Whether anything was counted or given back.
    #[inline(always)]
    pub fn changed(&self) -> bool {
        self.change.units > 0
    }

    /// Whether the key may expire, by the server's clock, before a wait in the reply is over.
    #[inline(always)]
    pub fn may_expire_early(&self) -> bool {
        self.ahead | self.retention_too_short | (self.source == TimeSource::Loaded)
    }

    /// The facts that the key's expiry depends on.
    #[inline(always)]
    pub fn expiry_facts(&self, time: Time) -> ExpiryFacts {
        let Outcome { change: Change { end_moved, .. }, ahead, source, .. } = *self;
        ExpiryFacts { time, changed: self.changed(), end_moved, ahead, source }
    }
}

/// A decided request about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The reply.
    pub verdict: Verdict,
    /// Its effects, apart from the reply.
    pub outcome: Outcome,
}

/// What counts in one window at one time: looked up once, queried several times.
#[derive(Clone, Copy)]
pub(super) struct Usage<F> {
    pub window: WindowMs,
    pub now: UnixMs,
    /// Units that count.
    pub used: u64,
    /// Where the state found them.
    pub found: F,
}

/// The state of one key, for reading.
pub(super) trait State {
    /// Where it finds what counts in one window at one time.
    type Found;

    /// Looks up what counts in `window` at `now`.
    fn usage(&self, window: WindowMs, now: UnixMs) -> Usage<Self::Found>;

    /// The exact time until at most `room` units count, in milliseconds. More must count now.
    fn wait_until(&self, usage: &Usage<Self::Found>, room: u64) -> u64;

    /// Checks that the key can hold the windows of these quotas beside those that still count.
    fn check_windows_fit(&self, quotas: &[Quota], now: UnixMs) -> Result<(), TooManyWindows>;

    /// See [`Outcome::ahead`].
    fn is_ahead_of(&self, now: UnixMs) -> bool;

    /// See [`Limiter::newest_of`](super::Limiter::newest_of).
    fn newest_of(&self, quotas: &[Quota]) -> UnixMs;

    /// Where the time that set the key's expiry came from.
    fn source(&self) -> TimeSource;

    /// Whether it holds no units, not even expired ones.
    fn is_empty(&self) -> bool;

    /// Whether no unit counts at `now` or later, in the windows that it holds and in those of `quotas`.
    fn counts_nothing(&self, quotas: &[Quota], now: UnixMs) -> bool;

    /// See [`Limiter::lifetime`](super::Limiter::lifetime).
    fn lifetime(&self, now: UnixMs, slack_ms: u64) -> Lifetime;

    /// Whether units are kept for less time than the window of `quota`.
    fn retention_too_short_for(&self, quota: Quota) -> bool;

    /// The exact time until `units` more fit the tier, if nothing else is counted: `retry_after` for the
    /// request's cost, `reset_after` for the whole limit.
    #[inline(always)]
    fn wait_for(&self, Tier { quota, usage, .. }: &Tier<Self::Found>, units: u64) -> Wait {
        match quota.limit().checked_sub(units) {
            None => Wait::Never,
            Some(room) if units == 0 || usage.used <= room => Wait::Ms(0),
            Some(room) => Wait::Ms(self.wait_until(usage, room)),
        }
    }
}

/// The state of one key, for changing.
pub(super) trait StateMut: State {
    /// Counts `units`, at least one, in all tiers, and updates their usage. Counts saturate at
    /// [`MAX_COUNT`](super::MAX_COUNT).
    fn add(&mut self, tiers: &mut [Tier<Self::Found>], units: u64, now: UnixMs) -> Change;

    /// Gives back up to `units` in the windows of all quotas, the newest first, among those that were counted at
    /// `as_of` or before and still count. Returns how many, in the window with the most.
    fn refund(&mut self, quotas: &[Quota], units: u64, as_of: UnixMs) -> u64;
}

/// A quota, and what counts in its window.
pub(super) struct Tier<F> {
    pub quota: Quota,
    pub usage: Usage<F>,
    /// Whether it refuses the request.
    refuses: bool,
}

impl<F> Tier<F> {
    /// A tier that does not refuse.
    pub(super) fn new(quota: Quota, usage: Usage<F>) -> Tier<F> {
        Tier { quota, usage, refuses: false }
    }
}

/// A request about the state of one key.
pub(super) struct RequestOn<S> {
    pub state: S,
    pub cost: Cost,
    pub time: Time,
}

impl<S: State> RequestOn<S> {
    /// Decides. Changes nothing.
    #[inline(always)]
    pub(super) fn decide(self, quotas: &impl Quotas) -> Result<Decision, TooManyWindows> {
        self.check_windows_fit(quotas)?;
        Ok(self.decide_unchecked(quotas))
    }

    /// The same for windows that were found to fit.
    #[inline(always)]
    pub(super) fn decide_unchecked(self, quotas: &impl Quotas) -> Decision {
        quotas.visit(self)
    }

    #[inline(always)]
    fn check_windows_fit(&self, quotas: &impl Quotas) -> Result<(), TooManyWindows> {
        if self.cost.taken() > 0 {
            self.state.check_windows_fit(quotas.as_ref(), self.time.now())
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn tier(&self, quota: Quota) -> Tier<S::Found> {
        let usage = self.state.usage(quota.window(), self.time.now());
        let refuses = self.cost.taken() > 0 && usage.used + self.cost.taken() > quota.limit();
        Tier { quota, usage, refuses }
    }

    #[inline(always)]
    fn decision(self, tiers: &[Tier<S::Found>], limited: bool, change: Change) -> Decision {
        let verdict = self.verdict(tiers, limited);
        let as_of = self.time.now();
        let outcome = Outcome {
            change,
            as_of,
            emptied: false,
            ahead: self.state.is_ahead_of(as_of),
            source: self.state.source(),
            retention_too_short: tiers.iter().any(|tier| self.state.retention_too_short_for(tier.quota)),
        };
        Decision { verdict, outcome }
    }

    /// The reply, with the figures of one tier: the longest wait if limited, else the fewest units remaining;
    /// on a tie, the earlier tier.
    #[inline(always)]
    fn verdict(&self, tiers: &[Tier<S::Found>], limited: bool) -> Verdict {
        let [first, rest @ ..] = tiers else { unreachable!("a request names a tier") };
        let mut shown = first;
        for other in rest {
            let is_tighter = if limited {
                self.retry_after(other) > self.retry_after(shown)
            } else {
                self.remaining(other) < self.remaining(shown)
            };
            if is_tighter {
                shown = other;
            }
        }
        let limit = shown.quota.limit();
        Verdict {
            limited,
            limit,
            remaining: self.remaining(shown),
            retry_after_ms: if limited { self.retry_after(shown).ms() } else { None },
            reset_after_ms: self.state.wait_for(shown, limit).ms().unwrap_or(0),
        }
    }

    #[inline(always)]
    fn retry_after(&self, tier: &Tier<S::Found>) -> Wait {
        self.state.wait_for(tier, self.cost.taken())
    }

    #[inline(always)]
    fn remaining(&self, tier: &Tier<S::Found>) -> u64 {
        tier.quota.limit().saturating_sub(tier.usage.used)
    }
}

impl<S: StateMut> RequestOn<S> {
    /// Decides, and counts the units, or gives them back, if the request is allowed or forced. An error changes
    /// nothing.
    #[inline(always)]
    pub(super) fn take(self, quotas: &impl Quotas, force: bool) -> Result<Decision, TooManyWindows> {
        self.check_windows_fit(quotas)?;
        Ok(self.take_unchecked(quotas, force))
    }

    /// The same for windows that were found to fit.
    #[inline(always)]
    pub(super) fn take_unchecked(self, quotas: &impl Quotas, force: bool) -> Decision {
        if self.cost.get() < 0 {
            return refund(self.state, quotas.as_ref().iter().copied().collect(), self.cost, self.time);
        }
        quotas.visit(Take { request: self, force })
    }
}

/// Gives units back. Apart from [`Take`], so that a request that takes units keeps its state in registers.
#[cold]
#[inline(never)]
fn refund<S: StateMut>(mut state: S, quotas: QuotaList, cost: Cost, time: Time) -> Decision {
    // Without AT, everything there can be given back, even if it is ahead of the clock.
    let as_of = time.at.unwrap_or_else(|| state.newest_of(&quotas).max(time.clock));
    let units = state.refund(&quotas, cost.get().unsigned_abs(), as_of);
    let emptied = units > 0 && state.counts_nothing(&quotas, time.earlier());
    // Fewer units never need the key for longer.
    let change = Change { units, end_moved: false };
    let Decision { verdict, outcome } = RequestOn { state, cost, time }.decide_unchecked(&quotas);
    Decision { verdict, outcome: Outcome { change, as_of, emptied, ..outcome } }
}

/// Decides.
impl<S: State> QuotaVisitor for RequestOn<S> {
    type Made = Tier<S::Found>;
    type Answer = Decision;

    #[inline(always)]
    fn make(&self, quota: Quota) -> Tier<S::Found> {
        self.tier(quota)
    }

    #[inline(always)]
    fn answer(self, tiers: &mut [Tier<S::Found>]) -> Decision {
        self.decision(tiers, any_refuses(tiers), Change::default())
    }
}

/// Decides on a request, and counts it if it is allowed or forced.
struct Take<S> {
    request: RequestOn<S>,
    force: bool,
}

impl<S: StateMut> QuotaVisitor for Take<S> {
    type Made = Tier<S::Found>;
    type Answer = Decision;

    #[inline(always)]
    fn make(&self, quota: Quota) -> Tier<S::Found> {
        self.request.tier(quota)
    }

    #[inline(always)]
    fn answer(mut self, tiers: &mut [Tier<S::Found>]) -> Decision {
        let RequestOn { state, cost, time } = &mut self.request;
        let limited = any_refuses(tiers);
        let change = if (self.force || !limited) && cost.taken() > 0 {
            state.add(tiers, cost.taken(), time.now())
        } else {
            Change::default()
        };
        self.request.decision(tiers, limited, change)
    }
}

#[inline(always)]
fn any_refuses<F>(tiers: &[Tier<F>]) -> bool {
    tiers.iter().any(|tier| tier.refuses)
}
