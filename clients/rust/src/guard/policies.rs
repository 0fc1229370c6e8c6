//! The policies of a request.

use std::collections::HashSet;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use http::request::Parts;

use super::policy::Policy;
use crate::commands::Invalid;

/// Rows that `RL.ALL` accepts.
const MAX_ROWS: usize = 64;

/// The policies of a guard: one, several, a text of quotas, or a function that chooses by the head of the request.
///
/// All policies of a request are one decision: units are taken of all or of none. Their names differ, and together they
/// have at most 64 quotas. A function should return clones of policies that were made once.
#[derive(Clone)]
pub struct Policies(pub(crate) Source);

#[derive(Clone)]
pub(crate) enum Source {
    Fixed(Arc<[Policy]>),
    Chosen(Arc<dyn Fn(&Parts) -> Choice + Send + Sync>),
}

pub(crate) type Choice = Pin<Box<dyn Future<Output = Vec<Policy>> + Send>>;

impl Policies {
    /// The policies that a function chooses by the head of the request: an `Option`, or a list, which may be empty. A request
    /// without a policy is not limited. If two have the same name it is answered 500.
    pub fn by<F, P>(choose: F) -> Policies
    where
        F: Fn(&Parts) -> P + Send + Sync + 'static,
        P: IntoIterator<Item = Policy>,
    {
        Policies::by_async(move |head| std::future::ready(Vec::from_iter(choose(head))))
    }

    /// The policies that an asynchronous function chooses. Its future owns what it needs of the head.
    ///
    /// ```
    /// # use redis_rl_client::web::{Policies, Policy};
    /// # async fn plan_of(account: Option<http::HeaderValue>) -> Result<Policy, std::io::Error> { unimplemented!() }
    /// # fn policies(free: Policy) -> Policies {
    /// Policies::by_async(move |head| {
    ///     let (account, free) = (head.headers.get("account").cloned(), free.clone());
    ///     async move { Some(plan_of(account).await.unwrap_or(free)) }
    /// })
    /// # }
    /// ```
    pub fn by_async<F, P>(choose: F) -> Policies
    where
        F: Fn(&Parts) -> P + Send + Sync + 'static,
        P: Future<Output: IntoIterator<Item = Policy>> + Send + 'static,
    {
        Policies(Source::Chosen(Arc::new(move |head| {
            let policies = choose(head);
            Box::pin(async { Vec::from_iter(policies.await) })
        })))
    }

    pub(crate) fn checked(self) -> Result<Policies, Invalid> {
        match &self.0 {
            Source::Fixed(policies) => checked(policies).map(|()| self),
            Source::Chosen(_) => Ok(self),
        }
    }

    /// The policies, with this name for those that have none.
    pub(crate) fn or_named(self, name: &str) -> Policies {
        match self.0 {
            Source::Fixed(all) => all.iter().map(|policy| policy.clone().or_named(name)).collect(),
            Source::Chosen(_) => self,
        }
    }
}

/// Refuses policies that the server would answer by an error: that would count as Redis being away, and requests might
/// pass. Also two policies of one name, which would share a key.
pub(crate) fn checked(policies: &[Policy]) -> Result<(), Invalid> {
    policies.iter().try_for_each(Policy::check)?;
    let mut names = HashSet::new();
    if let Some(twice) = policies.iter().find(|policy| !names.insert(policy.name())) {
        return Err(Invalid::new(format!("two policies of a request have the name {:?}", twice.name())));
    }
    let rows: usize = policies.iter().map(|policy| policy.0.rules.quotas.len()).sum();
    if rows > MAX_ROWS {
        let why = format!("the policies of a request have {rows} quotas, and may have {MAX_ROWS}");
        return Err(Invalid::new(why));
    }
    Ok(())
}

impl FromIterator<Policy> for Policies {
    fn from_iter<I: IntoIterator<Item = Policy>>(policies: I) -> Policies {
        Policies(Source::Fixed(policies.into_iter().collect()))
    }
}

impl From<Policy> for Policies {
    fn from(policy: Policy) -> Policies {
        Policies::from_iter([policy])
    }
}

impl<const N: usize> From<[Policy; N]> for Policies {
    fn from(policies: [Policy; N]) -> Policies {
        Policies::from_iter(policies)
    }
}

impl From<Vec<Policy>> for Policies {
    fn from(policies: Vec<Policy>) -> Policies {
        Policies::from_iter(policies)
    }
}

impl TryFrom<&str> for Policies {
    type Error = Invalid;

    fn try_from(quotas: &str) -> Result<Policies, Invalid> {
        Policy::try_from(quotas).map(Policies::from)
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Fixed(policies) => f.debug_list().entries(policies.iter()).finish(),
            Source::Chosen(_) => f.write_str("a function"),
        }
    }
}
