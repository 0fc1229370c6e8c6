//! The replies of the commands, whatever they are written to.

// What single commands call is inlined: see `command/take.rs` of the module.

use crate::limiter::key::{Answer, Granted, Info};
use crate::limiter::several::{AnswerAll, Row};
use crate::limiter::{SlidingCounts, Verdict};

/// What a reply is written to.
pub trait Reply {
    /// Begins an array, whose `len` elements follow.
    fn array(&mut self, len: usize);
    /// Begins a map, whose `len` keys and values follow; in RESP2, a flat array.
    fn map(&mut self, len: usize);
    /// Writes an integer.
    fn integer(&mut self, integer: i64);
    /// Writes a bulk string.
    fn text(&mut self, text: &str);
    /// Writes null.
    fn null(&mut self);
}

/// Replies to a request about one key: with five integers, to PARTIAL and WITHIN with seven.
#[inline(always)]
pub fn answer(reply: &mut impl Reply, answer: &Answer) {
    match &answer.granted {
        None => verdict(reply, &answer.reply()),
        Some(granted) => verdict_and_granted(reply, &answer.reply(), granted),
    }
}

/// Replies with five integers: limited, limit, remaining, retry after, reset after.
#[inline(always)]
pub fn verdict(reply: &mut impl Reply, verdict: &Verdict) {
    reply.array(5);
    five_integers(reply, verdict);
}

/// Replies to PARTIAL and WITHIN: the five integers, the units granted, and as of when.
#[cold]
fn verdict_and_granted(reply: &mut impl Reply, verdict: &Verdict, granted: &Granted) {
    reply.array(7);
    five_integers(reply, verdict);
    reply.integer(granted.units.get());
    reply.integer(integer(granted.at.get()));
}

#[inline(always)]
fn five_integers(reply: &mut impl Reply, verdict: &Verdict) {
    reply.integer(i64::from(verdict.limited));
    reply.integer(integer(verdict.limit));
    reply.integer(integer(verdict.remaining));
    reply.integer(verdict.retry_after_ms.map_or(-1, integer));
    reply.integer(integer(verdict.reset_after_ms));
}

/// Replies to RL.ALL: limited, retry after, at, and the five integers of each row.
#[inline(always)]
pub fn all(reply: &mut impl Reply, answer: &AnswerAll, rows: &[Row]) {
    reply.array(4);
    reply.integer(i64::from(answer.limited));
    reply.integer(answer.retry_after_ms.map_or(-1, integer));
    reply.integer(integer(answer.at.get()));
    reply.array(rows.len());
    for row in rows {
        verdict(reply, &row.verdict);
    }
}

/// Replies to RL.INFO: what the key counts, or null if it is empty.
pub fn info(reply: &mut impl Reply, info: Option<Info>) {
    let Some(Info { algorithm, windows, entries }) = info else { return reply.null() };
    reply.map(2 + usize::from(entries.is_some()));
    reply.text("algorithm");
    reply.text(algorithm.name());
    reply.text("windows");
    reply.array(windows.len());
    for usage in windows {
        let is_of_calendar = usage.window.is_of_calendar();
        let more = usize::from(is_of_calendar) + usize::from(usage.limit.is_some());
        reply.map(3 + more + if usage.counts.is_some() { 2 } else { 0 });
        field(reply, "window_ms", usage.window_ms);
        if is_of_calendar {
            reply.text("calendar");
            reply.text(&usage.window.word());
        }
        if let Some(limit) = usage.limit {
            field(reply, "limit", limit);
        }
        field(reply, "used", usage.used);
        field(reply, "reset_after_ms", usage.reset_after_ms);
        if let Some(SlidingCounts { current, previous }) = usage.counts {
            field(reply, "current", current);
            field(reply, "previous", previous);
        }
    }
    if let Some(entries) = entries {
        field(reply, "entries", entries);
    }
}

fn field(reply: &mut impl Reply, name: &str, figure: u64) {
    reply.text(name);
    reply.integer(integer(figure));
}

/// Converts a figure, which always fits: counts are at most 2^63 - 1, everything else far smaller.
#[inline(always)]
fn integer(figure: u64) -> i64 {
    figure as i64
}
