//! What the server answers.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{FromRedisValue, ParsingError, Value, from_redis_value};

use super::request::Algorithm;

/// What was decided of a request.
///
/// Of several quotas these are the figures of one: if allowed, the one with the fewest units remaining; if limited,
/// the one with the longest wait.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Verdict {
    /// Whether the request is over the limit.
    pub limited: bool,
    /// The limit that the other figures speak of.
    pub limit: u64,
    /// Units left in it.
    pub remaining: u64,
    /// After this time the same request is allowed, if no other comes. `None` when it was allowed, and when no wait
    /// can help as it costs more than the limit.
    pub retry_after: Option<Duration>,
    /// After this time the whole limit is available again, if no other request comes.
    pub reset_after: Duration,
    /// Units that were taken, or if negative given back. `None` unless asked for by [`partial`](crate::Take::partial).
    pub taken: Option<i64>,
    /// The time, exact to the millisecond, as of which they were counted: what to name when they are given back later.
    /// `None` unless asked for by [`partial`](crate::Take::partial).
    pub at: Option<SystemTime>,
}

impl FromRedisValue for Verdict {
    fn from_redis_value(value: Value) -> Result<Verdict, ParsingError> {
        let Value::Array(items) = value else { return Err("a verdict is an array".into()) };
        let (figures, partial) = match items.as_slice() {
            [figures @ .., taken, at_ms] if figures.len() == 5 => (figures, Some((taken, at_ms))),
            figures => (figures, None),
        };
        let [limited, limit, remaining, retry_after_ms, reset_after_ms] = figures else {
            return Err("a verdict is five integers, or seven".into());
        };
        Ok(Verdict {
            limited: flag(limited)?,
            limit: count(limit)?,
            remaining: count(remaining)?,
            retry_after: wait(retry_after_ms)?,
            reset_after: Duration::from_millis(count(reset_after_ms)?),
            taken: partial.map(|(taken, _)| integer(taken)).transpose()?,
            at: partial.map(|(_, at_ms)| time(at_ms)).transpose()?,
        })
    }
}

/// What was decided of a request for several keys or quotas.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Decision {
    /// Whether any refuses. If so, nothing was counted, unless by force.
    pub limited: bool,
    /// After this time the same request is allowed, if no other comes. `None` when it was allowed, and when no wait
    /// can help.
    pub retry_after: Option<Duration>,
    /// The time, exact to the millisecond, as of which it was decided: what to name when units are given back later.
    pub at: SystemTime,
    /// For each quota, in the order given, its own figures; `limited` tells whether it refuses.
    pub rows: Vec<Verdict>,
}

impl Decision {
    /// The figures of one key's quotas as a single command tells them, and the time.
    pub(crate) fn tightest(&self) -> Option<Verdict> {
        let rows = self.rows.iter().filter(|row| row.limited == self.limited);
        // On a tie the earlier one. That no wait helps is the longest wait.
        let tightest = if self.limited {
            rows.rev().max_by_key(|row| row.retry_after.unwrap_or(Duration::MAX))
        } else {
            rows.min_by_key(|row| row.remaining)
        };
        tightest.map(|row| Verdict { at: Some(self.at), ..*row })
    }
}

impl FromRedisValue for Decision {
    fn from_redis_value(value: Value) -> Result<Decision, ParsingError> {
        let [limited, retry_after_ms, at_ms, rows]: [Value; 4] = from_redis_value(value)?;
        Ok(Decision {
            limited: flag(&limited)?,
            retry_after: wait(&retry_after_ms)?,
            at: time(&at_ms)?,
            rows: from_redis_value(rows)?,
        })
    }
}

/// What a key holds.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Info {
    /// How it counts.
    pub algorithm: Algorithm,
    /// Its live windows, the shortest first. A log has one, its longest.
    pub windows: Vec<WindowInfo>,
    /// For a log, the distinct milliseconds that it holds.
    pub entries: Option<u64>,
}

/// A window of a key.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct WindowInfo {
    /// Its length.
    pub window: Duration,
    /// Of a bucket, the limit of its newest count.
    pub limit: Option<u64>,
    /// Units used.
    pub used: u64,
    /// After this time it is empty, if no request comes.
    pub reset_after: Duration,
    /// Of a sliding window, the units of this window.
    pub current: Option<u64>,
    /// Of a sliding window, the units of the one before.
    pub previous: Option<u64>,
}

/// A map, or in RESP2 a flat array. What newer servers add is ignored.
impl FromRedisValue for Info {
    fn from_redis_value(value: Value) -> Result<Info, ParsingError> {
        let mut fields: Fields = from_redis_value(value)?;
        let name: String = take(&mut fields, "algorithm")?;
        Ok(Info {
            algorithm: Algorithm::named(&name).ok_or_else(|| format!("unknown algorithm {name}"))?,
            windows: take(&mut fields, "windows")?,
            entries: take(&mut fields, "entries")?,
        })
    }
}

impl FromRedisValue for WindowInfo {
    fn from_redis_value(value: Value) -> Result<WindowInfo, ParsingError> {
        let mut fields: Fields = from_redis_value(value)?;
        Ok(WindowInfo {
            window: Duration::from_millis(take(&mut fields, "window_ms")?),
            limit: take(&mut fields, "limit")?,
            used: take(&mut fields, "used")?,
            reset_after: Duration::from_millis(take(&mut fields, "reset_after_ms")?),
            current: take(&mut fields, "current")?,
            previous: take(&mut fields, "previous")?,
        })
    }
}

type Fields = HashMap<String, Value>;

fn take<T: FromRedisValue>(fields: &mut Fields, name: &str) -> Result<T, ParsingError> {
    from_redis_value(fields.remove(name).unwrap_or(Value::Nil))
}

fn integer(value: &Value) -> Result<i64, ParsingError> {
    match value {
        Value::Int(integer) => Ok(*integer),
        other => Err(format!("{other:?} is no integer").into()),
    }
}

fn count(value: &Value) -> Result<u64, ParsingError> {
    let integer = integer(value)?;
    u64::try_from(integer).map_err(|_| format!("{integer} is negative").into())
}

fn flag(value: &Value) -> Result<bool, ParsingError> {
    match integer(value)? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(format!("{other} is neither 0 nor 1").into()),
    }
}

fn time(value: &Value) -> Result<SystemTime, ParsingError> {
    let unix_ms = count(value)?;
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms));
    time.ok_or_else(|| format!("{unix_ms} is no time").into())
}

/// -1 is no wait.
fn wait(value: &Value) -> Result<Option<Duration>, ParsingError> {
    match integer(value)? {
        -1 => Ok(None),
        _ => count(value).map(|ms| Some(Duration::from_millis(ms))),
    }
}
