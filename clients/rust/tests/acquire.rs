//! Waiting until units are allowed, on real servers, by a clock of the tests' own.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::server::{PATIENCE, Server, noon, wait_for};
use redis_rl_client::{Acquire, Algorithm, Quota, RlAsyncCommands, RlCommands, Take};

const TWO_IN_TEN_SECONDS: Quota = Quota::new(2, Duration::from_secs(10));

/// A clock that only sleeping moves.
#[derive(Clone)]
struct Time(Arc<Mutex<(SystemTime, Vec<Duration>)>>);

impl Time {
    fn begin() -> Time {
        Time(Arc::new(Mutex::new((noon(), Vec::new()))))
    }

    fn acquire(&self, cost: i64) -> Acquire {
        let (clock, sleeper) = (self.clone(), self.clone());
        Acquire::cost(cost).clock(move || clock.0.lock().expect("no panic").0).sleep(move |pause| {
            let mut time = sleeper.0.lock().expect("no panic");
            time.0 += pause;
            time.1.push(pause);
        })
    }

    fn pauses(&self) -> Vec<Duration> {
        self.0.lock().expect("no panic").1.clone()
    }
}

#[test]
fn it_sleeps_for_exactly_the_wait_and_then_has_its_units() {
    let server = Server::start();
    let mut redis = server.connect();
    for &algorithm in Algorithm::EVERY {
        let time = Time::begin();
        let key = format!("{algorithm:?}");
        for _ in 0..3 {
            let verdict = redis.rl_acquire(algorithm, &key, TWO_IN_TEN_SECONDS, time.acquire(1));
            assert!(!verdict.expect("a verdict").limited);
        }
        let ten_seconds = Duration::from_secs(10);
        let expected = match algorithm {
            Algorithm::Sliding | Algorithm::Bucket => ten_seconds / 2,
            _ => ten_seconds,
        };
        let pauses = time.pauses();
        assert!(pauses.iter().sum::<Duration>() >= expected, "{algorithm:?}: {pauses:?}");
        assert_eq!(pauses.len(), 1, "{algorithm:?}: {pauses:?}");
    }
}

#[tokio::test]
async fn the_asynchronous_one_waits_alike_and_tells_what_it_took_and_when() {
    let server = Server::start();
    let mut redis = server.connect_async("resp3").await;
    for cost in [1, 2] {
        let time = Time::begin();
        let key = format!("{cost}");
        redis.rl_acquire(Algorithm::Log, &key, TWO_IN_TEN_SECONDS, time.acquire(2)).await.expect("a verdict");
        let verdict = redis.rl_acquire(Algorithm::Log, &key, TWO_IN_TEN_SECONDS, time.acquire(cost)).await;
        let verdict = verdict.expect("a verdict");
        assert_eq!(time.pauses(), [Duration::from_secs(10)]);
        assert_eq!((verdict.limited, verdict.taken), (false, Some(cost)));
        assert!(verdict.at.is_some());
    }
}

#[tokio::test]
async fn a_refusal_is_told_at_once_if_the_timeout_is_shorter_than_the_wait_or_no_wait_helps() {
    let server = Server::start();
    let (mut redis, mut blocking) = (server.connect_async("resp2").await, server.connect());
    let time = Time::begin();
    blocking.rl_acquire(Algorithm::Log, "key", TWO_IN_TEN_SECONDS, time.acquire(2)).expect("a verdict");
    for (cost, timeout) in [(1, Duration::from_millis(9_999)), (1, Duration::ZERO), (3, PATIENCE)] {
        let acquire = time.acquire(cost).timeout(timeout);
        let verdict = blocking.rl_acquire(Algorithm::Log, "key", TWO_IN_TEN_SECONDS, acquire.clone());
        assert!(verdict.expect("a verdict").limited);
        let verdict = redis.rl_acquire(Algorithm::Log, "key", TWO_IN_TEN_SECONDS, acquire).await;
        assert!(verdict.expect("a verdict").limited);
    }
    assert!(time.pauses().is_empty());
    let in_time = time.acquire(1).timeout(Duration::from_secs(10));
    let verdict = redis.rl_acquire(Algorithm::Log, "key", TWO_IN_TEN_SECONDS, in_time).await;
    assert!(!verdict.expect("a verdict").limited);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_dropped_takes_nothing() {
    let server = Server::start();
    let redis = server.connect_async("resp3").await;
    let hourly = Quota::per_hour(100);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for (cost, round) in [(1, 1), (40, 2)] {
        // That of the connection stays.
        wait_for("the tasks of the last round to end", || tasks() <= 1);
        server.freeze();
        let mut connection = redis.clone();
        let waiting =
            tokio::spawn(async move { connection.rl_acquire(Algorithm::Log, "key", hourly, cost).await });
        // Until it has asked.
        wait_for("the command to be on its way", || tasks() > 2);
        waiting.abort();
        assert!(waiting.await.expect_err("it is dropped").is_cancelled());
        server.thaw();
        // Besides the command that takes there is one that gives back.
        wait_for("the units to go back", || server.calls("RL.LOG") + server.calls("RL.ALL") == 2 * round);
        assert_eq!(server.connect().rl_peek("key", hourly, 1).expect("a verdict").remaining, 100);
    }
}

#[tokio::test]
async fn what_a_dropped_wait_gives_back_was_counted_when_it_was_taken() {
    let server = Server::start();
    let mut redis = server.connect_async("resp3").await;
    let hourly = Quota::per_hour(100);
    let time = Time::begin();
    {
        let mut connection = redis.clone();
        let waiting = connection.rl_acquire(Algorithm::Log, "key", hourly, time.acquire(40));
        let mut waiting = std::pin::pin!(waiting);
        // It is asked for, and never awaited again.
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("the server cannot have answered yet"),
            () = std::future::ready(()) => {}
        }
    }
    // What another took later stays.
    let later = noon() + Duration::from_millis(1);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    redis.rl_log("key", hourly, Take::cost(7).at(later)).await.expect("a verdict");
    while redis.rl_log("key", hourly, Take::cost(0).at(later)).await.expect("a verdict").remaining != 93 {
        assert!(tokio::time::Instant::now() < deadline, "waited in vain for the units");
    }
}
