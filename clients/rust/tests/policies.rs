//! Policies of a request, and what an application answers and hears, in tower on a real server.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use redis_rl_client::Clock;
use redis_rl_client::web::{Decision, Fail, Guard, Outage, Policies};
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::limits::{guard, policy};
use crate::server::words::Words;
use crate::server::{PATIENCE, Server, noon};

fn field(head: &Parts, name: &str) -> Option<String> {
    Some(head.headers.get(name)?.to_str().ok()?.to_owned())
}

fn request(fields: &[(&'static str, &'static str)]) -> Request<String> {
    let mut request = Request::new(String::new());
    request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, 1], 1)));
    for (name, value) in fields {
        request.headers_mut().insert(*name, HeaderValue::from_static(value));
    }
    request
}

fn head(fields: &[(&'static str, &'static str)]) -> Parts {
    request(fields).into_parts().0
}

/// What a service behind the layer answers.
async fn ask(layer: &Guard, request: Request<String>) -> Response<String> {
    let hello =
        service_fn(|_: Request<String>| ready(Ok::<_, Infallible>(Response::new("hello".to_owned()))));
    let service = ServiceBuilder::new().layer(layer.clone()).service(hello);
    service.oneshot(request).await.expect("a response")
}

fn text(response: &Response<String>, name: &str) -> Option<String> {
    Some(response.headers().get(name)?.to_str().expect("ASCII").to_owned())
}

