//! The table of cases of the local decider, which all clients share.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use redis::{Arg, FromRedisValue, Value};
use redis_rl_client::local::{self, Answer, Command, Decider, Fate, Group, Joint, JointAnswer, JointStep};
use redis_rl_client::local::{Outcome, Refusals, Rules, Settings, Step};
use redis_rl_client::{Algorithm, All, Decision, Quota, Verdict, cmd};
use serde::Deserialize;
use serde_json::{Value as Json, json};

#[derive(Deserialize)]
struct Table {
    settings: BTreeMap<String, Json>,
    cases: Vec<Case>,
    decisions: Vec<Case>,
    joint: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    settings: BTreeMap<String, Json>,
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
    key: String,
    cost: Option<i64>,
    algorithm: Option<String>,
    limits: Option<Json>,
    #[serde(default)]
    rows: Vec<Row>,
    #[serde(default)]
    policies: Vec<Share>,
    #[serde(default)]
    to: String,
    #[serde(default)]
    reply: Json,
    #[serde(default)]
    sends: Vec<String>,
    #[serde(default)]
    answers: BTreeMap<String, Json>,
}

/// What a request takes by one policy.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Share {
    key: String,
    algorithm: Option<String>,
    limits: Json,
    cost: Option<i64>,
    #[serde(default)]
    units: u64,
}

#[derive(Clone, Deserialize)]
struct Row {
    key: String,
    algorithm: String,
    limit: u64,
    window: String,
    cost: i64,
}

fn table() -> Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/local.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    serde_json::from_str(&text).expect("a table of cases")
}

/// The settings of a case: its own, or those of the table.
struct Given<'a>(&'a Table, &'a Case);

impl Given<'_> {
    fn get(&self, name: &str) -> &Json {
        self.1.settings.get(name).unwrap_or_else(|| &self.0.settings[name])
    }

    fn number(&self, name: &str) -> u64 {
        self.get(name).as_u64().expect("a number")
    }

    fn share(&self, share: &Share) -> local::Share {
        let limits: Vec<(u64, String)> = serde_json::from_value(share.limits.clone()).expect("limits");
        let quotas: Vec<Quota> = limits.iter().map(|(limit, window)| quota(*limit, window)).collect();
        let algorithm = algorithm(share.algorithm.as_deref().unwrap_or("log"));
        let rules = Rules::new(algorithm, &quotas, self.duration("for_ms")).units(share.units);
        local::Share {
            key: share.key.as_bytes().into(),
            rules: Arc::new(rules),
            cost: share.cost.unwrap_or(1),
        }
    }

    fn duration(&self, name: &str) -> Duration {
        Duration::from_millis(self.number(name))
    }

    fn max_keys(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.number("max_keys") as usize).expect("a number of keys")
    }

    fn rules(&self, event: &Event) -> Arc<Rules> {
        let limits = event.limits.as_ref().unwrap_or_else(|| self.get("limits"));
        let limits: Vec<(u64, String)> = serde_json::from_value(limits.clone()).expect("limits");
        let quotas: Vec<Quota> = limits.iter().map(|(limit, window)| quota(*limit, window)).collect();
        let name =
            event.algorithm.as_deref().unwrap_or_else(|| self.get("algorithm").as_str().expect("a name"));
        Arc::new(Rules::new(algorithm(name), &quotas, self.duration("for_ms")))
    }
}

fn quota(limit: u64, window: &str) -> Quota {
    format!("{limit}/{window}").parse().expect("a quota")
}

fn algorithm(name: &str) -> Algorithm {
    match name {
        "fixed" => Algorithm::Fixed,
        "sliding" => Algorithm::Sliding,
        "log" => Algorithm::Log,
        other => panic!("{other} is no algorithm"),
    }
}

/// The words of a command; this package leaves out a cost of 1.
fn words(command: &redis::Cmd) -> String {
    let word = |arg| match arg {
        Arg::Simple(bytes) => String::from_utf8(Vec::from(bytes)).expect("UTF-8"),
        other => panic!("{other:?}"),
    };
    command.args_iter().map(word).collect::<Vec<_>>().join(" ")
}

