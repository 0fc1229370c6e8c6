//! Warnings about requests that Redis does not decide.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::RedisError;

use crate::lines::is_away;
use crate::locked;

const INTERVAL: Duration = Duration::from_secs(1);

/// Warns at most once a second, with the number of requests since the last warning. That Redis is away is no matter of single
/// requests: the log tells it once, by [`Nodes`](super::away::Nodes).
#[derive(Clone, Default)]
pub(crate) struct Teller(Arc<Mutex<Log>>);

#[derive(Default)]
struct Log {
    /// Requests that failed since the last warning.
    requests: u64,
    reason: String,
    warned: Option<Instant>,
}

impl Teller {
    /// Tells of an error. With `None`, a request was decided; then failures since the last warning are told if it is time.
    pub fn tell(&self, error: Option<&RedisError>) {
        if error.is_some_and(is_away) {
            return;
        }
        let mut log = locked(&self.0);
        if let Some(error) = error {
            log.requests += 1;
            log.reason = error.to_string();
        }
        if log.requests > 0 && log.warned.is_none_or(|warned| warned.elapsed() >= INTERVAL) {
            log.warned = Some(Instant::now());
            let requests = mem::take(&mut log.requests);
            tracing::warn!("Redis does not decide: {} (requests: {requests})", log.reason);
        }
    }
}
