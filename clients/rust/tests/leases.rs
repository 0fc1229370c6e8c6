//! Leases on real servers.

use std::time::Duration;

use crate::server::{Cluster, PATIENCE, Server, until, used};
use redis_rl_client::{Algorithm, Leases, Quota, RlCommands, Take};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

const HOURLY: Quota = Quota::per_hour(10_000);
const NEVER: Duration = Duration::ZERO;

/// Leases that the time of a busy machine does not end.
fn leases(server: &Server, quota: Quota) -> Leases {
    Leases::new(server.redis(), Algorithm::Log, quota).units(64).ttl(PATIENCE)
}

/// How many of so many requests in each of 50 tasks are allowed.
async fn burst(leases: &Leases, key: &'static str, requests: usize) -> usize {
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let leases = leases.clone();
        tasks.spawn(async move {
            let mut allowed = 0;
            for _ in 0..requests {
                allowed += usize::from(!leases.take(key, 1).await.expect("a verdict").limited);
            }
            allowed
        });
    }
    tasks.join_all().await.iter().sum()
}

#[tokio::test]
async fn a_hot_key_costs_a_command_for_many_decisions_and_close_gives_back_what_is_left() {
    // A year, so that nothing refills meanwhile.
    let yearly = Quota::new(10_000, Duration::from_secs(365 * 86_400));
    for (algorithm, command) in [(Algorithm::Log, "RL.LOG"), (Algorithm::Bucket, "RL.BUCKET")] {
        let server = Server::start();
        let leases = Leases::new(server.redis(), algorithm, yearly).units(64).ttl(PATIENCE);
        assert_eq!(burst(&leases, "hot", 100).await, 5_000);
        let calls = server.calls(command);
        assert!(calls <= 5_000 / 50, "{calls}");
        leases.close().await;
        assert_eq!(server.used("hot"), 5_000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_share_a_limiter_and_exactly_the_limit_passes() {
    let server = Server::start();
    let leases = leases(&server, Quota::per_hour(1_000));
    assert_eq!(burst(&leases, "hot", 100).await, 1_000);
    // The refusals were remembered.
    assert!(server.calls("RL.LOG") < 500);
    leases.close().await;
    assert_eq!(server.used("hot"), 1_000);
}

#[tokio::test]
async fn without_leases_and_memory_every_request_is_asked_for() {
    let server = Server::start();
    let leases = leases(&server, Quota::per_hour(10)).units(0).remember(NEVER);
    assert_eq!(burst(&leases, "key", 2).await, 10);
    assert_eq!(server.calls("RL.LOG"), 100);
}

#[tokio::test]
async fn a_lease_goes_back_when_its_time_is_over_without_another_request() {
    let server = Server::start();
    let leases = leases(&server, HOURLY).ttl(Duration::from_millis(500));
    let mut allowed = 0;
    // A lease is had as soon as two requests come within its time.
    while server.used("key") <= allowed {
        leases.take("key", 1).await.expect("a verdict");
        allowed += 1;
    }
    until("the lease to go back", || server.used("key") == allowed).await;
}

#[tokio::test]
async fn what_goes_back_was_counted_when_it_was_leased() {
    let server = Server::start();
    let leases = leases(&server, HOURLY);
    for _ in 0..3 {
        leases.take("key", 1).await.expect("a verdict");
    }
    let counted = leases.take("key", 1).await.expect("a verdict").at.expect("a time");
    assert_eq!(server.used("key"), 7);
    server.wait_until_after(counted);
    // Another process takes units later: they are the newest.
    server.connect().rl_log("key", HOURLY, 5).expect("a verdict");
    leases.close().await;
    let all_of_then = Take::cost(-1_000).partial().at(counted);
    let back = server.connect().rl_log("key", HOURLY, all_of_then).expect("a verdict");
    assert_eq!((back.taken, back.remaining), (Some(-4), 9_995));
}

#[tokio::test]
async fn requests_of_several_units_of_none_and_of_less_than_none_are_told_what_the_server_counts() {
    let server = Server::start();
    let leases = leases(&server, Quota::per_hour(5));
    let alone = leases.take("key", 4).await.expect("a verdict");
    assert_eq!((alone.limited, alone.remaining, alone.taken, alone.at.is_some()), (false, 1, Some(4), true));
    let hopeless = leases.take("key", 6).await.expect("a verdict");
    assert!(hopeless.limited && hopeless.retry_after.is_none());
    let back = leases.take("key", -2).await.expect("a verdict");
    assert_eq!((back.limited, back.remaining), (false, 3));
    let look = leases.take("key", 0).await.expect("a verdict");
    assert_eq!((look.limited, look.remaining), (false, 3));
    let unit = leases.take("other", 1).await.expect("a verdict");
    assert_eq!((unit.taken, unit.at.is_some()), (Some(1), true));
}

#[tokio::test]
async fn an_error_fails_the_requests_that_it_is_the_reply_to_and_later_ones_are_asked_for() {
    let server = Server::start();
    let leases = leases(&server, HOURLY);
    let () = server.call("SET key x");
    let mut requests = JoinSet::new();
    for _ in 0..10 {
        let leases = leases.clone();
        requests.spawn(async move { leases.take("key", 1).await });
    }
    for reply in requests.join_all().await {
        assert_eq!(reply.expect_err("a text is no limiter").code(), Some("WRONGTYPE"));
    }
    let _: i64 = server.call("DEL key");
    assert!(!leases.take("key", 1).await.expect("a verdict").limited);
}

#[tokio::test]
async fn a_server_without_the_module_is_named_in_the_error() {
    let server = Server::without_module();
    let error = leases(&server, HOURLY).take("key", 1).await.expect_err("no such command");
    assert!(error.to_string().contains("has not loaded the redis-rl module"), "{error}");
}

#[tokio::test]
async fn requests_that_are_dropped_take_nothing() {
    let server = Server::start();
    let leases = leases(&server, HOURLY);
    server.freeze();
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let leases = leases.clone();
            tokio::spawn(async move { leases.take("key", 1).await })
        })
        .collect();
    // Until each has asked.
    tokio::task::yield_now().await;
    let mut tasks = tasks.into_iter();
    let first = tasks.next().expect("a task");
    for task in tasks {
        task.abort();
        let _ = task.await;
    }
    server.thaw();
    assert!(!first.await.expect("no panic").expect("a verdict").limited);
    leases.close().await;
    assert_eq!(server.used("key"), 1);
}

#[test]
fn requests_of_another_runtime_are_served_after_the_one_that_asked_has_ended() {
    let server = Server::start();
    let leases = Leases::new(server.client("resp3"), Algorithm::Log, HOURLY).units(64).ttl(PATIENCE);
    let runtime = other_runtime();
    server.freeze();
    {
        let leases = leases.clone();
        runtime.spawn(async move { leases.take("key", 1).await });
        // Until it is in flight.
        runtime.block_on(tokio::task::yield_now());
        runtime.block_on(tokio::task::yield_now());
    }
    runtime.shutdown_background();
    server.thaw();
    other_runtime().block_on(async {
        // The connection was of the runtime that has ended; a manager makes another.
        let mut tries = 0;
        while leases.take("key", 1).await.is_err() {
            tries += 1;
            assert!(tries < 10, "each is answered, and one of them by the server");
        }
    });
}

fn other_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[tokio::test]
async fn on_a_cluster_each_key_has_a_lease_on_its_node() {
    let cluster = Cluster::start();
    let redis = cluster.redis().timeout(PATIENCE);
    let leases = Leases::new(redis, Algorithm::Fixed, HOURLY).units(64).ttl(PATIENCE);
    for key in 0..30 {
        for _ in 0..5 {
            assert!(!leases.take(format!("key:{key}"), 2).await.expect("a verdict").limited);
        }
    }
    leases.close().await;
    assert_eq!(cluster.redirections(), 0);
    let mut connection = cluster.client().get_connection().expect("the cluster answers");
    for key in 0..30 {
        assert_eq!(used(&mut connection, &format!("key:{key}")), 10);
    }
}
