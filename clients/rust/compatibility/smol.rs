// On smol, and on no runtime at all, a guard decides, looks, settles and closes: its connections need none of the application's.
//
// with: redis-rl-client --features tower; redis@1; smol@2; pollster@0.4
// expect: true true false
// expect: 2 of 2 left
// expect: true true false

#[path = "../lib/http.rs"]
mod http;

use redis_rl_client::web::Guard;
use std::time::Duration;

async fn limited(client: &str) -> String {
    let guard = Guard::new(http::redis(), "2/m").unwrap().timeout(Duration::from_secs(2));
    let mut passed = Vec::new();
    for _ in 0..3 {
        passed.push(guard.take(client, 1).await.is_ok().to_string());
    }
    guard.close().await;
    passed.join(" ")
}

fn main() {
    println!("{}", smol::block_on(limited("smol")));
    smol::block_on(async {
        let guard = Guard::new(http::redis(), "2/m").unwrap().timeout(Duration::from_secs(2));
        let taken = guard.take("settled", 2).await.unwrap();
        guard.settle(&taken, 0).await.unwrap();
        let policies = guard.peek("settled").await.unwrap().policies();
        println!("{} of {} left", policies["requests"].remaining, policies["requests"].limit);
    });
    println!("{}", pollster::block_on(limited("none")));
}
