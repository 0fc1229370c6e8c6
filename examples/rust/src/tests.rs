//! The service without a server, by a clock that stands still.

use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use redis_rl_client::{Clock, MemoryLimiter};
use tower::ServiceExt;

/// The service, and its clock.
fn service() -> (Router, Clock) {
    let clock = Clock::new(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000));
    let memory = MemoryLimiter::new().clock(clock.clone());
    let (router, _) = super::service(memory, |_, default| default.to_owned()).expect("settings");
    (router, clock)
}

/// The status, the field `RateLimit` and the body.
async fn ask(service: &Router, method: &str, path: &str, body: &str) -> (StatusCode, String, String) {
    let request = Request::builder().method(method).uri(path).header("x-account", "ada");
    let request = request.body(Body::from(body.to_owned())).expect("a request");
    let answer = service.clone().oneshot(request).await.expect("an answer");
    let fields = answer.headers().get("ratelimit").map_or("", |value| value.to_str().expect("ASCII"));
    let (status, fields) = (answer.status(), fields.to_owned());
    let body = to_bytes(answer.into_body(), 10_000).await.expect("a body");
    (status, fields, String::from_utf8(body.to_vec()).expect("UTF-8"))
}

#[tokio::test]
async fn the_third_search_waits_for_ten_seconds() {
    let (service, clock) = service();
    for status in [200, 200, 429] {
        assert_eq!(ask(&service, "GET", "/search", "").await.0, status);
    }
    clock.advance(Duration::from_secs(10));
    let (status, fields, _) = ask(&service, "GET", "/search", "").await;
    assert_eq!(status, 200);
    assert!(fields.contains(r#""free-1h";r=97;"#), "what was refused cost nothing: {fields}");
}

#[tokio::test]
async fn tokens_are_settled_and_a_prompt_that_costs_too_much_is_refused() {
    let (service, _) = service();
    let (status, fields, body) = ask(&service, "POST", "/generate", "to be or not to be").await;
    assert_eq!((status, body.contains(r#""tokens":18"#)), (StatusCode::OK, true), "{body}");
    assert!(fields.ends_with(r#""tokens-1h";r=982;t=3600"#), "{fields}");
    assert_eq!(ask(&service, "POST", "/generate", &"a ".repeat(2_000)).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn its_health_is_told_without_a_limit() {
    let (service, _) = service();
    for _ in 0..10 {
        assert_eq!(ask(&service, "GET", "/health", "").await, (StatusCode::OK, String::new(), "well".into()));
    }
}
