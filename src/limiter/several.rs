//! A request about several keys: all of them allow it, or nothing is counted in any.

use smallvec::SmallVec;

use super::{Algorithm, Cost, Decided, Limiter, Outcome, Quota, Rows, TakeError, Tiers, Time};

/// What is requested of one key.
pub struct KeyRequest<'a> {
    /// The key's limiter.
    pub limiter: &'a mut Limiter,
    /// The algorithm named.
    pub algorithm: Algorithm,
    /// The tiers.
    pub quotas: &'a [Quota],
    /// Units to take, or to give back if negative.
    pub cost: Cost,
    /// Room for what is looked up.
    pub tiers: &'a mut Tiers,
}

/// A value for each key.
type Keys<T> = SmallVec<[T; 4]>;

/// A decided request. No limiter can change before it is committed or dropped.
#[must_use = "it is not counted yet"]
pub struct Several<'a> {
    keys: Keys<Decided<'a>>,
    limited: bool,
}

/// Decides. Changes nothing.
pub fn decide<'a>(
    requests: impl IntoIterator<Item = KeyRequest<'a>>,
    time: Time,
) -> Result<Several<'a>, TakeError> {
    let mut several = Several { keys: Keys::new(), limited: false };
    for KeyRequest { limiter, algorithm, quotas, cost, tiers } in requests {
        let decided = limiter.decide(algorithm, quotas, cost, time, tiers)?;
        several.limited |= decided.is_limited();
        several.keys.push(decided);
    }
    Ok(several)
}

impl Several<'_> {
    /// Whether a key refuses.
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// Counts the units in every key, or gives them back, if all keys allow it or if `force` is set. Otherwise leaves every
    /// limiter as it is.
    pub fn settle(self, force: bool) -> Finished {
        let counts = force || !self.limited;
        let mut finished = Finished { keys: Keys::new(), rows: Rows::new() };
        for decided in self.keys {
            let (limited, first_row) = (decided.limited, finished.rows.len());
            let outcome = decided.finish(counts, &mut finished.rows).outcome;
            finished.keys.push(FinishedKey { limited, outcome, first_row });
        }
        finished
    }
}

/// A request that was counted in every key, or in none.
pub struct Finished {
    /// The keys, in the order of the requests.
    pub keys: Keys<FinishedKey>,
    /// The verdicts on all tiers, in the order of the keys.
    pub rows: Rows,
}

/// What happened to one key.
#[derive(Clone, Copy, Debug)]
pub struct FinishedKey {
    /// Whether it refuses the request.
    pub limited: bool,
    /// The effects.
    pub outcome: Outcome,
    /// The index of its first tier in the rows.
    pub first_row: usize,
}
