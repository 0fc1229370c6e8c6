//! Decides about the requests of a web service.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use http::Response;
use http::request::Parts;
use redis::{RedisError, RedisResult};

use super::asker::{Asker, Held};
use super::away::Announcer;
use super::client::{UNKNOWN, client_address, peer, route};
use super::policies::{Policies, Source, checked};
use super::policy::{Key, KeyOf, Policy};
use super::refusal::{Refusal, Refused};
use super::reservation::{Client, Costs, Part, Requester, Reservation};
use super::teller::Teller;
use crate::commands::{Clock, Decision, Invalid, MAX_COST, Quotas};
use crate::keys::{Answer, Share};
use crate::lines::Redis;
use crate::locked;
use crate::memory::MemoryLimiter;

/// Mistakes that are told, so that memory is bounded.
const MISTAKES: usize = 100;

/// Policies, and the Redis that counts by them: what is said once for a service. Clones share it.
///
/// It is middleware itself, for tower ([`layer`](Guard::layer)) and actix-web (`middleware`). [`limit`](Guard::limit) is the
/// same for a route. A handler decides by [`take`](Guard::take), and corrects costs by [`settle`](Guard::settle).
#[derive(Clone)]
#[must_use]
pub struct Guard {
    asker: Asker,
    /// Decides while Redis is away, if it is said so.
    local: Option<Asker>,
    policies: Policies,
    /// Where policies without a name stand, once a request has come that way.
    stands: Arc<OnceLock<String>>,
    settings: Arc<Settings>,
}

/// What is said once. Routes share it.
#[derive(Clone, Default)]
struct Settings {
    /// Of policies that have none; if this has none either, the network address is the key.
    key: Option<KeyOf>,
    proxies: usize,
    prefix: String,
    /// None if nothing was said of it.
    fail: Option<Fail>,
    remember: Duration,
    clock: Clock,
    on_decision: Option<OnDecision>,
    on_limited: Option<OnLimited>,
    on_away: Option<OnAway>,
    teller: Teller,
    /// Mistakes that the log has told.
    mistakes: Arc<Mutex<HashSet<String>>>,
}

/// What is decided by itself: by which policies for whom, and what is asked for.
type Group = (Vec<(Policy, Client)>, Vec<Share>);
type OnDecision = Arc<dyn Fn(&Parts, &Decision, &[Policy]) + Send + Sync>;
type OnLimited = Arc<dyn Fn(&Parts, &Decision, Refusal) -> Response<String> + Send + Sync>;
type OnAway = Arc<dyn Fn(&Parts, &RedisError) -> Option<Response<String>> + Send + Sync>;

/// What becomes of requests while Redis is away: no connection, no answer in time, or an error as the answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fail {
    /// They pass: the service stays up, without limits.
    Open,
    /// They are answered 503: what stands behind the service stays protected.
    Closed,
    /// This process decides by the same policies, of counts of its own: at most the limit for each process passes. Redis
    /// decides again within a second after it is back.
    Local,
}

/// `open`, `closed` or `local`, as from a setting.
impl FromStr for Fail {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Fail, Invalid> {
        match text {
            "open" => Ok(Fail::Open),
            "closed" => Ok(Fail::Closed),
            "local" => Ok(Fail::Local),
            _ => Err(Invalid::new(format!("fail is open, closed or local: {text:?}"))),
        }
    }
}

impl Settings {
    /// Warns of a mistake, however many requests meet it.
    fn tell_once(&self, mistake: &str) {
        let mut told = locked(&self.mistakes);
        if told.len() < MISTAKES && !told.contains(mistake) {
            told.insert(mistake.to_owned());
            tracing::warn!("{mistake}");
        }
    }
}

/// The line to write in place of a text that cannot be named by its route.
fn to_name(policies: &[Policy]) -> String {
    let unnamed = policies.iter().find(|policy| policy.name().is_empty());
    let quotas = Quotas::from(unnamed.map_or_else(Vec::new, |policy| policy.quotas().to_vec()));
    format!("give it a name, as guard.limit(Policy::new(\"a-name\", \"{quotas}\")?)")
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Guard");
        fields.field("redis", self.asker.redis()).field("policies", &self.policies);
        fields.field("fail", &self.settings.fail).finish_non_exhaustive()
    }
}

