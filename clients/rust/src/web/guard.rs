//! Decides about the requests of a web service.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::request::Parts;
use redis::RedisError;

use crate::asker::Asker;
use crate::clock::Clock;
use crate::local::{Answer, Share};
use crate::web::answer::refusal_of;
use crate::web::away::AwayLog;
use crate::web::client::{client_address, peer};
use crate::web::policies::{Source, checked};
use crate::web::policy::{KeyOf, MAX_COST};
use crate::web::reservation::{Client, Costs, Part};
use crate::web::{Policies, Policy, RateLimitLayer, Refusal, Reservation};
use crate::{Decision, Redis};

type OnDecision = Arc<dyn Fn(&Parts, &Decision, &[Policy]) + Send + Sync>;
type OnError = Arc<dyn Fn(&RedisError) + Send + Sync>;

/// Policies, and the Redis that counts by them: what is said once for a service. Clones share it.
///
/// ```no_run
/// # use redis_rl_client::web::{Guard, Policy, Refusal};
/// # async fn generate(prompt: String) -> Result<(), Box<dyn std::error::Error>> {
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let guard = Guard::new(client, Policy::new("tokens", "100000/h")?);
/// // Reserve an estimate, and settle when the cost is known.
/// if let Ok(reserved) = guard.take("192.0.2.1", 500).await {
///     let tokens_used = 420;
///     let _settled = reserved.settle(tokens_used).await;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Guard {
    asker: Asker,
    policies: Policies,
    /// Of policies that have none; if this has none either, the network address is the key.
    key: Option<KeyOf>,
    proxies: usize,
    prefix: Arc<str>,
    /// None if nothing was said of it.
    fail: Option<Fail>,
    remember: Duration,
    clock: Clock,
    on_decision: Option<OnDecision>,
    teller: Teller,
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

/// Tells whether Redis could be asked, and why it could not.
#[derive(Clone, Default)]
pub(crate) struct Teller {
    away: Arc<AwayLog>,
    on_error: Option<OnError>,
}

impl Teller {
    pub fn tell(&self, error: Option<&RedisError>) {
        match (error, &self.on_error) {
            (None, _) => self.away.worked(),
            (Some(error), Some(tell)) => tell(error),
            (Some(error), None) => self.away.failed(error.to_string()),
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Guard");
        fields.field("redis", self.asker.redis()).field("policies", &self.policies);
        fields.field("fail", &self.fail).finish_non_exhaustive()
    }
}

impl Guard {
    /// Waits at most 100 ms for Redis, and lets requests pass while it is away.
    ///
    /// # Panics
    ///
    /// If there is no policy, if two of a list have one name, or if all together have more than 64 quotas.
    pub fn new(client: impl Into<Redis>, policies: impl Into<Policies>) -> Guard {
        Guard {
            asker: Asker::new(client.into(), Clock::default(), Duration::ZERO),
            policies: policies.into(),
            key: None,
            proxies: 0,
            prefix: "".into(),
            fail: None,
            remember: Duration::ZERO,
            clock: Clock::default(),
            on_decision: None,
            teller: Teller::default(),
        }
    }

    /// The same with other policies, as for a route. Both share connections, and what is leased and remembered.
    ///
    /// # Panics
    ///
    /// As [`new`](Guard::new) does.
    pub fn with_policies(&self, policies: impl Into<Policies>) -> Guard {
        Guard { policies: policies.into(), ..self.clone() }
    }

    /// Middleware, of services whose response body can be made of a `String`, as that of axum can.
    pub fn layer<R: From<String> + 'static>(&self) -> RateLimitLayer<R> {
        RateLimitLayer::new(self.clone())
    }

    /// With another memory nothing is known yet.
    fn anew(self) -> Guard {
        let redis = self.asker.redis().clone();
        Guard { asker: Asker::new(redis, self.clock.clone(), self.remember), ..self }
    }

