// salvo, by its tower-compat: the third request of two is refused.
//
// with: redis-rl-client --features tower; salvo@0.85 --features tower-compat; redis@1; tokio@1 --features full
// expect: 200 200 429

#[path = "../lib/http.rs"]
mod http;

use redis_rl_client::web::{Guard, Policy};
use salvo::prelude::*;

#[handler]
async fn hello() -> &'static str {
    "hello"
}

#[tokio::main]
async fn main() {
    let guard = Guard::new(http::redis(), Policy::new("all", "2/m").unwrap().key_text("all")).unwrap();
    let here = http::free();
    let router = Router::new().hoop(guard.layer().compat()).get(hello);
    let acceptor = TcpListener::new(here.to_string()).bind().await;
    tokio::spawn(Server::new(acceptor).serve(router));
    let asked = tokio::task::spawn_blocking(move || http::statuses(here, "/", ["", "", ""]));
    println!("{}", asked.await.unwrap());
}
