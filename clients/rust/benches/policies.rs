//! Decisions a second on requests by two policies, one for everybody and one for each customer, and what they cost each server:
//! with the first one leased and not, on one server and on a cluster.
//!
//!     cargo bench --features tower --bench policies

#[path = "../tests/server/mod.rs"]
mod server;

use std::time::{Duration, Instant};

use http::Request;
use redis_rl_client::Redis;
use redis_rl_client::web::{Guard, Policy};
use server::{Cluster, PATIENCE, Server};
use tokio::task::JoinSet;

const ROUNDS: usize = 3;
const DECISIONS: usize = 100_000;
const CUSTOMERS: usize = 100_000;
/// Requests under way at once.
const AT_ONCE: usize = 50;
/// Units of a lease; without one there are none.
const LEASES: [(&str, u64); 2] = [("no lease", 0), ("a lease of 1,000", 1_000)];

/// How long the decisions took.
async fn decide(redis: Redis, units: u64) -> Duration {
    let everybody = Policy::new("everybody", "100000000/m").expect("a policy").key_text("all").lease(units);
    let plan = Policy::new("plan", "10/s").expect("a policy").key(|head| Some(head.uri.path().to_owned()));
    let guard = Guard::new(redis.timeout(PATIENCE), [everybody, plan]).expect("policies");
    let started = Instant::now();
    let tasks = (0..AT_ONCE).map(|task| {
        let guard = guard.clone();
        async move {
            for round in 0..DECISIONS / AT_ONCE {
                // Each customer once.
                let customer = (round * AT_ONCE + task) % CUSTOMERS;
                let (head, ()) =
                    Request::get(format!("/{customer}")).body(()).expect("a request").into_parts();
                let admission = guard.take(&head, ()).await.expect("within the limits");
                assert!(!admission.policies().is_empty(), "the server is away");
            }
        }
    });
    tasks.collect::<JoinSet<_>>().join_all().await;
    let spent = started.elapsed();
    guard.close().await;
    spent
}

/// The cells of a row: decisions a second, and each server's processor time for one, the busiest first.
async fn row(redis: Redis, servers: &[Server], units: u64) -> String {
    let before: Vec<Duration> = servers.iter().map(Server::cpu).collect();
    let spent = decide(redis, units).await;
    let mut cpus: Vec<Duration> =
        servers.iter().zip(before).map(|(server, before)| server.cpu() - before).collect();
    cpus.sort_unstable_by(|a, b| b.cmp(a));
    let each: Vec<String> =
        cpus.iter().map(|cpu| format!("{:.1}", cpu.as_secs_f64() * 1e6 / DECISIONS as f64)).collect();
    format!("{:.0} | {}", DECISIONS as f64 / spent.as_secs_f64(), each.join(", "))
}

#[tokio::main]
async fn main() {
    println!("| {AT_ONCE} at once | decisions a second | each server's CPU, us a decision |");
    println!("| --- | ---: | ---: |");
    for _ in 0..ROUNDS {
        for (name, units) in LEASES {
            let servers = [Server::start()];
            let redis = servers[0].redis();
            println!("| one server, {name} | {} |", row(redis, &servers, units).await);
            let cluster = Cluster::start();
            let redis = cluster.redis();
            println!("| three nodes, {name} | {} |", row(redis, &cluster.nodes, units).await);
        }
    }
}
