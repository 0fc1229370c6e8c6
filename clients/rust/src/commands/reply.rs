//! The replies of the server.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{FromRedisValue, ParsingError, Value, from_redis_value};

use super::algorithm::Algorithm;

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
    /// costs more than the limit. Of units taken [ahead](crate::Take::within), the time until they are there.
    pub retry_after: Option<Duration>,
    /// After this time the whole limit is available again, if no other request comes.
    pub reset_after: Duration,
    /// Units that were taken, or if negative given back. `None` without [`partial`](crate::Take::partial) and
    /// [`within`](crate::Take::within).
    pub taken: Option<i64>,
    /// The time, to the millisecond, as of which they were counted. Name it when you give them back. `None` without
    /// [`partial`](crate::Take::partial) and [`within`](crate::Take::within).
    pub at: Option<SystemTime>,
}

impl FromRedisValue for Verdict {
    fn from_redis_value(value: Value) -> Result<Verdict, ParsingError> {
        let figures: Vec<i64> = from_redis_value(value)?;
        let (taken, at) = match figures[..] {
            [_, _, _, _, _] => (None, None),
            [_, _, _, _, _, taken, at_ms] => (Some(taken), Some(time(at_ms)?)),
            _ => return Err("a verdict is five integers, or seven".into()),
        };
        Ok(Verdict {
            limited: flag(figures[0])?,
            limit: count(figures[1])?,
            remaining: count(figures[2])?,
            retry_after: wait(figures[3])?,
            reset_after: Duration::from_millis(count(figures[4])?),
            taken,
            at,
        })
    }
}

/// The verdicts on a request for several keys or quotas, which are one decision.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Verdicts {
    /// Whether any quota refuses. If so nothing was counted, unless by [`force`](crate::All::force).
    pub limited: bool,
    /// After this time the same request is allowed, if no other comes. `None` if it was allowed, and if no wait helps.
    pub retry_after: Option<Duration>,
    /// The time, to the millisecond, as of which it was decided. Name it when you give units back.
    pub at: SystemTime,
    /// The figures of each quota, in the order of the request. `limited` of a row tells whether that quota refuses.
    pub rows: Vec<Verdict>,
}

impl Verdicts {
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

impl FromRedisValue for Verdicts {
    fn from_redis_value(value: Value) -> Result<Verdicts, ParsingError> {
        let (limited, retry_after_ms, at_ms, rows) = from_redis_value(value)?;
        Ok(Verdicts { limited: flag(limited)?, retry_after: wait(retry_after_ms)?, at: time(at_ms)?, rows })
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
    /// Its length; of weeks and months of the calendar, that of the one that counts now.
    pub window: Duration,
    /// Of weeks and months of the calendar, how the commands name it: `1mo`.
    pub calendar: Option<String>,
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
            calendar: take(&mut fields, "calendar")?,
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

fn count(integer: i64) -> Result<u64, ParsingError> {
    u64::try_from(integer).map_err(|_| format!("{integer} is negative").into())
}

fn flag(integer: i64) -> Result<bool, ParsingError> {
    match integer {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(format!("{other} is neither 0 nor 1").into()),
    }
}

fn time(unix_ms: i64) -> Result<SystemTime, ParsingError> {
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(count(unix_ms)?));
    time.ok_or_else(|| format!("{unix_ms} is no time").into())
}

/// Reads milliseconds, or -1 if there is no wait.
fn wait(ms: i64) -> Result<Option<Duration>, ParsingError> {
    if ms == -1 { Ok(None) } else { count(ms).map(|ms| Some(Duration::from_millis(ms))) }
}