#[tokio::test]
async fn the_function_may_be_asynchronous_and_its_lookup_may_fail() {
    let server = Server::start();
    let (free, paid) = (policy("free", "1/1h"), policy("paid", "100/1h"));
    let policies = Policies::by_async(move |head| {
        let (account, free, paid) = (field(head, "account"), free.clone(), paid.clone());
        async move {
            tokio::task::yield_now().await;
            let plan = account.ok_or("no such account");
            vec![plan.map_or(free, |_| paid)]
        }
    });
    let layer = guard(&server, policies);
    for (fields, left) in
        [(&[("account", "a")][..], r#""paid-1h";r=99;t=3600"#), (&[], r#""free-1h";r=0;t=3600"#)]
    {
        assert_eq!(text(&ask(&layer, request(fields)).await, "ratelimit").as_deref(), Some(left));
    }
}

#[tokio::test]
async fn a_request_with_policies_that_cannot_be_is_answered_500() {
    let negative = || Policies::from(policy("a", "5/1h").cost_with(|_| -1));
    let twice = || Policies::by(|_| [policy("a", "5/1h"), policy("a", "5/1m")]);
    for policies in [negative(), twice()] {
        let words = Words::start();
        let layer = Guard::new(words.client(), policies).expect("policies");
        let response = ask(&layer, request(&[])).await;
        assert_eq!(response.status(), 500, "{}", response.body());
        assert!(words.sent().is_empty());
    }
}

#[tokio::test]
async fn policies_of_one_name_are_refused_where_they_are_said() {
    let twice = || [policy("requests", "5/1m"), policy("requests", "100/1h")];
    let why = "two policies of a request have the name \"requests\"";
    assert_eq!(Guard::new(Words::start().client(), twice()).unwrap_err().to_string(), why);
    let guard = Guard::new(Words::start().client(), []).expect("routes alone are limited");
    assert_eq!(guard.limit(twice()).unwrap_err().to_string(), why);
}

#[tokio::test]
async fn a_handler_takes_and_settles_by_the_names_of_several_policies() {
    let server = Server::start();
    for remember in [Duration::ZERO, PATIENCE] {
        let name = |name| format!("{name}-{}", remember.as_secs());
        let policies = [policy(&name("requests"), "5/1h"), policy(&name("tokens"), "1000/1h").cost(500)];
        let guard = guard(&server, policies).remember(remember);
        let (requests, tokens) = (name("requests"), name("tokens"));
        let reserved = guard.take("acme", [(&*requests, 1), (&*tokens, 600)]).await.expect("an admission");
        assert_eq!(guard.take("acme", [(&*requests, 1)]).await.unwrap_err().status(), 429, "500 tokens");
        guard.settle(&reserved, [(&*tokens, 420)]).await.expect("it is settled");
        let left = guard.peek("acme").await.expect("a look").policies();
        assert_eq!(left.values().map(|figures| figures.remaining).collect::<Vec<_>>(), [4, 580]);
        guard.settle(&reserved, [(&*tokens, 430)]).await.expect("it is settled");
        let settled = guard.peek("acme").await.expect("a look");
        let policies = format!(r#""{requests}-1h";r=4;t=3600, "{tokens}-1h";r=570;t="#);
        assert!(settled.fields()["ratelimit"].to_str().expect("ASCII").starts_with(&policies));
        assert!(guard.take("acme", [(&*requests, 1)]).await.is_ok(), "what refused it was given back");
        assert_eq!(guard.take("acme", [("other", 1)]).await.unwrap_err().status(), 500);
    }
}

#[tokio::test]
async fn a_refusal_of_one_of_several_policies_is_remembered_by_its_key() {
    let server = Server::start();
    let policies = [
        policy("user", "1/1h").key(|head| field(head, "user")),
        policy("team", "100/1h").key(|head| field(head, "team")),
    ];
    let guard = guard(&server, policies).remember(PATIENCE).fail(Fail::Closed);
    let alice = head(&[("user", "alice"), ("team", "acme")]);
    assert!(guard.take(&alice, ()).await.is_ok());
    assert_eq!(guard.take(&alice, ()).await.unwrap_err().status(), 429);
    drop(server);
    assert_eq!(guard.take(&alice, ()).await.unwrap_err().status(), 429);
    let others = [("alice", "other", 429), ("bob", "acme", 503)];
    for (user, team, status) in others {
        let other = head(&[("user", user), ("team", team)]);
        assert_eq!(guard.take(&other, ()).await.unwrap_err().status(), status, "{user}");
    }
}

#[tokio::test]
async fn every_refusal_is_told_also_if_it_is_remembered_or_leased() {
    let server = Server::start();
    let told = Arc::new(Mutex::new(Vec::new()));
    let policies = || policy("requests", "2/1h").key(|head| field(head, "client"));
    let hear = |guard: Guard| {
        let told = told.clone();
        guard.on_limited(move |head, decision| {
            let client = field(head?, "client")?;
            told.lock().expect("no panic").push((client, decision.policies()["requests"].limited));
            None
        })
    };
    let guards = [
        ("a", hear(guard(&server, policies()).remember(PATIENCE))),
        ("b", hear(guard(&server, policies().lease(8)))),
    ];
    for (client, guard) in guards {
        for _ in 0..4 {
            let _ = guard.take(&head(&[("client", client)]), ()).await;
        }
        // One that no policy limits.
        assert!(guard.take(&head(&[]), ()).await.expect("an admission").policies().is_empty());
        let told = std::mem::take(&mut *told.lock().expect("no panic"));
        assert_eq!(told, [(client.to_owned(), true), (client.to_owned(), true)]);
    }
}

#[tokio::test]
async fn a_server_that_is_silent_is_told_as_a_timeout_once() {
    let server = Server::start();
    let told = Arc::new(Mutex::new(Vec::new()));
    let hear = told.clone();
    let guard = guard(&server, policy("requests", "5/1h"))
        .fail(Fail::Closed)
        .timeout(Duration::from_millis(20))
        .on_limited(|_, _| panic!("nobody decides"))
        .on_outage(move |outage| match outage {
            Outage::Begun(why) => hear.lock().expect("no panic").push(why.is_timeout()),
            Outage::Ended(_) => {}
        });
    server.freeze();
    for _ in 0..3 {
        let refusal = guard.take(&head(&[]), ()).await.unwrap_err();
        assert_eq!(refusal.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refusal.decision().is_none());
    }
    assert_eq!(*told.lock().expect("no panic"), [true]);
}

#[tokio::test]
async fn the_application_answers_what_is_over_a_limit_and_the_fields_are_kept_unless_it_has_its_own() {
    let server = Server::start();
    let layer = guard(&server, policy("requests", "0/1h")).on_limited(|head, decision| {
        assert!(decision.limited());
        let method = head.map_or("nobody", |head| head.method.as_str());
        let own = Response::builder().status(StatusCode::IM_A_TEAPOT).header("ratelimit", "own");
        own.body(format!("{} of {method}", decision.status())).ok()
    });
    let response = ask(&layer, request(&[])).await;
    assert_eq!((response.status(), &**response.body()), (StatusCode::IM_A_TEAPOT, "403 Forbidden of GET"));
    assert_eq!(text(&response, "ratelimit").as_deref(), Some("own"));
    assert_eq!(text(&response, "ratelimit-policy").as_deref(), Some(r#""requests-1h";q=0;w=3600"#));
    assert_eq!(text(&response, "content-type"), None);
    // It answers what a handler asks for, too, also where no head is known.
    let refusal = layer.take("acme", 1).await.unwrap_err();
    assert_eq!(refusal.status(), StatusCode::IM_A_TEAPOT);
    assert_eq!(Response::<String>::from(refusal).body(), "403 Forbidden of nobody");
}

#[tokio::test]
async fn a_body_that_is_not_made_of_a_string_is_put_into_one_that_is() {
    type Body = BoxBody<Bytes, std::io::Error>;
    fn boxed(text: String) -> Body {
        Full::from(text).map_err(|never| match never {}).boxed()
    }
    let server = Server::start();
    let layer = guard(&server, policy("requests", "1/1h"));
    let hello =
        service_fn(|_: Request<Body>| ready(Ok::<_, Infallible>(Response::new(boxed("hello".into())))));
    let service = ServiceBuilder::new()
        .layer(layer)
        .map_response(|response: Response<Body>| response.map(axum::body::Body::new))
        .service(hello);
    for expected in ["hello", r#"{"status":429,"#] {
        let request = request(&[]).map(boxed);
        let body = service.clone().oneshot(request).await.expect("a response").into_body();
        let body = body.collect().await.expect("a body").to_bytes();
        assert!(body.starts_with(expected.as_bytes()), "{body:?}");
    }
}

#[tokio::test]
async fn a_clock_of_the_applications_own_moves_limits_leases_and_what_is_remembered() {
    let server = Server::start();
    let ways = [(0, Duration::ZERO), (0, PATIENCE), (8, Duration::ZERO), (8, PATIENCE)];
    for (index, (units, remember)) in ways.into_iter().enumerate() {
        let clock = Clock::new(noon());
        let policy = policy(&format!("requests-{index}"), "2/1m").lease(units);
        let guard = guard(&server, policy).remember(remember).clock(clock.clone());
        for _ in 0..2 {
            assert!(guard.take(&head(&[]), ()).await.is_ok());
        }
        for (wait_ms, passes) in [(0, false), (59_999, false), (1, true)] {
            clock.advance(Duration::from_millis(wait_ms));
            assert_eq!(guard.take(&head(&[]), ()).await.is_ok(), passes, "{index}");
        }
        guard.close().await;
    }
}

/// As the README has it.
fn counted(guard: Guard) -> Guard {
    let refused = |_head: Option<&Parts>, decision: &Decision| {
        for (policy, _) in decision.policies().into_iter().filter(|(_, figures)| figures.limited) {
            let allowed = decision.allowed().to_string();
            metrics::counter!("rate_limit_refusals_total", "policy" => policy, "allowed" => allowed)
                .increment(1);
        }
        None
    };
    guard.on_limited(refused).on_outage(|outage| {
        let change = if matches!(outage, Outage::Begun(_)) { 1.0 } else { -1.0 };
        metrics::gauge!("rate_limit_away").increment(change);
    })
}

#[tokio::test]
async fn the_recipe_counts_refusals_and_tells_of_outages() {
    let source = include_str!("policies.rs").split_once("/// As the README has it.\n").expect("the recipe").1;
    let recipe = source.split_once("\n}\n").expect("its end").0;
    assert!(include_str!("../recipes.md").contains(recipe), "the README has another one");

    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let counts = recorder.snapshotter();
    // For all threads, since the package's own tells of outages.
    recorder.install().expect("no other recorder");
    let server = Server::start();
    let policies = [policy("requests", "2/1h"), policy("trial", "1/1h").dry_run(true)];
    let guard = counted(guard(&server, policies));
    for _ in 0..3 {
        let _ = guard.take(&head(&[]), ()).await;
    }
    drop(server);
    assert!(guard.take(&head(&[]), ()).await.is_ok());
    let mut seen: Vec<String> = counts
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| {
            let labels: Vec<&str> = key.key().labels().map(|label| label.value()).collect();
            format!("{} {} {value:?}", key.key().name(), labels.join(" "))
        })
        .collect();
    seen.sort();
    let expected = [
        "rate_limit_away  Gauge(1.0)",
        "rate_limit_refusals_total requests false Counter(1)",
        "rate_limit_refusals_total trial false Counter(1)",
        "rate_limit_refusals_total trial true Counter(1)",
    ];
    assert_eq!(seen, expected);
}
