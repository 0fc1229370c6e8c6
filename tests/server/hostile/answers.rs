//! The forms that replies of the module have, whatever was asked.

use harness::figures;
use redis::Value;

use super::generator::{Kind, MOST, Words};
use crate::helpers::errors::{
    ALGORITHM, AT, COST, EFFECT, FORCE_AND_PARTIAL, LIMIT, LIVE_WINDOWS, MONTHS, PAIRS, PARTIAL, ROW,
    ROW_COST, ROWS, ROWS_DIFFER, ROWS_OF_A_KEY, ROWS_OF_A_WINDOW, SAME_WINDOW, SYNTAX, WINDOW, WITHIN,
    WITHIN_AND_OTHERS, WITHIN_OF_BUCKET, WRONGTYPE,
};
use crate::load;

/// The longest possible wait: up to the largest time, plus two of the longest windows.
const LONGEST_WAIT: i64 = MOST + 2 * 3650 * 86_400_000;

/// Prefixes of the errors that commands of the module get, from the module or the server.
pub const REFUSALS: [&str; 29] = [
    LIMIT,
    WINDOW,
    MONTHS,
    SAME_WINDOW,
    PAIRS,
    COST,
    AT,
    SYNTAX,
    FORCE_AND_PARTIAL,
    PARTIAL,
    WITHIN,
    WITHIN_AND_OTHERS,
    WITHIN_OF_BUCKET,
    WRONGTYPE,
    "WRONGTYPE key is counted by RL.",
    LIVE_WINDOWS,
    ALGORITHM,
    ROW,
    ROW_COST,
    ROWS,
    ROWS_OF_A_KEY,
    ROWS_DIFFER,
    ROWS_OF_A_WINDOW,
    load::PAYLOAD,
    load::BUSY_KEY,
    EFFECT,
    "ERR wrong number of arguments for 'rl.",
    "ERR wrong number of arguments for 'RL.",
    // In a script.
    "ERR Wrong number of args calling",
];

/// Asserts that every reply to a command of the module has the documented form and range.
pub fn assert_answered(commands: &[(Kind, Words)], replies: &[Value]) {
    let mut queued: Vec<&(Kind, Words)> = Vec::new();
    for (command, reply) in commands.iter().zip(replies) {
        let is_queued = *reply == Value::SimpleString("QUEUED".into());
        match (command.0, reply) {
            (Kind::Multi | Kind::Discard, _) => queued.clear(),
            (Kind::Exec, Value::Array(replies)) => {
                assert_eq!(queued.len(), replies.len());
                for (command, reply) in queued.iter().zip(replies) {
                    assert_is_answer(command.0, &command.1, reply);
                }
            }
            (_, _) if is_queued => queued.push(command),
            (kind, reply) => assert_is_answer(kind, &command.1, reply),
        }
    }
}

fn assert_is_answer(kind: Kind, words: &Words, reply: &Value) {
    let sound = match (kind, reply) {
        (Kind::Figures | Kind::Info | Kind::All | Kind::Ok, Value::ServerError(error)) => {
            let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
            REFUSALS.iter().any(|refusal| text.starts_with(refusal))
        }
        (Kind::Figures, Value::Array(items)) if items.len() == 7 => {
            let named = |name: &[u8]| words.iter().any(|word| word.eq_ignore_ascii_case(name));
            (named(b"PARTIAL") && are_seven(items)) || (named(b"WITHIN") && are_seven_of_within(items))
        }
        (Kind::Figures, Value::Array(_)) => are_figures(reply),
        (Kind::Info, reply) => is_info(reply),
        (Kind::All, reply) => is_reply_to_all(reply),
        (Kind::Ok, reply) => *reply == Value::Okay,
        (Kind::Figures, _) => false,
        _ => true,
    };
    let shown: Vec<_> =
        words.iter().map(|word| word[..word.len().min(60)].escape_ascii().to_string()).collect();
    assert!(sound, "{} answers {reply:?}", shown.join(" "));
}

