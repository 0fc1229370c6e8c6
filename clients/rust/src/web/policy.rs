//! What a client may take, and how HTTP speaks of it.

use std::collections::HashSet;
use std::fmt::{self, Write};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::json;

use crate::web::Refusal;
use crate::{Algorithm, All, Decision, Quota, Verdict};

const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The largest integer of a structured field.
const MAX_LIMIT: u64 = 999_999_999_999_999;
/// The largest cost that the commands accept.
pub(crate) const MAX_COST: i64 = (1 << 53) - 1;
const MAX_WINDOW: Duration = Duration::from_secs(3650 * 86_400);
const MAX_QUOTAS: usize = 8;

/// What each client may take: quotas under one name, all of which must allow a request.
///
/// ```
/// # use redis_rl_client::{Quota, web::{InvalidPolicy, Policy}};
/// # fn main() -> Result<(), InvalidPolicy> {
/// let requests = Policy::new("requests", [Quota::per_second(5), Quota::per_hour(100)])?;
/// let tokens = Policy::parse("tokens", "1000/1h")?.unit("tokens");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Policy {
    name: String,
    algorithm: Algorithm,
    quotas: Vec<Quota>,
    unit: Option<String>,
}

/// Quotas that make no policy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InvalidPolicy(String);

impl fmt::Display for InvalidPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidPolicy {}

impl Policy {
    /// Counts by `RL.LOG`, in a key for each client: `name:client`.
    ///
    /// Header fields tell windows in seconds, so they are whole seconds, each different; limits have at most 15
    /// digits; names and units are printable ASCII. There are 1 to 8 quotas, with windows of up to 3650 days.
    pub fn new(name: impl Into<String>, quotas: impl Into<Vec<Quota>>) -> Result<Policy, InvalidPolicy> {
        let (name, quotas) = (name.into(), quotas.into());
        if let Some(quota) = quotas.iter().find(|quota| !is_whole_seconds(quota.window)) {
            return Err(InvalidPolicy(format!(
                "\"{quota}\" is no limit such as 5/10s, with a window of whole seconds"
            )));
        }
        // What only the server would refuse would count as Redis being away, and might let every request pass.
        if let Some(quota) = quotas.iter().find(|quota| quota.limit > MAX_LIMIT || quota.window > MAX_WINDOW)
        {
            return Err(InvalidPolicy(format!(
                "\"{quota}\" is too large: a limit is at most {MAX_LIMIT}, a window 3650d"
            )));
        }
        if quotas.len() > MAX_QUOTAS {
            return Err(InvalidPolicy(format!("{name} may have {MAX_QUOTAS} limits")));
        }
        let windows: HashSet<Duration> = quotas.iter().map(|quota| quota.window).collect();
        if quotas.is_empty() || windows.len() < quotas.len() {
            return Err(InvalidPolicy(format!("{name} needs a limit, and all windows must differ")));
        }
        if !is_printable(&name) {
            return Err(InvalidPolicy(format!("{name:?} is no name in printable ASCII")));
        }
        Ok(Policy { name, algorithm: Algorithm::Log, quotas, unit: None })
    }

    /// Reads the quotas from a setting, as in `5/10s,100/1h`.
    pub fn parse(name: impl Into<String>, quotas: &str) -> Result<Policy, InvalidPolicy> {
        let quotas = quotas.split(',').map(|quota| quota.trim().parse());
        let quotas: Result<Vec<Quota>, crate::InvalidQuota> = quotas.collect();
        Policy::new(name, quotas.map_err(|invalid| InvalidPolicy(invalid.to_string()))?)
    }

