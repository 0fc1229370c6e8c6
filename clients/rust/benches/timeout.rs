//! How late the timeout ends the wait for a server that is stopped.
//!
//!     cargo bench --features tower --bench timeout

#[path = "../tests/server/mod.rs"]
mod server;

use std::thread;
use std::time::{Duration, Instant};

use redis_rl_client::web::Guard;
use server::Server;
use tokio::task::JoinSet;

const TIMEOUT: Duration = Duration::from_millis(100);
const ROUNDS: usize = 10;
/// Requests that wait at once.
const REQUESTS: [usize; 4] = [1, 200, 1_000, 10_000];
/// Work of the application's own, again and again: each piece of it keeps the runtime busy for so long.
const WORK: [Duration; 3] = [Duration::ZERO, Duration::from_millis(20), Duration::from_millis(300)];

/// How late each of so many requests goes on.
async fn lateness(guard: &Guard, requests: usize, work: Duration) -> Vec<Duration> {
    let working = tokio::spawn(async move {
        while !work.is_zero() {
            thread::sleep(work);
            tokio::task::yield_now().await;
        }
    });
    let late = (0..requests).map(|_| {
        let guard = guard.clone();
        async move {
            let asked = Instant::now();
            let admission = guard.take("a", 1).await.expect("an admission");
            assert!(admission.decision().is_none(), "the server answers");
            asked.elapsed().saturating_sub(TIMEOUT)
        }
    });
    let late = late.collect::<JoinSet<_>>().join_all().await;
    working.abort();
    late
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    println!("| requests at once | {} |", WORK.map(|work| format!("beside work of {work:?}")).join(" | "));
    println!("| ---: |{}", " ---: |".repeat(WORK.len()));
    for requests in REQUESTS {
        let mut row = Vec::new();
        for work in WORK {
            let server = Server::start();
            let guard = Guard::new(server.client("resp3"), "5/1h").expect("a policy").timeout(TIMEOUT);
            guard.take("a", 1).await.expect("an admission");
            server.freeze();
            let mut late = Vec::new();
            for _ in 0..ROUNDS {
                late.extend(lateness(&guard, requests, work).await);
            }
            late.sort_unstable();
            let ms = |index: usize| late[index].as_millis();
            row.push(format!("{} / {} ms", ms(late.len() / 2), ms(late.len() * 99 / 100)));
        }
        println!("| {requests} | {} |", row.join(" | "));
    }
}
