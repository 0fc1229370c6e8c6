//! Replies as a server of another version, or no such server at all, might send them.

use redis::{FromRedisValue, Value};
use redis_rl_client::{Algorithm, Info, Verdict, Verdicts};

fn integers(integers: &[i64]) -> Value {
    Value::Array(integers.iter().copied().map(Value::Int).collect())
}

fn text(text: &str) -> Value {
    Value::BulkString(text.into())
}

#[test]
fn what_is_no_verdict_is_an_error() {
    let replies = [
        Value::Nil,
        Value::Int(0),
        integers(&[]),
        integers(&[0, 5, 4, -1]),
        integers(&[0, 5, 4, -1, 0, 0]),
        integers(&[0, 5, 4, -1, 0, 1, -1]),
        integers(&[0, 5, 4, -1, 0, 1, 0, 0]),
        integers(&[2, 5, 4, -1, 0]),
        integers(&[0, -5, 4, -1, 0]),
        integers(&[0, 5, -4, -1, 0]),
        integers(&[0, 5, 4, -2, 0]),
        integers(&[0, 5, 4, -1, -1]),
        Value::Array(vec![Value::Nil; 5]),
    ];
    for reply in replies {
        assert!(Verdict::from_redis_value_ref(&reply).is_err(), "{reply:?}");
        assert!(Verdict::from_redis_value(reply).is_err());
    }
}

#[test]
fn what_is_no_decision_is_an_error() {
    let row = || integers(&[0, 5, 4, -1, 0]);
    let decision =
        |at, row| Value::Array(vec![Value::Int(0), Value::Int(-1), Value::Int(at), Value::Array(vec![row])]);
    assert!(Verdicts::from_redis_value(decision(i64::MAX, row())).is_ok());
    let replies =
        [Value::Nil, row(), decision(-1, row()), decision(0, Value::Nil), decision(0, integers(&[0]))];
    for reply in replies {
        assert!(Verdicts::from_redis_value(reply.clone()).is_err(), "{reply:?}");
    }
}

#[test]
fn of_an_info_what_is_not_known_is_ignored_and_what_is_missing_is_an_error() {
    let window = Value::Map(vec![
        (text("window_ms"), Value::Int(1_000)),
        (text("used"), Value::Int(i64::MAX)),
        (text("reset_after_ms"), Value::Int(7)),
        (text("news"), Value::Nil),
    ]);
    let info = |algorithm: &str, windows| {
        Value::Array(vec![
            text("algorithm"),
            text(algorithm),
            text("news"),
            integers(&[1]),
            text("windows"),
            Value::Array(windows),
        ])
    };
    let known = Info::from_redis_value(info("fixed", vec![window.clone()])).expect("an info");
    assert_eq!((known.algorithm, known.windows.len(), known.entries), (Algorithm::Fixed, 1, None));
    assert_eq!((known.windows[0].used, known.windows[0].current), (i64::MAX as u64, None));
    for reply in [info("other", vec![window]), info("log", vec![Value::Map(vec![])]), Value::Map(vec![])] {
        assert!(Info::from_redis_value(reply.clone()).is_err(), "{reply:?}");
    }
}
