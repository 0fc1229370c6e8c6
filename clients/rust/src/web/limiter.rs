//! Asks for limits on behalf of a web service.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use http::request::Parts;
use redis::aio::ConnectionLike;
use redis::{RedisError, RedisResult};

use crate::clock::Clock;
use crate::local::{self, Fate, JointAnswer, Outcome};
use crate::timeout::ServerTimeout;
use crate::web::admission::{Admission, Back, Client, Costs, Giving, Standing};
use crate::web::answer::{fields_of, refusal_of};
use crate::web::asker::{Asker, Terms};
use crate::web::away::AwayLog;
use crate::web::client::{client_address, peer};
use crate::web::policies::{Source, checked};
use crate::web::policy::{KeyOf, MAX_COST};
use crate::web::{Policies, Policy, Refusal, Reservation};
use crate::{All, Decision, Reconnecting, RlAsyncCommands};

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
    asker: Asker<C>,
    terms: Terms,
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
        fields.field("fail", &self.fail).field("terms", &self.terms).finish_non_exhaustive()
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
    ///
    /// # Panics
    ///
    /// If two policies of a list have one name, or all together more than 64 quotas.
    pub fn new(connection: C, policies: impl Into<Policies>) -> Limiter<C> {
        let terms =
            Terms { remember: Duration::ZERO, is_cluster: is_cluster(&connection), undecided: Fate::Passes };
        Limiter {
            asker: Asker::new(connection, Clock::default(), terms),
            terms,
            policies: policies.into(),
            key: None,
            proxies: 0,
            timeout: Arc::new(ServerTimeout::new(Duration::from_millis(100))),
            fail: None,
            away: Arc::default(),
            on_decision: None,
            on_error: None,
            clock: Clock::default(),
        }
    }

    /// The same with other policies, as for another route. Both share what is leased and remembered.
    ///
    /// # Panics
    ///
    /// As [`new`](Limiter::new) does.
    pub fn with_policies(&self, policies: impl Into<Policies>) -> Limiter<C> {
        Limiter { policies: policies.into(), ..self.clone() }
    }

    /// By other terms or another clock nothing is known yet.
    fn on_terms(self, terms: Terms, clock: Clock) -> Limiter<C> {
        Limiter { asker: Asker::new(self.asker.connection(), clock.clone(), terms), terms, clock, ..self }
    }

    /// Asks for keys slot by slot, since the connection is one to a cluster.
    ///
    /// That a [`Reconnecting`] is one is known, and with feature `cluster-async` that a `ClusterConnection` of redis-rs is.
    pub fn cluster(self) -> Limiter<C> {
        let (terms, clock) = (Terms { is_cluster: true, ..self.terms }, self.clock.clone());
        self.on_terms(terms, clock)
    }

    /// Says by the request's head whose quotas they are, for policies that have no key of their own.
    ///
    /// A request for which it is `None` is not limited by them. Without this it is what the layers further out have counted
    /// the request by; without any, it is the network address that the
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
        let undecided = if fail == Fail::Closed { Fate::Fails } else { Fate::Passes };
        let (terms, clock) = (Terms { undecided, ..self.terms }, self.clock.clone());
        self.on_terms(terms, clock)
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
    pub fn clock(self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Limiter<C> {
        let terms = self.terms;
        self.on_terms(terms, Clock::new(now))
    }

    /// Repeats a refusal without asking until its wait is over, or until it is so old.
    ///
    /// A flood of refused requests costs Redis one command for each client in that time; a second is a good value. Units
    /// that others give back are seen when it is over. At most 10,000 refusals are remembered.
    pub fn remember(self, remember: Duration) -> Limiter<C> {
        let (terms, clock) = (Terms { remember, ..self.terms }, self.clock.clone());
        self.on_terms(terms, clock)
    }

    /// Gives back what is leased. It ends with the timeout if Redis is silent.
    pub async fn close(&self) {
        let closed = async {
            self.asker.close().await;
            Ok(())
        };
        self.timeout.wait(closed).await;
    }

    /// Takes units for a request, as [`RateLimitLayer`](crate::web::RateLimitLayer) does: by the keys and costs of its
    /// policies.
    ///
    /// If it is refused, the refusal tells of the layers further out too. What they took goes back if it is the answer.
    pub async fn admit(&self, head: &Parts) -> Result<Admission, Refusal> {
        let outer = Reservation::of(&head.extensions).unwrap_or_else(Reservation::apart);
        let (chosen, is_tagged) = match &self.policies.0 {
            Source::Fixed(policies) => (policies.to_vec(), policies.len() > 1),
            Source::Chosen(choose) => (choose(head).await, true),
        };
        checked(&chosen).map_err(|why| Refusal::misused(&why))?;
        let mut policies = Vec::with_capacity(chosen.len());
        let mut standing = Vec::with_capacity(chosen.len());
        for policy in chosen {
            let Some(client) = self.client(&policy, head, &outer)? else { continue };
            standing.push(share(&policy, client, is_tagged, policy.cost_of(Some(head)))?);
            policies.push(policy);
        }
        if policies.is_empty() {
            return Ok(Admission::default());
        }
        let admission = self.take_all(policies, standing, Some(head), &outer).await?;
        outer.add(admission.clone());
        Ok(admission)
    }

    /// Whose units a policy counts: what its own function tells, or that of the limiter; else whom the layers further out
    /// have counted, or else the network address.
    fn client(&self, policy: &Policy, head: &Parts, outer: &Reservation) -> Result<Option<Client>, Refusal> {
        if policy.key_of_everybody().is_some() {
            return Ok(Some(Client::Everybody));
        }
        if let Some(key) = policy.key_of().or(self.key.as_ref()) {
            return Ok(key.key(head).map(Client::Key));
        }
        outer.client(|| self.address(head)).map(Some)
    }

    /// The network address of a request.
    pub(crate) fn address(&self, head: &Parts) -> String {
        client_address(peer(head), &head.headers, self.proxies)
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
        self.take_by(&Client::Key(client.into()), &costs.into(), &Reservation::apart()).await
    }

    /// The same for a client that is known by whom the layers further out have counted.
    pub(crate) async fn take_by(
        &self,
        client: &Client,
        costs: &Costs,
        outer: &Reservation,
    ) -> Result<Admission, Refusal> {
        let Source::Fixed(policies) = &self.policies.0 else {
            return Err(Refusal::misused("The policies depend on the request"));
        };
        costs.check(policies).map_err(|why| Refusal::misused(&why))?;
        let standing = policies.iter().map(|policy| {
            let everybody = policy.key_of_everybody().map(|_| Client::Everybody);
            let cost = costs.of(policy.name()).or_else(|| policy.cost_of(None));
            share(policy, everybody.unwrap_or_else(|| client.clone()), policies.len() > 1, cost)
        });
        let standing: Vec<Standing> = standing.collect::<Result<_, _>>()?;
        self.take_all(policies.to_vec(), standing, None, outer).await
    }

    /// Corrects what was taken to what was used, however late. Of several policies each may be named, as in
    /// `[("tokens", 420)]`; the others stay as they are. Behind a layer, see [`Reservation::settle`].
    ///
    /// What is given back was counted when it was taken, and nobody else's units are. What is taken in addition is
    /// counted even if it is over the limit, since it has been used. The last settled cost counts. The header fields
    /// tell the state thereafter; if Redis is away, that of before.
    ///
    /// # Panics
    ///
    /// If no policy has a name that is named, or if a cost is negative.
    pub async fn settle(&self, admission: Admission, used: impl Into<Costs>) -> Admission {
        let used = used.into();
        if let Err(why) = used.check(&admission.policies) {
            panic!("{why}");
        }
        for (place, policy) in admission.policies.iter().enumerate() {
            if let Some(used) = used.of(policy.name()) {
                admission.settle(place, used).await;
            }
        }
        admission.renewed()
    }

    /// Asks for all of it, and tells those who want to know.
    async fn take_all(
        &self,
        policies: Vec<Policy>,
        mut standing: Vec<Standing>,
        head: Option<&Parts>,
        outer: &Reservation,
    ) -> Result<Admission, Refusal> {
        let shares = standing.iter().map(|standing| standing.share.clone()).collect();
        let (JointAnswer { outcome, rows, taken }, error) = self.asker.take(shares, &self.timeout).await;
        self.tell(error.as_ref());
        for taken in taken {
            let place = taken.policy;
            standing[place].taken = Some(taken);
        }
        for (standing, rows) in standing.iter_mut().zip(rows) {
            if outcome != Outcome::Away {
                standing.rows = rows.unwrap_or_default();
            }
            if standing.taken.is_none() {
                standing.share.cost = 0;
            }
        }
        let at = standing.iter().filter_map(|standing| standing.taken.as_ref()?.at).max();
        let back = Back(Arc::new(Giver {
            asker: self.asker.clone(),
            timeout: self.timeout.clone(),
            clock: self.clock.clone(),
            away: self.away.clone(),
            on_error: self.on_error.clone(),
        }));
        let mut admission = Admission {
            policies,
            standing: Arc::new(Mutex::new(standing)),
            back: Some(back),
            decision: None,
            fields: HeaderMap::new(),
            error,
        };
        if outcome == Outcome::Away {
            if self.fail != Some(Fail::Closed) {
                return Ok(admission);
            }
            let away = RedisError::from((redis::ErrorKind::Io, "Redis could not be asked"));
            return Err(Refusal::away(admission.error.unwrap_or(away)));
        }
        let own = admission.told();
        let decision = Decision {
            limited: outcome != Outcome::Allowed,
            retry_after: if let Outcome::Refused(retry_after) = outcome { retry_after } else { None },
            // As of this one nothing would be given back.
            at: at.unwrap_or(UNIX_EPOCH),
            rows: own.iter().flat_map(|told| told.rows.iter().copied()).collect(),
        };
        if let (Some(tell), Some(head)) = (&self.on_decision, head) {
            let known: Vec<Policy> = own.iter().map(|told| told.policy.clone()).collect();
            tell(head, &decision, &known);
        }
        if decision.limited {
            let refusal = refusal_of(&[outer.told_refused(), own].concat(), &decision);
            return Err(refusal.telling_all(!outer.is_apart()));
        }
        admission.fields = fields_of(&own, false);
        admission.decision = Some(decision);
        Ok(admission)
    }

    fn tell(&self, error: Option<&RedisError>) {
        tell(&self.away, self.on_error.as_ref(), error);
    }
}

