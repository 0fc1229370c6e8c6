//! The time by which a process decides.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// A clock that tests move. Clones are one clock.
///
/// It takes the place of the clocks of the server and of this process wherever there is a `clock`. A function that returns a
/// time converts into one.
///
/// ```
/// # use std::time::{Duration, SystemTime};
/// use redis_rl_client::Clock;
///
/// let clock = Clock::new(SystemTime::UNIX_EPOCH);
/// clock.advance(Duration::from_secs(10));
/// assert_eq!(clock.now(), SystemTime::UNIX_EPOCH + Duration::from_secs(10));
/// ```
#[derive(Clone)]
pub struct Clock(Arc<Hands>);

struct Hands {
    now: Box<dyn Fn() -> SystemTime + Send + Sync>,
    /// How far it was moved.
    ahead_ns: AtomicU64,
}

impl Clock {
    /// A clock that stands at this time until it is moved.
    #[must_use]
    pub fn new(time: SystemTime) -> Clock {
        Clock::from(move || time)
    }

    /// A clock that stands at the present time until it is moved.
    #[must_use]
    pub fn fixed() -> Clock {
        Clock::new(SystemTime::now())
    }

    /// Moves it forward.
    pub fn advance(&self, by: Duration) {
        self.0.ahead_ns.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }

    /// Its time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        (self.0.now)() + Duration::from_nanos(self.0.ahead_ns.load(Ordering::SeqCst))
    }
}

impl<F: Fn() -> SystemTime + Send + Sync + 'static> From<F> for Clock {
    fn from(now: F) -> Clock {
        Clock(Arc::new(Hands { now: Box::new(now), ahead_ns: AtomicU64::new(0) }))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

/// Whether this is a runtime of tokio with timers. tokio tells by a panic alone that one has none.
#[cfg(feature = "leases")]
pub(crate) fn has_timers() -> bool {
    let sleep = || drop(tokio::time::sleep(Duration::ZERO));
    tokio::runtime::Handle::try_current().is_ok() && std::panic::catch_unwind(sleep).is_ok()
}

/// Time that never runs back. Only differences count: its beginning is arbitrary.
#[cfg(feature = "leases")]
pub(crate) struct Time {
    clock: Option<Clock>,
    started: tokio::time::Instant,
    newest_ns: AtomicU64,
}

#[cfg(feature = "leases")]
impl Time {
    /// By this clock, else by that of this process.
    pub fn of(clock: Option<Clock>) -> Time {
        Time { clock, started: tokio::time::Instant::now(), newest_ns: AtomicU64::new(0) }
    }

    pub fn now(&self) -> Duration {
        let Some(clock) = &self.clock else { return self.started.elapsed() };
        let now_ns = clock.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        Duration::from_nanos(self.newest_ns.fetch_max(now_ns, Ordering::Relaxed).max(now_ns))
    }
}
