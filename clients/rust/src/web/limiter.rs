//! Asks for limits on behalf of a web service.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use redis::RedisResult;
use redis::aio::ConnectionLike;

use crate::web::away::AwayLog;
use crate::web::memory::Memory;
use crate::web::policy::MAX_COST;
use crate::web::timeout::ServerTimeout;
use crate::web::{Policy, Refusal};
use crate::{Decision, Leases, RlAsyncCommands};

/// A policy, and the connection to count by it. Clones share both.
///
/// ```no_run
/// # use redis_rl_client::web::{Limiter, Policy, Refusal};
/// # async fn generate(limiter: Limiter<redis::aio::MultiplexedConnection>, prompt: String) -> Result<(), Refusal> {
/// // Reserve an estimate, and settle when the cost is known.
/// let reserved = limiter.take("192.0.2.1", 500).await?;
/// let tokens_used = 420;
/// let admission = limiter.settle(reserved, tokens_used).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Limiter<C> {
    connection: C,
    policy: Arc<Policy>,
    timeout: Arc<ServerTimeout>,
    fail: Fail,
    away: Arc<AwayLog>,
    memory: Arc<Memory>,
    /// None if every request is asked for that no refusal is remembered for.
    leases: Option<Leases<C>>,
}

/// What becomes of requests while Redis is away: no connection, no answer in time, or an error as the answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fail {
    /// They pass: the service stays up, without limits.
    Open,
    /// They are answered 503: what stands behind the service stays protected.
    Closed,
}

/// Text that is neither `open` nor `closed`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InvalidFail(String);

impl fmt::Display for InvalidFail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is neither open nor closed", self.0)
    }
}

impl std::error::Error for InvalidFail {}

/// `open` or `closed`, as from a setting.
impl FromStr for Fail {
    type Err = InvalidFail;

    fn from_str(text: &str) -> Result<Fail, InvalidFail> {
        match text {
            "open" => Ok(Fail::Open),
            "closed" => Ok(Fail::Closed),
            _ => Err(InvalidFail(text.to_owned())),
        }
    }
}

/// A request that may go on.
#[derive(Clone, Debug)]
pub struct Admission {
    client: String,
    taken: i64,
    decision: Option<Decision>,
    fields: HeaderMap,
}

impl Admission {
    /// What was decided; none while Redis is away.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// The header fields for the response; none while Redis is away.
    pub fn fields(&self) -> &HeaderMap {
        &self.fields
    }

