//! Places in flight on real servers.

use std::env;
use std::future::poll_fn;
use std::io::{BufRead, BufReader};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::task::Poll;
use std::time::{Duration, UNIX_EPOCH};

use crate::server::forwarder::Forwarder;
use crate::server::{Cluster, PATIENCE, Server, end_with_this_thread, until, used};
use redis_rl_client::{Hold, MemoryLimiter, Places, Quota, Redis, RlCommands};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn places(server: &Server) -> Places {
    Places::new(server.redis())
}

async fn hold(places: &Places, key: &str, n: u64) -> Option<Hold> {
    places.hold(key, n).await.expect("an answer")
}

/// So many tasks, each of which waits for one of five places, and works for a moment. The most that worked at once.
async fn most_at_work(places: &Places, tasks: usize) -> usize {
    let (working, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut all = JoinSet::new();
    for _ in 0..tasks {
        let (places, working, most) = (places.clone(), working.clone(), most.clone());
        all.spawn(async move {
            // A reply may be lost.
            let Ok(place) = places.hold("jobs", 5).await else { return };
            let place = place.expect("a place within the timeout");
            most.fetch_max(working.fetch_add(1, SeqCst) + 1, SeqCst);
            sleep(Duration::from_millis(5)).await;
            working.fetch_sub(1, SeqCst);
            drop(place);
        });
    }
    all.join_all().await;
    most.load(SeqCst)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_than_n_are_at_work_and_all_places_are_free_at_once_at_the_end() {
    let server = Server::start();
    assert!(most_at_work(&places(&server).timeout(PATIENCE), 60).await <= 5);
    until("the last to go back", || server.used("jobs") == 0).await;
}

#[tokio::test]
async fn never_more_than_n_are_at_work_though_replies_are_lost() {
    let server = Server::start();
    let network = Forwarder::start(server.port(), Duration::ZERO);
    let places = Places::new(Redis::from(network.client()).timeout(PATIENCE));
    let places = places.ttl(SECOND).timeout(PATIENCE);
    for _ in 0..3 {
        network.lose_a_reply();
        assert!(most_at_work(&places, 20).await <= 5);
    }
    until("the lost ones to be over", || server.used("jobs") == 0).await;
}

#[tokio::test]
async fn who_gets_no_place_is_told_at_once_and_a_released_place_is_free_at_once() {
    let server = Server::start();
    let places = places(&server);
    let first = hold(&places, "jobs", 1).await.expect("a place");
    assert!(hold(&places, "jobs", 1).await.is_none());
    assert!(hold(&places, "others", 1).await.is_some());
    first.release().await;
    assert_eq!(server.used("jobs"), 0);
    assert!(hold(&places, "jobs", 1).await.is_some());
}

#[tokio::test]
async fn a_place_is_renewed_for_as_long_as_it_is_held() {
    let server = Server::start();
    let places = places(&server).ttl(2 * SECOND);
    let place = hold(&places, "jobs", 1).await.expect("a place");
    // It is taken, and then each time taken and given back.
    until("three renewals", || server.calls("RL.LOG") >= 7).await;
    assert!(!place.is_late());
    assert_eq!(server.used("jobs"), 1);
    place.release().await;
    assert_eq!(server.used("jobs"), 0);
}

#[tokio::test]
async fn after_a_change_of_n_no_more_are_at_work_than_it_says_then() {
    let server = Server::start();
    let places = places(&server);
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(hold(&places, "jobs", 5).await.expect("a place"));
    }
    assert!(hold(&places, "jobs", 3).await.is_none());
    for left in [4, 3, 2] {
        held.pop().expect("a place").release().await;
        assert_eq!(server.used("jobs"), left);
    }
    held.push(hold(&places, "jobs", 3).await.expect("a place"));
    assert!(hold(&places, "jobs", 3).await.is_none());
    held.push(hold(&places, "jobs", 8).await.expect("a place"));
    assert_eq!(server.used("jobs"), 4);
}

#[tokio::test]
async fn a_future_that_is_dropped_takes_nothing() {
    let server = Server::start();
    let places = places(&server);
    hold(&places, "jobs", 5).await.expect("a place").release().await;
    server.freeze();
    let asking = tokio::spawn(async move { places.hold("jobs", 5).await });
    tokio::task::yield_now().await;
    asking.abort();
    assert!(asking.await.expect_err("it is cancelled").is_cancelled());
    server.thaw();
    until("what it took to go back", || server.calls("RL.LOG") == 4).await;
    assert_eq!(server.used("jobs"), 0);
}

/// The process of the test below.
#[tokio::test]
#[ignore = "another test runs it"]
async fn a_process_holds_two_places_until_it_is_killed() {
    let client = redis::Client::open(env::var("SERVER_OF_TEST").expect("an address")).expect("an address");
    let places = Places::new(Redis::from(client).timeout(PATIENCE)).ttl(SECOND);
    let _both = (hold(&places, "jobs", 2).await, hold(&places, "jobs", 2).await);
    println!("holds");
    sleep(PATIENCE).await;
}

#[tokio::test]
async fn places_of_a_process_that_is_killed_are_free_within_the_time_for_which_they_last() {
    let server = Server::start();
    let mut process = Command::new(env::current_exe().expect("this program"));
    let holder = "places::a_process_holds_two_places_until_it_is_killed";
    process.args(["--exact", holder, "--ignored", "--nocapture"]).env("SERVER_OF_TEST", server.url());
    end_with_this_thread(&mut process);
    let mut process = process.stdout(Stdio::piped()).spawn().expect("it runs");
    let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("holds")));
    let places = places(&server).ttl(SECOND);
    assert!(hold(&places, "jobs", 2).await.is_none());
    process.kill().and_then(|()| process.wait()).expect("it ends");
    let left = server.connect().rl_info("jobs").expect("a reply");
    assert!(left.is_none_or(|left| left.windows[0].reset_after <= SECOND));
    let places = places.timeout(PATIENCE);
    let _both =
        (hold(&places, "jobs", 2).await.expect("a place"), hold(&places, "jobs", 2).await.expect("a place"));
}

