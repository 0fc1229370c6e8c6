//! For whom a guard decides, and what a request costs.

use std::borrow::Cow;

use http::request::Parts;

use super::client::UNKNOWN;
use super::decision::Decision;
use super::policy::Policy;
use super::visit::{Client, Visit};
use crate::commands::Invalid;

/// The request that a guard takes units for: its head, its [`Decision`], or the key of a client in place of the keys of
/// policies.
#[derive(Clone)]
pub struct Requester<'a> {
    pub(crate) head: Option<Cow<'a, Parts>>,
    pub(super) visit: Visit,
}

impl<'a> Requester<'a> {
    pub(crate) fn of(head: Cow<'a, Parts>) -> Requester<'a> {
        let visit = head.extensions.get::<Visit>().cloned();
        let visit = visit.unwrap_or_else(|| Visit::new(Client::Address(UNKNOWN.to_owned())));
        Requester { visit, head: Some(head) }
    }
}

impl<'a> From<&'a Parts> for Requester<'a> {
    fn from(head: &'a Parts) -> Requester<'a> {
        Requester::of(Cow::Borrowed(head))
    }
}

impl<'a> From<&'a Decision> for Requester<'a> {
    fn from(decision: &'a Decision) -> Requester<'a> {
        Requester { head: decision.head.as_deref().map(Cow::Borrowed), visit: decision.visit.clone() }
    }
}

impl From<&str> for Requester<'_> {
    fn from(key: &str) -> Self {
        key.to_owned().into()
    }
}

impl From<String> for Requester<'_> {
    fn from(key: String) -> Self {
        Requester { head: None, visit: Visit::new(Client::Key(key)) }
    }
}

/// The units that a request takes or used: a number if it has a single policy, numbers by the names of policies, or `()` for
/// the costs that the policies have.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// The units of the only policy.
    units: Option<i64>,
    named: Vec<(String, i64)>,
}

impl Costs {
    /// The units of the policy of this name, if they are told.
    pub(crate) fn of(&self, name: &str) -> Option<i64> {
        let named = self.named.iter().find(|(named, _)| named == name);
        named.map(|(_, units)| *units).or(self.units)
    }

    /// Refuses names of no policy, a number for several, and negative costs.
    pub(crate) fn check(&self, policies: &[Policy]) -> Result<(), Invalid> {
        if self.named.iter().map(|(_, units)| *units).chain(self.units).any(|units| units < 0) {
            return Err(Invalid::new("the cost of a request is negative"));
        }
        if self.units.is_some() && policies.len() > 1 {
            let names: Vec<String> =
                policies.iter().map(|policy| format!("({:?}, units)", policy.name())).collect();
            let why =
                format!("a number is the cost of a single policy: name them, as [{}]", names.join(", "));
            return Err(Invalid::new(why));
        }
        match self.named.iter().find(|(name, _)| policies.iter().all(|policy| policy.name() != name)) {
            Some((name, _)) => Err(Invalid::new(format!("no policy of this request has the name {name:?}"))),
            None => Ok(()),
        }
    }
}

impl From<()> for Costs {
    fn from((): ()) -> Costs {
        Costs::default()
    }
}

impl From<i64> for Costs {
    fn from(units: i64) -> Costs {
        Costs { units: Some(units), ..Costs::default() }
    }
}

impl From<&[(&str, i64)]> for Costs {
    fn from(costs: &[(&str, i64)]) -> Costs {
        let named = costs.iter().map(|(name, units)| ((*name).to_owned(), *units)).collect();
        Costs { named, ..Costs::default() }
    }
}

impl<const N: usize> From<[(&str, i64); N]> for Costs {
    fn from(costs: [(&str, i64); N]) -> Costs {
        Costs::from(&costs[..])
    }
}
