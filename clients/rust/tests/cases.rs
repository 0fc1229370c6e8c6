//! The table of cases that all clients share, through typed calls on a real server, in RESP2 and RESP3.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, Request, Response};
use redis::{Cmd, ConnectionLike, RedisError, RedisResult, Value};
use redis_rl_client::web::{Fail, Figures, Guard, Policy, client_address};
use redis_rl_client::{
    Algorithm, All, Clock, Info, Invalid, Leases, MemoryLimiter, Quota, Quotas, RlCommands, Take, Verdict,
    Verdicts, cmd,
};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::server::words::{Words, words};
use crate::server::{Server, table};

#[derive(Deserialize)]
struct Cases {
    commands: Vec<Case>,
    http: Vec<HttpCase>,
    quotas: Vec<QuotasCase>,
    policies: Vec<PoliciesCase>,
    mistakes: Vec<Mistake>,
    addresses: Vec<Address>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    call: Option<String>,
    #[serde(default)]
    key: String,
    #[serde(default)]
    limits: Vec<(i64, Json)>,
    #[serde(default)]
    rows: Vec<Row>,
    cost: Option<i64>,
    #[serde(default)]
    force: bool,
    #[serde(default)]
    partial: bool,
    within_ms: Option<u64>,
    at: Option<i64>,
    words: Vec<String>,
    #[serde(default)]
    reply: Json,
    error: Option<Refused>,
}

#[derive(Deserialize)]
struct Row {
    key: String,
    algorithm: String,
    limit: u64,
    window: String,
    cost: i64,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Refused {
    code: String,
    message: String,
}

#[derive(Deserialize)]
struct HttpCase {
    name: String,
    policies: Vec<PolicyCase>,
    before: Vec<Step>,
    rows: Vec<Row>,
    at: i64,
    reply: Json,
    status: u16,
    fields: BTreeMap<String, Option<String>>,
    #[serde(default)]
    body: Json,
}

#[derive(Deserialize)]
struct PolicyCase {
    name: String,
    limit: u64,
    window: String,
    unit: Option<String>,
}

#[derive(Deserialize)]
struct QuotasCase {
    text: String,
    #[serde(default)]
    quotas: Vec<(u64, String)>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct PoliciesCase {
    name: String,
    policies: Vec<Chosen>,
    client: Option<String>,
    words: Option<Vec<String>>,
    instead: Option<Vec<String>>,
}

/// What is refused where it is made: a policy, with `leases` also a leased guard, or a setting.
#[derive(Deserialize)]
struct Mistake {
    name: String,
    policy: Option<Json>,
    #[serde(default)]
    settings: Json,
    #[serde(default)]
    leases: bool,
    #[serde(default)]
    error: String,
}

#[derive(Deserialize)]
struct Address {
    address: Option<String>,
    is: String,
}

#[derive(Deserialize)]
struct Chosen {
    name: String,
    quotas: String,
    algorithm: Option<String>,
    cost: Option<i64>,
    block: Option<String>,
    /// Missing: the network address. Null: the policy does not limit the request.
    #[serde(default, deserialize_with = "present")]
    key: Option<Option<String>>,
}

fn present<'de, D: serde::Deserializer<'de>>(field: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(field).map(Some)
}

fn cases() -> Cases {
    table("cases")
}

#[test]
fn every_case_of_the_table_holds_in_resp2_and_in_resp3() {
    let server = Server::start();
    for protocol in ["resp2", "resp3"] {
        let connection = server.client(protocol).get_connection().expect("the server answers");
        every_case_holds_on(connection, cases().commands);
    }
}
#[test]
fn every_case_of_the_table_holds_without_a_server() {
    let has_strings = |case: &Case| case.steps.iter().any(|step| step.words[0] == "SET");
    let (others, known): (Vec<_>, Vec<_>) = cases().commands.into_iter().partition(has_strings);
    assert_eq!(others.len(), 2, "keys of another type");
    every_case_holds_on(MemoryLimiter::new(), known);
}

fn every_case_holds_on(mut connection: impl ConnectionLike, cases: Vec<Case>) {
    assert!(!cases.is_empty());
    for case in cases {
        let () = redis::cmd("FLUSHALL").query(&mut connection).expect("a reply");
        for step in &case.steps {
            step.check(&mut connection, &case.name);
        }
    }
}

/// What a typed call answers, as the table has it.
type Reply = RedisResult<Json>;

impl Step {
    fn check(&self, connection: &mut impl ConnectionLike, case: &str) {
        let reply = match self.typed() {
            Some(command) => {
                assert_eq!(words(&command), self.typed_words(), "{case}");
                self.reply_of(connection)
            }
            // Types keep this from being said.
            None => plain(&self.words).query(connection).map(|reply: Value| match reply {
                Value::Okay => json!("OK"),
                other => panic!("{case}: {other:?}"),
            }),
        };
        match (&self.error, reply) {
            (Some(expected), Err(error)) => assert_eq!(&refused(&error), expected, "{case}"),
            (None, Ok(reply)) => {
                assert_eq!(only_given(reply, &self.reply), self.reply, "{case}: {:?}", self.words)
            }
            (_, reply) => panic!("{case}: {:?} answers {reply:?}", self.words),
        }
    }

