//! The time by which a process decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(feature = "tokio-comp"))]
use std::time::Instant;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(feature = "tokio-comp")]
use tokio::time::Instant;

/// A clock that the application has set, if it has. Else the clocks of the server and of this process count.
#[derive(Clone, Default)]
pub(crate) struct Clock(Option<Arc<dyn Fn() -> SystemTime + Send + Sync>>);

impl Clock {
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Clock {
        Clock(Some(Arc::new(now)))
    }

    /// This clock if the application has set it, else `other`.
    pub fn or(self, other: Clock) -> Clock {
        Clock(self.0.or(other.0))
    }

    /// The time to name in a command. `None` if the server's clock decides.
    pub fn at(&self) -> Option<SystemTime> {
        self.0.as_ref().map(|now| now())
    }
}

/// Time that never runs back. Only differences count: its beginning is arbitrary.
pub(crate) struct Time {
    clock: Clock,
    started: Instant,
    newest_ns: AtomicU64,
}

impl Time {
    pub fn of(clock: Clock) -> Time {
        Time { clock, started: Instant::now(), newest_ns: AtomicU64::new(0) }
    }

    pub fn now(&self) -> Duration {
        let Some(at) = self.clock.at() else { return self.started.elapsed() };
        let now_ns = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        Duration::from_nanos(self.newest_ns.fetch_max(now_ns, Ordering::Relaxed).max(now_ns))
    }
}
