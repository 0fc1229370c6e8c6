// axum under Sentry: its layers see the refusal, and a transaction for each request.
//
// with: redis-rl-client --features axum; axum@0.8; redis@1; tokio@1 --features full; sentry@0.49 --no-default-features --features test,tower,tower-http,tower-axum-matched-path; tower@0.5
// expect: 200 200 429
// expect: 3 transactions

#[path = "../lib/http.rs"]
mod http;

use axum::{Router, body::Body, extract::Request, routing::get};
use redis_rl_client::web::Guard;
use sentry::integrations::tower::{NewSentryLayer, SentryHttpLayer};
use std::net::SocketAddr;

#[tokio::main]
async fn main() {
    let transport = sentry::test::TestTransport::new();
    let options = sentry::ClientOptions::new().dsn("https://public@sentry.invalid/1");
    let options = options.transport(transport.clone()).traces_sample_rate(1.0);
    let sentry = sentry::init(options);
    let guard = Guard::new(http::redis(), "2/m").unwrap();
    let app = Router::new()
        .route("/", get(|| async { "found" }))
        .layer(guard.layer())
        .layer(SentryHttpLayer::new().enable_transaction())
        .layer(NewSentryLayer::<Request<Body>>::new_from_top());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, app).await });
    let asked = tokio::task::spawn_blocking(move || http::statuses(here, "/", ["", "", ""]));
    println!("{}", asked.await.unwrap());
    sentry.flush(None);
    println!("{} transactions", transport.fetch_and_clear_envelopes().len());
}
