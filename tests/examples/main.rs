//! The examples over HTTP, each on a real server: three languages with one behavior, and nginx. And
//! the alerts.

mod alerts;
mod app;
mod nginx;

use harness::{Server, wait_for};

use app::{Answer, App, Language};

/// Keys that count a client on this machine.
const FREE: &str = "free:127.0.0.1";
const SEARCHES: &str = "search:127.0.0.1";
const TOKENS: &str = "tokens:127.0.0.1";

/// The items of a policy that no test here reaches.
const EVERYBODY: &str = r#""everybody-1m";q=100000;w=60, "#;

/// A prompt of ten words: 26 tokens are reserved for it and 30 used.
const LONG_PROMPT: &str = "one two three four five six seven eight nine ten";

/// Runs every test below for every example that can run here.
macro_rules! in_every_language {
    ($($test:ident)*) => {
        mod python { $(#[test] fn $test() { super::run(super::Language::Python, super::$test); })* }
        mod node { $(#[test] fn $test() { super::run(super::Language::Node, super::$test); })* }
        mod rust { $(#[test] fn $test() { super::run(super::Language::Rust, super::$test); })* }
    };
}

fn run(language: Language, test: fn(Language)) {
    if language.is_there() {
        test(language);
    }
}

in_every_language! {
    an_allowed_request_is_told_all_policies_and_what_is_left_of_each
    a_limited_request_is_answered_429_with_a_wait_that_is_enough_in_whole_seconds
    an_account_has_the_plan_that_it_pays_for
    what_a_route_refuses_costs_nothing_in_the_plan_and_nothing_for_everybody
    a_service_that_is_stopped_gives_its_leases_back
    what_is_not_limited_takes_nothing
    what_was_reserved_and_not_used_is_given_back
    tokens_beyond_the_estimate_are_counted_even_over_the_limit
    a_reservation_goes_back_whole_when_the_model_fails
    a_body_that_is_missing_is_answered_400_and_takes_no_tokens
    a_client_is_known_by_what_the_proxy_saw_and_not_by_what_it_claims
    while_redis_is_away_requests_pass_or_are_answered_503_as_fail_says
}

fn an_allowed_request_is_told_all_policies_and_what_is_left_of_each(language: Language) {
    let server = Server::start();
    let half_an_hour_ago = server.clock_ms() - 30 * 60 * 1_000;
    server.value(&format!("RL.LOG {FREE} 5 1h COST 3 AT {half_an_hour_ago}"));
    let app = App::start(language, &server, &[("FREE_LIMITS", "3/10m,5/1h")]);
    let answer = app.get("/");
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.policy,
        Some(format!(r#"{EVERYBODY}"free-10m";q=3;w=600, "free-1h";q=5;w=3600"#)),
        "{answer:?}"
    );
    assert_eq!(
        answer.limit.as_deref(),
        Some(r#""everybody-1m";r=99999;t=60, "free-10m";r=2;t=600, "free-1h";r=1;t=3600"#)
    );
    assert_eq!(answer.retry_after, None);
    assert_eq!(calls(&server, &["RL.ALL"]), 1, "one call for all of them");
}

fn a_limited_request_is_answered_429_with_a_wait_that_is_enough_in_whole_seconds(language: Language) {
    let server = Server::start();
    // They are free again in an hour and half a second; rounding down would be too short.
    let taken_at = server.clock_ms() - 23 * 3_600_000 + 500;
    server.value(&format!("RL.LOG {FREE} 2 1d COST 2 AT {taken_at}"));
    let app = App::start(language, &server, &[("FREE_LIMITS", "2/1d,100/7d")]);

    let longest = wait_in_seconds(&server);
    let answer = app.get("/");
    let shortest = wait_in_seconds(&server);

    assert_eq!(answer.status, 429);
    let wait = answer.retry_after.expect("a wait");
    assert!((shortest..=longest).contains(&wait), "{wait} is not from {shortest} to {longest}");
    assert_eq!(
        answer.limit,
        Some(format!(r#""everybody-1m";r=100000, "free-1d";r=0;t={wait}, "free-7d";r=98"#))
    );
    assert_exceeded(&answer, "free-1d");
    let then = server.clock_ms() + wait * 1_000;
    assert_eq!(server.figures(&format!("RL.PEEK {FREE} 2 1d 100 7d AT {then}"))[0], 0);
}

/// How long a request would have to wait by now, in whole seconds.
fn wait_in_seconds(server: &Server) -> i64 {
    let [_, _, _, retry_after_ms, _] = server.figures(&format!("RL.PEEK {FREE} 2 1d 100 7d"));
    assert!(retry_after_ms > 0, "the test took longer than an hour");
    (retry_after_ms + 999) / 1_000
}

fn an_account_has_the_plan_that_it_pays_for(language: Language) {
    let server = Server::start();
    let app = App::start(language, &server, &[("FREE_LIMITS", "1/10m"), ("PAID_LIMITS", "3/10m")]);
    let statuses = |account| [(); 4].map(|()| app.get_as("/", account).status);
    assert_eq!(statuses("dave"), [200, 429, 429, 429]);
    assert_eq!(statuses("paid-1"), [200, 200, 200, 429]);
    assert_eq!(statuses("paid-2"), [200, 200, 200, 429]);
    assert_eq!(server.integer("EXISTS free:dave paid:paid-1 paid:paid-2 everybody:all"), 4);
}

fn what_a_route_refuses_costs_nothing_in_the_plan_and_nothing_for_everybody(language: Language) {
    let server = Server::start();
    let settings = [("FREE_LIMITS", "9/1h"), ("SEARCH_LIMITS", "2/1h"), ("EVERYBODY_LIMITS", "100/1h")];
    let app = App::start(language, &server, &settings);
    let answers = [(); 4].map(|()| app.get("/search"));
    assert_eq!([200, 200, 429, 429], [0, 1, 2, 3].map(|i: usize| answers[i].status));
    assert_eq!(
        answers[1].limit.as_deref(),
        Some(r#""everybody-1h";r=98;t=3600, "free-1h";r=7;t=3600, "search-1h";r=0;t=3600"#)
    );
    let [_, _, _, refused] = &answers;
    let wait = refused.retry_after.expect("a wait");
    assert_eq!(
        refused.limit,
        Some(format!(r#""everybody-1h";r=98, "free-1h";r=7, "search-1h";r=0;t={wait}"#))
    );
    assert_exceeded(refused, "search-1h");
    for (key, limit) in [("everybody:all", 100), (FREE, 9), (SEARCHES, 2)] {
        wait_for("what goes back", || server.figures(&format!("RL.PEEK {key} {limit} 1h"))[2] == limit - 2);
    }
}

fn a_service_that_is_stopped_gives_its_leases_back(language: Language) {
    let server = Server::start();
    let settings =
        [("FREE_LIMITS", "1000/1h"), ("EVERYBODY_LIMITS", "100000/1h"), ("EVERYBODY_LEASE", "1000")];
    let app = App::start(language, &server, &settings);
    for _ in 0..100 {
        assert_eq!(app.get("/").status, 200);
    }
    app.stop();
    assert_eq!(server.figures("RL.PEEK everybody:all 100000 1h")[2], 99_900);
}

fn what_is_not_limited_takes_nothing(language: Language) {
    let server = Server::start();
    let app = App::start(language, &server, &[]);
    let answer = app.get("/health");
    assert_eq!((answer.status, &answer.limit), (200, &None));
    assert_eq!(server.integer("DBSIZE"), 0);
}

fn what_was_reserved_and_not_used_is_given_back(language: Language) {
    let server = Server::start();
    let app = App::start(language, &server, &[("FREE_LIMITS", "9/1h"), ("TOKEN_LIMITS", "40/1h,100/1d")]);
    // 9 of the 19 reserved are used: three words, and those twice.
    let answer = app.post("/generate", "tell a story");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body, r#"{"reply":"tell a story tell a story","tokens":9}"#);
    assert_eq!(
        answer.policy,
        Some(format!(
            r#"{EVERYBODY}"free-1h";q=9;w=3600, "tokens-1h";q=40;qu="tokens";w=3600, "tokens-1d";q=100;qu="tokens";w=86400"#
        ))
    );
    assert_eq!(
        answer.limit.as_deref(),
        Some(
            r#""everybody-1m";r=99999;t=60, "free-1h";r=8;t=3600, "tokens-1h";r=31;t=3600, "tokens-1d";r=91;t=86400"#
        )
    );
    assert_eq!(tokens_left(&server, "40 1h"), 31);
    assert_eq!(calls(&server, &["RL.ALL"]), 3, "one for the plan, one to reserve, one to settle");
}

fn tokens_beyond_the_estimate_are_counted_even_over_the_limit(language: Language) {
    let server = Server::start();
    let app = App::start(language, &server, &[("TOKEN_LIMITS", "28/1h")]);
    let answer = app.post("/generate", LONG_PROMPT);
    assert_eq!(answer.status, 200);
    assert!(
        answer.limit.as_deref().is_some_and(|limit| limit.ends_with(r#", "tokens-1h";r=0;t=3600"#)),
        "{answer:?}"
    );
    assert_eq!(tokens_left(&server, "100 1h"), 70, "all 30 are counted");
    let limited = app.post("/generate", "more");
    assert_eq!(limited.status, 429);
    assert!(limited.retry_after.is_some());
    assert_exceeded(&limited, "tokens-1h");
}

fn a_reservation_goes_back_whole_when_the_model_fails(language: Language) {
    let server = Server::start();
    let app = App::start(language, &server, &[("FREE_LIMITS", "9/1h"), ("TOKEN_LIMITS", "100/1h")]);
    // A prompt without words makes it fail.
    let failed = app.post("/generate", " ");
    assert_eq!(failed.status, 500);
    // Starlette writes this answer outside of all middleware.
    if !matches!(language, Language::Python) {
        assert_eq!(
            failed.limit.as_deref(),
            Some(r#""everybody-1m";r=99999;t=60, "free-1h";r=8;t=3600, "tokens-1h";r=100;t=0"#)
        );
    }
    assert_eq!(tokens_left(&server, "100 1h"), 100);
}

fn a_body_that_is_missing_is_answered_400_and_takes_no_tokens(language: Language) {
    let server = Server::start();
    let app = App::start(language, &server, &[("TOKEN_LIMITS", "100/1h")]);
    assert_eq!(app.post("/generate", "").status, 400);
    assert_eq!(tokens_left(&server, "100 1h"), 100);
}

fn a_client_is_known_by_what_the_proxy_saw_and_not_by_what_it_claims(language: Language) {
    let server = Server::start();
    let app = App::start(language, &server, &[("FREE_LIMITS", "1/10m"), ("PROXIES", "1")]);
    assert_eq!(app.get_forwarded("/", "192.0.2.1").status, 200);
    assert_eq!(app.get_forwarded("/", "198.51.100.7, 192.0.2.1").status, 429);
    assert_eq!(app.get_forwarded("/", "192.0.2.2").status, 200);
    assert_eq!(server.integer("EXISTS free:192.0.2.1 free:192.0.2.2 everybody:all"), 3);
    assert_eq!(server.integer("DBSIZE"), 3);
    // Where no proxy is, it is not believed.
    let server = Server::start();
    let app = App::start(language, &server, &[("FREE_LIMITS", "1/10m")]);
    assert_eq!(app.get_forwarded("/", "192.0.2.1").status, 200);
    assert_eq!(app.get_forwarded("/", "192.0.2.2").status, 429);
}

fn while_redis_is_away_requests_pass_or_are_answered_503_as_fail_says(language: Language) {
    for (fail, status) in [("open", 200), ("closed", 503)] {
        let server = Server::start();
        let app = App::start(language, &server, &[("FAIL", fail)]);
        assert!(app.get("/").limit.is_some());
        drop(server);
        for answer in [app.get("/"), app.get("/search"), app.post("/generate", LONG_PROMPT)] {
            assert_eq!(answer.status, status);
            assert_eq!((&answer.policy, &answer.limit), (&None, &None));
            if fail == "closed" {
                assert_problem(&answer);
                assert_eq!(answer.retry_after, Some(1));
            }
        }
    }
}

/// How often these commands were called.
fn calls(server: &Server, commands: &[&str]) -> u32 {
    let statistics = server.text("INFO commandstats");
    let of = |command: &str| {
        let line =
            statistics.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")))?;
        line.split(',').next()?.parse::<u32>().ok()
    };
    commands.iter().filter_map(|command| of(command)).sum()
}

fn tokens_left(server: &Server, tier: &str) -> i64 {
    server.figures(&format!("RL.PEEK {TOKENS} {tier}"))[2]
}

/// The answer is a problem of the draft's type for an exceeded quota, and names the policy.
fn assert_exceeded(answer: &Answer, policy: &str) {
    assert_problem(answer);
    assert!(answer.body.contains("https://iana.org/assignments/http-problem-types#quota-exceeded"));
    assert!(answer.body.contains(&format!(r#""violated-policies":["{policy}"]"#)), "{answer:?}");
}

fn assert_problem(answer: &Answer) {
    assert!(answer.content_type.starts_with("application/problem+json"), "{answer:?}");
    assert!(answer.body.contains(&format!(r#""status":{}"#, answer.status)), "{answer:?}");
}
