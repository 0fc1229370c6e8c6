// axum 0.7, by the feature tower: the log says which line is missing, and with it each client has a limit of its own.
//
// with: redis-rl-client --features tower; axum@0.7; redis@1; tokio@1 --features full; tracing-subscriber@0.3
// ci
// expect: 200 200 429
// expect: the log names a SocketAddr among the extensions
// expect: {127.0.0.1}

#[path = "../lib/http.rs"]
mod http;

use axum::{Router, extract::ConnectInfo, extract::Request, middleware::map_request, routing::get};
use redis_rl_client::web::Guard;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

async fn peer(ConnectInfo(peer): ConnectInfo<SocketAddr>, mut request: Request) -> Request {
    request.extensions_mut().insert(peer);
    request
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn serve(app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, app).await });
    here
}

#[tokio::main]
async fn main() {
    let log = Log::default();
    let written = log.clone();
    tracing_subscriber::fmt().with_writer(move || written.clone()).with_ansi(false).init();
    let guard = Guard::new(http::redis(), "2/m").unwrap();
    let without = serve(Router::new().route("/", get(|| async { "found" })).layer(guard.layer())).await;
    println!("{}", http::statuses(without, "/", ["", "", ""]));
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    println!("{}", if log.contains("add a SocketAddr to the request's extensions by a layer in front of the guard's") {
        "the log names a SocketAddr among the extensions"
    } else {
        &log
    });
    let app = Router::new().route("/", get(|| async { "found" }));
    let with = serve(app.layer(guard.layer()).layer(map_request(peer))).await;
    http::status(with, "GET", "/", "");
    let keys: Vec<String> = redis::cmd("KEYS").arg("*127*").query(&mut http::redis().get_connection().unwrap()).unwrap();
    println!("{}", keys.join(" ").replace("requests:", ""));
}
