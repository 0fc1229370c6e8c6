// axum under TraceLayer and tracing-opentelemetry: each request has a span with its status, refusals too.
//
// with: redis-rl-client --features axum; axum@0.8; redis@1; tokio@1 --features full; tower-http@0.6 --features trace; tracing@0.1; tracing-subscriber@0.3; tracing-opentelemetry@0.34; opentelemetry@0.33; opentelemetry_sdk@0.33 --features testing
// expect: 200 200 429
// expect: 3 spans

#[path = "../lib/http.rs"]
mod http;

use axum::{Router, routing::get};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use redis_rl_client::web::Guard;
use std::net::SocketAddr;
use tracing_subscriber::prelude::*;

#[tokio::main]
async fn main() {
    let spans = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("service"));
    tracing_subscriber::registry().with(layer).init();
    let guard = Guard::new(http::redis(), "2/m").unwrap();
    let trace = tower_http::trace::TraceLayer::new_for_http()
        .make_span_with(tower_http::trace::DefaultMakeSpan::new().level(tracing::Level::INFO));
    let app = Router::new().route("/", get(|| async { "found" })).layer(guard.layer()).layer(trace);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, app).await });
    let asked = tokio::task::spawn_blocking(move || http::statuses(here, "/", ["", "", ""]));
    println!("{}", asked.await.unwrap());
    provider.force_flush().unwrap();
    println!("{} spans", spans.get_finished_spans().unwrap().iter().filter(|span| span.name == "request").count());
}
