// actix-web: while a handler computes for two seconds on one worker, the guarded requests of the others are decided.
//
// with: redis-rl-client --features actix; actix-web@4; redis@1; tokio@1 --features full
// ci
// expect: 100 of 1000 passed
// expect: none waited for half a second

#[path = "../lib/http.rs"]
mod http;

use actix_web::{App, HttpServer, web};
use redis_rl_client::web::{Guard, Policy};
use std::time::{Duration, Instant};

#[actix_web::main]
async fn main() {
    let guard = Guard::new(http::redis(), Policy::new("all", "100/h").unwrap().key_text("all")).unwrap();
    let busy = guard.limit(Policy::new("busy", "100/h").unwrap().key_text("all")).unwrap();
    let service = move || {
        let compute = || async {
            std::thread::sleep(Duration::from_secs(2));
            "computed"
        };
        App::new()
            .service(web::resource("/busy").wrap(busy.middleware()).to(compute))
            .service(web::resource("/").wrap(guard.middleware()).to(|| async { "found" }))
    };
    let here = http::free();
    actix_web::rt::spawn(HttpServer::new(service).workers(4).bind(here).unwrap().run());
    web::block(move || {
        // The first worker to be asked is the one that is busy later.
        http::status(here, "GET", "/busy", "");
        let computing = std::thread::spawn(move || http::status(here, "GET", "/busy", ""));
        std::thread::sleep(Duration::from_millis(100));
        let asking = (0..1000).map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            std::thread::spawn(move || {
                let asked = Instant::now();
                (http::status(here, "GET", "/", ""), asked.elapsed())
            })
        });
        let answers: Vec<_> = asking.collect::<Vec<_>>().into_iter().map(|asked| asked.join().unwrap()).collect();
        computing.join().unwrap();
        let passed = answers.iter().filter(|(status, _)| status == "200").count();
        // Those that the busy worker itself has accepted wait for it: a quarter.
        let mut waits: Vec<Duration> = answers.iter().map(|(_, wait)| *wait).collect();
        waits.sort();
        println!("{passed} of 1000 passed");
        let half = waits[waits.len() / 2] < Duration::from_millis(500);
        println!("{}", if half { "none waited for half a second" } else { "half of them waited" });
    })
    .await
    .unwrap();
}
