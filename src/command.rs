//! The commands, each as its verbs: parse, open, decide, commit, replicate, reply.

use crate::keyspace::Slot;
use crate::limiter::{Algorithm, Cost, Limiter, Quota, UnixMs, Verdict};
use crate::request::{Options, Refusal, Request};
use crate::server::{self, Call, Command, Event};

/// A key written with AT stays at least this long, since event time may run slower than the
/// server's clock.
const MIN_LIFETIME_WITH_AT_MS: u64 = 60_000;

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
#[inline]
fn take(call: &Call, algorithm: Algorithm) -> Result<(), Refusal> {
    let mut request = Request::default();
    request.read(call.args_after_key(), Options::WithForce)?;
    let clock = server::now();
    let now = request.at.unwrap_or(clock);
    let mut slot = Slot::open(call)?;
    let mut new = None;
    let limiter = match slot.limiter_mut() {
        Some(limiter) if limiter.algorithm() == algorithm => limiter,
        Some(_) => return Err(Refusal::WRONG_TYPE),
        None => new.insert(Limiter::new(algorithm)),
    };

    let (quotas, cost) = (request.quotas(), request.cost);
    let limited = limiter.refuses(quotas, cost, now);
    let changed =
        cost != Cost(0) && (!limited || request.force) && limiter.record(quotas, cost, now, limited)?;
    let verdict = limiter.verdict(quotas, cost, now, limited);
    let emptied = changed && limiter.is_empty();

    if changed && let Some(new) = new {
        slot.insert(new);
    }
    if emptied {
        slot.delete();
    }
    let ahead = is_ahead(&slot, request.at, clock);
    let settled = !changed || (request.at.is_none() && slot.limiter().is_none_or(Limiter::is_settled));
    if ahead || !settled {
        settle_lifetime(&mut slot, request.at, clock, ahead);
    }
    let verdict = cut_waits(verdict, &slot, quotas, request.at, clock, ahead);
    drop(slot);

    if changed {
        call.signal_modified();
        call.replicate(algorithm.command(), quotas.len(), cost, now);
    }
    if emptied {
        call.notify(Event::Deleted);
    }
    if limited {
        call.notify(Event::Limited);
    }
    reply(call, &verdict);
    Ok(())
}

/// RL.PEEK: tells what a request would be answered.
fn peek(call: &Call) -> Result<(), Refusal> {
    let mut request = Request::default();
    request.read(call.args_after_key(), Options::WithoutForce)?;
    let clock = server::now();
    let now = request.at.unwrap_or(clock);
    let slot = Slot::open_to_read(call)?;
    // A missing key has nothing counted, by whichever algorithm.
    let nothing = Limiter::new(Algorithm::Fixed);
    let limiter = slot.limiter().unwrap_or(&nothing);

    let (quotas, cost) = (request.quotas(), request.cost);
    let limited = limiter.refuses(quotas, cost, now);
    let verdict = limiter.verdict(quotas, cost, now, limited);
    let ahead = is_ahead(&slot, request.at, clock);
    reply(call, &cut_waits(verdict, &slot, quotas, request.at, clock, ahead));
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
    let gone = if is_ahead(&slot, None, now) { ms_until_gone(&slot, now) } else { u64::MAX };
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

/// Whether the key is ahead of the server's clock, which decides: that stepped back, or the key was
/// written with a later time.
#[inline(always)]
fn is_ahead(slot: &Slot, at: Option<UnixMs>, clock: UnixMs) -> bool {
    at.is_none() && slot.limiter().is_some_and(|limiter| limiter.is_ahead_of(clock))
}

/// Moves the key's time to live if it has to move: later when what was counted matters longer;
/// only earlier when the key is ahead of the server's clock, so that it heals by going within its
/// own lifetime, whoever goes on counting in it. Most requests have no need of this.
#[cold]
fn settle_lifetime(slot: &mut Slot, at: Option<UnixMs>, clock: UnixMs, ahead: bool) {
    let Some(limiter) = slot.limiter() else { return };
    let lifetime = match at {
        Some(at) => limiter.lifetime(at).max(MIN_LIFETIME_WITH_AT_MS),
        None => limiter.lifetime(clock),
    };
    let end = UnixMs(clock.0 + lifetime);
    let moves = match slot.expires_at() {
        Some(current) if ahead => current > end,
        Some(current) => current < end,
        None => true,
    };
    if moves {
        slot.expire_at(end);
    }
    // Only the server's clock, going on as it did, says when the key goes.
    let known = (at.is_none() && !ahead).then_some(end);
    if let Some(limiter) = slot.limiter_mut() {
        limiter.settle(known);
    }
}

/// The verdict with no wait longer than the key lives by the server's clock, where that can be
/// shorter: when the key is ahead of the clock, and when a call names a longer window than a log
/// has kept its units for.
#[inline(always)]
fn cut_waits(
    verdict: Verdict,
    slot: &Slot,
    quotas: &[Quota],
    at: Option<UnixMs>,
    clock: UnixMs,
    ahead: bool,
) -> Verdict {
    let keeps_too_little = |limiter: &Limiter| limiter.keeps_too_little_for(quotas);
    if ahead || (at.is_none() && slot.limiter().is_some_and(keeps_too_little)) {
        return verdict.within(ms_until_gone(slot, clock));
    }
    verdict
}

/// Milliseconds until the key goes by the server's clock.
#[cold]
fn ms_until_gone(slot: &Slot, clock: UnixMs) -> u64 {
    // The server keeps a key during the millisecond that it expires at.
    slot.expires_at().map_or(u64::MAX, |end| end.since(clock) + 1)
}

#[inline]
fn reply(call: &Call, verdict: &Verdict) {
    call.reply_integers(&[
        i64::from(verdict.limited),
        integer(verdict.limit),
        integer(verdict.remaining),
        verdict.retry_after_ms.map_or(-1, integer),
        integer(verdict.reset_after_ms),
    ]);
}

/// For the reply: no figure is beyond 2^63 - 1.
fn integer(figure: u64) -> i64 {
    i64::try_from(figure).unwrap_or(i64::MAX)
}
