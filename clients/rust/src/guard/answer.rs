//! What tells of a decision: figures, and header fields.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::met::{Asked, Fields, FieldsOn, Met};
use super::policy::Policy;
use crate::commands::{Quota, Verdict, Verdicts};

const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The figures of a policy: of its quota that refuses with the longest wait, or else has the fewest units left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Figures {
    /// Whether it refuses the request.
    pub limited: bool,
    /// The limit of the quota.
    pub limit: u64,
    /// Units that are left of it.
    pub remaining: u64,
    /// After this time the same request is allowed, if no other comes. `None` if it was allowed, and if no wait helps.
    pub retry_after: Option<Duration>,
    /// After this time the whole limit is available again, if no other request comes.
    pub reset_after: Duration,
}

impl Figures {
    /// Those of the quotas in these rows, if there are any.
    pub(crate) fn of(rows: Vec<Verdict>) -> Option<Figures> {
        let limited = rows.iter().any(|row| row.limited);
        let Verdict { limit, remaining, retry_after, reset_after, .. } =
            Verdicts { limited, retry_after: None, at: UNIX_EPOCH, rows }.tightest()?;
        Some(Figures { limited, limit, remaining, retry_after, reset_after })
    }
}

/// The names of the items of `ratelimit` that refuse the request.
pub(crate) fn violated(met: &[Met]) -> Vec<String> {
    let violated = items(met).filter(|item| item.verdict.is_some_and(|verdict| verdict.limited));
    violated.map(|item| item.name()).collect()
}

/// One quota of a policy. The draft calls this a policy.
struct Item<'a> {
    policy: &'a Policy,
    quota: &'a Quota,
    verdict: Option<&'a Verdict>,
}

impl Item<'_> {
    fn name(&self) -> String {
        let (window, unit) = self.quota.window_and_unit();
        format!("{}-{window}{unit}", self.policy.name())
    }
}

/// Each quota with its figures, if they are known, except for what is hidden and for dry runs. A single row of a lease belongs to the quota with its
/// limit.
fn items(met: &[Met]) -> impl Iterator<Item = Item<'_>> {
    let known = met.iter().filter(|met| met.asked.policy.is_shown() && !met.rows.is_empty());
    known.flat_map(|Met { asked: Asked { policy, .. }, rows, .. }| {
        let has_all = rows.len() >= policy.quotas().len();
        policy.quotas().iter().enumerate().map(move |(index, quota)| {
            let tightest = || rows.iter().find(|row| row.limit == quota.limit);
            Item { policy, quota, verdict: if has_all { rows.get(index) } else { tightest() } }
        })
    })
}

/// The header fields. `t` of a quota is its wait if `is_to_wait`, else the time until its whole limit is back.
pub(crate) fn fields_of(met: &[Met], is_refusal: bool, is_to_wait: bool) -> HeaderMap {
    let newest = met.iter().rfind(|met| !met.rows.is_empty());
    let Some(Met { shown: (fields, on), at, .. }) = newest else { return HeaderMap::new() };
    if *on == FieldsOn::Refusals && !is_refusal {
        return HeaderMap::new();
    }
    let mut all = HeaderMap::new();
    if matches!(fields, Fields::Standard | Fields::Both) {
        all.extend(standard(met, is_to_wait));
    }
    if matches!(fields, Fields::XRateLimit | Fields::Both)
        && let Some(figures) = Figures::of(items(met).filter_map(|item| item.verdict.copied()).collect())
    {
        let now = at.unwrap_or_else(SystemTime::now).duration_since(UNIX_EPOCH).unwrap_or_default();
        let reset = seconds(now + figures.retry_after.unwrap_or(figures.reset_after));
        all.extend(
            [(X_LIMIT, figures.limit), (X_REMAINING, figures.remaining), (X_RESET, reset)]
                .map(|(name, figure)| (name, HeaderValue::from(figure))),
        );
    }
    all
}

fn standard(met: &[Met], is_to_wait: bool) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let (mut all, mut left) = (String::new(), String::new());
    for item in items(met) {
        let name = structured(&item.name());
        let separator = if all.is_empty() { "" } else { ", " };
        let _ = write!(all, "{separator}{name};q={}", item.quota.limit);
        if let Some(unit) = &item.policy.0.unit {
            let _ = write!(all, ";qu={}", structured(unit));
        }
        // Months differ in length, so none is told.
        if !item.quota.is_months() {
            let _ = write!(all, ";w={}", item.quota.window.as_secs());
        }
        let Some(verdict) = item.verdict else { continue };
        let time = if is_to_wait { verdict.retry_after } else { Some(verdict.reset_after) };
        let separator = if left.is_empty() { "" } else { ", " };
        let _ = write!(left, "{separator}{name};r={}", verdict.remaining);
        if let Some(time) = time {
            let _ = write!(left, ";t={}", seconds(time));
        }
    }
    let value = |text| HeaderValue::try_from(text).expect("printable ASCII");
    let fields = [(RATELIMIT_POLICY, all), (RATELIMIT, left)].into_iter();
    fields.filter(|(_, text)| !text.is_empty()).map(move |(name, text)| (name, value(text)))
}

/// Whole seconds, rounded up: who waits this long has waited long enough.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_nanos().div_ceil(1_000_000_000) as u64
}

/// Quotes a string for a structured field.
fn structured(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', r#"\""#))
}
