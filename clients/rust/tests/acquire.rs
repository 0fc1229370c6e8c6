//! Waiting until units are allowed, on real servers, by a clock of the tests' own.

use std::env;
use std::future::poll_fn;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use crate::server::{PATIENCE, Server, end_with_this_thread, noon, until, wait_for};
use redis_rl_client::{Acquire, Algorithm, Clock, MemoryLimiter, Quota, Redis, RlCommands, Take};
use tokio::task::{JoinHandle, JoinSet};

const TWO_IN_TEN_SECONDS: Quota = Quota::new(2, Duration::from_secs(10));

/// A clock that only sleeping moves.
#[derive(Clone)]
struct Time {
    clock: Clock,
    pauses: Arc<Mutex<Vec<Duration>>>,
}

impl Time {
    fn begin() -> Time {
        Time { clock: Clock::new(noon()), pauses: Arc::default() }
    }

    fn acquire(&self, redis: impl Into<Redis>, algorithm: Algorithm) -> Acquire {
        let sleeper = self.clone();
        Acquire::new(redis, algorithm, TWO_IN_TEN_SECONDS).clock(self.clock.clone()).sleep(move |pause| {
            sleeper.clock.advance(pause);
            sleeper.pauses.lock().expect("no panic").push(pause);
        })
    }

    fn pauses(&self) -> Vec<Duration> {
        self.pauses.lock().expect("no panic").clone()
    }
}

