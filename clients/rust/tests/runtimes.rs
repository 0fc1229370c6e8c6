//! Without a runtime of tokio, and on one without timers or I/O: a limiter in this process limits, and Redis is asked by mistake.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use http::StatusCode;
use redis::{Client, RedisError};
use redis_rl_client::web::{Fail, Guard, Refusal};
use redis_rl_client::{Acquire, Algorithm, Leases, MemoryLimiter, Places, Quota, RlAsyncCommands};
use tokio::runtime::{Builder, Runtime};

use crate::limits::Warnings;
use crate::server::{free_port, used};

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

/// A client of a server that is never there.
fn nobody() -> Client {
    Client::open(format!("redis://127.0.0.1:{}", free_port())).expect("an address")
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
            let acquire = Acquire::cost(1).timeout(timeout);
            let mut memory = memory.clone();
            let verdict = memory.rl_acquire(algorithm, "key", Quota::per_day(2), acquire).await;
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

fn says(refusal: Refusal, why: &str) {
    assert_eq!(refusal.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(refusal.to_string().contains(why), "{refusal}");
}

#[test]
fn redis_off_tokio_is_a_mistake_that_the_first_request_is_told_and_no_outage() {
    for fail in [Fail::Open, Fail::Closed, Fail::Local] {
        let guard = guard(nobody()).fail(fail);
        let warnings = Warnings::default();
        let _subscribed = tracing::subscriber::set_default(warnings.clone());
        let ask = || guard.take("client", ());
        for _ in 0..2 {
            says(block_on(ask()).expect_err("a mistake"), "on a runtime of tokio");
        }
        let no_timers = without_timers().block_on(ask());
        says(no_timers.expect_err("a mistake"), "has no timers: build it with enable_all()");
        says(without_io().block_on(ask()).expect_err("a mistake"), "by enable_all(), and TLS a provider");
        let told = warnings.told();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told.iter().all(|told| told.starts_with("requests are answered 500")), "{told:?}");
    }
}

#[test]
fn leases_and_places_on_redis_off_tokio_fail_by_the_same_mistake() {
    let leases = Leases::new(nobody(), Algorithm::Log, Quota::per_minute(2));
    let places = Places::new(nobody());
    let is_told = |error: RedisError| assert!(error.to_string().contains("MISUSED"), "{error}");
    is_told(block_on(leases.take("key", 1)).expect_err("a mistake"));
    is_told(block_on(places.hold("key", 1)).map(drop).expect_err("a mistake"));
    is_told(without_timers().block_on(leases.take("key", 1)).expect_err("a mistake"));
    is_told(without_timers().block_on(places.hold("key", 1)).map(drop).expect_err("a mistake"));
}
