//! What follows from a decision on one open key: its time to live, copies, events.
//!
//! Close, then tell: other modules may write to any key when they are told of a change, so the key is closed by then.
//! Copies get each effect before that, so that they see everything in the order in which it happened.

use crate::keyspace::{Handle, OpenKey, ToWrite};
use crate::limiter::{Algorithm, Cost, ExpiryFacts, Limiter, Outcome, Quota, Time, UnixMs};
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
    /// Whether it came from a master or an append-only file.
    pub replayed: bool,
}

impl DecidedRequest<'_> {
    /// Sends the effect on a key to copies.
    #[inline(always)]
    pub fn replicate(&self, call: &Call, key: Arg) {
        let &DecidedRequest { algorithm, tiers, cost, time, outcome, replayed } = self;
        match time.at {
            // The command is itself an effect.
            Some(_) if replayed => call.replicate_verbatim(),
            _ => call.replicate(|| Effect { algorithm, key, tiers, cost, at: outcome.as_of }),
        }
    }
}

/// The time that units were counted at: for windows ahead of the clock, their own newest time.
pub fn counted_at(limiter: &Limiter, quotas: &[Quota], cost: Cost, time: Time, outcome: &Outcome) -> UnixMs {
    if outcome.changed() && cost.taken() > 0 && outcome.ahead {
        limiter.newest_of(quotas).max(time.now())
    } else {
        time.now()
    }
}

/// Stores `fresh` in an empty key if it counted anything, updates the time to live, closes the key, replicates
/// the effect and tells other modules. Returns the call, and an upper bound on the waits in the reply, in
/// milliseconds.
#[inline(always)]
pub fn close_and_tell<'c, 'a>(
    mut key: OpenKey<'c, 'a, ToWrite>,
    fresh: Option<Limiter>,
    decided: &DecidedRequest,
) -> (&'c mut Call<'a>, u64) {
    let (name, outcome) = (key.name(), &decided.outcome);
    if outcome.changed() {
        decided.replicate(key.call(), name);
    }
    if outcome.emptied {
        return (delete(key), u64::MAX);
    }
    if let Some(fresh) = fresh
        && outcome.changed()
    {
        return create(key, fresh, decided);
    }
    let longest_wait_ms = move_expiry(key.handle_mut(), decided);
    let call = key.close();
    if outcome.changed() {
        call.signal_modified(name);
    }
    (call, longest_wait_ms)
}

/// Deletes the key, which has given back the last unit that counts.
#[cold]
pub fn delete<'c, 'a>(key: OpenKey<'c, 'a, ToWrite>) -> &'c mut Call<'a> {
    let name = key.name();
    let call = key.delete();
    call.signal_modified(name);
    call.notify(Event::Deleted, name);
    call
}

/// Stores a limiter in the empty key. Returns the call, and an upper bound on every wait.
#[cold]
pub fn create<'c, 'a>(
    key: OpenKey<'c, 'a, ToWrite>,
    fresh: Limiter,
    decided: &DecidedRequest,
) -> (&'c mut Call<'a>, u64) {
    let name = key.name();
    let call = key.insert(fresh);
    // Another module may have deleted, renamed or replaced it meanwhile.
    let longest_wait_ms =
        OpenKey::to_write(call, name).map_or(u64::MAX, |mut key| move_expiry(key.handle_mut(), decided));
    call.signal_modified(name);
    (call, longest_wait_ms)
}

/// Updates the time to live. Returns an upper bound on every wait.
#[inline(always)]
pub fn move_expiry(key: &mut Handle, decided: &DecidedRequest) -> u64 {
    let DecidedRequest { time, outcome, .. } = decided;
    let facts = outcome.expiry_facts(*time);
    if facts.may_move_expiry() {
        move_expiry_by(key, facts);
    }
    longest_wait_ms(key, *time, outcome)
}

#[cold]
#[inline(never)]
fn move_expiry_by(key: &mut Handle, facts: ExpiryFacts) {
    let current = key.expires_at();
    let Some(limiter) = key.limiter_mut() else { return };
    let expiry = facts.expiry(current, |now, slack_ms| limiter.lifetime(now, slack_ms));
    limiter.set_source(expiry.source);
    if let Some(end) = expiry.moves_to {
        key.expire_at(end);
    }
}

/// Publishes `rl.limited` if the request was limited. Only the server that decided does so, never a copy.
#[inline(always)]
pub fn publish_if_limited(call: &mut Call, key: Arg, limited: bool) {
    if limited {
        call.notify(Event::Limited, key);
    }
}

/// An upper bound on every wait, in milliseconds: the key's time to live if it may expire before a wait is
/// over, `u64::MAX` otherwise. A request with AT is not bounded: its time is not the server's.
#[inline(always)]
pub fn longest_wait_ms(key: &Handle, time: Time, outcome: &Outcome) -> u64 {
    if time.at.is_none() && outcome.may_expire_early() { ms_until_expired(key, time.clock) } else { u64::MAX }
}

/// Milliseconds until the key has expired by the server's clock; `u64::MAX` if it never does.
#[cold]
#[inline(never)]
pub fn ms_until_expired(key: &Handle, clock: UnixMs) -> u64 {
    // The server still serves a key in the millisecond it expires at.
    key.expires_at().map_or(u64::MAX, |end| end.since(clock) + 1)
}
