//! What has been taken for a request.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use http::request::Parts;
use http::{Extensions, HeaderMap};
use redis::{RedisError, RedisResult};

use super::answer::{Told, fields_of};
use super::asker::Held;
use super::policy::Policy;
use super::refusal::Refusal;
use super::teller::Teller;
use crate::commands::{Invalid, MAX_COST, Verdict, Verdicts};
use crate::keys::Answer;
use crate::locked;

/// What guards have taken for a request. Clones are the same reservation.
///
/// A handler behind middleware passes it to [`take`](crate::web::Guard::take) and [`settle`](crate::web::Guard::settle). With
/// features `axum` and `actix` it is an extractor.
#[derive(Clone)]
pub struct Reservation {
    parts: Arc<Mutex<Vec<Arc<Part>>>>,
    /// The network address of the client, as the outermost limit sees it.
    address: String,
}

/// What one decision has taken.
pub(crate) struct Part {
    pub policies: Vec<Policy>,
    clients: Vec<Client>,
    held: Held,
    answer: Mutex<RedisResult<Answer>>,
    /// Whether the request was refused further in. Then nothing is settled any more.
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
    pub fn new(asked: Vec<(Policy, Client)>, held: Held, answer: RedisResult<Answer>) -> Part {
        let (policies, clients) = asked.into_iter().unzip();
        Part { policies, clients, held, answer: Mutex::new(answer), is_over: AtomicBool::new(false) }
    }

    /// The figures of each policy; if the request is refused, without what it had taken.
    pub fn told(&self, is_refused: bool) -> Vec<Told> {
        let Ok(answer) = locked(&self.answer).clone() else { return Vec::new() };
        let is_back = is_refused || self.is_over.load(Ordering::Relaxed);
        let told = |(policy, (rows, taken)): (&Policy, (Option<Vec<Verdict>>, i64))| {
            let back = if is_back { taken.max(0).unsigned_abs() } else { 0 };
            let row = |row: Verdict| Verdict { remaining: (row.remaining + back).min(row.limit), ..row };
            Some(Told { policy: policy.clone(), rows: rows?.into_iter().map(row).collect() })
        };
        self.policies.iter().zip(answer.rows.into_iter().zip(answer.taken)).filter_map(told).collect()
    }

    pub fn is_dry_run(&self) -> bool {
        self.policies.iter().all(Policy::is_dry_run)
    }

    /// Corrects what was taken by the policies that `used` names. Its commands are sent by this call.
    pub fn settle(&self, used: &Costs, teller: &Teller) -> impl Future<Output = ()> {
        let cost = |(place, policy): (usize, &Policy)| Some((place, used.of(policy.name())?.min(MAX_COST)));
        let costs: Vec<_> = self.policies.iter().enumerate().filter_map(cost).collect();
        let is_to_settle = !costs.is_empty() && !self.is_over.load(Ordering::Relaxed);
        let settled = is_to_settle.then(|| self.held.settle(costs));
        async move {
            let Some(settled) = settled else { return };
            let settled = settled.await;
            teller.tell(settled.as_ref().err());
            if settled.is_ok() {
                *locked(&self.answer) = settled;
            }
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("decision", &self.decision()).finish_non_exhaustive()
    }
}

impl Reservation {
    /// The reservation of a request, from its extensions. `None` if no limit is in front of the handler.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<Reservation> {
        extensions.get().cloned()
    }

    /// The reservation of a request from this address for which nothing was taken yet.
    pub(crate) fn begun(address: String) -> Reservation {
        Reservation { address, parts: Arc::default() }
    }

    /// The decision of all policies but those of dry runs. `None` while Redis is away, and if no policy limits the request.
    #[must_use]
    pub fn decision(&self) -> Option<Verdicts> {
        let parts = self.enforced();
        let decisions = parts.iter().filter_map(|part| Some(locked(&part.answer).as_ref().ok()?.verdicts()));
        decisions.reduce(|mut all, decision| {
            all.rows.extend(decision.rows);
            Verdicts { at: all.at.max(decision.at), ..all }
        })
    }

    /// The error of the last decision, if the request passes because Redis is away.
    #[must_use]
    pub fn error(&self) -> Option<RedisError> {
        locked(&self.enforced().last()?.answer).as_ref().err().cloned()
    }

    /// The header fields of all policies by their newest figures. Empty if nothing was decided.
    #[must_use]
    pub fn fields(&self) -> HeaderMap {
        fields_of(&self.told(false), false)
    }

    pub(crate) fn parts(&self) -> Vec<Arc<Part>> {
        locked(&self.parts).clone()
    }

    /// The parts that may refuse the request.
    fn enforced(&self) -> Vec<Arc<Part>> {
        self.parts().into_iter().filter(|part| !part.is_dry_run()).collect()
    }

    /// Adds what was taken for a request that goes on, so that it is not given back.
    pub(crate) fn add(&self, mut parts: Vec<Part>) {
        parts.iter_mut().for_each(|part| part.held.keep());
        locked(&self.parts).extend(parts.into_iter().map(Arc::new));
    }

