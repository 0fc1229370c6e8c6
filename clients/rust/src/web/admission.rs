//! A request that may go on, and what it has taken.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use redis::{RedisError, RedisResult};

use crate::local::{Share, Taken};
use crate::web::Policy;
use crate::web::answer::{Told, fields_of, write_fields};
use crate::web::policy::MAX_COST;
use crate::{All, Decision, Verdict};

/// A request that may go on. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    pub(crate) policies: Vec<Policy>,
    pub(crate) standing: Arc<Mutex<Vec<Standing>>>,
    pub(crate) back: Option<Back>,
    pub(crate) decision: Option<Decision>,
    pub(crate) fields: HeaderMap,
    pub(crate) error: Option<RedisError>,
}

/// How a request stands with one policy.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// Whose units they are.
    pub client: Client,
    /// What it has taken, or will have when it is settled.
    pub share: Share,
    /// What goes back if the request is refused after all.
    pub taken: Option<Taken>,
    /// Whether it is refused after all: nothing is settled any more.
    pub is_over: bool,
    /// Of each quota, or of the tightest; none if nothing is known.
    pub rows: Vec<Verdict>,
}

impl Standing {
    /// As if it had taken nothing; tells what it had.
    fn give_back(&mut self) -> Option<Taken> {
        self.is_over = true;
        let taken = self.taken.take()?;
        for row in &mut self.rows {
            row.remaining = (row.remaining + taken.share.cost.max(0).unsigned_abs()).min(row.limit);
        }
        self.share.cost = 0;
        Some(taken)
    }
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

/// What an admission needs of the limiter that made it.
#[derive(Clone)]
pub(crate) struct Back(pub Arc<dyn Giving>);

pub(crate) trait Giving: Send + Sync {
    /// Gives back, once, in the background.
    fn release(&self, taken: Vec<Taken>);

    /// Sends it as of then, or counted even over the limit.
    fn correct(
        &self,
        all: All,
        at: Option<SystemTime>,
    ) -> Pin<Box<dyn Future<Output = RedisResult<Decision>> + Send + '_>>;

    /// What was refused of these may be over.
    fn forget(&self, shares: &[Share]);
}

impl std::fmt::Debug for Back {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Back")
    }
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

    pub(crate) fn standing(&self) -> MutexGuard<'_, Vec<Standing>> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of each policy.
    pub(crate) fn told(&self) -> Vec<Told> {
        self.told_by(&self.standing())
    }

    /// The same if the request is refused, and what it has taken goes back.
    pub(crate) fn told_refused(&self) -> Vec<Told> {
        let mut standing = self.standing().clone();
        for standing in &mut standing {
            standing.give_back();
        }
        self.told_by(&standing)
    }

    fn told_by(&self, standing: &[Standing]) -> Vec<Told> {
        let told = self.policies.iter().zip(standing).filter(|(_, standing)| !standing.rows.is_empty());
        told.map(|(policy, standing)| Told { policy: policy.clone(), rows: standing.rows.clone() }).collect()
    }

    /// Gives back what it has taken, once.
    pub(crate) fn release(&self) {
        let Some(Back(back)) = &self.back else { return };
        let taken = self.standing().iter_mut().filter_map(Standing::give_back).collect();
        back.release(taken);
    }

    /// Corrects what was taken by the policy at this place.
    pub(crate) async fn settle(&self, place: usize, used: i64) {
        let Some(Back(back)) = &self.back else { return };
        let used = used.min(MAX_COST);
        let (before, shares) = {
            let mut all = self.standing();
            let before = all[place].clone();
            if before.is_over {
                return;
            }
            // Whoever settles again goes on from here: nothing is sent twice.
            all[place].share.cost = used;
            if let Some(taken) = &mut all[place].taken {
                taken.share.cost = taken.share.cost.min(used);
            }
            (before, all.iter().map(|standing| standing.share.clone()).collect::<Vec<_>>())
        };
        let Standing { share, taken, .. } = before;
        let more = used - share.cost;
        if more == 0 {
            return;
        }
        let as_of = taken.as_ref().and_then(|taken| taken.at).filter(|_| more < 0);
        if more < 0 && as_of.is_none() {
            // Nobody knows as of when.
            return;
        }
        let quotas = self.policies[place].quotas();
        let all = All::new().key(&share.key[..], self.policies[place].counted_by(), quotas, more);
        let settled = back.correct(all, as_of).await;
        if more < 0 {
            back.forget(&shares);
        }
        let mut all = self.standing();
        let standing = &mut all[place];
        match settled {
            Ok(Decision { at, rows, .. }) => {
                if standing.is_over {
                    // Meanwhile what it had taken before went back.
                    let late = Share { cost: more.max(0), ..share };
                    drop(all);
                    return back.release(vec![Taken::new(place, late, at)]);
                }
                let settled = Taken::new(place, Share { cost: used, ..share }, at);
                standing.taken = Some(settled.at_latest(taken.and_then(|taken| taken.at)));
                standing.rows = rows;
            }
            // It is not known whether more was counted.
            Err(_) => standing.share.cost = share.cost.min(used),
        }
    }

    /// With what is known by now.
    pub(crate) fn renewed(mut self) -> Admission {
        let told = self.told();
        let rows: Vec<Verdict> = told.iter().flat_map(|told| told.rows.iter().copied()).collect();
        if !rows.is_empty() {
            let at = self.standing().iter().filter_map(|standing| standing.taken.as_ref()?.at).max();
            let waits = rows.iter().filter(|row| row.limited).map(|row| row.retry_after);
            let waits: Option<Vec<Duration>> = waits.collect();
            self.fields = fields_of(&told, false);
            self.decision = Some(Decision {
                limited: rows.iter().any(|row| row.limited),
                retry_after: waits.and_then(|waits| waits.into_iter().max()),
                at: at.unwrap_or(UNIX_EPOCH),
                rows,
            });
        }
        self
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

    /// One number for all, or names with their units.
    pub(crate) fn each(&self) -> Result<i64, &[(String, i64)]> {
        match &self.0 {
            Kind::Each(units) => Ok(*units),
            Kind::Named(costs) => Err(costs),
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
