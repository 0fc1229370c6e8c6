//! Waiting until units are allowed, on real servers, by a clock of the tests' own.

use std::env;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::server::{PATIENCE, Server, end_with_this_thread, noon, until, wait_for};
use redis_rl_client::{Acquire, Algorithm, Clock, MemoryLimiter, Quota, RlAsyncCommands, RlCommands, Take};
use tokio::task::JoinSet;

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

    fn acquire(&self, cost: i64) -> Acquire {
        let sleeper = self.clone();
        Acquire::cost(cost).clock(self.clock.clone()).sleep(move |pause| {
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

const ONE_EACH_20_MS: Quota = Quota::new(1, Duration::from_millis(20));

/// That of `acquire` on a bucket with one unit each 20 ms, in a process of its own.
#[tokio::test]
async fn waiters_of_another_process() {
    let Ok(url) = env::var("BUCKET") else { return };
    let client = redis::Client::open(url).expect("an address");
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let redis = client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection");
    wait_in_a_bucket(&redis, 50).await;
}

/// So many who wait at once.
async fn wait_in_a_bucket(redis: &redis::aio::MultiplexedConnection, waiters: usize) {
    let mut all = JoinSet::new();
    for _ in 0..waiters {
        let mut redis = redis.clone();
        all.spawn(async move { redis.rl_acquire(Algorithm::Bucket, "bucket", ONE_EACH_20_MS, 1).await });
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
        let redis = server.connect_async("resp3").await;
        let (asked, since) = (server.calls("RL.BUCKET"), Instant::now());
        let mut other = Command::new(env::current_exe().expect("this program"));
        other.args(["--exact", "acquire::waiters_of_another_process"]).env("BUCKET", server.url());
        end_with_this_thread(&mut other);
        let other = (processes == 2).then(|| other.stdout(Stdio::null()).spawn().expect("another process"));
        wait_in_a_bucket(&redis, 100 / processes).await;
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
    let mut redis = server.connect_async("resp3").await;
    let slow = Quota::new(1, Duration::from_secs(10));
    redis.rl_bucket("bucket", slow, 1).await.expect("a verdict");
    let mut waiting = JoinSet::new();
    for _ in 0..1000 {
        let mut redis = redis.clone();
        waiting.spawn(async move { redis.rl_acquire(Algorithm::Bucket, "bucket", slow, 1).await });
    }
    let far = Some(Duration::from_secs(9_990));
    let wait = || server.connect().rl_peek("bucket", slow, 1).expect("a verdict").retry_after;
    until("the turns", || wait() >= far).await;
    waiting.shutdown().await;
    until("all turns to be back", || wait() <= Some(Duration::from_secs(10))).await;
}

#[tokio::test]
async fn who_waits_for_a_bucket_and_is_dropped_gives_back_once_and_the_next_comes_earlier() {
    let server = Server::start();
    let redis = server.connect_async("resp3").await;
    let hourly = Quota::per_hour(1);
    let acquire = || {
        let mut redis = redis.clone();
        async move { redis.rl_acquire(Algorithm::Bucket, "key", hourly, 1).await }
    };
    acquire().await.expect("a verdict");
    let waiting = tokio::spawn(acquire());
    let in_debt = || server.used("key") == 2;
    until("the unit to be taken ahead", in_debt).await;
    waiting.abort();
    until("it to go back", || !in_debt()).await;
    assert_eq!(server.calls("RL.BUCKET"), 3);
    assert_eq!(server.used("key"), 1);
}

/// A connection whose replies take so long by a clock.
struct Slow(redis::Connection, Clock, Duration);

impl redis::ConnectionLike for Slow {
    fn req_packed_command(&mut self, cmd: &[u8]) -> redis::RedisResult<redis::Value> {
        let reply = self.0.req_packed_command(cmd);
        self.1.advance(self.2);
        reply
    }

    fn req_packed_commands(
        &mut self,
        cmd: &[u8],
        offset: usize,
        count: usize,
    ) -> redis::RedisResult<Vec<redis::Value>> {
        self.0.req_packed_commands(cmd, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }

    fn check_connection(&mut self) -> bool {
        self.0.check_connection()
    }

    fn is_open(&self) -> bool {
        self.0.is_open()
    }
}

#[test]
fn who_learns_of_its_units_too_late_gives_them_back_and_is_refused() {
    let server = Server::start();
    let time = Time::begin();
    let seconds = Duration::from_secs;
    let mut slow = Slow(server.connect(), time.clock.clone(), seconds(3));
    server.connect().rl_bucket("key", TWO_IN_TEN_SECONDS, Take::cost(2).at(noon())).expect("a verdict");
    // The unit is there in 5 s, of which 3 are gone.
    let mut acquire = |timeout| {
        let acquire = time.acquire(1).timeout(seconds(timeout));
        slow.rl_acquire(Algorithm::Bucket, "key", TWO_IN_TEN_SECONDS, acquire).expect("a verdict")
    };
    let late = acquire(7);
    assert_eq!((late.limited, late.taken, late.retry_after), (true, Some(0), Some(seconds(1))));
    let look = server.connect().rl_peek("key", TWO_IN_TEN_SECONDS, Take::cost(1).at(noon()));
    assert_eq!(look.expect("a verdict").retry_after, Some(seconds(5)));
    assert!(time.pauses().is_empty());
}

/// A limiter in this process by the time of this runtime, and how often it was asked.
fn counted() -> (MemoryLimiter, Arc<AtomicUsize>) {
    let (asked, started) = (Arc::new(AtomicUsize::new(0)), tokio::time::Instant::now());
    let asking = asked.clone();
    let memory = MemoryLimiter::new().clock(move || {
        asking.fetch_add(1, SeqCst);
        noon() + started.elapsed()
    });
    (memory, asked)
}

const ONE_A_SECOND: Quota = Quota::per_second(1);

async fn wait_for_one(mut memory: MemoryLimiter, algorithm: Algorithm, timeout: Duration) -> bool {
    let acquire = Acquire::cost(1).timeout(timeout);
    let verdict = RlAsyncCommands::rl_acquire(&mut memory, algorithm, "key", ONE_A_SECOND, acquire).await;
    !verdict.expect("a verdict").limited
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_served_in_order_and_one_of_them_asks() {
    for &algorithm in Algorithm::EVERY {
        let (memory, asked) = counted();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut all = JoinSet::new();
        for number in 0..20 {
            let (memory, order) = (memory.clone(), order.clone());
            all.spawn(async move {
                assert!(wait_for_one(memory, algorithm, PATIENCE).await);
                order.lock().expect("no panic").push(number);
            });
        }
        let since = tokio::time::Instant::now();
        all.join_all().await;
        assert_eq!(*order.lock().expect("no panic"), Vec::from_iter(0..20), "{algorithm:?}");
        assert!(since.elapsed() <= 40 * ONE_A_SECOND.window, "{algorithm:?}");
        // All ask at once, and then the first of them before and after its wait; of a sliding window a little more.
        let most = if algorithm == Algorithm::Bucket { 20 } else { 70 };
        assert!(asked.load(SeqCst) <= most, "{algorithm:?}: {asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_stands_behind_others_is_told_at_its_timeout_and_whoever_leaves_lets_the_next_go_on() {
    let (memory, asked) = counted();
    let wait = |timeout| tokio::spawn(wait_for_one(memory.clone(), Algorithm::Log, timeout));
    let second = ONE_A_SECOND.window;
    assert!(wait(PATIENCE).await.expect("no panic"));
    let first = wait(PATIENCE);
    tokio::time::sleep(second / 10).await;
    let (impatient, last) = (wait(second / 2), wait(PATIENCE));
    let before = asked.load(SeqCst);
    let since = tokio::time::Instant::now();
    assert!(!impatient.await.expect("no panic"));
    assert_eq!(since.elapsed(), second / 2);
    assert_eq!(asked.load(SeqCst) - before, 1);
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
    let (memory, _) = counted();
    let wait = || Box::pin(wait_for_one(memory.clone(), Algorithm::Log, PATIENCE));
    assert!(wait().await);
    let [mut first, mut second] = [wait(), wait()];
    for left_alone in [&mut first, &mut second] {
        assert!(tokio::time::timeout(ONE_A_SECOND.window / 10, left_alone).await.is_err());
    }
    assert!(wait().await);
    assert!(first.await && second.await);
}

#[test]
fn threads_and_tasks_that_wait_for_a_key_stand_in_one_line() {
    let asked = Arc::new(AtomicUsize::new(0));
    let asking = asked.clone();
    let memory = MemoryLimiter::new().clock(move || {
        asking.fetch_add(1, SeqCst);
        SystemTime::now()
    });
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (mut threads, mut tasks) = (Vec::new(), JoinSet::new());
    for _ in 0..10 {
        let mut waiting = memory.clone();
        threads.push(thread::spawn(move || {
            RlCommands::rl_acquire(&mut waiting, Algorithm::Log, "key", ONE_EACH_20_MS, 1)
                .expect("a verdict");
        }));
        let mut waiting = memory.clone();
        let waiting = async move {
            RlAsyncCommands::rl_acquire(&mut waiting, Algorithm::Log, "key", ONE_EACH_20_MS, 1).await
        };
        tasks.spawn_on(waiting, runtime.handle());
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let verdicts = runtime.block_on(tasks.join_all());
    assert!(verdicts.into_iter().all(|verdict| verdict.is_ok_and(|verdict| !verdict.limited)));
    // If all slept and asked, it would be 210 times.
    assert!(asked.load(SeqCst) <= 70, "{asked:?}");
}
