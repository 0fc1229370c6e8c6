//! What a request did to a key, and how a copy of the key does the same: without deciding again.

use arrayvec::ArrayVec;

use super::{Algorithm, Cost, Limiter, MAX_SAFE_INTEGER, MAX_TIERS, Outcome, Quota, QuotaList, TakeError};
use super::{Time, UnixMs, WindowMs};

/// What a request did to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It counted units, or gave some back.
    Counted(Counted),
    /// It gave back the last unit that counted, so the key was deleted.
    Deleted,
}

/// Units that were counted or given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Units counted, or given back if negative; not 0.
    pub units: Cost,
    /// The time as of which that was done.
    pub at: UnixMs,
    /// The windows: at least one, each different.
    pub windows: ArrayVec<WindowMs, MAX_TIERS>,
    /// Whether a log forgot its oldest entry meanwhile, since `FORCE` had counted far more than the limit.
    pub forgets: bool,
}

impl Effect {
    /// The effect of a request that changed something.
    #[inline(always)]
    pub fn of(algorithm: Algorithm, quotas: &[Quota], cost: Cost, outcome: &Outcome) -> Effect {
        if outcome.emptied {
            Effect::Deleted
        } else {
            Effect::Counted(Counted::of(algorithm, quotas, cost, outcome))
        }
    }
}

impl Counted {
    /// The units that a request counted or gave back.
    #[inline(always)]
    pub fn of(algorithm: Algorithm, quotas: &[Quota], cost: Cost, outcome: &Outcome) -> Counted {
        Counted {
            algorithm,
            units: cost.at_most(outcome.change.units),
            at: outcome.as_of,
            windows: quotas.iter().map(|quota| quota.window()).collect(),
            forgets: outcome.change.forgot,
        }
    }

    /// The tiers of a forced request with the same effect.
    ///
    /// A log that forgot an entry has enough of them to forget the oldest whatever the limit; at the largest limit it
    /// forgets none that the original request kept.
    pub fn quotas(&self) -> QuotaList {
        let limit = if self.forgets { 0 } else { MAX_SAFE_INTEGER };
        self.windows.iter().filter_map(|window| Quota::new(limit, *window)).collect()
    }

    /// The time of that request.
    pub fn time(&self, clock: UnixMs) -> Time {
        Time { clock, at: Some(self.at) }
    }
}

impl Limiter {
    /// Counts the units, or gives them back. An error changes nothing.
    pub fn apply(&mut self, counted: &Counted, clock: UnixMs) -> Result<Outcome, TakeError> {
        let Counted { algorithm, units, .. } = *counted;
        let decision = self.take(algorithm, &counted.quotas(), units, true, counted.time(clock))?;
        Ok(decision.outcome)
    }
}
