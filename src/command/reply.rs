//! The replies of the rate-limiting commands.

// Inlined for single commands: see `command::take`.

use crate::limiter::several::TakenAll;
use crate::limiter::{Cost, UnixMs, Verdict};
use crate::server::Call;

/// Replies with five integers: limited, limit, remaining, retry after, reset after.
#[inline(always)]
pub fn verdict(call: &Call, verdict: &Verdict) {
    call.reply_array(5);
    five_integers(call, verdict);
}

/// Replies to PARTIAL: the five integers, the units taken, and as of when.
#[cold]
pub fn partial(call: &Call, verdict: &Verdict, taken: Cost, at: UnixMs) {
    call.reply_array(7);
    five_integers(call, verdict);
    call.reply_integer(taken.get());
    call.reply_integer(integer(at.get()));
}

#[inline(always)]
fn five_integers(call: &Call, verdict: &Verdict) {
    call.reply_integer(i64::from(verdict.limited));
    call.reply_integer(integer(verdict.limit));
    call.reply_integer(integer(verdict.remaining));
    call.reply_integer(verdict.retry_after_ms.map_or(-1, integer));
    call.reply_integer(integer(verdict.reset_after_ms));
}

/// Replies to RL.ALL: limited, retry after, at, and the five integers of each row.
#[inline(always)]
pub fn all<'v>(call: &Call, taken: &TakenAll, rows: impl ExactSizeIterator<Item = &'v Verdict>) {
    call.reply_array(4);
    call.reply_integer(i64::from(taken.limited));
    call.reply_integer(taken.retry_after_ms.map_or(-1, integer));
    call.reply_integer(integer(taken.at.get()));
    call.reply_array(rows.len());
    for row in rows {
        verdict(call, row);
    }
}

/// Converts a figure, which always fits: counts are at most 2^63 - 1, everything else far smaller.
#[inline(always)]
pub fn integer(figure: u64) -> i64 {
    figure as i64
}
