//! Networks that fall silent, are slow, and lose replies, between the package and real servers.

mod server;

use std::time::{Duration, Instant};

use redis_rl_client::web::{Limiter, Policy};
use redis_rl_client::{Algorithm, Leases, Quota, Reconnecting, RlAsyncCommands, RlCommands};
use server::forwarder::Forwarder;
use server::{Cluster, PATIENCE, Server};
use tokio::time::timeout;

const HOURLY: Quota = Quota::per_hour(1_000_000);

fn limiter(redis: Reconnecting) -> Limiter<Reconnecting> {
    Limiter::new(redis, Policy::new("requests", HOURLY).expect("a policy"))
}

/// Whether Redis decides a request of this client.
async fn is_decided(limiter: &Limiter<Reconnecting>, client: &str) -> bool {
    let admission = limiter.take(client, 1).await.expect("no limit is near");
    admission.decision().is_some()
}

/// Waits until decisions are back.
async fn decided(limiter: &Limiter<Reconnecting>, client: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !is_decided(limiter, client).await {
        assert!(Instant::now() < deadline, "no decision");
    }
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_given_up_and_the_next_decisions_are_made_on_a_new_one() {
    let server = Server::start();
    let network = Forwarder::start(server.port(), Duration::ZERO);
    let limiter = limiter(Reconnecting::new(network.client()));
    decided(&limiter, "a").await;
    let before = network.connections();
    network.fall_silent();
    let silent_since = Instant::now();
    assert!(!is_decided(&limiter, "a").await);
    decided(&limiter, "a").await;
    assert!(silent_since.elapsed() < Duration::from_secs(1), "{:?}", silent_since.elapsed());
    assert_eq!(network.connections(), before + 1);
}

#[tokio::test]
async fn of_a_cluster_one_silent_connection_is_given_up_too() {
    let cluster = Cluster::behind_forwarders();
    let limiter = limiter(Reconnecting::cluster(cluster.builder()).expect("addresses"));
    // Keys on every node.
    let clients = ["a", "b", "c", "d", "e", "f"];
    for client in clients {
        decided(&limiter, client).await;
    }
    cluster.forwarders[0].fall_silent();
    let silent_since = Instant::now();
    for client in clients {
        decided(&limiter, client).await;
    }
    assert!(silent_since.elapsed() < Duration::from_secs(1), "{:?}", silent_since.elapsed());
}

#[tokio::test]
async fn decisions_are_back_when_a_server_is_that_hung() {
    let server = Server::start();
    let limiter = limiter(Reconnecting::new(server.client("resp3")));
    decided(&limiter, "a").await;
    server.freeze();
    for _ in 0..10 {
        assert!(!is_decided(&limiter, "a").await);
    }
    server.thaw();
    let back_since = Instant::now();
    decided(&limiter, "a").await;
    assert!(back_since.elapsed() < Duration::from_secs(1), "{:?}", back_since.elapsed());
}

#[tokio::test]
async fn a_command_whose_caller_has_left_shows_whether_its_connection_works() {
    let server = Server::start();
    let network = Forwarder::start(server.port(), Duration::ZERO);
    let mut redis = Reconnecting::new(network.client());
    redis.rl_log("a", HOURLY, 1).await.expect("a verdict");
    let mut leave = async || timeout(Duration::from_millis(1), redis.rl_log("a", HOURLY, 1)).await;
    // One that works is kept.
    server.freeze();
    leave().await.expect_err("no answer yet");
    server.thaw();
    while leave().await.is_err() {}
    assert_eq!(network.connections(), 1);
    network.fall_silent();
    while network.connections() == 1 {
        let _ = leave().await;
    }
}

/// As with Redis 80 ms away and a timeout of 100 ms, but five times as long: a busy machine stalls a test for 20 ms and more.
#[tokio::test]
async fn with_redis_four_fifths_of_the_timeout_away_every_request_is_decided() {
    let server = Server::start();
    let network = Forwarder::start(server.port(), Duration::from_millis(200));
    let patience = Duration::from_millis(500);
    let limiter = limiter(Reconnecting::new(network.client()).timeout(patience)).timeout(patience);
    decided(&limiter, "a").await;
    let clients = (0..50).map(|client| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            for _ in 0..5 {
                assert!(is_decided(&limiter, &format!("client {}", client % 7)).await);
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("decisions");
    }
}

/// What is used of a key of which five units were taken and one was given back over a network that loses the reply.
async fn used_after_a_lost_give_back(
    mut direct: impl RlCommands,
    mut redis: impl RlAsyncCommands,
    networks: &[Forwarder],
) -> u64 {
    direct.rl_log("a", HOURLY, 5).expect("a verdict");
    redis.rl_peek("a", HOURLY, 1).await.expect("the connection is there");
    networks.iter().for_each(Forwarder::lose_a_reply);
    redis.rl_log("a", HOURLY, -1).await.expect_err("the reply is lost");
    direct.rl_info("a").expect("a reply").expect("a key").windows[0].used
}

#[tokio::test]
async fn a_give_back_whose_reply_is_lost_is_not_sent_again() {
    let server = Server::start();
    let network = [Forwarder::start(server.port(), Duration::ZERO)];
    let redis = Reconnecting::new(network[0].client());
    assert_eq!(used_after_a_lost_give_back(server.connect(), redis, &network).await, 4);
}

#[tokio::test]
async fn nor_is_it_on_a_cluster() {
    let cluster = Cluster::behind_forwarders();
    let redis = Reconnecting::cluster(cluster.builder()).expect("addresses");
    let direct = cluster.client().get_connection().expect("the cluster answers");
    assert_eq!(used_after_a_lost_give_back(direct, redis, &cluster.forwarders).await, 4);
}

#[tokio::test]
async fn close_returns_though_the_server_is_silent() {
    let server = Server::start();
    let connection = server.connect_async("resp3").await;
    let leases = Leases::new(connection, Algorithm::Log, [HOURLY]).units(8);
    for _ in 0..4 {
        leases.take("a", 1).await.expect("a verdict");
    }
    server.freeze();
    let waiting = leases.clone();
    let waiting = tokio::spawn(async move { waiting.take("b", 1).await });
    let closing = Instant::now();
    leases.close().await;
    assert!(closing.elapsed() < Duration::from_secs(5), "{:?}", closing.elapsed());
    waiting.abort();
    let policy = Policy::new("requests", HOURLY).expect("a policy").lease(8);
    let limiter = Limiter::new(server.manager("resp2"), policy).timeout(Duration::from_millis(10));
    assert!(limiter.take("a", 1).await.expect("it passes").decision().is_none());
    let closing = Instant::now();
    limiter.close().await;
    assert!(closing.elapsed() < Duration::from_secs(1), "{:?}", closing.elapsed());
}
