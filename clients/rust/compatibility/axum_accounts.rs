// axum: a handler that extracts a Decision limits each account by itself, as a key function says, and holds places for each.
//
// with: redis-rl-client --features axum; axum@0.8; redis@1; tokio@1 --features full
// ci
// expect: 200 200 429 200 200
// expect: 200 200 429 200 200
// expect: 200 429 200

#[path = "../lib/http.rs"]
mod http;

use axum::{Router, extract::State, http::request::Parts, routing::get};
use redis_rl_client::web::{Decision, Guard, Policy, Refusal};

fn account(head: &Parts) -> Option<String> {
    Some(head.headers.get("account")?.to_str().ok()?.to_owned())
}

async fn take(State(tokens): State<Guard>, request: Decision) -> Result<&'static str, Refusal> {
    tokens.take(&request, 1).await.map(|_| "taken")
}

async fn hold(State(guard): State<Guard>, request: Decision) -> Result<&'static str, Refusal> {
    let _place = guard.hold(&request, "streams", 1).await?;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    Ok("streamed")
}

#[tokio::main]
async fn main() {
    // All come by one network address, as behind a load balancer.
    let everybody = Guard::new(http::redis(), "100/m").unwrap();
    let by_policy = everybody.limit(Policy::new("policy", "2/m").unwrap().key(account)).unwrap();
    let by_guard = Guard::new(http::redis(), Policy::new("guard", "2/m").unwrap()).unwrap().key(account);
    let app = Router::new()
        .route("/policy", get(take).with_state(by_policy))
        .route("/guard", get(take).with_state(by_guard.clone()))
        .route("/stream", get(hold).with_state(by_guard))
        .layer(everybody.layer());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let accounts = ["a", "a", "a", "b", "c"].map(|account| format!("account: {account}\r\n"));
    for path in ["/policy", "/guard"] {
        println!("{}", http::statuses(here, path, accounts.iter().map(String::as_str)));
    }
    let streams = ["a", "a", "b"].map(|account| {
        std::thread::sleep(std::time::Duration::from_millis(200));
        let fields = format!("account: {account}\r\n");
        std::thread::spawn(move || http::status(here, "GET", "/stream", &fields))
    });
    println!("{}", streams.map(|stream| stream.join().unwrap()).join(" "));
}
