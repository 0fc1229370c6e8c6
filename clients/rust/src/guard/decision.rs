//! What guards have decided for a request.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use http::header::RETRY_AFTER;
use http::{Extensions, HeaderMap, StatusCode};
use redis::RedisResult;

use super::answer::{Figures, Told, fields_of, seconds, violated};
use super::asker::Held;
use super::policy::Policy;
use crate::commands::{Invalid, MAX_COST};
use crate::keys::{Answer, Share};
use crate::locked;

/// What guards have decided for a request, and the figures of its policies.
///
/// That of a request tells what all its limits have taken so far. A handler behind middleware passes it to
/// [`take`](crate::web::Guard::take) and [`settle`](crate::web::Guard::settle). With features `axum` and `actix` it is an
/// extractor. Clones are the same decision.
#[derive(Clone)]
pub struct Decision {
    request: Arc<Mutex<Request>>,
    /// What it tells of, if that is not what was taken for the request: a refusal, or a look.
    parts: Option<Vec<Arc<Part>>>,
    /// The name of the places of which none was free.
    full: Option<(String, Figures)>,
    /// Who asks, if no key tells: the network address, as the outermost limit sees it.
    pub(crate) client: Client,
}

/// What limits and handlers have done for a request.
#[derive(Default)]
struct Request {
    /// What the limits before the handler have taken, in this order.
    by_limits: Vec<Arc<Part>>,
    /// What a handler has taken last.
    by_hand: VecDeque<Arc<Part>>,
    /// The units that it took before, by policy. They stay counted, so that a long request stays small.
    spent: BTreeMap<String, i64>,
    /// The guards whose middleware it has passed, by what is theirs alone.
    passed: Vec<Arc<OnceLock<String>>>,
    /// Whether a handler was granted units. They are used, so a later refusal gives back nothing.
    is_used: bool,
}

/// So many takes of a handler can still be settled.
const SETTLED: usize = 100;

impl Request {
    fn taken(&self) -> Vec<Arc<Part>> {
        self.by_limits.iter().chain(&self.by_hand).cloned().collect()
    }
}

/// What was used of the policies of a part, by their indices.
type Used = Vec<(usize, i64)>;

/// What a policy asks for.
pub(crate) struct Asked {
    pub policy: Policy,
    pub client: Client,
    pub share: Share,
}

impl Asked {
    /// Why it cannot count a request besides another, if it is not the same.
    fn differs_from(&self, known: &Asked) -> Option<String> {
        let (name, known_name) = (self.policy.name(), known.policy.name());
        let (rules, known_rules) = (&self.share.rules, &known.share.rules);
        let has_rules = rules.algorithm == known_rules.algorithm && rules.quotas == known_rules.quotas;
        match (name == known_name, self.share.key == known.share.key) {
            (true, true) if has_rules => None,
            (true, false) if has_rules => Some(format!("{name:?} counts a request in two keys")),
            (true, _) => Some(format!("two policies of a request have the name {name:?}")),
            (false, true) => {
                Some(format!("{known_name:?} and {name:?} count a request in one key: rename one"))
            }
            (false, false) => None,
        }
    }
}

/// What one step has taken.
pub(crate) struct Part {
    pub asked: Vec<Asked>,
    /// The units that it took of each policy at first.
    took: Vec<i64>,
    /// The last answer, and since when it is known.
    answer: Mutex<(Instant, RedisResult<Answer>)>,
    /// `None` if nothing was asked for.
    held: Mutex<Option<Held>>,
    /// Whether the request was refused. Then nothing is settled any more.
    is_over: AtomicBool,
}

/// Whose units are counted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Client {
    /// The key that a function of the request returned.
    Key(String),
    Address(String),
    /// All clients together, under the key of the policy.
    Everybody(String),
}

impl Part {
    pub fn new(asked: Vec<Asked>, held: Option<Held>, answer: RedisResult<Answer>) -> Part {
        let took = answer.as_ref().map_or_else(|_| vec![0; asked.len()], |answer| answer.taken.clone());
        let (answer, held) = (Mutex::new((Instant::now(), answer)), Mutex::new(held));
        Part { asked, took, answer, held, is_over: AtomicBool::new(false) }
    }

    pub fn is_dry_run(&self) -> bool {
        self.asked.iter().all(|asked| asked.policy.is_dry_run())
    }

    pub fn is_limited(&self) -> bool {
        locked(&self.answer).1.as_ref().is_ok_and(|answer| answer.limited)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Gives back all that it took, since the request is refused.
    pub fn give_back(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        locked(&self.held).as_ref().map(Held::give_back);
    }

    /// Corrects what was taken of the policies at these indices. Its commands are sent by this call.
    pub fn settle(&self, used: Used) -> impl Future<Output = RedisResult<()>> {
        let is_to_settle = !used.is_empty() && !self.is_over();
        let held = locked(&self.held);
        let settled = held.as_ref().filter(|_| is_to_settle).map(|held| held.settle(used));
        async move {
            let Some(settled) = settled else { return Ok(()) };
            let settled = settled.await?;
            let mut answer = locked(&self.answer);
            if answer.1.as_ref().ok() != Some(&settled) {
                *answer = (Instant::now(), Ok(settled));
            }
            Ok(())
        }
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision").field("policies", &self.policies()).finish_non_exhaustive()
    }
}

impl Decision {
    /// The decision on a request, from its extensions. `None` if no limit is in front of the handler.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<Decision> {
        extensions.get().cloned()
    }

