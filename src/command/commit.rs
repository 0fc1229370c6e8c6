//! What follows from a decision on one open key: time to live, replication, events.

use crate::keyspace::{OpenKey, ToWrite};
use crate::limiter::{Algorithm, Cost, Limiter, Outcome, Outlook, Time, Touch, UnixMs};
use crate::request::Refusal;
use crate::server::{Arg, Call, Effect, Event};

/// A request about one key that was counted, or not.
pub struct Done<'a> {
    /// The algorithm that it named.
    pub algorithm: Algorithm,
    /// Its `limit window ...`, as the caller wrote them.
    pub tiers: &'a [Arg<'a>],
    /// Its cost.
    pub cost: Cost,
    /// When it was decided.
    pub time: Time,
    /// What came of it.
    pub outcome: Outcome,
}

/// Keeps `fresh` if it counted anything in an empty key, has the key expire in time, closes it, and
/// sends the effect. Returns the longest wait to be told, in milliseconds.
#[inline(always)]
pub fn conclude(
    call: &Call,
    mut key: OpenKey<ToWrite>,
    fresh: Option<Limiter>,
    done: &Done,
    replayed: bool,
) -> Result<u64, Refusal> {
    let Done { time, outcome, .. } = *done;
    if let Some(fresh) = fresh
        && outcome.changed()
        && !outcome.emptied
    {
        key.insert(fresh)?;
    }
    let name = key.name();
    if outcome.emptied {
        key.delete();
    }
    if outcome.touch(time).may_move_expiry() {
        move_expiry(&mut key, outcome.touch(time));
    }
    let longest_wait_ms = longest_wait_ms(&key, time, outcome.outlook);
    drop(key);

    if outcome.changed() {
        call.signal_modified(name);
        match time.at {
            // It is the effect already.
            Some(_) if replayed => call.replicate_verbatim(),
            _ => call.replicate(|| Effect {
                algorithm: done.algorithm,
                key: name,
                tiers: done.tiers,
                cost: done.cost,
                at: outcome.as_of,
            }),
        }
    }
    if outcome.emptied {
        call.notify(Event::Deleted, name);
    }
    Ok(longest_wait_ms)
}

/// Publishes `rl.limited`: by the server that decided, not by those that it tells.
#[inline(always)]
pub fn publish_if_limited(call: &Call, key: Arg, limited: bool) {
    if limited {
        call.notify(Event::Limited, key);
    }
}

#[cold]
#[inline(never)]
fn move_expiry(key: &mut OpenKey<ToWrite>, touch: Touch) {
    let current = key.expires_at();
    let Some(limiter) = key.limiter_mut() else { return };
    let expiry = touch.expiry(current, |now, slack_ms| limiter.lifetime(now, slack_ms));
    limiter.set_source(expiry.source);
    if let Some(end) = expiry.moves_to {
        key.expire_at(end);
    }
}

/// No wait is longer than the key lives by the server's clock, where that can be shorter: when the
/// key is ahead of the clock or was just loaded, and when a call names a longer window than a log
/// has kept its units for.
#[inline(always)]
pub fn longest_wait_ms<Mode>(key: &OpenKey<Mode>, time: Time, outlook: Outlook) -> u64 {
    if time.at.is_none() && outlook.may_expire_early() { ms_until_expired(key, time.clock) } else { u64::MAX }
}

/// Milliseconds until the key has expired by the server's clock.
#[cold]
#[inline(never)]
pub fn ms_until_expired<Mode>(key: &OpenKey<Mode>, clock: UnixMs) -> u64 {
    // The server keeps a key during the millisecond that it expires at.
    key.expires_at().map_or(u64::MAX, |end| end.since(clock) + 1)
}
