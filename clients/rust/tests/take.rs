//! What a guard takes, settles, gives back and tells, on a real server.

use std::future::{Future, poll_fn};
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::get;
use redis_rl_client::web::{Fail, Guard, Outage, Policy, client_address};
use redis_rl_client::{Algorithm, MemoryLimiter, Quota, RlCommands, Take};

use crate::limits::{Warnings, ask, guard, policy};
use crate::server::{PATIENCE, Server, until};

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
    assert_eq!(server.used("requests:a"), 4);
}

#[tokio::test]
async fn leased_requests_are_told_what_is_left_and_few_of_them_are_asked_for() {
    let server = Server::start();
    let guard = guard(&server, policy("requests", "1000/1h").lease(64));
    for taken in 1..=500 {
        let told = guard.take("a", 1).await.expect("an admission").fields();
        let left = format!(r#""requests-1h";r={};"#, 1_000 - taken);
        assert!(told["ratelimit"].to_str().expect("ASCII").starts_with(&left), "{told:?}");
    }
    guard.close().await;
    assert_eq!(server.used("requests:a"), 500);
    let calls = server.calls("RL.LOG");
    assert!(calls < 250, "{calls}");
}

#[tokio::test]
async fn of_several_quotas_a_leased_request_is_told_the_tightest() {
    let server = Server::start();
    let policy = policy("requests", "4/1h,100/1d").lease(8);
    let policy = policy.cost_with(|head| if head.uri.path() == "/expensive" { 3 } else { 1 });
    let pages = Router::new().route("/", get("hello")).route("/expensive", get("hello"));
    let app = pages.layer(guard(&server, policy).layer());
    // Asked for alone it is told both.
    let answer = ask(&app, "/expensive").await;
    let all = r#""requests-1h";r=1;t=3600, "requests-1d";r=97;t=86400"#;
    assert_eq!(answer.field("ratelimit"), all);
    for status in [200, 429] {
        let answer = ask(&app, "/").await;
        assert_eq!(answer.status, status);
        let policies = r#""requests-1h";q=4;w=3600, "requests-1d";q=100;w=86400"#;
        assert_eq!(answer.field("ratelimit-policy"), policies);
        assert!(answer.field("ratelimit").starts_with(r#""requests-1h";r=0;t=3"#), "{answer:?}");
        let violated = answer.body.contains(r#""violated-policies":["requests-1h"]"#);
        assert_eq!(violated, status == 429, "{}", answer.body);
    }
}

#[tokio::test]
async fn a_reservation_of_leased_units_is_settled_as_of_when_they_were_counted() {
    let server = Server::start();
    let guard = guard(&server, policy("tokens", "1000/1h").lease(64));
    let mut reserved = Vec::new();
    for _ in 0..10 {
        reserved.push(guard.take("a", 5).await.expect("an admission"));
    }
    let counted = SystemTime::now();
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

#[tokio::test]
async fn the_log_says_once_that_redis_is_away_and_once_that_it_is_back_however_many_requests_come() {
    let mut server = Server::start();
    let warnings = Warnings::default();
    let _subscribed = tracing::subscriber::set_default(warnings.clone());
    let told = || warnings.told();
    for (fail, begins) in [(Fail::Open, ""), (Fail::Closed, ""), (Fail::Local, "limits are local: ")] {
        let guard = Guard::new(server.client("resp3"), "5/1h").expect("a policy").fail(fail);
        server.kill();
        for _ in 0..500 {
            let _ = guard.take("a", 0).await;
        }
        assert_eq!(told(), [format!("{begins}Redis is away: Connection refused (os error 111)")]);
        server.restart();
        let back_since = Instant::now();
        while server.calls("RL.ALL") < 3 && back_since.elapsed() < PATIENCE {
            let _ = guard.take("a", 0).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(back_since.elapsed() < Duration::from_secs(1), "{:?}", back_since.elapsed());
        assert_eq!(told(), ["Redis decides again"]);
    }
}

#[tokio::test]
async fn the_first_request_without_an_address_is_told_of_and_what_to_do() {
    let warnings = Warnings::default();
    let _subscribed = tracing::subscriber::set_default(warnings.clone());
    let guard = Guard::new(MemoryLimiter::new(), "2/1h").expect("a policy");
    let limit = guard.limit(policy("more", "5/1h")).expect("a policy");
    let (head, ()) = http::Request::new(()).into_parts();
    for _ in 0..2 {
        guard.take(&head, 1).await.expect("it passes");
        limit.take(&head, 1).await.expect("it passes");
    }
    let warnings = warnings.told();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("into_make_service_with_connect_info"), "{warnings:?}");
}

#[tokio::test]
async fn a_server_that_answers_errors_is_away_and_the_log_says_what_to_do_about_it() {
    let server = Server::without_module();
    for (fail, begins, passing) in [(Fail::Local, "limits are local: ", 5), (Fail::Open, "", 7)] {
        let warnings = Warnings::default();
        let _subscribed = tracing::subscriber::set_default(warnings.clone());
        let told = Arc::new(Mutex::new(Vec::new()));
        let hear = told.clone();
        let guard = guard(&server, policy("requests", "5/1h")).fail(fail);
        let guard = guard
            .on_outage(move |outage| hear.lock().expect("no panic").push(matches!(outage, Outage::Begun(_))));
        for request in 0..7 {
            assert_eq!(guard.take("a", 1).await.is_ok(), request < passing);
        }
        let warnings = warnings.told();
        let [begun] = &warnings[..] else { panic!("{warnings:?}") };
        let away = "Redis is away: the server has not loaded the redis-rl module: load it";
        assert!(begun.starts_with(&format!("{begins}{away}")), "{begun}");
        assert_eq!(*told.lock().expect("no panic"), [true]);
    }
}

#[tokio::test]
async fn whatever_the_protocol_the_log_says_what_a_person_can_do() {
    let (bare, full, closed, mut limited) =
        (Server::without_module(), Server::start(), Server::start(), Server::start());
    let _: () = closed.call("CONFIG SET requirepass secret");
    let mut only = full.connect();
    let _: () = redis::cmd("CONFIG").arg(&["SET", "maxclients", "1"]).query(&mut only).expect("its reply");
    let _: () = limited.call("ACL SETUSER app on >secret ~* +@connection");
    limited.log_in("app", "secret");
    for protocol in ["resp2", "resp3"] {
        for (server, algorithm, help) in [
            (&full, Algorithm::Log, "the server has too many connections: raise maxclients"),
            (&closed, Algorithm::Log, "the server asks for a password: name one"),
            (&limited, Algorithm::Log, "the user lacks a right that the reply names: add it by ACL SETUSER"),
            (&bare, Algorithm::Log, "the server has not loaded the redis-rl module: load it"),
            (
                &bare,
                Algorithm::Bucket,
                "the server has not loaded the redis-rl module, or one older than this",
            ),
        ] {
            let warnings = Warnings::default();
            let _subscribed = tracing::subscriber::set_default(warnings.clone());
            let policy = policy("requests", "5/1h").algorithm(algorithm);
            let guard = Guard::new(server.client(protocol), policy).expect("a policy").timeout(PATIENCE);
            guard.take("a", 1).await.expect("it passes");
            let warnings = warnings.told();
            let begins = format!("Redis is away: {help}");
            assert!(warnings.len() == 1 && warnings[0].starts_with(&begins), "{protocol}: {warnings:?}");
        }
    }
}

#[tokio::test]
async fn a_redis_that_answers_an_error_is_away() {
    let server = Server::start();
    let _: () = server.call("SET requests:a text");
    // A policy that counts by another algorithm now is to have another name.
    for (name, algorithm, passes) in [
        ("requests", Algorithm::Log, false),
        ("logs", Algorithm::Log, true),
        ("logs", Algorithm::Fixed, false),
        ("windows", Algorithm::Fixed, true),
    ] {
        let guard = guard(&server, policy(name, "5/1h").algorithm(algorithm)).fail(Fail::Closed);
        let status = guard.take("a", 1).await.err().map(|refusal| refusal.status().as_u16());
        assert_eq!(status, (!passes).then_some(503), "{name} by {algorithm:?}");
    }
}

#[tokio::test]
async fn an_error_that_is_no_outage_is_logged_at_most_once_a_second() {
    let server = Server::start();
    let warnings = Warnings::default();
    let _subscribed = tracing::subscriber::set_default(warnings.clone());
    let _: () = server.call("SET requests:a text");
    let guard = guard(&server, policy("requests", "5/1h"))
        .on_limited(|_, _| panic!("nothing is decided"))
        .on_outage(|_| panic!("Redis is not away"));
    for _ in 0..3 {
        assert!(guard.take("a", 1).await.expect("it passes").policies().is_empty());
    }
    let warnings = warnings.told();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.starts_with("Redis does not decide: ") && warning.contains("WRONGTYPE"), "{warning}");
}

/// Units that are left of the only policy.
async fn left(guard: &Guard) -> Option<u64> {
    let policies = guard.peek("a").await.expect("a look").policies();
    policies.values().next().map(|figures| figures.remaining)
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
        assert_eq!(left(&guard).await, Some(73));
        assert!(others.fields()["ratelimit"].to_str().expect("ASCII").contains("r=33"));
        guard.settle(&others, 0).await.expect("it is settled");
        assert_eq!(left(&guard).await, Some(80));
    }
}

#[tokio::test]
async fn what_was_used_beyond_the_reservation_is_counted_even_over_the_limit() {
    let server = Server::start();
    let guard = guard(&server, policy("tokens", "28/1h").unit("tokens"));
    let reserved = guard.take("a", 26).await.expect("an admission");
    guard.settle(&reserved, 30).await.expect("it is settled");
    assert_eq!(reserved.fields()["ratelimit"], r#""tokens-1h";r=2;t=3600"#);
    assert_eq!(reserved.fields()["ratelimit-policy"], r#""tokens-1h";q=28;qu="tokens";w=3600"#);
    assert_eq!(left(&guard).await, Some(0));
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
    assert_eq!(left(&guard).await, Some(70));
}

#[test]
fn quotas_that_make_no_policy_are_refused() {
    let refused = |quotas| Policy::new("requests", quotas).expect_err(quotas).to_string();
    for quotas in ["5/60m,100/1h", "5/1h,5/1h"] {
        assert!(refused(quotas).contains("their windows differ"), "{quotas}");
    }
    assert!(refused("5/1s, 5/ten").starts_with(r#""5/ten" is not a quota: "#));
    assert!(refused("1000/1500ms").contains("its window must be whole seconds"));
    assert!(Policy::new("requests", "999999999999999/3650d").is_ok());
    assert!(refused("1000000000000000/1s").contains("is too large"));
    let windows = |count| (1..=count).map(|s| format!("5/{s}s")).collect::<Vec<_>>().join(",");
    assert!(Policy::new("requests", windows(8)).is_ok());
    assert!(refused(&windows(9)).contains("1 to 8 quotas"));
}

#[tokio::test]
async fn a_name_is_a_string_of_a_structured_field() {
    let guard = Guard::new(MemoryLimiter::new(), policy(r#"a"b"\"#, "5/1s")).expect("a policy");
    let fields = guard.take("a", 1).await.expect("an admission").fields();
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
    // A client may send any bytes before what the proxy adds.
    headers.append("x-forwarded-for", http::HeaderValue::from_bytes(b"\xff, 192.0.2.9").expect("a value"));
    assert_eq!(client_address(peer, &headers, 1), "192.0.2.9");
}

#[tokio::test]
async fn settling_that_is_dropped_once_it_has_begun_corrects_what_every_limit_has_taken() {
    let server = Server::start();
    let outer = guard(&server, policy("outer", "100/1h"));
    let inner = outer.limit(policy("inner", "100/1h")).expect("a policy");
    let taken = outer.take("a", 50).await.expect("it passes");
    inner.take(&taken, [("inner", 50)]).await.expect("it passes");
    {
        let mut settling = pin!(outer.settle(&taken, [("outer", 10), ("inner", 10)]));
        poll_fn(|context| Poll::Ready(settling.as_mut().poll(context).is_ready())).await;
    }
    until("both to be settled", || [server.used("outer:a"), server.used("inner:a")] == [10, 10]).await;
}
