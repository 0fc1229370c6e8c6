//! A request that may go on, and what it has taken.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use redis::RedisError;

use crate::web::Policy;
use crate::web::answer::write_fields;
use crate::{Decision, Verdict};

/// A request that may go on.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    pub(crate) policies: Vec<Policy>,
    /// Of each policy.
    pub(crate) shares: Vec<Share>,
    pub(crate) decision: Option<Decision>,
    pub(crate) fields: HeaderMap,
    pub(crate) error: Option<RedisError>,
}

/// What a request has taken of one policy.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    pub key: String,
    pub taken: i64,
    /// As of when it is given back.
    pub at: Option<SystemTime>,
    /// Of each quota, or of the tightest; none if Redis was away.
    pub rows: Vec<Verdict>,
}

impl Admission {
    /// What was decided; none while Redis is away, and for a request that no policy limits.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// The policies that took part.
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// The header fields for the response; none if nothing was decided.
    #[must_use]
    pub fn fields(&self) -> &HeaderMap {
        &self.fields
    }

    /// Why Redis could not be asked, if the request passes for that.
    #[must_use]
    pub fn error(&self) -> Option<&RedisError> {
        self.error.as_ref()
    }

    /// Adds the header fields to those of a response.
    pub fn write_fields(self, headers: &mut HeaderMap) {
        write_fields(&self.fields, headers);
    }

    /// How the policies stand of which anything is known.
    pub(crate) fn standing(&self) -> (Vec<Policy>, Option<Decision>) {
        let known = || self.policies.iter().zip(&self.shares).filter(|(_, share)| !share.rows.is_empty());
        let rows: Vec<Verdict> = known().flat_map(|(_, share)| &share.rows).copied().collect();
        let waits = rows.iter().filter(|row| row.limited).map(|row| row.retry_after);
        let waits: Option<Vec<Duration>> = waits.collect();
        let decision = known().filter_map(|(_, share)| share.at).max().map(|at| Decision {
            limited: rows.iter().any(|row| row.limited),
            retry_after: waits.and_then(|waits| waits.into_iter().max()),
            at,
            rows,
        });
        (known().map(|(policy, _)| policy.clone()).collect(), decision)
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
        let costs = match &self.0 {
            Kind::Each(units) if *units < 0 => return Err("The cost of a request is negative".to_owned()),
            Kind::Each(_) => return Ok(()),
            Kind::Named(costs) => costs,
        };
        if costs.iter().any(|(_, units)| *units < 0) {
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
