// axum: a text on one route is one limit, whatever the method: of 40 made-up ones two pass, and then no usual one does.
//
// with: redis-rl-client --features axum; axum@0.8; redis@1; tokio@1 --features full
// expect: 2 of 40 made-up methods
// expect: 0 of 8 usual methods

#[path = "../lib/http.rs"]
mod http;

use axum::{Router, routing::any};
use redis_rl_client::web::Guard;
use std::net::SocketAddr;

#[tokio::main]
async fn main() {
    let guard = Guard::new(http::redis(), []).unwrap();
    let search = any(|| async { "found" }).layer(guard.limit("2/10m").unwrap().layer());
    let app = Router::new().route("/search", search).into_make_service_with_connect_info::<SocketAddr>();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    let made_up: Vec<String> = (0..40).map(|number| format!("MADEUP{number}")).collect();
    let usual = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"].map(str::to_owned);
    let passed = |methods: &[String]| {
        methods.iter().filter(|method| http::status(here, method, "/search", "") == "200").count()
    };
    println!("{} of 40 made-up methods", passed(&made_up));
    println!("{} of 8 usual methods", passed(&usual));
}
