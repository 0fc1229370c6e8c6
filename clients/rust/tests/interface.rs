//! The table "One interface" of `clients/porting.md`: what it names exists here, with these defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use axum::http::Response;
use axum::http::request::Parts;
use redis_rl_client::web::{Decision, Fail, Fields, FieldsOn, Figures, Guard, Outage, Policy};
use redis_rl_client::{
    Acquire, Algorithm, Clock, Hold, Leases, MemoryLimiter, Places, Quota, RlCommands, Verdicts,
};

use crate::limits::{Warnings, policy};
use crate::server::{Server, noon, repository};

/// Stands for an argument. It is never asked for.
fn any<T>() -> T {
    unreachable!("nothing here is called")
}

/// The names of functions. That each can be called like this is checked when this is compiled.
macro_rules! functions {
    ($($type:ident::$name:ident($($argument:expr),*);)*) => {{
        $(let _ = || $type::$name($($argument),*);)*
        [$(concat!(stringify!($type), "::", stringify!($name))),*]
    }};
}

/// The names of fields, and of their types.
macro_rules! fields {
    ($($type:ident.$name:ident: $of:ty;)*) => {{
        $(let _ = |value: $type| -> $of { value.$name };)*
        [$(concat!(stringify!($type), ".", stringify!($name))),*]
    }};
}

type OnLimited = fn(Option<&Parts>, &Decision) -> Option<Response<String>>;

/// What this package has, by the names in the table.
fn interface() -> Vec<&'static str> {
    let functions = functions! {
        Guard::timeout(any(), Duration::ZERO);
        Guard::remember(any(), Duration::ZERO);
        Leases::remember(any(), Duration::ZERO);
        Leases::ttl(any(), Duration::ZERO);
        Places::ttl(any(), Duration::ZERO);
        Places::timeout(any(), Duration::ZERO);
        Acquire::timeout(any(), Duration::ZERO);
        Guard::fail(any(), Fail::Local);
        Guard::key(any(), any::<fn(&Parts) -> Option<String>>());
        Guard::prefix(any(), "app:");
        Guard::fields(any(), Fields::Both);
        Guard::fields_on(any(), FieldsOn::Refusals);
        Policy::algorithm(any(), Algorithm::Bucket);
        Policy::cost(any(), 2);
        Policy::lease(any(), 100);
        Policy::block(any(), Duration::ZERO);
        Policy::hidden(any(), true);
        Policy::dry_run(any(), true);
        Guard::take(any(), "acme", [("tokens", 300)]);
        Guard::peek(any(), "acme");
        Guard::settle(any(), "acme", [("tokens", 280)]);
        Guard::hold(any(), "acme", "streams", 3);
        Places::hold(any(), "streams", 3);
        Hold::is_late(any());
        Guard::close(any());
        Guard::on_limited(any(), any::<OnLimited>());
        Guard::on_outage(any(), any::<fn(Outage<'_>)>());
        Places::on_late(any(), any::<fn(&[u8])>());
        Clock::advance(any(), Duration::ZERO);
        MemoryLimiter::clear(any());
        Decision::limited(any());
        Decision::retry_after(any());
        Decision::policies(any());
        Decision::fields(any());
    };
    let fields = fields! {
        Figures.limited: bool;
        Figures.limit: u64;
        Figures.remaining: u64;
        Figures.retry_after: Option<Duration>;
        Figures.reset_after: Duration;
    };
    let _ = |figures: &Decision| -> BTreeMap<String, Figures> { figures.policies() };
    let _ = |connection: &mut redis::Connection| -> Verdicts { connection.rl_all(any()).expect("a reply") };
    [&functions[..], &fields, &["Verdicts"]].concat()
}

/// The rows of the table: what the column of this package names, and what it is if left out.
fn rows() -> Vec<(Vec<String>, String)> {
    let page = fs::read_to_string(repository("clients/porting.md")).expect("the page");
    let table = page.split("## One interface").nth(1).expect("the table");
    let rows = table.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let mut owner = "";
        let names = cells[4].split('`').skip(1).step_by(2).map(|name| match name.split_once('.') {
            Some(("", field)) => format!("{owner}.{field}"),
            Some((of, _)) => {
                owner = of;
                name.to_owned()
            }
            None => name.to_owned(),
        });
        (names.collect(), cells[5].to_owned())
    });
    rows.collect()
}

#[test]
fn the_table_names_what_there_is() {
    let named: BTreeSet<String> = rows().into_iter().flat_map(|(names, _)| names).collect();
    assert_eq!(named, interface().into_iter().map(str::to_owned).collect());
}

