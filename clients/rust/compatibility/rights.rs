// A user without a right to the key: on_outage is told with the error, once, and that it is over.
//
// with: redis-rl-client --features axum; redis@1; tokio@1 --features full
// ci
// expect: begun NOPERM
// expect: true true true
// expect: ended NOPERM

use redis_rl_client::web::{Guard, Outage};
use std::time::Duration;

#[tokio::main]
async fn main() {
    let url = std::env::var("REDIS_URL").unwrap();
    let mut admin = redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
    let rights = |admin: &mut redis::Connection, keys: &str| {
        let words = ["SETUSER", "app", "on", ">secret", "resetkeys", keys, "+@all"];
        redis::cmd("ACL").arg(&words).exec(admin).unwrap()
    };
    rights(&mut admin, "~other:*");
    let client = redis::Client::open(url.replace("redis://", "redis://app:secret@")).unwrap();
    let guard = Guard::new(client, "2/h").unwrap().on_outage(|outage| match outage {
        Outage::Begun(why) => println!("begun {}", why.code().unwrap_or_default()),
        Outage::Ended(why) => println!("ended {}", why.code().unwrap_or_default()),
    });
    let mut passed = Vec::new();
    for _ in 0..3 {
        passed.push(guard.take("ada", 1).await.is_ok().to_string());
    }
    println!("{}", passed.join(" "));
    rights(&mut admin, "~*");
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let _ = guard.take("ada", 0).await;
    }
}
