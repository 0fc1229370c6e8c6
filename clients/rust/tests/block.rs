//! A refusal that lasts: `block` of a policy.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis_rl_client::web::{Decision, Figures, Guard, Policy, Refusal};
use redis_rl_client::{Clock, MemoryLimiter, Quota, RlCommands};

use crate::server::noon;

const MINUTES: Duration = Duration::from_secs(60);
const BLOCK: u64 = 1 << 51;

fn login() -> Policy {
    Policy::new("login", "2/m").expect("a policy").block(10 * MINUTES)
}

fn guard(policies: impl IntoIterator<Item = Policy>) -> (Guard, Clock, MemoryLimiter) {
    let clock = Clock::new(noon());
    let memory = MemoryLimiter::new().clock(clock.clone());
    let guard = Guard::new(memory.clone(), Vec::from_iter(policies)).expect("policies");
    (guard.clock(clock.clone()), clock, memory)
}

fn wait(taken: Result<Decision, Refusal>) -> Option<Duration> {
    taken.err()?.retry_after()
}

#[tokio::test]
async fn who_is_refused_is_refused_until_the_block_ends_and_trying_makes_it_no_longer() {
    let told = Arc::new(Mutex::new(0));
    let (guard, clock, _) = guard([login()]);
    let counted = told.clone();
    let guard = guard.on_limited(move |_, _| {
        *counted.lock().expect("a number") += 1;
        None
    });
    for _ in 0..2 {
        guard.take("bob", ()).await.expect("it passes");
    }
    let refused = guard.take("bob", ()).await.expect_err("a refusal");
    assert_eq!((refused.status().as_u16(), refused.retry_after()), (429, Some(10 * MINUTES)));
    assert_eq!(refused.fields()["retry-after"], "600");
    assert_eq!(refused.fields()["ratelimit-policy"], "\"login-1m\";q=2;w=60");
    assert_eq!(refused.fields()["ratelimit"], "\"login-1m\";r=0;t=600");
    assert!(refused.to_string().contains(r#""violated-policies":["login-1m"]"#));
    clock.advance(MINUTES + Duration::from_secs(1));
    let again = guard.take("bob", ()).await.expect_err("a refusal");
    assert_eq!(again.retry_after(), Some(Duration::from_secs(539)));
    let Figures { limit, remaining, .. } = again.decision().expect("a decision").policies()["login"];
    assert_eq!((limit, remaining), (2, 0));
    assert_eq!(guard.peek("bob").await.expect("figures").retry_after(), again.retry_after());
    assert_eq!(*told.lock().expect("a number"), 2);
    clock.advance(Duration::from_millis(538_999));
    assert_eq!(wait(guard.take("bob", ()).await), Some(Duration::from_millis(1)));
    clock.advance(Duration::from_millis(1));
    guard.take("bob", ()).await.expect("it passes");
}

#[tokio::test]
async fn only_the_policy_that_refuses_blocks_and_a_cost_that_never_fits_blocks_nobody() {
    let requests = Policy::new("requests", "100/h").expect("a policy").block(120 * MINUTES);
    let (both, ..) = guard([login(), requests.clone()]);
    let too_much = both.take("bob", [("login", 3)]).await.expect_err("a refusal");
    assert_eq!(too_much.status().as_u16(), 403);
    for is_allowed in [true, true, false] {
        assert_eq!(both.take("bob", ()).await.is_ok(), is_allowed);
    }
    let other = both.limit(requests).expect("a policy").take("bob", ()).await.expect("it passes");
    assert_eq!(other.policies()["requests"].remaining, 97);
}

#[tokio::test]
async fn what_is_remembered_is_the_block_and_not_the_refusal_before_it() {
    let (guard, clock, mut memory) = guard([login()]);
    let guard = guard.remember(MINUTES);
    let mut waits = Vec::new();
    for _ in 0..4 {
        waits.push(wait(guard.take("bob", ()).await));
    }
    clock.advance(Duration::from_secs(10));
    redis::Cmd::del("login:bob").exec(&mut memory).expect("a key");
    waits.push(wait(guard.take("bob", ()).await));
    let block = Some(10 * MINUTES);
    assert_eq!(waits, [None, None, block, block, Some(Duration::from_secs(590))]);
}

#[tokio::test]
async fn requests_at_once_block_once_and_a_dry_run_blocks_and_refuses_nothing() {
    let told = Arc::new(Mutex::new(BTreeMap::new()));
    let dry = Policy::new("dry", "2/m").expect("a policy").block(10 * MINUTES).dry_run(true);
    let (guard, _, mut memory) = guard([login(), dry]);
    let noted = told.clone();
    let guard = guard.on_limited(move |_, decision| {
        *noted.lock().expect("figures") = decision.policies();
        None
    });
    let all = (0..20).map(|_| guard.take("bob", ()));
    let passed = futures_util::future::join_all(all).await.into_iter().filter(Result::is_ok).count();
    assert_eq!(passed, 2);
    assert_eq!(told.lock().expect("figures")["dry"].retry_after, Some(10 * MINUTES));
    for key in ["login:bob", "dry:bob"] {
        let twice = Quota::new(2 * BLOCK, 10 * MINUTES);
        assert_eq!(memory.rl_peek(key, twice, 1).expect("a reply").remaining, BLOCK - 3);
    }
}
