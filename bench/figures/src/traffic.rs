//! The same traffic through the limiters.

use anyhow::Result;
use plotters::prelude::RGBColor;
use redis::Connection;

use super::{BUCKET, FIXED, LOG, SLIDING};
use harness::pipeline;

/// A limiter, and the color of its allowed requests.
pub struct Limiter {
    pub command: &'static str,
    pub color: RGBColor,
}

pub const LIMITERS: [Limiter; 4] = [
    Limiter { command: "RL.FIXED", color: FIXED },
    Limiter { command: "RL.SLIDING", color: SLIDING },
    Limiter { command: "RL.LOG", color: LOG },
    Limiter { command: "RL.BUCKET", color: BUCKET },
];

/// A request, and the server's verdict.
pub struct Request {
    /// In ms from the start.
    pub at_ms: u64,
    pub allowed: bool,
}

/// The start in Unix milliseconds: a multiple of every window here.
const START_MS: u64 = 1_700_000_000_000;

/// Sends requests at `times_ms` to a limiter, and reads its replies.
pub fn send(
    connection: &mut Connection,
    command: &str,
    limit: u64,
    window_ms: u64,
    times_ms: &[u64],
) -> Result<Vec<Request>> {
    redis::cmd("DEL").arg("figure").exec(connection)?;
    let request = |at_ms: &u64| format!("{command} figure {limit} {window_ms}ms AT {}", START_MS + at_ms);
    let answers: Vec<[i64; 5]> = pipeline(times_ms.iter().map(request)).query(connection)?;
    let answered = times_ms.iter().zip(answers);
    Ok(answered.map(|(at_ms, [limited, ..])| Request { at_ms: *at_ms, allowed: limited == 0 }).collect())
}

/// Requests allowed in the span of `window_ms` that ends at `end_ms`.
pub fn allowed_within(requests: &[Request], window_ms: u64, end_ms: u64) -> usize {
    let within = |at_ms: u64| at_ms <= end_ms && at_ms + window_ms > end_ms;
    requests.iter().filter(|request| request.allowed && within(request.at_ms)).count()
}

/// The most requests allowed in any span of `window_ms`.
pub fn most_within(requests: &[Request], window_ms: u64) -> usize {
    let ends = requests.iter().map(|request| request.at_ms);
    ends.map(|end_ms| allowed_within(requests, window_ms, end_ms)).max().unwrap_or(0)
}