/// Tells whether Redis could be asked, and why it could not.
fn tell(away: &AwayLog, on_error: Option<&OnError>, error: Option<&RedisError>) {
    match (error, on_error) {
        (None, _) => away.worked(),
        (Some(error), Some(tell)) => tell(error),
        (Some(error), None) => away.failed(error.to_string()),
    }
}

/// What admissions need of the limiter that made them.
struct Giver<C> {
    asker: Asker<C>,
    timeout: Arc<ServerTimeout>,
    clock: Clock,
    away: Arc<AwayLog>,
    on_error: Option<OnError>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Giving for Giver<C> {
    fn release(&self, taken: Vec<local::Taken>) {
        self.asker.release(taken);
    }

    fn correct(
        &self,
        all: All,
        as_of: Option<SystemTime>,
    ) -> Pin<Box<dyn Future<Output = RedisResult<Decision>> + Send + '_>> {
        let all = if as_of.is_some() { at(all, as_of) } else { at(all, self.clock.at()).force() };
        Box::pin(async move {
            let mut connection = self.asker.connection();
            // It is never asked twice, since that might count twice.
            let reply = self.timeout.wait(connection.rl_all(&all)).await;
            let reply = reply.unwrap_or_else(|| Err(self.timeout.error()));
            tell(&self.away, self.on_error.as_ref(), reply.as_ref().err());
            reply
        })
    }

