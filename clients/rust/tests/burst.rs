//! Many requests at once, through the tower layer on a real server: as many pass as the limit says, however busy the
//! process is. Only a server that does not answer ends the wait.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use crate::server::{Cluster, PATIENCE, Server};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::get;
use redis_rl_client::Redis;
use redis_rl_client::web::{Fail, Guard, Policy};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tower::ServiceExt;

/// A server answers within this time, however busy the machine is.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Work of the application's own that keeps a thread busy for longer than that.
const WORK: Duration = Duration::from_millis(1_500);

/// A runtime with so many threads.
fn runtime(threads: usize) -> Runtime {
    let mut builder = if threads == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.worker_threads(threads).enable_all().build().expect("a runtime")
}

/// Keeps so many threads busy at once.
async fn work(busy: usize) {
    let together = Arc::new(Barrier::new(busy));
    let work = (0..busy).map(|_| {
        let together = together.clone();
        async move {
            together.wait();
            thread::sleep(WORK);
        }
    });
    work.collect::<JoinSet<_>>().join_all().await;
}

/// Five requests of each client.
fn policy() -> Policy {
    Policy::new("requests", "5/1h").expect("a policy")
}

fn guard(redis: impl Into<Redis>, fail: Fail, timeout: Duration) -> Guard {
    Guard::new(redis, policy()).expect("a policy").timeout(timeout).fail(fail)
}

/// A service that lets five requests of each client pass.
fn app(guard: Guard) -> Router {
    let guard = guard.key(|head| head.uri.query().map(str::to_owned));
    Router::new().route("/", get("hello").route_layer(guard.layer()))
}

async fn status(app: Router, client: String) -> StatusCode {
    let request = Request::get(format!("/?{client}")).body(Body::empty()).expect("a request");
    app.oneshot(request).await.expect("a response").status()
}

/// How often 200, 429 and 503 are the answer to so many requests of a client at once.
async fn burst(app: &Router, client: &str, requests: usize) -> [usize; 3] {
    let requests = (0..requests).map(|_| status(app.clone(), client.to_owned()));
    let mut counts = [0; 3];
    for status in requests.collect::<JoinSet<_>>().join_all().await {
        let expected = [200, 429, 503].iter().position(|expected| *expected == status.as_u16());
        counts[expected.unwrap_or_else(|| panic!("{status}"))] += 1;
    }
    counts
}

const FAILS: [Fail; 2] = [Fail::Open, Fail::Closed];

/// With connections that are yet to be made, and with those that are there then.
fn exactly_the_limit_passes(redis: &Redis, fails: &[Fail], threads: usize, busy: usize, requests: &[usize]) {
    runtime(threads).block_on(async {
        let apps: Vec<_> = fails.iter().map(|fail| app(guard(redis.clone(), *fail, TIMEOUT))).collect();
        for connection in ["cold", "warm"] {
            let mut bursts = JoinSet::new();
            for (app, fail) in apps.iter().zip(fails) {
                for &requests in requests {
                    let client = format!("{fail:?}-{threads}-{busy}-{requests}-{connection}");
                    let app = app.clone();
                    bursts.spawn(async move {
                        assert_eq!(burst(&app, &client, requests).await, [5, requests - 5, 0], "{client}");
                    });
                }
            }
            // Until each has sent its requests.
            tokio::task::yield_now().await;
            work(busy).await;
            bursts.join_all().await;
        }
    });
}

#[test]
fn exactly_the_limit_passes_also_while_threads_are_busy_for_longer_than_the_timeout() {
    let server = Server::start();
    let redis = server.client("resp3").into();
    for (threads, busy) in [(1, 0), (2, 0), (1, 1), (2, 1), (2, 2)] {
        exactly_the_limit_passes(&redis, &FAILS, threads, busy, &[20, 200, 1_000]);
    }
    for threads in [1, 2] {
        exactly_the_limit_passes(&redis, &[Fail::Closed], threads, 1, &[10_000]);
    }
}

#[test]
fn exactly_the_limit_passes_on_a_cluster_too() {
    let cluster = Cluster::start();
    for threads in [1, 2] {
        exactly_the_limit_passes(&cluster.redis(), &FAILS, threads, threads, &[20, 200]);
    }
}

#[test]
fn exactly_the_limit_passes_with_leases_and_remembered_refusals_too() {
    let server = Server::start();
    for threads in [1, 2] {
        runtime(threads).block_on(async {
            for (units, remember) in [(64, Duration::ZERO), (0, PATIENCE), (64, PATIENCE)] {
                let guard = Guard::new(server.client("resp3"), policy().lease(units)).expect("a policy");
                let app = app(guard.timeout(TIMEOUT).remember(remember).fail(Fail::Closed));
                let client = format!("{threads}-{units}-{remember:?}");
                assert_eq!(burst(&app, &client, 200).await, [5, 195, 0], "{client}");
            }
        });
    }
}

/// How a server is kept from answering, and how it is let go.
type Outage = (&'static str, fn(&mut Server), fn(&mut Server));

const OUTAGES: [Outage; 3] = [
    ("stopped", |server| server.freeze(), |server| server.thaw()),
    ("paused", |server| server.call("CLIENT PAUSE 100000000 WRITE"), |server| server.call("CLIENT UNPAUSE")),
    ("killed", |server| server.kill(), |server| server.restart()),
];

#[test]
fn the_timeout_ends_the_wait_for_a_server_that_is_stopped_paused_or_killed_and_then_all_is_as_before() {
    for (outage, begin, end) in OUTAGES {
        for threads in [1, 2] {
            let mut server = Server::start();
            runtime(threads).block_on(async {
                let by = |fail, timeout| app(guard(server.client("resp3"), fail, timeout));
                // Short, to be waited for often.
                let [open, closed] = FAILS.map(|fail| by(fail, TIMEOUT / 20));
                let patient = by(Fail::Closed, TIMEOUT);
                for app in [&open, &closed] {
                    status(app.clone(), "before".to_owned()).await;
                }
                begin(&mut server);
                assert_eq!(burst(&open, "during", 200).await, [200, 0, 0], "{outage}");
                assert_eq!(burst(&closed, "during", 200).await, [0, 0, 200], "{outage}");
                end(&mut server);
                let deadline = tokio::time::Instant::now() + PATIENCE;
                while status(closed.clone(), "anyone".to_owned()).await == StatusCode::SERVICE_UNAVAILABLE {
                    assert!(tokio::time::Instant::now() < deadline, "{outage}: waited in vain for Redis");
                }
                assert_eq!(burst(&patient, "after", 200).await, [5, 195, 0], "{outage}");
            });
        }
    }
}
