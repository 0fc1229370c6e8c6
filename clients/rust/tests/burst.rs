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

/// Threads of a runtime.
#[derive(Clone, Copy)]
enum Threads {
    One,
    Two,
}

impl Threads {
    fn runtime(self) -> Runtime {
        let mut builder = match self {
            Threads::One => Builder::new_current_thread(),
            Threads::Two => Builder::new_multi_thread(),
        };
        builder.worker_threads(self.count()).enable_all().build().expect("a runtime")
    }

    fn count(self) -> usize {
        match self {
            Threads::One => 1,
            Threads::Two => 2,
        }
    }

    /// Keeps so many of them busy at once.
    async fn work(self, busy: usize) {
        let together = Arc::new(Barrier::new(busy));
        let work = (0..busy).map(|_| {
            let together = together.clone();
            tokio::spawn(async move {
                together.wait();
                thread::sleep(WORK);
            })
        });
        for work in work.collect::<Vec<_>>() {
            work.await.expect("no panic");
        }
    }
}

/// A service that lets five requests of each client pass.
#[derive(Clone)]
struct App {
    router: Router,
    fail: Fail,
}

impl App {
    fn new(server: &Server, fail: Fail, timeout: Duration) -> App {
        App::on(server.client("resp3").into(), fail, timeout)
    }

    fn on(redis: Redis, fail: Fail, timeout: Duration) -> App {
        let policy = Policy::new("requests", "5/1h").expect("a policy");
        App::by(Guard::new(redis, policy).expect("a policy").timeout(timeout).fail(fail), fail)
    }

    fn by(guard: Guard, fail: Fail) -> App {
        let client = |parts: &axum::http::request::Parts| parts.uri.query().map(str::to_owned);
        let limit = guard.key(client);
        App { router: Router::new().route("/", get("hello").route_layer(limit.layer())), fail }
    }

    async fn status(self, client: String) -> StatusCode {
        let request = Request::get(format!("/?{client}")).body(Body::empty()).expect("a request");
        self.router.oneshot(request).await.expect("a response").status()
    }

    /// How often 200, 429 and 503 are the answer to so many requests of a client at once.
    async fn burst(&self, client: &str, requests: usize) -> [usize; 3] {
        let requests = (0..requests).map(|_| self.clone().status(client.to_owned()));
        let mut counts = [0; 3];
        for status in requests.collect::<JoinSet<_>>().join_all().await {
            let status = status.as_u16();
            let expected = [200, 429, 503].iter().position(|expected| *expected == status);
            counts[expected.unwrap_or_else(|| panic!("{status}"))] += 1;
        }
        counts
    }
}

/// With connections that are yet to be made, and with those that are there then.
fn exactly_the_limit_passes(threads: Threads, requests: &[usize], busy: usize) {
    let server = Server::start();
    threads.runtime().block_on(async {
        let apps = [Fail::Open, Fail::Closed].map(|fail| App::new(&server, fail, TIMEOUT));
        for connection in ["cold", "warm"] {
            exactly_the_limit_passes_in(&apps, connection, threads, requests, busy).await;
        }
    });
}

async fn exactly_the_limit_passes_in(
    apps: &[App],
    connection: &str,
    threads: Threads,
    requests: &[usize],
    busy: usize,
) {
    let mut bursts = JoinSet::new();
    for (app, requests) in apps.iter().flat_map(|app| requests.iter().map(move |n| (app, *n))) {
        let (app, client) = (app.clone(), format!("{:?}-{requests}-{connection}", app.fail));
        bursts.spawn(async move {
            assert_eq!(app.burst(&client, requests).await, [5, requests - 5, 0], "{client}");
        });
    }
    // Until each has sent its requests.
    tokio::task::yield_now().await;
    threads.work(busy).await;
    bursts.join_all().await;
}

#[test]
fn of_many_requests_at_once_exactly_the_limit_passes() {
    exactly_the_limit_passes(Threads::One, &[20, 200, 1_000], 0);
    exactly_the_limit_passes(Threads::Two, &[20, 200, 1_000], 0);
}

#[test]
fn exactly_the_limit_passes_with_leases_and_remembered_refusals_too() {
    let server = Server::start();
    for threads in [Threads::One, Threads::Two] {
        threads.runtime().block_on(async {
            let policy = Policy::new("requests", "5/1h").expect("a policy");
            let by = |units| {
                let policies = policy.clone().lease(units);
                Guard::new(server.client("resp3"), policies)
                    .expect("policies")
                    .timeout(TIMEOUT)
                    .fail(Fail::Closed)
            };
            let apps = [
                App::by(by(64), Fail::Closed),
                App::by(by(0).remember(PATIENCE), Fail::Closed),
                App::by(by(64).remember(PATIENCE), Fail::Closed),
            ];
            for (index, app) in apps.iter().enumerate() {
                let client = format!("{}-{index}", threads.count());
                assert_eq!(app.burst(&client, 200).await, [5, 195, 0], "{client}");
            }
        });
    }
}

#[test]
fn exactly_the_limit_passes_while_the_only_thread_is_busy_for_longer_than_the_timeout() {
    exactly_the_limit_passes(Threads::One, &[20, 200], 1);
}

#[test]
fn exactly_the_limit_passes_while_one_thread_or_all_are_busy_for_longer_than_the_timeout() {
    exactly_the_limit_passes(Threads::Two, &[20, 200], 1);
    exactly_the_limit_passes(Threads::Two, &[20, 200], 2);
}

#[test]
fn of_ten_thousand_requests_at_once_exactly_the_limit_passes_beside_other_work() {
    let server = Server::start();
    for (threads, busy) in [(Threads::One, 1), (Threads::Two, 1)] {
        threads.runtime().block_on(async {
            let apps = [App::new(&server, Fail::Closed, TIMEOUT)];
            for connection in ["cold", "warm"] {
                let name = format!("{}-{connection}", threads.count());
                exactly_the_limit_passes_in(&apps, &name, threads, &[10_000], busy).await;
            }
        });
    }
}

#[test]
fn exactly_the_limit_passes_on_a_cluster_too() {
    let cluster = Cluster::start();
    for threads in [Threads::One, Threads::Two] {
        threads.runtime().block_on(async {
            let apps = [Fail::Open, Fail::Closed].map(|fail| App::on(cluster.redis(), fail, TIMEOUT));
            let name = format!("cluster-{}", threads.count());
            exactly_the_limit_passes_in(&apps, &name, threads, &[20, 200], threads.count()).await;
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
        for threads in [Threads::One, Threads::Two] {
            let mut server = Server::start();
            threads.runtime().block_on(async {
                // Short, to be waited for often.
                let apps = [Fail::Open, Fail::Closed].map(|fail| App::new(&server, fail, TIMEOUT / 20));
                for app in &apps {
                    app.clone().status("before".to_owned()).await;
                }
                begin(&mut server);
                let [open, closed] = &apps;
                assert_eq!(open.burst("during", 200).await, [200, 0, 0], "{outage}");
                assert_eq!(closed.burst("during", 200).await, [0, 0, 200], "{outage}");
                end(&mut server);
                let deadline = tokio::time::Instant::now() + PATIENCE;
                while closed.clone().status("anyone".to_owned()).await == StatusCode::SERVICE_UNAVAILABLE {
                    assert!(tokio::time::Instant::now() < deadline, "{outage}: waited in vain for Redis");
                }
                let patient = App::new(&server, Fail::Closed, TIMEOUT);
                assert_eq!(patient.burst("after", 200).await, [5, 195, 0], "{outage}");
            });
        }
    }
}
