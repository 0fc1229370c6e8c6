//! Refusals that are repeated without asking.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Decision;
use crate::clock::{Clock, Time};
use crate::local::{MAX_KEYS, Refusals};

/// The last refusals of requests, by what they asked for without the costs.
#[derive(Debug)]
pub(crate) struct Memory {
    time: Time,
    remember: Duration,
    refusals: Mutex<Refusals>,
}

impl Memory {
    pub fn new(remember: Duration, clock: Clock) -> Memory {
        let max = const { NonZeroUsize::new(MAX_KEYS).expect("some keys") };
        let refusals = Mutex::new(Refusals::new(remember, max));
        Memory { time: Time::of(clock), remember, refusals }
    }

    pub fn remember(&self) -> Duration {
        self.remember
    }

    /// The refusal that holds for a request.
    pub fn refusal(&self, request: &[u8], costs: &[i64]) -> Option<Decision> {
        self.refusals().known(self.time.now(), request, costs)
    }

    /// Remembers what was decided, if it refused.
    pub fn decided(&self, request: &[u8], costs: &[i64], decision: &Decision) {
        self.refusals().remember(self.time.now(), request, costs, decision);
    }

    /// Units were given back that may have been in the way.
    pub fn forget(&self, request: &[u8]) {
        self.refusals().forget(request);
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
