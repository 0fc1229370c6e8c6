//! Decides about the requests of a web service.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::Response;
use http::request::Parts;
use redis::{RedisError, RedisResult};

use super::answer::{Fields, FieldsOn, Figures};
use super::asker::{Asker, AskerSettings};
use super::block::{block, show};
use super::client::{UNKNOWN, client_address, peer, route};
use super::decision::Decision;
use super::outages::Outage;
use super::places::{Hold, Places};
use super::policies::{Policies, Source, checked};
use super::policy::{Key, KeyOf, Policy, check_name};
use super::refusal::Refusal;
use super::requester::{Costs, Requester};
use super::visit::{Asked, Client, Part, Visit};
use crate::commands::{Clock, Invalid, MAX_COST, Quota, Quotas, Verdict};
use crate::keys::{Answer, Share};
use crate::lines::{Redis, is_away, is_misused};
use crate::locked;

/// The log tells this many different mistakes, so that memory is bounded.
const MISTAKES: usize = 100;
/// How often it tells of requests that failed.
const INTERVAL: Duration = Duration::from_secs(1);

/// Limits the requests of a service by policies, on connections of its own. Clones share them.
///
/// It makes middleware for tower ([`layer`](Guard::layer)) and actix-web (`middleware`). [`limit`](Guard::limit) makes a guard
/// for a route. A handler decides by [`take`](Guard::take), looks by [`peek`](Guard::peek), corrects costs by
/// [`settle`](Guard::settle), and holds a place by [`hold`](Guard::hold).
#[derive(Clone)]
#[must_use]
pub struct Guard {
    asker: Asker,
    /// Decides while Redis is away, with [`Fail::Local`].
    local: Asker,
    places: Places,
    policies: Policies,
    /// Tells this guard from others of the same settings.
    itself: Arc<()>,
    settings: Arc<Settings>,
}

/// The settings of a guard, which the guards of its routes start with.
#[derive(Clone, Default)]
struct Settings {
    /// The key for policies without one of their own.
    key: Option<KeyOf>,
    proxies: usize,
    prefix: String,
    shown: (Fields, FieldsOn),
    fail: Option<Fail>,
    on_limited: Option<OnLimited>,
    /// Requests that failed since the log told of one, and when it did.
    failed: Arc<Mutex<(u64, Option<Instant>)>>,
    /// Mistakes that the log has told.
    mistakes: Arc<Mutex<HashSet<String>>>,
    /// The policies that a route names: the guard that has it, and its quotas.
    routes: Arc<Mutex<Routes>>,
}

type Routes = HashMap<String, (Arc<()>, Vec<Quota>)>;
type OnLimited = Arc<dyn Fn(Option<&Parts>, &Decision) -> Option<Response<String>> + Send + Sync>;

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

    /// Warns at most once a second of requests that Redis did not decide, and of which names. That it is away is told by
    /// [`Outages`](super::outages::Outages).
    fn tell_failed<'a>(&self, error: &RedisError, names: impl IntoIterator<Item = &'a str>) {
        if is_away(error) {
            return;
        }
        let (requests, warned) = &mut *locked(&self.failed);
        *requests += 1;
        if warned.is_none_or(|warned| warned.elapsed() >= INTERVAL) {
            // Of a key the log has what the application chose, and not whose it is.
            let keys: Vec<_> = names.into_iter().map(|name| format!("~{}{name}:*", self.prefix)).collect();
            let help = match (error.code(), keys.join(" ")) {
                (Some("NOPERM"), keys) => {
                    format!(": give the user {keys} by ACL SETUSER, or the guard a prefix that the user has")
                }
                _ => String::new(),
            };
            tracing::warn!("Redis does not decide: {error}{help} (requests: {requests})");
            (*requests, *warned) = (0, Some(Instant::now()));
        }
    }
}

const NO_ADDRESS: &str = if cfg!(feature = "axum") {
    "requests without a network address share one limit: serve axum 0.8 by \
     into_make_service_with_connect_info::<SocketAddr>(), add a SocketAddr to the request's extensions, or give the guard a key"
} else {
    "requests without a network address share one limit: add a SocketAddr to the request's extensions by a layer in front of the \
     guard's, or give the guard a key; the feature axum reads the ConnectInfo of axum 0.8"
};

