//! What has been taken for a request.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use http::{Extensions, HeaderMap};
use redis::{RedisError, RedisResult};

use crate::asker::Held;
use crate::link::locked;
use crate::local::Answer;
use crate::web::answer::{Told, fields_of, write_fields};
use crate::web::guard::Teller;
use crate::web::policy::MAX_COST;
use crate::web::{Guard, Policy, Refusal};
use crate::{Decision, Verdict};

/// What guards have taken for a request that may go on. Clones are the same one.
///
/// A handler behind [`RateLimitLayer`](crate::web::RateLimitLayer)s settles by it what the request really cost. With
/// feature `axum` it is an extractor, and a part of a response, which changes nothing: the layers write the header fields.
#[derive(Clone)]
pub struct Reservation {
    parts: Arc<Mutex<Vec<Arc<Part>>>>,
    /// Where the request comes from, as the outermost layer sees it; none if no layer is in front.
    address: Option<String>,
}

/// What one guard has taken.
pub(crate) struct Part {
    pub policies: Vec<Policy>,
    pub clients: Vec<Client>,
    pub held: Held,
    pub answer: Mutex<Option<Answer>>,
    pub error: Option<RedisError>,
    pub teller: Teller,
    /// Whether the request is refused after all: nothing is settled any more.
    pub is_over: AtomicBool,
}

/// Whose units are counted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Client {
    /// A key that a function of the request tells.
    Key(String),
    /// The network address.
    Address(String),
    /// Everybody, by a key that is the policy's.
    Everybody,
}

impl Part {
    pub fn new(
        asked: Vec<(Policy, Client)>,
        held: Held,
        answer: RedisResult<Answer>,
        teller: Teller,
    ) -> Part {
        let (policies, clients) = asked.into_iter().unzip();
        let (answer, error) = match answer {
            Ok(answer) => (Some(answer), None),
            Err(error) => (None, Some(error)),
        };
        let (answer, is_over) = (Mutex::new(answer), AtomicBool::new(false));
        Part { policies, clients, held, answer, error, teller, is_over }
    }

    /// What is known of each policy; if the request is refused after all, without what it has taken.
    pub fn told(&self, is_refused: bool) -> Vec<Told> {
        let Some(answer) = locked(&self.answer).clone() else { return Vec::new() };
        let is_back = is_refused || self.is_over.load(Ordering::Relaxed);
        let told = |(policy, (rows, taken)): (&Policy, (Option<Vec<Verdict>>, i64))| {
            let back = if is_back { taken.max(0).unsigned_abs() } else { 0 };
            let row = |row: Verdict| Verdict { remaining: (row.remaining + back).min(row.limit), ..row };
            Some(Told { policy: policy.clone(), rows: rows?.into_iter().map(row).collect() })
        };
        self.policies.iter().zip(answer.rows.into_iter().zip(answer.taken)).filter_map(told).collect()
    }

    /// Corrects what was taken by the policies that are named, or by each.
    async fn settle(&self, used: &Costs) {
        if self.is_over.load(Ordering::Relaxed) {
            return;
        }
        let cost = |(place, policy): (usize, &Policy)| Some((place, used.of(policy.name())?.min(MAX_COST)));
        let settled = self.held.settle(self.policies.iter().enumerate().filter_map(cost).collect()).await;
        self.teller.tell(settled.as_ref().err());
        if let Ok(answer) = settled {
            *locked(&self.answer) = Some(answer);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("decision", &self.decision()).finish_non_exhaustive()
    }
}

impl Reservation {
    /// That of a request; none if no layer is in front of its handler.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<Reservation> {
        extensions.get::<Reservation>().cloned()
    }

    /// That of a request which is the first time seen: by a layer, if it has an address.
    pub(crate) fn begun(address: Option<String>) -> Reservation {
        Reservation { address, parts: Arc::default() }
    }

    pub(crate) fn is_apart(&self) -> bool {
        self.address.is_none()
    }

    /// Takes units by another guard, as when the cost stands in the body, for whom the layers have counted.
    ///
    /// A number is the cost by each of its policies; several may have costs of their own, by name. The refusal tells
    /// of all, and what was taken goes back if it is the answer; a request that is answered otherwise keeps it. It is
    /// settled like what the layers took.
    pub async fn take(&self, guard: &Guard, costs: impl Into<Costs>) -> Result<Reservation, Refusal> {
        let client = self.client(|| self.address.clone().unwrap_or_default())?;
        guard.take_by(&client, &costs.into(), self).await?;
        Ok(self.clone())
    }

    /// Corrects what was taken to what was used, however late: by the names of policies, as in `[("tokens", 420)]`, or a
    /// number if one policy limits the request.
    ///
    /// What is given back was counted when it was taken, and nobody else's units are. What is taken in addition is
    /// counted even if it is over the limit, since it has been used. The last settled cost counts. If Redis is away,
    /// or if the request was answered by a refusal, nothing changes.
    ///
    /// An error, answered 500, is a name that no policy has, a number for several, and a negative cost.
    pub async fn settle(&self, used: impl Into<Costs>) -> Result<Reservation, Refusal> {
        let (used, policies) = (used.into(), self.policies());
        let unclear = matches!(used, Costs(Kind::Each(_))) && policies.len() != 1;
        let unclear = unclear.then(|| format!("{} policies limit the request: name them", policies.len()));
        used.check(&policies).and(unclear.map_or(Ok(()), Err)).map_err(|why| Refusal::misused(&why))?;
        for part in self.parts() {
            part.settle(&used).await;
        }
        Ok(self.clone())
    }