    fn typed(&self) -> Option<Cmd> {
        let quotas = || self.quotas();
        Some(match self.call.as_deref()? {
            "fixed" => cmd::fixed(&self.key, quotas()?, self.take()),
            "sliding" => cmd::sliding(&self.key, quotas()?, self.take()),
            "log" => cmd::log(&self.key, quotas()?, self.take()),
            "bucket" => cmd::bucket(&self.key, quotas()?, self.take()),
            "peek" => cmd::peek(&self.key, quotas()?, self.take()),
            "info" => cmd::info(&self.key),
            "all" => cmd::all(&self.all()),
            other => panic!("{other} is no call"),
        })
    }

    fn reply_of(&self, connection: &mut impl ConnectionLike) -> Reply {
        let quotas = self.quotas().unwrap_or_default();
        match self.call.as_deref().expect("a call") {
            "fixed" => connection.rl_fixed(&self.key, quotas, self.take()).map(figures),
            "sliding" => connection.rl_sliding(&self.key, quotas, self.take()).map(figures),
            "log" => connection.rl_log(&self.key, quotas, self.take()).map(figures),
            "bucket" => connection.rl_bucket(&self.key, quotas, self.take()).map(figures),
            "peek" => connection.rl_peek(&self.key, quotas, self.take()).map(figures),
            "info" => connection.rl_info(&self.key).map(|info| info.map_or(Json::Null, info_map)),
            "all" => connection.rl_all(&self.all()).map(verdicts),
            other => panic!("{other} is no call"),
        }
    }

    /// None if types keep one from being said.
    fn quotas(&self) -> Option<Vec<Quota>> {
        let quota = |(limit, window): &(i64, Json)| {
            let window = window.as_str().map_or_else(|| format!("{window}s"), str::to_owned);
            format!("{limit}/{window}").parse().ok()
        };
        self.limits.iter().map(quota).collect()
    }

    fn take(&self) -> Take {
        let mut take = Take::cost(self.cost.unwrap_or(1));
        if self.force {
            take = take.force();
        }
        if self.partial {
            take = take.partial();
        }
        if let Some(within_ms) = self.within_ms {
            take = take.within(Duration::from_millis(within_ms));
        }
        self.at.map_or(take, |at| take.at(time(at)))
    }

    fn all(&self) -> All {
        let mut all = request(&self.rows);
        if self.force {
            all = all.force();
        }
        if let Some(at) = self.at { all.at(time(at)) } else { all }
    }

