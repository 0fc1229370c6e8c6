//! Decide, then commit: nothing is written until everything has been decided.
//!
//! An algorithm implements [`State`] to be read and [`StateMut`] to be changed.

use std::slice;

use arrayvec::ArrayVec;

use super::algorithm::{Algorithm, WindowUsage};
use super::lifetime::{Change, MostAhead, MoveBack, Outcome, OwnTime, TimeSource};
use super::quota::{Cost, MAX_TIERS, Quota, QuotaList, Time, UnixMs, WindowMs};

/// How long until a request fits. `Never` compares greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// Milliseconds.
    Ms(u64),
    /// For ever: the request costs more than the limit.
    Never,
}

impl Wait {
    /// The wait in milliseconds; `None` if no wait helps.
    pub fn ms(self) -> Option<u64> {
        match self {
            Wait::Ms(ms) => Some(ms),
            Wait::Never => None,
        }
    }

    /// This wait, but at most `ms` milliseconds, unless no wait helps.
    pub fn at_most(self, ms: u64) -> Wait {
        match self {
            Wait::Ms(wait) => Wait::Ms(wait.min(ms)),
            Wait::Never => Wait::Never,
        }
    }
}

/// The reply to a request, with the numbers of one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request was over a limit.
    pub limited: bool,
    /// The limit of the tier.
    pub limit: u64,
    /// Units left in the tier, rounded down; 0 if more than the limit count.
    pub remaining: u64,
    /// Milliseconds until the same request is allowed, rounded up; `None` if it was allowed or never will be. If WITHIN allowed it, those
    /// until the units are there; `None` if they are now.
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until the whole limit is available again, rounded up; 0 if it is now.
    pub reset_after_ms: u64,
}

impl Verdict {
    /// The verdict with both waits at most `ms` milliseconds: the time until the key expires.
    pub fn at_most(self, ms: u64) -> Verdict {
        Verdict {
            retry_after_ms: self.retry_after_ms.map(|wait| wait.min(ms)),
            reset_after_ms: self.reset_after_ms.min(ms),
            ..self
        }
    }
}

/// Why a request cannot be decided. [`request`](crate::request) has the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The key is counted by this algorithm, not by the requested one.
    OtherAlgorithm(Algorithm),
    /// The key would have more than [`MAX_TIERS`] windows that still count.
    TooManyWindows,
    /// A window in months is only for RL.FIXED, by which the key is not counted.
    Months,
    /// Two windows are the same by the algorithm of the key.
    SameWindow,
}

/// What was decided about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The reply.
    pub verdict: Verdict,
    /// What it changed.
    pub outcome: Outcome,
}

/// What counts in one window at one time.
#[derive(Clone, Copy)]
pub struct Usage<P> {
    /// Units that count.
    pub used: u64,
    /// Where they are counted: see [`State::Place`].
    pub place: P,
}

/// Units to give back.
#[derive(Clone, Copy)]
pub struct Refund {
    /// How many, at least one.
    pub units: u64,
    /// Only units that were counted at this time or before.
    pub as_of: UnixMs,
    /// What has ended by this time does not count any more.
    pub ended_by: UnixMs,
}

/// Units that were given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refunded {
    /// How many, in the window with the most.
    pub units: u64,
    /// Whether they were the last that count. Then the state is as it was.
    pub emptied: bool,
}

/// The state of one key, for reading.
pub trait State {
    /// Where the units of a window are counted: its counter, its bucket, or the place in the log where it begins.
    type Place: Copy;

    /// Looks up what counts in the window of `quota` at `now`.
    fn usage(&self, quota: Quota, now: UnixMs) -> Usage<Self::Place>;

    /// The exact time from `now` until at most `most` units count in the window of `quota`, in milliseconds. More must
    /// count now, in this place.
    fn wait_until(&self, quota: Quota, place: &Self::Place, most: u64, now: UnixMs) -> u64;