    /// The figures of each policy, the outermost first; if the request is refused, without what it had taken.
    pub(crate) fn told(&self, is_refused: bool) -> Vec<Told> {
        self.enforced().iter().flat_map(|part| part.told(is_refused)).collect()
    }

    pub(crate) fn policies(&self) -> Vec<Policy> {
        self.parts().iter().flat_map(|part| part.policies.clone()).collect()
    }

    /// Whose units the limits further out have counted, apart from limits for everybody. Else the network address.
    pub(crate) fn client(&self, address: impl FnOnce() -> String) -> Result<Client, Refusal> {
        let parts = self.enforced();
        let mut clients: Vec<&Client> = parts.iter().flat_map(|part| &part.clients).collect();
        clients.retain(|client| !matches!(client, Client::Everybody(_)));
        clients.dedup();
        match clients[..] {
            [] => Ok(Client::Address(address())),
            [client] => Ok(client.clone()),
            _ => Err(Refusal::misused("several keys count this request further out: give this limit a key")),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Ends the request when its answer leaves the outermost limit. If that is a refusal, what was taken goes back. Returns
    /// the header fields to add.
    pub(crate) fn end(&self, is_refused: bool, has_fields: bool) -> HeaderMap {
        for part in self.parts().into_iter().filter(|_| is_refused) {
            part.is_over.store(true, Ordering::Relaxed);
            part.held.give_back();
        }
        // The fields of a refusal by a limit tell of all policies already.
        if is_refused && has_fields { HeaderMap::new() } else { fields_of(&self.told(false), is_refused) }
    }
}

/// The request that a guard takes units for.
#[derive(Clone, Debug)]
pub enum Requester<'a> {
    /// The head of the request.
    Head(Cow<'a, Parts>),
    /// The reservation of the request.
    Taken(&'a Reservation),
    /// The key of a client, in place of the keys of policies.
    Client(Cow<'a, str>),
}

impl Requester<'_> {
    pub(crate) fn head(&self) -> Option<&Parts> {
        match self {
            Requester::Head(head) => Some(head),
            Requester::Taken(_) | Requester::Client(_) => None,
        }
    }

    /// What has been taken for the request: nothing for a client.
    pub(crate) fn reservation(&self) -> Reservation {
        match self {
            Requester::Head(head) => Reservation::of(&head.extensions),
            Requester::Taken(reservation) => Some(Reservation::clone(reservation)),
            Requester::Client(_) => None,
        }
        .unwrap_or_else(|| Reservation::begun(String::new()))
    }
}

impl<'a> From<&'a Parts> for Requester<'a> {
    fn from(head: &'a Parts) -> Requester<'a> {
        Requester::Head(Cow::Borrowed(head))
    }
}

impl<'a> From<&'a Reservation> for Requester<'a> {
    fn from(taken: &'a Reservation) -> Requester<'a> {
        Requester::Taken(taken)
    }
}

impl<'a> From<&'a str> for Requester<'a> {
    fn from(client: &'a str) -> Requester<'a> {
        Requester::Client(client.into())
    }
}

impl From<String> for Requester<'_> {
    fn from(client: String) -> Self {
        Requester::Client(client.into())
    }
}

/// The units that a request takes or used: a number for each policy, numbers by the names of policies, or `()` for the costs
/// that the policies have.
#[derive(Clone, Debug)]
pub struct Costs {
    each: Option<i64>,
    named: Vec<(String, i64)>,
}

impl Costs {
    /// The units of the policy of this name, if they are told.
    pub(crate) fn of(&self, name: &str) -> Option<i64> {
        let named = self.named.iter().find(|(named, _)| named == name);
        named.map(|(_, units)| *units).or(self.each)
    }

    pub(crate) fn is_number(&self) -> bool {
        self.each.is_some()
    }

    /// Refuses names of no policy, and negative costs.
    pub(crate) fn check(&self, policies: &[Policy]) -> Result<(), Invalid> {
        if self.named.iter().map(|(_, units)| *units).chain(self.each).any(|units| units < 0) {
            return Err(Invalid::new("the cost of a request is negative"));
        }
        match self.named.iter().find(|(name, _)| policies.iter().all(|policy| policy.name() != name)) {
            Some((name, _)) => Err(Invalid::new(format!("no policy of this request has the name {name}"))),
            None => Ok(()),
        }
    }
}

impl From<()> for Costs {
    fn from((): ()) -> Costs {
        Costs { each: None, named: Vec::new() }
    }
}

impl From<i64> for Costs {
    fn from(units: i64) -> Costs {
        Costs { each: Some(units), named: Vec::new() }
    }
}

impl<const N: usize> From<[(&str, i64); N]> for Costs {
    fn from(costs: [(&str, i64); N]) -> Costs {
        Costs { each: None, named: costs.map(|(name, units)| (name.to_owned(), units)).into() }
    }
}
