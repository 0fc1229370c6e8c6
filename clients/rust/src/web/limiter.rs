//! Asks for limits on behalf of a web service.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use http::request::Parts;
use redis::aio::ConnectionLike;
use redis::{RedisError, RedisResult};

use crate::clock::Clock;
use crate::timeout::ServerTimeout;
use crate::web::admission::{Admission, Costs, Share};
use crate::web::answer::{answer, fields};
use crate::web::away::AwayLog;
use crate::web::client::{client_address, peer};
use crate::web::memory::Memory;
use crate::web::policies::{Source, checked};
use crate::web::policy::{KeyOf, MAX_COST};
use crate::web::{Policies, Policy, Refusal};
use crate::{All, Decision, Leases, RlAsyncCommands};

type OnDecision = Arc<dyn Fn(&Parts, &Decision, &[Policy]) + Send + Sync>;
type OnError = Arc<dyn Fn(&RedisError) + Send + Sync>;

/// Policies, and the connection to count by them. Clones share both.
///
/// ```no_run
/// # use redis_rl_client::web::{Limiter, Refusal};
/// # async fn generate(limiter: Limiter<redis::aio::MultiplexedConnection>, prompt: String) -> Result<(), Refusal> {
/// // Reserve an estimate, and settle when the cost is known.
/// let reserved = limiter.take("192.0.2.1", 500).await?;
/// let tokens_used = 420;
/// let admission = limiter.settle(reserved, tokens_used).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Limiter<C> {
    connection: C,
    policies: Policies,
    /// Of policies that have none; if this has none either, the network address is the key.
    key: Option<KeyOf>,
    proxies: usize,
    timeout: Arc<ServerTimeout>,
    /// None if nothing was said of it.
    fail: Option<Fail>,
    away: Arc<AwayLog>,
    on_decision: Option<OnDecision>,
    on_error: Option<OnError>,
    clock: Clock,
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

impl<C> fmt::Debug for Limiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Limiter");
        fields.field("policies", &self.policies).field("timeout", &self.timeout.duration());
        fields.field("fail", &self.fail).field("leases", &self.leases).finish_non_exhaustive()
    }
}

