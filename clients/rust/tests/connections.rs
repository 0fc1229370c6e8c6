//! Every kind of connection that redis-rs has, on real servers and a real cluster.

use std::fs;
use std::pin::Pin;
use std::process::Command;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use redis::aio::ConnectionLike;
use redis::auth::{BasicAuth, StreamingCredentialsProvider};
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, RedisResult, TlsCertificates, TlsMode};
use redis_rl_client::web::{Fail, Guard};
use redis_rl_client::{
    Acquire, Algorithm, All, Info, Leases, Quota, Redis, RlAsyncCommands, RlCommands, Take, Verdict,
    Verdicts, cmd,
};
use tempfile::TempDir;

use crate::limits::policy;
use crate::server::{Cluster, PATIENCE, Sentinel, Server, free_port, noon, wait_for};

const HOURLY: Quota = Quota::per_hour(100);

fn remaining(remaining: u64) -> Verdict {
    Verdict {
        limited: false,
        limit: 100,
        remaining,
        retry_after: None,
        reset_after: Duration::from_secs(3_600),
        taken: None,
        at: None,
    }
}

#[test]
fn a_client_and_a_connection_have_the_commands() {
    let server = Server::start();
    let mut client = server.client("resp2");
    let mut connection = server.connect();
    assert_eq!(client.rl_log("a", HOURLY, Take::cost(1).at(noon())), Ok(remaining(99)));
    assert_eq!(connection.rl_log("a", [HOURLY], Take::cost(2).at(noon())), Ok(remaining(97)));
    assert_eq!(connection.rl_log(b"a", vec![HOURLY], Take::cost(2).at(noon())), Ok(remaining(95)));
}

#[test]
fn a_server_without_the_module_is_named_in_the_error() {
    let server = Server::without_module();
    let error = server.connect().rl_log("a", HOURLY, 1).expect_err("no such command");
    assert!(error.to_string().contains("has not loaded the redis-rl module"), "{error}");
    assert!(error.to_string().contains("unknown command 'RL.LOG'"), "{error}");
}

#[test]
fn keys_are_any_bytes() {
    let server = Server::start();
    let mut connection = server.connect();
    let key = [0u8, 0xff, b'\r', b'\n', b' '];
    connection.rl_fixed(&key, HOURLY, 3).expect("a verdict");
    let info = connection.rl_info(&key[..]).expect("a reply").expect("a key");
    assert_eq!((info.algorithm, info.windows[0].used), (Algorithm::Fixed, 3));
}

#[test]
fn a_part_of_a_millisecond_is_a_whole_one_in_a_window_and_none_in_a_time() {
    let server = Server::start();
    let mut connection = server.connect();
    let quota = Quota::new(5, Duration::from_micros(1_001));
    let at = noon() + Duration::from_micros(999);
    let verdict = connection.rl_log("a", quota, Take::cost(1).at(at)).expect("a verdict");
    assert_eq!(verdict.reset_after, Duration::from_millis(2));
    let verdict = connection.rl_log("b", HOURLY, Take::cost(1).at(at)).expect("a verdict");
    assert_eq!(connection.rl_peek("b", HOURLY, Take::cost(1).at(noon())), Ok(verdict));
}

#[test]
fn a_pipeline_takes_the_commands_and_answers_verdicts() {
    let server = Server::start();
    let take = Take::cost(1).at(noon());
    let mut pipeline = redis::pipe();
    pipeline.add_command(cmd::log("a", HOURLY, take)).add_command(cmd::sliding("b", HOURLY, 40));
    pipeline.add_command(cmd::info("b")).add_command(cmd::info("c")).add_command(cmd::all(
        &All::new().key("a", Algorithm::Log, HOURLY, 1).key("d", Algorithm::Fixed, HOURLY, 2),
    ));
    let (verdict, _, sliding, missing, all): (Verdict, Verdict, Option<Info>, Option<Info>, Verdicts) =
        pipeline.atomic().query(&mut server.connect()).expect("replies");
    assert_eq!((verdict, all.rows.len()), (remaining(99), 2));
    assert_eq!(sliding.map(|info| info.windows[0].used), Some(40));
    assert_eq!(missing, None);
}

#[test]
fn a_cluster_connection_finds_the_node_of_each_key() {
    let cluster = Cluster::start();
    let client = cluster.client();
    let mut connection = client.get_connection().expect("the cluster answers");
    for client in 0..60 {
        let take = Take::cost(1).at(noon());
        assert_eq!(connection.rl_log(format!("log:{client}"), HOURLY, take), Ok(remaining(99)));
        connection.rl_fixed(format!("fixed:{client}"), HOURLY, 1).expect("a verdict");
        connection.rl_sliding(format!("sliding:{client}"), HOURLY, 1).expect("a verdict");
        connection.rl_peek(format!("log:{client}"), HOURLY, 1).expect("a verdict");
        connection.rl_info(format!("log:{client}")).expect("a reply").expect("a key");
    }
    assert_eq!(cluster.redirections(), 0);
    let keys = cluster.keys();
    assert_eq!(keys.iter().sum::<usize>(), 180);
    assert!(keys.iter().all(|keys| *keys > 0), "{keys:?}");
}