#[tokio::test]
async fn a_holder_that_cannot_renew_is_told_so_once_and_stays_late() {
    let server = Server::start();
    let (told, ttl) = (Arc::new(AtomicUsize::new(0)), Duration::from_millis(600));
    let tell = told.clone();
    let places = Places::new(server.client("resp3")).ttl(ttl).on_late(move |key| {
        assert_eq!(key, b"jobs");
        tell.fetch_add(1, SeqCst);
    });
    let place = hold(&places, "jobs", 1).await.expect("a place");
    server.freeze();
    until("the hook", || told.load(SeqCst) > 0).await;
    assert!(place.is_late());
    assert!(places.hold("others", 1).await.is_err(), "Redis is away");
    server.thaw();
    let calls = server.calls("RL.LOG");
    until("renewals", || server.calls("RL.LOG") >= calls + 6).await;
    assert!(place.is_late());
    assert_eq!(told.load(SeqCst), 1);
    place.release().await;
}

/// Places in memory that last for 300 ms of the clock that is returned.
fn timed() -> (Places, Arc<AtomicU64>) {
    let now = Arc::new(AtomicU64::new(0));
    let clock = now.clone();
    let places = Places::new(MemoryLimiter::new()).ttl(Duration::from_millis(300));
    (places.clock(move || UNIX_EPOCH + Duration::from_millis(clock.load(SeqCst))), now)
}

#[tokio::test]
async fn a_block_that_keeps_its_thread_from_renewing_sees_that_it_is_late() {
    let (places, now) = timed();
    let place = hold(&places, "jobs", 1).await.expect("a place");
    now.store(299, SeqCst);
    assert!(!place.is_late());
    now.store(300, SeqCst);
    assert!(place.is_late());
}

#[tokio::test]
async fn the_hook_is_told_of_a_block_that_was_late_and_ended_before_anything_else_happened() {
    let (places, now) = timed();
    let told = Arc::new(AtomicUsize::new(0));
    let tell = told.clone();
    let places = places.on_late(move |_| _ = tell.fetch_add(1, SeqCst));
    for (after, late) in [(299, 0), (300, 1)] {
        let place = hold(&places, "jobs", 1).await.expect("a place");
        now.fetch_add(after, SeqCst);
        place.release().await;
        assert_eq!(told.load(SeqCst), late, "after {after} ms");
    }
}

#[tokio::test]
async fn what_goes_back_is_sent_before_the_runtime_does_anything_else() {
    let mut memory = MemoryLimiter::new();
    let place = hold(&Places::new(memory.clone()), "jobs", 1).await.expect("a place");
    drop(place);
    assert_eq!(memory.rl_info("jobs").expect("a reply"), None);
    let server = Server::start();
    let place = hold(&places(&server), "jobs", 1).await.expect("a place");
    // Whatever thread ends the block.
    std::thread::spawn(move || drop(place)).join().expect("no panic");
    until("it to be back", || server.used("jobs") == 0).await;
}

