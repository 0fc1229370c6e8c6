// actix-web: the program of the README refuses the third search of two, and the fifth request of four.
//
// with: redis-rl-client --features actix; actix-web@=4.9.0; redis@=1.1.0; tokio@1 --features full
// with: redis-rl-client --features actix; actix-web@4; redis@1; tokio@1 --features full
// expect: 200 200 429 200 200 429

#[path = "../lib/http.rs"]
mod http;

use actix_web::{App, HttpServer, web};
use redis_rl_client::web::Guard;

#[actix_web::main]
async fn main() {
    let guard = Guard::new(http::redis(), "4/m").unwrap();
    let search = guard.limit("2/10s").unwrap();
    let service = move || {
        let found = web::resource("/search").wrap(search.middleware()).to(|| async { "found" });
        App::new().wrap(guard.middleware()).service(found).route("/", web::get().to(|| async { "hello" }))
    };
    let here = http::free();
    actix_web::rt::spawn(HttpServer::new(service).bind(here).unwrap().run());
    let asked = web::block(move || {
        let paths = ["/search", "/search", "/search", "/", "/", "/"];
        paths.map(|path| http::status(here, "GET", path, "")).join(" ")
    });
    println!("{}", asked.await.unwrap());
}