    /// How long until everything is available again in `place`, for a quota that allows nothing.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn reset_after_ms_without_limit(&self, _place: &Self::Place, _now: UnixMs) -> u64 {
        0
    }

    /// Whether the key can hold the windows of these quotas beside those that still count.
    fn windows_fit(&self, quotas: &[Quota], now: UnixMs) -> bool;

    /// Whether its own time is later than `now`.
    fn is_ahead_of(&self, now: UnixMs) -> bool;

    /// The latest time that anything was counted at in windows of `quotas`; in a log, in any window.
    fn newest_in(&self, quotas: &[Quota]) -> UnixMs;

    /// The same, except that units that somebody waits for are as of the time at which they are there.
    fn newest_units_in(&self, quotas: &[Quota]) -> UnixMs {
        self.newest_in(quotas)
    }

    /// Where the time that set the key's expiry came from.
    fn source(&self) -> TimeSource;

    /// Whether it holds no units, not even expired ones.
    fn is_empty(&self) -> bool;

    /// How long from `now` it can affect a decision, in milliseconds; of a log, rounded up.
    fn lifetime_ms(&self, now: UnixMs) -> u64;

    /// Whether units are kept for less time than the window of `quota`.
    fn retention_too_short_for(&self, quota: Quota) -> bool;

    /// The windows that can still count at `now`, as RL.INFO shows them: shortest first.
    fn windows(&self, now: UnixMs) -> Vec<WindowUsage>;
}

/// The state of one key, for changing.
pub trait StateMut: State {
    /// Moves what is too far ahead of the clock. Returns whether anything was.
    fn move_back(&mut self, to: MoveBack) -> bool;

    /// Counts `units`, at least one, in all tiers, and updates these. Counts saturate at [`MAX_COUNT`](super::MAX_COUNT). A bucket
    /// that refuses the units is emptied below zero by one more bucket at most.
    fn add(&mut self, tiers: &mut [Tier<Self::Place>], units: u64, now: UnixMs) -> Change;

    /// Gives back as many of the units as still count in the windows of all quotas, the newest first. Changes nothing if
    /// no unit would count any more, in the windows that it holds and in those of `quotas`.
    fn refund(&mut self, quotas: &[Quota], refund: Refund) -> Refunded;
}

/// A quota, and what counts in its window at the time of a request.
#[derive(Clone, Copy)]
pub struct Tier<P> {
    pub quota: Quota,
    pub usage: Usage<P>,
    /// Whether it refuses the request.
    pub refuses: bool,
}

impl<P> Tier<P> {
    fn remaining(&self) -> u64 {
        self.quota.limit().saturating_sub(self.usage.used)
    }
}

/// Evaluates an expression for the looked-up tiers of a request, in the order of its quotas. A request of one tier, as nearly every
/// one is, has a copy of the code that keeps no list.
macro_rules! with_tiers {
    ($request:expr, $state:expr, $tiers:ident => $then:expr) => {
        if let [quota] = $request.quotas {
            let $tiers = &mut [$request.tier($state, *quota)];
            $then
        } else {
            let (request, state) = ($request, &*$state);
            let looked_up = request.quotas.iter().map(move |quota| request.tier(state, *quota));
            let $tiers = &mut looked_up.collect::<ArrayVec<_, MAX_TIERS>>()[..];
            $then
        }
    };
}

/// What becomes of a request that is over the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It counts nothing.
    #[default]
    AllOrNothing,
    /// FORCE: it counts all of its units.
    Force,
    /// PARTIAL: it counts the units that fit.
    Partial,
    /// WITHIN: of buckets it counts all of its units, if they are there within this time.
    Within(WindowMs),
}

/// A request about one key.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The tiers: at least one, each with a different window.
    pub quotas: &'r [Quota],
    /// Units to take, or to give back if negative.
    pub cost: Cost,
    /// What becomes of it if it is over the limit.
    pub mode: Mode,
    /// When it is decided.
    pub time: Time,
}

