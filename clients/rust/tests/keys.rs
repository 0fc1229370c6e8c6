//! The table of cases of `Keys`, which all clients share.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisResult, Value};
use redis_rl_client::keys::{Answer, Command, Keys, Request, Rules, Share, Step, slot};
use redis_rl_client::{Algorithm, Quota, Verdict};
use serde::{Deserialize, Serialize};
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

#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Event {
    pub at: u64,
    pub event: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<Asked>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub used: Vec<Option<i64>>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to: String,
    #[serde(skip_serializing_if = "Json::is_null")]
    pub reply: Json,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sends: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub answers: BTreeMap<String, Json>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    pub key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<i64>,
    pub policy: Option<String>,
}

/// What is given last counts.
fn merged(given: &[&Map<String, Json>]) -> Map<String, Json> {
    given.iter().flat_map(|given| given.iter()).map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn number(value: &Json) -> u64 {
    value.as_u64().expect("a number")
}

fn algorithm(name: &Json) -> Algorithm {
    let named =
        |algorithm: &&Algorithm| format!("{algorithm:?}").to_lowercase() == name.as_str().expect("a name");
    *Algorithm::EVERY.iter().find(named).expect("an algorithm")
}

fn rules(policy: &Map<String, Json>) -> Rules {
    let limits: Vec<(u64, String)> = serde_json::from_value(policy["limits"].clone()).expect("limits");
    let quota = |(limit, window): &(u64, String)| format!("{limit}/{window}").parse().expect("a quota");
    let quotas: Vec<Quota> = limits.iter().map(quota).collect();
    let lease = Duration::from_millis(number(&policy["for_ms"]));
    Rules { algorithm: algorithm(&policy["algorithm"]), quotas, ttl: lease, units: number(&policy["units"]) }
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

/// A process that is told what happens, and what it has sent.
pub struct Process {
    keys: Keys,
    policies: BTreeMap<Option<String>, Arc<Rules>>,
    requests: Vec<(String, Request)>,
    sent: Vec<Command>,
}

impl Process {
    pub fn new(
        settings: &Map<String, Json>,
        policies: impl Iterator<Item = (Option<String>, Map<String, Json>)>,
    ) -> Process {
        let remember = Duration::from_millis(number(&settings["remember_ms"]));
        let max_keys = NonZeroUsize::new(number(&settings["max_keys"]) as usize).expect("some keys");
        let keys = Keys::new(remember, max_keys, settings["cluster"] == true);
        let policies = policies.map(|(name, policy)| (name, Arc::new(rules(&policy)))).collect();
        Process { keys, policies, requests: Vec::new(), sent: Vec::new() }
    }

    /// Commands whose replies are to come, the oldest first.
    pub fn sent(&self) -> Vec<String> {
        self.sent.iter().map(words).collect()
    }

    /// Whether a key was forgotten while a command of it was in flight.
    pub fn has_leaving_keys(&self) -> bool {
        !format!("{:?}", self.keys).contains("leaving: {}")
    }

    fn step(&mut self, event: &Event) -> Step {
        let now = Duration::from_millis(event.at);
        let named = |(name, _): &&(String, Request)| *name == event.name;
        let request = self.requests.iter().find(named).map(|(_, request)| request);
        let request = || request.expect("a request");
        match event.event.as_str() {
            "take" => {
                let share = |asked: &Asked| Share {
                    key: asked.key.as_bytes().into(),
                    rules: self.policies[&asked.policy].clone(),
                    cost: asked.cost.unwrap_or(1),
                };
                let request = Request::new(event.shares.iter().map(share).collect());
                self.requests.push((event.name.clone(), request.clone()));
                self.keys.take(now, &request)
            }
            "reply" | "error" => {
                let to = without_cost_of_one(&event.to);
                let position = self.sent.iter().position(|command| words(command) == to);
                let command = self.sent.remove(position.unwrap_or_else(|| panic!("{to} was not sent")));
                let is_reply = event.event == "reply";
                let away = || Err((ErrorKind::Io, "away").into());
                let reply = if is_reply { command.read(value(&event.reply)) } else { away() };
                self.keys.reply(now, &command, reply)
            }
            "settle" => {
                let used = event.used.iter().enumerate();
                self.keys.settle(request(), used.filter_map(|(place, used)| Some((place, (*used)?))))
            }
            "give_back" => self.keys.give_back(now, request()),
            "tick" => self.keys.tick(now),
            "close" => self.keys.close(),
            other => panic!("{other} is no event"),
        }
    }

    /// What is sent and answered.
    pub fn happens(&mut self, event: &Event) -> (Vec<String>, BTreeMap<String, Json>) {
        let Step { commands, answers } = self.step(event);
        let sends = commands.iter().map(words).collect();
        self.sent.extend(commands.into_iter().filter(Command::awaits_reply));
        let name = |of: &Request| {
            let named = self.requests.iter().find(|(_, request)| request == of);
            named.expect("a request").0.clone()
        };
        (sends, answers.iter().map(|(request, answer)| (name(request), figures(answer))).collect())
    }
}

#[test]
fn every_case_holds() {
    let table: Table = server::table("local");
    assert!(table.cases.len() >= 60);
    for case in &table.cases {
        let own = case.policies.iter().map(|(name, policy)| (Some(name.clone()), policy));
        let policies = own.chain([(None, &case.policy)]);
        let policies = policies.map(|(name, policy)| (name, merged(&[&table.policy, policy])));
        let mut process = Process::new(&merged(&[&table.settings, &case.settings]), policies);
        for event in &case.steps {
            let sends = event.sends.iter().map(|words| without_cost_of_one(words)).collect();
            let what = format!("{} {} at {} ms: {}", event.event, event.name, event.at, case.name);
            assert_eq!(process.happens(event), (sends, event.answers.clone()), "{what}");
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
    let quotas = vec![Quota::per_minute(5)];
    let rules = Arc::new(Rules { algorithm: Algorithm::Log, quotas, ttl: us(100_000), units: 8 });
    let mut keys = Keys::new(us(1_000_000), NonZeroUsize::new(8).expect("some keys"), false);
    let share = Share { key: b"k"[..].into(), rules: rules.clone(), cost: 1 };
    let command = keys.take(us(100), &Request::new(vec![share])).commands.remove(0);
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
