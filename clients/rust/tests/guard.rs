//! What a guard holds and its limits share, in axum and in actix-web on a real server.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderName, Request, Response};
use axum::routing::get;
use redis::RedisError;
use redis_rl_client::MemoryLimiter;
use redis_rl_client::web::{Decision, Fail, Guard, Policies, Policy, Refusal};
use tokio::time::{sleep, timeout};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_http::cors::{Any, CorsLayer};

use crate::limits::{Warnings, ask, ask_as, guard, policy};
use crate::server::{PATIENCE, Server, wait_for};

/// What `on_limited` is told: whether the request passes, and which policies refuse.
fn hear(guard: Guard) -> (Guard, Arc<Mutex<Vec<String>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let hear = told.clone();
    let guard = guard.on_limited(move |_, decision| {
        assert_ne!(decision.allowed(), decision.limited());
        let policies = decision.policies().into_iter();
        let names: Vec<_> = policies.filter(|(_, figures)| figures.limited).map(|(name, _)| name).collect();
        let result = if decision.allowed() { "passes" } else { "is refused" };
        hear.lock().expect("no panic").push(format!("{} {result}", names.join("+")));
        Some(Response::new("ignored if it passes".to_owned())).filter(|_| decision.allowed())
    });
    (guard, told)
}

#[tokio::test]
async fn a_dry_run_is_told_once_also_if_the_same_request_is_refused_further_in() {
    let memory = MemoryLimiter::new();
    let everybody = [policy("plan", "9/1h"), policy("trial", "0/1h").dry_run(true)];
    let (guard, told) = hear(Guard::new(memory, everybody).expect("policies"));
    let none = guard.limit(policy("none", "0/1h")).expect("a policy");
    let taken = guard.take("ada", ()).await.expect("it fits");
    assert!(none.take(&taken, ()).await.is_err());
    assert_eq!(*told.lock().expect("no panic"), ["trial passes", "none is refused"]);
}

