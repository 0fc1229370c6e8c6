//! What a request asks of a key.

use std::sync::Arc;
use std::time::Duration;

use crate::commands::{Algorithm, Quota, Verdict};

/// How a key is counted and leased.
#[derive(Clone, Debug)]
pub struct Rules {
    pub(crate) algorithm: Algorithm,
    pub(crate) quotas: Vec<Quota>,
    smallest_limit: u64,
    /// How long a lease lasts.
    pub(crate) lease: Duration,
    /// The largest lease.
    pub(crate) units: u64,
    /// Algorithm and quotas as bytes. A key is remembered by them and its name.
    pub(super) tag: Vec<u8>,
}

impl Rules {
    /// Leases have at most `units`, and last for `lease`, at most for a twentieth of the shortest window.
    #[must_use]
    pub fn new(algorithm: Algorithm, quotas: &[Quota], lease: Duration, units: u64) -> Rules {
        let words = quotas.iter().map(|quota| format!("{algorithm:?}{quota}")).collect::<Vec<_>>();
        let mut rules = Rules {
            algorithm,
            quotas: quotas.to_vec(),
            smallest_limit: quotas.iter().map(|quota| quota.limit).min().unwrap_or_default(),
            lease,
            units,
            tag: [words.join(","), " ".into()].concat().into_bytes(),
        };
        rules.set_lease(lease);
        rules
    }

    pub(crate) fn set_lease(&mut self, lease: Duration) {
        let longest = self.quotas.iter().map(|quota| quota.window / 20).min().unwrap_or_default();
        self.lease = Duration::from_millis(lease.min(longest).as_millis() as u64);
    }

    /// Whether no wait helps a request of this cost.
    pub(super) fn is_hopeless(&self, cost: i64) -> bool {
        cost > 0 && cost.unsigned_abs() > self.smallest_limit
    }
}

/// What a request asks of one key.
#[derive(Clone, Debug)]
pub struct Share {
    pub key: Arc<[u8]>,
    pub rules: Arc<Rules>,
    pub cost: i64,
}

/// Names a request of this process.
pub type RequestId = u64;

/// The longest wait of the rows that refuse. `None` if none refuses, `Some(None)` if no wait helps.
pub(super) fn longest_wait(rows: &[Verdict]) -> Option<Option<Duration>> {
    let waits = rows.iter().filter(|row| row.limited).map(|row| row.retry_after.unwrap_or(Duration::MAX));
    waits.max().map(|wait| Some(wait).filter(|wait| *wait < Duration::MAX))
}
