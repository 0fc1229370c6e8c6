// Public reports about rate limiters and redis-rs, each as a program of a few lines: README.md of this folder has their addresses.
//
// with: redis-rl-client --features axum; axum@0.8; redis@1; tokio@1 --features full; tower@0.5 --features util; tower-http@0.6 --features cors
// expect: every connection counts: 200 200 429
// expect: layers of routers and routes are Clone: 200 429
// expect: without ConnectInfo: 200 200 429
// expect: a claim left of the proxy's: 200 200 429
// expect: clients behind a proxy: 200 200 429 200
// expect: fields of several lines: 200 200 429
// expect: preflights: 200 200 200 200 429
// expect: a page of fifty requests: 50
// expect: failed logins alone: 200 200 200 401 401 429
// expect: more than the limit: 403 at once
// expect: what is left as time moves: 0 5 10
// expect: keys of a thousand clients after their window: 0
// expect: 4000/s is 4000 in a second: "requests-1s";q=4000;w=1
// expect: a proxy closes connections: decided
// expect: ten thousand at once: 100
// expect: an address that nobody answers: 200 in time
// expect: paths that clients make up: 200 200 429
// expect: messages of a socket: 3 of 5
// expect: a key expires: true
// expect: a flood of keys without a server: 1000
// expect: Redis is down, reading and logging in: 200 503
// expect: limits by method: 200 200 429 200 429
// expect: users that a layer outside has checked: 200 429 200
// expect: a name with any bytes: 200 429

#[path = "../lib/http.rs"]
mod http;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, request::Parts};
use axum::middleware::{Next, from_fn};
use axum::{Router, routing::get, routing::post};
use redis_rl_client::web::{Decision, Fail, Guard, Policies, Policy, Refusal};
use redis_rl_client::{Algorithm, Clock, MemoryLimiter, Quota, RlCommands};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tower::ServiceExt;

fn guard(quotas: &str) -> Guard {
    // A prefix of its own for each report.
    static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    Guard::new(http::redis(), quotas).unwrap().prefix(format!("{number}:")).timeout(Duration::from_secs(1))
}

fn app(guard: &Guard) -> Router {
    Router::new().route("/", get(|| async { "found" })).layer(guard.layer())
}

async fn ask(app: &Router, method: &str, path: &str, fields: &[(&str, &str)]) -> String {
    let mut request = Request::builder().method(method).uri(path).extension(SocketAddr::from(([192, 0, 2, 1], 1)));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let answer = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    answer.status().as_u16().to_string()
}

async fn each(app: &Router, requests: &[(&str, &str, &[(&str, &str)])]) -> String {
    let mut statuses = Vec::new();
    for (method, path, fields) in requests {
        statuses.push(ask(app, method, path, fields).await);
    }
    statuses.join(" ")
}

/// Forwards each connection for so long, and then closes it.
fn closing(after: Duration) -> SocketAddr {
    let (listener, port) = (TcpListener::bind("127.0.0.1:0").unwrap(), std::env::var("REDIS_PORT").unwrap());
    let here = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
            for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)] {
                let closed = from.try_clone().unwrap();
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                std::thread::spawn(move || {
                    std::thread::sleep(after);
                    closed.shutdown(std::net::Shutdown::Both)
                });
            }
        }
    });
    here
}

fn account(head: &Parts) -> Option<String> {
    Some(String::from_utf8_lossy(head.headers.get("account")?.as_bytes()).into_owned())
}

async fn login(State(logins): State<Guard>, request: Decision, head: Parts) -> Result<StatusCode, Refusal> {
    logins.take(&request, 1).await?;
    if head.headers.contains_key("right") {
        logins.settle(&request, [("logins", 0)]).await?;
        return Ok(StatusCode::OK);
    }
    Ok(StatusCode::UNAUTHORIZED)
}

