//! Warnings that Redis cannot be asked, however many requests meet that.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::link::locked;

const INTERVAL: Duration = Duration::from_secs(1);

/// Warns at most once a second, with the number of requests since the last warning.
#[derive(Debug, Default)]
pub(crate) struct AwayLog {
    /// Those that no warning has told of yet.
    requests: AtomicU64,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    reason: String,
    warned: Option<Instant>,
}

impl AwayLog {
    /// A request could not ask.
    pub fn failed(&self, reason: String) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.warn(Some(reason));
    }

    /// A request could ask: what is left of an outage is told.
    pub fn worked(&self) {
        if self.requests.load(Ordering::Relaxed) > 0 {
            self.warn(None);
        }
    }

    fn warn(&self, reason: Option<String>) {
        let (mut last, now) = (locked(&self.last), Instant::now());
        last.reason = reason.unwrap_or_else(|| last.reason.clone());
        if last.warned.is_some_and(|warned| now.duration_since(warned) < INTERVAL) {
            return;
        }
        let requests = self.requests.swap(0, Ordering::Relaxed);
        if requests > 0 {
            last.warned = Some(now);
            tracing::warn!("cannot ask for the limit: {} (requests: {requests})", last.reason);
        }
    }
}
