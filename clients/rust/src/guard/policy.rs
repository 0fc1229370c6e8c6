//! A named set of quotas, and whose requests it counts.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;

use crate::commands::{Algorithm, BLOCK, Invalid, MAX_COST, Quota, Quotas, check};
use crate::keys::Rules;

/// The largest integer of a structured field.
const MAX_LIMIT: u64 = 999_999_999_999_999;
/// How long a lease lasts.
const LEASE: Duration = Duration::from_millis(100);

/// Quotas under one name, all of which must allow a request.
///
/// Its key says whose requests it counts, its cost how many units a request takes. Both may be functions of the request's
/// head. Clones are cheap.
#[derive(Clone)]
#[must_use]
pub struct Policy(pub(crate) Arc<Inner>);

#[derive(Clone)]
pub(crate) struct Inner {
    /// Empty if the route names it.
    name: String,
    pub rules: Arc<Rules>,
    pub unit: Option<String>,
    cost: Cost,
    pub key: Option<Key>,
    /// The length of the last of its rules' quotas, if that is a block's.
    pub block: Option<Duration>,
    hidden: bool,
    dry_run: bool,
}

#[derive(Clone)]
enum Cost {
    Units(i64),
    Of(Arc<dyn Fn(&Parts) -> i64 + Send + Sync>),
}

#[derive(Clone)]
pub(crate) enum Key {
    Text(String),
    Of(KeyOf),
}

/// Returns `None` if the request is not limited.
pub(crate) type KeyOf = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quotas = Quotas::from(self.quotas().to_vec());
        write!(f, "Policy({}: {:?} {quotas})", self.name(), self.0.rules.algorithm)
    }
}

impl Policy {
    /// A policy that counts by `RL.LOG` a unit for each request, in a key for each client: `name:key`.
    ///
    /// Quotas are a list, or a text such as `5/10s, 100/h`.
    ///
    /// # Errors
    ///
    /// If the name is not printable ASCII without a space, or the quotas are not 1 to 8 with different windows of whole
    /// seconds up to 3650 days, and limits of at most 15 digits. Header fields can tell no others.
    pub fn new<Q>(name: impl Into<String>, quotas: Q) -> Result<Policy, Invalid>
    where
        Q: TryInto<Quotas>,
        Invalid: From<Q::Error>,
    {
        let name = name.into();
        check_name(&name)?;
        Ok(Policy::unnamed(quotas.try_into()?)?.with(|inner| inner.name = name))
    }

