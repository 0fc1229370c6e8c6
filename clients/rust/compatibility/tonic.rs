// tonic: the third call of two is refused with RESOURCE_EXHAUSTED, by the address of the peer.
//
// with: redis-rl-client --features tower; tonic@0.14; tonic-health@0.14; axum@0.8; redis@1; tokio@1 --features full; tower@0.5 --features util; http@1
// expect: Ok Ok ResourceExhausted
// expect: calls:127.0.0.1

#[path = "../lib/http.rs"]
mod requests;

use http::request::Parts;
use redis_rl_client::web::{Guard, Policy};
use tonic::transport::{Server, server::TcpConnectInfo};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::ServiceBuilder;

fn peer(head: &Parts) -> Option<String> {
    Some(head.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip().to_string())
}

#[tokio::main]
async fn main() {
    let guard = Guard::new(requests::redis(), Policy::new("calls", "2/m").unwrap()).unwrap().key(peer);
    let (_, health) = tonic_health::server::health_reporter();
    let limits = ServiceBuilder::new()
        .layer(guard.layer())
        .map_response(|response: http::Response<tonic::body::Body>| response.map(axum::body::Body::new));
    let here = requests::free();
    tokio::spawn(Server::builder().layer(limits).add_service(health).serve(here));
    let channel = tonic::transport::Endpoint::new(format!("http://{here}")).unwrap();
    let channel = loop {
        match channel.connect().await {
            Ok(channel) => break channel,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
        }
    };
    let mut client = HealthClient::new(channel);
    let mut codes = Vec::new();
    for _ in 0..3 {
        let answer = client.check(HealthCheckRequest { service: String::new() }).await;
        codes.push(answer.map_or_else(|status| format!("{:?}", status.code()), |_| "Ok".to_owned()));
    }
    println!("{}", codes.join(" "));
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut requests::redis().get_connection().unwrap()).unwrap();
    println!("{}", keys.join(" "));
}