    /// Counts by another algorithm.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Policy {
        self.algorithm = algorithm;
        self
    }

    /// Says that units are not requests. A strict client ignores what it does not know, rather than read tokens as
    /// requests.
    ///
    /// # Panics
    ///
    /// If the name is not printable ASCII.
    pub fn unit(mut self, unit: impl Into<String>) -> Policy {
        let unit = unit.into();
        assert!(is_printable(&unit), "{unit:?} is no unit in printable ASCII");
        self.unit = Some(unit);
        self
    }

    /// What is asked of the server when a client takes so many units.
    pub(crate) fn request(&self, client: &str, cost: i64) -> All {
        // The server refuses a larger one, which no limit allows anyway.
        let cost = cost.clamp(-MAX_COST, MAX_COST);
        All::new().key(self.key(client), self.algorithm, &self.quotas, cost)
    }

    /// What is counted for a client.
    pub(crate) fn key(&self, client: &str) -> String {
        format!("{}:{client}", self.name)
    }

    pub(crate) fn counted_by(&self) -> Algorithm {
        self.algorithm
    }

    pub(crate) fn quotas(&self) -> &[Quota] {
        &self.quotas
    }

    /// The header fields of a response to a request that was counted.
    pub fn fields(&self, decision: &Decision) -> HeaderMap {
        self.fields_with(decision, |verdict| (verdict.remaining, Some(verdict.reset_after)))
    }

    /// The header fields of a response to a request, or its refusal.
    pub fn answer(&self, decision: &Decision) -> Result<HeaderMap, Refusal> {
        if !decision.limited {
            return Ok(self.fields(decision));
        }
        let hopeless = decision.is_hopeless();
        let status = if hopeless { StatusCode::FORBIDDEN } else { StatusCode::TOO_MANY_REQUESTS };
        let fields = self.fields_with(decision, |verdict| {
            let time = if hopeless { Some(verdict.reset_after) } else { verdict.retry_after };
            (verdict.remaining, time)
        });
        let refuses = |verdict: Option<&Verdict>| verdict.is_some_and(|verdict| verdict.limited);
        let rows = self.rows(decision).filter(|(_, verdict)| refuses(*verdict));
        let violated: Vec<String> = rows.map(|(quota, _)| self.policy_name(quota)).collect();
        let problem = json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": status.as_u16(),
            "violated-policies": violated,
        });
        Err(Refusal::new(status, fields, decision.retry_after.map(seconds), &problem))
    }

    /// Each quota with its figures. A decision by leases has those of one quota alone, which its limit tells.
    fn rows<'a>(&'a self, decision: &'a Decision) -> impl Iterator<Item = (&'a Quota, Option<&'a Verdict>)> {
        let has_all = decision.rows.len() == self.quotas.len();
        self.quotas.iter().enumerate().map(move |(index, quota)| {
            let tightest = || decision.rows.iter().find(|row| row.limit == quota.limit);
            (quota, if has_all { decision.rows.get(index) } else { tightest() })
        })
    }

    /// `figures` tells the units left in a quota, and the time that it is told with.
    fn fields_with(
        &self,
        decision: &Decision,
        figures: impl Fn(&Verdict) -> (u64, Option<Duration>),
    ) -> HeaderMap {
        let mut policies = String::new();
        let mut limits = String::new();
        for (quota, verdict) in self.rows(decision) {
            let name = structured(&self.policy_name(quota));
            let separator = if policies.is_empty() { "" } else { ", " };
            let _ = write!(policies, "{separator}{name};q={}", quota.limit);
            if let Some(unit) = &self.unit {
                let _ = write!(policies, ";qu={}", structured(unit));
            }
            let _ = write!(policies, ";w={}", quota.window.as_secs());
            let Some((remaining, time)) = verdict.map(&figures) else { continue };
            let separator = if limits.is_empty() { "" } else { ", " };
            let _ = write!(limits, "{separator}{name};r={remaining}");
            if let Some(time) = time {
                let _ = write!(limits, ";t={}", seconds(time));
            }
        }
        let value = |text| HeaderValue::try_from(text).expect("printable ASCII");
        HeaderMap::from_iter([(RATELIMIT_POLICY, value(policies)), (RATELIMIT, value(limits))])
    }

    /// A policy in the draft's words has one window.
    fn policy_name(&self, quota: &Quota) -> String {
        format!("{}-{}", self.name, quota.window_text())
    }
}

/// Rounded up, so that waiting this long is enough.
fn seconds(time: Duration) -> u64 {
    time.as_nanos().div_ceil(1_000_000_000) as u64
}

fn is_whole_seconds(window: Duration) -> bool {
    !window.is_zero() && window.subsec_nanos() == 0
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// A string of a structured field.
fn structured(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', r#"\""#))
}
