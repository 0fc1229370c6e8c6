// AWS Lambda by lambda_http: a guard is a layer of its service, with the caller's address from the request's context.
//
// with: redis-rl-client --features tower; lambda_http@1; redis@1; tokio@1 --features full; tower@0.5 --features util; http@1
// expect: 200 200 429

#[path = "../lib/http.rs"]
mod requests;

use http::request::Parts;
use lambda_http::{Body, Request, RequestExt, Response};
use redis_rl_client::web::{Guard, Policy};
use tower::{ServiceBuilder, ServiceExt, service_fn};

fn caller(head: &Parts) -> Option<String> {
    Some(head.extensions.get::<lambda_http::request::RequestContext>().map_or("here", |_| "caller").to_owned())
}

#[tokio::main]
async fn main() {
    let guard = Guard::new(requests::redis(), Policy::new("calls", "2/m").unwrap()).unwrap().key(caller);
    let hello = service_fn(|request: Request| async move {
        Ok::<_, lambda_http::Error>(Response::new(Body::from(request.raw_http_path().to_owned())))
    });
    // As `lambda_http::run` calls it.
    let service = ServiceBuilder::new().layer(guard.layer()).service(hello);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let answer = service.clone().oneshot(Request::new(Body::Empty)).await.unwrap();
        statuses.push(answer.status().as_u16().to_string());
    }
    println!("{}", statuses.join(" "));
}
