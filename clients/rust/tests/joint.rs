//! One request, one decision: several policies, some of them leased, on one server and on a cluster, in layers inside
//! one another.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::{Router, routing::get};
use redis_rl_client::web::{Costs, Decision, Fail, Guard, Refusal};
use redis_rl_client::{Algorithm, RlCommands};
use tokio::time::timeout;

use crate::limits::{account, ask, ask_as, guard, policy};
use crate::server::{Cluster, PATIENCE, Server, used, wait_for};

/// Waits until so many units are counted: what goes back goes in the background.
fn wait_until_used(server: &Server, key: &str, units: u64) {
    wait_for(key, || server.used(key) == units);
}

#[tokio::test]
async fn a_route_that_refuses_costs_nothing_further_out_and_one_answer_tells_of_all() {
    let server = Server::start();
    // However long it takes, a lease is not over.
    let now = SystemTime::now();
    let everybody =
        guard(&server, policy("everybody", "100/1h").key_text("all").lease(10)).clock(move || now);
    let plan = everybody.limit(policy("plan", "50/1h")).expect("a policy");
    let search = everybody.limit(policy("search", "2/1h")).expect("a policy");
    let app = Router::new()
        .route("/search", get("found").route_layer(search.layer()))
        .layer(plan.layer())
        .layer(everybody.layer());
    for left in [1, 0] {
        let response = ask(&app, "/search").await;
        assert_eq!(response.status, 200);
        let all = r#""everybody-1h";q=100;w=3600, "plan-1h";q=50;w=3600, "search-1h";q=2;w=3600"#;
        assert_eq!(response.field("ratelimit-policy"), all);
        let limit = format!(r#""search-1h";r={left};t=3600"#);
        assert!(response.field("ratelimit").contains(&limit), "{response:?}");
    }
    for _ in 0..5 {
        let response = ask(&app, "/search").await;
        assert_eq!(response.status, 429);
        // What is left now, and no time of those that do not refuse.
        let limits = r#""everybody-1h";r=98, "plan-1h";r=48, "search-1h";r=0;t=3"#;
        assert!(response.field("ratelimit").starts_with(limits), "{response:?}");
        assert!(response.body.contains(r#""violated-policies":["search-1h"]"#));
    }
    assert_eq!(ask(&app, "/nowhere").await.status, 404, "allowed, and kept");
    everybody.close().await;
    wait_until_used(&server, "plan:{192.0.2.1}", 3);
    wait_until_used(&server, "everybody:all", 3);
}

#[tokio::test]
async fn on_a_cluster_policies_whose_keys_share_no_slot_are_one_decision() {
    let cluster = Cluster::start();
    let all = policy("all", "10000/1h").key_text("everybody");
    let customer = policy("customer", "40/1h").key(|head| Some(head.uri.path().to_owned()));
    let guard =
        Guard::new(cluster.redis(), [all, customer]).expect("policies").timeout(PATIENCE).fail(Fail::Closed);
    let passed = Arc::new(AtomicUsize::new(0));
    let requests = (0..2_000).map(|number| {
        let (guard, passed) = (guard.clone(), passed.clone());
        tokio::spawn(async move {
            // Ten customers ask for 200 each, of which 40 may pass.
            let request = Request::get(format!("/{}", number % 10)).body(()).expect("a request");
            match guard.take(&request.into_parts().0, ()).await {
                Ok(_) => passed.fetch_add(1, Ordering::Relaxed),
                Err(refusal) => {
                    assert_eq!(refusal.status(), 429);
                    0
                }
            }
        })
    });
    for request in requests.collect::<Vec<_>>() {
        request.await.expect("no panic");
    }
    assert_eq!(passed.load(Ordering::Relaxed), 400);
    guard.close().await;
    let mut direct = cluster.client().get_connection().expect("the cluster answers");
    wait_for("what was taken of all to go back", || used(&mut direct, "all:everybody") == 400);
}

#[tokio::test]
async fn a_leased_policy_beside_a_plan_costs_one_command_for_each_request() {
    let server = Server::start();
    let everybody = policy("everybody", "1000000/1h").key_text("all").lease(1_000);
    let plan = policy("plan", "10/1h").key(|head| Some(head.uri.path().to_owned()));
    let guard = guard(&server, [everybody, plan]);
    let admit = async |path: &str| {
        let request = Request::get(path).body(()).expect("a request");
        guard.take(&request.into_parts().0, ()).await
    };
    for number in 0..500 {
        assert!(admit(&format!("/{number}")).await.is_ok());
    }
    let sent = server.calls("RL.LOG") + server.calls("RL.ALL");
    assert!((500..600).contains(&sent), "{sent}");
    // What the plan refuses is back in the lease.
    for request in 0..50 {
        assert_eq!(admit("/same").await.is_ok(), request < 10);
    }
    guard.close().await;
    wait_until_used(&server, "everybody:all", 510);
}

#[tokio::test]
async fn a_handler_settles_what_a_layer_took_and_the_last_cost_counts() {
    async fn generate(guard: State<Guard>, reserved: Decision) -> Result<impl IntoResponse, Refusal> {
        guard.settle(&reserved, [("tokens", 10)]).await?;
        guard.settle(&reserved, [("tokens", 900)]).await?;
        guard.settle(&reserved, [("tokens", 420)]).await?;
        Ok("a text")
    }
    let wrong = |used: Costs| {
        get(async move |guard: State<Guard>, reserved: Decision| guard.settle(&reserved, used.clone()).await)
    };
    let server = Server::start();
    let tokens = policy("tokens", "1000/1h").unit("tokens").cost(500);
    let all = guard(&server, [policy("requests", "100/1h"), tokens]);
    let app = Router::new()
        .route("/", get(generate))
        .route("/nothing", wrong((-1).into()))
        .route("/one", wrong(1.into()))
        .route("/other", wrong([("other", 1)].into()))
        .layer(all.layer())
        .with_state(all.clone());
    let response = ask(&app, "/").await;
    assert_eq!(response.status, 200);
    let limits = r#""requests-1h";r=99;t=3600, "tokens-1h";r=580;t=3600"#;
    assert_eq!(response.field("ratelimit"), limits);
    assert_eq!(response.body, "a text");
    assert_eq!(server.used("tokens:{192.0.2.1}"), 420);
    for path in ["/nothing", "/one", "/other"] {
        assert_eq!(ask(&app, path).await.status, 500, "{path}");
    }
    let anonymous = Router::new()
        .route(
            "/",
            get(async |reserved: Decision, guard: State<Guard>| guard.take(&reserved, 3).await.map(|_| "")),
        )
        .layer(guard(&server, policy("everybody", "100/1h").key_text("all")).layer())
        .with_state(guard(&server, policy("own", "100/1h")));
    assert_eq!(ask(&anonymous, "/").await.status, 200);
    assert_eq!(server.used("own:{192.0.2.1}"), 3);
    let bare = Router::new().route("/", get(generate)).with_state(all);
    assert_eq!(ask(&bare, "/").await.status, 500, "no layer is in front");
}

#[tokio::test]
async fn a_limit_without_a_key_counts_whom_the_layers_further_out_counted() {
    let server = Server::start();
    let everybody = guard(&server, policy("everybody", "100/1h").key_text("all"));
    let plan = guard(&server, policy("plan", "50/1h")).key(account);
    let route = guard(&server, policy("route", "1/1h"));
    let app = |outer: &Guard| {
        Router::new()
            .route("/", get("hello").route_layer(route.layer()))
            .layer(plan.layer())
            .layer(outer.layer())
    };
    let app_of_one = app(&everybody);
    assert_eq!(ask_as(&app_of_one, "GET", "/", "alice").await.status, 200);
    assert_eq!(ask_as(&app_of_one, "GET", "/", "bob").await.status, 200, "at the same address");
    assert_eq!(ask_as(&app_of_one, "GET", "/", "alice").await.status, 429);
    assert_eq!(server.used("route:alice"), 1);
    // Nobody is logged in: the plan does not limit it, and the route counts the address.
    assert_eq!(ask(&app_of_one, "/").await.status, 200);
    assert_eq!(server.used("route:{192.0.2.1}"), 1);
    let response = ask_as(&app(&guard(&server, policy("address", "9/1h"))), "GET", "/", "carol").await;
    assert_eq!(response.status, 500);
    assert!(response.body.contains("give this limit a key"));
}

#[tokio::test]
async fn a_layer_that_fails_closed_and_a_handler_that_refuses_cost_nothing_further_out() {
    let (server, away) = (Server::start(), Server::start());
    let outer = guard(&server, policy("outer", "100/1h"));
    let closed = guard(&away, policy("inner", "100/1h")).fail(Fail::Closed);
    let own = guard(&server, policy("own", "0/1h"));
    let app = Router::new()
        .route("/closed", get("hello").route_layer(closed.layer()))
        .route("/own", get(async move |taken: Decision| own.take(&taken, 1).await.map(|_| "hello")))
        .layer(outer.layer());
    drop(away);
    assert_eq!(ask(&app, "/closed").await.status, 503);
    let response = ask(&app, "/own").await;
    assert_eq!(response.status, 403);
    assert_eq!(response.field("ratelimit-policy"), r#""outer-1h";q=100;w=3600, "own-1h";q=0;w=3600"#);
    assert!(response.field("ratelimit").starts_with(r#""outer-1h";r=100;t="#), "{response:?}");
    outer.close().await;
    wait_until_used(&server, "outer:{192.0.2.1}", 0);
}

#[tokio::test]
async fn a_request_whose_client_leaves_takes_nothing() {
    let server = Server::start();
    let trial = policy("trial", "100/1h").dry_run(true);
    let guard = guard(&server, [policy("leased", "100/1h").lease(8), policy("plan", "100/1h"), trial]);
    assert!(guard.take("a", ()).await.is_ok());
    server.freeze();
    assert!(timeout(Duration::from_millis(1), guard.take("a", ())).await.is_err());
    server.thaw();
    assert!(guard.take("a", ()).await.is_ok());
    guard.close().await;
    for key in ["plan:a", "leased:a", "trial:a"] {
        wait_until_used(&server, key, 2);
    }
}

#[tokio::test]
async fn a_request_that_is_served_though_a_limit_further_in_refuses_keeps_what_the_others_took() {
    async fn guest(reserved: Decision, own: State<Guard>) -> &'static str {
        own.take(&reserved, 1).await.map_or("as a guest", |_| "as a member")
    }
    async fn fallback(request: Request<Body>, next: Next) -> Response<Body> {
        let response = next.run(request).await;
        if response.status() == 403 { "as a guest".into_response() } else { response }
    }
    let (server, away) = (Server::start(), Server::start());
    let outer = guard(&server, [policy("leased", "2/1h").lease(8), policy("outer", "2/1h")]);
    let closed = guard(&away, policy("closed", "100/1h")).fail(Fail::Closed);
    drop(away);
    let none = guard(&server, policy("none", "0/1h"));
    let inner = get("as a member").route_layer(none.layer()).route_layer(from_fn(fallback));
    let apps = [
        Router::new().route("/", get(guest)).with_state(none),
        Router::new().route("/", get(guest)).with_state(closed),
        Router::new().route("/", inner),
    ];
    for app in apps {
        let app = app.layer(outer.layer());
        for left in [1, 0] {
            let response = ask(&app, "/").await;
            assert_eq!(response.status, 200);
            let limit = format!(r#""outer-1h";r={left};"#);
            assert!(response.field("ratelimit").contains(&limit), "{response:?}");
            assert_eq!(response.body, "as a guest");
        }
        assert_eq!(ask(&app, "/").await.status, 429, "no more than the outer limit passes");
        outer.close().await;
        for key in ["leased:{192.0.2.1}", "outer:{192.0.2.1}"] {
            assert_eq!(server.used(key), 2, "{key}");
            server.connect().rl_reset(key).expect("a reply");
        }
    }
}

#[tokio::test]
async fn a_request_that_was_refused_settles_nothing() {
    let (server, kept) = (Server::start(), Arc::new(Mutex::new(Vec::new())));
    let outer = guard(&server, policy("outer", "1000/1h").cost(500));
    let own = guard(&server, policy("own", "0/1h"));
    let keep = kept.clone();
    let handler = async move |reserved: Decision| {
        keep.lock().expect("no panic").push(reserved.clone());
        own.take(&reserved, 1).await.map(|_| "")
    };
    let app = Router::new().route("/", get(handler)).layer(outer.layer());
    assert_eq!(ask(&app, "/").await.status, 403);
    outer.close().await;
    wait_until_used(&server, "outer:{192.0.2.1}", 0);
    let reserved = kept.lock().expect("no panic").remove(0);
    let asked = server.calls("RL.ALL");
    for used in [420, 0, 900] {
        outer.settle(&reserved, used).await.expect("one policy");
    }
    assert_eq!(server.calls("RL.ALL"), asked);
    assert_eq!(server.used("outer:{192.0.2.1}"), 0);
}

#[tokio::test]
async fn what_is_being_settled_while_the_request_is_refused_goes_back() {
    let (server, kept) = (Arc::new(Server::start()), Arc::new(Mutex::new(Vec::new())));
    let outer = guard(&server, policy("outer", "1000/1h").cost(500));
    let own = guard(&server, policy("own", "0/1h"));
    let (frozen, keep, settling) = (server.clone(), kept.clone(), outer.clone());
    let handler = async move |reserved: Decision| {
        let refused = own.take(&reserved, 1).await.map(|_| "");
        frozen.freeze();
        let settling = settling.clone();
        let mut settling = Box::pin(async move { settling.settle(&reserved, 900).await.map(|_| ()) });
        assert!(timeout(Duration::from_millis(1), &mut settling).await.is_err());
        keep.lock().expect("no panic").push(settling);
        refused
    };
    let app = Router::new().route("/", get(handler)).layer(outer.layer());
    assert_eq!(ask(&app, "/").await.status, 403);
    server.thaw();
    let settling = kept.lock().expect("no panic").remove(0);
    settling.await.expect("one policy");
    outer.close().await;
    wait_until_used(&server, "outer:{192.0.2.1}", 0);
}

#[tokio::test]
async fn a_request_that_meets_two_policies_of_one_name_or_one_key_is_answered_500_and_costs_nothing() {
    let server = Server::start();
    let outer = guard(&server, policy("requests", "3/1h"));
    let own = outer.limit(policy("requests", "4/1h")).expect("a policy");
    let algorithm = policy("requests", "3/1h").algorithm(Algorithm::Fixed);
    let algorithm = outer.limit(algorithm).expect("a policy");
    let handler = async move |decision: Decision| own.take(&decision, 1).await.map(|_| "");
    let other_key = outer.limit(policy("requests", "3/1h").key_text("all")).expect("a policy");
    let app = Router::new()
        .route("/layers", get("hello").route_layer(algorithm.layer()))
        .route("/handler", get(handler))
        .route("/keys", get("hello").route_layer(other_key.layer()))
        .route("/twice", get("hello").route_layer(outer.layer()))
        .layer(outer.layer());
    for (path, why) in [
        ("/layers", "two policies of a request have the name"),
        ("/handler", "two policies of a request have the name"),
        ("/keys", "counts a request in two keys"),
        ("/twice", "the middleware of one guard stands twice"),
    ] {
        let response = ask(&app, path).await;
        assert_eq!(response.status, 500, "{path}");
        assert!(response.body.contains(why), "{path}: {}", response.body);
        outer.close().await;
        wait_until_used(&server, "requests:{192.0.2.1}", 0);
    }
    let keys = [policy("a", "3/1h").key_text("b:c"), policy("a:b", "3/1h").key_text("c")];
    let refusal = guard(&server, keys).take("acme", ()).await.unwrap_err();
    assert!(refusal.to_string().contains("count a request in one key"), "{refusal}");
}

#[tokio::test]
async fn a_users_name_chooses_no_other_users_key_and_no_slot() {
    let server = Server::start();
    let guard = guard(&server, [policy("a", "1/1h"), policy("b", "1/1h")]).key(account);
    let app = Router::new().route("/", get("hello")).layer(guard.layer());
    for account in ["bob", "{bob}", "{192.0.2.1}"] {
        assert_eq!(ask_as(&app, "GET", "/", account).await.status, 200, "{account}");
        assert_eq!(server.used(&format!("a:{account}")), 1);
    }
}
