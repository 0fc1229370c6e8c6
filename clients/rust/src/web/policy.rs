//! What a client may take.

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;

use crate::local::Rules;
use crate::quota::check;
use crate::{Algorithm, InvalidQuota, Quotas};

/// The largest integer of a structured field.
const MAX_LIMIT: u64 = 999_999_999_999_999;
/// The largest cost that the commands accept.
pub(crate) const MAX_COST: i64 = (1 << 53) - 1;

/// What each client may take: quotas under one name, all of which must allow a request.
///
/// It names whose quotas they are by a key and takes a cost, each of which may be a function of the request's head.
/// Clones are cheap.
///
/// ```
/// # use redis_rl_client::{Algorithm, Quota, web::{InvalidPolicy, Policy}};
/// # fn main() -> Result<(), InvalidPolicy> {
/// let requests = Policy::new("requests", "5/10s, 100/h")?;
/// let tokens = Policy::new("tokens", [Quota::per_hour(100_000)])?
///     .algorithm(Algorithm::Sliding)
///     .unit("tokens")
///     .cost(500)
///     .key(|head| Some(head.headers.get("account")?.to_str().ok()?.to_owned()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Policy(pub(crate) Arc<Inner>);

#[derive(Clone)]
pub(crate) struct Inner {
    name: String,
    algorithm: Algorithm,
    quotas: Quotas,
    pub unit: Option<String>,
    cost: Cost,
    pub key: Option<KeyOf>,
    /// Of everybody, in place of a function.
    pub key_text: Option<String>,
    lease: u64,
    pub rules: Arc<Rules>,
}

/// What a request takes.
#[derive(Clone)]
enum Cost {
    Units(i64),
    Of(Arc<dyn Fn(&Parts) -> i64 + Send + Sync>),
}

/// Whose quotas they are; none if the request is not limited.
pub(crate) type KeyOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { name, algorithm, quotas, .. } = &*self.0;
        write!(f, "Policy({name}: {algorithm:?} {quotas})")
    }
}

/// What makes no policy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InvalidPolicy(String);

impl fmt::Display for InvalidPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidPolicy {}

impl From<InvalidQuota> for InvalidPolicy {
    fn from(invalid: InvalidQuota) -> InvalidPolicy {
        InvalidPolicy(invalid.to_string())
    }
}

impl From<Infallible> for InvalidPolicy {
    fn from(never: Infallible) -> InvalidPolicy {
        match never {}
    }
}

