//! Decides about the requests of a web service.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use http::Response;
use http::request::Parts;
use redis::{RedisError, RedisResult};

use super::asker::{Asker, AskerSettings, Held};
use super::client::{UNKNOWN, client_address, peer, route};
use super::policies::{Policies, Source, checked};
use super::policy::{Key, KeyOf, Policy};
use super::refusal::{Refusal, Refused};
use super::reservation::{Client, Costs, Part, Requester, Reservation};
use super::teller::Teller;
use crate::commands::{Clock, Decision, Invalid, MAX_COST, Quotas};
use crate::keys::{Answer, Share};
use crate::lines::{Redis, is_misused};
use crate::locked;

/// The log tells this many different mistakes, so that memory is bounded.
const MISTAKES: usize = 100;

/// Limits the requests of a service by policies, on connections of its own. Clones share them.
///
/// It makes middleware for tower ([`layer`](Guard::layer)) and actix-web (`middleware`). [`limit`](Guard::limit) makes a guard
/// for a route. A handler decides by [`take`](Guard::take), and corrects costs by [`settle`](Guard::settle).
#[derive(Clone)]
#[must_use]
pub struct Guard {
    asker: Asker,
    /// Decides while Redis is away, with [`Fail::Local`].
    local: Asker,
    policies: Policies,
    /// The first route on which a policy without a name was met.
    stands: Arc<OnceLock<String>>,
    settings: Arc<Settings>,
}

/// The settings of a guard, which the guards of its routes start with.
#[derive(Clone, Default)]
struct Settings {
    /// The key for policies without one of their own.
    key: Option<KeyOf>,
    proxies: usize,
    prefix: String,
    fail: Option<Fail>,
    on_decision: Option<OnDecision>,
    on_limited: Option<OnLimited>,
    on_away: Option<OnAway>,
    teller: Teller,
    /// Mistakes that the log has told.
    mistakes: Arc<Mutex<HashSet<String>>>,
}

/// Policies that are decided together: each with its client, and the shares to ask for.
type Group = (Vec<(Policy, Client)>, Vec<Share>);
type OnDecision = Arc<dyn Fn(&Parts, &Decision, &[Policy]) + Send + Sync>;
type OnLimited = Arc<dyn Fn(&Parts, &Decision, Refusal) -> Response<String> + Send + Sync>;
type OnAway = Arc<dyn Fn(&Parts, &RedisError) -> Option<Response<String>> + Send + Sync>;

/// What happens to requests while Redis is away: no connection, no reply in time, or an error reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fail {
    /// They pass, without limits.
    Open,
    /// They are answered 503, so what the limits protect stays protected.
    Closed,
    /// This process decides by the same policies and counts of its own: at most the limit passes in each process. Redis
    /// decides again within a second after it is back.
    Local,
}

/// Reads `open`, `closed` or `local`.
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
    /// Warns of a mistake once, however many requests meet it.
    fn tell_once(&self, mistake: &str) {
        let mut told = locked(&self.mistakes);
        if told.len() < MISTAKES && !told.contains(mistake) {
            told.insert(mistake.to_owned());
            tracing::warn!("{mistake}");
        }
    }
}

/// The refusal by a limit that its route cannot name. It tells which code to write.
fn nameless(why: &str, policies: &[Policy]) -> Refusal {
    let unnamed = policies.iter().find(|policy| policy.name().is_empty());
    let quotas = Quotas::from(unnamed.map_or_else(Vec::new, |policy| policy.quotas().to_vec()));
    let code = format!("guard.limit(Policy::new(\"a-name\", \"{quotas}\")?)");
    Refusal::misused(&format!("{why}: give it a name, as {code}"))
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Guard");
        fields.field("redis", self.asker.redis()).field("policies", &self.policies);
        fields.field("fail", &self.settings.fail).finish_non_exhaustive()
    }
}

impl Guard {
    /// A guard that waits at most 100 ms for Redis, and lets requests pass while it is away.
    ///
    /// A text of quotas, such as `5/10s, 100/h`, is a policy with the name `requests`. With an empty list only routes are
    /// limited.
    ///
    /// # Errors
    ///
    /// If the text cannot be read as quotas, if two policies have the same name, or if all together have more than 64 quotas.
    pub fn new<P>(client: impl Into<Redis>, policies: P) -> Result<Guard, Invalid>
    where
        P: TryInto<Policies>,
        Invalid: From<P::Error>,
    {
        let policies = policies.try_into()?.or_named("requests").checked()?;
        let asker = Asker::new(client.into());
        let (local, stands) = (asker.in_memory(), Arc::default());
        Ok(Guard { asker, local, policies, stands, settings: Arc::default() })
    }