#[test]
fn on_a_cluster_several_keys_go_to_the_node_of_their_hash_tag() {
    let cluster = Cluster::start();
    let client = cluster.client();
    let mut connection = client.get_connection().expect("the cluster answers");
    for client in 0..60 {
        let request = All::new()
            .key(format!("{{{client}}}:requests"), Algorithm::Log, [Quota::per_second(5), HOURLY], 1)
            .key(format!("{{{client}}}:tokens"), Algorithm::Sliding, Quota::per_hour(1000), 250)
            .at(noon());
        let decision = connection.rl_all(&request).expect("a decision");
        assert!(!decision.limited);
        assert_eq!(decision.at, noon());
        assert_eq!(decision.rows.iter().map(|row| row.remaining).collect::<Vec<_>>(), [4, 99, 750]);
    }
    assert_eq!(cluster.redirections(), 0);
    let error = connection
        .rl_all(&All::new().key("a", Algorithm::Log, HOURLY, 1).key("b", Algorithm::Log, HOURLY, 1))
        .unwrap_err();
    assert_eq!(error.code(), Some("CROSSSLOT"));
}
/// Each adapter takes units of a limit of three, and is refused the fourth time.
async fn every_adapter_works_on<C>(mut connection: C, redis: Redis)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let three = Quota::per_hour(3);
    let leases = Leases::new(redis.clone(), Algorithm::Sliding, [three]).units(1);
    let acquire = Acquire::new(redis.clone(), Algorithm::Bucket, three).timeout(Duration::from_secs(1));
    let guard = Guard::new(redis, [policy("a", "3/h"), policy("b", "100/h")]).expect("policies");
    for request in 0..4 {
        let is_allowed = request < 3;
        let verdict = connection.rl_log("{x}direct", three, 1).await.expect("a verdict");
        assert_eq!(verdict.limited, !is_allowed);
        assert_eq!(acquire.take("acquired", 1).await.expect("a verdict").limited, !is_allowed);
        let all =
            All::new().key("{x}all", Algorithm::Log, three, 1).key("{x}others", Algorithm::Log, HOURLY, 1);
        assert_eq!(connection.rl_all(&all).await.expect("a decision").limited, !is_allowed);
        assert_eq!(leases.take("leased", 1).await.expect("a verdict").limited, !is_allowed);
        assert_eq!(guard.take("{x}", ()).await.is_ok(), is_allowed);
    }
    leases.close().await;
    assert_eq!(connection.rl_info("missing").await, Ok(None));
    let mut pipeline = redis::pipe();
    pipeline.add_command(cmd::log("{x}direct", three, 0)).add_command(cmd::info("{x}direct"));
    let (verdict, info): (Verdict, Option<Info>) =
        pipeline.query_async(&mut connection).await.expect("replies");
    assert_eq!((verdict.remaining, info.map(|info| info.windows[0].used)), (0, Some(3)));
}
#[tokio::test]
async fn every_adapter_works_on_every_kind_of_connection() {
    let server = Server::start();
    every_adapter_works_on(server.connect_async("resp3").await, server.redis()).await;
    let server = Server::start();
    every_adapter_works_on(server.manager("resp2").await, Redis::from(server.client("resp2"))).await;
    let server = Server::start();
    let sentinel = Sentinel::of(&server);
    let client = move || {
        let address = ConnectionAddr::Tcp("127.0.0.1".into(), sentinel.port);
        SentinelClientBuilder::new([address], "limits", SentinelServerType::Master)?.build()
    };
    let plain = client().expect("addresses").get_async_connection().await.expect("it answers");
    let by_sentinel = Redis::by(move || {
        let client = client();
        async move { client?.async_get_client().await }
    });
    every_adapter_works_on(plain, by_sentinel.timeout(PATIENCE)).await;
    let cluster = Cluster::start();
    let plain = cluster.client().get_async_connection().await.expect("it answers");
    every_adapter_works_on(plain, cluster.redis().timeout(PATIENCE)).await;
    assert_eq!(cluster.redirections(), 0);
}

/// Whether Redis decides.
async fn is_decided(redis: Redis) -> bool {
    let guard = Guard::new(redis.timeout(PATIENCE), "5/h").expect("a policy").fail(Fail::Closed);
    guard.take("a", 1).await.is_ok()
}