    /// Adds the header fields to those of a response.
    pub fn write_fields(self, headers: &mut HeaderMap) {
        for (name, value) in &self.fields {
            // Both are lists: another layer may have a policy of its own.
            headers.append(name, value.clone());
        }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Limiter<C> {
    /// Waits at most 100 ms for Redis, and lets requests pass while it is away.
    pub fn new(connection: C, policy: Policy) -> Limiter<C> {
        Limiter {
            connection,
            policy: Arc::new(policy),
            timeout: Arc::new(ServerTimeout::new(Duration::from_millis(100))),
            fail: Fail::Open,
            away: Arc::default(),
            memory: Arc::new(Memory::new(Duration::ZERO)),
            leases: None,
        }
    }

    /// How long Redis may take to answer before it is away.
    ///
    /// That is Redis's time, not this process's: however long the runtime was busy, it reads what has arrived before a
    /// request is given up. While Redis answers other requests, one may take up to ten times as long.
    ///
    /// The connection should have no response timeout of its own: that of redis-rs, 500 ms by default, is a timer of
    /// this process. Use the limiter on the runtime on which its connection was made: it cannot tell whether another one
    /// is busy.
    pub fn timeout(mut self, timeout: Duration) -> Limiter<C> {
        self.timeout = Arc::new(ServerTimeout::new(timeout));
        self
    }

    /// What becomes of requests while Redis is away.
    pub fn fail(mut self, fail: Fail) -> Limiter<C> {
        self.fail = fail;
        self
    }

    /// Repeats a refusal without asking until its wait is over, or until it is so old.
    ///
    /// A flood of refused requests costs Redis one command for each client in that time; a second is a good value. Units
    /// that others give back are seen when it is over. At most 10,000 clients are remembered.
    pub fn remember(mut self, remember: Duration) -> Limiter<C> {
        self.memory = Arc::new(Memory::new(remember));
        self.leases = self.leases.map(|leases| leases.remember(remember));
        self
    }

    /// Leases at most so many units for each client, which are counted ahead and handed out without asking.
    ///
    /// At most that many more than the policy allows pass in a window, for each process: see [`Leases`]. Of several quotas
    /// `ratelimit` then tells of the tightest one alone. End with [`close`](Limiter::close).
    ///
    /// # Panics
    ///
    /// If two quotas have the same limit: a verdict tells them apart by it.
    pub fn lease(mut self, units: u64) -> Limiter<C> {
        let (algorithm, quotas) = (self.policy.counted_by(), self.policy.quotas());
        let limits: HashSet<u64> = quotas.iter().map(|quota| quota.limit).collect();
        assert!(limits.len() == quotas.len(), "a policy with leases needs a different limit in each quota");
        let leases = Leases::new(self.connection.clone(), algorithm, quotas).with_time();
        self.leases = Some(leases.units(units).remember(self.memory.remember()));
        self
    }

    /// Gives back what is leased.
    pub async fn close(&self) {
        if let Some(leases) = &self.leases {
            leases.close().await;
        }
    }

    /// Takes units for a client, of all quotas or of none.
    ///
    /// A negative cost is refused with 500: it would give back what other requests took. See
    /// [`settle`](Limiter::settle).
    pub async fn take(&self, client: impl Into<String>, cost: i64) -> Result<Admission, Refusal> {
        if cost < 0 {
            return Err(Refusal::negative_cost());
        }
        let client = client.into();
        let decision = self.decide(&client, cost).await;
        let fields = match &decision {
            Some(decision) => self.policy.answer(decision)?,
            None if self.fail == Fail::Open => HeaderMap::new(),
            None => return Err(Refusal::away()),
        };
        Ok(Admission { client, taken: cost, decision, fields })
    }

    /// Corrects what was taken to what was used, however late.
    ///
    /// What is given back was counted when it was taken, and nobody else's units are. What is taken in addition is
    /// counted even if it is over the limit, since it has been used. Less than nothing is nothing. The header fields
    /// tell the state thereafter; if Redis is away, that of before.
    pub async fn settle(&self, mut admission: Admission, used: i64) -> Admission {
        let used = used.max(0);
        // Nothing was taken while Redis was away.
        let taken = admission.decision.as_ref().map_or(0, |_| admission.taken);
        let request = self.policy.request(&admission.client, used.saturating_sub(taken)).force();
        let request = match &admission.decision {
            Some(decision) if used < taken => request.at(decision.at),
            _ => request,
        };
        if let Some(settled) = self.ask(self.connection.clone().rl_all(&request)).await {
            if used < taken {
                // A refusal that is remembered may be over.
                self.memory.forget(&admission.client);
            }
            admission.fields = self.policy.fields(&settled);
            admission.taken = used;
            admission.decision = Some(settled);
        }
        admission
    }

    /// None if Redis is away.
    async fn decide(&self, client: &str, cost: i64) -> Option<Decision> {
        if let Some(leases) = &self.leases {
            let verdict = self.ask(leases.take(self.policy.key(client), cost.min(MAX_COST))).await?;
            return Some(Decision {
                limited: verdict.limited,
                retry_after: verdict.retry_after,
                // They all have one. As of this one nothing would be given back.
                at: verdict.at.unwrap_or(UNIX_EPOCH),
                rows: vec![verdict],
            });
        }
        let costs = vec![cost; self.policy.quotas().len()];
        if let Some(refusal) = self.memory.refusal(client, &costs) {
            return Some(refusal);
        }
        let request = self.policy.request(client, cost);
        let decision = self.ask(self.connection.clone().rl_all(&request)).await?;
        self.memory.decided(client, &costs, &decision);
        Some(decision)
    }

    /// None if Redis is away.
    ///
    /// It is never asked twice, since that might count twice.
    async fn ask<T>(&self, reply: impl Future<Output = RedisResult<T>>) -> Option<T> {
        let reason = match self.timeout.wait(reply).await {
            Some(Ok(reply)) => {
                self.away.worked();
                return Some(reply);
            }
            Some(Err(error)) => error.to_string(),
            None => format!("no answer in {:?}", self.timeout.duration()),
        };
        self.away.failed(reason);
        None
    }
}
