//! What a request did to a key, and how a copy of the key does the same: without deciding again.

use super::algorithm::Algorithm;
use super::decision::{Mismatch, Mode, Request};
use super::lifetime::{MoveBack, Outcome, TimeSource};
use super::quota::{Cost, MAX_SAFE_INTEGER, Quota, QuotaList, Time, UnixMs, WindowMs};
use super::state::Limiter;

/// What a request did to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It counted units, or gave some back.
    Recorded(Recorded),
    /// It counted nothing, but moved the key in time.
    Moved(Moved),
    /// It gave back the last unit that counted, so the key was deleted.
    Deleted,
}

impl Effect {
    /// The key expires at another time, and nothing else.
    pub fn expires_at(at: UnixMs) -> Effect {
        Effect::Moved(Moved { back: None, expires: Some(at) })
    }
}

/// How a key moved in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// How it was moved back, before anything was counted.
    pub back: Option<MoveBack>,
    /// When it expires from then on; `None` if that did not change.
    pub expires: Option<UnixMs>,
}

/// Units that were counted or given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Units counted, or given back if negative; not 0.
    pub units: Cost,
    /// The time as of which that was done.
    pub at: UnixMs,
    /// The windows in which that was done: at least one quota, each with a different window. The limits are those of the request
    /// only if the algorithm [counts by them](Algorithm::counts_by_limit). Else they follow from `forgot`: [`Recorded::stand_in`].
    pub quotas: QuotaList,
    /// Whether a log forgot its oldest entry meanwhile, since `FORCE` had counted far more than the limit.
    pub forgot: bool,
    /// Whether somebody waits for the units: `WITHIN` counted them in a bucket that lacked them.
    pub awaited: bool,
    /// How the key moved in time.
    pub moved: Moved,
}

impl Recorded {
    /// What a request has counted or given back. [`Pending::effect`] adds how the key moved in time.
    #[inline(always)]
    pub fn of(algorithm: Algorithm, quotas: &[Quota], cost: Cost, outcome: &Outcome) -> Recorded {
        let forgot = outcome.change.forgot;
        let told = |quota: &Quota| match algorithm.counts_by_limit() {
            true => *quota,
            false => Recorded::stand_in(quota.window(), forgot),
        };
        // How far a bucket fills up depends on all that is given back, not only on what was missing.
        let told_whole = algorithm.counts_by_limit() && cost.get() < 0;
        Recorded {
            algorithm,
            units: if told_whole { cost } else { cost.at_most(outcome.change.units) },
            at: outcome.as_of,
            quotas: quotas.iter().map(told).collect(),
            forgot,
            awaited: outcome.change.awaited,
            moved: Moved::default(),
        }
    }

    /// The quota by which a copy counts if it is not told the limit. Only what a log forgets depends on that: with a limit of 0 it
    /// forgets an entry, as the request did; with the largest, none that the request kept.
    #[inline(always)]
    pub fn stand_in(window: WindowMs, forgot: bool) -> Quota {
        Quota::new(if forgot { 0 } else { MAX_SAFE_INTEGER }, window).expect("both are limits")
    }

    /// The request by which a copy does the same, at the recorded time alone. Its clock reads 1970: on a copy nothing has ended
    /// until the copy is told so.
    #[inline(always)]
    fn request(&self) -> Request<'_> {
        let Recorded { algorithm, units: cost, ref quotas, .. } = *self;
        let time = Time { clock: UnixMs::default(), at: Some(self.at) };
        Request { algorithm, quotas, cost, mode: Mode::Force, time }
    }

    #[cold]
    fn move_back(&self, limiter: &mut Limiter, to: MoveBack) -> Result<(), Mismatch> {
        self.check(limiter)?;
        limiter.move_back(to);
        Ok(())
    }

    /// Whether the limiter can count the units, or give them back. Changes nothing.
    ///
    /// # Errors
    ///
    /// The key is counted by another algorithm, or cannot hold the windows.
    #[inline]
    pub fn check(&self, limiter: &Limiter) -> Result<(), Mismatch> {
        limiter.is_limited(self.request()).map(drop)
    }

    /// Counts the units, or gives them back. `is_new`: there was no such key.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check). An error changes nothing.
    #[inline(always)]
    pub fn apply(&self, limiter: &mut Limiter, is_new: bool) -> Result<Pending, Mismatch> {
        if let Some(to) = self.moved.back {
            self.move_back(limiter, to)?;
        }
        let outcome = limiter.record(self.request(), self.awaited)?;
        let changed = outcome.changed();
        limiter.set_source(TimeSource::Unknown);
        let expires = match self.moved.expires {
            // The key was there when the request came, but is missing here. Without an expiry it would live forever.
            None if is_new => Some(self.at.plus_up_to_max(limiter.lifetime_ms(self.at))),
            told => told,
        };
        let moved = Moved { expires: expires.filter(|_| changed || !is_new), ..self.moved };
        Ok(Pending { changed, emptied: outcome.emptied, moved })
    }
}

/// What is still to be done after a request or an effect has changed the limiter of a key: see [`key`](super::key).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Whether anything was counted or given back.
    pub changed: bool,
    /// Whether nothing is left, so that the key is to be deleted.
    pub emptied: bool,
    /// How the key moved in time. Of a move back, nothing is to be done but to tell copies.
    pub moved: Moved,
}

impl Pending {
    /// Whether anything was done to the key.
    pub fn is_any(&self) -> bool {
        self.changed | self.moved.back.is_some() || self.moved.expires.is_some()
    }

    /// Whether copies are told of it before it is done: of a deletion they are told after it.
    pub fn is_told_first(&self) -> bool {
        self.is_any() && !self.emptied
    }

    /// What copies are told of it: how the key moved, and what was counted or given back.
    #[inline(always)]
    pub fn effect(&self, recorded: impl FnOnce() -> Recorded) -> Effect {
        let Pending { changed, emptied, moved } = *self;
        match (emptied, changed) {
            (true, _) => Effect::Deleted,
            (false, false) => Effect::Moved(moved),
            (false, true) => Effect::Recorded(Recorded { moved, ..recorded() }),
        }
    }
}