impl Guard {
    /// Waits at most 100 ms for Redis, and lets requests pass while it is away.
    ///
    /// A text of quotas, such as `5/10s, 100/h`, is a policy of the name `requests`. With an empty list only routes are
    /// limited.
    ///
    /// # Errors
    ///
    /// If the text is not one of quotas, if two policies of a list have one name, or if all together have more than 64
    /// quotas.
    pub fn new<P>(client: impl Into<Redis>, policies: P) -> Result<Guard, Invalid>
    where
        P: TryInto<Policies>,
        Invalid: From<P::Error>,
    {
        let policies = policies.try_into()?.or_named("requests").checked()?;
        let asker = Asker::new(client.into(), Clock::default(), Duration::ZERO, Announcer::default());
        Ok(Guard { asker, local: None, policies, stands: Arc::default(), settings: Arc::default() })
    }

    /// The same with other policies, for a route or a handler. All guards made so share connections, and what is leased
    /// and remembered.
    ///
    /// A text of quotas is a policy that has the name of its route, such as `GET /search`. On a scope of several routes it
    /// needs a name of its own.
    ///
    /// # Errors
    ///
    /// As those of [`new`](Guard::new).
    pub fn limit<P>(&self, policies: P) -> Result<Guard, Invalid>
    where
        P: TryInto<Policies>,
        Invalid: From<P::Error>,
    {
        let policies = policies.try_into()?.checked()?;
        Ok(Guard { policies, stands: Arc::default(), ..self.clone() })
    }