    fn forget(&self, shares: &[local::Share]) {
        self.asker.forget(shares);
    }
}

/// Whether keys of several slots are on several servers.
fn is_cluster<C: 'static>(connection: &C) -> bool {
    let connection: &dyn Any = connection;
    #[cfg(feature = "cluster-async")]
    if connection.is::<redis::cluster_async::ClusterConnection>() {
        return true;
    }
    connection.downcast_ref().is_some_and(Reconnecting::is_cluster)
}

/// What a request takes of a policy.
fn share(policy: &Policy, client: Client, is_tagged: bool, cost: Option<i64>) -> Result<Standing, Refusal> {
    let cost = cost.ok_or_else(|| Refusal::misused("The cost depends on the request"))?;
    if cost < 0 {
        return Err(Refusal::misused("The cost of a request is negative"));
    }
    let name = policy.name();
    let key = match &client {
        Client::Everybody => format!("{name}:{}", policy.key_of_everybody().unwrap_or_default()),
        Client::Address(address) if is_tagged => format!("{name}:{{{address}}}"),
        Client::Key(key) | Client::Address(key) => format!("{name}:{key}"),
    };
    // The server refuses a larger one, which no limit allows anyway.
    let share =
        local::Share { key: key.into_bytes().into(), rules: policy.rules(), cost: cost.min(MAX_COST) };
    Ok(Standing { client, share, taken: None, is_over: false, rows: Vec::new() })
}

fn at(all: All, at: Option<SystemTime>) -> All {
    match at {
        Some(at) => all.at(at),
        None => all,
    }
}
