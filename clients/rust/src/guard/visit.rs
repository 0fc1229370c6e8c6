//! What limits and handlers do for one request of a service.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::HeaderMap;
use redis::RedisResult;

use super::answer::{Fields, FieldsOn, Told, fields_of};
use super::asker::Held;
use super::policy::Policy;
use crate::commands::{Invalid, MAX_COST};
use crate::keys::{Answer, Share};
use crate::locked;

/// A request of a service, with all that was taken for it. It is among the extensions of the request; clones are one visit.
#[derive(Clone)]
pub(crate) struct Visit {
    taken: Arc<Mutex<Taken>>,
    /// Who asks, if no key tells: the network address, as the outermost limit sees it.
    pub client: Client,
}

/// What limits and handlers have taken for a request.
#[derive(Default)]
struct Taken {
    /// By the limits before the handler, in this order.
    by_limits: Vec<Arc<Part>>,
    /// By the handler, the last.
    by_hand: VecDeque<Arc<Part>>,
    /// The units that it took before, by policy. They stay counted, so that a long request stays small.
    spent: BTreeMap<String, i64>,
    /// The guards whose middleware the request has passed, by what is theirs alone.
    passed: Vec<Arc<()>>,
    /// Whether a handler was granted units. They are used, so a later refusal gives back nothing.
    is_used: bool,
}

/// So many takes of a handler can still be settled.
const SETTLED: usize = 100;

