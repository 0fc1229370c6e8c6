//! The limiter in this process: as a connection, for guards and leases, and for what becomes of requests while Redis is away.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::server::forwarder::Forwarder;
use crate::server::{Cluster, PATIENCE, Server, noon, used};
use redis_rl_client::web::{Fail, Guard, Outage, Policy};
use redis_rl_client::{
    Acquire, Algorithm, All, Clock, Info, Leases, MemoryLimiter, Quota, Redis, RlAsyncCommands, RlCommands,
    Verdict, cmd,
};
use tokio::task::JoinSet;

const TWO_A_MINUTE: Quota = Quota::per_minute(2);

/// At noon, where the time stands still until the clock is moved.
fn memory() -> (MemoryLimiter, Clock) {
    let clock = Clock::new(noon());
    (MemoryLimiter::new().clock(clock.clone()), clock)
}

#[tokio::test]
async fn it_is_a_connection_blocking_and_not_and_its_time_is_the_tests() {
    let (mut memory, clock) = memory();
    assert!(!RlCommands::rl_log(&mut memory, "a", TWO_A_MINUTE, 1).expect("a verdict").limited);
    assert!(!RlAsyncCommands::rl_log(&mut memory, "a", TWO_A_MINUTE, 1).await.expect("a verdict").limited);
    let refused = RlCommands::rl_log(&mut memory.clone(), "a", TWO_A_MINUTE, 1).expect("a verdict");
    assert_eq!(refused.retry_after, Some(Duration::from_secs(60)));
    clock.advance(Duration::from_millis(59_999));
    assert!(RlCommands::rl_log(&mut memory, "a", TWO_A_MINUTE, 1).expect("a verdict").limited);
    clock.advance(Duration::from_millis(1));
    assert!(!RlCommands::rl_log(&mut memory, "a", TWO_A_MINUTE, 1).expect("a verdict").limited);
    let all = All::new().key("a", Algorithm::Log, TWO_A_MINUTE, 1).key("b", Algorithm::Log, TWO_A_MINUTE, 1);
    assert_eq!(RlCommands::rl_all(&mut memory, &all).expect("a decision").at, clock.now());
    assert!(RlCommands::rl_reset(&mut memory, "a").expect("a reply"));
    assert_eq!(RlCommands::rl_info(&mut memory, "a").expect("a reply"), None);
    let error = RlCommands::rl_fixed(&mut memory, "b", TWO_A_MINUTE, 1).expect_err("a log");
    assert_eq!(error.code(), Some("WRONGTYPE"));
    memory.clone().clear();
    assert_eq!(RlCommands::rl_info(&mut memory, "b").expect("a reply"), None);
}

#[tokio::test]
async fn pipelines_and_transactions_are_answered_as_by_a_server() {
    let (mut memory, _) = memory();
    for is_atomic in [false, true] {
        let mut pipeline = redis::pipe();
        if is_atomic {
            pipeline.atomic();
        }
        pipeline.add_command(cmd::log("a", TWO_A_MINUTE, 1)).add_command(cmd::info("a"));
        let (verdict, info): (Verdict, Option<Info>) = pipeline.query(&mut memory).expect("replies");
        assert_eq!((verdict.limited, info.map(|info| info.algorithm)), (false, Some(Algorithm::Log)));
        pipeline.clear();
        let (existed,): (bool,) =
            pipeline.add_command(cmd::reset("a")).query_async(&mut memory).await.expect("replies");
        assert!(existed);
    }
}

