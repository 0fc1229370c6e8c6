//! For whom a guard decides, and what a request costs.

use std::borrow::Cow;

use http::request::Parts;

use super::client::UNKNOWN;
use super::decision::{Client, Decision};
use super::policy::Policy;
use crate::commands::Invalid;

/// The request that a guard takes units for.
#[derive(Clone, Debug)]
pub enum Requester<'a> {
    /// The head of the request.
    Head(Cow<'a, Parts>),
    /// What was decided for the request so far.
    Decided(&'a Decision),
    /// The key of a client, in place of the keys of policies.
    Client(Cow<'a, str>),
}

impl Requester<'_> {
    pub(crate) fn head(&self) -> Option<&Parts> {
        match self {
            Requester::Head(head) => Some(head),
            Requester::Decided(_) | Requester::Client(_) => None,
        }
    }

    /// What was decided for the request so far: nothing for a client.
    pub(crate) fn decision(&self) -> Decision {
        let begun = match self {
            Requester::Head(head) => Decision::of(&head.extensions),
            Requester::Decided(decision) => Some(decision.of_request()),
            Requester::Client(key) => Some(Decision::begun(Client::Key(key.to_string()))),
        };
        begun.unwrap_or_else(|| Decision::begun(Client::Address(UNKNOWN.to_owned())))
    }
}

impl<'a> From<&'a Parts> for Requester<'a> {
    fn from(head: &'a Parts) -> Requester<'a> {
        Requester::Head(Cow::Borrowed(head))
    }
}

impl<'a> From<&'a Decision> for Requester<'a> {
    fn from(decision: &'a Decision) -> Requester<'a> {
        Requester::Decided(decision)
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
