//! Decisions that are remembered as a whole.

use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;

use super::{Digests, whole_ms};
use crate::Decision;

/// Decisions that refused, by what was asked for: keys, algorithms and limits, without costs.
#[derive(Debug)]
pub struct Refusals {
    remember: Duration,
    digests: Digests,
    /// The least recently used goes first.
    decisions: LruCache<Vec<u8>, Refusal>,
}

#[derive(Debug)]
struct Refusal {
    decision: Decision,
    costs: Vec<i64>,
    replied: Duration,
    until: Duration,
}

impl Refusals {
    /// Repeats a refusal for so long at most, and remembers at most `max` decisions.
    #[must_use]
    pub fn new(remember: Duration, max: NonZeroUsize) -> Refusals {
        Refusals { remember, digests: Digests::default(), decisions: LruCache::sparse(max) }
    }

    /// The refusal that holds for this request.
    ///
    /// It does if every row that refused costs as much or more now. A request for which no wait helps is another one.
    pub fn known(&mut self, now: Duration, request: &[u8], costs: &[i64]) -> Option<Decision> {
        let Refusal { decision, costs: refused, replied, until } =
            self.decisions.get(&*self.digests.name(request))?;
        let holds = costs.len() == refused.len()
            && decision.rows.iter().zip(costs).zip(refused).all(|((row, cost), refused)| {
                let is_hopeless = *cost > 0 && cost.unsigned_abs() > row.limit;
                (!row.limited || cost >= refused) && is_hopeless == row.is_hopeless()
            });
        (now < *until && holds).then(|| later(decision, whole_ms(now - *replied)))
    }

    /// The newest decision counts: what was remembered before is forgotten.
    pub fn remember(&mut self, now: Duration, request: &[u8], costs: &[i64], decision: &Decision) {
        let remember = match decision.retry_after {
            Some(wait) => self.remember.min(wait),
            None => self.remember,
        };
        if decision.limited && !remember.is_zero() {
            let refusal = Refusal {
                decision: decision.clone(),
                costs: costs.to_vec(),
                replied: now,
                until: now.saturating_add(remember),
            };
            self.decisions.put(self.digests.name(request).into_owned(), refusal);
        } else {
            self.forget(request);
        }
    }

    /// What refused this request may be over.
    pub fn forget(&mut self, request: &[u8]) {
        self.decisions.pop(&*self.digests.name(request));
    }
}

/// What is told of a decision after so long.
fn later(decision: &Decision, gone: Duration) -> Decision {
    let mut decision = decision.clone();
    decision.retry_after = decision.retry_after.map(|wait| wait.saturating_sub(gone));
    for row in &mut decision.rows {
        row.retry_after = row.retry_after.map(|wait| wait.saturating_sub(gone));
        row.reset_after = row.reset_after.saturating_sub(gone);
    }
    decision
}
