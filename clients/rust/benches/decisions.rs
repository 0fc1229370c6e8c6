//! Decisions a second of one process on one connection, beside what redis-rs users write without the module.
//!
//!     cargo bench --features tower --bench decisions
//!
//! Every contestant runs in turn for a short time, and that many times over, so that whatever else the machine does
//! falls on all of them.

#[path = "../tests/server/mod.rs"]
mod server;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Script, pipe};
use redis_rl_client::{Algorithm, All, Quota, RlAsyncCommands};
use server::Server;

/// Clients that make requests.
const CLIENTS: u64 = 10_000;
const QUOTAS: [Quota; 3] = [Quota::per_second(10), Quota::per_minute(100), Quota::per_hour(1_000)];

const ROUNDS: usize = 60;
const ROUND: Duration = Duration::from_millis(50);
/// Requests under way at once.
const AT_ONCE: [usize; 2] = [1, 50];

/// The time of every request in a sorted set: as exact as RL.LOG.
const LOG: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - ARGV[2] * 1000)
    if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return false end
    redis.call('ZADD', KEYS[1], now, now)
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return true";

#[derive(Clone, Copy, Debug)]
enum Contestant {
    RlFixed,
    RlLog,
    RlAll,
    Incr,
    LogScript,
}

impl Contestant {
    const EVERY: [(Contestant, &str); 5] = [
        (Contestant::RlFixed, "`rl_fixed`"),
        (Contestant::RlLog, "`rl_log`"),
        (Contestant::RlAll, "`rl_all` of fixed windows, a row for each quota"),
        (Contestant::Incr, "`INCR` and `PEXPIRE`, a pipeline for each quota"),
        (Contestant::LogScript, "log in Lua, a call for each quota"),
    ];

    /// Whether a request is allowed.
    async fn decide(
        self,
        redis: &mut MultiplexedConnection,
        log: &Script,
        client: u64,
        quotas: &[Quota],
    ) -> RedisResult<bool> {
        match self {
            Contestant::RlFixed => Ok(!redis.rl_fixed(format!("fixed:{client}"), quotas, 1).await?.limited),
            Contestant::RlLog => Ok(!redis.rl_log(format!("log:{client}"), quotas, 1).await?.limited),
            Contestant::RlAll => {
                let request = All::new().key(format!("all:{client}"), Algorithm::Fixed, quotas, 1);
                Ok(!redis.rl_all(&request).await?.limited)
            }
            Contestant::Incr => {
                let mut allowed = true;
                for quota in quotas {
                    let key = window_key("incr", client, quota);
                    let mut pipeline = pipe();
                    pipeline.incr(&key, 1).pexpire(&key, ms(quota)).ignore();
                    let (count,): (u64,) = pipeline.query_async(redis).await?;
                    allowed &= count <= quota.limit;
                }
                Ok(allowed)
            }
            Contestant::LogScript => {
                let mut allowed = true;
                for quota in quotas {
                    let key = format!("set:{client}:{}", ms(quota));
                    let mut call = log.key(key);
                    allowed &= call.arg(quota.limit).arg(ms(quota)).invoke_async::<bool>(redis).await?;
                }
                Ok(allowed)
            }
        }
    }
}

fn window_key(prefix: &str, client: u64, quota: &Quota) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    format!("{prefix}:{client}:{}:{}", ms(quota), now.as_millis() / quota.window.as_millis())
}

fn ms(quota: &Quota) -> i64 {
    quota.window.as_millis() as i64
}

/// What one contestant did with so many quotas and requests at once.
#[derive(Clone, Default)]
struct Score {
    spent: Duration,
    latencies: Vec<Duration>,
}

impl Score {
    /// Decisions a second, and the 99th percentile of their latencies.
    fn figures(&mut self) -> String {
        self.latencies.sort_unstable();
        let p99 = self.latencies[self.latencies.len() * 99 / 100];
        let rate = self.latencies.len() as f64 / self.spent.as_secs_f64();
        format!("{:.0} / {:.2} ms", rate, p99.as_secs_f64() * 1e3)
    }
}

async fn round(
    contestant: Contestant,
    redis: &MultiplexedConnection,
    quotas: &'static [Quota],
    at_once: usize,
    seed: u64,
) -> Score {
    let started = Instant::now();
    let tasks: Vec<_> = (0..at_once)
        .map(|task| {
            let mut redis = redis.clone();
            let log = Script::new(LOG);
            let mut random = seed * 1_000 + task as u64;
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while started.elapsed() < ROUND {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let client = (random >> 33) % CLIENTS;
                    let asked = Instant::now();
                    let decided = contestant.decide(&mut redis, &log, client, quotas).await;
                    latencies.push(asked.elapsed());
                    decided.expect("a decision");
                }
                latencies
            })
        })
        .collect();
    let mut score = Score::default();
    for task in tasks {
        score.latencies.extend(task.await.expect("no panic"));
    }
    score.spent = started.elapsed();
    score
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = Server::start();
    let redis = server.connect_async("resp2").await;
    let columns: Vec<(&'static [Quota], usize)> = [&QUOTAS[..1], &QUOTAS[..]]
        .into_iter()
        .flat_map(|quotas| AT_ONCE.map(|at_once| (quotas, at_once)))
        .collect();
    let mut scores = vec![vec![Score::default(); columns.len()]; Contestant::EVERY.len()];
    // The first round is not counted: it makes keys and loads scripts.
    for turn in 0..=ROUNDS {
        for (column, (quotas, at_once)) in columns.iter().enumerate() {
            for (row, (contestant, _)) in Contestant::EVERY.into_iter().enumerate() {
                let score = round(contestant, &redis, quotas, *at_once, turn as u64).await;
                if turn > 0 {
                    scores[row][column].spent += score.spent;
                    scores[row][column].latencies.extend(score.latencies);
                }
            }
        }
    }

    let info: String = server.call("INFO server");
    let version = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let valkey = version("valkey_version:").map(|version| format!("Valkey {version}"));
    let name = valkey.or_else(|| version("redis_version:").map(|version| format!("Redis {version}")));
    println!("{}, {} clients:\n", name.unwrap_or_default(), CLIENTS);
    let heads = columns.iter().map(|(quotas, at_once)| {
        let quotas =
            if quotas.len() == 1 { "1 quota".to_owned() } else { format!("{} quotas", quotas.len()) };
        format!("{quotas}, {at_once} at once")
    });
    println!("| decisions a second / 99th percentile | {} |", heads.collect::<Vec<_>>().join(" | "));
    println!("| --- |{}", " ---: |".repeat(columns.len()));
    for ((_, name), scores) in Contestant::EVERY.iter().zip(&mut scores) {
        let figures: Vec<String> = scores.iter_mut().map(Score::figures).collect();
        println!("| {name} | {} |", figures.join(" | "));
    }
}