    /// The first of each kind that requests meet is told in the log.
    fn told<T>(&self, result: Result<T, Refusal>) -> Result<T, Refusal> {
        if let Some(mistake) = result.as_ref().err().and_then(Refusal::mistake) {
            self.settings.tell_once(&format!("requests are answered 500: {mistake}"));
        }
        result
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Guard {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// With another memory nothing is known yet.
    fn anew(self, redis: Redis) -> Guard {
        let Settings { clock, remember, .. } = &*self.settings;
        let asker = Asker::new(redis, clock.clone(), *remember, self.asker.nodes().announcer());
        Guard { asker, ..self }.with_local()
    }

    /// The limits of this process, if they are to decide while Redis is away.
    fn with_local(self) -> Guard {
        let Settings { clock, remember, fail, .. } = &*self.settings;
        let local = (*fail == Some(Fail::Local)).then(|| {
            let memory = MemoryLimiter::new().into();
            Asker::new(memory, clock.clone(), *remember, Announcer::default())
        });
        Guard { local, ..self }
    }

    /// Says by the request's head whose quotas they are, for policies that have no key of their own.
    ///
    /// A request for which it is `None` is not limited by them. Without this it is what the limits further out have
    /// counted the request by; without any, it is the network address that the server has put among the request's
    /// extensions: a `SocketAddr`, or with feature `axum` its `ConnectInfo`. Requests without one share the key `unknown`.
    pub fn key(self, key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Guard {
        self.with(|settings| settings.key = Some(Arc::new(key)))
    }

    /// How many proxies of your own stand in front, for the network address: see [`client_address`].
    pub fn proxies(self, proxies: usize) -> Guard {
        self.with(|settings| settings.proxies = proxies)
    }

    /// What the keys of all policies begin with, before the policy's name.
    pub fn prefix(self, prefix: impl Into<String>) -> Guard {
        self.with(|settings| settings.prefix = prefix.into())
    }

    /// How long Redis may say nothing before it is away: see [`Redis::timeout`].
    ///
    /// # Panics
    ///
    /// If it is 0.
    pub fn timeout(self, timeout: Duration) -> Guard {
        let redis = self.asker.redis().clone().timeout(timeout);
        self.anew(redis)
    }

    /// Decides as of this clock instead of those of the server and of this process: with it a test moves time.
    pub fn clock(self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Guard {
        let redis = self.asker.redis().clone();
        self.with(|settings| settings.clock = Clock::new(now)).anew(redis)
    }

    /// Repeats a refusal without asking until its wait is over, or until it is so old.
    ///
    /// A flood of refused requests costs Redis one command for each client in that time; a second is a good value. Units
    /// that others give back are seen when it is over. At most 10,000 keys are remembered.
    pub fn remember(self, remember: Duration) -> Guard {
        let redis = self.asker.redis().clone();
        self.with(|settings| settings.remember = remember).anew(redis)
    }

    /// What becomes of requests while Redis is away.
    ///
    /// # Panics
    ///
    /// If [`on_away`](Guard::on_away) says that already.
    pub fn fail(self, fail: Fail) -> Guard {
        let guard = self.with(|settings| settings.fail = Some(fail)).with_one_answer_to_away();
        guard.asker.nodes().tell_by(|announcer| announcer.is_local |= fail == Fail::Local);
        guard.with_local()
    }

    /// Is told why limits are local from now on, or by `None` that Redis decides again, with [`Fail::Local`]. The log says
    /// so too.
    pub fn on_local(self, tell: impl Fn(Option<&RedisError>) + Send + Sync + 'static) -> Guard {
        self.asker.nodes().tell_by(|announcer| announcer.on_local = Some(Arc::new(tell)));
        self
    }

    /// Answers a request while Redis is away, or with `None` lets it pass.
    ///
    /// # Panics
    ///
    /// If [`fail`](Guard::fail) says that already.
    pub fn on_away(
        self,
        answer: impl Fn(&Parts, &RedisError) -> Option<Response<String>> + Send + Sync + 'static,
    ) -> Guard {
        self.with(|settings| settings.on_away = Some(Arc::new(answer))).with_one_answer_to_away()
    }

    fn with_one_answer_to_away(self) -> Guard {
        let Settings { fail, on_away, .. } = &*self.settings;
        assert!(fail.is_none() || on_away.is_none(), "fail and on_away are two answers to one question");
        self
    }

    /// Answers a request that is over a limit, in place of 429 or 403 with problem details.
    ///
    /// The header fields of the refusal are kept, unless the answer has such fields.
    ///
    /// ```
    /// # use redis_rl_client::web::Guard;
    /// # fn page(guard: Guard) -> Guard {
    /// guard.on_limited(|_head, _decision, refusal| {
    ///     let page = http::Response::builder().status(refusal.status()).header("content-type", "text/html");
    ///     page.body("<h1>Too fast</h1>".to_owned()).expect("a response")
    /// })
    /// # }
    /// ```
    pub fn on_limited(
        self,
        answer: impl Fn(&Parts, &Decision, Refusal) -> Response<String> + Send + Sync + 'static,
    ) -> Guard {
        self.with(|settings| settings.on_limited = Some(Arc::new(answer)))
    }

    /// Is told each decision on a request, also if it was remembered or leased, and the policies that took part.
    ///
    /// The decision has a row for each quota of each policy. A [dry run](Policy::dry_run) is told by itself. Where a
    /// handler asks without a head, it has the decision itself.
    pub fn on_decision(self, tell: impl Fn(&Parts, &Decision, &[Policy]) + Send + Sync + 'static) -> Guard {
        self.with(|settings| settings.on_decision = Some(Arc::new(tell)))
    }

    /// Is told of each request that Redis did not decide why. Without it, an error of a request's own is a warning, at most
    /// once a second.
    pub fn on_error(self, tell: impl Fn(&RedisError) + Send + Sync + 'static) -> Guard {
        self.with(|settings| settings.teller.on_error = Some(Arc::new(tell)))
    }

    /// Gives back what is leased. It ends after some timeouts if Redis is silent.
    pub async fn close(&self) {
        self.asker.close().await;
        if let Some(local) = &self.local {
            local.close().await;
        }
    }

    /// Takes units of the policies for a request, of all or of none: by its head, as middleware does, by what has been
    /// taken for it, or by the key of a client.
    ///
    /// A number is the cost by each policy. Several policies may have costs of their own, by name:
    /// `[("requests", 1), ("tokens", 500)]`; by `()` each has its own.
    ///
    /// A refusal tells of the limits further out too, and what was taken goes back if it is the answer; a request that is
    /// answered otherwise keeps it. A negative cost is refused with 500: it would give back what other requests took. So
    /// is a request without a head if the policies or their costs depend on it.
    pub async fn take(
        &self,
        request: impl Into<Requester<'_>>,
        costs: impl Into<Costs>,
    ) -> Result<Reservation, Refusal> {
        self.told(self.take_by(request.into(), costs.into()).await)
    }

    async fn take_by(&self, request: Requester<'_>, costs: Costs) -> Result<Reservation, Refusal> {
        let (outer, head) = (request.reservation(), request.head());
        let policies = match (&self.policies.0, head) {
            (Source::Fixed(policies), _) => policies.clone(),
            (Source::Chosen(choose), Some(head)) => choose(head).await.into(),
            (Source::Chosen(_), None) => return Err(Refusal::misused("the policies depend on the request")),
        };
        let policies = self.named(policies, head)?;
        checked(&policies, &outer.policies()).and_then(|()| costs.check(&policies))?;
        let (mut enforced, mut dry_runs) = (Group::default(), Vec::new());
        for policy in policies.iter() {
            let Some(client) = self.client(policy, &request, &outer)? else { continue };
            let cost = costs.of(policy.name()).or_else(|| policy.cost_of(head));
            let share = self.share(policy, &client, cost)?;
            let asked = (policy.clone(), client);
            if policy.is_dry_run() {
                // It must not have the others refuse: it is asked by itself, at once.
                dry_runs.push((vec![asked], vec![share]));
            } else {
                enforced.0.push(asked);
                enforced.1.push(share);
            }
        }
        let enforced = Some(enforced).filter(|(_, shares)| !shares.is_empty());
        self.ask(enforced.into_iter().chain(dry_runs), head, &outer).await?;
        Ok(outer)
    }

    /// With the name of the route for policies that have none.
    fn named(&self, policies: Arc<[Policy]>, head: Option<&Parts>) -> Result<Arc<[Policy]>, Refusal> {
        if policies.iter().all(|policy| !policy.name().is_empty()) {
            return Ok(policies);
        }
        let unknown = || {
            Refusal::misused(&format!(
                "this limit has no name, and its route is not known: {}",
                to_name(&policies)
            ))
        };
        let (method, pattern) = head.and_then(route).ok_or_else(unknown)?;
        let stands = self.stands.get_or_init(|| pattern.clone());
        if *stands != pattern {
            let why = format!("a limit stands on {stands} and on {pattern}: {}", to_name(&policies));
            return Err(Refusal::misused(&why));
        }
        let name = format!("{method} {pattern}");
        Ok(policies.iter().map(|policy| policy.clone().or_named(&name)).collect())
    }

    /// Whose units a policy counts: what its own function tells, or that of the guard; else whom the limits further out
    /// have counted, or else the network address.
    fn client(
        &self,
        policy: &Policy,
        request: &Requester<'_>,
        outer: &Reservation,
    ) -> Result<Option<Client>, Refusal> {
        let key = match (&policy.0.key, request) {
            (Some(Key::Text(key)), _) => return Ok(Some(Client::Everybody(key.clone()))),
            (_, Requester::Client(key)) => return Ok(Some(Client::Key(key.to_string()))),
            (Some(Key::Of(key)), _) => Some(key),
            (None, _) => self.settings.key.as_ref(),
        };
        match (key, request.head()) {
            (Some(key), Some(head)) => Ok(key(head).map(Client::Key)),
            (_, Some(head)) => outer.client(|| self.address(head)).map(Some),
            (_, None) => outer.client(|| outer.address().to_owned()).map(Some),
        }
    }

    /// The network address of a request.
    fn address(&self, head: &Parts) -> String {
        client_address(peer(&head.extensions), &head.headers, self.settings.proxies)
    }

    /// What a request takes of a policy.
    fn share(&self, policy: &Policy, client: &Client, cost: Option<i64>) -> Result<Share, Refusal> {
        let cost = cost.ok_or_else(|| Refusal::misused("the cost depends on the request"))?;
        if cost < 0 {
            return Err(Refusal::misused("the cost of a request is negative"));
        }
        let prefix = &self.settings.prefix;
        if matches!(client, Client::Address(address) if address == UNKNOWN) {
            self.settings.tell_once(
                "requests without a network address share one limit: serve axum by \
                 into_make_service_with_connect_info::<SocketAddr>(), add a SocketAddr to the request's extensions, \
                 or give the guard a key",
            );
        }
        let name = policy.name();
        // Nothing but addresses stands in braces: a name that users choose chooses no slot.
        let key = match client {
            Client::Everybody(key) | Client::Key(key) => format!("{prefix}{name}:{key}"),
            Client::Address(address) => format!("{prefix}{name}:{{{address}}}"),
        };
        // The server refuses a larger cost, which no limit allows anyway.
        Ok(Share { key: key.into_bytes().into(), rules: policy.0.rules.clone(), cost: cost.min(MAX_COST) })
    }

    /// By Redis, or if that does not decide, by this process.
    fn decide(&self, shares: Vec<Share>) -> impl Future<Output = (Held, RedisResult<Answer>)> + Send + use<> {
        let local = self.local.clone().map(|local| (local, shares.clone()));
        let (asked, settings) = (self.asker.take(shares), self.settings.clone());
        async move {
            match (asked.await, local) {
                ((_, Err(error)), Some((local, shares))) => {
                    settings.teller.tell(Some(&error));
                    local.take(shares).await
                }
                (answered, _) => answered,
            }
        }
    }

    /// Asks for all groups, and tells those who want to know. Each is decided by itself.
    async fn ask(
        &self,
        groups: impl Iterator<Item = Group>,
        head: Option<&Parts>,
        outer: &Reservation,
    ) -> Result<(), Refusal> {
        let asked: Vec<_> = groups.map(|(asked, shares)| (asked, self.decide(shares))).collect();
        let (mut parts, mut refusal) = (Vec::new(), None);
        for (asked, answered) in asked {
            let (held, answer) = answered.await;
            if parts.is_empty() {
                self.settings.teller.tell(answer.as_ref().err());
            }
            let decision = answer.as_ref().map(Answer::decision).map_err(Clone::clone);
            let part = Part::new(asked, held, answer);
            if let (Some(tell), Some(head), Ok(decision)) = (&self.settings.on_decision, head, &decision) {
                tell(head, decision, &part.policies);
            }
            match decision {
                _ if part.is_dry_run() => {}
                Ok(decision) if decision.limited => {
                    let told = [outer.told(true), part.told(true)].concat();
                    refusal = Some(Refusal::limited(&told, &decision));
                }
                Err(error) if self.settings.fail == Some(Fail::Closed) => {
                    refusal = Some(Refusal::away(error));
                }
                _ => {}
            }
            parts.push(part);
        }
        // Parts that are not added go back.
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        outer.add(parts);
        Ok(())
    }

    /// Corrects what was taken for a request to what was used, whichever limit took it, however late: by the names of
    /// policies, as in `[("tokens", 420)]`, or a number if one policy limits the request.
    ///
    /// What is given back was counted when it was taken, and nobody else's units are. What is taken in addition is
    /// counted even if it is over the limit, since it has been used. The last settled cost counts. If Redis is away,
    /// or if the request was answered by a refusal, nothing changes.
    ///
    /// An error, answered 500, is a name that no policy has, a number for several, and a negative cost.
    pub async fn settle(
        &self,
        request: impl Into<Requester<'_>>,
        used: impl Into<Costs>,
    ) -> Result<(), Refusal> {
        let (outer, used) = (request.into().reservation(), used.into());
        let policies = outer.policies();
        self.told(used.check(&policies).map_err(Refusal::from))?;
        if used.is_number() && policies.len() != 1 {
            let why = format!("{} policies limit the request: name them", policies.len());
            return self.told(Err(Refusal::misused(&why)));
        }
        for part in outer.parts() {
            part.settle(&used, &self.settings.teller).await;
        }
        Ok(())
    }

    /// Begins a request, if this is the outermost limit that it meets.
    pub(crate) fn begin(&self, head: &mut Parts) -> Option<Reservation> {
        if head.extensions.get::<Reservation>().is_some() {
            return None;
        }
        let outermost = Reservation::begun(self.address(head));
        head.extensions.insert(outermost.clone());
        Some(outermost)
    }

    /// What middleware answers in place of the service, if it does.
    pub(crate) async fn answer(&self, head: &Parts) -> Option<Response<String>> {
        let mut response = match (self.take(head, ()).await, &self.settings.on_limited) {
            (Ok(reserved), _) => {
                let away = self.settings.on_away.as_ref()?;
                away(head, &reserved.error()?)?
            }
            (Err(refusal), Some(answer)) if refusal.decision().is_some() => {
                let (fields, decision) = (refusal.fields().clone(), refusal.decision().cloned()?);
                let mut response = answer(head, &decision, refusal);
                for (name, value) in &fields {
                    response.headers_mut().entry(name).or_insert_with(|| value.clone());
                }
                response
            }
            (Err(refusal), _) => refusal.answer(head),
        };
        response.extensions_mut().insert(Refused);
        Some(response)
    }
}
