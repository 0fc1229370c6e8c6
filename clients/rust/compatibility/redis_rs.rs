// redis-rs: the commands go by a client, a connection, a multiplexed one, a manager, a pipeline and a `Redis` of the package.
//
// with: redis-rl-client --features leases; redis@=1.1.0 --features connection-manager; tokio@1 --features full
// with: redis-rl-client --features leases; redis@1 --features connection-manager,cluster-async,sentinel,script,r2d2; tokio@1 --features full
// expect: 6 of 7 passed

#[path = "../lib/http.rs"]
mod http;

use redis_rl_client::{Quota, Redis, RlAsyncCommands, RlCommands, Verdict, cmd};

#[tokio::main]
async fn main() {
    let (key, quota) = ("key", Quota::per_minute(6));
    let mut client = http::redis();
    let mut connection = client.get_connection().unwrap();
    let mut limited = vec![client.rl_log(key, quota, 1).unwrap(), connection.rl_log(key, quota, 1).unwrap()];
    let piped: (Verdict,) = redis::pipe().add_command(cmd::log(key, quota, 1)).query(&mut connection).unwrap();
    limited.push(piped.0);
    let mut multiplexed = client.get_multiplexed_async_connection().await.unwrap();
    limited.push(multiplexed.rl_log(key, quota, 1).await.unwrap());
    let mut manager = client.get_connection_manager().await.unwrap();
    limited.push(manager.rl_log(key, quota, 1).await.unwrap());
    let mut own = Redis::from(client);
    for _ in 0..2 {
        limited.push(own.rl_log(key, quota, 1).await.unwrap());
    }
    let passed = limited.iter().filter(|verdict| !verdict.limited).count();
    println!("{passed} of {} passed", limited.len());
}