#[test]
fn words_of_any_bytes_and_lengths_are_answered() {
    let (memory, _) = memory();
    let ask = |name: &[u8], key: &[u8]| {
        let mut command = redis::Cmd::new();
        command.arg(name).arg(key);
        command.query::<i64>(&mut memory.clone()).map_err(|error| error.to_string())
    };
    let unknown = ask(b"\xff\r\nA", b"\xfe").expect_err("an unknown command");
    assert!(
        unknown.contains("unknown command '\u{fffd}  A', with args beginning with: '\u{fffd}'"),
        "{unknown}"
    );
    assert_eq!(ask(b"EXISTS", &[b'x'; 65_536]), Ok(0));
    let long = ask(b"EXISTS", &[b'x'; 65_537]).expect_err("a long word");
    assert!(long.contains("each word must have at most 65536 bytes"), "{long}");
}

#[tokio::test]
async fn waiting_by_its_time_takes_no_time() {
    for is_blocking in [true, false] {
        let (mut waiting, clock) = memory();
        let sleeper = clock.clone();
        let acquire = Acquire::new(waiting.clone(), Algorithm::Log, TWO_A_MINUTE);
        let acquire = acquire.clock(clock.clone()).sleep(move |pause| sleeper.advance(pause));
        for _ in 0..2 {
            let verdict =
                if is_blocking { acquire.blocking_take("a", 2) } else { acquire.take("a", 2).await };
            assert!(!verdict.expect("a verdict").limited);
        }
        assert_eq!(clock.now(), noon() + Duration::from_secs(60));
        assert!(RlCommands::rl_log(&mut waiting, "a", TWO_A_MINUTE, 1).expect("a verdict").limited);
    }
}

#[tokio::test]
async fn leases_and_guards_end_by_its_time() {
    let (mut memory, clock) = memory();
    let leases = Leases::new(memory.clone(), Algorithm::Log, Quota::per_hour(1_000)).units(64);
    for _ in 0..100 {
        assert!(!leases.take("hot", 1).await.expect("a verdict").limited);
    }
    clock.advance(Duration::from_secs(1));
    assert!(!leases.take("hot", 1).await.expect("a verdict").limited);
    leases.close().await;
    assert_eq!(used(&mut memory, "hot"), 101);

    let guard = Guard::new(memory.clone(), "2/m").expect("a text").remember(PATIENCE);
    for (wait, passes) in [(0, true), (0, true), (0, false), (59, false), (1, true)] {
        clock.advance(Duration::from_secs(wait));
        assert_eq!(guard.take("a", 1).await.is_ok(), passes);
    }
    assert_eq!(used(&mut memory, "requests:a"), 1);
}

#[tokio::test]
async fn beyond_its_keys_the_one_that_expires_first_goes() {
    let mut memory = MemoryLimiter::with_keys(2);
    for (key, quota) in [("a", Quota::per_hour(1)), ("b", Quota::per_minute(1)), ("c", Quota::per_hour(1))] {
        RlCommands::rl_log(&mut memory, key, quota, 1).expect("a verdict");
    }
    for (key, is_there) in [("a", true), ("b", false), ("c", true)] {
        assert_eq!(RlCommands::rl_info(&mut memory, key).expect("a reply").is_some(), is_there, "{key}");
    }
}

/// A guard that limits in this process while Redis is away, and what it tells of that.
fn local(redis: impl Into<Redis>) -> (Guard, Arc<Mutex<Vec<bool>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let hear = told.clone();
    let guard = Guard::new(redis, Policy::new("requests", "5/1h").expect("a policy")).expect("a policy");
    let guard = guard
        .on_outage(move |outage| hear.lock().expect("no panic").push(matches!(outage, Outage::Begun(_))));
    (guard.fail(Fail::Local), told)
}

/// How many of so many requests at once pass.
async fn passing(guard: &Guard, client: &str, requests: usize) -> usize {
    let requests = (0..requests).map(|_| {
        let (guard, client) = (guard.clone(), client.to_owned());
        async move {
            let taken = guard.take(client, 1).await;
            taken.map(|taken| assert!(!taken.policies().is_empty())).is_ok()
        }
    });
    requests.collect::<JoinSet<_>>().join_all().await.into_iter().filter(|passes| *passes).count()
}

