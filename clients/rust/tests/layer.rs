//! The tower layer and what it is made of, in axum and on a real server.

mod server;

use std::fmt::Debug;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, Response};
use axum::routing::get;
use redis_rl_client::web::{Fail, Guard, Policy, answer, client_address};
use redis_rl_client::{Algorithm, Quota, RlCommands, Take};
use server::{PATIENCE, Server};
use tower::ServiceExt;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

fn guard(server: &Server, policy: Policy) -> Guard {
    Guard::new(server.redis(), policy).expect("a policy")
}

fn policy(name: &str, quotas: &str) -> Policy {
    Policy::new(name, quotas).expect("a policy").cost_with(cost)
}

/// `/` takes a unit, `/expensive` three.
fn cost(head: &Parts) -> i64 {
    if head.uri.path() == "/expensive" { 3 } else { 1 }
}

/// A client says who it is.
fn client(parts: &Parts) -> Option<String> {
    Some(parts.headers.get("client")?.to_str().ok()?.to_owned())
}

fn app(guard: Guard) -> Router {
    let limit = guard.key(client);
    Router::new().route("/", get("hello")).route("/expensive", get("hello")).layer(limit.layer())
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    async fn of(app: &Router, path: &str, client: &str) -> Answer {
        let mut request = Request::get(path);
        if !client.is_empty() {
            request = request.header("client", client);
        }
        let request = request.body(Body::empty()).expect("a request");
        let response: Response<Body> = app.clone().oneshot(request).await.expect("a response");
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.expect("a body");
        let body = String::from_utf8(body.to_vec()).expect("UTF-8");
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("ASCII"))
    }
}

