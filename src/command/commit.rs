//! What follows from a decision on one open key: its time to live, copies, events.
//!
//! Close, then tell: other modules may write to any key when they are told of a change, so the key is closed by then.
//! Copies get each effect before that, so that they see everything in the order in which it happened.

use crate::keyspace::{Handle, OpenKey, ToWrite};
use crate::limiter::{Algorithm, Cost, Counted, Effect, ExpiryFacts, Limiter, Outcome, Quota, Time, UnixMs};
use crate::server::{Arg, Call, Event, neighbors};

/// The time that units were counted at: for windows ahead of the clock, their own newest time.
pub fn counted_at(limiter: &Limiter, quotas: &[Quota], cost: Cost, time: Time, outcome: &Outcome) -> UnixMs {
    if outcome.changed() && cost.taken() > 0 && outcome.ahead {
        limiter.newest_in(quotas).max(time.now())
    } else {
        time.now()
    }
}

/// Stores `fresh` in an empty key if it counted anything, updates the time to live, closes the key, sends the effect to
/// copies by `replicate`, and tells other modules. Returns the call, and an upper bound on the waits in the reply, in
/// milliseconds.
#[inline(always)]
pub fn close_and_tell<'c, 'a>(
    mut key: OpenKey<'c, 'a, ToWrite>,
    fresh: Option<Limiter>,
    time: Time,
    outcome: &Outcome,
    replicate: impl FnOnce(&Call),
) -> (&'c mut Call<'a>, u64) {
    let name = key.name();
    if outcome.changed() {
        replicate(key.call());
    }
    if outcome.emptied {
        return (delete(key), u64::MAX);
    }
    if let Some(fresh) = fresh
        && outcome.changed()
    {
        return create(key, fresh, time, outcome);
    }
    let longest_wait_ms = move_expiry(key.handle_mut(), time, outcome);
    let call = key.close();
    if outcome.changed() {
        call.signal_modified(name);
    }
    (call, longest_wait_ms)
}

/// What happened to one of several keys.
pub struct Change<'a, 'r> {
    /// The key.
    pub name: Arg<'a>,
    /// What it was.
    pub what: What<'r>,
    /// The limiter to store if the key is empty.
    pub fresh: Option<Limiter>,
    /// When it was decided.
    pub time: Time,
    /// Its outcome.
    pub outcome: Outcome,
}

/// What was done to a key.
#[derive(Clone, Copy)]
pub enum What<'r> {
    /// A request was counted.
    Request {
        /// The algorithm named.
        algorithm: Algorithm,
        /// The tiers.
        quotas: &'r [Quota],
        /// Units to take, or to give back if negative.
        cost: Cost,
    },
    /// An effect was applied.
    Effect(&'r Effect),
}

impl<'a> Change<'a, '_> {
    /// What copies get.
    pub fn effect(&self) -> Effect {
        if self.outcome.emptied {
            Effect::Deleted
        } else {
            self.counted().map_or(Effect::Deleted, Effect::Counted)
        }
    }

    /// What was counted or given back; `None` if the key was only deleted.
    fn counted(&self) -> Option<Counted> {
        match self.what {
            What::Request { algorithm, quotas, cost } => {
                Some(Counted::of(algorithm, quotas, cost, &self.outcome))
            }
            What::Effect(Effect::Counted(counted)) => Some(counted.clone()),
            What::Effect(Effect::Deleted) => None,
        }
    }

    /// Whether the key is created or deleted, of which the server tells other modules.
    fn is_told(&self) -> bool {
        self.fresh.is_some() || self.outcome.emptied
    }

    /// Stores the new limiter, or deletes the emptied key. Sends the effect just before if it `replicates`.
    fn tell(&mut self, call: &mut Call<'a>, replicates: bool) {
        let name = self.name;
        let key = OpenKey::to_write(call, name);
        let key = key.and_then(|key| if key.limiter().is_none() { key.open_again() } else { Ok(key) });
        // Another module may have put a value of another type there meanwhile, or units.
        let Ok(mut key) = key else { return };
        match (key.handle_mut().limiter_mut(), self.fresh.take()) {
            (None, Some(fresh)) => {
                if replicates {
                    key.call().replicate(name, || self.effect());
                }
                create(key, fresh, self.time, &self.outcome);
            }
            (Some(limiter), None) => {
                let counted = self.counted();
                if counted.is_none() || limiter.counts_nothing(&[], self.time.earlier()) {
                    if replicates {
                        key.call().replicate(name, || Effect::Deleted);
                    }
                    delete(key);
                }
            }
            (Some(limiter), Some(_)) => {
                let Some(counted) = self.counted() else { return };
                let Ok(accepted) = limiter.accept(&counted) else { return };
                let outcome = accepted.apply(self.time.clock);
                close_and_tell(key, None, self.time, &outcome, |call| call.replicate(name, || self.effect()));
            }
            (None, None) => {}
        }
    }
}

/// Sends the effects on several keys to copies, by `replicate_all` if it can be one command. Stores the new limiters,
/// deletes the emptied keys, and tells other modules of all.
///
/// A module that is told of a key may write to any other, and copies must see everything in the order in which it
/// happened. So if there are other modules, and several keys to tell of, copies get each of these just before.
pub fn tell<'a, 'r>(
    call: &mut Call<'a>,
    changes: &mut [Change<'a, 'r>],
    replicate_all: impl FnOnce(&Call<'a>, &[Change<'a, 'r>]),
) {
    let one_by_one = neighbors::any() && changes.iter().filter(|change| change.is_told()).count() > 1;
    if one_by_one {
        for change in changes.iter().filter(|change| change.fresh.is_none()) {
            if let Some(counted) = change.counted() {
                call.replicate(change.name, || Effect::Counted(counted));
            }
        }
    } else if !changes.is_empty() {
        replicate_all(call, changes);
    }
    for change in changes.iter().filter(|change| !change.is_told()) {
        call.signal_modified(change.name);
    }
    for change in changes.iter_mut().filter(|change| change.is_told()) {
        change.tell(call, one_by_one);
    }
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
fn create<'c, 'a>(
    key: OpenKey<'c, 'a, ToWrite>,
    fresh: Limiter,
    time: Time,
    outcome: &Outcome,
) -> (&'c mut Call<'a>, u64) {
    let name = key.name();
    let call = key.insert(fresh);
    // Another module may have deleted, renamed or replaced it meanwhile.
    let longest_wait_ms = OpenKey::to_write(call, name)
        .map_or(u64::MAX, |mut key| move_expiry(key.handle_mut(), time, outcome));
    call.signal_modified(name);
    (call, longest_wait_ms)
}

/// Updates the time to live. Returns an upper bound on every wait.
#[inline(always)]
pub fn move_expiry(key: &mut Handle, time: Time, outcome: &Outcome) -> u64 {
    let facts = outcome.expiry_facts(time);
    if facts.may_move_expiry() {
        move_expiry_by(key, facts);
    }
    longest_wait_ms(key, time, outcome)
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