fn are_figures(reply: &Value) -> bool {
    let Value::Array(items) = reply else { return false };
    let [
        Value::Int(limited),
        Value::Int(limit),
        Value::Int(remaining),
        Value::Int(retry_after),
        Value::Int(reset_after),
    ] = items[..]
    else {
        return false;
    };
    let waits = 0..=LONGEST_WAIT;
    (0..=1).contains(&limited)
        && (0..=MOST).contains(&limit)
        && (0..=limit).contains(&remaining)
        && (retry_after == -1 || limited == 1 && retry_after > 0 && waits.contains(&retry_after))
        && waits.contains(&reset_after)
}

/// The reply to WITHIN: the same, and who is not limited may have to wait.
fn are_seven_of_within(items: &[Value]) -> bool {
    let mut items = items.to_vec();
    if let (Value::Int(0), Value::Int(1..=LONGEST_WAIT)) = (&items[0], &items[3]) {
        items[3] = Value::Int(-1);
    }
    are_seven(&items)
}

/// The reply to PARTIAL: the five figures, the units taken and their time.
fn are_seven(items: &[Value]) -> bool {
    let (five, rest) = items.split_at(5);
    let [Value::Int(taken), Value::Int(at)] = rest else { return false };
    are_figures(&Value::Array(five.to_vec())) && (-MOST..=MOST).contains(taken) && (0..=MOST).contains(at)
}

fn is_reply_to_all(reply: &Value) -> bool {
    let Value::Array(items) = reply else { return false };
    let [Value::Int(limited), Value::Int(retry_after), Value::Int(at), Value::Array(rows)] = &items[..]
    else {
        return false;
    };
    let sound = (1..=64).contains(&rows.len()) && rows.iter().all(are_figures);
    sound
        && *limited == rows.iter().map(|row| figures(row)[0]).max().unwrap_or(0)
        && (0..=MOST).contains(at)
        && (*retry_after == -1 || *limited == 1 && (1..=LONGEST_WAIT).contains(retry_after))
}

/// Fields and values, from a map or from a flat array.
pub fn fields(reply: &Value) -> Option<Vec<(Value, Value)>> {
    match reply {
        Value::Map(fields) => Some(fields.clone()),
        Value::Array(items) if items.len().is_multiple_of(2) => {
            Some(items.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
        }
        _ => None,
    }
}

pub fn is_info(reply: &Value) -> bool {
    if *reply == Value::Nil {
        return true;
    }
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let is_count = |value: &Value| matches!(value, Value::Int(0..));
    let Some(fields_) = fields(reply) else { return false };
    let [(algorithm, name), (windows, Value::Array(each)), entries @ ..] = fields_.as_slice() else {
        return false;
    };
    let is_window = |window: &Value| {
        fields(window).is_some_and(|window| {
            let names: Vec<_> = window.iter().map(|field| field.0.clone()).collect();
            let parts: &[&str] = if *name == text("sliding") { &["current", "previous"] } else { &[] };
            let limit: &[&str] = if *name == text("bucket") { &["limit"] } else { &[] };
            let of_calendar = window.len() > 3 && window[1].0 == text("calendar") && *name == text("fixed");
            let calendar: &[&str] = if of_calendar { &["calendar"] } else { &[] };
            let expected = [&["window_ms"], calendar, limit, &["used", "reset_after_ms"], parts].concat();
            names == expected.into_iter().map(text).collect::<Vec<_>>()
                && window.iter().all(|field| is_count(&field.1) || field.0 == text("calendar"))
        })
    };
    *algorithm == text("algorithm")
        && *windows == text("windows")
        && each.len() <= 8
        && each.iter().all(is_window)
        && match entries {
            [] => ["fixed", "sliding", "bucket"].iter().any(|other| *name == text(other)),
            [(field, count)] => *field == text("entries") && *name == text("log") && is_count(count),
            _ => false,
        }
}
