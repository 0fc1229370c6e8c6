//! What a request did to a key, and how a copy of the key does the same: without deciding again.

use arrayvec::ArrayVec;

use super::decision::Request;
use super::{
    Algorithm, Cost, Form, Limiter, MAX_SAFE_INTEGER, MAX_TIERS, Outcome, Quota, QuotaList, TakeError, Time,
    UnixMs, WindowMs,
};

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
    /// Whether a caller named that time, by AT.
    pub at_given: bool,
    /// The windows: at least one, each different.
    pub windows: ArrayVec<WindowMs, MAX_TIERS>,
    /// Whether a log forgot its oldest entry meanwhile, since `FORCE` had counted far more than the limit.
    pub forgets: bool,
}

impl Effect {
    /// The effect of a request that has changed something.
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
            at_given: outcome.at_given,
            windows: quotas.iter().map(|quota| quota.window()).collect(),
            forgets: outcome.change.forgot,
        }
    }

    /// The tiers of a forced request with the same effect.
    ///
    /// A log that forgot an entry has so many that a limit of 0 makes it forget one; at the largest limit it forgets none
    /// that the original request left.
    fn quotas(&self) -> QuotaList {
        let limit = if self.forgets { 0 } else { MAX_SAFE_INTEGER };
        self.windows.iter().filter_map(|window| Quota::new(limit, *window)).collect()
    }

    /// The time of that request.
    pub fn time(&self, clock: UnixMs) -> Time {
        Time { clock, at: Some(self.at) }
    }
}

/// Units that a limiter can count, or give back.
#[must_use = "they are not counted yet"]
pub struct Accepted<'a> {
    limiter: &'a mut Limiter,
    counted: &'a Counted,
}

impl Limiter {
    /// Checks that it can count the units, or give them back. Changes nothing.
    #[inline]
    pub fn accept<'a>(&'a mut self, counted: &'a Counted) -> Result<Accepted<'a>, TakeError> {
        self.check_counted_by(counted.algorithm)?;
        if let Form::Counters(counters) = self.form() {
            let request = Request { cost: counted.units, time: counted.time(counted.at) };
            request.check_windows_fit(&counters, &counted.quotas())?;
        }
        Ok(Accepted { limiter: self, counted })
    }
}

impl Accepted<'_> {
    /// Counts the units, or gives them back.
    #[inline]
    pub fn apply(self, clock: UnixMs) -> Outcome {
        let Accepted { limiter, counted } = self;
        let Counted { algorithm, units, at_given, .. } = *counted;
        match limiter.decide_and_commit(algorithm, &counted.quotas(), units, true, counted.time(clock)) {
            Ok(decision) => Outcome {
                emptied: decision.outcome.changed() && limiter.is_empty(),
                at_given,
                ..decision.outcome
            },
            Err(_) => unreachable!("it was accepted"),
        }
    }
}