    /// That of a request for which nothing was taken yet.
    pub(crate) fn begun(client: Client) -> Decision {
        Decision { request: Arc::default(), parts: None, full: None, client }
    }

    /// Whether a policy refuses. Those of a dry run never do.
    #[must_use]
    pub fn limited(&self) -> bool {
        self.full.is_some() || self.refusing().is_some()
    }

    /// Whether the request may pass, as it also may while Redis is away. The contrary of [`limited`](Decision::limited).
    #[must_use]
    pub fn allowed(&self) -> bool {
        !self.limited()
    }

    /// After this time the same request is allowed, if no other comes. `None` if it was allowed, and if no wait helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        locked(&self.refusing()?.answer).1.as_ref().ok()?.retry_after
    }

    /// The figures of each policy by its name, those of dry runs too. While Redis is away there are none.
    #[must_use]
    pub fn policies(&self) -> BTreeMap<String, Figures> {
        let told = self.told(|_| true).into_iter();
        let figures = told.filter_map(|told| Some((told.policy.name().to_owned(), Figures::of(told.rows)?)));
        figures.chain(self.full.clone()).collect()
    }

    /// The status of an answer: 200, 429, or 403 if no wait helps.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.refusing() {
            Some(_) if self.retry_after().is_none() => StatusCode::FORBIDDEN,
            None if self.full.is_none() => StatusCode::OK,
            _ => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// The header fields of all policies by their newest figures, with `retry-after` if there is a wait. Empty if nothing was
    /// decided.
    #[must_use]
    pub fn fields(&self) -> HeaderMap {
        let is_to_wait = self.status() == StatusCode::TOO_MANY_REQUESTS;
        let mut fields = fields_of(&self.told(|part| !part.is_dry_run()), is_to_wait);
        fields.extend(self.retry_after().map(|wait| (RETRY_AFTER, seconds(wait).into())));
        fields
    }

    /// The names of what refuses, as problem details have them.
    pub(crate) fn violated(&self) -> Vec<String> {
        let full = self.full.iter().map(|(name, _)| name.clone());
        violated(&self.told(|part| !part.is_dry_run())).into_iter().chain(full).collect()
    }

    fn parts(&self) -> Vec<Arc<Part>> {
        self.parts.clone().unwrap_or_else(|| locked(&self.request).taken())
    }

    /// The part that refuses the request.
    fn refusing(&self) -> Option<Arc<Part>> {
        self.parts().into_iter().find(|part| !part.is_dry_run() && part.is_limited())
    }

    /// The newest figures of each policy of some parts, the outermost first, without what goes back.
    ///
    /// Of a refusal, earlier dry runs do not say that they would have refused: a hook was told of them before.
    fn told(&self, is_to_tell: impl Fn(&Part) -> bool) -> Vec<Told> {
        let limited = self.limited();
        let (all_goes_back, before) = {
            let request = locked(&self.request);
            (limited && !request.is_used, request.taken())
        };
        let mut all: Vec<Told> = Vec::new();
        for part in self.parts().into_iter().filter(|part| is_to_tell(part)) {
            let (since, Ok(answer)) = locked(&part.answer).clone() else { continue };
            let goes_back = all_goes_back || part.is_over();
            for (asked, (rows, taken)) in part.asked.iter().zip(answer.rows.into_iter().zip(answer.taken)) {
                let Some(mut rows) = rows else { continue };
                if self.parts.is_some() && before.iter().any(|known| Arc::ptr_eq(known, &part)) {
                    rows.iter_mut().for_each(|row| row.limited = false);
                }
                let back = if goes_back { taken.max(0).unsigned_abs() } else { 0 };
                let told = Told { policy: asked.policy.clone(), rows, since, back };
                match all.iter_mut().find(|known| known.policy.name() == told.policy.name()) {
                    None => all.push(told),
                    Some(known) if since < known.since => known.back += back,
                    Some(known) => *known = Told { back: back + known.back, ..told },
                }
            }
        }
        for Told { rows, back, .. } in &mut all {
            rows.iter_mut().for_each(|row| row.remaining = (row.remaining + *back).min(row.limit));
        }
        all
    }

    /// That of the request itself.
    pub(crate) fn of_request(&self) -> Decision {
        Decision { parts: None, full: None, ..self.clone() }
    }

    /// One that tells of these parts alone.
    pub(crate) fn telling(&self, parts: Vec<Arc<Part>>) -> Decision {
        Decision { parts: Some(parts), ..self.clone() }
    }

    /// One that tells of these parts besides what was taken for the request.
    pub(crate) fn and(&self, parts: &[Arc<Part>]) -> Decision {
        self.telling([&self.parts(), parts].concat())
    }

    /// One that tells that no place of this name is free.
    pub(crate) fn without_place(&self, name: &str, figures: Figures) -> Decision {
        Decision { full: Some((name.to_owned(), figures)), ..self.clone() }
    }

    /// Adds what was taken for a request that goes on, so that it is not given back.
    pub(crate) fn add(&self, parts: Vec<Arc<Part>>, is_by_hand: bool) {
        parts.iter().for_each(|part| _ = locked(&part.held).as_mut().map(Held::keep));
        let mut request = locked(&self.request);
        let request = &mut *request;
        if !is_by_hand {
            request.by_limits.extend(parts);
            return;
        }
        request.is_used |= !parts.is_empty();
        request.by_hand.extend(parts);
        while request.by_hand.len() > SETTLED
            && let Some(spent) = request.by_hand.pop_front()
        {
            for (asked, units) in spent.asked.iter().zip(&spent.took) {
                *request.spent.entry(asked.policy.name().to_owned()).or_default() += units;
            }
        }
    }

    /// Refuses a policy that has the name or the key of another one. The same may be met again.
    pub(crate) fn meet<'a>(&self, asked: impl IntoIterator<Item = &'a Asked>) -> Result<(), Invalid> {
        let (parts, mut met) = (self.parts(), Vec::new());
        for new in asked {
            let mut known = parts.iter().flat_map(|part| &part.asked).chain(met.iter().copied());
            if let Some(why) = known.find_map(|known| new.differs_from(known)) {
                return Err(Invalid::new(why));
            }
            met.push(new);
        }
        Ok(())
    }

    /// Whether a policy counts the request in this key.
    pub(crate) fn counts_in(&self, key: &[u8]) -> bool {
        self.parts().iter().flat_map(|part| &part.asked).any(|asked| *asked.share.key == *key)
    }

    /// Notes that the request passes the middleware of a guard. It may do so once.
    pub(crate) fn pass(&self, guard: &Arc<OnceLock<String>>) -> Result<(), Invalid> {
        let passed = &mut locked(&self.request).passed;
        if passed.iter().any(|other| Arc::ptr_eq(other, guard)) {
            return Err(Invalid::new(
                "the middleware of one guard stands twice in front of this route: remove one",
            ));
        }
        passed.push(guard.clone());
        Ok(())
    }

    /// The policies that took something for the request, each once.
    pub(crate) fn all_policies(&self) -> Vec<Policy> {
        let mut all: Vec<Policy> = Vec::new();
        for Asked { policy, .. } in self.parts().iter().flat_map(|part| &part.asked) {
            if all.iter().all(|known| known.name() != policy.name()) {
                all.push(policy.clone());
            }
        }
        all
    }

    /// What was used by each part, as units of its policies by index. Of what a policy took several times, the oldest is used
    /// first, and the newest has the rest.
    pub(crate) fn share_out(&self, used: impl Fn(&str) -> Option<i64>) -> Vec<(Arc<Part>, Used)> {
        let mut shared: Vec<_> = self.parts().into_iter().map(|part| (part, Vec::new())).collect();
        for policy in self.all_policies() {
            let spent = locked(&self.request).spent.get(policy.name()).copied().unwrap_or_default();
            let units = used(policy.name()).map(|units| (units.min(MAX_COST) - spent).max(0));
            let Some(mut units) = units else { continue };
            let is_of = |asked: &Asked| asked.policy.name() == policy.name();
            let place = |part: &Part| part.asked.iter().position(is_of);
            let mut parts: Vec<_> =
                shared.iter_mut().filter_map(|(part, used)| Some((place(part)?, part, used))).collect();
            let newest = parts.pop();
            for (place, part, used) in parts {
                let part = units.min(part.took[place]);
                used.push((place, part));
                units -= part;
            }
            newest.into_iter().for_each(|(place, _, used)| used.push((place, units)));
        }
        shared
    }

    /// Whose units the limits further out have counted, apart from limits for everybody. Else another client.
    pub(crate) fn client_or(&self, other: impl FnOnce() -> Client) -> Result<Client, Invalid> {
        let parts = self.parts();
        let enforced = parts.iter().filter(|part| !part.is_dry_run());
        let mut clients: Vec<&Client> =
            enforced.flat_map(|part| &part.asked).map(|asked| &asked.client).collect();
        clients.retain(|client| !matches!(client, Client::Everybody(_)));
        clients.dedup();
        match clients[..] {
            [] => Ok(other()),
            [client] => Ok(client.clone()),
            _ => Err(Invalid::new("several keys count this request further out: give this limit a key")),
        }
    }

    /// Ends the request when its answer leaves the outermost limit. If that is a refusal, what was taken goes back, unless a
    /// handler has used it. Returns the header fields to add.
    pub(crate) fn end(&self, is_refused: bool, has_fields: bool) -> HeaderMap {
        if is_refused && !locked(&self.request).is_used {
            self.parts().iter().for_each(|part| part.give_back());
        }
        // The fields of a refusal by a limit tell of all policies already.
        if is_refused && has_fields {
            return HeaderMap::new();
        }
        fields_of(&self.told(|part| !part.is_dry_run()), is_refused)
    }
}
