//! The host in memory: replies equal the models' and those in the packages' cases, its keys are bounded in number, and no
//! argument makes it panic. Random commands to it and to a server: see `hostile` of the tests on servers.

use proptest::prelude::*;
use redis_rl_core::limiter::Algorithm;
use redis_rl_core::memory::Memory;
use serde_json::Value;

use crate::calls::{Act, Answer, Call, History, expected, window_word};
use crate::cases;
use crate::history::{calendar, crowded, history, small};
use crate::naive::{Model, Search};

const NOW: u64 = 1_700_000_000_000;

/// The reply to a command whose words are separated by spaces.
fn call(memory: &mut Memory, now_ms: u64, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    memory.call(now_ms, &words).escape_ascii().to_string()
}

/// The integer that is the reply.
#[track_caller]
fn integer(memory: &mut Memory, now_ms: u64, line: &str) -> i64 {
    let reply = call(memory, now_ms, line);
    let digits = reply.strip_prefix(':').and_then(|reply| reply.strip_suffix("\\r\\n"));
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{line}: {reply}"))
}

/// A reply as JSON; an error is its text.
fn json(reply: &[u8]) -> Value {
    fn read(reply: &mut &[u8]) -> Value {
        let end = reply.windows(2).position(|two| two == b"\r\n").expect("a line");
        let head = str::from_utf8(&reply[1..end]).expect("a text");
        let kind = reply[0];
        *reply = &reply[end + 2..];
        let number = || head.parse::<i64>().expect("a number");
        match kind {
            b':' => number().into(),
            b'*' => (0..number()).map(|_| read(reply)).collect(),
            b'$' if number() < 0 => Value::Null,
            b'$' => {
                let (text, rest) = reply.split_at(number() as usize);
                *reply = &rest[2..];
                str::from_utf8(text).expect("a text").into()
            }
            _ => head.into(),
        }
    }
    let mut rest = reply;
    let value = read(&mut rest);
    assert!(rest.is_empty(), "{}", reply.escape_ascii());
    value
}

/// The same, with each map of `expected` as an object that has only its fields.
fn like(value: Value, expected: &Value) -> Value {
    match (value, expected) {
        (Value::Array(items), Value::Object(fields)) => {
            let pairs =
                items.chunks(2).map(|pair| (pair[0].as_str().expect("a name").to_owned(), pair[1].clone()));
            let known =
                pairs.filter_map(|(name, value)| Some((name.clone(), like(value, fields.get(&name)?))));
            Value::Object(known.collect())
        }
        (Value::Array(items), Value::Array(expected)) if items.len() == expected.len() => {
            items.into_iter().zip(expected).map(|(item, expected)| like(item, expected)).collect()
        }
        (value, _) => value,
    }
}

#[test]
fn the_commands_in_the_packages_cases_get_their_replies() {
    let cases: Value = serde_json::from_str(include_str!("../../clients/cases.json")).expect("cases");
    let mut tried = 0;
    for case in cases["commands"].as_array().expect("cases") {
        let mut memory = Memory::new(1_000);
        for step in case["steps"].as_array().expect("steps") {
            let words: Vec<&str> =
                step["words"].as_array().expect("words").iter().flat_map(Value::as_str).collect();
            if words[0] == "SET" {
                // In memory there are no other types.
                break;
            }
            let error = &step["error"];
            let expected = match (error["code"].as_str(), error["message"].as_str()) {
                (Some(code), Some(message)) => format!("{code} {message}").into(),
                _ => step["reply"].clone(),
            };
            let reply = json(memory.call(NOW, &words));
            assert_eq!(like(reply, &expected), expected, "{}: {words:?}", case["name"]);
            tried += 1;
        }
    }
    assert!(tried > 80, "only {tried}");
}

/// The command of a call, with AT: then a key lives a minute longer, which is longer than these histories.
fn words(algorithm: Algorithm, call: &Call) -> String {
    let name = algorithm.command().to_str().expect("a text");
    let mut line = format!("{} k", if call.act == Act::Peek { "RL.PEEK" } else { name });
    for quota in &call.quotas {
        line += &format!(" {} {}", quota.limit(), window_word(quota.window()));
    }
    let mode = match call.act {
        Act::Peek | Act::Take => String::new(),
        Act::Force | Act::Flood { .. } => " FORCE".into(),
        Act::Partial => " PARTIAL".into(),
        Act::Within(ms) => format!(" WITHIN {ms}ms"),
    };
    format!("{line} COST {} AT {}{mode}", call.cost, call.now)
}

