//! Applies a decision to one open key: time to live, replication, events.

use crate::keyspace::{OpenKey, ToWrite};
use crate::limiter::{Algorithm, Cost, ExpiryFacts, Limiter, Outcome, Time, UnixMs};
use crate::request::Refusal;
use crate::server::{Arg, Call, Effect, Event};

/// A request about one key, counted or not.
pub struct DecidedRequest<'a> {
    /// The algorithm named.
    pub algorithm: Algorithm,
    /// `limit window ...`, as the caller wrote them.
    pub tiers: &'a [Arg<'a>],
    /// The cost.
    pub cost: Cost,
    /// When it was decided.
    pub time: Time,
    /// Its outcome.
    pub outcome: Outcome,
}

/// Stores `fresh` in an empty key if it counted anything, updates the time to live, closes the key and
/// replicates the effect. Returns an upper bound on the waits in the reply, in milliseconds.
#[inline(always)]
pub fn conclude(
    call: &Call,
    mut key: OpenKey<ToWrite>,
    fresh: Option<Limiter>,
    decided: &DecidedRequest,
    replayed: bool,
) -> Result<u64, Refusal> {
    let DecidedRequest { time, outcome, .. } = *decided;
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
    if outcome.expiry_facts(time).may_move_expiry() {
        move_expiry(&mut key, outcome.expiry_facts(time));
    }
    let longest_wait_ms = longest_wait_ms(&key, time, &outcome);
    drop(key);

    if outcome.changed() {
        call.signal_modified(name);
        match time.at {
            // The command is itself an effect.
            Some(_) if replayed => call.replicate_verbatim(),
            _ => call.replicate(|| Effect {
                algorithm: decided.algorithm,
                key: name,
                tiers: decided.tiers,
                cost: decided.cost,
                at: outcome.as_of,
            }),
        }
    }
    if outcome.emptied {
        call.notify(Event::Deleted, name);
    }
    Ok(longest_wait_ms)
}

/// Publishes `rl.limited` if the request was limited. Only the server that decided does so, never a copy.
#[inline(always)]
pub fn publish_if_limited(call: &Call, key: Arg, limited: bool) {
    if limited {
        call.notify(Event::Limited, key);
    }
}

#[cold]
#[inline(never)]
fn move_expiry(key: &mut OpenKey<ToWrite>, facts: ExpiryFacts) {
    let current = key.expires_at();
    let Some(limiter) = key.limiter_mut() else { return };
    let expiry = facts.expiry(current, |now, slack_ms| limiter.lifetime(now, slack_ms));
    limiter.set_source(expiry.source);
    if let Some(end) = expiry.moves_to {
        key.expire_at(end);
    }
}

/// An upper bound on every wait, in milliseconds: the key's time to live if it may expire before a wait is
/// over, `u64::MAX` otherwise. A request with AT is not bounded: its time is not the server's.
#[inline(always)]
pub fn longest_wait_ms<Mode>(key: &OpenKey<Mode>, time: Time, outcome: &Outcome) -> u64 {
    if time.at.is_none() && outcome.may_expire_early() { ms_until_expired(key, time.clock) } else { u64::MAX }
}

/// Milliseconds until the key has expired by the server's clock; `u64::MAX` if it never does.
#[cold]
#[inline(never)]
pub fn ms_until_expired<Mode>(key: &OpenKey<Mode>, clock: UnixMs) -> u64 {
    // The server still serves a key in the millisecond it expires at.
    key.expires_at().map_or(u64::MAX, |end| end.since(clock) + 1)
}
