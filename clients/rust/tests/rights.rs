//! The package as the user that the module's page on operations gives to applications.

mod server;

use redis_rl_client::{Algorithm, All, Quota, RlCommands};
use server::{Cluster, Server};

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

fn all() -> All {
    All::new().key("limit:{a}:requests", Algorithm::Log, HOURLY, 1).key(
        "limit:{a}:tokens",
        Algorithm::Sliding,
        HOURLY,
        40,
    )
}

/// Every command that the user may call, on its keys.
fn call_all(connection: &mut impl RlCommands) {
    connection.rl_fixed("limit:fixed", HOURLY, 1).expect("a verdict");
    connection.rl_sliding("limit:sliding", HOURLY, 1).expect("a verdict");
    connection.rl_log("limit:log", HOURLY, 1).expect("a verdict");
    connection.rl_bucket("limit:bucket", HOURLY, 1).expect("a verdict");
    connection.rl_peek("limit:log", HOURLY, 1).expect("a verdict");
    connection.rl_all(&all()).expect("a decision");
    assert_eq!(connection.rl_reset("limit:log"), Ok(true));
}

#[test]
fn a_connection_needs_no_more_rights_than_those_of_its_commands() {
    let server = server();
    for protocol in ["resp2", "resp3"] {
        let mut connection = server.client(protocol).get_connection().expect("the server answers");
        call_all(&mut connection);
        let error = connection.rl_log("other", HOURLY, 1).expect_err("no right");
        assert_eq!(error.code(), Some("NOPERM"));
        let error = connection.rl_info("limit:log").expect_err("no right");
        assert_eq!(error.code(), Some("NOPERM"));
    }
}

#[test]
fn a_cluster_connection_needs_the_rights_to_find_the_nodes_too() {
    let mut cluster = Cluster::start();
    cluster.log_in("app", "secret", &format!("{USER}{CLUSTER}"));
    let mut connection = cluster.client().get_connection().expect("the cluster answers");
    call_all(&mut connection);
}

#[cfg(feature = "tokio-comp")]
mod asynchronous {
    use redis_rl_client::{Algorithm, RlAsyncCommands};

    use super::*;

    async fn call_all<C: RlAsyncCommands + Clone + 'static>(connection: &mut C) {
        connection.rl_fixed("limit:fixed", HOURLY, 1).await.expect("a verdict");
        connection.rl_sliding("limit:sliding", HOURLY, 1).await.expect("a verdict");
        connection.rl_log("limit:log", HOURLY, 1).await.expect("a verdict");
        connection.rl_bucket("limit:bucket", HOURLY, 1).await.expect("a verdict");
        connection.rl_peek("limit:log", HOURLY, 1).await.expect("a verdict");
        connection.rl_all(&all()).await.expect("a decision");
        connection.rl_acquire(Algorithm::Log, "limit:log", HOURLY, 1).await.expect("a verdict");
        assert_eq!(connection.rl_reset("limit:log").await, Ok(true));
    }

    #[tokio::test]
    async fn multiplexed_connections_and_managers_need_no_more_rights_than_those_of_their_commands() {
        let server = server();
        for protocol in ["resp2", "resp3"] {
            call_all(&mut server.connect_async(protocol).await).await;
            call_all(&mut server.manager(protocol).await).await;
        }
    }

    #[tokio::test]
    async fn a_cluster_connection_needs_the_rights_to_find_the_nodes_too() {
        let mut cluster = Cluster::start();
        cluster.log_in("app", "secret", &format!("{USER}{CLUSTER}"));
        call_all(&mut cluster.client().get_async_connection().await.expect("the cluster answers")).await;
    }

    #[cfg(feature = "tower")]
    #[tokio::test]
    async fn a_limiter_takes_refuses_and_settles() {
        use redis_rl_client::web::{Fail, Guard, Policy};

        let server = server();
        let policy = Policy::new("limit", "5/1h").expect("a policy");
        for (client, units) in [("a", 0), ("b", 64)] {
            let guard = Guard::new(server.client("resp3"), policy.clone().lease(units)).expect("a policy");
            let guard = guard.timeout(server::PATIENCE).fail(Fail::Closed);
            let reserved = guard.take(client, 5).await.expect("an admission");
            assert_eq!(guard.take(client, 1).await.unwrap_err().status(), 429);
            guard.settle(&reserved, 2).await.expect("it is settled");
            assert_eq!(reserved.decision().map(|decision| decision.rows[0].remaining), Some(3));
            guard.close().await;
        }
    }
}