/// Until the server decides again, which is a second at most.
async fn back(guard: &Guard, server: &Server) {
    let since = Instant::now();
    while server.used("requests:back") == 0 {
        let _ = guard.take("back", 1).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
}

#[tokio::test]
async fn while_a_server_is_killed_or_stopped_this_process_limits_and_then_the_server_again() {
    for is_killed in [true, false] {
        let mut server = Server::start();
        let (guard, told) = local(server.client("resp3"));
        assert_eq!(passing(&guard, "before", 10).await, 5);
        if is_killed {
            server.kill()
        } else {
            server.freeze()
        }
        for requests in [1, 100, 10_000] {
            let passed = passing(&guard, &format!("{requests}"), requests).await;
            assert_eq!(passed, requests.min(5), "killed: {is_killed}");
        }
        // By counts of its own, and at once.
        let asked = Instant::now();
        assert_eq!(passing(&guard, "before", 10).await, 5);
        assert!(asked.elapsed() < Duration::from_millis(500), "{:?}", asked.elapsed());
        assert_eq!(*told.lock().expect("no panic"), [true]);
        if is_killed {
            server.restart()
        } else {
            server.thaw()
        }
        back(&guard, &server).await;
        assert_eq!(*told.lock().expect("no panic"), [true, false]);
        assert_eq!(passing(&guard, "after", 10_000).await, 5);
        assert_eq!(server.used("requests:after"), 5);
    }
}

#[tokio::test]
async fn while_the_network_is_silent_or_slow_this_process_limits() {
    let server = Server::start();
    let silent = Forwarder::start(server.port(), Duration::ZERO);
    let slow = Forwarder::start(server.port(), Duration::from_millis(300));
    for (network, name) in [(&silent, "silent"), (&slow, "slow")] {
        let (guard, told) = local(network.client());
        passing(&guard, "before", 1).await;
        if name == "silent" {
            network.fall_silent();
        }
        for requests in [1, 100, 10_000] {
            let client = format!("{name}-{requests}");
            // A new connection works: what the server lets through comes besides.
            let passed = passing(&guard, &client, requests).await;
            assert!((requests.min(5)..=requests.min(10)).contains(&passed), "{client}: {passed}");
        }
        assert!(told.lock().expect("no panic")[0], "{name}");
    }
}

#[tokio::test]
async fn on_a_cluster_the_keys_of_nodes_that_are_well_are_decided_by_them() {
    for is_killed in [true, false] {
        let mut cluster = Cluster::start();
        let (guard, told) = local(cluster.redis());
        assert_eq!(passing(&guard, "warm", 1).await, 1);
        if is_killed {
            cluster.nodes[0].kill()
        } else {
            cluster.nodes[0].freeze()
        }
        for client in 0..30 {
            assert_eq!(passing(&guard, &format!("{client}"), 10).await, 5, "{client}");
        }
        assert!(told.lock().expect("no panic")[0]);
        let keys = |node: usize| cluster.nodes[node].call::<usize>("DBSIZE");
        assert!(keys(1) > 3 && keys(2) > 3, "killed: {is_killed}");
        if !is_killed {
            cluster.nodes[0].thaw();
            let (since, mut clients) = (Instant::now(), 0);
            while cluster.nodes[0].call::<Vec<String>>("KEYS requests:back-*").is_empty() {
                let _ = guard.take(format!("back-{clients}"), 1).await;
                clients += 1;
            }
            assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
        }
    }
}

#[tokio::test]
async fn an_error_about_one_key_is_decided_here_and_others_by_the_server() {
    let server = Server::start();
    let _: () = server.call("SET requests:a text");
    let (guard, told) = local(server.client("resp3"));
    assert_eq!(passing(&guard, "a", 10).await, 5);
    assert_eq!(passing(&guard, "b", 10).await, 5);
    assert_eq!(server.used("requests:b"), 5);
    assert!(told.lock().expect("no panic").is_empty());
}
