// actix-web: a text on one resource is one limit, whatever the method: of 40 made-up ones two pass, and then no usual one does.
//
// with: redis-rl-client --features actix; actix-web@4; redis@1; tokio@1 --features full
// ci
// expect: 2 of 40 made-up methods
// expect: 0 of 8 usual methods

#[path = "../lib/http.rs"]
mod http;

use actix_web::{App, HttpServer, web};
use redis_rl_client::web::Guard;

#[actix_web::main]
async fn main() {
    let guard = Guard::new(http::redis(), []).unwrap();
    let search = guard.limit("2/10m").unwrap();
    let service = move || {
        App::new().service(web::resource("/search").wrap(search.middleware()).to(|| async { "found" }))
    };
    let here = http::free();
    actix_web::rt::spawn(HttpServer::new(service).workers(2).bind(here).unwrap().run());
    let asked = std::thread::spawn(move || {
        let made_up: Vec<String> = (0..40).map(|number| format!("MADEUP{number}")).collect();
        let usual = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"].map(str::to_owned);
        let passed = |methods: &[String]| {
            methods.iter().filter(|method| http::status(here, method, "/search", "") == "200").count()
        };
        println!("{} of 40 made-up methods", passed(&made_up));
        println!("{} of 8 usual methods", passed(&usual));
    });
    while !asked.is_finished() {
        actix_web::rt::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