fn without_cost_of_one(words: &[String]) -> Vec<String> {
    words.iter().map(|words| words.replace(" COST 1 ", " ").trim_end_matches(" COST 1").to_owned()).collect()
}

fn value(reply: &Json) -> Value {
    match reply {
        Json::Array(items) => Value::Array(items.iter().map(value).collect()),
        number => Value::Int(number.as_i64().expect("an integer")),
    }
}

fn ms(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

fn figures(verdict: &Verdict) -> Json {
    let Verdict { limited, limit, remaining, retry_after, reset_after, taken, at } = *verdict;
    let wait = retry_after.map_or(-1, |wait| ms(wait) as i64);
    let mut figures =
        vec![json!(u64::from(limited)), json!(limit), json!(remaining), json!(wait), json!(ms(reset_after))];
    figures.extend(taken.map(Json::from));
    figures.extend(at.map(|at| json!(ms(at.duration_since(UNIX_EPOCH).expect("after 1970")))));
    Json::Array(figures)
}

fn decision(decision: &Decision) -> Json {
    let at = ms(decision.at.duration_since(UNIX_EPOCH).expect("after 1970"));
    let wait = decision.retry_after.map_or(-1, |wait| ms(wait) as i64);
    json!([u64::from(decision.limited), wait, at, decision.rows.iter().map(figures).collect::<Vec<_>>()])
}

#[test]
fn every_case_of_leases_and_refusals_holds() {
    let table = table();
    assert!(table.cases.len() >= 40);
    for case in &table.cases {
        let given = Given(&table, case);
        let settings = Settings { units: given.number("units"), remember: given.duration("remember_ms") };
        let mut decider = Decider::new(settings, given.max_keys());
        let mut requests: Vec<&Event> = Vec::new();
        let mut sent: Vec<Command> = Vec::new();
        for event in &case.steps {
            let what = format!("{} {} at {} ms: {}", event.event, event.name, event.at, case.name);
            let now = Duration::from_millis(event.at);
            let mut step = Step::default();
            let mut answered = BTreeMap::new();
            match event.event.as_str() {
                "take" => {
                    let id = requests.len() as u64;
                    requests.push(event);
                    let (key, cost) = (event.key.as_bytes(), event.cost.unwrap_or(1));
                    let verdict = decider.take(now, key, &given.rules(event), id, cost, &mut step);
                    answered.extend(verdict.map(|verdict| (event.name.clone(), figures(&verdict))));
                }
                "reply" | "error" => {
                    let to = &without_cost_of_one(std::slice::from_ref(&event.to))[0];
                    let position = sent.iter().position(|command| words(&command.cmd()) == *to);
                    let command =
                        sent.remove(position.unwrap_or_else(|| panic!("{what}: {to} was not sent")));
                    let reply = (event.event == "reply")
                        .then(|| Verdict::from_redis_value(value(&event.reply)).expect("a verdict"));
                    decider.reply(now, &command, reply, &mut step);
                }
                "cancel" => {
                    let id =
                        requests.iter().position(|request| request.name == event.name).expect("a request");
                    decider.cancel(requests[id].key.as_bytes(), id as u64);
                }
                "tick" => decider.tick(now, &mut step),
                "close" => decider.close(&mut step),
                other => panic!("{other} is no event"),
            }
            for (id, answer) in &step.answers {
                let answer = match answer {
                    Answer::Verdict(verdict) => figures(verdict),
                    Answer::Failed => json!("error"),
                };
                answered.insert(requests[*id as usize].name.clone(), answer);
            }
            let commands: Vec<String> = step.commands.iter().map(|command| words(&command.cmd())).collect();
            assert_eq!(commands, without_cost_of_one(&event.sends), "{what}");
            // Whoever has cancelled reads no answer.
            let is_cancelled = |name: &String| {
                case.steps
                    .iter()
                    .any(|other| other.event == "cancel" && other.at <= event.at && other.name == *name)
            };
            answered.retain(|name, _| !is_cancelled(name));
            assert_eq!(answered, event.answers, "{what}");
            sent.extend(step.commands);
        }
    }
}

/// Waits as in replies.
fn answer(answer: &JointAnswer) -> Json {
    let wait = |wait: Option<Duration>| wait.map_or(-1, |wait| ms(wait) as i64);
    let (limited, wait) = match answer.outcome {
        Outcome::Allowed => (0, -1),
        Outcome::Refused(retry_after) => (1, wait(retry_after)),
        Outcome::Away => return json!("error"),
    };
    let plain = |row: &Verdict| figures(&Verdict { taken: None, at: None, ..*row });
    let of_policy =
        |rows: &Option<Vec<Verdict>>| rows.as_ref().map(|rows| rows.iter().map(plain).collect::<Vec<_>>());
    json!([limited, wait, answer.rows.iter().map(of_policy).collect::<Vec<_>>()])
}

enum Sent {
    Key(Command),
    Group(Group),
}

impl Sent {
    fn words(&self) -> String {
        match self {
            // Its time is needed, to give it back.
            Sent::Key(command) if !command.partial && !command.gives_back() => words(&command.all()),
            Sent::Key(command) => words(&command.cmd()),
            Sent::Group(group) => words(&cmd::all(&group.all())),
        }
    }
}

#[test]
fn every_case_of_joint_decisions_holds() {
    let table = table();
    for case in &table.joint {
        let given = Given(&table, case);
        let remember = given.duration("remember_ms");
        let settings = Settings { units: u64::MAX, remember };
        let undecided = if given.get("fail") == "closed" { Fate::Fails } else { Fate::Passes };
        let is_cluster = given.get("cluster") == true;
        let decider = Decider::new(settings, given.max_keys());
        let refusals = Refusals::new(remember, given.max_keys());
        let mut joint = Joint::new(decider, refusals, is_cluster, undecided);
        let mut requests: Vec<&str> = Vec::new();
        let mut taken = BTreeMap::new();
        let mut sent: Vec<Sent> = Vec::new();
        for event in &case.steps {
            let what = format!("{} {} at {} ms: {}", event.event, event.name, event.at, case.name);
            let now = Duration::from_millis(event.at);
            let mut step = JointStep::default();
            let id =
                |requests: &[&str]| requests.iter().position(|name| *name == event.name).map(|id| id as u64);
            match event.event.as_str() {
                "take" => {
                    let shares = event.policies.iter().map(|share| given.share(share)).collect();
                    requests.push(&event.name);
                    joint.take(now, requests.len() as u64 - 1, shares, &mut step);
                }
                "reply" | "error" => {
                    let to = &without_cost_of_one(std::slice::from_ref(&event.to))[0];
                    let position = sent.iter().position(|sent| sent.words() == *to);
                    let reply = (event.event == "reply").then(|| value(&event.reply));
                    match sent.remove(position.unwrap_or_else(|| panic!("{what}: {to} was not sent"))) {
                        Sent::Key(command) if command.partial => {
                            let reply =
                                reply.map(|reply| Verdict::from_redis_value(reply).expect("a verdict"));
                            joint.reply_to_key(now, &command, reply, &mut step);
                        }
                        Sent::Key(command) => {
                            let reply =
                                reply.map(|reply| Decision::from_redis_value(reply).expect("a decision"));
                            let reply = reply.and_then(|reply| Command::verdict(&reply));
                            joint.reply_to_key(now, &command, reply, &mut step);
                        }
                        Sent::Group(group) => {
                            let reply =
                                reply.map(|reply| Decision::from_redis_value(reply).expect("a decision"));
                            joint.reply_to_group(now, &group, reply, &mut step);
                        }
                    }
                }
                "cancel" => joint.cancel(now, id(&requests).expect("a request"), &mut step),
                "give_up" => joint.give_up(now, id(&requests).expect("a request"), &mut step),
                "release" => joint.release(now, taken.remove(&event.name).expect("taken"), &mut step),
                "tick" => joint.tick(now, &mut step),
                "close" => joint.close(&mut step),
                other => panic!("{other} is no event"),
            }
            let keys = step.keys.into_iter().map(Sent::Key);
            let new: Vec<Sent> = keys.chain(step.groups.into_iter().map(Sent::Group)).collect();
            let commands: Vec<String> = new.iter().map(Sent::words).collect();
            let mut answers = BTreeMap::new();
            for (id, answered) in step.answers {
                let name = requests[id as usize];
                answers.insert(name.to_owned(), answer(&answered));
                taken.insert(name.to_owned(), answered.taken);
            }
            assert_eq!(commands, without_cost_of_one(&event.sends), "{what}");
            assert_eq!(answers, event.answers, "{what}");
            sent.extend(new);
        }
    }
}

#[test]
fn slots_are_those_of_the_cluster() {
    for (key, slot) in [
        ("123456789", 12739),
        ("{user1000}.following", 3443),
        ("{user1000}.followers", 3443),
        ("foo{}{bar}", 8363),
        ("foo{{bar}}zap", 4015),
        ("foo{bar}{zap}", 5061),
        ("", 0),
    ] {
        assert_eq!(redis_rl_client::local::slot(key.as_bytes()), slot, "{key}");
    }
}

#[test]
fn a_wait_told_from_memory_is_never_a_part_of_a_millisecond_too_short() {
    let us = Duration::from_micros;
    let rules = Arc::new(Rules::new(Algorithm::Log, &[quota(5, "1m")], us(100_000)));
    let settings = Settings { units: 8, remember: us(1_000_000) };
    let mut decider = Decider::new(settings, NonZeroUsize::new(8).expect("some keys"));
    let mut step = Step::default();
    assert_eq!(decider.take(us(100), b"k", &rules, 0, 1, &mut step), None);
    let command = step.commands.remove(0);
    let reply = Verdict::from_redis_value(value(&json!([1, 5, 0, 3, 60_000, 0, 1_700_000_040_000_u64])));
    decider.reply(us(1_900), &command, Some(reply.expect("a verdict")), &mut step);
    for (at, wait) in [(2_100, Some(3)), (2_900, Some(2)), (4_899, Some(1)), (4_900, None)] {
        let verdict = decider.take(us(at), b"k", &rules, 1, 1, &mut Step::default());
        assert_eq!(verdict.and_then(|verdict| verdict.retry_after).map(ms), wait, "{at} us");
    }
}

#[test]
fn every_case_of_decisions_over_several_keys_holds() {
    let table = table();
    for case in &table.decisions {
        let given = Given(&table, case);
        let mut refusals = Refusals::new(given.duration("remember_ms"), given.max_keys());
        // Name, request and costs of those that were sent, by their words.
        let mut sent = BTreeMap::new();
        for event in &case.steps {
            let what = format!("{} {} at {} ms: {}", event.event, event.name, event.at, case.name);
            let now = Duration::from_millis(event.at);
            let mut sends = Vec::new();
            let mut answered = BTreeMap::new();
            match event.event.as_str() {
                "take" => {
                    let all = |rows: &[Row]| {
                        rows.iter().fold(All::new(), |all, row| {
                            all.key(
                                &row.key,
                                algorithm(&row.algorithm),
                                quota(row.limit, &row.window),
                                row.cost,
                            )
                        })
                    };
                    let costs: Vec<i64> = event.rows.iter().map(|row| row.cost).collect();
                    let rows: Vec<Row> =
                        event.rows.iter().map(|row| Row { cost: 0, ..row.clone() }).collect();
                    let request = words(&cmd::all(&all(&rows))).into_bytes();
                    match refusals.known(now, &request, &costs) {
                        Some(known) => {
                            answered.insert(event.name.clone(), decision(&known));
                        }
                        None => {
                            let words = words(&cmd::all(&all(&event.rows)));
                            sends.push(words.clone());
                            sent.insert(words, (event.name.clone(), request, costs));
                        }
                    }
                }
                "reply" | "error" => {
                    let (name, request, costs) = sent.remove(&event.to).expect("a command that was sent");
                    if event.event == "reply" {
                        let reply = Decision::from_redis_value(value(&event.reply)).expect("a decision");
                        refusals.remember(now, &request, &costs, &reply);
                        answered.insert(name, decision(&reply));
                    } else {
                        answered.insert(name, json!("error"));
                    }
                }
                other => panic!("{other} is no event"),
            }
            assert_eq!(sends, event.sends, "{what}");
            assert_eq!(answered, event.answers, "{what}");
        }
    }
}