impl Taken {
    fn parts(&self) -> impl Iterator<Item = &Arc<Part>> {
        self.by_limits.iter().chain(&self.by_hand)
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
    /// Which header fields tell of it.
    shown: (Fields, FieldsOn),
    /// The units that it took of each policy at first.
    took: Vec<i64>,
    /// The last answer, and since when it is known.
    answer: Mutex<(Instant, RedisResult<Answer>)>,
    /// `None` if nothing was asked for.
    held: Option<Held>,
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
    pub fn new(
        asked: Vec<Asked>,
        held: Option<Held>,
        answer: RedisResult<Answer>,
        shown: (Fields, FieldsOn),
    ) -> Part {
        let took = answer.as_ref().map_or_else(|_| vec![0; asked.len()], |answer| answer.taken.clone());
        Part { asked, shown, took, answer: Mutex::new((Instant::now(), answer)), held }
    }

    pub fn is_dry_run(&self) -> bool {
        self.asked.iter().all(|asked| asked.policy.is_dry_run())
    }

    /// The wait, if it is limited.
    pub fn limited(&self) -> Option<Option<Duration>> {
        let answer = locked(&self.answer);
        answer.1.as_ref().ok().filter(|answer| answer.limited).map(|answer| answer.retry_after)
    }

    /// Whether the request was refused. Then nothing is settled any more.
    fn is_over(&self) -> bool {
        self.held.as_ref().is_some_and(Held::gives_back)
    }

    /// Gives back all that it took, since the request is refused.
    pub fn give_back(&self) {
        self.held.as_ref().map(Held::give_back);
    }

    /// Corrects what was taken of the policies at these indices. Its commands are sent by this call.
    pub fn settle(&self, used: Used) -> impl Future<Output = RedisResult<()>> {
        let is_to_settle = !used.is_empty() && !self.is_over();
        let settled = self.held.as_ref().filter(|_| is_to_settle).map(|held| held.settle(used));
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

impl Visit {
    /// That of a request for which nothing was taken yet.
    pub fn new(client: Client) -> Visit {
        Visit { taken: Arc::default(), client }
    }

    /// All that was taken, in this order.
    pub fn parts(&self) -> Vec<Arc<Part>> {
        locked(&self.taken).parts().cloned().collect()
    }

    /// Whether a handler was granted units.
    pub fn is_used(&self) -> bool {
        locked(&self.taken).is_used
    }

    /// Adds what was taken for a request that goes on, so that it is not given back.
    pub fn add(&self, parts: Vec<Arc<Part>>, is_by_hand: bool) {
        parts.iter().for_each(|part| _ = part.held.as_ref().map(Held::keep));
        let taken = &mut *locked(&self.taken);
        if !is_by_hand {
            taken.by_limits.extend(parts);
            return;
        }
        taken.is_used |= !parts.is_empty();
        taken.by_hand.extend(parts);
        while taken.by_hand.len() > SETTLED
            && let Some(spent) = taken.by_hand.pop_front()
        {
            for (asked, units) in spent.asked.iter().zip(&spent.took) {
                *taken.spent.entry(asked.policy.name().to_owned()).or_default() += units;
            }
        }
    }

    /// Refuses a policy that has the name or the key of another one. The same may be met again.
    pub fn meet<'a>(&self, asked: impl IntoIterator<Item = &'a Asked>) -> Result<(), Invalid> {
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
    pub fn counts_in(&self, key: &[u8]) -> bool {
        self.parts().iter().flat_map(|part| &part.asked).any(|asked| *asked.share.key == *key)
    }

    /// Notes that the request passes the middleware of a guard. It may do so once.
    pub fn pass(&self, guard: &Arc<()>) -> Result<(), Invalid> {
        let passed = &mut locked(&self.taken).passed;
        if passed.iter().any(|other| Arc::ptr_eq(other, guard)) {
            return Err(Invalid::new(
                "the middleware of one guard stands twice in front of this route: remove one",
            ));
        }
        passed.push(guard.clone());
        Ok(())
    }

    /// The policies that took something for the request, each once.
    pub fn all_policies(&self) -> Vec<Policy> {
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
    pub fn share_out(&self, used: impl Fn(&str) -> Option<i64>) -> Vec<(Arc<Part>, Used)> {
        let mut shared: Vec<_> = self.parts().into_iter().map(|part| (part, Vec::new())).collect();
        for policy in self.all_policies() {
            let spent = locked(&self.taken).spent.get(policy.name()).copied().unwrap_or_default();
            let units = used(policy.name()).map(|units| (units.min(MAX_COST) - spent).max(0));
            let Some(mut units) = units else { continue };
            let is_of = |asked: &Asked| asked.policy.name() == policy.name();
            let index = |part: &Part| part.asked.iter().position(is_of);
            let mut parts: Vec<_> =
                shared.iter_mut().filter_map(|(part, used)| Some((index(part)?, part, used))).collect();
            let newest = parts.pop();
            for (index, part, used) in parts {
                let part = units.min(part.took[index]);
                used.push((index, part));
                units -= part;
            }
            newest.into_iter().for_each(|(index, _, used)| used.push((index, units)));
        }
        shared
    }

    /// Whose units the limits further out have counted, apart from limits for everybody. Else another client.
    pub fn client_or(&self, other: impl FnOnce() -> Client) -> Result<Client, Invalid> {
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
    pub fn end(&self, is_refused: bool, has_fields: bool) -> HeaderMap {
        let parts = self.parts();
        if is_refused && !self.is_used() {
            parts.iter().for_each(|part| part.give_back());
        }
        // The fields of a refusal by a limit tell of all policies already.
        if is_refused && has_fields {
            return HeaderMap::new();
        }
        fields_of(&told(&parts, &[], false), is_refused, is_refused)
    }
}

/// The newest figures of each policy of some parts, the outermost first. What goes back counts as left.
///
/// Dry runs that came `before` a refusal do not say that they would have refused: a hook was told of them.
pub(super) fn told(parts: &[Arc<Part>], before: &[Arc<Part>], all_goes_back: bool) -> Vec<Told> {
    let mut all: Vec<Told> = Vec::new();
    for part in parts {
        let (since, Ok(answer)) = locked(&part.answer).clone() else { continue };
        let goes_back = all_goes_back || part.is_over();
        for (asked, (rows, taken)) in part.asked.iter().zip(answer.rows.into_iter().zip(answer.taken)) {
            let Some(mut rows) = rows else { continue };
            if before.iter().any(|known| Arc::ptr_eq(known, part)) {
                rows.iter_mut().for_each(|row| row.limited = false);
            }
            let back = if goes_back { taken.max(0).unsigned_abs() } else { 0 };
            let told =
                Told { policy: asked.policy.clone(), rows, since, back, shown: part.shown, at: answer.at };
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
