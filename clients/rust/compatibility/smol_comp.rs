// On smol, by redis-rs's smol-comp: the commands on an asynchronous connection.
//
// with: redis-rl-client --features smol-comp; redis@1; smol@2
// expect: true true false

#[path = "../lib/http.rs"]
mod http;

use redis_rl_client::{Quota, RlAsyncCommands};

fn main() {
    smol::block_on(async {
        let mut redis = http::redis().get_multiplexed_async_connection().await.unwrap();
        let mut passed = Vec::new();
        for _ in 0..3 {
            passed.push((!redis.rl_log("key", Quota::per_minute(2), 1).await.unwrap().limited).to_string());
        }
        println!("{}", passed.join(" "));
    });
}
