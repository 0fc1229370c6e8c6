//! What a request did to a key, and how a copy of the key does the same: without deciding again.

use arrayvec::ArrayVec;

use super::decision::Request;
use super::lifetime::{TimeSource, untold_expiry};
use super::{
    Algorithm, Cost, Limiter, MAX_SAFE_INTEGER, MAX_TIERS, Outcome, Quota, QuotaList, TakeError, Time,
    UnixMs, WindowMs,
};

/// What a request did to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It counted units, or gave some back.
    Counted(Counted),
    /// It changed nothing that counts, but the clock has stepped back so far that the key now expires at this time.
    Moved(UnixMs),
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
    /// When the key expires from then on.
    pub expires: Expires,
}

/// When a key expires, as its copies are told. They do not work it out: only the server that decides knows where the
/// time to live that the key had came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expires {
    /// When it did before.
    AsBefore,
    /// At this time.
    At(UnixMs),
    /// Version 1.1.0 did not tell.
    Untold,
}

impl From<Option<UnixMs>> for Expires {
    /// The time that a request moved the expiry to, if it did.
    #[inline(always)]
    fn from(moved: Option<UnixMs>) -> Expires {
        moved.map_or(Expires::AsBefore, Expires::At)
    }
}

impl Counted {
    /// What a request has counted or given back, in a key that expires when it did before.
    #[inline(always)]
    pub fn of(algorithm: Algorithm, quotas: &[Quota], cost: Cost, outcome: &Outcome) -> Counted {
        Counted {
            algorithm,
            units: cost.at_most(outcome.change.units),
            at: outcome.as_of,
            windows: quotas.iter().map(|quota| quota.window()).collect(),
            forgets: outcome.change.forgot,
            expires: Expires::AsBefore,
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

    /// That request. It counts by its time alone, whatever the clock of the copy.
    fn request(&self) -> Request {
        Request { cost: self.units, time: Time { clock: self.at, at: Some(self.at) } }
    }
}

/// What a request or an effect did to a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Whether anything was counted or given back.
    pub changed: bool,
    /// Whether nothing is left.
    pub emptied: bool,
    /// When the key expires, if that changes.
    pub moved: Option<UnixMs>,
}

impl Applied {
    /// Whether it did anything.
    pub fn is_any(&self) -> bool {
        self.changed || self.moved.is_some()
    }

    /// What copies are told of it; `counted` is what was counted or given back.
    #[inline(always)]
    pub fn effect(&self, counted: impl FnOnce() -> Counted) -> Effect {
        match self.moved {
            _ if self.emptied => Effect::Deleted,
            Some(moved) if !self.changed => Effect::Moved(moved),
            moved => Effect::Counted(Counted { expires: moved.into(), ..counted() }),
        }
    }
}

/// A key before an effect that counts units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Whether there was no such key.
    pub is_new: bool,
    /// When it was to expire. Matters only if the effect does not tell: [`Expires::Untold`].
    pub expires_at: Option<UnixMs>,
}

/// Units that a limiter can count, or give back.
#[must_use = "they are not counted yet"]
pub struct Accepted<'a> {
    limiter: &'a mut Limiter,
    counted: &'a Counted,
}

impl Limiter {
    /// Checks that it can count the units, or give them back. Changes nothing that counts.
    #[inline]
    pub fn accept<'a>(&'a mut self, counted: &'a Counted) -> Result<Accepted<'a>, TakeError> {
        self.check(counted.algorithm, &counted.quotas(), counted.request())?;
        Ok(Accepted { limiter: self, counted })
    }
}

impl Accepted<'_> {
    /// Counts the units, or gives them back. The `clock` is read only if the effect does not tell when the key expires.
    #[inline]
    pub fn apply(self, before: Before, clock: impl FnOnce() -> UnixMs) -> Applied {
        let Accepted { limiter, counted } = self;
        let Counted { algorithm, units, expires, .. } = *counted;
        let Request { time, .. } = counted.request();
        let Ok(decision) = limiter.decide_and_commit(algorithm, &counted.quotas(), units, true, time) else {
            unreachable!("`accept` has checked it")
        };
        let changed = decision.outcome.changed();
        limiter.set_source(TimeSource::Loaded);
        let moved = match expires {
            Expires::At(at) => Some(at).filter(|_| changed || !before.is_new),
            Expires::AsBefore if !before.is_new => None,
            // A request tells of every key that it creates. Without that, no key may live forever.
            Expires::AsBefore | Expires::Untold => {
                let end_moved = decision.outcome.change.end_moved;
                let lifetime = limiter.lifetime(counted.at, 0);
                untold_expiry(before.expires_at, end_moved, lifetime, clock()).filter(|_| changed)
            }
        };
        Applied { changed, emptied: changed && limiter.is_empty(), moved }
    }
}
