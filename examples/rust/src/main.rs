//! A web API that limits its clients with redis-rl, in axum: what ../../README.md tells of.

use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderValue, StatusCode, request::Parts};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::get, routing::post};
use redis_rl_client::Redis;
use redis_rl_client::web::{Decision, Fail, Guard, Policies, Policy, client_address};
use serde_json::json;
use std::{env, error::Error, net::SocketAddr, time::Duration};
use tokio::signal::unix::{SignalKind, signal};

/// Who asks: the account that is logged in, of which `X-Account` is a stand-in, or else the network address.
fn account(head: &Parts, proxies: usize) -> String {
    // In Latin-1, as HTTP has it.
    let latin_1 =
        |account: &HeaderValue| account.as_bytes().iter().copied().map(char::from).collect::<String>();
    let account = head.headers.get("x-account").map(latin_1).filter(|account| !account.is_empty());
    let peer = head.extensions.get().map(|ConnectInfo::<SocketAddr>(peer)| peer.ip());
    account.unwrap_or_else(|| client_address(peer, &head.headers, proxies))
}

async fn generate(
    State(tokens): State<Guard>,
    request: Decision,
    text: String,
) -> Result<Response, Response> {
    if text.is_empty() {
        return Err((StatusCode::BAD_REQUEST, "the body is the prompt").into_response());
    }
    let words = text.split_whitespace().count() as i64;
    // A reply usually has 16 tokens.
    tokens.take(&request, words + 16).await?;
    // A task of its own, so that it settles even if the client goes away meanwhile. The model is a stand-in.
    let task = tokio::spawn(async move {
        tokens.settle(&request, [("tokens", 3 * words)]).await?;
        if words == 0 {
            return Ok((StatusCode::INTERNAL_SERVER_ERROR, "the model failed").into_response());
        }
        let reply = text.split_whitespace().chain(text.split_whitespace()).collect::<Vec<_>>().join(" ");
        Ok(Json(json!({"reply": reply, "tokens": 3 * words})).into_response())
    });
    match task.await {
        Ok(answer) => answer,
        Err(_) => Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response()),
    }
}

/// The service, with settings by name and what each is if nothing is said of it.
fn service(
    redis: impl Into<Redis>,
    setting: impl Fn(&str, &str) -> String,
) -> Result<(Router, Guard), Box<dyn Error>> {
    let timeout = Duration::from_millis(setting("REDIS_TIMEOUT_MS", "100").parse()?);
    let fail: Fail = setting("FAIL", "open").parse()?;
    let proxies: usize = setting("PROXIES", "0").parse()?;

    let everybody = Policy::new("everybody", setting("EVERYBODY_LIMITS", "100000/m"))?;
    let everybody = everybody.key_text("all").lease(setting("EVERYBODY_LEASE", "0").parse()?);
    let free = Policy::new("free", setting("FREE_LIMITS", "5/10s,100/h"))?;
    let paid = Policy::new("paid", setting("PAID_LIMITS", "50/10s"))?;
    let search = Policy::new("search", setting("SEARCH_LIMITS", "2/10s"))?;
    let tokens = Policy::new("tokens", setting("TOKEN_LIMITS", "1000/h"))?.unit("tokens");

    let by_plan = Policies::by(move |head| {
        let plan = if account(head, proxies).starts_with("paid") { &paid } else { &free };
        if head.uri.path() == "/health" { vec![] } else { vec![everybody.clone(), plan.clone()] }
    });
    let guard = Guard::new(redis, by_plan)?.timeout(timeout).fail(fail);
    let guard = guard.key(move |head| Some(account(head, proxies)));
    let router = Router::new()
        .route("/health", get("well"))
        .route("/", get(Json(json!({"message": "hello"}))))
        .route("/search", get(Json(json!({"found": []}))).route_layer(guard.limit(search)?.layer()))
        .route("/generate", post(generate))
        .layer(guard.layer())
        .with_state(guard.limit(tokens)?);
    Ok((router, guard))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let setting = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    let client = redis::Client::open(setting("REDIS_URL", "redis://127.0.0.1:6379"))?;
    let (router, guard) = service(client, setting)?;
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{}", setting("PORT", "8000"))).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let mut terminated = signal(SignalKind::terminate())?;
    let stopped = async move { _ = terminated.recv().await };
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).with_graceful_shutdown(stopped).await?;
    guard.close().await; // leases go back
    Ok(())
}

#[cfg(test)]
mod tests;
