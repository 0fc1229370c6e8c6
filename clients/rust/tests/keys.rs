//! The table of cases of `Keys`, which all clients share.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisResult, Value};
use redis_rl_client::keys::{Answer, Command, Keys, Rules, Share, Step, slot};
use redis_rl_client::{Algorithm, Quota, Verdict};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use crate::server;

#[derive(Deserialize)]
struct Table {
    settings: Map<String, Json>,
    policy: Map<String, Json>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    settings: Map<String, Json>,
    #[serde(default)]
    policy: Map<String, Json>,
    #[serde(default)]
    policies: BTreeMap<String, Map<String, Json>>,
    steps: Vec<Event>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    at: u64,
    event: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    shares: Vec<Asked>,
    #[serde(default)]
    used: Vec<Option<i64>>,
    #[serde(default)]
    to: String,
    #[serde(default)]
    reply: Json,
    #[serde(default)]
    sends: Vec<String>,
    #[serde(default)]
    answers: BTreeMap<String, Json>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    key: String,
    cost: Option<i64>,
    policy: Option<String>,
}

/// What is given last counts.
fn merged<'a>(given: &[&'a Map<String, Json>]) -> BTreeMap<&'a str, &'a Json> {
    given.iter().flat_map(|given| given.iter()).map(|(name, value)| (name.as_str(), value)).collect()
}

fn number(value: &Json) -> u64 {
    value.as_u64().expect("a number")
}

fn algorithm(name: &Json) -> Algorithm {
    let named =
        |algorithm: &&Algorithm| format!("{algorithm:?}").to_lowercase() == name.as_str().expect("a name");
    *Algorithm::EVERY.iter().find(named).expect("an algorithm")
}

impl Case {
    fn share(&self, table: &Table, asked: &Asked) -> Share {
        let policy = asked.policy.as_ref().map_or(&self.policy, |name| &self.policies[name]);
        let policy = merged(&[&table.policy, policy]);
        let limits: Vec<(u64, String)> = serde_json::from_value(policy["limits"].clone()).expect("limits");
        let quota = |(limit, window): &(u64, String)| format!("{limit}/{window}").parse().expect("a quota");
        let quotas: Vec<Quota> = limits.iter().map(quota).collect();
        let lasting = Duration::from_millis(number(policy["for_ms"]));
        let rules = Rules::new(algorithm(policy["algorithm"]), &quotas, lasting, number(policy["units"]));
        Share { key: asked.key.as_bytes().into(), rules: Arc::new(rules), cost: asked.cost.unwrap_or(1) }
    }
}

/// This package leaves out a cost of 1.
fn words(command: &Command) -> String {
    server::words::words(&command.cmd(None)).join(" ")
}

fn without_cost_of_one(words: &str) -> String {
    words.replace(" COST 1 ", " ")
}

fn value(reply: &Json) -> Value {
    match reply {
        Json::Array(items) => Value::Array(items.iter().map(value).collect()),
        number => Value::Int(number.as_i64().expect("an integer")),
    }
}

fn wait_ms(wait: Option<Duration>) -> i64 {
    wait.map_or(-1, |wait| wait.as_millis() as i64)
}

fn figures(answer: &RedisResult<Answer>) -> Json {
    let Ok(answer) = answer else { return json!("error") };
    let row = |row: &Verdict| {
        let reset_after = row.reset_after.as_millis() as u64;
        json!([u64::from(row.limited), row.limit, row.remaining, wait_ms(row.retry_after), reset_after])
    };
    let rows =
        |rows: &Option<Vec<Verdict>>| rows.as_ref().map(|rows| rows.iter().map(row).collect::<Vec<_>>());
    let rows: Vec<_> = answer.rows.iter().map(rows).collect();
    json!([u64::from(answer.limited), wait_ms(answer.retry_after), rows])
}

