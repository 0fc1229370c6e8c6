//! A limiter that makes most decisions without asking the server.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisResult;

use super::asker::{Asker, AskerSettings};
use crate::commands::{Algorithm, Clock, Quota, Verdict, check};
use crate::keys::{Rules, Share};
use crate::lines::Redis;

/// A limiter for hot keys and floods: it leases units, and remembers refusals.
///
/// Of a busy key, up to [`units`](Leases::units) are counted ahead, and then handed out in this process without asking. So
/// at most units x processes more pass in a window than the quotas allow. A quiet key is decided exactly. A refusal is
/// repeated until its wait is over, at most for a second.
///
/// Clones share leases and refusals. Before the process ends, [`close`](Leases::close) gives back what is left.
#[derive(Clone, Debug)]
#[must_use]
pub struct Leases {
    rules: Arc<Rules>,
    asker: Asker,
}

impl Leases {
    /// Leases at most a hundredth of the smallest limit, for 100 ms, and remembers refusals for a second.
    ///
    /// # Panics
    ///
    /// If the server would refuse the quotas: 1 to 8 with different windows.
    pub fn new(client: impl Into<Redis>, algorithm: Algorithm, quotas: impl AsRef<[Quota]>) -> Leases {
        let quotas = quotas.as_ref();
        if let Err(why) = check(quotas, algorithm == Algorithm::Fixed) {
            panic!("{why}");
        }
        let units = quotas.iter().map(|quota| quota.limit).min().unwrap_or_default() / 100;
        let rules = Rules { algorithm, quotas: quotas.to_vec(), ttl: Duration::from_millis(100), units };
        Leases { rules: rules.into(), asker: Asker::new(client.into()) }.remember(Duration::from_secs(1))
    }

    /// Starts over: leases and remembered refusals belong to the old settings.
    fn anew(self, change: impl FnOnce(&mut AskerSettings)) -> Leases {
        Leases { asker: self.asker.with(change), ..self }
    }

    /// The largest lease of a key. With 0 nothing is leased.
    pub fn units(mut self, units: u64) -> Leases {
        Arc::make_mut(&mut self.rules).units = units;
        self.anew(|_| {})
    }

    /// How long a lease lasts, at most a twentieth of the shortest window. Then what is left is given back.
    pub fn ttl(mut self, ttl: Duration) -> Leases {
        Arc::make_mut(&mut self.rules).ttl = ttl;
        self.anew(|_| {})
    }

    /// How long a refusal is repeated without asking, at most until its wait is over.
    pub fn remember(self, remember: Duration) -> Leases {
        self.anew(|settings| settings.remember = remember)
    }

    /// Decides by this clock instead of those of the server and of this process. Tests use it to move time.
    pub fn clock(self, clock: impl Into<Clock>) -> Leases {
        self.anew(|settings| settings.clock = Some(clock.into()))
    }

    /// Takes units from the lease of the key, or from the server.
    ///
    /// A negative cost gives units back, 0 only looks; both always ask the server.
    ///
    /// # Errors
    ///
    /// If the server replies with an error, or is silent for the [timeout](Redis::timeout). Fails at once while it is away.
    pub async fn take(&self, key: impl AsRef<[u8]>, cost: i64) -> RedisResult<Verdict> {
        let key = key.as_ref();
        if let Some(verdict) = self.asker.known(key, &self.rules, cost) {
            return Ok(verdict);
        }
        let share = Share { key: key.into(), rules: self.rules.clone(), cost };
        let (held, answer) = self.asker.take(vec![share]).await;
        held.keep();
        answer.map(|answer| answer.verdict())
    }

    /// Gives back all leases, and waits for the replies that are due, at most 5 timeouts. Nothing is leased any more.
    pub async fn close(&self) {
        self.asker.close().await;
    }
}