/// What is shown to be so if nothing is said.
async fn defaults() -> BTreeMap<&'static str, String> {
    let clock = Clock::new(noon());
    let mut memory = MemoryLimiter::new().clock(clock.clone());
    let plain = policy("plain", "2/1h");
    let guard = Guard::new(memory.clone(), plain.clone()).expect("a policy");
    let mut seen = BTreeMap::new();
    let settings = format!("{guard:?}");
    assert!(settings.contains("timeout: 100ms"), "{settings}");
    seen.insert("Guard::timeout", "100 ms".to_owned());

    // An address, no prefix, the log, one unit, nothing ahead, nothing remembered.
    let (mut head, ()) = axum::http::Request::new(()).into_parts();
    head.extensions.insert(std::net::SocketAddr::from(([192, 0, 2, 1], 1)));
    let key = "plain:{192.0.2.1}";
    for used in [1, 2] {
        guard.take(&head, ()).await.expect("it fits");
        let info = memory.rl_info(key).expect("a reply").expect("the key");
        assert_eq!((info.algorithm, info.windows[0].used), (Algorithm::Log, used));
    }
    assert!(guard.take(&head, ()).await.is_err(), "it is no dry run");
    memory.rl_reset(key).expect("a reply");
    assert!(guard.take(&head, ()).await.is_ok(), "no refusal is remembered");
    seen.extend([("Guard::key", "the client's address".to_owned()), ("Guard::prefix", "nothing".to_owned())]);
    seen.extend([("Policy::algorithm", "log".to_owned()), ("Policy::cost", "1".to_owned())]);
    seen.extend([("Policy::lease", "0".to_owned()), ("Guard::remember", "0".to_owned())]);
    seen.insert("Policy::hidden", "off".to_owned());
    seen.extend([("Guard::fields", "standard".to_owned()), ("Guard::fields_on", "all".to_owned())]);
    let decision = guard.peek(&head).await.expect("figures");
    assert_eq!(decision.fields().len(), 2, "they are those of the standard, and on all answers");
    seen.insert("Policy::block", "no block".to_owned());
    seen.insert("Policy::dry_run", if plain.is_dry_run() { "on" } else { "off" }.to_owned());

    let hourly = Quota::per_hour(1_000);
    let leases = Leases::new(memory.clone(), Algorithm::Log, [hourly]);
    for _ in 0..200 {
        leases.take("hot", 1).await.expect("a verdict");
    }
    let used = |memory: &mut MemoryLimiter| memory.rl_peek("hot", hourly, 1).expect("a verdict").remaining;
    clock.advance(Duration::from_millis(99));
    leases.take("other", 0).await.expect("a verdict");
    assert!(used(&mut memory) < 800, "more is counted than was taken");
    clock.advance(Duration::from_millis(1));
    leases.take("other", 0).await.expect("a verdict");
    assert_eq!(used(&mut memory), 800);
    seen.insert("Leases::ttl", "100 ms".to_owned());
    let leases = Leases::new(memory.clone(), Algorithm::Log, [Quota::per_hour(1)]);
    for (wait_ms, is_limited) in [(0, false), (0, true), (999, true), (1, false)] {
        clock.advance(Duration::from_millis(wait_ms));
        assert_eq!(leases.take("few", 1).await.expect("a verdict").limited, is_limited, "{wait_ms}");
        if is_limited {
            memory.rl_reset("few").expect("a reply");
        }
    }
    seen.insert("Leases::remember", "1 s".to_owned());

    let places = Places::new(memory.clone());
    let _place = places.hold("jobs", 1).await.expect("an answer").expect("a place");
    assert!(places.hold("jobs", 1).await.expect("an answer").is_none(), "nobody waits");
    let lasts = memory.rl_info("jobs").expect("a reply").expect("the key").windows[0].window;
    seen.extend([("Places::timeout", "0".to_owned()), ("Places::ttl", format!("{} s", lasts.as_secs()))]);

    let mut server = Server::start();
    server.kill();
    let warnings = Warnings::default();
    let _subscribed = tracing::subscriber::set_default(warnings.clone());
    let guard = Guard::new(server.redis(), "1/1h").expect("a policy");
    for _ in 0..3 {
        assert!(guard.take("a", 1).await.is_ok());
    }
    assert_eq!(warnings.told().len(), 1);
    seen.extend([("Guard::fail", "open".to_owned()), ("Guard::on_outage", "the log".to_owned())]);
    seen
}

#[tokio::test]
async fn what_is_left_out_is_what_the_table_says() {
    let mut seen = defaults().await;
    // Nobody waits to see that there is no bound.
    seen.insert("Acquire::timeout", "no bound".to_owned());
    let told = rows().into_iter().filter(|(_, default)| !default.is_empty());
    let told: BTreeMap<String, String> = told.map(|(names, default)| (names.concat(), default)).collect();
    let seen: BTreeMap<String, String> =
        seen.into_iter().map(|(name, seen)| (name.to_owned(), seen)).collect();
    assert_eq!(told, seen);
}