    /// A guard with other policies and the same settings, for a route or a handler. It shares the connections, the leases
    /// and the remembered refusals.
    ///
    /// A text of quotas is a policy that its route names, such as `GET /search`. For several routes, use a [`Policy`] with a
    /// name.
    ///
    /// # Errors
    ///
    /// See [`new`](Guard::new).
    pub fn limit<P>(&self, policies: P) -> Result<Guard, Invalid>
    where
        P: TryInto<Policies>,
        Invalid: From<P::Error>,
    {
        let policies = policies.try_into()?.checked()?;
        Ok(Guard { policies, stands: Arc::default(), ..self.clone() })
    }

    /// Logs the mistake of the application that a refusal is about, if it is.
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

    /// Starts over: leases and remembered refusals belong to the old settings.
    fn anew(self, change: impl FnOnce(&mut AskerSettings)) -> Guard {
        let asker = self.asker.with(change);
        Guard { local: asker.in_memory(), asker, ..self }
    }

    /// The key of a request by its head, for policies without a key of their own. With `None` they do not limit the request.
    ///
    /// If this is not set, the key is the one by which limits further out have counted the request, else the network
    /// address. That is a `SocketAddr` among the request's extensions, or with feature `axum` its `ConnectInfo`; requests
    /// without one share the key `unknown`.
    pub fn key(self, key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Guard {
        self.with(|settings| settings.key = Some(Arc::new(key)))
    }

    /// The number of your own proxies that a request passes: see [`client_address`].
    pub fn proxies(self, proxies: usize) -> Guard {
        self.with(|settings| settings.proxies = proxies)
    }

    /// The beginning of all keys, before the name of the policy.
    pub fn prefix(self, prefix: impl Into<String>) -> Guard {
        self.with(|settings| settings.prefix = prefix.into())
    }

    /// How long Redis may be silent until it is away: see [`Redis::timeout`].
    ///
    /// # Panics
    ///
    /// If it is 0.
    pub fn timeout(self, timeout: Duration) -> Guard {
        self.anew(|settings| settings.redis = settings.redis.clone().timeout(timeout))
    }

    /// Decides by this clock instead of those of the server and of this process. Tests use it to move time.
    pub fn clock(self, clock: impl Into<Clock>) -> Guard {
        self.anew(|settings| settings.clock = Some(clock.into()))
    }

    /// Repeats a refusal without asking until its wait is over, at most for this long. A second is a good value.
    ///
    /// A flood of refused requests then costs Redis one command for each client in that time, and units that another
    /// process gives back are seen after it. At most 10,000 keys are remembered.
    pub fn remember(self, remember: Duration) -> Guard {
        self.anew(|settings| settings.remember = remember)
    }

    /// What happens to requests while Redis is away.
    ///
    /// # Panics
    ///
    /// If [`on_away`](Guard::on_away) is set.
    pub fn fail(self, fail: Fail) -> Guard {
        let guard = self.with(|settings| settings.fail = Some(fail)).with_one_answer_to_away();
        guard.asker.nodes().tell_by(|announcer| announcer.is_local |= fail == Fail::Local);
        guard
    }

    /// Gets the error when Redis, or a node of a cluster, is away from now on, and `None` when it decides again. The log tells
    /// it too.
    pub fn on_outage(self, tell: impl Fn(Option<&RedisError>) + Send + Sync + 'static) -> Guard {
        self.asker.nodes().tell_by(|announcer| announcer.on_outage = Some(Arc::new(tell)));
        self
    }

    /// Answers a request while Redis is away, or with `None` lets it pass.
    ///
    /// # Panics
    ///
    /// If [`fail`](Guard::fail) is set.
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

    /// Answers a request that is over a limit, in place of 429 or 403 with problem details. The header fields of the refusal
    /// are added where the answer lacks them.
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

    /// Gets each decision on a request with a head, remembered and leased ones too, and the policies that took part.
    ///
    /// The decision has a row for each quota of each policy. A [dry run](Policy::dry_run) is a decision of its own.
    pub fn on_decision(self, tell: impl Fn(&Parts, &Decision, &[Policy]) + Send + Sync + 'static) -> Guard {
        self.with(|settings| settings.on_decision = Some(Arc::new(tell)))
    }

    /// Gets the error of each request that Redis did not decide. If this is not set, the log tells those that do not mean that
    /// Redis is away, at most once a second.
    pub fn on_error(self, tell: impl Fn(&RedisError) + Send + Sync + 'static) -> Guard {
        self.with(|settings| settings.teller.on_error = Some(Arc::new(tell)))
    }

    /// Gives back all leases. If Redis is silent this ends after 5 timeouts.
    pub async fn close(&self) {
        self.asker.close().await;
        self.local.close().await;
    }

    /// Takes units of all policies for a request, or of none. `request` is its head, its [`Reservation`], or the key of a
    /// client.
    ///
    /// The cost is a number for each policy, numbers by name such as `[("requests", 1), ("tokens", 500)]`, or `()` for the
    /// costs that the policies have.
    ///
    /// # Errors
    ///
    /// If a limit refuses. If the [`Refusal`] is the answer to the request, what limits further out took for it goes back. A
    /// negative cost is refused with 500, as it would give back units of other requests; so is a request without a head if
    /// the policies or their costs depend on it.
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
                // Decided together with the others, a dry run could refuse them.
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

    /// The policies, with the name of the route for those that have none.
    fn named(&self, policies: Arc<[Policy]>, head: Option<&Parts>) -> Result<Arc<[Policy]>, Refusal> {
        if policies.iter().all(|policy| !policy.name().is_empty()) {
            return Ok(policies);
        }
        let unknown = "this limit has no name, and its route is not known";
        let (method, pattern) = head.and_then(route).ok_or_else(|| nameless(unknown, &policies))?;
        let stands = self.stands.get_or_init(|| pattern.clone());
        if *stands != pattern {
            return Err(nameless(&format!("a limit stands on {stands} and on {pattern}"), &policies));
        }
        let name = format!("{method} {pattern}");
        Ok(policies.iter().map(|policy| policy.clone().or_named(&name)).collect())
    }

    /// Whose units a policy counts: by its own key or that of the guard, else by what the limits further out have counted,
    /// else by the network address. `None` if it does not limit the request.
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
        // Only addresses are put in braces: a name that users choose must not choose the slot.
        let key = match client {
            Client::Everybody(key) | Client::Key(key) => format!("{prefix}{name}:{key}"),
            Client::Address(address) => format!("{prefix}{name}:{{{address}}}"),
        };
        // The server answers a larger cost by an error. No limit allows it anyway.
        Ok(Share { key: key.into_bytes().into(), rules: policy.0.rules.clone(), cost: cost.min(MAX_COST) })
    }