    /// A policy without a name, for a route to name.
    fn unnamed(quotas: Quotas) -> Result<Policy, Invalid> {
        check(&quotas, true)?;
        if let Some(quota) = quotas.iter().find(|quota| quota.window.subsec_nanos() != 0) {
            let why = format!("\"{quota}\" is no quota of a policy: its window must be whole seconds");
            return Err(Invalid::new(why));
        }
        if let Some(quota) = quotas.iter().find(|quota| quota.limit > MAX_LIMIT) {
            return Err(Invalid::new(format!("\"{quota}\" is too large: a limit is at most {MAX_LIMIT}")));
        }
        let rules = Rules { algorithm: Algorithm::Log, quotas: quotas.to_vec(), ttl: LEASE, units: 0 };
        let (name, cost) = (String::new(), Cost::Units(1));
        let inner = Inner {
            name,
            rules: rules.into(),
            unit: None,
            cost,
            key: None,
            block: None,
            hidden: false,
            dry_run: false,
        };
        Ok(Policy(inner.into()))
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Policy {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// The policy, with this name if it has none.
    pub(crate) fn or_named(self, name: &str) -> Policy {
        if self.name().is_empty() { self.with(|inner| inner.name = name.to_owned()) } else { self }
    }

    /// The algorithm. When you change it, give the policy a new name: old keys answer errors.
    pub fn algorithm(self, algorithm: Algorithm) -> Policy {
        self.with(|inner| Arc::make_mut(&mut inner.rules).algorithm = algorithm)
    }

    /// What is counted, if not requests: `tokens`, say. Header fields tell clients.
    ///
    /// # Panics
    ///
    /// If the name is not printable ASCII without a space.
    pub fn unit(self, unit: impl Into<String>) -> Policy {
        let unit = unit.into();
        assert!(is_name(&unit), "{unit:?} is not a unit: it must be printable ASCII without a space");
        self.with(|inner| inner.unit = Some(unit))
    }

    /// The units that each request takes.
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

    /// The units that a request takes, by its head. If they are negative it is answered 500.
    pub fn cost_with(self, units: impl Fn(&Parts) -> i64 + Send + Sync + 'static) -> Policy {
        self.with(|inner| inner.cost = Cost::Of(Arc::new(units)))
    }

    /// The key of a request, by its head. With `None` the policy does not limit the request.
    pub fn key(self, key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Policy {
        self.with(|inner| inner.key = Some(Key::Of(Arc::new(key))))
    }

    /// The key of all requests: one limit for everybody.
    pub fn key_text(self, key: impl Into<String>) -> Policy {
        self.with(|inner| inner.key = Some(Key::Text(key.into())))
    }

    /// Leases up to this many units of each key: they are counted ahead, and handed out in this process without asking.
    ///
    /// In each process at most that many more pass in a window than the policy allows: see [`Leases`](crate::Leases). Of
    /// several quotas, `ratelimit` may show the tightest alone. [`Guard::close`](crate::web::Guard::close) gives leases back.
    ///
    /// # Panics
    ///
    /// If two of its quotas have the same limit: the verdict of a lease tells them apart by it.
    pub fn lease(self, units: u64) -> Policy {
        let limits: HashSet<u64> = self.quotas().iter().map(|quota| quota.limit).collect();
        assert!(
            limits.len() == self.quotas().len(),
            "a policy with a lease needs a different limit in each quota"
        );
        self.with(|inner| Arc::make_mut(&mut inner.rules).units = units)
    }

    /// Refuses whom the quotas refuse for this long from then on, whatever is free meanwhile. Trying again makes it no longer.
    ///
    /// It must be longer than the windows, and is only for [`Algorithm::Log`], without a lease: else no guard can be made.
    pub fn block(self, block: Duration) -> Policy {
        let mut quotas = self.quotas().to_vec();
        quotas.push(Quota::new(BLOCK, block));
        self.with(|inner| {
            Arc::make_mut(&mut inner.rules).quotas = quotas;
            inner.block = Some(block);
        })
    }

    /// Refuses what depends on several of its settings.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        let Rules { algorithm, quotas, units, .. } = &*self.0.rules;
        let Some(block) = self.0.block else {
            // The others were checked when they were read.
            return if quotas.iter().any(Quota::is_calendar) {
                check(quotas, *algorithm == Algorithm::Fixed)
            } else {
                Ok(())
            };
        };
        if *algorithm != Algorithm::Log || *units > 0 {
            return Err(Invalid::new("block is for the algorithm log, without a lease"));
        }
        if self.quotas().iter().any(|quota| quota.window >= block) {
            return Err(Invalid::new("block must be longer than the windows of the policy"));
        }
        check(quotas, *algorithm == Algorithm::Fixed)
    }

    /// With `true` no answer tells its figures, except for the wait.
    pub fn hidden(self, hidden: bool) -> Policy {
        self.with(|inner| inner.hidden = hidden)
    }

    /// With `true` it decides, counts and calls [`on_limited`](crate::web::Guard::on_limited), and refuses nothing.
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
        let all = &self.0.rules.quotas;
        &all[..all.len() - usize::from(self.0.block.is_some())]
    }

    /// Whether it refuses nothing.
    #[must_use]
    pub fn is_dry_run(&self) -> bool {
        self.0.dry_run
    }

    /// Whether answers tell its figures.
    pub(crate) fn is_shown(&self) -> bool {
        !self.0.hidden && !self.0.dry_run
    }

    /// The units that a request takes. `None` if they depend on a head that is not there.
    pub(crate) fn cost_of(&self, head: Option<&Parts>) -> Option<i64> {
        match &self.0.cost {
            Cost::Units(units) => Some(*units),
            Cost::Of(units) => head.map(|head| units(head)),
        }
    }
}

/// Reads quotas as a policy that its route names: see [`Guard::limit`](crate::web::Guard::limit).
impl TryFrom<&str> for Policy {
    type Error = Invalid;

    fn try_from(quotas: &str) -> Result<Policy, Invalid> {
        Policy::unnamed(quotas.parse()?)
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), Invalid> {
    let why = || Invalid::new(format!("{name:?} is not a name: it must be printable ASCII without a space"));
    if is_name(name) { Ok(()) } else { Err(why()) }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}