/// How it is decided: by the same steps for every [`State`].
impl Request<'_> {
    /// Checks that the key can hold the windows of a request that takes units.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn check_windows_fit(self, state: &impl State) -> Result<(), Mismatch> {
        if self.cost.to_take() == 0 || state.windows_fit(self.quotas, self.time.as_of()) {
            Ok(())
        } else {
            Err(Mismatch::TooManyWindows)
        }
    }

    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    pub(super) fn is_limited<S: State>(self, state: &S) -> Result<bool, Mismatch> {
        self.check_windows_fit(state)?;
        Ok(self.quotas.iter().any(|quota| self.tier(state, *quota).refuses))
    }

    /// Decides, and commits the request if it is allowed or forced.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    pub(super) fn decide_and_commit<S: StateMut>(self, state: &mut S) -> Result<Decision, Mismatch> {
        self.check_windows_fit(state)?;
        let own_time = self.move_back_if_ahead(state);
        Ok(with_tiers!(self, state, tiers => {
            let limited = any_refuses(tiers);
            let outcome = match self.mode == Mode::Force || !limited {
                true => self.commit(state, tiers, own_time),
                false => self.outcome(state, tiers, own_time),
            };
            Decision { verdict: self.verdict(state, tiers, limited), outcome }
        }))
    }

    /// WITHIN: decides, and commits the request if all tiers have its units within `most_ms`. Then the verdict tells how long
    /// to wait for them; if limited, how long until the same request is allowed.
    pub(super) fn decide_and_commit_within<S: StateMut>(
        self,
        state: &mut S,
        most_ms: u64,
    ) -> Result<Decision, Mismatch> {
        self.check_windows_fit(state)?;
        let own_time = Self::move_back(self.time, state, MostAhead::Nothing);
        Ok(with_tiers!(self, state, tiers => {
            let wait = tiers.iter().map(|tier| self.retry_after(state, tier)).max().unwrap_or(Wait::Ms(0));
            let limited = wait > Wait::Ms(most_ms);
            tiers.iter_mut().for_each(|tier| tier.refuses = limited);
            let outcome = match limited {
                true => self.outcome(state, tiers, own_time),
                false => self.commit(state, tiers, own_time),
            };
            let retry_after_ms = match wait.ms() {
                Some(wait_ms) if limited => Some(wait_ms - most_ms),
                wait_ms => wait_ms.filter(|wait_ms| *wait_ms > 0),
            };
            Decision { verdict: Verdict { retry_after_ms, ..self.verdict(state, tiers, limited) }, outcome }
        }))
    }

    /// Commits a request whose windows fit, if it `counts`. Passes on the verdict on each tier, and how long until that allows the same
    /// request again: once this one is counted, it may refuse it.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    pub(super) fn commit_if<S: StateMut>(
        self,
        state: &mut S,
        counts: bool,
        mut verdicts: impl FnMut(Verdict, Wait),
    ) -> Outcome {
        let own_time = self.move_back_if_ahead(state);
        with_tiers!(self, state, tiers => {
            let outcome = match counts {
                true => self.commit(state, tiers, own_time),
                false => self.outcome(state, tiers, own_time),
            };
            for tier in &*tiers {
                let verdict = self.verdict(state, slice::from_ref(tier), tier.refuses);
                verdicts(verdict, self.retry_after(state, tier));
            }
            outcome
        })
    }

    /// Commits without a verdict. `awaited`: see [`Recorded::awaited`](super::Recorded::awaited).
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    pub(super) fn record<S: StateMut>(self, state: &mut S, awaited: bool) -> Result<Outcome, Mismatch> {
        self.check_windows_fit(state)?;
        // A copy is told what follows from where the key's own time is.
        let own_time = OwnTime::default();
        Ok(with_tiers!(self, state, tiers => {
            // These units were allowed, though the bucket lacked them.
            if awaited {
                tiers.iter_mut().for_each(|tier| tier.refuses = false);
            }
            self.commit(state, tiers, own_time)
        }))
    }

    /// Decides on a request that will not be committed.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    pub(super) fn peek<S: State>(self, state: &S) -> Result<Decision, Mismatch> {
        self.check_windows_fit(state)?;
        Ok(with_tiers!(self, state, tiers => {
            let verdict = self.verdict(state, tiers, any_refuses(tiers));
            let own_time = OwnTime::default();
            Decision { verdict, outcome: self.outcome(state, tiers, own_time) }
        }))
    }

    /// Moves the key back if it is too far ahead of the clock, as few keys are.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn move_back_if_ahead<S: StateMut>(self, state: &mut S) -> OwnTime {
        if state.is_ahead_of(self.time.as_of()) {
            Self::move_back(self.time, state, state.source().most_ahead())
        } else {
            OwnTime::default()
        }
    }

    /// Moves the key back if it is ahead of the clock by more than `most`. With AT, the clock does not matter and the key stays.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn move_back<S: StateMut>(time: Time, state: &mut S, most: MostAhead) -> OwnTime {
        let moved = time.at.is_none() && state.move_back(MoveBack { clock: time.clock, most });
        OwnTime { ahead: state.is_ahead_of(time.as_of()), moved_back: moved.then_some(most) }
    }

    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn tier<S: State>(self, state: &S, quota: Quota) -> Tier<S::Place> {
        let usage = state.usage(quota, self.time.as_of());
        let refuses = self.cost.to_take() > 0 && usage.used + self.cost.to_take() > quota.limit();
        Tier { quota, usage, refuses }
    }

    /// Counts the units, or gives them back.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn commit<S: StateMut>(self, state: &mut S, tiers: &mut [Tier<S::Place>], own_time: OwnTime) -> Outcome {
        if self.cost.get() < 0 {
            return self.refund(state, tiers, own_time);
        }
        let mut change = Change::default();
        if self.cost.to_take() > 0 {
            change = state.add(tiers, self.cost.to_take(), self.time.as_of());
        }
        Outcome { change, ..self.outcome(state, tiers, own_time) }
    }

    #[cold]
    #[inline(never)]
    fn refund<S: StateMut>(self, state: &mut S, tiers: &mut [Tier<S::Place>], own_time: OwnTime) -> Outcome {
        let quotas: QuotaList = tiers.iter().map(|tier| tier.quota).collect();
        // Without AT, everything can be given back, even what was counted at a time ahead of the clock.
        let as_of = self.time.at.unwrap_or_else(|| state.newest_units_in(&quotas).max(self.time.clock));
        let units = self.cost.get().unsigned_abs();
        // The earlier of clock and AT: what has ended by then matters to neither.
        let ended_by = self.time.as_of().min(self.time.clock);
        let refund = Refund { units, as_of, ended_by };
        let Refunded { units, emptied } = state.refund(&quotas, refund);
        for tier in tiers.iter_mut() {
            tier.usage = state.usage(tier.quota, self.time.as_of());
            if emptied {
                tier.usage.used = 0;
            }
        }
        let change = Change { units, given_back: true, ..Change::default() };
        let own_time = OwnTime { ahead: state.is_ahead_of(self.time.as_of()), ..own_time };
        Outcome { change, as_of, emptied, ..self.outcome(state, tiers, own_time) }
    }

    /// The outcome of a request that changes nothing.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn outcome<S: State>(self, state: &S, tiers: &[Tier<S::Place>], own_time: OwnTime) -> Outcome {
        Outcome {
            change: Change::default(),
            as_of: self.time.as_of(),
            emptied: false,
            own_time,
            source: state.source(),
            retention_too_short: tiers.iter().any(|tier| state.retention_too_short_for(tier.quota)),
        }
    }

    /// The reply, with the numbers of one tier: the longest wait if limited, else the fewest units remaining;
    /// on a tie, the earlier tier.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn verdict<S: State>(self, state: &S, tiers: &[Tier<S::Place>], limited: bool) -> Verdict {
        let [first, rest @ ..] = tiers else { unreachable!("a request names a tier") };
        let mut shown = first;
        for other in rest {
            let is_tighter = if limited {
                self.retry_after(state, other) > self.retry_after(state, shown)
            } else {
                other.remaining() < shown.remaining()
            };
            if is_tighter {
                shown = other;
            }
        }
        let limit = shown.quota.limit();
        Verdict {
            limited,
            limit,
            remaining: shown.remaining(),
            retry_after_ms: if limited { self.retry_after(state, shown).ms() } else { None },
            reset_after_ms: match limit {
                0 => state.reset_after_ms_without_limit(&shown.usage.place, self.time.as_of()),
                _ => self.wait_for(state, shown, limit).ms().unwrap_or(0),
            },
        }
    }

    /// The exact time until the tier allows the request, if no other comes.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn retry_after<S: State>(self, state: &S, tier: &Tier<S::Place>) -> Wait {
        self.wait_for(state, tier, self.cost.to_take())
    }

    /// The exact time until `units` more fit the tier, if nothing else is counted: `retry_after` for the
    /// request's cost, `reset_after` for the whole limit.
    #[cfg_attr(not(target_family = "wasm"), inline(always))]
    fn wait_for<S: State>(self, state: &S, tier: &Tier<S::Place>, units: u64) -> Wait {
        match tier.quota.limit().checked_sub(units) {
            None => Wait::Never,
            Some(most) if units == 0 || tier.usage.used <= most => Wait::Ms(0),
            Some(most) => Wait::Ms(state.wait_until(tier.quota, &tier.usage.place, most, self.time.as_of())),
        }
    }
}

/// Whether a key can hold the windows of `quotas` beside those that still count: the `live` ones.
#[cold]
pub fn fit_beside(quotas: &[Quota], live: impl Iterator<Item = WindowMs>) -> bool {
    let is_named = |window: &WindowMs| quotas.iter().any(|quota| quota.window() == *window);
    quotas.len() + live.filter(|window| !is_named(window)).count() <= MAX_TIERS
}

fn any_refuses<P>(tiers: &[Tier<P>]) -> bool {
    tiers.iter().any(|tier| tier.refuses)
}
