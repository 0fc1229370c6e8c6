//! The processor time of a guard's decision, beside that of the same command by hand on a connection of redis-rs.
//!
//!     cargo bench --features tower --bench cost
//!
//! It fails if a ratio is a tenth more than recorded. Both run in turn for a short time, and that many times over; the least of
//! each counts, so that whatever else the machine does falls on neither.

#[path = "../tests/server/mod.rs"]
mod server;

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis_rl_client::web::{Guard, Policy};
use redis_rl_client::{Algorithm, All, Quota, RlAsyncCommands};
use server::Server;

const QUOTA: Quota = Quota::per_hour(1_000_000_000);
const ROUNDS: usize = 40;
const ROUND: Duration = Duration::from_millis(50);
/// Policies of a guard, requests at once, and the ratio.
const RECORDED: [(usize, usize, f64); 4] = [(1, 1, 1.2), (1, 50, 3.15), (2, 1, 1.18), (2, 50, 2.2)];

/// The processor time of this process in seconds.
#[expect(unsafe_code, reason = "the standard library has no such clock")]
fn spent() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock writes to a time of ours.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The processor time of a request, of which so many are under way at once.
async fn cost<D, F>(at_once: usize, decide: impl Fn(usize) -> D) -> f64
where
    D: Fn() -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let (began, before) = (Instant::now(), spent());
    let clients = (0..at_once).map(|client| {
        let decide = decide(client);
        tokio::spawn(async move {
            let mut decisions = 0;
            while began.elapsed() < ROUND {
                decide().await;
                decisions += 1;
            }
            decisions
        })
    });
    let mut decisions = 0;
    for client in clients.collect::<Vec<_>>() {
        decisions += client.await.expect("no panic");
    }
    (spent() - before) / f64::from(decisions)
}

async fn by_guard(guard: &Guard, at_once: usize) -> f64 {
    let decide = |client: usize| {
        let (guard, key) = (guard.clone(), format!("client-{client}"));
        move || {
            let (guard, key) = (guard.clone(), key.clone());
            async move { drop(guard.take(key, ()).await.expect("it passes")) }
        }
    };
    cost(at_once, decide).await
}

async fn by_hand(redis: &MultiplexedConnection, policies: usize, at_once: usize) -> f64 {
    let decide = |client: usize| {
        let redis = redis.clone();
        move || {
            let mut redis = redis.clone();
            async move {
                if policies == 1 {
                    let key = format!("hand:client-{client}");
                    redis.rl_fixed(key, QUOTA, 1).await.expect("a verdict");
                    return;
                }
                let row = |all: All, number| {
                    all.key(format!("hand-{number}:client-{client}"), Algorithm::Fixed, QUOTA, 1)
                };
                let all = (0..policies).fold(All::new(), row);
                drop(redis.rl_all(&all).await.expect("verdicts"));
            }
        }
    };
    cost(at_once, decide).await
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = Server::start();
    let redis = server.connect_async("resp3").await;
    let mut is_more = false;
    for (policies, at_once, recorded) in RECORDED {
        let policy = |number| Policy::new(format!("policy-{number}"), QUOTA).expect("a policy");
        let all: Vec<_> = (0..policies).map(|number| policy(number).algorithm(Algorithm::Fixed)).collect();
        let guard = Guard::new(server.redis(), all).expect("policies");
        let (mut guarded, mut manual) = (f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            guarded = guarded.min(by_guard(&guard, at_once).await);
            manual = manual.min(by_hand(&redis, policies, at_once).await);
        }
        let ratio = guarded / manual;
        println!(
            "{policies} of a guard, {at_once} at once: {:.1} us, by hand {:.1} us: {ratio:.2}, recorded {recorded:.2}",
            guarded * 1e6,
            manual * 1e6
        );
        is_more |= ratio > recorded * 1.1;
    }
    assert!(!is_more, "a decision costs a tenth more than recorded");
}
