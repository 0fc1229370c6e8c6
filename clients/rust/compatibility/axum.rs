// axum: a guard refuses the third request of two.
//
// with: redis-rl-client --features axum; axum@=0.8.0; redis@=1.1.0; tokio@=1.49.0 --features full; ureq@2
// with: redis-rl-client --features axum; axum@0.8; redis@1; tokio@1 --features full; ureq@2
// expect: 200 200 429

use axum::{Router, routing::get};
use redis_rl_client::web::Guard;

#[tokio::main]
async fn main() {
    let client = redis::Client::open(std::env::var("REDIS_URL").unwrap()).unwrap();
    let guard = Guard::new(client, "2/m").unwrap();
    let app = Router::new().route("/", get(|| async { "found" })).layer(guard.layer());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, app).await });
    let status = move || match ureq::get(&url).call() {
        Ok(answer) => answer.status(),
        Err(error) => error.into_response().map_or(0, |answer| answer.status()),
    };
    let statuses = (0..3).map(|_| status().to_string()).collect::<Vec<_>>();
    println!("{}", statuses.join(" "));
}
