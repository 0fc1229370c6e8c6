//! The replies of the server.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{FromRedisValue, ParsingError, Value, from_redis_value};

use super::request::Algorithm;

/// The decision on a request for one key.
///
/// With several quotas, the figures are those of one: if the request is allowed, the one with the fewest units remaining;
/// if it is limited, the one with the longest wait.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Verdict {
    /// Whether the request is over the limit.
    pub limited: bool,
    /// The limit of the quota that the figures are of.
    pub limit: u64,
    /// Units that are left of it.
    pub remaining: u64,
    /// After this time the same request is allowed, if no other comes. `None` if it was allowed, and if no wait helps since it
    /// costs more than the limit.
    pub retry_after: Option<Duration>,
    /// After this time the whole limit is available again, if no other request comes.
    pub reset_after: Duration,
    /// Units that were taken, or if negative given back. `None` without [`partial`](crate::Take::partial).
    pub taken: Option<i64>,
    /// The time, to the millisecond, as of which they were counted. Name it when you give them back. `None` without
    /// [`partial`](crate::Take::partial).
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

/// The decision on a request for several keys or quotas.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Decision {
    /// Whether any quota refuses. If so nothing was counted, unless by [`force`](crate::All::force).
    pub limited: bool,
    /// After this time the same request is allowed, if no other comes. `None` if it was allowed, and if no wait helps.
    pub retry_after: Option<Duration>,
    /// The time, to the millisecond, as of which it was decided. Name it when you give units back.
    pub at: SystemTime,
    /// The figures of each quota, in the order of the request. `limited` of a row tells whether that quota refuses.
    pub rows: Vec<Verdict>,
}

impl Decision {
    /// The verdict that the command for a single key would reply.
    pub(crate) fn tightest(&self) -> Option<Verdict> {
        let rows = self.rows.iter().filter(|row| row.limited == self.limited);
        // On a tie the earlier row counts. That no wait helps is the longest wait.
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
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Its windows that are not over, the shortest first. A log has one, its longest.
    pub windows: Vec<WindowInfo>,
    /// Of a log, the number of different milliseconds in which units were counted.
    pub entries: Option<u64>,
}

/// A window of a key.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct WindowInfo {
    /// Its length.
    pub window: Duration,
    /// Of a bucket, the limit of the newest request.
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

/// Reads a map, or in RESP2 a flat array. Fields that newer servers add are ignored.
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

/// Reads milliseconds, or -1 if there is no wait.
fn wait(value: &Value) -> Result<Option<Duration>, ParsingError> {
    match integer(value)? {
        -1 => Ok(None),
        _ => count(value).map(|ms| Some(Duration::from_millis(ms))),
    }
}
