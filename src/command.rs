//! The commands, each as its verbs: parse, open, decide, commit, replicate, reply.

use crate::keyspace::Slot;
use crate::limiter::{Algorithm, Limiter, Outlook, Taken, UnixMs, Verdict};
use crate::request::{Options, Refusal, Request};
use crate::server::{self, Call, Command, Event};
use crate::stats;

/// A key written with AT stays so much longer than it can matter: event time may run slower than the
/// server's clock, and the clock of a replica may be behind its master's.
const MORE_LIFETIME_WITH_AT_MS: u64 = 60_000;

/// RL.FIXED.
pub struct Fixed;
/// RL.SLIDING.
pub struct Sliding;
/// RL.LOG.
pub struct Log;
/// RL.PEEK.
pub struct Peek;
/// RL.INFO.
pub struct Info;

impl Command for Fixed {
    fn run(call: &Call) -> Result<(), Refusal> {
        take(call, Algorithm::Fixed)
    }
}

impl Command for Sliding {
    fn run(call: &Call) -> Result<(), Refusal> {
        take(call, Algorithm::Sliding)
    }
}

impl Command for Log {
    fn run(call: &Call) -> Result<(), Refusal> {
        take(call, Algorithm::Log)
    }
}

impl Command for Peek {
    fn run(call: &Call) -> Result<(), Refusal> {
        peek(call)
    }
}

impl Command for Info {
    fn run(call: &Call) -> Result<(), Refusal> {
        info(call)
    }
}

/// RL.FIXED, RL.SLIDING and RL.LOG: decides, and counts or gives back.
#[inline(always)]
fn take(call: &Call, algorithm: Algorithm) -> Result<(), Refusal> {
    match call.two_args_after_key() {
        // Nearly every request: what options and tiers ask for falls away from this copy.
        Some([limit, window]) => take_as(call, algorithm, &Request::of_one_tier(limit, window)?),
        None => take_in_full(call, algorithm),
    }
}

#[inline(never)]
fn take_in_full(call: &Call, algorithm: Algorithm) -> Result<(), Refusal> {
    take_as(call, algorithm, &Request::parse(call.args_after_key(), Options::WithForce)?)
}

#[inline(always)]
fn take_as(call: &Call, algorithm: Algorithm, request: &Request) -> Result<(), Refusal> {
    let clock = server::now();
    let now = request.at.unwrap_or(clock);
    let mut slot = Slot::open(call)?;
    let Some(limiter) = slot.limiter_mut() else {
        // A copy: so the original need not be in memory for all the others.
        return take_first(call, slot, algorithm, &request.clone(), clock);
    };
    let taken = limiter.take(algorithm, request.quotas(), request.cost, request.force, now);
    conclude(call, slot, algorithm, request, clock, taken.ok_or(Refusal::WRONG_TYPE)??)
}

/// The request that finds no key: makes one if it counts anything.
#[cold]
#[inline(never)]
fn take_first(
    call: &Call,
    mut slot: Slot,
    algorithm: Algorithm,
    request: &Request,
    clock: UnixMs,
) -> Result<(), Refusal> {
    let mut limiter = Limiter::new(algorithm);
    let now = request.at.unwrap_or(clock);
    let taken = limiter.take(algorithm, request.quotas(), request.cost, request.force, now);
    let taken = taken.ok_or(Refusal::WRONG_TYPE)??;
    if taken.changed() {
        slot.insert(limiter);
    }
    conclude(call, slot, algorithm, request, clock, taken)
}

/// Commits, replicates and replies.
#[inline(always)]
fn conclude(
    call: &Call,
    mut slot: Slot,
    algorithm: Algorithm,
    request: &Request,
    clock: UnixMs,
    taken: Taken,
) -> Result<(), Refusal> {
    // What is replayed comes with FORCE.
    let replayed = request.force && call.is_replayed();
    if !replayed {
        stats::taken(algorithm, request.cost, &taken);
    }
    if taken.emptied {
        slot.delete();
    }
    let lifetime_may_move = !taken.settled || (taken.changed() && request.at.is_some());
    let verdict = if taken.outlook == Outlook::Plain && !lifetime_may_move {
        taken.verdict
    } else {
        // What is replayed has this form.
        let may_be_replayed = request.force && request.at.is_some();
        let longest_wait =
            settle(&mut slot, request.at, may_be_replayed, clock, lifetime_may_move, taken.outlook);
        taken.verdict.within(longest_wait)
    };
    drop(slot);

    if taken.changed() {
        call.signal_modified();
        match request.at {
            // It is the effect already.
            Some(_) if replayed => call.replicate_verbatim(),
            at => {
                let now = at.unwrap_or(clock);
                call.replicate(algorithm.command(), request.quotas().len(), request.cost, now);
            }
        }
    }
    if taken.emptied {
        call.notify(Event::Deleted);
    }
    if verdict.limited {
        call.notify(Event::Limited);
    }
    reply(call, &verdict);
    Ok(())
}

/// RL.PEEK: tells what a request would be answered.
fn peek(call: &Call) -> Result<(), Refusal> {
    match call.two_args_after_key() {
        Some([limit, window]) => peek_as(call, &Request::of_one_tier(limit, window)?),
        None => peek_as(call, &Request::parse(call.args_after_key(), Options::WithoutForce)?),
    }
}