#[tokio::test]
async fn a_request_takes_its_cost_and_is_told_what_is_left() {
    let server = Server::start();
    let app = app(guard(&server, policy("requests", "5/10m,100/1h")));
    let answer = Answer::of(&app, "/expensive", "a").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "hello"));
    assert_eq!(
        answer.field("ratelimit-policy"),
        Some(r#""requests-10m";q=5;w=600, "requests-1h";q=100;w=3600"#)
    );
    assert_eq!(answer.field("ratelimit"), Some(r#""requests-10m";r=2;t=600, "requests-1h";r=97;t=3600"#));
    assert_eq!(answer.field("retry-after"), None);
    let answer = Answer::of(&app, "/", "a").await;
    assert_eq!(answer.field("ratelimit"), Some(r#""requests-10m";r=1;t=600, "requests-1h";r=96;t=3600"#));
    let answer = Answer::of(&app, "/", "b").await;
    assert_eq!(answer.field("ratelimit"), Some(r#""requests-10m";r=4;t=600, "requests-1h";r=99;t=3600"#));
}

#[tokio::test]
async fn a_refused_request_does_not_reach_the_service_and_takes_nothing() {
    let server = Server::start();
    let app = app(guard(&server, policy("requests", "2/10m,100/1h")));
    for _ in 0..2 {
        assert_eq!(Answer::of(&app, "/", "a").await.status, 200);
    }
    let answer = Answer::of(&app, "/", "a").await;
    assert_eq!(answer.status, 429);
    let seconds: u64 = answer.field("retry-after").expect("a wait").parse().expect("a number");
    assert!((1..=600).contains(&seconds));
    let limits = format!(r#""requests-10m";r=0;t={seconds}, "requests-1h";r=98"#);
    assert_eq!(answer.field("ratelimit"), Some(limits.as_str()));
    assert_eq!(answer.field("content-type"), Some("application/problem+json"));
    assert!(answer.body.contains(r#""violated-policies":["requests-10m"]"#), "{}", answer.body);

    let answer = Answer::of(&app, "/expensive", "b").await;
    assert_eq!((answer.status, answer.field("retry-after")), (403, None));
}

#[tokio::test]
async fn a_request_of_nobody_is_not_limited() {
    let server = Server::start();
    let app = app(guard(&server, policy("requests", "0/1h")));
    let answer = Answer::of(&app, "/", "").await;
    assert_eq!((answer.status, answer.field("ratelimit")), (200, None));
}

#[tokio::test]
async fn two_layers_tell_the_policies_of_both() {
    let server = Server::start();
    let all = guard(&server, policy("all", "100/1h")).key(|_| Some("all".to_owned()));
    let app = app(guard(&server, policy("requests", "5/1m"))).layer(all.layer());
    let answer = Answer::of(&app, "/", "a").await;
    let limits: Vec<_> = answer.headers.get_all("ratelimit").iter().collect();
    assert_eq!(limits, [r#""all-1h";r=99;t=3600, "requests-1m";r=4;t=60"#]);
}

#[tokio::test]
async fn while_redis_is_away_requests_pass_without_fields_or_are_answered_503() {
    let server = Server::start();
    let guard = guard(&server, policy("requests", "5/1h"));
    drop(server);
    let answer = Answer::of(&app(guard.clone()), "/", "a").await;
    assert_eq!((answer.status, answer.field("ratelimit")), (200, None));
    let answer = Answer::of(&app(guard.fail(Fail::Closed)), "/", "a").await;
    assert_eq!((answer.status, answer.field("ratelimit")), (503, None));
    assert_eq!(answer.field("content-type"), Some("application/problem+json"));
    assert!(answer.body.contains(r#""status":503"#), "{}", answer.body);
}

#[tokio::test]
async fn no_cost_is_a_way_around_a_limit() {
    let server = Server::start();
    let guard = guard(&server, policy("requests", "5/1h"));
    assert_eq!(guard.take("a", i64::MAX).await.unwrap_err().status(), 403);
    let _others = guard.take("a", 2).await.expect("an admission");
    for cost in [-1, i64::MIN] {
        let reserved = guard.take("a", 1).await.expect("an admission");
        assert_eq!(guard.take("a", cost).await.unwrap_err().status(), 500);
        assert_eq!(guard.settle(&reserved, cost).await.unwrap_err().status(), 500);
    }
    assert_eq!(used(&server, "requests:a"), 4);
}

#[tokio::test]
#[should_panic(expected = "the cost of a request must be from 0 to")]
async fn a_policy_takes_no_negative_cost() {
    let _ = policy("requests", "5/1h").cost(-1);
}

#[tokio::test]
async fn a_refusal_that_is_remembered_is_repeated_without_asking() {
    let server = Server::start();
    let guard = guard(&server, policy("requests", "2/1h,100/1d")).remember(PATIENCE);
    let app = app(guard.clone());
    for _ in 0..2 {
        assert_eq!(Answer::of(&app, "/", "a").await.status, 200);
    }
    assert_eq!(Answer::of(&app, "/", "a").await.status, 429);
    drop(server);
    let answer = Answer::of(&app, "/", "a").await;
    assert_eq!(answer.status, 429);
    assert!(answer.field("ratelimit").expect("a field").ends_with(r#", "requests-1d";r=98"#));
    // Others are asked for: here they pass, since Redis is away.
    assert_eq!(Answer::of(&app, "/", "b").await.status, 200);
}

#[tokio::test]
async fn what_is_given_back_has_a_remembered_refusal_forgotten() {
    let server = Server::start();
    let guard = guard(&server, policy("tokens", "5/1h")).remember(PATIENCE);
    let reserved = guard.take("a", 5).await.expect("an admission");
    assert_eq!(guard.take("a", 1).await.unwrap_err().status(), 429);
    guard.settle(&reserved, 4).await.expect("it is settled");
    assert!(guard.take("a", 1).await.is_ok());
}

/// Units that the server counts.
fn used(server: &Server, key: &str) -> u64 {
    let info = server.connect().rl_info(key).expect("a reply");
    info.expect("a key").windows[0].used
}

#[tokio::test]
async fn leased_requests_are_told_what_is_left_and_few_of_them_are_asked_for() {
    let server = Server::start();
    let guard = guard(&server, policy("requests", "1000/1h").lease(64));
    let app = app(guard.clone());
    for taken in 1..=500 {
        let answer = Answer::of(&app, "/", "a").await;
        let left = format!(r#""requests-1h";r={};"#, 1_000 - taken);
        assert!(answer.field("ratelimit").expect("a field").starts_with(&left), "{:?}", answer.headers);
    }
    guard.close().await;
    assert_eq!(used(&server, "requests:a"), 500);
    let info: String = server.call("INFO commandstats");
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_RL.LOG:calls="));
    let calls: u64 = calls.and_then(|calls| calls.split(',').next()?.parse().ok()).expect("a number");
    assert!(calls < 250, "{calls}");
}

#[tokio::test]
async fn of_several_quotas_a_leased_request_is_told_the_tightest() {
    let server = Server::start();
    let app = app(guard(&server, policy("requests", "4/1h,100/1d").lease(8)));
    // Asked for alone it is told both.
    let answer = Answer::of(&app, "/expensive", "a").await;
    let all = r#""requests-1h";r=1;t=3600, "requests-1d";r=97;t=86400"#;
    assert_eq!(answer.field("ratelimit"), Some(all));
    let answer = Answer::of(&app, "/", "a").await;
    assert_eq!(
        answer.field("ratelimit-policy"),
        Some(r#""requests-1h";q=4;w=3600, "requests-1d";q=100;w=86400"#)
    );
    assert!(answer.field("ratelimit").expect("a field").starts_with(r#""requests-1h";r=0;t=3"#));
    let answer = Answer::of(&app, "/", "a").await;
    assert_eq!(answer.status, 429);
    assert!(answer.field("ratelimit").expect("a field").starts_with(r#""requests-1h";r=0;t=3"#));
    assert!(answer.body.contains(r#""violated-policies":["requests-1h"]"#), "{}", answer.body);
}

#[tokio::test]
async fn a_reservation_of_leased_units_is_settled_as_of_when_they_were_counted() {
    let server = Server::start();
    let guard = guard(&server, policy("tokens", "1000/1h").lease(64));
    let mut reserved = Vec::new();
    for _ in 0..10 {
        reserved.push(guard.take("a", 5).await.expect("an admission"));
    }
    let counted = reserved.last().and_then(|admission| admission.decision()).expect("a decision").at;
    server.wait_until_after(counted);
    let hourly = Quota::per_hour(1_000);
    let others = server.connect().rl_log("tokens:a", hourly, Take::cost(7).partial()).expect("a verdict");
    for admission in reserved {
        guard.settle(&admission, 2).await.expect("it is settled");
    }
    guard.close().await;
    let all_of_then = Take::cost(-1_000).partial().at(counted);
    let back = server.connect().rl_log("tokens:a", hourly, all_of_then).expect("a verdict");
    assert_eq!((others.taken, back.taken, back.remaining), (Some(7), Some(-20), 993));
}

#[test]
#[should_panic(expected = "a policy with a lease needs a different limit in each quota")]
fn leases_need_quotas_that_their_limits_tell_apart() {
    let _ = policy("requests", "5/1m,5/1h").lease(1);
}

/// Warnings that Redis is away, on this thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("redis_rl_client")
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut |_: &Field, value: &dyn Debug| {
            self.0.lock().expect("no panic").push(format!("{value:?}"));
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn while_redis_is_away_there_is_one_warning_a_second_however_many_requests_come() {
    let server = Server::start();
    let guard = guard(&server, policy("requests", "5/1h"));
    drop(server);
    let warnings = Warnings::default();
    let _subscribed = tracing::subscriber::set_default(warnings.clone());
    let start = Instant::now();
    for _ in 0..500 {
        guard.take("a", 1).await.expect("an admission");
    }
    let warnings = warnings.0.lock().expect("no panic");
    assert!(warnings.len() as u64 <= 1 + start.elapsed().as_secs(), "{warnings:?}");
    assert!(warnings[0].starts_with("cannot ask for the limit: "), "{warnings:?}");
    assert!(warnings[0].ends_with(" (requests: 1)"), "{warnings:?}");
}

#[tokio::test]
async fn a_redis_that_answers_an_error_is_away() {
    let server = Server::start();
    let _: () = server.call("SET requests:a text");
    let answer =
        Answer::of(&app(guard(&server, policy("requests", "5/1h")).fail(Fail::Closed)), "/", "a").await;
    assert_eq!(answer.status, 503);
    // A policy that counts by another algorithm now is to have another name.
    for (name, algorithm, status) in
        [("logs", Algorithm::Log, 200), ("logs", Algorithm::Fixed, 503), ("windows", Algorithm::Fixed, 200)]
    {
        let policy = policy(name, "5/1h").algorithm(algorithm);
        let answer = Answer::of(&app(guard(&server, policy).fail(Fail::Closed)), "/", "a").await;
        assert_eq!(answer.status, status, "{name} by {algorithm:?}");
    }
}

#[tokio::test]
async fn a_connection_that_broke_is_made_anew() {
    let server = Server::start();
    let guard = guard(&server, policy("requests", "1000/1h"));
    assert!(guard.take("a", 1).await.expect("an admission").decision().is_some());
    let killed: i64 = server.call("CLIENT KILL TYPE normal");
    assert!(killed > 0);
    let deadline = std::time::Instant::now() + PATIENCE;
    while guard.take("a", 1).await.expect("an admission").decision().is_none() {
        assert!(std::time::Instant::now() < deadline, "waited in vain for a new connection");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_was_reserved_and_not_used_is_given_back() {
    let server = Server::start();
    for &algorithm in Algorithm::EVERY {
        let name = format!("{algorithm:?}");
        let guard = guard(&server, policy(&name, "100/365d").algorithm(algorithm));
        let reserved = guard.take("a", 60).await.expect("an admission");
        let others = guard.take("a", 7).await.expect("an admission");
        guard.settle(&reserved, 20).await.expect("it is settled");
        let settled = &reserved;
        assert_eq!(settled.decision().map(|decision| decision.rows[0].remaining), Some(73));
        assert!(settled.fields()["ratelimit"].to_str().expect("ASCII").contains("r=73"));
        guard.settle(&others, 0).await.expect("it is settled");
        let settled = &others;
        assert_eq!(settled.decision().map(|decision| decision.rows[0].remaining), Some(80));
    }
}

#[tokio::test]
async fn what_was_used_beyond_the_reservation_is_counted_even_over_the_limit() {
    let server = Server::start();
    let guard = guard(&server, policy("tokens", "28/1h").unit("tokens"));
    let reserved = guard.take("a", 26).await.expect("an admission");
    guard.settle(&reserved, 30).await.expect("it is settled");
    let settled = &reserved;
    assert_eq!(settled.fields()["ratelimit"], r#""tokens-1h";r=0;t=3600"#);
    assert_eq!(settled.fields()["ratelimit-policy"], r#""tokens-1h";q=28;qu="tokens";w=3600"#);
    let seen = server.connect().rl_peek("tokens:a", Quota::per_hour(100), 1).expect("a verdict");
    assert_eq!(seen.remaining, 70, "all 30 are counted");
    assert_eq!(guard.take("a", 1).await.unwrap_err().status(), 429);
}

#[tokio::test]
async fn what_was_used_without_a_reservation_is_counted_when_redis_is_back() {
    let server = Server::start();
    let guard = guard(&server, policy("tokens", "100/1h"));
    let _: () = server.call("SET tokens:a text");
    let reserved = guard.take("a", 60).await.expect("an admission");
    let _: i64 = server.call("DEL tokens:a");
    guard.settle(&reserved, 30).await.expect("it is settled");
    let settled = &reserved;
    assert_eq!(settled.decision().map(|decision| decision.rows[0].remaining), Some(70));
}

#[test]
fn futures_of_a_limiter_can_be_sent_to_another_thread() {
    fn is_send<T: Send>(_: impl Future<Output = T> + Send) {}
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let guard = guard(&server, policy("requests", "5/1h"));
    is_send(guard.take("a", 1));
}

#[test]
fn quotas_that_make_no_policy_are_refused() {
    let refused = |quotas| Policy::new("requests", quotas).expect_err(quotas).to_string();
    for quotas in ["5/60m,100/1h", "5/1h,5/1h"] {
        assert!(refused(quotas).contains("all windows must differ"), "{quotas}");
    }
    assert!(refused("5/1s, 5/ten").starts_with(r#""5/ten" is not a quota: "#));
    assert!(refused("1000/1500ms").contains("its window must be whole seconds"));
    assert!(Policy::new("requests", []).is_err());
    assert!(Policy::new("requests", "999999999999999/3650d").is_ok());
    assert!(refused("1000000000000000/1s").contains("is too large"));
    let too_long = Quota::new(5, Duration::from_secs(3_651 * 86_400));
    assert!(Policy::new("requests", too_long).is_err());
    let windows = |count| (1..=count).map(|s| format!("5/{s}s")).collect::<Vec<_>>().join(",");
    assert!(Policy::new("requests", windows(8)).is_ok());
    assert!(refused(&windows(9)).contains("1 to 8 quotas"));
    assert!(Policy::new("r\u{e9}quests", [Quota::per_second(1)]).is_err());
}

#[test]
fn a_name_is_a_string_of_a_structured_field() {
    let policy = Policy::new(r#"a"b"\"#, "5/1s").expect("a policy");
    let verdict = redis_rl_client::Verdict {
        limited: false,
        limit: 5,
        remaining: 4,
        retry_after: None,
        reset_after: Duration::from_secs(1),
        taken: None,
        at: None,
    };
    let decision = redis_rl_client::Decision {
        limited: false,
        retry_after: None,
        at: std::time::UNIX_EPOCH,
        rows: vec![verdict],
    };
    let fields = answer(policy, &decision).expect("an allowed request");
    assert_eq!(fields["ratelimit"], r#""a\"b\"\\-1s";r=4;t=1"#);
}

#[test]
fn a_client_is_whom_the_outermost_of_our_proxies_saw() {
    let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut headers = HeaderMap::new();
    assert_eq!(client_address(peer, &headers, 1), "127.0.0.1");
    headers.append("x-forwarded-for", "198.51.100.7, 192.0.2.1".parse().expect("a value"));
    headers.append("x-forwarded-for", "10.0.0.1".parse().expect("a value"));
    let expected =
        [(0, "127.0.0.1"), (1, "10.0.0.1"), (2, "192.0.2.1"), (3, "198.51.100.7"), (9, "198.51.100.7")];
    for (proxies, client) in expected {
        assert_eq!(client_address(peer, &headers, proxies), client, "{proxies}");
    }
}

#[test]
fn an_ipv6_client_is_its_network() {
    let networks = [
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:7:1:2:3:4", "2001:db8:0:7::/64"),
        ("2001:DB8::7:ffff", "2001:db8::/64"),
        ("1:2:3:4:5:6:7::", "1:2:3:4::/64"),
        ("::1", "::/64"),
    ];
    for (address, network) in networks {
        let peer: IpAddr = address.parse().expect("an address");
        let mut headers = HeaderMap::new();
        assert_eq!(client_address(peer, &headers, 0), network, "{address}");
        headers.append("x-forwarded-for", address.parse().expect("a value"));
        assert_eq!(client_address(IpAddr::V4(Ipv4Addr::LOCALHOST), &headers, 1), network, "{address}");
    }
    let mut headers = HeaderMap::new();
    headers.append("x-forwarded-for", "_hidden".parse().expect("a value"));
    assert_eq!(client_address(IpAddr::V4(Ipv4Addr::LOCALHOST), &headers, 1), "_hidden");
}
