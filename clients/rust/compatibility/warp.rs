// warp, as a service of tower: the third request of two is refused.
//
// with: redis-rl-client --features tower; warp@0.4 --features server; hyper@1; hyper-util@0.1 --features full; redis@1; tokio@1 --features full; tower@0.5 --features util
// expect: 200 200 429

#[path = "../lib/http.rs"]
mod http;

use redis_rl_client::web::{Guard, Policy};
use tower::ServiceBuilder;
use warp::Filter;

#[tokio::main]
async fn main() {
    let guard = Guard::new(http::redis(), Policy::new("all", "2/m").unwrap().key_text("all")).unwrap();
    let service = ServiceBuilder::new().layer(guard.layer()).service(warp::service(warp::any().map(|| String::from("hello"))));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper_util::service::TowerToHyperService::new(service.clone());
            let stream = hyper_util::rt::TokioIo::new(stream);
            tokio::spawn(async { hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await });
        }
    });
    let asked = tokio::task::spawn_blocking(move || http::statuses(here, "/", ["", "", ""]));
    println!("{}", asked.await.unwrap());
}
