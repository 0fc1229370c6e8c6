// actix-web: a handler that extracts a Decision limits each account by itself, as a key function says.
//
// with: redis-rl-client --features actix; actix-web@4; redis@1; tokio@1 --features full; http@1
// expect: 200 200 429 200 200

#[path = "../lib/http.rs"]
mod requests;

use actix_web::{App, HttpServer, web};
use http::request::Parts;
use redis_rl_client::web::{Decision, Guard, Policy, Refusal};

fn account(head: &Parts) -> Option<String> {
    Some(head.headers.get("account")?.to_str().ok()?.to_owned())
}

async fn take(tokens: web::Data<Guard>, request: Decision) -> Result<&'static str, Refusal> {
    tokens.take(&request, 1).await.map(|_| "taken")
}

#[actix_web::main]
async fn main() {
    let everybody = Guard::new(requests::redis(), "100/m").unwrap();
    let tokens = everybody.limit(Policy::new("tokens", "2/m").unwrap().key(account)).unwrap();
    let service = move || {
        let app = App::new().app_data(web::Data::new(tokens.clone())).route("/", web::get().to(take));
        app.wrap(everybody.middleware())
    };
    let here = requests::free();
    actix_web::rt::spawn(HttpServer::new(service).workers(2).bind(here).unwrap().run());
    let accounts = ["a", "a", "a", "b", "c"].map(|account| format!("account: {account}\r\n"));
    let asked = web::block(move || requests::statuses(here, "/", accounts.iter().map(String::as_str)));
    println!("{}", asked.await.unwrap());
}