impl Policy {
    /// Counts by `RL.LOG`, a unit for each request, in a key for each client: `name:key`.
    ///
    /// Quotas are a list, or a text such as `5/10s, 100/h`. Header fields tell windows in seconds, so they are whole
    /// seconds, each different; limits have at most 15 digits; names and units are printable ASCII. There are 1 to 8
    /// quotas, with windows of up to 3650 days.
    pub fn new<Q>(name: impl Into<String>, quotas: Q) -> Result<Policy, InvalidPolicy>
    where
        Q: TryInto<Quotas>,
        InvalidPolicy: From<Q::Error>,
    {
        let (name, quotas) = (name.into(), quotas.try_into()?);
        check(&quotas).map_err(|why| InvalidPolicy(format!("{name}: {why}")))?;
        if let Some(quota) = quotas.iter().find(|quota| !is_whole_seconds(quota.window)) {
            return Err(InvalidPolicy(format!(
                "\"{quota}\" is no quota of a policy: its window must be whole seconds"
            )));
        }
        if let Some(quota) = quotas.iter().find(|quota| quota.limit > MAX_LIMIT) {
            return Err(InvalidPolicy(format!("\"{quota}\" is too large: a limit is at most {MAX_LIMIT}")));
        }
        if !is_name(&name) {
            return Err(InvalidPolicy(format!(
                "{name:?} is not a name: it must be printable ASCII without a space"
            )));
        }
        let algorithm = Algorithm::Log;
        let rules = Arc::new(rules(algorithm, &quotas, 0));
        let (unit, key, key_text) = (None, None, None);
        let cost = Cost::Units(1);
        Ok(Policy(Arc::new(Inner { name, algorithm, quotas, unit, cost, key, key_text, lease: 0, rules })))
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Policy {
        let inner = Arc::make_mut(&mut self.0);
        change(inner);
        inner.rules = Arc::new(rules(inner.algorithm, &inner.quotas, inner.lease));
        self
    }

    /// Counts by another algorithm. Keys of the one before are errors: give the policy another name then.
    pub fn algorithm(self, algorithm: Algorithm) -> Policy {
        self.with(|inner| inner.algorithm = algorithm)
    }

    /// Says that units are not requests. A strict client ignores what it does not know, rather than read tokens as
    /// requests.
    ///
    /// # Panics
    ///
    /// If the name is not printable ASCII without a space.
    pub fn unit(self, unit: impl Into<String>) -> Policy {
        let unit = unit.into();
        assert!(is_name(&unit), "{unit:?} is not a unit: it must be printable ASCII without a space");
        self.with(|inner| inner.unit = Some(unit))
    }

    /// So many units for each request.
    ///
    /// # Panics
    ///
    /// If the cost is not 0 to 2^53 - 1.
    pub fn cost(self, units: i64) -> Policy {
        assert!(
            (0..=MAX_COST).contains(&units),
            "the cost of a request must be from 0 to {MAX_COST}: {units}"
        );
        self.with(|inner| inner.cost = Cost::Units(units))
    }

    /// Units for each request by its head. A request of a negative cost is answered 500.
    pub fn cost_with(self, units: impl Fn(&Parts) -> i64 + Send + Sync + 'static) -> Policy {
        self.with(|inner| inner.cost = Cost::Of(Arc::new(units)))
    }

    /// Says by the request's head whose quotas they are. With `None` the policy does not limit the request.
    pub fn key(self, key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Policy {
        self.with(|inner| {
            inner.key = Some(Arc::new(key));
            inner.key_text = None;
        })
    }

    /// One key for all requests: a limit for everybody.
    pub fn key_text(self, key: impl Into<String>) -> Policy {
        self.with(|inner| (inner.key, inner.key_text) = (None, Some(key.into())))
    }

    /// Leases at most so many units of each key, which are counted ahead and handed out in this process without asking.
    ///
    /// At most that many more than the policy allows pass in a window, for each process: see [`Leases`](crate::Leases). Of
    /// several quotas `ratelimit` then tells of the tightest one alone. End with
    /// [`Guard::close`](crate::web::Guard::close).
    ///
    /// # Panics
    ///
    /// If two of its quotas have the same limit: a verdict tells them apart by it.
    pub fn lease(self, units: u64) -> Policy {
        let limits: HashSet<u64> = self.quotas().iter().map(|quota| quota.limit).collect();
        assert!(
            limits.len() == self.quotas().len(),
            "a policy with a lease needs a different limit in each quota"
        );
        self.with(|inner| inner.lease = units)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its quotas.
    #[must_use]
    pub fn quotas(&self) -> &Quotas {
        &self.0.quotas
    }

    /// What a request takes; none if that depends on a head that is not there.
    pub(crate) fn cost_of(&self, head: Option<&Parts>) -> Option<i64> {
        match &self.0.cost {
            Cost::Units(units) => Some(*units),
            Cost::Of(units) => head.map(|head| units(head)),
        }
    }
}

/// One policy is a list of one.
impl AsRef<[Policy]> for Policy {
    fn as_ref(&self) -> &[Policy] {
        std::slice::from_ref(self)
    }
}

/// Leases last for 100 ms.
fn rules(algorithm: Algorithm, quotas: &Quotas, lease: u64) -> Rules {
    Rules::new(algorithm, quotas, Duration::from_millis(100), lease)
}

fn is_whole_seconds(window: Duration) -> bool {
    window.subsec_nanos() == 0
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}