    /// Says by the request's head whose quotas they are, for policies that have no key of their own.
    ///
    /// A request for which it is `None` is not limited by them. Without this it is what the layers further out have
    /// counted the request by; without any, it is the network address that the server has put among the request's
    /// extensions: a `SocketAddr`, or with feature `axum` its `ConnectInfo`. Requests without one share the key `unknown`.
    pub fn key(mut self, key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Guard {
        self.key = Some(Arc::new(key));
        self
    }

    /// How many proxies of your own stand in front, for the network address: see [`client_address`].
    pub fn proxies(mut self, proxies: usize) -> Guard {
        self.proxies = proxies;
        self
    }

    /// What the keys of all policies begin with, before the policy's name.
    pub fn prefix(mut self, prefix: impl Into<Arc<str>>) -> Guard {
        self.prefix = prefix.into();
        self
    }

    /// How long Redis may say nothing before it is away: see [`Redis::timeout`].
    ///
    /// # Panics
    ///
    /// If it is 0.
    pub fn timeout(self, timeout: Duration) -> Guard {
        let redis = self.asker.redis().clone().timeout(timeout);
        Guard { asker: Asker::new(redis, self.clock.clone(), self.remember), ..self }
    }

    /// What becomes of requests while Redis is away.
    pub fn fail(mut self, fail: Fail) -> Guard {
        self.fail = Some(fail);
        self
    }

    pub(crate) fn chosen_fail(&self) -> Option<Fail> {
        self.fail
    }

    /// Is told each decision on a request, also if it was remembered or leased, and the policies that took part.
    ///
    /// The decision has a row for each quota of each policy. Where a handler asks by [`take`](Guard::take), it has
    /// the decision itself.
    pub fn on_decision(
        mut self,
        tell: impl Fn(&Parts, &Decision, &[Policy]) + Send + Sync + 'static,
    ) -> Guard {
        self.on_decision = Some(Arc::new(tell));
        self
    }

    /// Is told of each request that Redis did not decide why, in place of a warning at most once a second.
    pub fn on_error(mut self, tell: impl Fn(&RedisError) + Send + Sync + 'static) -> Guard {
        self.teller.on_error = Some(Arc::new(tell));
        self
    }

    /// Decides as of this clock instead of those of the server and of this process: with it a test moves time.
    pub fn clock(mut self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Guard {
        self.clock = Clock::new(now);
        self.anew()
    }

    /// Repeats a refusal without asking until its wait is over, or until it is so old.
    ///
    /// A flood of refused requests costs Redis one command for each client in that time; a second is a good value. Units
    /// that others give back are seen when it is over. At most 10,000 keys are remembered.
    pub fn remember(mut self, remember: Duration) -> Guard {
        self.remember = remember;
        self.anew()
    }

    /// Gives back what is leased. It ends after some timeouts if Redis is silent.
    pub async fn close(&self) {
        self.asker.close().await;
    }

    /// Takes units for a request, as [`RateLimitLayer`] does: by the keys and costs of its policies.
    ///
    /// If it is refused, the refusal tells of the layers further out too. What they took goes back if it is the answer.
    pub async fn admit(&self, head: &Parts) -> Result<Reservation, Refusal> {
        let outer = Reservation::of(&head.extensions).unwrap_or_else(|| Reservation::begun(None));
        let policies = match &self.policies.0 {
            Source::Fixed(policies) => policies.to_vec(),
            Source::Chosen(choose) => choose(head).await,
        };
        checked(&policies, &outer.policies()).map_err(|why| Refusal::misused(&why))?;
        let mut asked = Vec::with_capacity(policies.len());
        for policy in policies {
            let Some(client) = self.client(&policy, head, &outer)? else { continue };
            let cost = policy.cost_of(Some(head));
            asked.push(self.share(policy, client, cost)?);
        }
        if !asked.is_empty() {
            self.ask(asked, Some(head), &outer).await?;
        }
        Ok(outer)
    }

    /// Whose units a policy counts: what its own function tells, or that of the guard; else whom the layers further out
    /// have counted, or else the network address.
    fn client(&self, policy: &Policy, head: &Parts, outer: &Reservation) -> Result<Option<Client>, Refusal> {
        if policy.0.key_text.is_some() {
            return Ok(Some(Client::Everybody));
        }
        if let Some(key) = policy.0.key.as_ref().or(self.key.as_ref()) {
            return Ok(key(head).map(Client::Key));
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
    /// A negative cost is refused with 500: it would give back what other requests took. So is a request if the policies
    /// or their costs depend on its head: see [`admit`](Guard::admit).
    pub async fn take(
        &self,
        client: impl Into<String>,
        costs: impl Into<Costs>,
    ) -> Result<Reservation, Refusal> {
        let reservation = Reservation::begun(None);
        self.take_by(&Client::Key(client.into()), &costs.into(), &reservation).await?;
        Ok(reservation)
    }

    /// The same for a client that is known by whom the layers further out have counted.
    pub(crate) async fn take_by(
        &self,
        client: &Client,
        costs: &Costs,
        outer: &Reservation,
    ) -> Result<(), Refusal> {
        let Source::Fixed(policies) = &self.policies.0 else {
            return Err(Refusal::misused("The policies depend on the request"));
        };
        let checked = checked(policies, &outer.policies()).and_then(|()| costs.check(policies));
        checked.map_err(|why| Refusal::misused(&why))?;
        let share = |policy: &Policy| {
            let everybody = policy.0.key_text.as_ref().map(|_| Client::Everybody);
            let cost = costs.of(policy.name()).or_else(|| policy.cost_of(None));
            self.share(policy.clone(), everybody.unwrap_or_else(|| client.clone()), cost)
        };
        let asked = policies.iter().map(share).collect::<Result<_, _>>()?;
        self.ask(asked, None, outer).await
    }

    /// What a request takes of a policy.
    fn share(
        &self,
        policy: Policy,
        client: Client,
        cost: Option<i64>,
    ) -> Result<(Policy, Client, Share), Refusal> {
        let cost = cost.ok_or_else(|| Refusal::misused("The cost depends on the request"))?;
        if cost < 0 {
            return Err(Refusal::misused("The cost of a request is negative"));
        }
        let (prefix, name) = (&self.prefix, policy.name());
        let key = match &client {
            Client::Everybody => {
                format!("{prefix}{name}:{}", policy.0.key_text.as_deref().unwrap_or_default())
            }
            Client::Address(address) => format!("{prefix}{name}:{{{address}}}"),
            Client::Key(key) => format!("{prefix}{name}:{key}"),
        };
        // Nothing but addresses stands in braces: a name that users choose chooses no slot.
        // The server refuses a larger cost, which no limit allows anyway.
        let share =
            Share { key: key.into_bytes().into(), rules: policy.0.rules.clone(), cost: cost.min(MAX_COST) };
        Ok((policy, client, share))
    }

    /// Asks for all of it, and tells those who want to know.
    async fn ask(
        &self,
        asked: Vec<(Policy, Client, Share)>,
        head: Option<&Parts>,
        outer: &Reservation,
    ) -> Result<(), Refusal> {
        let (asked, shares): (Vec<_>, Vec<_>) =
            asked.into_iter().map(|(policy, client, share)| ((policy, client), share)).unzip();
        let (held, answer) = self.asker.take(shares).await;
        self.teller.tell(answer.as_ref().err());
        let decision = answer.as_ref().map(Answer::decision).ok();
        if let (Err(error), Some(Fail::Closed)) = (&answer, self.fail) {
            held.give_back();
            return Err(Refusal::away(error.clone()));
        }
        let part = Part::new(asked, held, answer, self.teller.clone());
        let Some(decision) = decision else {
            outer.add(part);
            return Ok(());
        };
        let own = part.told(false);
        if let (Some(tell), Some(head)) = (&self.on_decision, head) {
            let known: Vec<Policy> = own.iter().map(|told| told.policy.clone()).collect();
            tell(head, &decision, &known);
        }
        if decision.limited {
            let refusal = refusal_of(&[outer.told(true), own].concat(), &decision);
            return Err(refusal.telling_all(!outer.is_apart()));
        }
        outer.add(part);
        Ok(())
    }
}
