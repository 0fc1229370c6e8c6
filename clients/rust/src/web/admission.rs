//! A request that may go on, and what it has taken.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use http::HeaderMap;
use redis::{RedisError, RedisResult};

use crate::asker::Held;
use crate::link::locked;
use crate::local::Answer;
use crate::web::Policy;
use crate::web::answer::{Told, fields_of, write_fields};
use crate::web::guard::Teller;
use crate::web::policy::MAX_COST;
use crate::{Decision, Verdict};

/// A request that may go on. Clones are the same one.
#[derive(Clone, Default)]
pub struct Admission(Option<Arc<Inner>>);

struct Inner {
    policies: Vec<Policy>,
    clients: Vec<Client>,
    held: Held,
    answer: Mutex<Option<Answer>>,
    error: Option<RedisError>,
    teller: Teller,
    /// Whether it is refused after all: nothing is settled any more.
    is_over: AtomicBool,
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

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decision = self.decision();
        f.debug_struct("Admission").field("decision", &decision).field("error", &self.error()).finish()
    }
}

impl Admission {
    pub(crate) fn new(
        policies: Vec<Policy>,
        clients: Vec<Client>,
        held: Held,
        answer: RedisResult<Answer>,
        teller: Teller,
    ) -> Admission {
        let (answer, error) = match answer {
            Ok(answer) => (Some(answer), None),
            Err(error) => (None, Some(error)),
        };
        let (answer, is_over) = (Mutex::new(answer), AtomicBool::new(false));
        Admission(Some(Arc::new(Inner { policies, clients, held, answer, error, teller, is_over })))
    }

    /// What was decided; none while Redis is away, and for a request that no policy limits.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        let answer = locked(&self.0.as_ref()?.answer).clone()?;
        let Answer { limited, retry_after, at, rows, .. } = answer;
        let rows = rows.into_iter().flatten().flatten().collect();
        Some(Decision { limited, retry_after, at: at.unwrap_or(UNIX_EPOCH), rows })
    }

    /// The policies that took part.
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        self.0.as_ref().map_or(&[], |inner| &inner.policies)
    }

    pub(crate) fn clients(&self) -> &[Client] {
        self.0.as_ref().map_or(&[], |inner| &inner.clients)
    }

    /// The header fields for the response; none if nothing was decided.
    #[must_use]
    pub fn fields(&self) -> HeaderMap {
        let told = self.told(false);
        if told.is_empty() { HeaderMap::new() } else { fields_of(&told, false) }
    }

    /// Why Redis could not be asked, if the request passes for that.
    #[must_use]
    pub fn error(&self) -> Option<&RedisError> {
        self.0.as_ref()?.error.as_ref()
    }

    /// Adds the header fields to those of a response.
    pub fn write_fields(self, headers: &mut HeaderMap) {
        write_fields(&self.fields(), headers);
    }

    /// What is known of each policy; if the request is refused after all, without what it has taken.
    pub(crate) fn told(&self, is_refused: bool) -> Vec<Told> {
        let Some(inner) = &self.0 else { return Vec::new() };
        let Some(answer) = locked(&inner.answer).clone() else { return Vec::new() };
        let is_back = is_refused || inner.is_over.load(Ordering::Relaxed);
        let told = |(policy, (rows, taken)): (&Policy, (Option<Vec<Verdict>>, i64))| {
            let back = if is_back { taken.max(0).unsigned_abs() } else { 0 };
            let row = |row: Verdict| Verdict { remaining: (row.remaining + back).min(row.limit), ..row };
            Some(Told { policy: policy.clone(), rows: rows?.into_iter().map(row).collect() })
        };
        inner.policies.iter().zip(answer.rows.into_iter().zip(answer.taken)).filter_map(told).collect()
    }

    /// Gives back what it has taken, once.
    pub(crate) fn release(&self) {
        if let Some(inner) = &self.0 {
            inner.is_over.store(true, Ordering::Relaxed);
            inner.held.give_back();
        }
    }

    /// Corrects what was taken by the policies that are named, or by each.
    pub(crate) async fn settle(&self, used: &Costs) {
        let Some(inner) = self.0.as_ref().filter(|inner| !inner.is_over.load(Ordering::Relaxed)) else {
            return;
        };
        let policies = inner.policies.iter().enumerate();
        let used: Vec<(usize, i64)> = policies
            .filter_map(|(place, policy)| Some((place, used.of(policy.name())?.min(MAX_COST))))
            .collect();
        let settled = inner.held.settle(used).await;
        inner.teller.tell(settled.as_ref().err());
        if let Ok(answer) = settled {
            *locked(&inner.answer) = Some(answer);
        }
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

    pub(crate) fn is_one_number(&self) -> bool {
        matches!(self.0, Kind::Each(_))
    }

    /// Whether all names are those of policies, and no cost is negative.
    pub(crate) fn check(&self, policies: &[Policy]) -> Result<(), String> {
        let (costs, units) = match &self.0 {
            Kind::Each(units) => (&[][..], *units),
            Kind::Named(costs) => (&costs[..], costs.iter().map(|(_, units)| *units).min().unwrap_or(0)),
        };
        if units < 0 {
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
