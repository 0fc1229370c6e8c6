//! Warnings about requests that Redis does not decide.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::RedisError;

use crate::lines::is_away;
use crate::locked;

const INTERVAL: Duration = Duration::from_secs(1);

/// Calls the hook with each error, or warns at most once a second with the number of requests since the last warning. That
/// Redis is away is no matter of single requests: the log tells it once, by [`Nodes`](super::away::Nodes).
#[derive(Clone, Default)]
pub(crate) struct Teller {
    pub on_error: Option<OnError>,
    log: Arc<Log>,
}

type OnError = Arc<dyn Fn(&RedisError) + Send + Sync>;

#[derive(Default)]
struct Log {
    /// Requests that failed since the last warning.
    requests: AtomicU64,
    /// The reason of the last failure, and the time of the last warning.
    last: Mutex<(String, Option<Instant>)>,
}

impl Teller {
    pub fn tell(&self, error: Option<&RedisError>) {
        match (error, &self.on_error) {
            (None, _) => self.log.warn(0, None),
            (Some(error), Some(tell)) => tell(error),
            (Some(error), None) if is_away(error) => {}
            (Some(error), None) => self.log.warn(1, Some(error)),
        }
    }
}

impl Log {
    /// Warns if it is time. A decided request calls this too, so that failures since the last warning are told.
    fn warn(&self, requests: u64, error: Option<&RedisError>) {
        if self.requests.fetch_add(requests, Ordering::Relaxed) + requests == 0 {
            return;
        }
        let (mut last, now) = (locked(&self.last), Instant::now());
        let (reason, warned) = &mut *last;
        if let Some(error) = error {
            *reason = error.to_string();
        }
        if warned.is_none_or(|warned| now.duration_since(warned) >= INTERVAL) {
            *warned = Some(now);
            let requests = self.requests.swap(0, Ordering::Relaxed);
            tracing::warn!("Redis does not decide: {reason} (requests: {requests})");
        }
    }
}
