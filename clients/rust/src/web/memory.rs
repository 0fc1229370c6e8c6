//! Refusals that are repeated without asking.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Decision;
use crate::local::{MAX_KEYS, Refusals};

/// The last refusals of clients, by one policy.
#[derive(Debug)]
pub(crate) struct Memory {
    started: Instant,
    remember: Duration,
    refusals: Mutex<Refusals>,
}

impl Memory {
    pub fn new(remember: Duration) -> Memory {
        let max = const { NonZeroUsize::new(MAX_KEYS).expect("some keys") };
        let refusals = Mutex::new(Refusals::new(remember.as_millis() as u64, max));
        Memory { started: Instant::now(), remember, refusals }
    }

    pub fn remember(&self) -> Duration {
        self.remember
    }

    /// The refusal that holds for a request of this client. Each quota has the same cost.
    pub fn refusal(&self, client: &str, costs: &[i64]) -> Option<Decision> {
        if self.remember.is_zero() {
            return None;
        }
        self.refusals().known(self.now_ms(), client.as_bytes(), costs)
    }

    /// Remembers what was decided, if it refused.
    pub fn decided(&self, client: &str, costs: &[i64], decision: &Decision) {
        if !self.remember.is_zero() {
            self.refusals().remember(self.now_ms(), client.as_bytes(), costs, decision);
        }
    }

    /// Units of this client were given back.
    pub fn forget(&self, client: &str) {
        if !self.remember.is_zero() {
            self.refusals().forget(client.as_bytes());
        }
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}
