//! Decisions a second on one key: asked for one by one, and by leases and remembered refusals.
//!
//!     cargo bench --features leases --bench leases
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
    Leases(Leases<MultiplexedConnection>),
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

async fn round(server: &Server, contestant: &Contestant, key: &'static str, quota: Quota, score: &mut Score) {
    let (commands, cpu) = (commands(server), cpu(server));
    let started = Instant::now();
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let mut contestant = contestant.clone();
            tokio::spawn(async move {
                let mut decisions = 0;
                while started.elapsed() < ROUND {
                    for _ in 0..BATCH {
                        contestant.decide(key, quota).await;
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
    score.commands += self::commands(server) - commands;
    score.server_cpu += self::cpu(server) - cpu;
}

/// Commands of this module that the server has run.
fn commands(server: &Server) -> u64 {
    let info: String = server.call("INFO commandstats");
    let calls = info.lines().filter_map(|line| line.strip_prefix("cmdstat_RL.LOG:calls=")?.split(',').next());
    calls.map(|calls| calls.parse::<u64>().expect("a number")).sum()
}

/// The processor time that the server has used.
fn cpu(server: &Server) -> Duration {
    let info: String = server.call("INFO cpu");
    let seconds = |name: &str| -> f64 {
        let value = info.lines().find_map(|line| line.strip_prefix(name)).expect("a time");
        value.parse().expect("a number")
    };
    Duration::from_secs_f64(seconds("used_cpu_sys:") + seconds("used_cpu_user:"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = Server::start();
    let redis = server.connect_async("resp2").await;
    println!(
        "| {AT_ONCE} at once | decisions a second | commands for 100 decisions | server's time for a decision |"
    );
    println!("| --- | ---: | ---: | ---: |");
    let keys = [("a hot key", Quota::per_minute(1_000_000_000)), ("a flood of refusals", Quota::per_hour(1))];
    for (key, quota) in keys {
        let leases = Leases::new(redis.clone(), Algorithm::Log, quota).units(UNITS);
        let contestants = [
            ("`rl_log`", Contestant::Direct(redis.clone())),
            ("`Leases`", Contestant::Leases(leases.clone())),
        ];
        let mut scores = [Score::default(), Score::default()];
        for _ in 0..ROUNDS {
            for ((_, contestant), score) in contestants.iter().zip(&mut scores) {
                round(&server, contestant, key, quota, score).await;
            }
        }
        leases.close().await;
        for ((name, _), score) in contestants.iter().zip(&scores) {
            let decisions = score.decisions as f64;
            println!(
                "| {key}, {name} | {:.0} | {:.2} | {:.3} us |",
                decisions / score.spent.as_secs_f64(),
                score.commands as f64 / decisions * 100.0,
                score.server_cpu.as_secs_f64() / decisions * 1e6,
            );
        }
    }
}