impl<C> Limiter<C> {
    /// What was said of Redis being away.
    pub(crate) fn chosen_fail(&self) -> Option<Fail> {
        self.fail
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Limiter<C> {
    /// Waits at most 100 ms for Redis, and lets requests pass while it is away.
    pub fn new(connection: C, policies: impl Into<Policies>) -> Limiter<C> {
        Limiter {
            connection,
            policies: policies.into(),
            key: None,
            proxies: 0,
            timeout: Arc::new(ServerTimeout::new(Duration::from_millis(100))),
            fail: None,
            away: Arc::default(),
            on_decision: None,
            on_error: None,
            clock: Clock::default(),
            memory: Arc::new(Memory::new(Duration::ZERO, Clock::default())),
            leases: None,
        }
    }

    /// The same with other policies, as for another route. It has no leases.
    pub fn with_policies(&self, policies: impl Into<Policies>) -> Limiter<C> {
        Limiter { policies: policies.into(), leases: None, ..self.clone() }
    }

    /// Says by the request's head whose quotas they are, for policies that have no key of their own.
    ///
    /// A request for which it is `None` is not limited by them. Without this it is the network address that the
    /// server has put among the request's extensions: a `SocketAddr`, or with feature `axum` its `ConnectInfo`. Requests
    /// without one share the key `unknown`.
    pub fn key(mut self, key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Limiter<C> {
        self.key = Some(KeyOf::new(key));
        self
    }

    /// How many proxies of your own stand in front, for the network address: see [`client_address`].
    pub fn proxies(mut self, proxies: usize) -> Limiter<C> {
        self.proxies = proxies;
        self
    }

    /// How long Redis may take to answer before it is away.
    ///
    /// That is Redis's time, not this process's: however long the runtime was busy, it reads what has arrived before a
    /// request is given up. While Redis answers other requests, one may take up to ten times as long.
    ///
    /// The connection should have no response timeout of its own: that of redis-rs, 500 ms by default, is a timer of
    /// this process. [`Reconnecting`](crate::Reconnecting) is such a connection. Use the limiter on the runtime on which its connection was made: it cannot tell whether another one
    /// is busy.
    ///
    /// # Panics
    ///
    /// If it is 0.
    pub fn timeout(mut self, timeout: Duration) -> Limiter<C> {
        self.timeout = Arc::new(ServerTimeout::new(timeout));
        self
    }

    /// What becomes of requests while Redis is away.
    pub fn fail(mut self, fail: Fail) -> Limiter<C> {
        self.fail = Some(fail);
        self
    }

    /// Is told each decision on a request, also if it was remembered or leased, and the policies that took part.
    ///
    /// The decision has a row for each quota of each policy. Where a handler asks by [`take`](Limiter::take), it has
    /// the decision itself.
    pub fn on_decision(
        mut self,
        tell: impl Fn(&Parts, &Decision, &[Policy]) + Send + Sync + 'static,
    ) -> Limiter<C> {
        self.on_decision = Some(Arc::new(tell));
        self
    }

    /// Is told of each request that Redis did not decide why, in place of a warning at most once a second.
    pub fn on_error(mut self, tell: impl Fn(&RedisError) + Send + Sync + 'static) -> Limiter<C> {
        self.on_error = Some(Arc::new(tell));
        self
    }

    /// Decides as of this clock instead of those of the server and of this process: with it a test moves time.
    pub fn clock(mut self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Limiter<C> {
        self.clock = Clock::new(now);
        self.memory = Arc::new(Memory::new(self.memory.remember(), self.clock.clone()));
        self.leases = self.leases.map(|leases| leases.by_clock(self.clock.clone()));
        self
    }

    /// Repeats a refusal without asking until its wait is over, or until it is so old.
    ///
    /// A flood of refused requests costs Redis one command for each client in that time; a second is a good value. Units
    /// that others give back are seen when it is over. At most 10,000 refusals are remembered.
    pub fn remember(mut self, remember: Duration) -> Limiter<C> {
        self.memory = Arc::new(Memory::new(remember, self.clock.clone()));
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
    /// If there is not one fixed policy, or if two of its quotas have the same limit: a verdict tells them apart by it.
    pub fn lease(mut self, units: u64) -> Limiter<C> {
        let Source::Fixed(policies) = &self.policies.0 else {
            panic!("leases need one policy, not a function");
        };
        let [policy] = &policies[..] else { panic!("leases need one policy, not {}", policies.len()) };
        let quotas = policy.quotas();
        let limits: HashSet<u64> = quotas.iter().map(|quota| quota.limit).collect();
        assert!(limits.len() == quotas.len(), "a policy with leases needs a different limit in each quota");
        let leases = Leases::new(self.connection.clone(), policy.counted_by(), quotas).with_time();
        let leases = leases.units(units).remember(self.memory.remember());
        self.leases = Some(leases.by_clock(self.clock.clone()));
        self
    }

    /// Gives back what is leased. It ends with the timeout if Redis is silent.
    pub async fn close(&self) {
        if let Some(leases) = &self.leases {
            let closed = async {
                leases.close().await;
                Ok(())
            };
            self.timeout.wait(closed).await;
        }
    }

    /// Takes units for a request, as [`RateLimitLayer`](crate::web::RateLimitLayer) does: by the keys and costs of its
    /// policies.
    pub async fn admit(&self, head: &Parts) -> Result<Admission, Refusal> {
        let (chosen, is_tagged) = match &self.policies.0 {
            Source::Fixed(policies) => (policies.to_vec(), policies.len() > 1),
            Source::Chosen(choose) => (choose(head).await, true),
        };
        checked(&chosen).map_err(Refusal::misused)?;
        let mut policies = Vec::with_capacity(chosen.len());
        let mut shares = Vec::with_capacity(chosen.len());
        for policy in chosen {
            let key = match policy.key_of().or(self.key.as_ref()) {
                Some(key) => key.key(head),
                None => Some(self.address(head, is_tagged)),
            };
            let Some(key) = key else { continue };
            shares.push(share(&policy, &key, policy.cost_of(Some(head)))?);
            policies.push(policy);
        }
        if policies.is_empty() {
            return Ok(Admission::default());
        }
        let decision = self.decide(&policies, &shares).await;
        if let (Some(tell), Ok(decision)) = (&self.on_decision, &decision) {
            tell(head, decision, &policies);
        }
        self.admission(policies, shares, decision)
    }

    /// Takes units of the policies for a client, of all or of none. The client stands in place of their keys.
    ///
    /// A number is the cost by each policy. Several policies may have costs of their own, by name:
    /// `[("requests", 1), ("tokens", 500)]`.
    ///
    /// A negative cost is refused with 500: it would give back what other requests took. See
    /// [`settle`](Limiter::settle). So is a request if the policies or their costs depend on its head: see
    /// [`admit`](Limiter::admit).
    pub async fn take(
        &self,
        client: impl Into<String>,
        costs: impl Into<Costs>,
    ) -> Result<Admission, Refusal> {
        let (client, costs) = (client.into(), costs.into());
        let Source::Fixed(policies) = &self.policies.0 else {
            return Err(Refusal::misused("The policies depend on the request"));
        };
        costs.check(policies).map_err(|why| Refusal::misused(&why))?;
        let cost = |policy: &Policy| costs.of(policy.name()).or_else(|| policy.cost_of(None));
        let shares = policies.iter().map(|policy| share(policy, &client, cost(policy)));
        let shares: Vec<Share> = shares.collect::<Result<_, _>>()?;
        let decision = self.decide(policies, &shares).await;
        self.admission(policies.to_vec(), shares, decision)
    }

    /// Corrects what was taken to what was used, however late. Of several policies each may be named, as in
    /// `[("tokens", 420)]`; the others stay as they are.
    ///
    /// What is given back was counted when it was taken, and nobody else's units are. What is taken in addition is
    /// counted even if it is over the limit, since it has been used. The header fields
    /// tell the state thereafter; if Redis is away, that of before.
    ///
    /// # Panics
    ///
    /// If no policy has a name that is named, or if a cost is negative.
    pub async fn settle(&self, mut admission: Admission, used: impl Into<Costs>) -> Admission {
        let used = used.into();
        if let Err(why) = used.check(&admission.policies) {
            panic!("{why}");
        }
        let request = self.remembered_as(&admission.policies, &admission.shares);
        for (policy, share) in admission.policies.iter().zip(&mut admission.shares) {
            let Some(used) = used.of(policy.name()).map(|used| used.min(MAX_COST)) else { continue };
            let gives_back = used < share.taken;
            let all = All::new().key(&share.key, policy.counted_by(), policy.quotas(), used - share.taken);
            let all = if gives_back { at(all, share.at) } else { at(all, self.clock.at()).force() };
            // It may have been carried out though the reply is lost: it is not sent again.
            share.taken = used;
            let Ok(settled) = self.ask(self.connection.clone().rl_all(&all)).await else { continue };
            if gives_back && let Some(request) = &request {
                // A refusal that is remembered may be over.
                self.memory.forget(request);
            }
            *share = Share { at: Some(settled.at), rows: settled.rows, ..share.clone() };
        }
        let (policies, decision) = admission.standing();
        if let Some(decision) = decision {
            admission.fields = fields(policies, &decision);
            admission.decision = Some(decision);
        }
        admission
    }

    /// The network address.
    fn address(&self, head: &Parts, is_tagged: bool) -> String {
        let address = client_address(peer(head), &head.headers, self.proxies);
        if is_tagged { format!("{{{address}}}") } else { address }
    }

    /// What follows from a decision, or from none.
    fn admission(
        &self,
        policies: Vec<Policy>,
        mut shares: Vec<Share>,
        decision: RedisResult<Decision>,
    ) -> Result<Admission, Refusal> {
        let (decision, fields, error) = match decision {
            Ok(decision) => {
                let fields = answer(&policies, &decision)?;
                let mut rows = decision.rows.iter().copied();
                for (policy, share) in policies.iter().zip(&mut shares) {
                    share.at = Some(decision.at);
                    share.rows = rows.by_ref().take(policy.quotas().len()).collect();
                }
                (Some(decision), fields, None)
            }
            Err(error) if self.fail == Some(Fail::Closed) => return Err(Refusal::away(error)),
            Err(error) => {
                // Nothing was taken.
                shares.iter_mut().for_each(|share| share.taken = 0);
                (None, HeaderMap::new(), Some(error))
            }
        };
        Ok(Admission { policies, shares, decision, fields, error })
    }

    async fn decide(&self, policies: &[Policy], shares: &[Share]) -> RedisResult<Decision> {
        if let (Some(leases), [share]) = (&self.leases, shares) {
            let verdict = self.ask(leases.take(&share.key, share.taken)).await?;
            return Ok(Decision {
                limited: verdict.limited,
                retry_after: verdict.retry_after,
                // They all have one. As of this one nothing would be given back.
                at: verdict.at.unwrap_or(UNIX_EPOCH),
                rows: vec![verdict],
            });
        }
        let costs = policies
            .iter()
            .zip(shares)
            .flat_map(|(policy, share)| std::iter::repeat_n(share.taken, policy.quotas().len()));
        let costs: Vec<i64> = costs.collect();
        let remembered_as = self.remembered_as(policies, shares);
        if let Some(refusal) = remembered_as.as_ref().and_then(|request| self.memory.refusal(request, &costs))
        {
            return Ok(refusal);
        }
        let request = at(all(policies, shares, |share| share.taken), self.clock.at());
        let decision = self.ask(self.connection.clone().rl_all(&request)).await?;
        if let Some(request) = &remembered_as {
            self.memory.decided(request, &costs, &decision);
        }
        Ok(decision)
    }

    /// What a refusal is remembered by: keys, algorithms and quotas, without costs. None if none is.
    fn remembered_as(&self, policies: &[Policy], shares: &[Share]) -> Option<Vec<u8>> {
        let remembers = !self.memory.remember().is_zero();
        remembers.then(|| crate::cmd::all(&all(policies, shares, |_| 0)).get_packed_command())
    }

    /// It is never asked twice, since that might count twice.
    async fn ask<T>(&self, reply: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let reply = self.timeout.wait(reply).await.unwrap_or_else(|| Err(self.timeout.error()));
        match (&reply, &self.on_error) {
            (Ok(_), _) => self.away.worked(),
            (Err(error), Some(tell)) => tell(error),
            (Err(error), None) => self.away.failed(error.to_string()),
        }
        reply
    }
}

/// What a request takes of a policy.
fn share(policy: &Policy, key: &str, cost: Option<i64>) -> Result<Share, Refusal> {
    let cost = cost.ok_or_else(|| Refusal::misused("The cost depends on the request"))?;
    if cost < 0 {
        return Err(Refusal::misused("The cost of a request is negative"));
    }
    // The server refuses a larger one, which no limit allows anyway.
    let taken = cost.min(MAX_COST);
    Ok(Share { key: format!("{}:{key}", policy.name()), taken, at: None, rows: Vec::new() })
}

fn all(policies: &[Policy], shares: &[Share], cost: impl Fn(&Share) -> i64) -> All {
    policies.iter().zip(shares).fold(All::new(), |all, (policy, share)| {
        all.key(&share.key, policy.counted_by(), policy.quotas(), cost(share))
    })
}

fn at(all: All, at: Option<SystemTime>) -> All {
    match at {
        Some(at) => all.at(at),
        None => all,
    }
}
