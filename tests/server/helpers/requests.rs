//! The commands, and the replies to RL.ALL and RL.INFO.

use std::collections::HashMap;
use std::sync::LazyLock;

use harness::{COMMANDS, Figures, figures};
use redis::Value;
use redis_rl_core::encoding::decode_effect;
use redis_rl_core::limiter::Effect;

use super::hosts::Host;

/// The algorithms, as RL.ALL names them.
pub static ALGORITHMS: LazyLock<[&str; COMMANDS.len()]> =
    LazyLock::new(|| COMMANDS.map(|name| &name["RL.".len()..]));

/// The commands that take limits and windows.
pub static REQUESTS: LazyLock<Vec<&str>> = LazyLock::new(|| [&COMMANDS[..], &["RL.PEEK"]].concat());

/// The letter of an algorithm in effects, by the name of its command.
pub fn letter(command: &str) -> char {
    let is_effect = |word: String| match decode_effect(word.as_bytes()) {
        Some(Effect::Recorded(counted)) => counted.algorithm.command().to_str() == Ok(command),
        _ => false,
    };
    // With a window alone, or with a limit too.
    let counts_by =
        |letter: &char| ["1s", "1/1s"].iter().any(|quota| is_effect(format!("{letter}:1/{quota}")));
    ('A'..='Z').find(counts_by).expect("an algorithm")
}

/// An effect on a key of a command, from what follows the letter, as `5:1700000000000/1h`: with `limit` before each window,
/// if the algorithm counts by that.
pub fn effect(command: &str, limit: u64, rest: &str) -> String {
    let letter = letter(command);
    match command {
        "RL.BUCKET" => format!("{letter}{}", rest.replace('/', &format!("/{limit}/"))),
        _ => format!("{letter}{rest}"),
    }
}

/// The units in each window of a key, shortest first, from the reply to RL.INFO; none if the key is missing. A peek with
/// another limit would show others, since a bucket with another limit is as full as before.
#[track_caller]
pub fn used(info: &Value) -> Vec<i64> {
    let info: Option<HashMap<String, Value>> = redis::from_redis_value(info.clone()).expect("a map or null");
    let Some(mut info) = info else { return Vec::new() };
    let windows = info.remove("windows").expect("windows");
    let windows: Vec<HashMap<String, Value>> = redis::from_redis_value(windows).expect("maps");
    let used = |mut window: HashMap<String, Value>| window.remove("used").expect("a figure");
    windows.into_iter().map(|window| redis::from_redis_value(used(window)).expect("an integer")).collect()
}

/// The reply to RL.ALL, parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct AllReply {
    pub limited: i64,
    pub retry_after: i64,
    pub at: i64,
    pub rows: Vec<Figures>,
}

impl AllReply {
    #[track_caller]
    pub fn of(value: &Value) -> AllReply {
        match value.as_sequence() {
            Some([Value::Int(limited), Value::Int(retry_after), Value::Int(at), Value::Array(rows)]) => {
                let (limited, retry_after, at) = (*limited, *retry_after, *at);
                AllReply { limited, retry_after, at, rows: rows.iter().map(figures).collect() }
            }
            _ => panic!("{value:?} is not a reply of RL.ALL"),
        }
    }
}

/// Calls RL.ALL and parses its reply.
#[track_caller]
pub fn all(host: &impl Host, line: &str) -> AllReply {
    AllReply::of(&host.value(line))
}
