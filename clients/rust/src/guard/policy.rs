//! What a client may take.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;

use crate::commands::{Algorithm, Invalid, MAX_COST, Quota, Quotas, check};
use crate::keys::Rules;

/// The largest integer of a structured field.
const MAX_LIMIT: u64 = 999_999_999_999_999;
/// How long a lease lasts.
const LEASE: Duration = Duration::from_millis(100);

/// What each client may take: quotas under one name, all of which must allow a request.
///
/// It names whose quotas they are by a key and takes a cost, each of which may be a function of the request's head.
/// Clones are cheap.
#[derive(Clone)]
#[must_use]
pub struct Policy(pub(crate) Arc<Inner>);

#[derive(Clone)]
pub(crate) struct Inner {
    /// Empty if it is that of the route.
    name: String,
    pub rules: Arc<Rules>,
    pub unit: Option<String>,
    cost: Cost,
    pub key: Option<Key>,
    dry_run: bool,
}

/// What a request takes.
#[derive(Clone)]
enum Cost {
    Units(i64),
    Of(Arc<dyn Fn(&Parts) -> i64 + Send + Sync>),
}

/// Whose quotas they are.
#[derive(Clone)]
pub(crate) enum Key {
    Text(String),
    Of(KeyOf),
}

/// None if the request is not limited.
pub(crate) type KeyOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quotas = Quotas::from(self.quotas().to_vec());
        write!(f, "Policy({}: {:?} {quotas})", self.name(), self.0.rules.algorithm)
    }
}

impl Policy {
    /// Counts by `RL.LOG`, a unit for each request, in a key for each client: `name:key`.
    ///
    /// Quotas are a list, or a text such as `5/10s, 100/h`. Header fields tell windows in seconds, so they are whole
    /// seconds, each different; limits have at most 15 digits; names and units are printable ASCII. There are 1 to 8
    /// quotas, with windows of up to 3650 days.
    ///
    /// # Errors
    ///
    /// If any of this does not hold.
    pub fn new<Q>(name: impl Into<String>, quotas: Q) -> Result<Policy, Invalid>
    where
        Q: TryInto<Quotas>,
        Invalid: From<Q::Error>,
    {
        let name = name.into();
        if !is_name(&name) {
            return Err(Invalid::new(format!(
                "{name:?} is not a name: it must be printable ASCII without a space"
            )));
        }
        Ok(Policy::unnamed(quotas.try_into()?)?.with(|inner| inner.name = name))
    }

    /// That of a route, which names it.
    fn unnamed(quotas: Quotas) -> Result<Policy, Invalid> {
        check(&quotas)?;
        if let Some(quota) = quotas.iter().find(|quota| quota.window.subsec_nanos() != 0) {
            let why = format!("\"{quota}\" is no quota of a policy: its window must be whole seconds");
            return Err(Invalid::new(why));
        }
        if let Some(quota) = quotas.iter().find(|quota| quota.limit > MAX_LIMIT) {
            return Err(Invalid::new(format!("\"{quota}\" is too large: a limit is at most {MAX_LIMIT}")));
        }
        let rules = Arc::new(Rules::new(Algorithm::Log, &quotas, LEASE, 0));
        let (name, cost) = (String::new(), Cost::Units(1));
        Ok(Policy(Arc::new(Inner { name, rules, unit: None, cost, key: None, dry_run: false })))
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Policy {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// The same by this name, if it has none.
    pub(crate) fn or_named(self, name: &str) -> Policy {
        if self.name().is_empty() { self.with(|inner| inner.name = name.to_owned()) } else { self }
    }

    /// Counts by another algorithm. Keys of the one before are errors: give the policy another name then.
    pub fn algorithm(self, algorithm: Algorithm) -> Policy {
        self.with(|inner| {
            inner.rules = Arc::new(Rules::new(algorithm, &inner.rules.quotas, LEASE, inner.rules.units));
        })
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
        self.with(|inner| inner.key = Some(Key::Of(Arc::new(key))))
    }

    /// One key for all requests: a limit for everybody.
    pub fn key_text(self, key: impl Into<String>) -> Policy {
        self.with(|inner| inner.key = Some(Key::Text(key.into())))
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
        self.with(|inner| Arc::make_mut(&mut inner.rules).units = units)
    }

    /// Decides, counts and tells [hooks](crate::web::Guard::on_decision), and refuses nothing.
    pub fn dry_run(self, dry_run: bool) -> Policy {
        self.with(|inner| inner.dry_run = dry_run)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its quotas.
    #[must_use]
    pub fn quotas(&self) -> &[Quota] {
        &self.0.rules.quotas
    }

    /// Whether it refuses nothing.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.0.dry_run
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

/// A policy without a name, as of a route: see [`Guard::limit`](crate::web::Guard::limit).
impl TryFrom<&str> for Policy {
    type Error = Invalid;

    fn try_from(quotas: &str) -> Result<Policy, Invalid> {
        Policy::unnamed(quotas.parse()?)
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}
