//! A web API that limits its clients with redis-rl, in axum: what ../../README.md tells of.

use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::get, routing::post};
use redis_rl_client::Reconnecting;
use redis_rl_client::web::{Fail, Limiter, Policies, Policy, RateLimitLayer, client_address};
use serde_json::json;
use std::{env, error::Error, net::SocketAddr, time::Duration};

type Tokens = State<(Limiter<Reconnecting>, usize)>;
async fn generate(
    State((tokens, proxies)): Tokens,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    text: String,
) -> Result<Response, Response> {
    if text.is_empty() {
        return Err((StatusCode::BAD_REQUEST, "the body is the prompt").into_response());
    }
    let words = text.split_whitespace().count() as i64;
    // A reply usually has 16 tokens.
    let reserved = tokens.take(client_address(peer.ip(), &headers, proxies), words + 16).await?;
    // A task of its own, so that it settles even if the client goes away meanwhile. The model is a stand-in.
    let task = tokio::spawn(async move {
        let settled = tokens.settle(reserved, 3 * words).await;
        if words == 0 {
            return (StatusCode::INTERNAL_SERVER_ERROR, "the model failed").into_response();
        }
        let reply = text.split_whitespace().chain(text.split_whitespace()).collect::<Vec<_>>().join(" ");
        (settled.fields().clone(), Json(json!({"reply": reply, "tokens": 3 * words}))).into_response()
    });
    task.await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let setting = |name, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    let timeout = Duration::from_millis(setting("REDIS_TIMEOUT_MS", "100").parse()?);
    let fail: Fail = setting("FAIL", "open").parse().map_err(|_| "FAIL is open or closed")?;
    let client = redis::Client::open(setting("REDIS_URL", "redis://127.0.0.1:6379"))?;
    let redis = Reconnecting::new(client).timeout(timeout);
    let proxies: usize = setting("PROXIES", "0").parse()?;
    let requests = Policy::new("requests", setting("RATE_LIMITS", "5/10s, 100/h"))?;
    let tokens = Policy::new("tokens", setting("TOKEN_LIMITS", "1000/h"))?.unit("tokens");
    let limiter = |policies: Policies| {
        Limiter::new(redis.clone(), policies).proxies(proxies).timeout(timeout).fail(fail)
    };
    let limit = |cost| RateLimitLayer::new(limiter(requests.clone().cost(cost).into()));
    let router = Router::new()
        .route("/", get(Json(json!({"message": "hello"}))).route_layer(limit(1)))
        .route("/expensive", get(Json(json!({"message": "that took a while"}))).route_layer(limit(3)))
        .route("/generate", post(generate))
        .with_state((limiter(tokens.into()), proxies));
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{}", setting("PORT", "8000"))).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await?)
}