/// An authority's certificate, and one of it for 127.0.0.1.
fn certificates() -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    fs::write(folder.path().join("names"), "subjectAltName=IP:127.0.0.1").expect("a file");
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for line in [
        format!("req -x509 {key} -keyout authority.key -subj /CN=authority -out authority"),
        format!("req {key} -keyout key -subj /CN=server -out request"),
        "x509 -req -in request -CA authority -CAkey authority.key -CAcreateserial -extfile names -out certificate".into(),
    ] {
        let made = Command::new("openssl").args(line.split(' ')).current_dir(&folder).output();
        let made = made.expect("openssl runs");
        assert!(made.status.success(), "{line}: {}", String::from_utf8_lossy(&made.stderr));
    }
    folder
}

#[tokio::test]
async fn the_connections_of_a_guard_use_the_tls_of_the_client() {
    let (folder, tls_port) = (certificates(), free_port());
    let port = tls_port.to_string();
    let file = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
    let (authority, certificate, key) = (file("authority"), file("certificate"), file("key"));
    let settings = ["--tls-port", &port, "--tls-auth-clients", "no", "--tls-ca-cert-file", &authority];
    let settings = [&settings[..], &["--tls-cert-file", &certificate, "--tls-key-file", &key]].concat();
    let url = format!("rediss://127.0.0.1:{port}");
    let tls = TlsCertificates { client_tls: None, root_cert: Some(fs::read(&authority).expect("a file")) };
    let trusting = || Client::build_with_tls(url.clone(), tls.clone()).expect("a client");
    {
        let _server = Server::with_module(&settings);
        assert!(is_decided(trusting().into()).await);
        assert!(!is_decided(Client::open(url.clone()).expect("a client").into()).await, "not trusted");
        let of_sentinel = free_port();
        let listens = ["--port", "0", "--tls-port", &of_sentinel.to_string(), "--tls-replication", "yes"];
        let _sentinel = Sentinel::on(of_sentinel, tls_port, &[&listens[..], &settings[2..]].concat());
        for is_trusting in [true, false] {
            let tls = tls.clone();
            let by_sentinel = Redis::by(move || {
                let client = by_sentinel_with_tls(of_sentinel, &tls, is_trusting);
                async move { client?.async_get_client().await }
            });
            assert_eq!(is_decided(by_sentinel).await, is_trusting);
        }
    }
    let node =
        Server::with_module(&[&settings[..], &["--cluster-enabled", "yes", "--tls-cluster", "yes"]].concat());
    let _: () = node.call("CLUSTER ADDSLOTSRANGE 0 16383");
    wait_for("the cluster", || node.call::<String>("CLUSTER INFO").contains("cluster_state:ok"));
    assert!(is_decided(Redis::cluster([trusting()])).await);
}

/// A client of sentinels that trusts them, and the server if it is to.
fn by_sentinel_with_tls(port: u16, tls: &TlsCertificates, is_trusting: bool) -> RedisResult<SentinelClient> {
    let host = "127.0.0.1".to_owned();
    let sentinel = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
    let client = SentinelClientBuilder::new([sentinel], "limits", SentinelServerType::Master)?
        .set_client_to_sentinel_certificates(tls.clone())
        .set_client_to_redis_tls_mode(TlsMode::Secure);
    if is_trusting { client.set_client_to_redis_certificates(tls.clone()).build() } else { client.build() }
}

/// The user `app`.
struct Credentials;

impl StreamingCredentialsProvider for Credentials {
    fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send>> {
        let app = BasicAuth::new("app".to_owned(), "secret".to_owned());
        // Its end would be an error to redis-rs 1.1.
        Box::pin(stream::iter([Ok(app)]).chain(stream::pending()))
    }
}

#[tokio::test]
async fn the_connections_of_a_guard_use_its_credentials_provider() {
    let (server, cluster) = (Server::start(), Cluster::start());
    for node in cluster.nodes.iter().chain([&server]) {
        let _: () = node.call("ACL SETUSER app on >secret ~requests:* +@all");
    }
    let config = || AsyncConnectionConfig::new().set_credentials_provider(Credentials);
    for (redis, nodes) in [(server.redis(), std::slice::from_ref(&server)), (cluster.redis(), &cluster.nodes)]
    {
        let redis = redis.config(config()).timeout(PATIENCE);
        assert!(is_decided(redis.clone()).await);
        let clients: Vec<String> = nodes.iter().map(|node| node.call("CLIENT LIST")).collect();
        assert!(clients.iter().any(|clients| clients.contains(" user=app ")), "{clients:?}");
    }
}
