//! Without a runtime of tokio, on one without timers or I/O, and beside one that is busy.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use redis_rl_client::web::{Fail, Guard};
use redis_rl_client::{Acquire, Algorithm, Leases, MemoryLimiter, Places, Quota};
use tokio::runtime::{Builder, Runtime};

use crate::limits::policy;
use crate::server::{Server, used};

struct Woken(Thread);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread alone.
fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Woken(thread::current()))));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

/// How many of six requests of one client a guard of two a minute lets pass.
async fn passed(guard: &Guard) -> usize {
    let mut passed = 0;
    for _ in 0..6 {
        passed += usize::from(guard.take("client", ()).await.is_ok());
    }
    passed
}

fn guard(of: impl Into<redis_rl_client::Redis>) -> Guard {
    Guard::new(of, "2/1m").expect("a guard")
}

fn without_timers() -> Runtime {
    Builder::new_current_thread().enable_io().build().expect("a runtime")
}

fn without_io() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

#[test]
fn a_guard_in_memory_limits_without_a_runtime_and_without_timers() {
    for fail in [Fail::Open, Fail::Local] {
        assert_eq!(block_on(passed(&guard(MemoryLimiter::new()).fail(fail))), 2);
        assert_eq!(without_timers().block_on(passed(&guard(MemoryLimiter::new()).fail(fail))), 2);
    }
    let guard = guard(MemoryLimiter::new());
    let taken = block_on(guard.take("client", 2)).expect("it passes");
    block_on(guard.settle(&taken, 1)).expect("it is settled");
    assert_eq!(block_on(passed(&guard)), 1);
    block_on(guard.close());
}

#[test]
fn leases_and_places_in_memory_limit_without_a_runtime_and_without_timers() {
    block_on(leases_and_places_limit());
    without_timers().block_on(leases_and_places_limit());
}

async fn leases_and_places_limit() {
    let memory = MemoryLimiter::new();
    let leases = Leases::new(memory.clone(), Algorithm::Log, Quota::per_minute(20)).units(4);
    let mut passed = 0;
    for _ in 0..30 {
        passed += usize::from(!leases.take("key", 1).await.expect("a verdict").limited);
    }
    assert_eq!(passed, 20);
    leases.close().await;
    let places = Places::new(memory.clone());
    let place = places.hold("jobs", 1).await.expect("an answer").expect("a place");
    assert!(places.hold("jobs", 1).await.expect("an answer").is_none());
    let error = places.clone().timeout(DAY).hold("jobs", 1).await.expect_err("nothing wakes it");
    assert!(error.to_string().contains("runtime of tokio"), "{error}");
    place.release().await;
    drop(places.hold("jobs", 1).await.expect("an answer").expect("a place"));
    assert!(places.hold("jobs", 1).await.expect("an answer").is_some());
}

#[test]
fn acquire_in_memory_takes_nothing_if_it_would_wait_without_a_runtime_or_without_timers() {
    block_on(acquire_limits());
    without_timers().block_on(acquire_limits());
}

async fn acquire_limits() {
    for &algorithm in Algorithm::EVERY {
        let memory = MemoryLimiter::new();
        let acquire = async |timeout| {
            let acquire = Acquire::new(memory.clone(), algorithm, Quota::per_day(2)).timeout(timeout);
            let verdict = acquire.take("key", 1).await;
            verdict.map(|verdict| verdict.limited).map_err(|error| error.to_string())
        };
        for (timeout, is_limited) in [(Duration::ZERO, false), (2 * DAY, false), (Duration::ZERO, true)] {
            assert_eq!(acquire(timeout).await, Ok(is_limited));
        }
        let error = acquire(2 * DAY).await.expect_err("nothing wakes it");
        assert!(error.contains("runtime of tokio with timers"), "{error}");
        while used(memory.clone(), "key") != 2 {
            tokio::task::yield_now().await;
        }
    }
}

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn guards_leases_and_places_ask_redis_without_a_runtime_and_without_timers_or_io() {
    let server = Server::start();
    let everywhere = async |number: usize| {
        let name = format!("requests-{number}");
        let guard = Guard::new(server.redis(), policy(&name, "2/1m")).expect("a guard").fail(Fail::Closed);
        assert_eq!(passed(&guard).await, 2);
        guard.peek("client").await.expect("a look");
        let leases = Leases::new(server.redis(), Algorithm::Log, Quota::per_minute(20)).units(4);
        assert!(!leases.take(&name, 1).await.expect("a verdict").limited);
        leases.close().await;
        let places = Places::new(server.redis());
        let place = places.hold(format!("jobs-{number}"), 1).await.expect("an answer").expect("a place");
        assert!(places.hold(format!("jobs-{number}"), 1).await.expect("an answer").is_none());
        place.release().await;
        guard.close().await;
    };
    block_on(everywhere(0));
    without_timers().block_on(everywhere(1));
    without_io().block_on(everywhere(2));
}

#[test]
fn a_runtime_that_is_busy_keeps_no_request_of_another_waiting() {
    let server = Server::start();
    for requests in [1, 100, 10_000] {
        let all = policy("all", "50/1h").key_text(requests.to_string());
        let leased = policy("leased", "1000000/1h").key_text(requests.to_string()).lease(100);
        let guard = Guard::new(server.redis(), [all, leased]).expect("policies").fail(Fail::Closed);
        let runtime = || Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (busy, (first, asked), (over, end)) =
            (guard.clone(), std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        // It has made the connection and asked again, and then computes until all others are answered.
        let computing = thread::spawn(move || {
            runtime().block_on(async {
                busy.take("busy", ()).await.expect("it passes");
                tokio::spawn(async move { busy.take("busy", ()).await.map(drop) });
                tokio::task::yield_now().await;
                first.send(()).expect("somebody waits");
                end.recv().expect("the end");
            });
        });
        asked.recv().expect("it has asked");
        let passed = runtime().block_on(async {
            let taking = (0..requests).map(|_| {
                let guard = guard.clone();
                tokio::spawn(async move { guard.take("other", ()).await.is_ok() })
            });
            let mut passed = 0;
            for taken in taking.collect::<Vec<_>>() {
                passed += usize::from(taken.await.expect("no panic"));
            }
            passed
        });
        over.send(()).expect("it computes");
        computing.join().expect("no panic");
        // What the busy one has asked last may not have left it.
        assert!((requests.min(48)..=requests.min(49)).contains(&passed), "{passed} of {requests}");
    }
}