#[tokio::test]
async fn a_place_is_renewed_though_its_hook_panics() {
    let (places, now) = timed();
    let told = Arc::new(AtomicUsize::new(0));
    let tell = told.clone();
    let places = places.on_late(move |_| {
        tell.fetch_add(1, SeqCst);
        panic!("of the test");
    });
    let place = hold(&places, "jobs", 1).await.expect("a place");
    now.store(300, SeqCst);
    until("the hook", || told.load(SeqCst) > 0).await;
    assert!(hold(&places, "jobs", 1).await.is_none());
    assert!(place.is_late());
}

#[tokio::test(start_paused = true)]
async fn a_place_that_goes_back_is_at_once_that_of_a_waiter_of_its_key() {
    let places = Places::new(MemoryLimiter::new()).timeout(PATIENCE);
    let [place, other] = ["jobs", "others"].map(|key| places.hold(key, 1));
    let (place, _other) = (place.await.expect("an answer"), other.await.expect("an answer"));
    let mut waiters = JoinSet::new();
    for key in ["jobs", "others", "jobs", "jobs"] {
        let places = places.clone();
        waiters.spawn(async move { hold(&places, key, 1).await.map(drop).map(|()| key) });
    }
    sleep(10 * SECOND).await;
    let since = Instant::now();
    drop(place);
    for _ in 0..3 {
        assert_eq!(waiters.join_next().await.expect("a waiter").expect("no panic"), Some("jobs"));
    }
    assert_eq!(since.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_who_wait_ask_less_often_in_ten_seconds_than_once_each() {
    let read = Arc::new(AtomicUsize::new(0));
    let reading = read.clone();
    let places = Places::new(MemoryLimiter::new()).timeout(PATIENCE).clock(move || {
        reading.fetch_add(1, SeqCst);
        UNIX_EPOCH
    });
    let _place = hold(&places, "jobs", 1).await.expect("a place");
    read.store(0, SeqCst);
    assert!(hold(&places.clone().timeout(Duration::ZERO), "jobs", 1).await.is_none());
    let once = read.swap(0, SeqCst);
    let mut waiters = JoinSet::new();
    for _ in 0..1000 {
        let places = places.clone();
        waiters.spawn(async move { places.hold("jobs", 1).await });
    }
    sleep(10 * SECOND).await;
    assert!(read.load(SeqCst) < 1000 * once);
}

/// Of 90 who wait, a third is dropped instead of being polled once more than this, and a third has short timeouts.
fn wait_in_three_ways(places: &Places, polls: usize) -> JoinSet<()> {
    let mut waiters = JoinSet::new();
    for number in 0..90 {
        let timeout = if number % 3 == 1 { Duration::from_millis(number) } else { 10 * PATIENCE };
        let places = places.clone().timeout(timeout);
        waiters.spawn(async move {
            let (mut asking, mut left) = (pin!(places.hold("jobs", 1)), polls);
            let end = poll_fn(|context| {
                if left == 0 {
                    return Poll::Ready(Ok(None));
                }
                left -= usize::from(number % 3 == 0);
                asking.as_mut().poll(context)
            });
            let place = end.await.expect("an answer");
            assert!(place.is_some() || number % 3 < 2);
        });
    }
    waiters
}

#[tokio::test(start_paused = true)]
async fn however_waiters_end_the_others_have_a_place_that_goes_back_at_once() {
    for polls in 1..40 {
        let places = Places::new(MemoryLimiter::new());
        let place = hold(&places, "jobs", 1).await.expect("a place");
        let waiters = wait_in_three_ways(&places, polls);
        sleep(Duration::from_millis(7 * polls as u64)).await;
        let since = Instant::now();
        drop(place);
        waiters.join_all().await;
        assert!(
            since.elapsed() <= Duration::from_millis(60),
            "dropped after {polls} polls: {:?}",
            since.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_fails_wakes_the_next() {
    let mut memory = MemoryLimiter::new();
    let places = Places::new(memory.clone()).timeout(10 * PATIENCE);
    let _place = hold(&places, "jobs", 1).await.expect("a place");
    let mut waiters = JoinSet::new();
    for _ in 0..100 {
        let places = places.clone();
        waiters.spawn(async move { places.hold("jobs", 1).await.expect_err("the key is of another kind") });
    }
    sleep(SECOND).await;
    memory.rl_reset("jobs").expect("a reply");
    memory.rl_fixed("jobs", Quota::per_hour(1), 1).expect("a verdict");
    let since = Instant::now();
    waiters.join_all().await;
    assert!(since.elapsed() < SECOND, "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_place_is_that_of_a_waiter_though_others_are_left_alone_by_their_owners() {
    let places = Places::new(MemoryLimiter::new()).timeout(10 * PATIENCE);
    let place = hold(&places, "jobs", 1).await.expect("a place");
    let [mut first, mut second] = ["jobs"; 2].map(|key| Box::pin(places.hold(key, 1)));
    for left_alone in [&mut first, &mut second] {
        assert!(timeout(SECOND, left_alone).await.is_err());
    }
    drop(place);
    let since = Instant::now();
    assert!(hold(&places, "jobs", 1).await.is_some());
    assert!(since.elapsed() < 10 * SECOND, "{:?}", since.elapsed());
}

#[test]
#[should_panic(expected = "a place lasts from 100 ms to 3650 days")]
fn places_last_long_enough_to_be_renewed() {
    let _ = Places::new(MemoryLimiter::new()).ttl(Duration::from_micros(99_999));
}

#[tokio::test]
async fn a_renewal_whose_reply_is_lost_is_tried_again_and_what_it_took_is_over_by_itself() {
    let server = Server::start();
    let network = Forwarder::start(server.port(), Duration::ZERO);
    let places = Places::new(Redis::from(network.client()).timeout(PATIENCE)).ttl(6 * SECOND);
    let place = hold(&places, "jobs", 1).await.expect("a place");
    // Renewals have a connection of their own, which is made with the first.
    until("a renewal", || server.calls("RL.LOG") >= 3).await;
    network.lose_a_reply();
    until("the lost renewal", || !network.is_to_lose_a_reply()).await;
    until("another renewal", || server.calls("RL.LOG") >= 6).await;
    assert!(!place.is_late());
    place.release().await;
    assert_eq!(server.used("jobs"), 1);
    until("the lost one to be over", || server.used("jobs") == 0).await;
}

#[tokio::test]
async fn in_memory_and_on_a_cluster_places_are_held_too() {
    let memory = MemoryLimiter::new();
    let places = Places::new(memory.clone());
    let place = hold(&places, "jobs", 1).await.expect("a place");
    assert!(hold(&places, "jobs", 1).await.is_none());
    place.release().await;
    assert!(hold(&places, "jobs", 1).await.is_some());
    let cluster = Cluster::start();
    let places = Places::new(cluster.redis().timeout(PATIENCE));
    for key in 0..9 {
        let key = format!("jobs:{key}");
        let place = hold(&places, &key, 1).await.expect("a place");
        assert!(hold(&places, &key, 1).await.is_none());
        place.release().await;
        assert_eq!(used(&mut cluster.client().get_connection().expect("the cluster answers"), &key), 0);
    }
    assert_eq!(cluster.redirections(), 0);
}

/// Places of processes of their own that hold by the time of this runtime.
fn of_processes<const N: usize>(timeout: Duration) -> [Places; N] {
    let (memory, started) = (MemoryLimiter::new(), Instant::now());
    [(); N].map(|()| {
        let places = Places::new(memory.clone()).timeout(timeout);
        places.clock(move || UNIX_EPOCH + SECOND + started.elapsed())
    })
}

/// Workers that hold one of five places in a loop until the time is over. How often they held one.
fn workers(places: &Places, count: usize, work: Duration, until: Instant) -> JoinSet<usize> {
    let mut workers = JoinSet::new();
    for _ in 0..count {
        let places = places.clone();
        workers.spawn(async move {
            let mut entries = 0;
            while Instant::now() < until {
                let place = hold(&places, "jobs", 5).await.expect("a place");
                entries += 1;
                sleep(work).await;
                drop(place);
            }
            entries
        });
    }
    workers
}

#[tokio::test(start_paused = true)]
async fn two_processes_that_hold_in_loops_get_half_of_the_places_each() {
    let [first, second] = of_processes(PATIENCE);
    let until = Instant::now() + 60 * SECOND;
    let workers = |places| workers(places, 10, Duration::from_millis(100), until);
    let first = workers(&first);
    sleep(SECOND).await;
    let mut entries = Vec::new();
    for workers in [first, workers(&second)] {
        entries.push(workers.join_all().await.into_iter().sum::<usize>());
    }
    let all = entries.iter().sum::<usize>();
    // 48 to 52 % over minutes.
    assert!(entries.iter().all(|half| half * 100 > all * 40), "{entries:?}");
    assert!(all > 2500, "{entries:?}");
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_beside_a_thousand_of_another_process_gets_its_turn() {
    let [many, one] = of_processes(10 * PATIENCE);
    let workers = workers(&many, 1000, Duration::from_millis(10), Instant::now() + 60 * SECOND);
    sleep(SECOND).await;
    let since = Instant::now();
    assert!(hold(&one, "jobs", 5).await.is_some());
    assert!(since.elapsed() < 30 * SECOND, "{:?}", since.elapsed());
    drop(workers);
}