fn agree(History { algorithm, calls }: &History, search: Search) {
    let (mut memory, mut model) = (Memory::new(1), Model::new(*algorithm, search));
    for call in calls {
        let call = Call { at: true, ..call.clone() };
        let words = words(*algorithm, &call);
        let reply = json(memory.call(call.now, &words.split(' ').collect::<Vec<_>>()));
        let expected: Value = match expected(&mut model, &call) {
            Ok(Answer { verdict, granted, at, .. }) => {
                let wait = verdict.retry_after_ms.map_or(-1, |ms| ms as i64);
                let figures =
                    [i64::from(verdict.limited), verdict.limit as i64, verdict.remaining as i64, wait];
                let mut figures: Vec<i64> =
                    figures.into_iter().chain([verdict.reset_after_ms as i64]).collect();
                if let (Some(granted), Value::Array(items)) = (granted, &reply) {
                    // Of PARTIAL the model does not say as of when: see `partial` of the tests on servers.
                    figures.extend([granted, at.map_or(items[6].as_i64().expect("a time"), |at| at as i64)]);
                }
                figures.into()
            }
            Err(_) => "ERR window must be one of at most 8 in a key that still count".into(),
        };
        assert_eq!(reply, expected, "{words}");
    }
}

proptest! {
    #![proptest_config(cases(800))]

    #[test]
    fn every_reply_equals_that_of_the_model(history in prop_oneof![history(small()), history(crowded())]) {
        agree(&history, Search::EveryMs);
    }

    #[test]
    fn every_reply_about_weeks_and_months_equals_that_of_the_model(history in history(calendar())) {
        // A key that has expired is gone, also if the clock then steps back, of which the model knows nothing.
        let (History { algorithm, mut calls }, mut latest) = (history, 0);
        calls.retain(|call| {
            latest = latest.max(call.now);
            call.now == latest
        });
        agree(&History { algorithm, calls }, Search::Halving);
    }

    #[test]
    fn no_words_make_it_panic(
        words in prop::collection::vec(prop_oneof![
            any::<Vec<u8>>(),
            prop::sample::select(vec![
                "RL.LOG", "RL.FIXED", "RL.BUCKET", "RL.SLIDING", "RL.ALL", "RL.PEEK", "RL.INFO", "DEL", "PTTL", "FLUSHALL", "k", "log",
                "5", "1s", "10s", "0", "COST", "-1", "AT", "FORCE", "PARTIAL", "WITHIN", "9007199254740991", "3650d", "1w", "1mo",
            ]).prop_map(|word| word.as_bytes().to_vec()),
        ], 0..12),
        nows in prop::collection::vec(prop_oneof![any::<u64>(), 0..10_000u64], 1..5),
    ) {
        let mut memory = Memory::new(2);
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        for now in nows {
            for start in 0..words.len().min(3) {
                let reply = memory.call(now, &words[start..]).to_vec();
                prop_assert!(reply.ends_with(b"\r\n"));
            }
            prop_assert!(memory.len() <= 2);
        }
    }
}

#[test]
fn beyond_the_most_keys_the_one_that_expires_first_goes_and_of_several_the_oldest() {
    let mut memory = Memory::new(3);
    for line in ["a 5 1h", "b 5 1m", "c 5 1m", "d 5 1s"] {
        call(&mut memory, NOW, &format!("RL.FIXED {line}"));
    }
    assert_eq!(integer(&mut memory, NOW, "EXISTS b"), 0, "c is younger");
    assert_eq!(integer(&mut memory, NOW, "EXISTS a c d"), 3, "also the newest, though it expires first");
    call(&mut memory, NOW, "RL.FIXED e 5 1m");
    assert_eq!(integer(&mut memory, NOW, "EXISTS a c e"), 3);
    // Requests that are refused or only look make no room.
    call(&mut memory, NOW, "RL.FIXED f 0 1m");
    call(&mut memory, NOW, "RL.PEEK g 5 1m");
    assert_eq!(integer(&mut memory, NOW, "EXISTS a c e"), 3);
}

#[test]
fn it_holds_at_least_one_key_and_decides_about_64_whatever_it_can_hold() {
    let rows: Vec<String> = (0..64).map(|key| format!("k{key} LOG 5 1m 1")).collect();
    for most in [0, 1, 63, 64] {
        let mut memory = Memory::new(most);
        for _ in 0..3 {
            assert!(call(&mut memory, NOW, &format!("RL.ALL {}", rows.join(" "))).starts_with("*4\\r\\n:0"));
            assert_eq!(memory.len(), most.max(1));
        }
        assert_eq!(integer(&mut memory, NOW, "EXISTS k63"), 1);
    }
}

#[test]
fn keys_that_expire_at_once_go_a_few_with_each_command() {
    const KEYS: usize = 20_000;
    let mut memory = Memory::new(KEYS);
    for key in 0..KEYS {
        memory.call(NOW, &["RL.FIXED", &key.to_string(), "5", "1m"]);
    }
    assert_eq!(memory.len(), KEYS);
    for key in 0..KEYS / 50 {
        let before = memory.len();
        let reply = json(memory.call(NOW + 120_000, &["RL.FIXED", &key.to_string(), "5", "1m"]));
        assert_eq!(reply[2], 4, "it has expired");
        // As many as a command can make.
        assert!(memory.len() + 64 >= before, "{before} before, {} after", memory.len());
    }
    assert_eq!(memory.len(), KEYS / 50, "all that had expired are gone");
}

#[test]
fn what_it_takes_is_free_for_other_threads() {
    fn is_send_and_sync<T: Send + Sync>(_: &T) {}
    is_send_and_sync(&Memory::new(1));
}
