//! Networks that fall silent, are slow, and lose replies, between the package and real servers.

use std::time::{Duration, Instant};

use crate::server::forwarder::Forwarder;
use crate::server::{Cluster, PATIENCE, Server, used};
use redis_rl_client::web::{Fail, Guard, Outage, Policy};
use redis_rl_client::{Algorithm, Leases, Quota, Redis, RlCommands};
use tokio::task::JoinSet;
use tokio::time::timeout;

const HOURLY: Quota = Quota::per_hour(1_000_000);

fn guard(redis: impl Into<Redis>) -> Guard {
    Guard::new(redis, Policy::new("requests", HOURLY).expect("a policy")).expect("a policy")
}

/// Whether Redis decides a request of this client.
async fn is_decided(guard: &Guard, client: &str) -> bool {
    let admission = guard.take(client, 1).await.expect("no limit is near");
    !admission.policies().is_empty()
}

/// Waits until decisions are back.
async fn decided(guard: &Guard, client: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !is_decided(guard, client).await {
        assert!(Instant::now() < deadline, "no decision");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_given_up_and_the_next_decisions_are_made_on_a_new_one() {
    let server = Server::start();
    let network = Forwarder::start(server.port(), Duration::ZERO);
    let guard = guard(network.client());
    decided(&guard, "a").await;
    let before = network.connections();
    network.fall_silent();
    let silent_since = Instant::now();
    assert!(!is_decided(&guard, "a").await);
    decided(&guard, "a").await;
    assert!(silent_since.elapsed() < Duration::from_secs(1), "{:?}", silent_since.elapsed());
    assert_eq!(network.connections(), before + 1);
}

#[tokio::test]
async fn behind_an_address_that_moves_to_a_new_master_decisions_are_back_though_the_old_one_stays_as_a_replica()
 {
    let (old, new) = (Server::start(), Server::start());
    let network = Forwarder::start(old.port(), Duration::ZERO);
    let guards = [Fail::Open, Fail::Closed, Fail::Local].map(|fail| guard(network.client()).fail(fail));
    for guard in &guards {
        decided(guard, "a").await;
    }
    let before = new.calls("RL.LOG");
    network.lead_to(new.port());
    let _: () = old.call(&format!("REPLICAOF 127.0.0.1 {}", new.port()));
    let moved_since = Instant::now();
    for guard in &guards {
        let _ = guard.take("a", 1).await;
    }
    for (taken, guard) in guards.iter().enumerate() {
        while new.calls("RL.LOG") <= before + taken as u64 && moved_since.elapsed() < PATIENCE {
            let _ = guard.take("a", 1).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(moved_since.elapsed() < Duration::from_secs(2), "{:?}", moved_since.elapsed());
    // Each has asked on one new connection.
    assert!(network.connections() <= 2 * guards.len(), "{}", network.connections());
}

#[tokio::test]
async fn at_a_round_trip_of_about_the_timeout_a_guard_goes_local_once_and_stays() {
    let server = Server::start();
    // As with 55 ms and a timeout of 100 ms, but three times as long: a busy machine stalls a test for 10 ms and more.
    let network = Forwarder::start(server.port(), Duration::from_millis(165));
    let redis = Redis::from(network.client()).timeout(Duration::from_millis(300));
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let hear = told.clone();
    let guard = Guard::new(redis, Policy::new("requests", "100/1h").expect("a policy"));
    let guard = guard.expect("a policy").fail(Fail::Local);
    let guard = guard
        .on_outage(move |outage| hear.lock().expect("no panic").push(matches!(outage, Outage::Begun(_))));
    let (mut passed, since) = (0, Instant::now());
    while since.elapsed() < Duration::from_secs(4) {
        passed += usize::from(guard.take("a", 1).await.is_ok());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let told = told.lock().expect("no panic");
    assert!(told.len() <= 1, "{told:?}");
    assert!(passed <= 110, "{passed}");
}

/// Clients whose keys are on every node.
const CLIENTS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

#[tokio::test]
async fn of_a_cluster_one_silent_connection_is_given_up_though_the_other_nodes_answer() {
    let cluster = Cluster::behind_forwarders(Duration::ZERO);
    let guard = guard(cluster.redis());
    for client in CLIENTS {
        decided(&guard, client).await;
    }
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut traffic = JoinSet::new();
    for client in CLIENTS.into_iter().cycle().take(60) {
        let (guard, stopped) = (guard.clone(), stopped.clone());
        traffic.spawn(async move {
            // How long a request hung, and when the last one was not decided.
            let (mut longest, mut last) = (Duration::ZERO, None);
            while !*stopped.borrow() {
                let asked = Instant::now();
                let is_decided = is_decided(&guard, client).await;
                longest = longest.max(asked.elapsed());
                last = if is_decided { last } else { Some(Instant::now()) };
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (longest, last)
        });
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let silent_since = Instant::now();
    cluster.forwarders[0].fall_silent();
    tokio::time::sleep(Duration::from_secs(2)).await;
    stop.send_replace(true);
    let results = traffic.join_all().await;
    let longest = results.iter().map(|(longest, _)| *longest).max().expect("some requests");
    assert!(longest < Duration::from_millis(500), "a request hung for {longest:?}");
    let last = results.iter().filter_map(|(_, last)| *last).max().expect("one of the silent node");
    assert!(last - silent_since < Duration::from_secs(1), "undecided for {:?}", last - silent_since);
    assert!(cluster.forwarders.iter().map(Forwarder::connections).sum::<usize>() <= 5);
}

#[tokio::test]
async fn decisions_are_back_when_a_server_is_that_hung() {
    let server = Server::start();
    let guard = guard(server.client("resp3"));
    decided(&guard, "a").await;
    server.freeze();
    for _ in 0..10 {
        let asked = Instant::now();
        assert!(!is_decided(&guard, "a").await);
        assert!(asked.elapsed() < Duration::from_millis(500), "{:?}", asked.elapsed());
    }
    server.thaw();
    let back_since = Instant::now();
    decided(&guard, "a").await;
    assert!(back_since.elapsed() < Duration::from_secs(1), "{:?}", back_since.elapsed());
}

#[tokio::test]
async fn a_connection_that_is_closed_while_it_is_quiet_fails_no_request_and_is_no_outage() {
    let server = Server::start();
    for requests in [1, 100, 10_000] {
        let guard = Guard::new(server.redis(), "1000000/h").expect("a policy").fail(Fail::Closed);
        let guard = guard.on_outage(|outage| panic!("{outage:?}"));
        assert!(guard.take("a", 1).await.is_ok());
        let closed: i64 = server.call("CLIENT KILL TYPE normal SKIPME yes");
        assert_eq!(closed, 1);
        // The runtime sees what has arrived.
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        let mut clients = JoinSet::new();
        for _ in 0..requests {
            let guard = guard.clone();
            clients.spawn(async move { guard.take("a", 1).await.is_ok() });
        }
        assert!(clients.join_all().await.into_iter().all(|passed| passed), "{requests}");
    }
}

#[tokio::test]
async fn a_request_whose_caller_has_left_shows_whether_the_connection_works() {
    let server = Server::start();
    let network = Forwarder::start(server.port(), Duration::ZERO);
    let guard = guard(network.client());
    decided(&guard, "a").await;
    let leave = async || timeout(Duration::from_millis(1), guard.take("a", 1)).await;
    // One that works is kept.
    server.freeze();
    assert!(leave().await.is_err(), "no answer yet");
    server.thaw();
    while leave().await.is_err() {}
    assert_eq!(network.connections(), 1);
    network.fall_silent();
    while network.connections() == 1 {
        let _ = leave().await;
    }
}

/// As with Redis 80 ms away and a timeout of 100 ms, but ten times as long: a busy machine stalls a test for 100 ms and more.
async fn every_request_is_decided_four_fifths_of_the_timeout_away(redis: Redis, lease: u64) {
    let policies = [Policy::new("a", HOURLY), Policy::new("b", [Quota::per_hour(999_999)])];
    let [a, b] = policies.map(|policy| policy.expect("a policy"));
    let guard = Guard::new(redis.timeout(Duration::from_secs(1)), [a.lease(lease), b]).expect("policies");
    let mut clients = JoinSet::new();
    for client in 0..50 {
        let guard = guard.clone();
        clients.spawn(async move {
            for _ in 0..5 {
                let admission =
                    guard.take(format!("client {}", client % 7), ()).await.expect("no limit is near");
                assert!(!admission.policies().is_empty(), "Redis is away");
            }
        });
    }
    clients.join_all().await;
}

#[tokio::test]
async fn with_redis_or_a_cluster_four_fifths_of_the_timeout_away_every_request_is_decided_with_leases_too() {
    let delay = Duration::from_millis(400);
    let (server, cluster) = (Server::start(), Cluster::behind_forwarders(delay));
    let network = Forwarder::start(server.port(), delay);
    let (redis, cluster) = (Redis::from(network.client()), cluster.redis());
    // On connections of their own.
    let by =
        |redis: &Redis, lease| every_request_is_decided_four_fifths_of_the_timeout_away(redis.clone(), lease);
    tokio::join!(by(&redis, 0), by(&redis, 100), by(&cluster, 0), by(&cluster, 100));
}

/// A give-back and the next lease leave together: neither waits for the other.
#[tokio::test]
async fn on_a_cluster_a_hot_key_waits_for_one_round_trip_at_most() {
    let delay = Duration::from_millis(60);
    let cluster = Cluster::behind_forwarders(delay);
    let leases = Leases::new(cluster.redis().timeout(PATIENCE), Algorithm::Log, HOURLY).units(8);
    leases.take("hot", 1).await.expect("a verdict");
    let mut spent = Vec::new();
    for _ in 0..30 {
        let asked = Instant::now();
        leases.take("hot", 1).await.expect("a verdict");
        spent.push(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    spent.sort_unstable();
    // Two round trips would take longer.
    assert!(spent[spent.len() * 9 / 10] < delay * 4, "{spent:?}");
}

/// What is used of a key of which five units were taken and some were given back over networks that lose the reply.
async fn used_after_a_lost_give_back(direct: impl RlCommands, redis: Redis, networks: &[Forwarder]) -> u64 {
    let policy = Policy::new("tokens", HOURLY).expect("a policy");
    let guard = Guard::new(redis.timeout(PATIENCE), policy).expect("a policy").fail(Fail::Closed);
    let reserved = guard.take("a", 5).await.expect("an admission");
    networks.iter().for_each(Forwarder::lose_a_reply);
    guard.settle(&reserved, 4).await.expect("it is settled");
    assert!(networks.iter().any(|network| !network.is_to_lose_a_reply()), "the reply is lost");
    let lost_since = Instant::now();
    while guard.take("b", 1).await.is_err() {}
    assert!(lost_since.elapsed() < Duration::from_secs(1), "{:?}", lost_since.elapsed());
    used(direct, "tokens:a")
}

#[tokio::test]
async fn a_give_back_whose_reply_is_lost_is_not_sent_again_nor_is_it_on_a_cluster() {
    let server = Server::start();
    let network = [Forwarder::start(server.port(), Duration::ZERO)];
    let redis = network[0].client().into();
    assert_eq!(used_after_a_lost_give_back(server.connect(), redis, &network).await, 4);
    let cluster = Cluster::behind_forwarders(Duration::ZERO);
    let direct = cluster.client().get_connection().expect("the cluster answers");
    assert_eq!(used_after_a_lost_give_back(direct, cluster.redis(), &cluster.forwarders).await, 4);
}

#[tokio::test]
async fn close_returns_though_the_server_is_silent() {
    let server = Server::start();
    let redis = || Redis::from(server.client("resp3")).timeout(Duration::from_millis(10));
    let leases = Leases::new(redis(), Algorithm::Log, [HOURLY]).units(8);
    for _ in 0..4 {
        while leases.take("a", 1).await.is_err() {}
    }
    server.freeze();
    let waiting = leases.clone();
    let waiting = tokio::spawn(async move { waiting.take("b", 1).await });
    let closing = Instant::now();
    leases.close().await;
    assert!(closing.elapsed() < Duration::from_secs(1), "{:?}", closing.elapsed());
    waiting.abort();
    let policy = Policy::new("requests", HOURLY).expect("a policy").lease(8);
    let guard = Guard::new(redis(), policy).expect("a policy");
    assert!(guard.take("a", 1).await.expect("it passes").policies().is_empty());
    let closing = Instant::now();
    guard.close().await;
    assert!(closing.elapsed() < Duration::from_secs(1), "{:?}", closing.elapsed());
}
