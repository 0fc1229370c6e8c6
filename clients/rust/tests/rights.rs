//! The package as the user that the module's page on operations gives to applications.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redis::{Cmd, Value};
use redis_rl_client::web::{Fail, Outage};
use redis_rl_client::{Algorithm, All, Places, Quota, RlAsyncCommands, RlCommands, cmd};

use crate::limits::{Warnings, guard, policy};
use crate::server::{Cluster, Server};

const HOURLY: Quota = Quota::per_hour(100);

const USER: &str = "ACL SETUSER app on >secret ~limit:* -@all +@connection -@dangerous \
    +del +rl.fixed +rl.sliding +rl.log +rl.bucket +rl.all +rl.peek";
/// What connections to a cluster need too.
const CLUSTER: &str = " +cluster|slots +cluster|shards +cluster|nodes +command";

fn server() -> Server {
    let mut server = Server::start();
    let _: () = server.call(USER);
    server.log_in("app", "secret");
    server
}

/// Every command that the user may call, on its keys.
fn commands() -> [Cmd; 7] {
    let all = All::new().key("limit:{a}:requests", Algorithm::Log, HOURLY, 1);
    [
        cmd::fixed("limit:fixed", HOURLY, 1),
        cmd::sliding("limit:sliding", HOURLY, 1),
        cmd::log("limit:log", HOURLY, 1),
        cmd::bucket("limit:bucket", HOURLY, 1),
        cmd::peek("limit:log", HOURLY, 1),
        cmd::all(&all.key("limit:{a}:tokens", Algorithm::Sliding, HOURLY, 40)),
        cmd::reset("limit:log"),
    ]
}

fn call_all(connection: &mut impl RlCommands) {
    for command in commands() {
        let _: Value = command.query(connection).expect("the right");
    }
}

async fn call_all_async<C: RlAsyncCommands + Clone + 'static>(mut connection: C) {
    for command in commands() {
        let _: Value = command.query_async(&mut connection).await.expect("the right");
    }
}

#[tokio::test]
async fn connections_need_no_more_rights_than_those_of_their_commands() {
    let server = server();
    for protocol in ["resp2", "resp3"] {
        let mut connection = server.client(protocol).get_connection().expect("the server answers");
        call_all(&mut connection);
        call_all_async(server.connect_async(protocol).await).await;
        call_all_async(server.manager(protocol).await).await;
        let error = connection.rl_log("other", HOURLY, 1).expect_err("no right");
        assert_eq!(error.code(), Some("NOPERM"));
        let error = connection.rl_info("limit:log").expect_err("no right");
        assert_eq!(error.code(), Some("NOPERM"));
    }
}

#[tokio::test]
async fn cluster_connections_need_the_rights_to_find_the_nodes_too() {
    let mut cluster = Cluster::start();
    cluster.log_in("app", "secret", &format!("{USER}{CLUSTER}"));
    call_all(&mut cluster.client().get_connection().expect("the cluster answers"));
    call_all_async(cluster.client().get_async_connection().await.expect("the cluster answers")).await;
}

#[tokio::test]
async fn a_guard_takes_refuses_and_settles() {
    let server = server();
    for (client, units) in [("a", 0), ("b", 64)] {
        let guard = guard(&server, policy("limit", "5/1h").lease(units)).fail(Fail::Closed);
        let reserved = guard.take(client, 5).await.expect("an admission");
        assert_eq!(guard.take(client, 1).await.unwrap_err().status(), 429);
        guard.settle(&reserved, 2).await.expect("it is settled");
        assert!(guard.take(client, 3).await.is_ok());
        guard.close().await;
    }
}

#[tokio::test]
async fn a_key_without_the_right_to_it_makes_redis_away_for_no_other() {
    let server = server();
    let places = Places::new(server.redis());
    let error = places.hold("other", 1).await.expect_err("no right");
    assert_eq!(error.code(), Some("NOPERM"));
    assert!(places.hold("limit:jobs", 1).await.expect("an answer").is_some());
}

#[tokio::test]
async fn a_hook_is_told_once_of_a_key_without_the_right_to_it_however_many_requests_come() {
    let server = server();
    for requests in [1, 100, 10_000] {
        let (told, heard) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let hear = told.clone();
        let guard = guard(&server, policy("other", "5/1h")).on_outage(move |outage| {
            assert!(matches!(outage, Outage::Begun(why) if why.code() == Some("NOPERM")));
            hear.fetch_add(1, Ordering::Relaxed);
        });
        let taking = (0..requests).map(|_| {
            let (guard, heard) = (guard.clone(), heard.clone());
            tokio::spawn(async move {
                heard.fetch_add(usize::from(guard.take("a", 1).await.is_ok()), Ordering::Relaxed)
            })
        });
        for taken in taking.collect::<Vec<_>>() {
            taken.await.expect("no panic");
        }
        assert_eq!([told.load(Ordering::Relaxed), heard.load(Ordering::Relaxed)], [1, requests]);
    }
}

#[tokio::test]
async fn the_log_names_the_keys_that_a_guard_lacks_the_right_to_and_not_whose_they_are() {
    let server = server();
    let warnings = Warnings::default();
    let _subscribed = tracing::subscriber::set_default(warnings.clone());
    let guard = guard(&server, [policy("plan", "5/1h"), policy("day", "9/1d")]).prefix("app:");
    assert!(guard.take("alice", ()).await.is_ok());
    let warnings = warnings.told();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("give the user ~app:plan:* ~app:day:* by ACL SETUSER"), "{warning}");
    assert!(!warning.contains("alice"), "{warning}");
}