    /// What was decided by all policies; none while Redis is away, and for a request that no policy limits.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        let parts = self.parts();
        let decisions = parts.iter().filter_map(|part| Some(locked(&part.answer).as_ref()?.decision()));
        decisions.reduce(|mut all, decision| {
            all.rows.extend(decision.rows);
            Decision { at: all.at.max(decision.at), ..all }
        })
    }

    /// Why Redis could not be asked the last time, if the request passes for that.
    #[must_use]
    pub fn error(&self) -> Option<RedisError> {
        self.parts().last()?.error.clone()
    }

    /// The header fields that tell of all policies, as they stand now; none if nothing was decided.
    #[must_use]
    pub fn fields(&self) -> HeaderMap {
        let told = self.told(false);
        if told.is_empty() { HeaderMap::new() } else { fields_of(&told, false) }
    }

    fn parts(&self) -> Vec<Arc<Part>> {
        locked(&self.parts).clone()
    }

    pub(crate) fn add(&self, part: Part) {
        locked(&self.parts).push(Arc::new(part));
    }

    /// The request is answered by a refusal: what was taken goes back, once.
    pub(crate) fn release(&self) {
        for part in self.parts() {
            part.is_over.store(true, Ordering::Relaxed);
            part.held.give_back();
        }
    }

    /// What is known of each policy, the outermost first; if the request is refused, without what it has taken.
    pub(crate) fn told(&self, is_refused: bool) -> Vec<Told> {
        self.parts().iter().flat_map(|part| part.told(is_refused)).collect()
    }

    /// Those by which it was asked for.
    pub(crate) fn policies(&self) -> Vec<Policy> {
        self.parts().iter().flat_map(|part| part.policies.clone()).collect()
    }

    /// Whose units the layers further out have counted, everybody's aside; if nobody's, whom the network address tells.
    pub(crate) fn client(&self, address: impl FnOnce() -> String) -> Result<Client, Refusal> {
        let mut clients: Vec<Client> = self.parts().iter().flat_map(|part| part.clients.clone()).collect();
        clients.retain(|client| *client != Client::Everybody);
        clients.dedup();
        match clients.len() {
            0 => Ok(Client::Address(address())),
            1 => Ok(clients.remove(0)),
            _ => Err(Refusal::misused("Several keys count this request further out: give this limit a key")),
        }
    }

    /// Adds what is known to the response of whatever is further in.
    pub(crate) fn write_fields(&self, is_refused: bool, headers: &mut HeaderMap) {
        let told = self.told(false);
        if !told.is_empty() {
            write_fields(&fields_of(&told, is_refused), headers);
        }
    }
}

#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for Reservation {
    type Rejection = Refusal;

    async fn from_request_parts(head: &mut http::request::Parts, _: &S) -> Result<Reservation, Refusal> {
        let reservation = Reservation::of(&head.extensions);
        reservation.ok_or_else(|| Refusal::misused("No RateLimitLayer is in front of this handler"))
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponseParts for Reservation {
    type Error = std::convert::Infallible;

    fn into_response_parts(
        self,
        parts: axum::response::ResponseParts,
    ) -> Result<axum::response::ResponseParts, Self::Error> {
        Ok(parts)
    }
}

/// Units by each policy: a number, or by the names of policies.
#[derive(Clone, Debug)]
pub struct Costs(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Each(i64),
    Named(Vec<(String, i64)>),
}

impl Costs {
    /// None if the policy is not named.
    pub(crate) fn of(&self, name: &str) -> Option<i64> {
        match &self.0 {
            Kind::Each(units) => Some(*units),
            Kind::Named(costs) => costs.iter().find(|(named, _)| named == name).map(|(_, units)| *units),
        }
    }

    /// Whether all names are those of policies, and no cost is negative.
    pub(crate) fn check(&self, policies: &[Policy]) -> Result<(), String> {
        let (costs, least) = match &self.0 {
            Kind::Each(units) => (&[][..], *units),
            Kind::Named(costs) => (&costs[..], costs.iter().map(|(_, units)| *units).min().unwrap_or(0)),
        };
        if least < 0 {
            return Err("The cost of a request is negative".to_owned());
        }
        match costs.iter().find(|(name, _)| policies.iter().all(|policy| policy.name() != name)) {
            Some((name, _)) => Err(format!("no policy has the name {name}")),
            None => Ok(()),
        }
    }
}

impl From<i64> for Costs {
    fn from(units: i64) -> Costs {
        Costs(Kind::Each(units))
    }
}

impl<const N: usize> From<[(&str, i64); N]> for Costs {
    fn from(costs: [(&str, i64); N]) -> Costs {
        Costs(Kind::Named(costs.map(|(name, units)| (name.to_owned(), units)).into()))
    }
}