#[test]
fn every_case_holds() {
    let table: Table = server::table("local");
    assert!(table.cases.len() >= 60);
    for case in &table.cases {
        let settings = merged(&[&table.settings, &case.settings]);
        let remember = Duration::from_millis(number(settings["remember_ms"]));
        let max_keys = NonZeroUsize::new(number(settings["max_keys"]) as usize).expect("some keys");
        let mut keys = Keys::new(remember, max_keys, settings["cluster"] == true);
        let mut requests: Vec<&str> = Vec::new();
        let mut sent: Vec<Command> = Vec::new();
        for event in &case.steps {
            let what = format!("{} {} at {} ms: {}", event.event, event.name, event.at, case.name);
            let now = Duration::from_millis(event.at);
            let id = requests.iter().position(|name| *name == event.name).unwrap_or_default() as u64;
            let Step { commands, answers } = match event.event.as_str() {
                "take" => {
                    let shares = event.shares.iter().map(|asked| case.share(&table, asked)).collect();
                    requests.push(&event.name);
                    keys.take(now, requests.len() as u64 - 1, shares)
                }
                "reply" | "error" => {
                    let to = without_cost_of_one(&event.to);
                    let position = sent.iter().position(|command| words(command) == to);
                    let command =
                        sent.remove(position.unwrap_or_else(|| panic!("{what}: {to} was not sent")));
                    let away = || Err((ErrorKind::Io, "away").into());
                    let is_reply = event.event == "reply";
                    let reply = if is_reply { command.read(value(&event.reply)) } else { away() };
                    keys.reply(now, &command, reply)
                }
                "settle" => {
                    let used = event.used.iter().enumerate();
                    keys.settle(id, used.filter_map(|(place, used)| Some((place, (*used)?))))
                }
                "give_back" => keys.give_back(now, id),
                "tick" => keys.tick(now),
                "close" => keys.close(),
                other => panic!("{other} is no event"),
            };
            let sends: Vec<String> = event.sends.iter().map(|words| without_cost_of_one(words)).collect();
            assert_eq!(commands.iter().map(words).collect::<Vec<_>>(), sends, "{what}");
            let answers: BTreeMap<_, _> = answers
                .iter()
                .map(|(id, answer)| (requests[*id as usize].to_owned(), figures(answer)))
                .collect();
            assert_eq!(answers, event.answers, "{what}");
            sent.extend(commands.into_iter().filter(Command::awaits_reply));
        }
    }
}

#[test]
fn slots_are_those_of_the_cluster() {
    for (key, expected) in [
        ("123456789", 12739),
        ("{user1000}.following", 3443),
        ("{user1000}.followers", 3443),
        ("foo{}{bar}", 8363),
        ("foo{{bar}}zap", 4015),
        ("foo{bar}{zap}", 5061),
        ("", 0),
    ] {
        assert_eq!(slot(key.as_bytes()), expected, "{key}");
    }
}

#[test]
fn a_wait_told_from_memory_is_never_a_part_of_a_millisecond_too_short() {
    let us = Duration::from_micros;
    let rules = Arc::new(Rules::new(Algorithm::Log, &[Quota::per_minute(5)], us(100_000), 8));
    let mut keys = Keys::new(us(1_000_000), NonZeroUsize::new(8).expect("some keys"), false);
    let share = Share { key: b"k"[..].into(), rules: rules.clone(), cost: 1 };
    let command = keys.take(us(100), 0, vec![share]).commands.remove(0);
    let reply = command.read(value(&json!([1, 5, 0, 3, 60_000, 0, 1_700_000_040_000_u64])));
    keys.reply(us(1_900), &command, reply);
    for (at, wait) in [(2_100, Some(3)), (2_900, Some(2)), (4_899, Some(1)), (4_900, None)] {
        let verdict = keys.known(us(at), b"k", &rules, 1);
        assert_eq!(
            verdict.and_then(|verdict| verdict.retry_after).map(|wait| wait.as_millis()),
            wait,
            "{at} us"
        );
    }
}