    /// The words, with windows as a `Duration` is written: in the largest unit in which it is whole.
    fn typed_words(&self) -> Vec<String> {
        let mut words = self.words.clone();
        for (index, quota) in self.quotas().unwrap_or_default().into_iter().enumerate() {
            let quota = quota.to_string();
            words[3 + 2 * index] = quota.split_once('/').expect("a window").1.to_owned();
        }
        if let Some(within_ms) = self.within_ms {
            let option = words.iter().position(|word| word == "WITHIN").expect("the option");
            let quota = Quota::new(0, Duration::from_millis(within_ms)).to_string();
            words[option + 1] = quota.split_once('/').expect("a window").1.to_owned();
        }
        words
    }
}

fn request(rows: &[Row]) -> All {
    rows.iter().fold(All::new(), |all, row| {
        let algorithm = algorithm(&row.algorithm);
        let quota: Quota = format!("{}/{}", row.limit, row.window).parse().expect("a quota");
        all.key(&row.key, algorithm, quota, row.cost)
    })
}

/// The length of a window in seconds, minutes or days, also of one that is too long.
fn window(text: &str) -> Duration {
    let (count, unit) = text.split_at(text.len() - 1);
    let unit = format!("1/{unit}").parse::<Quota>().expect("a unit").window;
    unit * count.parse().expect("a number")
}

fn algorithm(name: &str) -> Algorithm {
    let named = |algorithm: &&Algorithm| format!("{algorithm:?}").to_lowercase() == name;
    *Algorithm::EVERY.iter().find(named).expect("an algorithm")
}

fn time(unix_ms: i64) -> SystemTime {
    let distance = Duration::from_millis(unix_ms.unsigned_abs());
    if unix_ms < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

fn plain(words: &[String]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}

fn refused(error: &RedisError) -> Refused {
    let text = |part: Option<&str>| part.unwrap_or_default().to_owned();
    Refused { code: text(error.code()), message: text(error.detail()) }
}

fn ms(duration: Duration) -> i64 {
    assert_eq!(duration.subsec_nanos() % 1_000_000, 0);
    i64::try_from(duration.as_millis()).expect("a wait")
}

fn wait(duration: Option<Duration>) -> i64 {
    duration.map_or(-1, ms)
}

fn figures(verdict: Verdict) -> Json {
    let Verdict { limited, limit, remaining, retry_after, reset_after, taken, at } = verdict;
    let mut figures = vec![json!(i64::from(limited)), json!(limit), json!(remaining)];
    figures.extend([json!(wait(retry_after)), json!(ms(reset_after))]);
    figures.extend(taken.map(Json::from));
    figures.extend(at.map(|at| json!(ms(at.duration_since(UNIX_EPOCH).expect("after 1970")))));
    Json::Array(figures)
}

fn verdicts(verdicts: Verdicts) -> Json {
    let at = ms(verdicts.at.duration_since(UNIX_EPOCH).expect("after 1970"));
    let rows: Vec<Json> = verdicts.rows.into_iter().map(figures).collect();
    json!([i64::from(verdicts.limited), wait(verdicts.retry_after), at, rows])
}

fn info_map(info: Info) -> Json {
    let windows: Vec<Json> = info
        .windows
        .iter()
        .map(|window| {
            json!({"window_ms": ms(window.window), "limit": window.limit, "used": window.used,
                "reset_after_ms": ms(window.reset_after), "current": window.current, "previous": window.previous, "calendar": window.calendar})
        })
        .collect();
    let algorithm = format!("{:?}", info.algorithm).to_lowercase();
    json!({"algorithm": algorithm, "windows": windows, "entries": info.entries})
}

/// Of maps only the fields that `given` has, too.
fn only_given(reply: Json, given: &Json) -> Json {
    match (reply, given) {
        (Json::Object(reply), Json::Object(given)) => {
            let fields = reply.into_iter().filter_map(|(name, value)| {
                let given = given.get(&name)?;
                Some((name, only_given(value, given)))
            });
            fields.collect()
        }
        (Json::Array(reply), Json::Array(given)) if reply.len() == given.len() => {
            reply.into_iter().zip(given).map(|(reply, given)| only_given(reply, given)).collect()
        }
        (reply, _) => reply,
    }
}

#[test]
fn texts_of_quotas_mean_what_the_table_says_or_are_refused_by_name() {
    for case in cases().quotas {
        let quotas: Result<Quotas, _> = case.text.parse();
        if let Some(error) = case.error {
            let why = quotas.expect_err(&case.text).to_string();
            assert!(why.starts_with('"') && why.contains(&error), "{:?}: {why}", case.text);
            continue;
        }
        let quotas = quotas.expect(&case.text);
        let expected: Vec<String> =
            case.quotas.iter().map(|(limit, window)| format!("{limit}/{window}")).collect();
        assert_eq!(quotas.to_string(), expected.join(", "), "{:?}", case.text);
    }
}

/// What a middleware sends, on a connection that keeps it and answers nothing else.
#[tokio::test]
async fn a_limiter_sends_for_every_case_of_policies_the_words_of_the_table() {
    for case in cases().policies {
        let policies: Vec<Policy> = case
            .policies
            .into_iter()
            .map(|chosen| {
                let mut policy = Policy::new(chosen.name, chosen.quotas).expect("a policy");
                if let Some(name) = chosen.algorithm {
                    policy = policy.algorithm(algorithm(&name));
                }
                if let Some(block) = chosen.block {
                    policy = policy.block(window(&block));
                }
                if let Some(cost) = chosen.cost {
                    policy = policy.cost_with(move |_| cost);
                }
                match chosen.key {
                    Some(key) => policy.key(move |_| key.clone()),
                    None => policy,
                }
            })
            .collect();
        let words = Words::start();
        let guard = Guard::new(words.client(), policies).expect("policies");
        let (mut head, ()) = Request::new(()).into_parts();
        if let Some(client) = case.client {
            let address: IpAddr = client.parse().expect("an address");
            head.extensions.insert(SocketAddr::from((address, 1)));
        }
        guard.take(&head, ()).await.expect("it passes, as nothing answers");
        assert_eq!(words.sent(), Vec::from_iter(case.instead.or(case.words)), "{}", case.name);
    }
}
#[test]
fn an_address_is_told_by_one_name_however_a_proxy_writes_it() {
    for case in cases().addresses {
        let mut headers = HeaderMap::new();
        if let Some(address) = &case.address {
            headers.insert("x-forwarded-for", address.parse().expect("a field"));
        }
        assert_eq!(client_address(None, &headers, 1), case.is, "{:?}", case.address);
    }
}

/// The text of the error or the panic by which something cannot be made.
fn refusal<T>(name: &str, make: impl FnOnce() -> Result<T, Invalid>) -> String {
    let text = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(text) => text.downcast::<&str>().expect("text").to_string(),
    };
    match catch_unwind(AssertUnwindSafe(make)) {
        Ok(made) => made.err().expect(name).to_string(),
        Err(panic) => text(panic),
    }
}

/// Those that the types of the package do not rule out.
#[test]
fn every_mistake_of_the_table_is_refused_where_it_is_made() {
    let mut refused = 0;
    for case in cases().mistakes {
        let mut errors = Vec::new();
        if let Some(policy) = &case.policy {
            let named = policy.get("algorithm").map_or("log", |name| name.as_str().expect("a name"));
            let known = Algorithm::EVERY.iter().find(|one| format!("{one:?}").to_lowercase() == named);
            let (Some(quotas), Some(algorithm)) = (typed_quotas(&policy["quotas"]), known) else { continue };
            let block = policy.get("block").map(|block| window(block.as_str().expect("text")));
            let cost = policy.get("cost").cloned().unwrap_or(json!(1));
            let Some(cost) = cost.as_i64() else { continue };
            let Some(lease) = policy.get("lease").map_or(Some(0), Json::as_u64) else {
                continue;
            };
            let name = policy["name"].as_str().expect("a name");
            let policy = || {
                let policy = match &quotas {
                    Ok(quotas) => Policy::new(name, quotas.clone()),
                    Err(text) => Policy::new(name, text),
                };
                let policy = policy?.cost(cost).lease(lease).algorithm(*algorithm);
                let policy = block.map_or(policy.clone(), |block| policy.block(block));
                Guard::new(Words::start().client(), policy)
            };
            errors.push(refusal(&case.name, policy));
            if case.leases {
                errors.push(refusal(&case.name, || {
                    let quotas =
                        quotas.or_else(|text| text.parse::<Quotas>().map(|quotas| quotas.to_vec()))?;
                    Ok(Leases::new(Words::start().client(), Algorithm::Log, quotas))
                }));
            }
        } else if let Some(fail) = case.settings.get("fail") {
            errors.push(refusal(&case.name, || fail.as_str().expect("text").parse::<Fail>()));
        } else if let Some(ms) = case.settings.get("timeout_ms").and_then(Json::as_u64) {
            errors.push(refusal(&case.name, || {
                Ok(Guard::new(Words::start().client(), "5/10s")?.timeout(Duration::from_millis(ms)))
            }));
        }
        refused += usize::from(!errors.is_empty());
        assert!(errors.iter().all(|error| error.contains(&case.error)), "{}: {errors:?}", case.name);
    }
    assert!(refused >= 18, "{refused}");
}

/// Quotas, or the text that they have to be written in; none if there is no way to write them.
fn typed_quotas(quotas: &Json) -> Option<Result<Vec<Quota>, String>> {
    let Json::Array(pairs) = quotas else { return Some(Err(quotas.as_str()?.to_owned())) };
    if let [pair] = &pairs[..]
        && let (Some(limit), Some(window)) = (pair[0].as_u64(), pair[1].as_str())
    {
        // As text a unit is a window: 5/s.
        let has_number = window.starts_with(|first: char| first.is_ascii_digit() || first == '-');
        return has_number.then(|| Err(format!("{limit}/{window}")));
    }
    let quota = |pair: &Json| Some(Quota::new(pair[0].as_u64()?, Duration::from_secs(pair[1].as_u64()?)));
    pairs.iter().map(quota).collect::<Option<_>>().map(Ok)
}

#[tokio::test]
async fn every_case_of_http_is_answered_with_its_status_its_fields_and_its_body() {
    for case in cases().http {
        let (mut memory, key) =
            (MemoryLimiter::new().clock(Clock::new(time(case.at))), case.rows[0].key.clone());
        let name = |policy: &PolicyCase| {
            let suffix = format!("-{}", policy.window);
            policy.name.strip_suffix(&suffix).expect("a policy named by its window").to_owned()
        };
        let policy = name(&case.policies[0]);
        for step in &case.before {
            let mut words = step.words.clone();
            words[1] = format!("{policy}:{key}");
            let _: Value = plain(&words).query(&mut memory).expect("a reply");
        }
        let quota =
            |policy: &PolicyCase| format!("{}/{}", policy.limit, policy.window).parse().expect("a quota");
        let quotas: Vec<Quota> = case.policies.iter().map(quota).collect();
        let mut policy =
            Policy::new(policy, quotas).expect("a policy").algorithm(algorithm(&case.rows[0].algorithm));
        if let Some(unit) = &case.policies[0].unit {
            policy = policy.unit(unit);
        }
        let taken = Guard::new(memory, policy).expect("a policy").take(key, case.rows[0].cost).await;
        let (decided, policies, status, headers, body) = match taken {
            Ok(taken) => {
                let decided = (taken.limited(), taken.retry_after());
                (decided, taken.policies(), taken.status().as_u16(), taken.fields(), Json::Null)
            }
            Err(refusal) => {
                let decided = (refusal.decision().is_some(), refusal.retry_after());
                let policies = refusal.decision().map(|decision| decision.policies()).unwrap_or_default();
                let response = Response::<String>::from(refusal);
                let body = serde_json::from_str(response.body()).expect("JSON");
                assert_eq!(response.headers()["content-type"], "application/problem+json");
                (decided, policies, response.status().as_u16(), response.headers().clone(), body)
            }
        };
        assert_eq!(
            (json!(i64::from(decided.0)), json!(wait(decided.1))),
            (case.reply[0].clone(), case.reply[1].clone()),
            "{}",
            case.name
        );
        let Figures { limited, limit, remaining, retry_after, reset_after, .. } =
            policies[&name(&case.policies[0])];
        assert_eq!((limited, retry_after), decided, "{}", case.name);
        let row = json!([i64::from(limited), limit, remaining, wait(retry_after), ms(reset_after)]);
        assert!(case.reply[3].as_array().expect("rows").contains(&row), "{}: {row}", case.name);
        assert_eq!(status, case.status, "{}", case.name);
        for (name, value) in &case.fields {
            let field = headers.get(name).map(|value| value.to_str().expect("ASCII"));
            assert_eq!(field, value.as_deref(), "{}: {name}", case.name);
        }
        assert_eq!(body, case.body, "{}", case.name);
    }
}