#[tokio::main]
async fn main() {
    let mut redis = http::redis().get_connection().unwrap();
    const GET: (&str, &str, &[(&str, &str)]) = ("GET", "/", &[]);

    let limited = app(&guard("2/m")).into_make_service_with_connect_info::<SocketAddr>();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, limited).await });
    let statuses = tokio::task::spawn_blocking(move || http::statuses(here, "/", ["", "", ""])).await.unwrap();
    println!("every connection counts: {statuses}");

    let outer = guard("9/m");
    let layered = Router::new().route("/", get(|| async { "" }).route_layer(outer.limit("1/m").unwrap().layer()));
    println!("layers of routers and routes are Clone: {}", each(&layered.layer(outer.layer()), &[GET, GET]).await);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap();
    let bare = app(&guard("2/m"));
    tokio::spawn(async { axum::serve(listener, bare).await });
    let statuses = tokio::task::spawn_blocking(move || http::statuses(here, "/", ["", "", ""])).await.unwrap();
    println!("without ConnectInfo: {statuses}");

    let behind = app(&guard("2/m").proxies(1));
    let by = |claim: &'static str| -> (&str, &str, &[(&str, &str)]) {
        ("GET", "/", Vec::leak(vec![("x-forwarded-for", claim)]))
    };
    let claims = ["1.1.1.1, 203.0.113.9", "2.2.2.2, 203.0.113.9", "3.3.3.3, 203.0.113.9"].map(by);
    println!("a claim left of the proxy's: {}", each(&behind, &claims).await);
    let clients = ["203.0.113.1", "203.0.113.1", "203.0.113.1", "203.0.113.2"].map(by);
    println!("clients behind a proxy: {}", each(&behind, &clients).await);
    let lines: [(&str, &str, &[(&str, &str)]); 3] = ["1.1.1.1", "2.2.2.2", "3.3.3.3"].map(|claim| {
        let lines = vec![("x-forwarded-for", claim), ("x-forwarded-for", "203.0.113.3")];
        ("GET", "/", &*Vec::leak(lines))
    });
    println!("fields of several lines: {}", each(&behind, &lines).await);

    let cors = tower_http::cors::CorsLayer::permissive();
    let preflight: (&str, &str, &[(&str, &str)]) =
        ("OPTIONS", "/", &[("origin", "https://a.example"), ("access-control-request-method", "GET")]);
    let preflights = each(&app(&guard("2/m")).layer(cors), &[preflight, preflight, GET, GET, GET]).await;
    println!("preflights: {preflights}");

    let page = guard("1/m").limit(Policy::new("page", "60/m").unwrap().algorithm(Algorithm::Bucket)).unwrap();
    let page = app(&page);
    let mut passed = 0;
    for _ in 0..50 {
        passed += usize::from(ask(&page, "GET", "/", &[]).await == "200");
    }
    println!("a page of fifty requests: {passed}");

    let logins = guard("100/m");
    let failed = logins.limit(Policy::new("logins", "2/m").unwrap()).unwrap();
    let service = Router::new().route("/", post(login).with_state(failed)).layer(logins.layer());
    let right: (&str, &str, &[(&str, &str)]) = ("POST", "/", &[("right", "yes")]);
    let wrong: (&str, &str, &[(&str, &str)]) = ("POST", "/", &[]);
    println!("failed logins alone: {}", each(&service, &[right, right, right, wrong, wrong, wrong]).await);

    let asked = Instant::now();
    let refused = guard("5/m").take("ada", 6).await.unwrap_err();
    let at_once = if asked.elapsed() < Duration::from_secs(1) { "at once" } else { "late" };
    println!("more than the limit: {} {at_once}", refused.status().as_u16());

    let clock = Clock::fixed();
    let policy = Policy::new("bucket", "10/10s").unwrap().algorithm(Algorithm::Bucket);
    let moving = Guard::new(MemoryLimiter::new().clock(clock.clone()), policy).unwrap();
    moving.take("ada", 10).await.unwrap();
    let mut left = Vec::new();
    for _ in 0..3 {
        left.push(moving.peek("ada").await.unwrap().policies()["bucket"].remaining.to_string());
        clock.advance(Duration::from_secs(5));
    }
    println!("what is left as time moves: {}", left.join(" "));

    let many = guard("5/s").prefix("many:");
    for client in 0..1000 {
        many.take(format!("client-{client}"), 1).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("many:*").query(&mut redis).unwrap();
    println!("keys of a thousand clients after their window: {}", keys.len());

    let fields = guard("4000/s").take("ada", 1).await.unwrap().fields();
    println!("4000/s is 4000 in a second: {}", fields["ratelimit-policy"].to_str().unwrap());

    let address = closing(Duration::from_millis(300));
    let closed = Guard::new(redis::Client::open(format!("redis://{address}")).unwrap(), "100000/m").unwrap().fail(Fail::Closed);
    let until = Instant::now() + Duration::from_secs(20);
    let (mut decided, mut failed) = (0, 0);
    // Each connection is closed under the requests; between two of them most are decided.
    while decided < 20 && Instant::now() < until {
        if closed.take("ada", 1).await.is_ok() { decided += 1 } else { failed += 1 }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("a proxy closes connections: {}", if decided == 20 { "decided".to_owned() } else { format!("{decided}, {failed}") });

    let crowd = guard("100/h");
    let taking: Vec<_> = (0..10_000).map(|_| {
        let crowd = crowd.clone();
        tokio::spawn(async move { crowd.take("all", 1).await.is_ok() })
    }).collect();
    let mut passed = 0;
    for taken in taking {
        passed += usize::from(taken.await.unwrap());
    }
    println!("ten thousand at once: {passed}");

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = redis::Client::open(format!("redis://{}", silent.local_addr().unwrap())).unwrap();
    let nobody = app(&Guard::new(client, "2/m").unwrap());
    let asked = Instant::now();
    let status = ask(&nobody, "GET", "/", &[]).await;
    let in_time = if asked.elapsed() < Duration::from_secs(2) { "in time" } else { "late" };
    println!("an address that nobody answers: {status} {in_time}");

    let users = guard("9/m").limit("2/m").unwrap();
    let users = Router::new().route("/users/{id}", get(|| async { "" }).route_layer(users.layer()));
    let made_up = each(&users, &[("GET", "/users/1", &[]), ("GET", "/users/2", &[]), ("GET", "/users/3", &[])]).await;
    println!("paths that clients make up: {made_up}");

    let messages = guard("3/m");
    let opened = messages.take("socket", 0).await.unwrap();
    let mut passed = 0;
    for _ in 0..5 {
        passed += usize::from(messages.take(&opened, 1).await.is_ok());
    }
    println!("messages of a socket: {passed} of 5");

    redis.rl_log("expires", Quota::per_minute(5), 1).unwrap();
    let left: i64 = redis::cmd("PTTL").arg("expires").query(&mut redis).unwrap();
    println!("a key expires: {}", left > 0);

    let memory = MemoryLimiter::with_keys(1000);
    let flooded = Guard::new(memory.clone(), "5/h").unwrap();
    for client in 0..20_000 {
        flooded.take(format!("client-{client}"), 1).await.unwrap();
    }
    println!("a flood of keys without a server: {}", format!("{memory:?}").replace(|c: char| !c.is_ascii_digit(), ""));

    let down = redis::Client::open(format!("redis://{}", http::free())).unwrap();
    let reading = Guard::new(down.clone(), "2/m").unwrap();
    let logging_in = Guard::new(down, "2/m").unwrap().fail(Fail::Closed);
    let (reading, logging_in) = (ask(&app(&reading), "GET", "/", &[]).await, ask(&app(&logging_in), "GET", "/", &[]).await);
    println!("Redis is down, reading and logging in: {reading} {logging_in}");

    let (reads, writes) = (Policy::new("reads", "2/m").unwrap(), Policy::new("writes", "1/m").unwrap());
    let by_method = Policies::by(move |head| Some(if head.method == Method::GET { reads.clone() } else { writes.clone() }));
    let by_method = guard("9/m").limit(by_method).unwrap();
    let methods = Router::new().route("/", get(|| async { "" }).post(|| async { "" })).layer(by_method.layer());
    let statuses = each(&methods, &[GET, GET, GET, ("POST", "/", &[]), ("POST", "/", &[])]).await;
    println!("limits by method: {statuses}");

    #[derive(Clone)]
    struct User(String);
    let checked = from_fn(|mut request: Request, next: Next| async move {
        let user = request.headers().get("token").and_then(|token| token.to_str().ok()).unwrap_or("nobody").to_owned();
        request.extensions_mut().insert(User(user));
        next.run(request).await
    });
    let by_user = guard("1/m").key(|head| Some(head.extensions.get::<User>()?.0.clone()));
    let by_user = app(&by_user).layer(checked);
    let tokens: [(&str, &str, &[(&str, &str)]); 3] =
        [("GET", "/", &[("token", "ada")]), ("GET", "/", &[("token", "ada")]), ("GET", "/", &[("token", "bob")])];
    println!("users that a layer outside has checked: {}", each(&by_user, &tokens).await);

    let by_name = app(&guard("1/m").key(account));
    let mut statuses = Vec::new();
    for _ in 0..2 {
        let request = Request::get("/").header("account", &b"\xff{\r"[..2]).body(Body::empty()).unwrap();
        statuses.push(by_name.clone().oneshot(request).await.unwrap().status().as_u16().to_string());
    }
    println!("a name with any bytes: {}", statuses.join(" "));
}