#[inline(always)]
fn peek_as(call: &Call, request: &Request) -> Result<(), Refusal> {
    let clock = server::now();
    let now = request.at.unwrap_or(clock);
    let slot = Slot::open_to_read(call)?;
    // A missing key has nothing counted, by whichever algorithm.
    let nothing = Limiter::new(Algorithm::Fixed);
    let limiter = slot.limiter().unwrap_or(&nothing);
    let (verdict, outlook) = limiter.peek(request.quotas(), request.cost, now);
    let verdict = match outlook {
        Outlook::Plain => verdict,
        _ => verdict.within(longest_wait(&slot, request.at, clock, outlook)),
    };
    stats::peeked(&verdict);
    reply(call, &verdict);
    Ok(())
}

/// RL.INFO: shows what is counted.
fn info(call: &Call) -> Result<(), Refusal> {
    let now = server::now();
    let slot = Slot::open_to_read(call)?;
    let Some(limiter) = slot.limiter() else {
        call.reply_null();
        return Ok(());
    };
    let (name, entries) = match limiter.algorithm() {
        Algorithm::Fixed => (c"fixed", None),
        Algorithm::Sliding => (c"sliding", None),
        Algorithm::Log => (c"log", limiter.entries(now)),
    };
    call.reply_map(2 + usize::from(entries.is_some()));
    call.reply_text(c"algorithm");
    call.reply_text(name);
    call.reply_text(c"windows");
    let windows = limiter.windows(now);
    let may_go_early = limiter.is_ahead_of(now) || !limiter.is_settled();
    let gone = if may_go_early { ms_until_gone(&slot, now) } else { u64::MAX };
    call.reply_array(windows.len());
    for state in windows {
        call.reply_map(3);
        call.reply_text(c"window_ms");
        call.reply_integer(integer(state.window.get()));
        call.reply_text(c"used");
        call.reply_integer(integer(state.used));
        call.reply_text(c"reset_after_ms");
        call.reply_integer(integer(state.reset_after_ms.min(gone)));
    }
    if let Some(entries) = entries {
        call.reply_text(c"entries");
        call.reply_integer(integer(entries));
    }
    Ok(())
}

/// What few requests need: moves the key's time to live if it has to move, and notes it, so that
/// the next request need not look. Returns the longest wait to be told, in ms.
#[cold]
#[inline(never)]
fn settle(
    slot: &mut Slot,
    at: Option<UnixMs>,
    may_be_replayed: bool,
    clock: UnixMs,
    lifetime_may_move: bool,
    outlook: Outlook,
) -> u64 {
    let current = slot.expires_at();
    if let Some(limiter) = slot.limiter_mut() {
        let (as_of, more_ms, slack_ms) = match at {
            Some(at) => (at, MORE_LIFETIME_WITH_AT_MS, 0),
            None if limiter.is_settled_by_clock() => (clock, 0, 0),
            // It may have been written with AT: then it lives longer, and keeps that.
            None => (clock, 0, MORE_LIFETIME_WITH_AT_MS),
        };
        let lifetime = limiter.lifetime(as_of, slack_ms);
        let end = UnixMs(clock.0 + lifetime.ms + more_ms);
        // The clock stepped far back: whoever asks, the key goes in time, and nobody puts that off.
        let heals = at.is_none() && lifetime.heals;
        let settled = limiter.is_settled();
        let moves = match current {
            Some(current) if heals => current > end,
            Some(current) => lifetime_may_move && current < end,
            None => lifetime_may_move && !settled,
        };
        if !heals && (lifetime_may_move || !settled) {
            let by_clock = lifetime_may_move && at.is_none() && outlook != Outlook::Ahead;
            let until = if moves { Some(end) } else { current };
            // An append-only file may go on with the time to live that the key had.
            let known = until.filter(|_| !may_be_replayed);
            limiter.settle(known.unwrap_or(UnixMs(0)), by_clock);
        }
        if moves {
            slot.expire_at(end);
        }
    }
    longest_wait(slot, at, clock, outlook)
}

/// No wait in ms is longer than the key lives by the server's clock, where that can be shorter:
/// when the key is ahead of the clock or not known to live long enough, and when a call names a
/// longer window than a log has kept its units for.
#[cold]
fn longest_wait(slot: &Slot, at: Option<UnixMs>, clock: UnixMs, outlook: Outlook) -> u64 {
    match outlook {
        Outlook::Ahead | Outlook::KeepsTooLittle if at.is_none() => ms_until_gone(slot, clock),
        _ => u64::MAX,
    }
}

/// Milliseconds until the key goes by the server's clock.
#[cold]
fn ms_until_gone(slot: &Slot, clock: UnixMs) -> u64 {
    // The server keeps a key during the millisecond that it expires at.
    slot.expires_at().map_or(u64::MAX, |end| end.since(clock) + 1)
}

#[inline(always)]
fn reply(call: &Call, verdict: &Verdict) {
    call.reply_integers(&[
        i64::from(verdict.limited),
        integer(verdict.limit),
        integer(verdict.remaining),
        verdict.retry_after_ms.map_or(-1, integer),
        integer(verdict.reset_after_ms),
    ]);
}

/// For the reply. No figure is beyond 2^63 - 1: limits, times and windows are at most 2^53, and
/// counts at most 2^63 - 1.
#[inline(always)]
fn integer(figure: u64) -> i64 {
    figure as i64
}