fn names(asked: &[Asked]) -> impl Iterator<Item = &str> {
    asked.iter().map(|asked| asked.policy.name())
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
        let (local, places) = (asker.in_memory(), Places::new(asker.redis().clone()).by(asker.clone()));
        Ok(Guard { asker, local, places, policies, itself: Arc::default(), settings: Arc::default() })
    }

    /// A guard with other policies and the same settings, for a route or a handler. It shares the connections, the leases
    /// and the remembered refusals.
    ///
    /// A text of quotas is a policy that its route names, such as `/search`, whatever the method. In front of several routes it
    /// limits each by itself. For one limit of several routes, or two of one, use a [`Policy`] with a name.
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
        Ok(Guard { policies, itself: Arc::default(), ..self.clone() })
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
        Guard { local: asker.in_memory(), places: self.places.by(asker.clone()), asker, ..self }
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

    /// Which header fields answers have, besides `retry-after`.
    pub fn fields(self, fields: Fields) -> Guard {
        self.with(|settings| settings.shown.0 = fields)
    }

    /// Which answers have them.
    pub fn fields_on(self, answers: FieldsOn) -> Guard {
        self.with(|settings| settings.shown.1 = answers)
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
    pub fn fail(self, fail: Fail) -> Guard {
        self.asker.outages().tell_by(|announcer| announcer.is_local |= fail == Fail::Local);
        self.with(|settings| settings.fail = Some(fail))
    }

    /// How [`hold`](Guard::hold) holds places: `guard.places(|places| places.timeout(Duration::from_secs(5)))`.
    pub fn places(self, options: impl FnOnce(Places) -> Places) -> Guard {
        Guard { places: options(self.places.clone()).by(self.asker.clone()), ..self }
    }

    /// Gets told when Redis, or a node of a cluster, is away from now on, and when it decides again. The log tells it too.
    pub fn on_outage(self, tell: impl Fn(Outage<'_>) + Send + Sync + 'static) -> Guard {
        self.asker.outages().tell_by(|announcer| announcer.on_outage = Some(Arc::new(tell)));
        self
    }

    /// Gets each decision by which a policy refuses, remembered ones too, and the head of the request if that is known. It may
    /// return the answer, in place of problem details with status 429 or 403. The header fields of the refusal are added where
    /// the answer lacks them.
    ///
    /// If [dry runs](Policy::dry_run) alone refuse, the decision is [allowed](Decision::allowed), and what is returned is
    /// ignored.
    pub fn on_limited(
        self,
        answer: impl Fn(Option<&Parts>, &Decision) -> Option<Response<String>> + Send + Sync + 'static,
    ) -> Guard {
        self.with(|settings| settings.on_limited = Some(Arc::new(answer)))
    }

    /// Gives back all leases. If Redis is silent this ends after 5 timeouts.
    pub async fn close(&self) {
        self.asker.close().await;
        self.local.close().await;
    }

    /// Takes units of all policies for a request, or of none. `request` is its head, its [`Decision`], or the key of a client.
    ///
    /// The cost is a number if there is a single policy, numbers by name such as `[("requests", 1), ("tokens", 500)]`, or `()`
    /// for the costs that the policies have, as it is for those that are not named. A policy that the request has met before
    /// adds up.
    ///
    /// # Errors
    ///
    /// If a limit refuses. If the [`Refusal`] is the answer to the request, what limits further out took for it goes back,
    /// unless an earlier `take` was granted: what that took has been used. A name of no policy and a negative cost, which would
    /// give back units of other requests, are refused with 500; so is a request without a head if the policies or their costs
    /// depend on it.
    pub async fn take(
        &self,
        request: impl Into<Requester<'_>>,
        costs: impl Into<Costs>,
    ) -> Result<Decision, Refusal> {
        let request = request.into();
        self.told(self.take_by(&request, &costs.into(), true).await)?;
        Ok(decision(&request, &request.visit.parts()))
    }

    async fn take_by(&self, request: &Requester<'_>, costs: &Costs, is_by_hand: bool) -> Result<(), Refusal> {
        let groups = self.groups(request, costs).await?;
        request.visit.meet(groups.iter().flatten())?;
        let parts = self.ask(groups, request).await?;
        request.visit.add(parts, is_by_hand);
        Ok(())
    }

    /// What [`take`](Guard::take) would decide by the costs that the policies have. It counts nothing and calls no hook. Units
    /// that are leased show as used. While Redis is away and `fail` is not local, the decision has no figures.
    ///
    /// # Errors
    ///
    /// After a mistake of the application, as in [`take`](Guard::take). A limit that would refuse is no error.
    pub async fn peek(&self, request: impl Into<Requester<'_>>) -> Result<Decision, Refusal> {
        self.told(self.peek_by(&request.into()).await)
    }

    async fn peek_by(&self, request: &Requester<'_>) -> Result<Decision, Refusal> {
        let groups = self.groups(request, &Costs::default()).await?;
        let shares: Vec<Share> = groups.iter().flatten().map(|asked| asked.share.clone()).collect();
        let looked = self.asker.peek(&shares).await;
        let mut looked = self
            .or_local(looked, groups.iter().flat_map(|asked| names(asked)), async |local| {
                local.peek(&shares).await
            })
            .await?
            .map(Vec::into_iter);
        let parts: Vec<_> = groups
            .into_iter()
            .map(|asked| {
                let answer = match &mut looked {
                    Ok(looked) => {
                        let mut rows: Vec<_> = looked.by_ref().take(asked.len()).collect();
                        asked.iter().zip(&mut rows).for_each(|(asked, rows)| show(&asked.policy, rows));
                        Ok(looked_at(rows))
                    }
                    Err(error) => Err(error.clone()),
                };
                Arc::new(Part::new(asked, None, answer, self.settings.shown))
            })
            .collect();
        Ok(decision(request, &parts))
    }

    /// Holds one of `n` places of the client of a request, until that is released or dropped: see [`Places`]. Its key is
    /// `name:key`, by the key, the prefix and `fail` of this guard. While Redis is away and `fail` is open, the [`Hold`] is
    /// without a place.
    ///
    /// # Errors
    ///
    /// If all places are taken, by a [`Refusal`] with status 429, or as in [`take`](Guard::take).
    pub async fn hold(&self, request: impl Into<Requester<'_>>, name: &str, n: u64) -> Result<Hold, Refusal> {
        self.told(self.hold_by(&request.into(), name, n).await)
    }

    async fn hold_by(&self, request: &Requester<'_>, name: &str, n: u64) -> Result<Hold, Refusal> {
        check_name(name)?;
        let Some(client) = self.client(None, request)? else { return Ok(Hold::without_place()) };
        let key = self.stored(name, &client);
        if request.visit.counts_in(&key) {
            return Err(Refusal::misused(&format!(
                "a policy counts in the key of the places {name:?}: rename one"
            )));
        }
        let (prefix, rest) = key.split_at(self.settings.prefix.len());
        let mark = [prefix, b"waiting:", rest].concat();
        let held = self.places.hold_by(&key, mark.clone(), n).await;
        let local = async |local: &Asker| self.places.by(local.clone()).hold_by(&key, mark.clone(), n).await;
        match self.or_local(held, [name], local).await? {
            Ok(Some(hold)) => Ok(hold),
            Ok(None) => {
                let (limited, reset_after) = (true, self.places.ttl);
                let figures = Figures { limited, limit: n, remaining: 0, retry_after: None, reset_after };
                let (visit, taken) = (&request.visit, request.visit.parts());
                let decision = Decision::by(visit, &taken, &taken, Some((name.to_owned(), figures)));
                Err(self.refusal(request, decision))
            }
            Err(error) if self.settings.fail == Some(Fail::Closed) => Err(Refusal::away(error)),
            Err(_) => Ok(Hold::without_place()),
        }
    }

    /// Has this process answer in place of Redis, if that does not and `fail` is local. A mistake of the application is a
    /// refusal.
    async fn or_local<T>(
        &self,
        answered: RedisResult<T>,
        names: impl IntoIterator<Item = &str>,
        ask: impl AsyncFnOnce(&Asker) -> RedisResult<T>,
    ) -> Result<RedisResult<T>, Refusal> {
        match answered {
            Err(mistake) if is_misused(&mistake) => {
                Err(Refusal::misused(mistake.detail().unwrap_or_default()))
            }
            Err(error) => {
                self.settings.tell_failed(&error, names);
                let is_local = self.settings.fail == Some(Fail::Local);
                Ok(if is_local { ask(&self.local).await } else { Err(error) })
            }
            answered => Ok(answered),
        }
    }

    /// What a request asks for: what is decided together, and each dry run, which could refuse the others there.
    async fn groups(&self, request: &Requester<'_>, costs: &Costs) -> Result<Vec<Vec<Asked>>, Refusal> {
        let head = request.head.as_deref();
        let policies = match (&self.policies.0, head) {
            (Source::Fixed(policies), _) => policies.clone(),
            (Source::Chosen(choose), Some(head)) => choose(head).await.into(),
            (Source::Chosen(_), None) => return Err(Refusal::misused("the policies depend on the request")),
        };
        let policies = self.named(policies, head)?;
        checked(&policies).and_then(|()| costs.check(&policies))?;
        let (mut enforced, mut groups) = (Vec::new(), Vec::new());
        for policy in policies.iter() {
            let Some(client) = self.client(policy.0.key.as_ref(), request)? else { continue };
            let cost = costs.of(policy.name()).or_else(|| policy.cost_of(head));
            let share = self.share(policy, &client, cost)?;
            let asked = Asked { policy: policy.clone(), client, share };
            if policy.is_dry_run() { groups.push(vec![asked]) } else { enforced.push(asked) }
        }
        groups.splice(..0, Some(enforced).filter(|enforced| !enforced.is_empty()));
        Ok(groups)
    }

    /// The policies, with the name of the route for those that have none.
    fn named(&self, policies: Arc<[Policy]>, head: Option<&Parts>) -> Result<Arc<[Policy]>, Refusal> {
        if policies.iter().all(|policy| !policy.name().is_empty()) {
            return Ok(policies);
        }
        let unknown = "this limit has no name, and its route is not known";
        let name = head.and_then(route).ok_or_else(|| nameless(unknown, &policies))?;
        for policy in policies.iter().filter(|policy| policy.name().is_empty()) {
            let mut routes = locked(&self.settings.routes);
            let this = || (self.itself.clone(), policy.quotas().to_vec());
            let (guard, quotas) = routes.entry(name.clone()).or_insert_with(this);
            if !Arc::ptr_eq(guard, &self.itself) && quotas != policy.quotas() {
                return Err(nameless(&format!("two limits without a name stand on {name}"), &policies));
            }
        }
        Ok(policies.iter().map(|policy| policy.clone().or_named(&name)).collect())
    }

    /// Whose units are counted: by a policy's own key or that of the guard, else by what the limits further out have counted,
    /// else by the network address. `None` if the request is not limited.
    fn client(&self, own: Option<&Key>, request: &Requester<'_>) -> Result<Option<Client>, Refusal> {
        let key = match own {
            Some(Key::Text(key)) => return Ok(Some(Client::Everybody(key.clone()))),
            Some(Key::Of(key)) => Some(key),
            None => self.settings.key.as_ref(),
        };
        let visit = &request.visit;
        match (key, request.head.as_deref()) {
            (Some(key), Some(head)) => Ok(key(head).map(Client::Key)),
            (None, Some(head)) => Ok(Some(visit.client_or(|| self.address(head))?)),
            // Its client was named by a key.
            (_, None) => Ok(Some(visit.client_or(|| visit.client.clone())?)),
        }
    }

    fn address(&self, head: &Parts) -> Client {
        Client::Address(client_address(peer(&head.extensions), &head.headers, self.settings.proxies))
    }

    /// What a request takes of a policy.
    fn share(&self, policy: &Policy, client: &Client, cost: Option<i64>) -> Result<Share, Refusal> {
        let cost = cost.ok_or_else(|| Refusal::misused("the cost depends on the request"))?;
        if cost < 0 {
            return Err(Refusal::misused("the cost of a request is negative"));
        }
        let key = self.stored(policy.name(), client);
        // The server answers a larger cost by an error. No limit allows it anyway.
        Ok(Share { key, rules: policy.0.rules.clone(), cost: cost.min(MAX_COST) })
    }

    /// The key in which Redis counts a client.
    fn stored(&self, name: &str, client: &Client) -> Arc<[u8]> {
        let prefix = &self.settings.prefix;
        if matches!(client, Client::Address(address) if address == UNKNOWN) {
            self.settings.tell_once(NO_ADDRESS);
        }
        // Only addresses are put in braces: a name that users choose must not choose the slot.
        let key = match client {
            Client::Everybody(key) | Client::Key(key) => format!("{prefix}{name}:{key}"),
            Client::Address(address) => format!("{prefix}{name}:{{{address}}}"),
        };
        key.into_bytes().into()
    }

    /// Asks for all groups at once, calls the hook, and returns what was taken, or the refusal.
    async fn ask(&self, groups: Vec<Vec<Asked>>, request: &Requester<'_>) -> Result<Vec<Arc<Part>>, Refusal> {
        let shares = |asked: &[Asked]| asked.iter().map(|asked| asked.share.clone()).collect();
        let asked: Vec<_> =
            groups.into_iter().map(|asked| (self.asker.take(shares(&asked)), asked)).collect();
        let (mut parts, mut away) = (Vec::new(), None);
        for (answered, asked) in asked {
            let (mut held, answer) = answered.await;
            let answer = self.or_local(answer, names(&asked), async |local| {
                let answer;
                (held, answer) = local.take(shares(&asked)).await;
                answer
            });
            let mut answer = answer.await?;
            if let Some(answer) = answer.as_mut().ok().filter(|answer| answer.limited) {
                block(held.asker(), &asked, answer).await;
            }
            let error = answer.as_ref().err().cloned();
            let part = Part::new(asked, Some(held), answer, self.settings.shown);
            away = away.or(error.filter(|_| !part.is_dry_run()));
            parts.push(Arc::new(part));
        }
        let give_back = || parts.iter().for_each(|part| part.give_back());
        if let Some(error) = away.filter(|_| self.settings.fail == Some(Fail::Closed)) {
            give_back();
            return Err(Refusal::away(error));
        }
        if parts.iter().any(|part| part.limited().is_some()) {
            let before = request.visit.parts();
            let decision = Decision::by(&request.visit, &[&before[..], &parts].concat(), &before, None);
            let is_limited = decision.limited();
            if is_limited {
                give_back();
            }
            let refusal = self.refusal(request, decision);
            if is_limited {
                return Err(refusal);
            }
        }
        Ok(parts)
    }

    /// Calls the hook.
    fn refusal(&self, request: &Requester<'_>, decision: Decision) -> Refusal {
        let hook = self.settings.on_limited.as_ref();
        let answer = hook.and_then(|hook| hook(request.head.as_deref(), &decision));
        Refusal::by(decision, answer)
    }

    /// Corrects the costs of a request to what was used, whichever limit took it, however late: by the names of policies, as
    /// in `[("tokens", 420)]`, or by a number if a single policy limits the request. Of a policy that the request has met several
    /// times it is the sum. Of a request for which a handler took more than 100 times, what the first of them took stays counted.
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
        let (visit, used) = (request.into().visit, used.into());
        self.told(used.check(&visit.all_policies()).map_err(Refusal::from))?;
        let parts = visit.share_out(|name| used.of(name));
        // All are sent at once, so that none is left out if this future is dropped.
        let settled: Vec<_> = parts.iter().map(|(part, used)| part.settle(used.clone())).collect();
        for (settled, (part, _)) in settled.into_iter().zip(&parts) {
            settled.await.unwrap_or_else(|error| self.settings.tell_failed(&error, names(&part.asked)));
        }
        Ok(())
    }

    /// Adds a [`Visit`] to a request that has none, and returns it: then this is the outermost limit.
    pub(crate) fn begin(&self, head: &mut Parts) -> Option<Visit> {
        if head.extensions.get::<Visit>().is_some() {
            return None;
        }
        let visit = Visit::new(self.address(head));
        head.extensions.insert(visit.clone());
        Some(visit)
    }

    /// The answer of middleware in place of the service's, unless the request passes.
    pub(crate) async fn answer(&self, head: &Parts) -> Option<Response<String>> {
        let request = Requester::from(head);
        let taken = match request.visit.pass(&self.itself) {
            Ok(()) => self.take_by(&request, &Costs::default(), false).await,
            Err(twice) => Err(twice.into()),
        };
        self.told(taken).err().map(|refusal| refusal.answer(head))
    }
}

/// What these parts decide about a request.
fn decision(request: &Requester<'_>, parts: &[Arc<Part>]) -> Decision {
    let head = request.head.clone().map(|head| Arc::new(head.into_owned()));
    Decision { head, ..Decision::by(&request.visit, parts, &[], None) }
}

/// The answer that a request would have got, by the rows of its shares.
fn looked_at(rows: Vec<Vec<Verdict>>) -> Answer {
    let figures = Figures::of(rows.concat());
    let (limited, retry_after) =
        figures.map_or((false, None), |figures| (figures.limited, figures.retry_after));
    let taken = vec![0; rows.len()];
    Answer { limited, retry_after, at: None, rows: rows.into_iter().map(Some).collect(), taken }
}
