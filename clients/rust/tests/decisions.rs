//! What a guard tells of a request that takes several times, looks, and holds a place.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::request::Parts;
use axum::routing::get;
use futures_util::future::join_all;
use redis_rl_client::web::{Decision, Fail, Guard, Refusal};
use redis_rl_client::{Clock, MemoryLimiter};

use crate::limits::{account, ask, ask_as, guard, policy};
use crate::server::words::Words;
use crate::server::{Cluster, PATIENCE, Server, noon, until};

fn head() -> Parts {
    axum::http::Request::new(()).into_parts().0
}

/// A limiter whose time stands until its clock is moved.
fn memory() -> (MemoryLimiter, Clock) {
    let clock = Clock::new(noon());
    (MemoryLimiter::new().clock(clock.clone()), clock)
}

/// The units that are left of each policy.
fn left(decision: &Decision) -> BTreeMap<String, u64> {
    decision.policies().into_iter().map(|(name, figures)| (name, figures.remaining)).collect()
}

fn remaining(name: &str, units: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([(name.to_owned(), units)])
}

#[tokio::test]
async fn a_policy_that_a_request_meets_again_adds_up_and_is_told_once() {
    async fn resolve(State(guard): State<Guard>, decision: Decision) -> Result<&'static str, Refusal> {
        guard.take(&decision, 3).await?;
        // Side by side, too.
        for taken in join_all((0..4).map(|_| guard.take(&decision, 2))).await {
            taken?;
        }
        Ok("resolved")
    }
    let server = Server::start();
    for units in [0, 8] {
        let name = format!("fields-{units}");
        let guard = guard(&server, policy(&name, "20/1h").lease(units));
        let app = Router::new().route("/", get(resolve)).layer(guard.layer()).with_state(guard.clone());
        let answer = ask(&app, "/").await;
        assert_eq!(answer.field("ratelimit"), format!(r#""{name}-1h";r=8;t=3600"#));
        assert_eq!(answer.field("ratelimit-policy"), format!(r#""{name}-1h";q=20;w=3600"#));
        let refused = ask(&app, "/").await;
        assert_eq!(refused.status, 429);
        assert!(refused.body.contains(&format!(r#""violated-policies":["{name}-1h"]"#)), "{refused:?}");
        assert!(refused.field("ratelimit").starts_with(&format!(r#""{name}-1h";r="#)), "{refused:?}");
        guard.close().await;
    }
}

#[tokio::test]
async fn of_a_long_request_the_first_takes_stay_counted_and_it_is_settled_by_the_sum() {
    let (memory, _) = memory();
    let guard = Guard::new(memory, policy("tokens", "1000/1h").key_text("all")).expect("a policy");
    let taken = guard.take("a", 1).await.expect("it fits");
    for _ in 1..250 {
        guard.take(&taken, 1).await.expect("it fits");
    }
    for (used, left_of_it) in [(180, 820), (300, 700), (100, 850)] {
        guard.settle(&taken, [("tokens", used)]).await.expect("it is settled");
        assert_eq!(left(&guard.peek("a").await.expect("a look")), remaining("tokens", left_of_it), "{used}");
    }
}

#[tokio::test]
async fn header_fields_tell_what_is_left_after_a_policy_met_twice_was_settled_and_a_later_take_refused() {
    async fn generate(State(guard): State<Guard>, request: Decision) -> Result<&'static str, Refusal> {
        guard.take(&request, 25).await?;
        guard.settle(&request, [("tokens", 42)]).await?;
        assert_eq!(guard.take(&request, 1_000).await.unwrap_err().status(), 403);
        Ok("generated")
    }
    let server = Server::start();
    let guard = guard(&server, policy("tokens", "100/1h").cost(20));
    let app = Router::new().route("/", get(generate)).layer(guard.layer()).with_state(guard.clone());
    let answer = ask(&app, "/").await;
    assert_eq!((answer.status, answer.field("ratelimit")), (200, r#""tokens-1h";r=58;t=3600"#));
    assert_eq!(server.used("tokens:{192.0.2.1}"), 42);
}

#[tokio::test]
async fn what_a_policy_took_several_times_is_settled_by_the_sum_and_the_oldest_is_used_first() {
    let (memory, clock) = memory();
    let policy = policy("tokens", "100/1h").key_text("all");
    let guard = Guard::new(memory.clone(), policy).expect("a policy");
    let taken = guard.take("a", 5).await.expect("it fits");
    for units in [10, 20] {
        clock.advance(Duration::from_secs(600));
        guard.take(&taken, units).await.expect("it fits");
    }
    assert_eq!(left(&taken), remaining("tokens", 95), "as it was");
    assert_eq!(left(&guard.peek("a").await.expect("a look")), remaining("tokens", 65));
    for (used, left_of_it) in [(50, 50), (12, 88)] {
        guard.settle(&taken, [("tokens", used)]).await.expect("it is settled");
        assert_eq!(left(&guard.peek("a").await.expect("a look")), remaining("tokens", left_of_it), "{used}");
    }
    // 5 were counted at first, 7 ten minutes later, and nothing after them.
    for (wait, left_then) in [(2_399, 88), (1, 93), (599, 93), (1, 100)] {
        clock.advance(Duration::from_secs(wait));
        assert_eq!(left(&guard.peek("a").await.expect("a look")), remaining("tokens", left_then), "{wait}");
    }
}

#[tokio::test]
async fn what_a_handler_was_granted_is_used_though_a_later_take_is_refused() {
    async fn batch(State(items): State<Guard>, decision: Decision) -> Result<&'static str, Refusal> {
        for _ in 0..10 {
            items.take(&decision, 1).await?;
        }
        Ok("done")
    }
    let server = Server::start();
    let outer = guard(&server, policy("requests", "100/1h"));
    let items = outer.limit(policy("items", "4/1h")).expect("a policy");
    let app = Router::new().route("/", get(batch)).layer(outer.layer()).with_state(items);
    for requests_left in [99, 99] {
        let answer = ask(&app, "/").await;
        assert_eq!(answer.status, 429);
        let fields = format!(r#""requests-1h";r={requests_left}, "items-1h";r=0;"#);
        assert!(answer.field("ratelimit").starts_with(&fields), "{answer:?}");
    }
    // The second request was granted nothing, so it cost nothing.
    outer.close().await;
    until("the rest to go back", || server.used("requests:{192.0.2.1}") == 1).await;
    assert_eq!(server.used("items:{192.0.2.1}"), 4);
}

#[tokio::test]
async fn a_cost_is_told_by_the_names_of_policies_and_a_number_is_that_of_one() {
    let guard = Guard::new(memory().0, [policy("rpm", "60/1m"), policy("tpm", "1000/1m").cost(100)]);
    let guard = guard.expect("policies");
    let costs: &[(&str, i64)] = &[("tpm", 300)];
    let decision = guard.take("acme", costs).await.expect("it fits");
    assert_eq!(left(&decision), BTreeMap::from([("rpm".to_owned(), 59), ("tpm".to_owned(), 700)]));
    let decision = guard.take("acme", ()).await.expect("it fits");
    assert_eq!(left(&decision)["tpm"], 600);
    for (costs, why) in [
        (guard.take("acme", [("tokens", 3)]).await, r#"no policy of this request has the name \"tokens\""#),
        (guard.take("acme", 3).await, r#"name them, as [(\"rpm\", units), (\"tpm\", units)]"#),
        (guard.take("acme", [("tpm", -1)]).await, "the cost of a request is negative"),
    ] {
        let refusal = costs.unwrap_err();
        assert_eq!(refusal.status(), 500);
        assert!(refusal.to_string().contains(why), "{refusal}");
    }
    let seen = guard.peek("acme").await.expect("a look");
    assert_eq!(left(&seen)["tpm"], 600, "a mistake costs nothing");
    assert_eq!(left(&guard.take(&seen, ()).await.expect("it fits"))["tpm"], 500, "for the same client");
}

#[tokio::test]
async fn a_look_tells_what_would_be_decided_and_counts_nothing() {
    let server = Server::start();
    let policies = || {
        let plan = policy("plan", "5/10s, 5/1h").key(account);
        [plan, policy("tokens", "10/1h").cost(4), policy("trial", "1/1h").dry_run(true).cost(2)]
    };
    let cluster = Cluster::start();
    for redis in [server.redis(), cluster.redis().timeout(PATIENCE), memory().0.into()] {
        let guard = Guard::new(redis, policies()).expect("policies").on_limited(|_, decision| {
            assert!(decision.policies().contains_key("trial"), "a look tells no hook");
            None
        });
        let mut head = head();
        head.headers.insert("account", "ada".parse().expect("a value"));
        let untouched = guard.peek(&head).await.expect("a look");
        assert!(untouched.allowed() && untouched.retry_after().is_none());
        assert!(untouched.policies()["trial"].limited, "a dry run tells that it would refuse");
        let fields = untouched.fields();
        let told = r#""plan-10s";r=5;t=0, "plan-1h";r=5;t=0, "tokens-1h";r=10;t=0"#;
        assert_eq!(fields["ratelimit"], told);
        for _ in 0..2 {
            guard.take(&head, ()).await.expect("it fits");
        }
        let refused = guard.peek(&head).await.expect("a look");
        assert!(refused.limited() && refused.status() == 429);
        assert!(refused.retry_after() > Some(Duration::from_secs(3_590)), "{refused:?}");
        let figures = refused.policies()["tokens"];
        assert_eq!((figures.limited, figures.limit, figures.remaining), (true, 10, 2));
        assert_eq!(figures.retry_after, refused.retry_after());
        assert_eq!(left(&refused)["plan"], 3);
        assert!(!refused.policies()["plan"].limited);
        guard.close().await;
    }
}

#[tokio::test]
async fn a_look_asks_for_each_quota_at_its_cost_and_waits_for_no_reply_before_the_next() {
    let words = Words::start();
    let policies = [policy("plan", "5/10s, 100/1h"), policy("tokens", "1000/1h").cost(4).lease(100)];
    let guard = Guard::new(words.client(), policies).expect("policies").fail(Fail::Closed).prefix("app:");
    let decision = guard.peek("acme").await.expect("a look");
    assert!(decision.allowed() && decision.policies().is_empty());
    let expected = [
        "RL.PEEK app:plan:acme 5 10s",
        "RL.PEEK app:plan:acme 100 1h",
        "RL.PEEK app:tokens:acme 1000 1h COST 4",
    ];
    assert_eq!(words.sent().iter().map(|words| words.join(" ")).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_look_shows_what_is_leased_as_used() {
    let server = Server::start();
    let guard = guard(&server, policy("requests", "1000/1h").lease(64));
    for _ in 0..200 {
        guard.take("a", 1).await.expect("it fits");
    }
    let seen = left(&guard.peek("a").await.expect("a look"))["requests"];
    assert_eq!(seen, 1_000 - server.used("requests:a"));
    guard.close().await;
    assert_eq!(left(&guard.peek("a").await.expect("a look"))["requests"], 800);
}

#[tokio::test]
async fn while_redis_is_away_a_look_has_no_figures_or_those_of_this_process() {
    let mut server = Server::start();
    server.kill();
    for (fail, is_known) in [(Fail::Open, false), (Fail::Closed, false), (Fail::Local, true)] {
        let guard = guard(&server, policy("requests", "5/1h")).fail(fail);
        let _ = guard.take("a", 2).await;
        let decision = guard.peek("a").await.expect("a look");
        assert!(decision.allowed());
        assert_eq!(left(&decision), if is_known { remaining("requests", 3) } else { BTreeMap::new() });
    }
}

#[tokio::test]
async fn a_guard_holds_places_by_its_key_and_its_prefix_and_refuses_as_its_limits_do() {
    async fn stream(State(guard): State<Guard>, head: Parts) -> Result<&'static str, Refusal> {
        let _first = guard.hold(&head, "streams", 2).await?;
        let _second = guard.hold(&head, "streams", 2).await?;
        if head.uri.path() == "/three" {
            let _third = guard.hold(&head, "streams", 2).await?;
        }
        Ok("streamed")
    }
    let server = Server::start();
    let told = Arc::new(Mutex::new(Vec::new()));
    let hear = told.clone();
    let guard = guard(&server, policy("requests", "9/1h")).key(account).prefix("app:");
    let guard = guard.on_limited(move |_, decision| {
        hear.lock().expect("no panic").push((decision.policies()["streams"].limit, decision.retry_after()));
        None
    });
    let routes = Router::new().route("/two", get(stream)).route("/three", get(stream));
    let app = routes.layer(guard.layer()).with_state(guard.clone());
    assert_eq!(ask_as(&app, "GET", "/two", "ada").await.status, 200);
    let refused = ask_as(&app, "GET", "/three", "ada").await;
    assert_eq!(refused.status, 429);
    assert!(refused.body.contains(r#""violated-policies":["streams"]"#), "{refused:?}");
    assert_eq!(refused.field("retry-after"), "");
    assert_eq!(refused.field("ratelimit"), r#""requests-1h";r=8"#, "a refused request costs nothing");
    assert_eq!(*told.lock().expect("no panic"), [(2, None)]);
    until("the places to go back", || server.used("app:streams:ada") == 0).await;
    // Who has no key is not limited.
    assert_eq!(ask(&app, "/three").await.status, 200);
    let hold = guard.hold("eve", "streams", 1).await.expect("a place");
    assert_eq!(server.used("app:streams:eve"), 1);
    assert!(!hold.is_late());
    hold.release().await;
    assert_eq!(server.used("app:streams:eve"), 0);
}

#[tokio::test]
async fn a_place_is_waited_for_as_the_guard_says_and_a_key_of_a_policy_is_refused() {
    let guard = Guard::new(memory().0, policy("requests", "9/1h").key_text("eve")).expect("a policy");
    let guard = guard.places(|places| places.timeout(PATIENCE).ttl(Duration::from_secs(60)));
    let hold = guard.hold("eve", "jobs", 1).await.expect("a place");
    let waiting = guard.clone();
    let waiting = tokio::spawn(async move { waiting.hold("eve", "jobs", 1).await.map(drop) });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    hold.release().await;
    waiting.await.expect("no panic").expect("a place");
    let taken = guard.take("eve", 1).await.expect("it fits");
    for name in ["requests", "", "two words"] {
        assert_eq!(guard.hold(&taken, name, 1).await.expect_err("no name").status(), 500, "{name}");
    }
}

#[tokio::test]
async fn while_redis_is_away_a_block_runs_without_a_place_or_is_refused_or_held_in_this_process() {
    let mut server = Server::start();
    server.kill();
    for (fail, second) in [(Fail::Open, 200), (Fail::Closed, 503), (Fail::Local, 429)] {
        let guard = guard(&server, policy("requests", "9/1h")).fail(fail);
        let status =
            |held: &Result<_, Refusal>| held.as_ref().map_or_else(|no| no.status().as_u16(), |_| 200);
        let first = guard.hold("a", "jobs", 1).await;
        assert_eq!(status(&first), if fail == Fail::Closed { 503 } else { 200 });
        assert_eq!(status(&guard.hold("a", "jobs", 1).await), second);
        if let Ok(hold) = first {
            assert!(!hold.is_late());
            hold.release().await;
        }
        assert_eq!(status(&guard.hold("a", "jobs", 1).await), if fail == Fail::Closed { 503 } else { 200 });
    }
}
