//! Warnings that Redis cannot be asked, however many requests meet that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

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
        if let Some((requests, reason)) = self.due(reason, Instant::now()) {
            tracing::warn!("cannot ask for the limit: {reason} (requests: {requests})");
        }
    }

    /// What to warn of now, if it is time.
    fn due(&self, reason: Option<String>, now: Instant) -> Option<(u64, String)> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.reason = reason.unwrap_or_else(|| last.reason.clone());
        if last.warned.is_some_and(|warned| now.duration_since(warned) < INTERVAL) {
            return None;
        }
        let requests = self.requests.swap(0, Ordering::Relaxed);
        (requests > 0).then(|| {
            last.warned = Some(now);
            (requests, last.reason.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_one_second_are_told_together_and_those_of_the_last_one_when_redis_is_back() {
        let log = AwayLog::default();
        let start = Instant::now();
        let fail = |ms| {
            log.requests.fetch_add(1, Ordering::Relaxed);
            log.due(Some(format!("reason {ms}")), start + Duration::from_millis(ms))
        };
        assert_eq!(fail(0), Some((1, "reason 0".into())));
        assert_eq!(fail(1), None);
        assert_eq!(fail(999), None);
        assert_eq!(fail(1_000), Some((3, "reason 1000".into())));
        assert_eq!(fail(1_500), None);
        assert_eq!(log.due(None, start + Duration::from_millis(1_999)), None);
        assert_eq!(log.due(None, start + Duration::from_secs(2)), Some((1, "reason 1500".into())));
        assert_eq!(log.due(None, start + Duration::from_secs(9)), None);
    }
}