#[test]
fn it_sleeps_for_exactly_the_wait_and_then_has_its_units() {
    let server = Server::start();
    for &algorithm in Algorithm::EVERY {
        let time = Time::begin();
        let acquire = time.acquire(server.redis(), algorithm);
        for _ in 0..3 {
            let verdict = acquire.blocking_take(format!("{algorithm:?}"), 1).expect("a verdict");
            assert_eq!((verdict.limited, verdict.taken), (false, Some(1)));
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
    for cost in [1, 2] {
        let time = Time::begin();
        let acquire = time.acquire(server.redis(), Algorithm::Log);
        let key = format!("{cost}");
        acquire.take(&key, 2).await.expect("a verdict");
        let verdict = acquire.take(&key, cost).await.expect("a verdict");
        assert_eq!(time.pauses(), [Duration::from_secs(10)]);
        assert_eq!((verdict.limited, verdict.taken), (false, Some(cost)));
        assert!(verdict.at.is_some());
    }
}

#[tokio::test]
async fn a_refusal_is_told_at_once_if_the_timeout_is_shorter_than_the_wait_or_no_wait_helps() {
    let server = Server::start();
    for algorithm in [Algorithm::Fixed, Algorithm::Bucket] {
        let (time, key) = (Time::begin(), format!("{algorithm:?}"));
        let acquire = time.acquire(server.redis(), algorithm);
        acquire.take(&key, 2).await.expect("a verdict");
        let wait = if algorithm == Algorithm::Bucket { 5_000 } else { 10_000 };
        for (cost, timeout_ms) in [(1, wait - 1), (1, 0), (3, 60_000)] {
            let impatient = acquire.clone().timeout(Duration::from_millis(timeout_ms));
            assert!(impatient.take(&key, cost).await.expect("a verdict").limited);
        }
        assert!(time.pauses().is_empty());
        let in_time = acquire.timeout(Duration::from_millis(wait));
        assert!(!in_time.take(&key, 1).await.expect("a verdict").limited);
    }
}

#[tokio::test]
async fn a_wait_that_is_dropped_takes_nothing() {
    let server = Server::start();
    let hourly = Quota::per_hour(100);
    for (algorithm, cost) in [(Algorithm::Log, 1), (Algorithm::Log, 40), (Algorithm::Bucket, 40)] {
        let acquire = Acquire::new(server.redis(), algorithm, hourly);
        let key = format!("{algorithm:?}");
        acquire.take(&key, 1).await.expect("a verdict");
        let calls = || server.calls("RL.LOG") + server.calls("RL.BUCKET") + server.calls("RL.ALL");
        let before = calls();
        server.freeze();
        {
            // It is asked for, and never awaited again.
            let mut waiting = std::pin::pin!(acquire.take(&key, cost));
            let polled = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await;
            assert!(polled.is_pending());
            server.thaw();
            until("the server to be asked", || calls() == before + 1).await;
        }
        until("the units to go back", || calls() == before + 2).await;
        assert_eq!(server.used(&key), 1, "{algorithm:?} {cost}");
        server.connect().rl_reset(&key).expect("a reply");
    }
}

const ONE_EACH_20_MS: Quota = Quota::new(1, Duration::from_millis(20));

/// That of `acquire` on a bucket with one unit each 20 ms, in a process of its own.
#[tokio::test]
async fn waiters_of_another_process() {
    let Ok(url) = env::var("BUCKET") else { return };
    let client = redis::Client::open(url).expect("an address");
    wait_in_a_bucket(Redis::from(client).timeout(PATIENCE), 50).await;
}

/// So many who wait at once.
async fn wait_in_a_bucket(redis: Redis, waiters: usize) {
    let acquire = Acquire::new(redis, Algorithm::Bucket, ONE_EACH_20_MS);
    let mut all = JoinSet::new();
    for _ in 0..waiters {
        let acquire = acquire.clone();
        all.spawn(async move { acquire.take("bucket", 1).await });
    }
    for verdict in all.join_all().await {
        let verdict = verdict.expect("a verdict");
        assert_eq!((verdict.limited, verdict.taken, verdict.retry_after), (false, Some(1), None));
    }
}

#[tokio::test]
async fn a_hundred_who_wait_for_a_bucket_ask_once_each_also_in_two_processes() {
    let server = Server::start();
    for processes in [1, 2] {
        let (asked, since) = (server.calls("RL.BUCKET"), Instant::now());
        let mut other = Command::new(env::current_exe().expect("this program"));
        other.args(["--exact", "acquire::waiters_of_another_process"]).env("BUCKET", server.url());
        end_with_this_thread(&mut other);
        let other = (processes == 2).then(|| other.stdout(Stdio::null()).spawn().expect("another process"));
        wait_in_a_bucket(server.redis(), 100 / processes).await;
        if let Some(mut other) = other {
            assert!(other.wait().expect("its status").success());
        }
        // The first has its unit at once, the last after 99 times 20 ms of the clock, whose milliseconds are whole.
        assert!(since.elapsed() >= Duration::from_millis(1_979), "{:?}", since.elapsed());
        assert_eq!(server.calls("RL.BUCKET") - asked, 100);
        let left = server.connect().rl_peek("bucket", ONE_EACH_20_MS, 1).expect("a verdict").retry_after;
        assert!(left <= Some(Duration::from_millis(20)), "{left:?}");
        server.connect().rl_reset("bucket").expect("a reply");
    }
}

const SLOW: Quota = Quota::new(1, Duration::from_secs(10));

/// So many who wait for a unit each 10 s, the first of them for 10 s.
async fn wait_for_slow_ones(server: &Server, acquire: &Acquire, waiters: u64) -> Vec<JoinHandle<()>> {
    assert!(!acquire.take("bucket", 1).await.expect("a verdict").limited);
    let waiting = (0..waiters).map(|_| slow_one(acquire)).collect();
    until("the turns", || server.used("bucket") == waiters + 1).await;
    waiting
}

fn slow_one(acquire: &Acquire) -> JoinHandle<()> {
    let acquire = acquire.clone();
    tokio::spawn(async move { assert!(!acquire.take("bucket", 1).await.expect("a verdict").limited) })
}

#[tokio::test]
async fn turns_that_are_dropped_together_all_go_back() {
    drop_a_thousand_turns().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn turns_that_are_dropped_together_by_several_threads_all_go_back() {
    drop_a_thousand_turns().await;
}

async fn drop_a_thousand_turns() {
    let server = Server::start();
    let acquire = Acquire::new(server.redis(), Algorithm::Bucket, SLOW);
    let waiting = wait_for_slow_ones(&server, &acquire, 1000).await;
    waiting.into_iter().for_each(|left| left.abort());
    until("all turns to be back", || server.used("bucket") == 1).await;
}

#[tokio::test(start_paused = true)]
async fn those_behind_whoever_leaves_move_up() {
    let (acquire, began) = (
        Acquire::new(memory_by_this_runtime(), Algorithm::Bucket, Quota::new(1, Duration::from_millis(30))),
        tokio::time::Instant::now(),
    );
    let wait = || {
        let acquire = acquire.clone();
        tokio::spawn(async move {
            acquire.take("bucket", 1).await.expect("a verdict");
            began.elapsed().as_millis()
        })
    };
    let mut waiting: Vec<_> = (0..60).map(|_| wait()).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    waiting.drain(20..43).for_each(|left| left.abort());
    waiting.extend((0..10).map(|_| wait()));
    for (place, one) in waiting.into_iter().enumerate() {
        let due_ms = 30 * place as u128;
        // Timers of tokio are late by up to a millisecond.
        let served_ms = one.await.expect("no panic");
        assert!((due_ms..=due_ms + 2).contains(&served_ms), "{place}: {served_ms}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn turns_in_the_middle_that_are_dropped_are_those_of_the_others() {
    let server = Server::start();
    let acquire = Acquire::new(server.redis(), Algorithm::Bucket, SLOW);
    let mut waiting = wait_for_slow_ones(&server, &acquire, 59).await;
    waiting.drain(20..43).for_each(|left| left.abort());
    until("the last turns to be back", || server.used("bucket") == 37).await;
    waiting.extend((0..10).map(|_| slow_one(&acquire)));
    until("the turns of 47", || server.used("bucket") == 47).await;
}

#[tokio::test]
async fn a_turn_that_cannot_go_back_is_that_of_the_next_who_comes() {
    let server = Server::start();
    let acquire = Acquire::new(server.redis(), Algorithm::Bucket, SLOW);
    let waiting = wait_for_slow_ones(&server, &acquire, 1).await;
    // Another process stands behind it.
    let ahead = Take::cost(1).within(PATIENCE);
    server.connect().rl_bucket("bucket", SLOW, ahead).expect("a verdict");
    waiting[0].abort();
    let calls = || server.calls("RL.BUCKET");
    until("it to stay", || calls() == 4).await;
    let next = acquire.clone();
    let next = tokio::spawn(async move { next.take("bucket", 1).await });
    until("it to come", || next.is_finished()).await;
    assert!(!next.await.expect("no panic").expect("a verdict").limited);
    assert_eq!(calls(), 4);
}

#[test]
fn who_learns_of_its_units_too_late_gives_them_back_and_is_refused() {
    let (server, time, seconds) = (Server::start(), Time::begin(), Duration::from_secs);
    let look = |take: Take| server.connect().rl_bucket("key", TWO_IN_TEN_SECONDS, take.at(noon()));
    look(Take::cost(2)).expect("a verdict");
    // To connect takes 3 s.
    let (client, slow) = (server.client("resp3"), time.clock.clone());
    let redis = Redis::by(move || {
        slow.advance(seconds(3));
        std::future::ready(Ok(client.clone()))
    });
    // The unit is there in 5 s.
    let acquire = time.acquire(redis.timeout(PATIENCE), Algorithm::Bucket).timeout(seconds(7));
    let late = acquire.blocking_take("key", 1).expect("a verdict");
    assert_eq!((late.limited, late.taken, late.retry_after), (true, Some(0), Some(seconds(1))));
    wait_for("the unit to go back", || {
        look(Take::cost(1)).expect("a verdict").retry_after == Some(seconds(5))
    });
    assert!(time.pauses().is_empty());
}

/// A limiter in this process by the time of this runtime.
fn memory_by_this_runtime() -> MemoryLimiter {
    let started = tokio::time::Instant::now();
    MemoryLimiter::new().clock(move || noon() + started.elapsed())
}

const ONE_A_SECOND: Quota = Quota::per_second(1);

#[tokio::test]
async fn who_waits_is_served_in_order_and_one_of_them_asks() {
    let server = Server::start();
    for &algorithm in Algorithm::EVERY {
        let acquire = Acquire::new(server.redis(), algorithm, ONE_EACH_20_MS);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut all = JoinSet::new();
        for number in 0..20 {
            let (acquire, order) = (acquire.clone(), order.clone());
            all.spawn(async move {
                let verdict = acquire.take(format!("{algorithm:?}"), 1).await.expect("a verdict");
                assert!(!verdict.limited);
                order.lock().expect("no panic").push(number);
            });
        }
        all.join_all().await;
        assert_eq!(*order.lock().expect("no panic"), Vec::from_iter(0..20), "{algorithm:?}");
        // Of a bucket each asks once. Else the first does before and after its wait; of a sliding window a little more.
        let most = if algorithm == Algorithm::Bucket { 20 } else { 50 };
        let asked = server.calls(&format!("RL.{algorithm:?}").to_uppercase());
        assert!(asked <= most, "{algorithm:?}: {asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_stands_behind_others_is_told_at_its_timeout_and_whoever_leaves_lets_the_next_go_on() {
    let memory = memory_by_this_runtime();
    let acquire = Acquire::new(memory.clone(), Algorithm::Log, ONE_A_SECOND);
    let wait = |timeout| {
        let acquire = acquire.clone().timeout(timeout);
        tokio::spawn(async move { !acquire.take("key", 1).await.expect("a verdict").limited })
    };
    let second = ONE_A_SECOND.window;
    assert!(wait(PATIENCE).await.expect("no panic"));
    let first = wait(PATIENCE);
    tokio::time::sleep(second / 10).await;
    let (impatient, last) = (wait(second / 2), wait(PATIENCE));
    let since = tokio::time::Instant::now();
    assert!(!impatient.await.expect("no panic"));
    assert_eq!(since.elapsed(), second / 2);
    first.abort();
    assert!(last.await.expect("no panic"));
    assert!(since.elapsed() <= second);
    assert_eq!(
        RlCommands::rl_info(&mut memory.clone(), "key").expect("a reply").expect("a key").windows[0].used,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_served_though_the_first_is_left_alone_by_its_owner() {
    let memory = memory_by_this_runtime();
    for algorithm in [Algorithm::Log, Algorithm::Bucket] {
        let acquire = Acquire::new(memory.clone(), algorithm, ONE_A_SECOND);
        let key = format!("{algorithm:?}");
        let wait = || Box::pin(acquire.take(&key, 1));
        assert!(!wait().await.expect("a verdict").limited);
        let [mut first, mut second] = [wait(), wait()];
        for left_alone in [&mut first, &mut second] {
            assert!(tokio::time::timeout(ONE_A_SECOND.window / 10, left_alone).await.is_err());
        }
        for one in [wait(), first, second] {
            assert!(!one.await.expect("a verdict").limited);
        }
    }
}

#[test]
fn threads_and_tasks_that_wait_for_a_key_stand_in_one_line() {
    let server = Server::start();
    let acquire = Acquire::new(server.redis(), Algorithm::Log, ONE_EACH_20_MS);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (mut threads, mut tasks) = (Vec::new(), JoinSet::new());
    for _ in 0..10 {
        let waiting = acquire.clone();
        threads.push(thread::spawn(move || waiting.blocking_take("key", 1).expect("a verdict")));
        let waiting = acquire.clone();
        tasks.spawn_on(async move { waiting.take("key", 1).await.expect("a verdict") }, runtime.handle());
    }
    let mut verdicts = runtime.block_on(tasks.join_all());
    verdicts.extend(threads.into_iter().map(|thread| thread.join().expect("no panic")));
    assert!(verdicts.into_iter().all(|verdict| !verdict.limited));
    // If all slept and asked, it would be 210 times.
    assert!(server.calls("RL.LOG") <= 45, "{}", server.calls("RL.LOG"));
}
