//! Decisions a second, asked for one by one, and by leases and remembered refusals: on one key, and on many quiet ones.
//!
//!     cargo bench --features tower --bench leases
//!
//! Both run in turn for a short time, and that many times over, so that whatever else the machine does falls on both.

#[path = "../tests/server/mod.rs"]
mod server;

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis_rl_client::{Algorithm, Leases, Quota, RlAsyncCommands};
use server::Server;

const ROUNDS: usize = 20;
const ROUND: Duration = Duration::from_millis(200);
/// Requests under way at once.
const AT_ONCE: usize = 50;
/// Decisions between two looks at the clock.
const BATCH: u64 = 16;
/// The largest lease.
const UNITS: u64 = 1_000;

#[derive(Clone)]
enum Contestant {
    Direct(MultiplexedConnection),
    Leases(Box<Leases>),
}

impl Contestant {
    async fn decide(&mut self, key: &str, quota: Quota) {
        match self {
            Contestant::Direct(redis) => redis.rl_log(key, quota, 1).await,
            Contestant::Leases(leases) => leases.take(key, 1).await,
        }
        .expect("a verdict");
    }
}

#[derive(Default)]
struct Score {
    decisions: u64,
    spent: Duration,
    commands: u64,
    server_cpu: Duration,
}

/// What is asked for.
#[derive(Clone, Copy)]
struct Traffic {
    name: &'static str,
    quota: Quota,
    keys: u64,
}

const TRAFFIC: [Traffic; 3] = [
    Traffic { name: "a hot key", quota: Quota::per_minute(1_000_000_000), keys: 1 },
    Traffic { name: "a flood of refusals", quota: Quota::per_hour(1), keys: 1 },
    // In which nothing can be leased or remembered: what it costs to try.
    Traffic { name: "quiet keys", quota: Quota::per_minute(1_000_000_000), keys: 1_000_000 },
];

async fn round(server: &Server, contestant: &Contestant, traffic: Traffic, seed: u64, score: &mut Score) {
    let (commands, cpu) = (server.calls("RL.LOG"), server.cpu());
    let started = Instant::now();
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|task| {
            let mut contestant = contestant.clone();
            let mut random = seed * 1_000 + task as u64;
            tokio::spawn(async move {
                let mut decisions = 0;
                while started.elapsed() < ROUND {
                    for _ in 0..BATCH {
                        if traffic.keys == 1 {
                            contestant.decide(traffic.name, traffic.quota).await;
                            continue;
                        }
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let key = format!("{}:{}", traffic.name, (random >> 33) % traffic.keys);
                        contestant.decide(&key, traffic.quota).await;
                    }
                    decisions += BATCH;
                }
                decisions
            })
        })
        .collect();
    for task in tasks {
        score.decisions += task.await.expect("no panic");
    }
    score.spent += started.elapsed();
    score.commands += server.calls("RL.LOG") - commands;
    score.server_cpu += server.cpu() - cpu;
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = Server::start();
    let redis = server.connect_async("resp2").await;
    println!(
        "| {AT_ONCE} at once | decisions a second | commands for 100 decisions | server's time for a decision |"
    );
    println!("| --- | ---: | ---: | ---: |");
    for traffic in TRAFFIC {
        let leases = Leases::new(server.redis(), Algorithm::Log, traffic.quota).units(UNITS);
        let contestants = [
            ("`rl_log`", Contestant::Direct(redis.clone())),
            ("`Leases`", Contestant::Leases(Box::new(leases.clone()))),
        ];
        let mut scores = [Score::default(), Score::default()];
        for turn in 0..ROUNDS as u64 {
            for ((_, contestant), score) in contestants.iter().zip(&mut scores) {
                round(&server, contestant, traffic, turn, score).await;
            }
        }
        leases.close().await;
        for ((name, _), score) in contestants.iter().zip(&scores) {
            let decisions = score.decisions as f64;
            println!(
                "| {}, {name} | {:.0} | {:.2} | {:.3} us |",
                traffic.name,
                decisions / score.spent.as_secs_f64(),
                score.commands as f64 / decisions * 100.0,
                score.server_cpu.as_secs_f64() / decisions * 1e6,
            );
        }
    }
}
