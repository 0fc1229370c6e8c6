//! The limits of this process, while Redis is away.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError};

use crate::asker::Asker;
use crate::clock::Clock;
use crate::{MemoryLimiter, Redis, locked};

/// How long Redis is not asked after it was away; then one request asks.
const PAUSE: Duration = Duration::from_millis(500);

/// Decides by the same policies and the same rules, each process by itself. Clones share it.
#[derive(Clone)]
pub(crate) struct Local {
    pub asker: Asker,
    away: Arc<Mutex<Option<Away>>>,
}

/// Since when no request could ask, and when the next one does.
struct Away {
    since: Instant,
    again: Instant,
}

/// Is told why limits are local from now on, or by none that Redis decides again.
pub(crate) type OnLocal = dyn Fn(Option<&RedisError>) + Send + Sync;

impl Local {
    pub fn new(clock: Clock, remember: Duration) -> Local {
        let asker = Asker::new(Redis::from(MemoryLimiter::new()), clock, remember);
        Local { asker, away: Arc::default() }
    }

    /// Since when a request asks, if it does: while Redis is away, one at a time finds out whether it is back. Of a
    /// cluster other nodes may be well.
    pub fn asks(&self, is_cluster: bool) -> Option<Instant> {
        let now = Instant::now();
        if let Some(away) = locked(&self.away).as_mut().filter(|_| !is_cluster) {
            if now < away.again {
                return None;
            }
            away.again = now + PAUSE;
        }
        Some(now)
    }

    /// What became of a request that asked then.
    pub fn note(&self, asked: Instant, error: Option<&RedisError>, on_local: Option<&OnLocal>) {
        let is_news = {
            let mut away = locked(&self.away);
            let (was_away, now) = (away.is_some(), Instant::now());
            match error {
                None => drop(away.take_if(|away| away.since + PAUSE <= asked)),
                // A server that answers is asked by the next request too.
                Some(error) if error.kind() != ErrorKind::Io => {}
                Some(_) => *away = Some(Away { since: now, again: now + PAUSE }),
            }
            was_away != away.is_some()
        };
        match error {
            _ if !is_news => return,
            Some(error) => tracing::warn!("limits are local, as Redis is away: {error}"),
            None => tracing::warn!("Redis decides again"),
        }
        if let Some(tell) = on_local {
            tell(error);
        }
    }
}
