//! What limits and handlers do for one request of a service.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderMap;
use redis::RedisResult;

use super::answer::fields_of;
use super::asker::Held;
use super::met::{Asked, Client, Fields, FieldsOn, Met};
use crate::commands::{Invalid, MAX_COST};
use crate::keys::Answer;
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
    /// The policies that have counted it, the outermost first.
    met: Vec<Met>,
    /// By the limits before the handler, in this order.
    by_limits: Vec<Arc<Part>>,
    /// By the handler, the last.
    by_hand: VecDeque<Arc<Part>>,
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

/// What one step has taken.
pub(crate) struct Part {
    pub asked: Vec<Asked>,
    pub shown: (Fields, FieldsOn),
    pub answer: Mutex<RedisResult<Answer>>,
    pub held: Held,
}

impl Part {
    pub fn is_dry_run(&self) -> bool {
        self.asked.iter().all(|asked| asked.policy.is_dry_run())
    }

    /// The wait, if it is limited.
    pub fn limited(&self) -> Option<Option<Duration>> {
        let answer = locked(&self.answer);
        answer.as_ref().ok().filter(|answer| answer.limited).map(|answer| answer.retry_after)
    }

    /// Notes its policies, with the figures that are news.
    fn note(&self, met: &mut Vec<Met>, before: Option<&Answer>) {
        let answer = locked(&self.answer);
        for (index, asked) in self.asked.iter().enumerate() {
            let known = met.iter().position(|met| met.is_of(asked));
            let known = known.unwrap_or_else(|| {
                let asked = asked.clone();
                met.push(Met { asked, rows: Vec::new(), at: None, shown: self.shown, spent: 0 });
                met.len() - 1
            });
            let rows = |answer: &Answer| answer.rows[index].clone();
            if let Ok(answer) = &*answer
                && let Some(news) = rows(answer).filter(|_| rows(answer) != before.and_then(rows))
            {
                (met[known].rows, met[known].at, met[known].shown) = (news, answer.at, self.shown);
            }
        }
    }
}

impl Visit {
    /// That of a request for which nothing was taken yet.
    pub fn new(client: Client) -> Visit {
        Visit { taken: Arc::default(), client }
    }

    /// The policies that have counted the request, and their newest figures.
    pub fn met(&self) -> Vec<Met> {
        locked(&self.taken).met.clone()
    }

    /// The same once these parts have decided. If that is a refusal, what goes back counts as left.
    ///
    /// Dry runs that came before do not say that they would have refused: a hook was told of them.
    pub fn decided_by(&self, parts: &[Arc<Part>], is_refusal: bool) -> Vec<Met> {
        let taken = locked(&self.taken);
        let mut met = taken.met.clone();
        met.iter_mut().flat_map(|met| &mut met.rows).for_each(|row| row.limited = false);
        parts.iter().for_each(|part| part.note(&mut met, None));
        let before = taken.parts().filter(|_| !taken.is_used);
        for part in before.chain(parts).filter(|_| is_refusal) {
            let Ok(answer) = &*locked(&part.answer) else { continue };
            for (asked, units) in part.asked.iter().zip(&answer.taken) {
                let rows = met.iter_mut().filter(|met| met.is_of(asked)).flat_map(|met| &mut met.rows);
                let back = units.max(&0).unsigned_abs();
                rows.for_each(|row| row.remaining = (row.remaining + back).min(row.limit));
            }
        }
        met
    }

    /// Adds what was taken for a request that goes on, so that it is not given back.
    pub fn add(&self, parts: Vec<Arc<Part>>, is_by_hand: bool) {
        let taken = &mut *locked(&self.taken);
        for part in &parts {
            part.held.keep();
            part.note(&mut taken.met, None);
        }
        if !is_by_hand {
            taken.by_limits.extend(parts);
            return;
        }
        taken.is_used |= !parts.is_empty();
        taken.by_hand.extend(parts);
        while taken.by_hand.len() > SETTLED
            && let Some(spent) = taken.by_hand.pop_front()
        {
            let Ok(answer) = &*locked(&spent.answer) else { continue };
            for (asked, units) in spent.asked.iter().zip(&answer.taken) {
                let met = taken.met.iter_mut().filter(|met| met.is_of(asked));
                met.for_each(|met| met.spent += units);
            }
        }
    }

    /// Refuses a policy that has the name or the key of another one. The same may be met again.
    pub fn meet<'a>(&self, asked: impl IntoIterator<Item = &'a Asked>) -> Result<(), Invalid> {
        let taken = locked(&self.taken);
        let mut known: Vec<&Asked> = taken.met.iter().map(|met| &met.asked).collect();
        for new in asked {
            if let Some(why) = known.iter().find_map(|known| new.differs_from(known)) {
                return Err(Invalid::new(why));
            }
            known.push(new);
        }
        Ok(())
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

    /// What was used by each part, as units of its policies by index. Of what a policy took several times, the oldest is used
    /// first, and the newest has the rest.
    pub fn share_out(&self, used: impl Fn(&str) -> Option<i64>) -> Vec<(Arc<Part>, Used)> {
        let taken = locked(&self.taken);
        let mut shared: Vec<_> = taken.parts().map(|part| (part.clone(), Vec::new())).collect();
        for met in &taken.met {
            let Some(used_of_it) = used(met.asked.policy.name()) else { continue };
            let mut units = (used_of_it.min(MAX_COST) - met.spent).max(0);
            let index = |part: &Part| part.asked.iter().position(|asked| met.is_of(asked));
            let mut parts: Vec<_> =
                shared.iter_mut().filter_map(|(part, used)| Some((index(part)?, part, used))).collect();
            let newest = parts.pop();
            for (index, part, used) in parts {
                let part = units.min(part.asked[index].share.cost);
                used.push((index, part));
                units -= part;
            }
            newest.into_iter().for_each(|(index, _, used)| used.push((index, units)));
        }
        shared
    }

    /// Corrects what a part took of the policies at these indices, unless it went back. Its commands are sent by this call.
    pub fn settle(&self, part: &Part, used: Used) -> impl Future<Output = RedisResult<()>> {
        let is_to_settle = !used.is_empty() && !part.held.gives_back();
        let settled = is_to_settle.then(|| part.held.settle(used));
        async move {
            let Some(settled) = settled else { return Ok(()) };
            let settled = settled.await?;
            let before = mem::replace(&mut *locked(&part.answer), Ok(settled));
            part.note(&mut locked(&self.taken).met, before.as_ref().ok());
            Ok(())
        }
    }

    /// Whose units the limits further out have counted, apart from limits for everybody. Else another client.
    pub fn client_or(&self, other: impl FnOnce() -> Client) -> Result<Client, Invalid> {
        let taken = locked(&self.taken);
        let enforced = taken.met.iter().filter(|met| !met.asked.policy.is_dry_run());
        let mut clients: Vec<&Client> = enforced.map(|met| &met.asked.client).collect();
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
        if !is_refused {
            return fields_of(&locked(&self.taken).met, false, false);
        }
        let taken = locked(&self.taken);
        taken.parts().filter(|_| !taken.is_used).for_each(|part| _ = part.held.give_back());
        drop(taken);
        // The fields of a refusal by a limit tell of all policies already.
        if has_fields { HeaderMap::new() } else { fields_of(&self.decided_by(&[], true), true, true) }
    }
}