#[tokio::test]
async fn a_text_of_quotas_is_a_policy_and_a_route_names_its_own() {
    let server = Server::start();
    let guard = Guard::new(server.redis(), "9/1h").expect("a text of quotas");
    let chosen = Policies::by(|_| Policy::try_from("2/1h").ok());
    let [search, user] = [guard.limit("2/1h"), guard.limit(chosen)].map(|limit| limit.expect("policies"));
    let app = Router::new()
        .route("/search", get("found").post("made").route_layer(search.layer()))
        .nest("/api", Router::new().route("/users/{id}", get("somebody").route_layer(user.layer())))
        .layer(guard.layer());
    for (method, path, name, left) in [
        ("GET", "/search", "/search", 1),
        ("POST", "/search", "/search", 0),
        ("GET", "/api/users/1", "/api/users/:id", 1),
        ("GET", "/api/users/2", "/api/users/:id", 0),
    ] {
        let answer = ask_as(&app, method, path, "").await;
        let limits = answer.field("ratelimit");
        assert!(limits.ends_with(&format!(r#""{name}-1h";r={left};t=3600"#)), "{method} {path}: {limits}");
        assert!(limits.starts_with(r#""requests-1h";r="#), "{limits}");
    }
    assert_eq!(server.used("/api/users/:id:{192.0.2.1}"), 2);
    for method in ["GET", "HEAD", "POST"] {
        assert_eq!(ask_as(&app, method, "/search", "").await.status, 429, "{method}");
    }
    assert_eq!(ask(&app, "/api/users/3").await.status, 429);
}

#[tokio::test]
async fn a_text_limits_each_of_several_routes_by_itself_and_a_named_policy_all_together() {
    let server = Server::start();
    let guard = guard(&server, []);
    let app = |limit: Guard| {
        let routes = Router::new().route("/a", get("a")).route("/b", get("b"));
        routes.layer(limit.layer()).layer(guard.layer())
    };
    for (limit, statuses) in [
        (guard.limit("2/1h").expect("a text"), [200, 200, 200, 200, 429]),
        (guard.limit(policy("both", "2/1h")).expect("a policy"), [200, 200, 429, 429, 429]),
    ] {
        let app = app(limit);
        for (path, status) in ["/a", "/b", "/a", "/b", "/a"].into_iter().zip(statuses) {
            assert_eq!(ask(&app, path).await.status, status, "{path}");
        }
    }
}

#[tokio::test]
async fn two_texts_on_one_route_need_names_and_so_does_one_whose_route_nobody_knows() {
    let warnings = Warnings::default();
    let _subscribed = tracing::subscriber::set_default(warnings.clone());
    let guard = Guard::new(MemoryLimiter::new(), []).expect("no policies");
    let [read, write, same] = ["9/1h", "2/1h", "9/1h"].map(|text| guard.limit(text).expect("a text").layer());
    let read = Router::new().route("/a", get("read").route_layer(read));
    let app = read.merge(Router::new().route("/a", axum::routing::post("made").route_layer(write)));
    let app = app.merge(Router::new().route("/a", axum::routing::put("changed").route_layer(same)));
    for (method, status) in [("GET", 200), ("POST", 500), ("POST", 500), ("PUT", 200)] {
        assert_eq!(ask_as(&app, method, "/a", "").await.status, status, "{method}");
    }
    let line = r#"give it a name, as guard.limit(Policy::new("a-name", "2/1h")?)"#;
    let told = format!("requests are answered 500: two limits without a name stand on /a: {line}");
    assert!(warnings.told().contains(&told));
    // Without a framework nobody knows a route.
    let hello = service_fn(async |_: Request<String>| Ok::<_, ()>(Response::new("hello".to_owned())));
    let bare = ServiceBuilder::new().layer(guard.limit("2/1h").expect("a text").layer()).service(hello);
    let response = bare.oneshot(Request::new(String::new())).await.expect("a response");
    assert!(response.body().contains("its route is not known: give it a name"), "{}", response.body());
}

#[tokio::test]
async fn a_server_that_comes_back_without_the_module_is_told_by_the_log() {
    let mut server = Server::start();
    let warnings = Warnings::default();
    let _subscribed = tracing::subscriber::set_default(warnings.clone());
    let app = Router::new().route("/", get("hello")).layer(guard(&server, [policy("all", "9/1h")]).layer());
    assert_eq!(ask(&app, "/").await.status, 200);
    server.kill();
    assert_eq!(ask(&app, "/").await.status, 200);
    let told = warnings.told();
    assert!(told.len() == 1 && told[0].starts_with("Redis is away: "), "{told:?}");
    server.restart_without_module();
    let told = timeout(PATIENCE, async {
        loop {
            assert_eq!(ask(&app, "/").await.status, 200);
            let told = warnings.told();
            if !told.is_empty() {
                return told;
            }
            sleep(Duration::from_millis(5)).await;
        }
    });
    let told = told.await.expect("the log tells it");
    assert!(told.len() == 1 && told[0].contains("has not loaded the redis-rl module"), "{told:?}");
    assert!(!told[0].contains("192.0.2.1"), "{told:?}");
}

#[tokio::test]
async fn a_dry_run_counts_and_is_told_and_refuses_nothing() {
    async fn settle(State(guard): State<Guard>, request: Decision) -> Result<&'static str, Refusal> {
        guard.settle(&request, [("tokens", 3)]).await?;
        Ok("settled")
    }
    let server = Server::start();
    let tokens = policy("tokens", "100/1h").cost(20).dry_run(true);
    let tight = policy("tight", "1/1h").dry_run(true);
    let (guard, told) = hear(guard(&server, [tight, policy("plan", "3/1h"), tokens]));
    let app = Router::new()
        .route("/", get("hello"))
        .route("/settle", get(settle))
        .layer(guard.layer())
        .with_state(guard.clone());
    let expected = [
        ("/settle", 200, 97, None),
        ("/", 200, 77, Some("tight passes")),
        ("/", 200, 57, Some("tight passes")),
        ("/", 429, 57, Some("plan+tight is refused")),
    ];
    for (path, status, left, decided) in expected {
        let answer = ask(&app, path).await;
        assert_eq!(answer.status, status);
        for name in ["ratelimit", "ratelimit-policy"] {
            assert!(answer.field(name).starts_with(r#""plan-1h";"#), "{answer:?}");
            assert!(!answer.field(name).contains(','), "{answer:?}");
        }
        assert_eq!(answer.body.contains(r#""violated-policies":["plan-1h"]"#), status == 429);
        assert_eq!(std::mem::take(&mut *told.lock().expect("no panic")), Vec::from_iter(decided));
        guard.close().await;
        assert_eq!(server.used("tokens:{192.0.2.1}"), 100 - left);
    }
    assert_eq!(server.used("tight:{192.0.2.1}"), 1);
}

#[tokio::test]
async fn a_dry_run_alone_decides_nothing_even_while_redis_is_away_and_fail_is_closed() {
    let server = Server::start();
    let guard = guard(&server, policy("trial", "0/1h").dry_run(true)).fail(Fail::Closed);
    let taken = guard.take("a", 1).await.expect("it refuses nothing");
    assert!(taken.allowed() && taken.policies()["trial"].limited && taken.fields().is_empty());
    drop(server);
    assert!(guard.take("a", 1).await.is_ok());
}

#[tokio::test]
async fn a_503_asks_to_come_again_in_a_second_and_names_the_reason() {
    let server = Server::start();
    let guard = guard(&server, policy("plan", "9/1h")).fail(Fail::Closed);
    drop(server);
    let refusal = guard.take("a", 1).await.unwrap_err();
    assert_eq!(refusal.fields()["retry-after"], "1");
    let why = refusal.source().and_then(|why| why.downcast_ref::<RedisError>()).expect("a reason");
    assert!(why.is_connection_refusal(), "{why:?}");
    assert!(refusal.decision().is_none());
}

#[tokio::test]
async fn behind_cors_a_refusal_has_its_fields_and_a_preflight_costs_nothing() {
    let guard = Guard::new(MemoryLimiter::new(), "1/1h").expect("a policy");
    let fields = ["ratelimit", "ratelimit-policy", "retry-after"].map(HeaderName::from_static);
    let cors = CorsLayer::new().allow_origin(Any).expose_headers(fields);
    let app = Router::new().route("/", get("hello")).layer(guard.layer()).layer(cors);
    for (method, status) in [("OPTIONS", 200), ("OPTIONS", 200), ("GET", 200), ("OPTIONS", 200), ("GET", 429)]
    {
        let request = Request::builder().method(method).header("origin", "https://a.example");
        let request = request.header("access-control-request-method", "GET").body(Body::empty());
        let response = app.clone().oneshot(request.expect("a request")).await.expect("a response");
        let field = |name| response.headers().get(name).map_or("", |value| value.to_str().expect("ASCII"));
        assert_eq!((response.status().as_u16(), field("access-control-allow-origin")), (status, "*"));
        if method == "GET" {
            assert_eq!(field("access-control-expose-headers"), "ratelimit,ratelimit-policy,retry-after");
            assert!(field("ratelimit").starts_with(r#""requests-1h";r=0"#), "{response:?}");
        }
    }
}

#[tokio::test]
async fn a_key_that_is_not_utf_8_is_limited_like_any_other() {
    let by_account =
        |head: &Parts| Some(String::from_utf8_lossy(head.headers.get("account")?.as_bytes()).into_owned());
    let guard = Guard::new(MemoryLimiter::new(), policy("requests", "1/1h").key(by_account));
    let app = Router::new().route("/", get("hello")).layer(guard.expect("a policy").layer());
    for status in [200, 429] {
        let request = Request::get("/").header("account", &b"caf\xe9"[..]).body(Body::empty());
        let response = app.clone().oneshot(request.expect("a request")).await.expect("a response");
        assert_eq!(response.status(), status);
    }
}

#[tokio::test]
async fn a_client_of_grpc_is_refused_by_a_status_of_its_own_and_told_the_wait() {
    let mut server = Server::start();
    let grpc = |app: Router| async move {
        let request = Request::post("/a.Service/Call").header("content-type", "application/grpc+proto");
        let request = request.body(axum::body::Body::empty()).expect("a request");
        let answer = app.oneshot(request).await.expect("a response");
        let (head, body) = answer.into_parts();
        assert!(axum::body::to_bytes(body, 10).await.expect("a body").is_empty());
        let field =
            |name: &str| head.headers.get(name).map(|value| value.to_str().expect("ASCII").to_owned());
        (head.status.as_u16(), field("grpc-status"), field("grpc-retry-pushback-ms"), field("retry-after"))
    };
    let app = |guard: Guard| {
        let call = axum::routing::post(async || [("grpc-status", "0")]);
        Router::new().route("/a.Service/Call", call).layer(guard.layer())
    };
    let limited = app(guard(&server, policy("calls", "0/1h")));
    assert_eq!(grpc(limited).await, (200, Some("8".into()), None, None), "no wait helps");
    let limited = app(guard(&server, policy("few", "1/1h")));
    assert_eq!(grpc(limited.clone()).await, (200, Some("0".into()), None, None));
    let (_, status, pushback, wait) = grpc(limited).await;
    assert_eq!((status.as_deref(), wait.as_deref()), (Some("8"), Some("3600")));
    assert!(pushback.expect("a wait").parse::<u64>().expect("a number") > 3_500_000);
    let closed = guard(&server, policy("calls", "5/1h")).fail(Fail::Closed);
    server.kill();
    assert_eq!(grpc(app(closed)).await, (200, Some("14".into()), None, Some("1".into())));
}

mod in_actix {
    use std::future::ready;
    use std::net::SocketAddr;

    use actix_web::dev::Service;
    use actix_web::test::{TestRequest, call_service, init_service, read_body};
    use actix_web::{App, HttpMessage, HttpRequest, HttpResponse, web};

    use super::*;

    const CLIENT: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 1);

    fn request(path: &str) -> TestRequest {
        TestRequest::with_uri(path).peer_addr(CLIENT)
    }

    #[test]
    fn whatever_path_method_and_field_actix_web_takes_functions_of_the_head_see() {
        let texts = (0..=255u8).map(|byte| [b"/a", &[byte][..], b"b?c=", &[byte], b"d"].concat());
        let whole =
            ["*", "/", "//", "/..//.", "http://a.example/b?c", "http://a@b.example:80/c", "/%2f%00", "/?"];
        let texts = texts.chain(whole.iter().map(|text| text.as_bytes().to_vec()));
        for text in texts {
            let Ok(uri) = actix_web::http::Uri::try_from(&text[..]) else { continue };
            let (path, query) = (uri.path().to_owned(), uri.query().map(str::to_owned));
            let mut request = TestRequest::default().to_srv_request();
            request.head_mut().uri = uri;
            let seen = Arc::new(Mutex::new(None));
            let see = seen.clone();
            let by_head = Policies::by(move |head: &Parts| {
                *see.lock().expect("no panic") =
                    Some((head.uri.path().to_owned(), head.uri.query().map(str::to_owned)));
                None::<Policy>
            });
            let guard = Guard::new(MemoryLimiter::new(), by_head).expect("policies");
            let request = request.request().clone();
            futures_util::FutureExt::now_or_never(guard.take(&request, ()))
                .expect("at once")
                .expect("it passes");
            let seen = seen.lock().expect("no panic").take().expect("a head");
            assert_eq!(seen, (path, query), "{:?}", String::from_utf8_lossy(&text));
        }
    }

    #[actix_web::test]
    async fn limits_of_scopes_and_routes_and_handlers_are_one_decision_and_tell_one_field() {
        let server = Server::start();
        let outer = guard(&server, policy("plan", "9/1h"));
        let [search, own] =
            ["2/1h", "0/1h"].map(|quotas| outer.limit(policy("inner", quotas)).expect("a policy"));
        let refuse = move |request: HttpRequest| {
            let own = own.clone();
            async move { own.take(&request, 1).await.map(|_| "never") }
        };
        let guest = async |_: Decision| "a guest";
        let app = App::new()
            .service(
                web::scope("/api")
                    .route("/search", web::get().to(|| ready("found")))
                    .wrap(search.middleware()),
            )
            .route("/own", web::get().to(refuse))
            .route("/guest", web::get().to(guest))
            .wrap(outer.middleware());
        let app = init_service(app).await;
        for (path, status, limits) in [
            ("/api/search", 200, r#""plan-1h";r=8;t=3600, "inner-1h";r=1;t=3600"#),
            ("/api/search", 200, r#""plan-1h";r=7;t=3600, "inner-1h";r=0;t=3600"#),
            ("/api/search", 429, r#""plan-1h";r=7, "inner-1h";r=0;t=3600"#),
            ("/own", 403, r#""plan-1h";r=7;t=3600, "inner-1h";r=0;t=0"#),
            ("/guest", 200, r#""plan-1h";r=6;t=3600"#),
            ("/nowhere", 404, r#""plan-1h";r=5;t=3600"#),
        ] {
            let response = call_service(&app, request(path).to_request()).await;
            assert_eq!(response.status(), status, "{path}");
            let fields: Vec<_> = response.headers().get_all("ratelimit").collect();
            assert_eq!(fields.len(), 1, "{path}");
            let told = fields[0].to_str().expect("ASCII").replace("t=3599", "t=3600");
            assert_eq!(told, limits, "{path}");
            outer.close().await;
        }
        assert_eq!(server.used("plan:{192.0.2.1}"), 4);
    }

    #[actix_web::test]
    async fn a_resource_names_its_limit_and_hooks_are_those_of_the_guard() {
        let server = Server::start();
        let guard = guard(&server, []).on_limited(|head, decision| {
            let account = head?.extensions.get::<&str>().copied().unwrap_or_default();
            let answer = Response::builder().status(418).header("content-type", "text/plain");
            answer.body(format!("{} of {account} at {}", decision.status(), head?.uri)).ok()
        });
        let user = guard.limit("1/1h").expect("a text");
        let app = App::new()
            .service(
                web::resource("/users/{id}")
                    .route(web::get().to(async || HttpResponse::Ok()))
                    .wrap(user.middleware()),
            )
            .wrap(guard.middleware())
            .wrap_fn(|request, service| {
                let mut known = http::Extensions::new();
                known.insert("alice");
                request.extensions_mut().insert(known);
                service.call(request)
            });
        let app = init_service(app).await;
        assert_eq!(call_service(&app, request("/users/1").to_request()).await.status(), 200);
        let response = call_service(&app, request("/users/2?a=b").to_request()).await;
        assert_eq!(response.status(), 418);
        assert_eq!(response.headers().get("content-type").expect("a field"), "text/plain");
        assert_eq!(response.headers().get("retry-after").expect("a field"), "3600");
        assert_eq!(read_body(response).await, "429 Too Many Requests of alice at /users/2?a=b");
    }

    #[actix_web::test]
    async fn a_request_whose_client_leaves_takes_nothing() {
        let server = Server::start();
        let guard = guard(&server, policy("plan", "9/1h"));
        let app = App::new().route("/", web::get().to(|| ready("hello"))).wrap(guard.middleware());
        let app = init_service(app).await;
        assert_eq!(call_service(&app, request("/").to_request()).await.status(), 200);
        server.freeze();
        let leaving = app.call(request("/").to_request());
        assert!(timeout(Duration::from_millis(1), leaving).await.is_err());
        server.thaw();
        guard.close().await;
        wait_for("all to go back", || server.used("plan:{192.0.2.1}") == 1);
    }
}