    /// Has Redis decide, or this process if Redis does not and `fail` is local.
    fn decide(&self, shares: Vec<Share>) -> impl Future<Output = (Held, RedisResult<Answer>)> + Send + use<> {
        let is_local = self.settings.fail == Some(Fail::Local);
        let local = is_local.then(|| (self.local.clone(), shares.clone()));
        let (asked, settings) = (self.asker.take(shares), self.settings.clone());
        async move {
            match (asked.await, local) {
                ((_, Err(error)), Some((local, shares))) if !is_misused(&error) => {
                    settings.teller.tell(Some(&error));
                    local.take(shares).await
                }
                (answered, _) => answered,
            }
        }
    }

    /// Asks for all groups at once, calls the hooks, and refuses or notes what was taken.
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
            if let Some(mistake) = answer.as_ref().err().filter(|error| is_misused(error)) {
                return Err(Refusal::misused(mistake.detail().unwrap_or_default()));
            }
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
        // What parts took goes back when they are dropped without being added.
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        outer.add(parts);
        Ok(())
    }

    /// Corrects the costs of a request to what was used, whichever limit took it, however late: by the names of policies, as
    /// in `[("tokens", 420)]`, or by a number if a single policy limits the request.
    ///
    /// What was not used is given back as of the time when it was counted. What was used beyond the cost is counted, even
    /// over the limit. The last settled cost counts. If Redis is away, or the request was refused, nothing changes.
    ///
    /// # Errors
    ///
    /// If no policy has the name, a number is given for several policies, or a cost is negative. The answer is 500 then.
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
        let parts = outer.parts();
        // All are sent at once, so that none is left out if this future is dropped.
        let settled: Vec<_> = parts.iter().map(|part| part.settle(&used, &self.settings.teller)).collect();
        for settled in settled {
            settled.await;
        }
        Ok(())
    }

    /// Adds a [`Reservation`] to a request that has none, and returns it: then this is the outermost limit.
    pub(crate) fn begin(&self, head: &mut Parts) -> Option<Reservation> {
        if head.extensions.get::<Reservation>().is_some() {
            return None;
        }
        let outermost = Reservation::begun(self.address(head));
        head.extensions.insert(outermost.clone());
        Some(outermost)
    }

    /// The answer of middleware in place of the service's, unless the request passes.
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
