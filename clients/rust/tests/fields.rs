//! Which header fields answers have: `fields` and `fields_on` of a guard, `hidden` of a policy.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use axum::{Router, body::Body, http::Request, routing::get};
use redis_rl_client::web::{Fields, FieldsOn, Guard, Policies, Policy};
use redis_rl_client::{Clock, MemoryLimiter};
use tower::ServiceExt;

/// The start of 2026.
const BEGIN: u64 = 1_767_225_600;

fn guard(policies: impl Into<Policies>) -> Guard {
    let clock = Clock::new(UNIX_EPOCH + Duration::from_secs(BEGIN));
    Guard::new(MemoryLimiter::new().clock(clock), policies.into()).expect("policies")
}

fn quotas(text: &str) -> Policy {
    Policy::new("requests", text).expect("a policy")
}

/// The fields of the package on the last of so many answers, and its body.
async fn asked(guard: &Guard, times: usize) -> (BTreeMap<String, String>, String) {
    let app = Router::new().route("/", get("hello")).layer(guard.layer());
    let mut last = None;
    for _ in 0..times {
        last = Some(app.clone().oneshot(Request::new(Body::empty())).await.expect("an answer"));
    }
    let (head, body) = last.expect("an answer").into_parts();
    assert_eq!(head.status.as_u16(), if times < 3 { 200 } else { 429 });
    let is_ours = |name: &str| name.contains("rate") || name == "retry-after";
    let fields = head.headers.iter().filter(|(name, _)| is_ours(name.as_str()));
    let fields = fields.map(|(name, text)| (name.to_string(), text.to_str().expect("ASCII").to_owned()));
    let body = axum::body::to_bytes(body, 1_000).await.expect("a body");
    (fields.collect(), String::from_utf8(body.to_vec()).expect("text"))
}

fn said(fields: &[&[(&str, &str)]]) -> BTreeMap<String, String> {
    fields.concat().into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

const POLICY: (&str, &str) = ("ratelimit-policy", r#""requests-1m";q=2;w=60, "requests-1h";q=9;w=3600"#);

#[tokio::test]
async fn a_guard_says_which_fields_answers_have() {
    let reset = (BEGIN + 60).to_string();
    let of_github =
        |left| [("x-ratelimit-limit", "2"), ("x-ratelimit-remaining", left), ("x-ratelimit-reset", &*reset)];
    let (x_allowed, x_refused) = (of_github("1"), of_github("0"));
    let allowed = [POLICY, ("ratelimit", r#""requests-1m";r=1;t=60, "requests-1h";r=8;t=3600"#)];
    let refused = [POLICY, ("ratelimit", r#""requests-1m";r=0;t=60, "requests-1h";r=7"#)];
    let wait = [("retry-after", "60")];
    for (fields, on, when_allowed, when_refused) in [
        (Fields::Standard, FieldsOn::All, said(&[&allowed]), said(&[&refused, &wait])),
        (Fields::XRateLimit, FieldsOn::All, said(&[&x_allowed]), said(&[&x_refused, &wait])),
        (Fields::Both, FieldsOn::All, said(&[&allowed, &x_allowed]), said(&[&refused, &x_refused, &wait])),
        (Fields::None, FieldsOn::All, said(&[]), said(&[&wait])),
        (Fields::Both, FieldsOn::Refusals, said(&[]), said(&[&refused, &x_refused, &wait])),
    ] {
        let new = || guard(quotas("2/m, 9/h")).fields(fields).fields_on(on);
        assert_eq!(asked(&new(), 1).await.0, when_allowed, "{fields:?} {on:?}");
        assert_eq!(asked(&new(), 3).await.0, when_refused, "{fields:?} {on:?}");
    }
}

#[tokio::test]
async fn what_is_left_of_a_hidden_policy_is_told_nowhere_and_hooks_know_it() {
    let login = || Policy::new("login", "2/m").expect("a policy").hidden(true);
    let wait = [("retry-after", "60")];
    let hidden = guard(login()).fields(Fields::Both);
    assert_eq!(asked(&hidden, 1).await.0, said(&[]));
    let told = std::sync::Arc::new(std::sync::Mutex::new(0));
    let noted = told.clone();
    let hidden = guard(login()).fields(Fields::Both).on_limited(move |_, decision| {
        *noted.lock().expect("a number") += u32::from(decision.policies()["login"].limited);
        None
    });
    let (fields, body) = asked(&hidden, 3).await;
    assert_eq!((fields, body.contains("login")), (said(&[&wait]), false));
    assert_eq!(*told.lock().expect("a number"), 1);
    let both = guard([login(), quotas("9/h")]);
    let hour = [("ratelimit-policy", r#""requests-1h";q=9;w=3600"#), ("ratelimit", r#""requests-1h";r=7"#)];
    assert_eq!(asked(&both, 3).await.0, said(&[&hour, &wait]));
}
