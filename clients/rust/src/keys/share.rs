//! What a request asks of a key.

use std::sync::Arc;
use std::time::Duration;

use crate::commands::{Algorithm, BLOCK, Quota, Verdict};

/// How a key is counted and leased.
#[derive(Clone, Debug)]
pub struct Rules {
    pub algorithm: Algorithm,
    pub quotas: Vec<Quota>,
    /// How long a lease lasts, at most a twentieth of the shortest window.
    pub ttl: Duration,
    /// The largest lease.
    pub units: u64,
}

impl Rules {
    /// Rules without leases.
    pub(crate) fn new(algorithm: Algorithm, quotas: Vec<Quota>) -> Arc<Rules> {
        Arc::new(Rules { algorithm, quotas, ttl: Duration::ZERO, units: 0 })
    }

    pub(super) fn ttl(&self) -> Duration {
        let longest = self.quotas.iter().map(|quota| quota.window / 20).min().unwrap_or_default();
        Duration::from_millis(self.ttl.min(longest).as_millis() as u64)
    }

    /// Whether the last quota is that of a block, which refuses from then on whom the others have refused.
    pub(super) fn blocks(&self) -> bool {
        self.quotas.last().is_some_and(|quota| quota.limit == BLOCK)
    }

    /// Whether no wait helps a request of this cost.
    pub(crate) fn is_hopeless(&self, cost: i64) -> bool {
        cost > 0 && self.quotas.iter().any(|quota| cost.unsigned_abs() > quota.limit)
    }
}

/// What a request asks of one key.
#[derive(Clone, Debug)]
pub struct Share {
    pub key: Arc<[u8]>,
    pub rules: Arc<Rules>,
    pub cost: i64,
}

/// The longest wait of the rows that refuse. `None` if none refuses, `Some(None)` if no wait helps.
pub(crate) fn longest_wait(rows: &[Verdict]) -> Option<Option<Duration>> {
    let waits = rows.iter().filter(|row| row.limited).map(|row| row.retry_after.unwrap_or(Duration::MAX));
    waits.max().map(|wait| Some(wait).filter(|wait| *wait < Duration::MAX))
}
