//! How HTTP speaks of a decision.

use std::fmt::Write;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::json;

use crate::web::{Policy, Refusal};
use crate::{Decision, Quota, Verdict};

const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The header fields of a response to a request that was counted by these policies.
pub fn fields(policies: impl AsRef<[Policy]>, decision: &Decision) -> HeaderMap {
    let figures = |verdict: &Verdict| (verdict.remaining, Some(verdict.reset_after));
    fields_with(policies.as_ref(), decision, figures)
}

/// The header fields of a response to a request that these policies decided on, or its refusal.
pub fn answer(policies: impl AsRef<[Policy]>, decision: &Decision) -> Result<HeaderMap, Refusal> {
    let policies = policies.as_ref();
    if !decision.limited {
        return Ok(fields(policies, decision));
    }
    let hopeless = decision.is_hopeless();
    let status = if hopeless { StatusCode::FORBIDDEN } else { StatusCode::TOO_MANY_REQUESTS };
    let fields = fields_with(policies, decision, |verdict| {
        let time = if hopeless { Some(verdict.reset_after) } else { verdict.retry_after };
        (verdict.remaining, time)
    });
    let violated: Vec<String> = items(policies, decision)
        .filter(|item| item.verdict.is_some_and(|verdict| verdict.limited))
        .map(|item| item.name())
        .collect();
    let problem = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota Exceeded",
        "status": status.as_u16(),
        "violated-policies": violated,
    });
    let retry_after = decision.retry_after.map(seconds);
    Err(Refusal::limited(status, fields, retry_after, &problem, decision.clone()))
}

/// Adds header fields to those of a response: another layer may have policies of its own.
pub(crate) fn write_fields(fields: &HeaderMap, headers: &mut HeaderMap) {
    for (name, value) in fields {
        // Both are lists, which one line can have as well as several.
        let lines = headers.get_all(name).iter().chain([value]);
        let list = lines.map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b", "[..]);
        headers.insert(name, HeaderValue::from_bytes(&list).unwrap_or_else(|_| value.clone()));
    }
}

/// A quota of a policy: what the draft calls a policy.
struct Item<'a> {
    policy: &'a Policy,
    quota: &'a Quota,
    verdict: Option<&'a Verdict>,
}

impl Item<'_> {
    fn name(&self) -> String {
        format!("{}-{}", self.policy.name(), self.quota.window_text())
    }
}

/// Each quota with its figures. A decision by leases has those of one quota alone, which its limit tells.
fn items<'a>(policies: &'a [Policy], decision: &'a Decision) -> impl Iterator<Item = Item<'a>> {
    let quotas = policies.iter().flat_map(|policy| policy.quotas().iter().map(move |quota| (policy, quota)));
    let has_all = quotas.clone().count() == decision.rows.len();
    quotas.enumerate().map(move |(index, (policy, quota))| {
        let tightest = || decision.rows.iter().find(|row| row.limit == quota.limit);
        Item { policy, quota, verdict: if has_all { decision.rows.get(index) } else { tightest() } }
    })
}

/// `figures` tells the units left in a quota, and the time that it is told with.
fn fields_with(
    policies: &[Policy],
    decision: &Decision,
    figures: impl Fn(&Verdict) -> (u64, Option<Duration>),
) -> HeaderMap {
    let mut all = String::new();
    let mut left = String::new();
    for item in items(policies, decision) {
        let name = structured(&item.name());
        let separator = if all.is_empty() { "" } else { ", " };
        let _ = write!(all, "{separator}{name};q={}", item.quota.limit);
        if let Some(unit) = item.policy.counted_unit() {
            let _ = write!(all, ";qu={}", structured(unit));
        }
        let _ = write!(all, ";w={}", item.quota.window.as_secs());
        let Some((remaining, time)) = item.verdict.map(&figures) else { continue };
        let separator = if left.is_empty() { "" } else { ", " };
        let _ = write!(left, "{separator}{name};r={remaining}");
        if let Some(time) = time {
            let _ = write!(left, ";t={}", seconds(time));
        }
    }
    let value = |text| HeaderValue::try_from(text).expect("printable ASCII");
    HeaderMap::from_iter([(RATELIMIT_POLICY, value(all)), (RATELIMIT, value(left))])
}

/// Rounded up, so that waiting this long is enough.
fn seconds(time: Duration) -> u64 {
    time.as_nanos().div_ceil(1_000_000_000) as u64
}

/// A string of a structured field.
fn structured(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', r#"\""#))
}
