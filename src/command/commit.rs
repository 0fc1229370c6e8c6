//! What follows from a decision or an effect on one open key: its time to live, copies, events.
//!
//! Close, then tell: other modules may write to any key when they are told of a change, so the key is closed by then.
//! Copies get each effect before that, so that they see everything in the order in which it happened.

// Inlined for single commands: see `command::take`.

use crate::keyspace::{Handle, OpenKey, ToWrite};
use crate::limiter::{
    Algorithm, Applied, Before, Cost, Counted, Effect, ExpiryFacts, Limiter, Outcome, Quota, Time, UnixMs,
};
use crate::request::SmallList;
use crate::server::{self, Arg, Call, Event, neighbors};

/// The time that units were counted at: for windows ahead of the clock, their own newest time.
pub fn counted_at(limiter: &Limiter, quotas: &[Quota], cost: Cost, time: Time, outcome: &Outcome) -> UnixMs {
    if outcome.changed() && cost.taken() > 0 && outcome.ahead {
        limiter.newest_in(quotas).max(time.now())
    } else {
        time.now()
    }
}

/// What a request asked of a key: the algorithm, the tiers and the cost.
pub type Asked<'r> = (Algorithm, &'r [Quota], Cost);

/// Finishes a decided request on its key: moves the expiry, sends the effect to copies, closes the key and tells other
/// modules. Returns the call, and an upper bound on the waits in the reply, in milliseconds.
#[inline(always)]
pub fn close_decided<'c, 'a>(
    mut key: OpenKey<'c, 'a, ToWrite>,
    mut fresh: Option<Limiter>,
    (algorithm, quotas, cost): Asked,
    time: Time,
    outcome: &Outcome,
) -> (&'c mut Call<'a>, u64) {
    let name = key.name();
    let done = applied(key.handle_mut(), fresh.as_mut(), time, outcome);
    let replicate = |call: &Call| {
        call.replicate(name, || done.effect(|| Counted::of(algorithm, quotas, cost, outcome)));
    };
    close_and_tell(key, fresh, done, replicate, |key| longest_wait_ms(key, time, outcome))
}

/// Sends what was done to copies by `replicate`, while the key is open: that calls no other module. Stores `fresh` in an
/// empty key if anything was counted, sets the expiry if it moved, closes the key, and tells other modules. Returns the
/// call, and what `longest_wait_ms` says of the key.
#[inline(always)]
pub fn close_and_tell<'c, 'a>(
    mut key: OpenKey<'c, 'a, ToWrite>,
    fresh: Option<Limiter>,
    done: Applied,
    replicate: impl FnOnce(&Call),
    longest_wait_ms: impl FnOnce(&Handle) -> u64,
) -> (&'c mut Call<'a>, u64) {
    let name = key.name();
    if done.is_any() {
        replicate(key.call());
    }
    if done.emptied {
        return (delete(key), u64::MAX);
    }
    if let Some(fresh) = fresh
        && done.changed
    {
        return create(key, fresh, done.moved, longest_wait_ms);
    }
    if let Some(moved) = done.moved {
        key.handle_mut().expire_at(moved);
    }
    let longest_wait_ms = longest_wait_ms(&key);
    let call = key.close();
    if done.changed {
        call.signal_modified(name);
    }
    (call, longest_wait_ms)
}

/// What happened to one of several keys.
pub struct Change<'a> {
    /// The key.
    pub name: Arg<'a>,
    /// Its index among the keys of the call.
    pub index: usize,
    /// What was done to it.
    pub done: Applied,
    /// The limiter to store if the key is empty.
    pub fresh: Option<Limiter>,
}

/// Moves the expiry of what was in one of several keys before. Returns what happened to the key, if anything.
pub fn change<'a>(
    key: &mut Handle<'a>,
    index: usize,
    done: Applied,
    fresh: Option<Limiter>,
) -> Option<Change<'a>> {
    if let (Some(moved), false) = (done.moved, done.emptied || fresh.is_some()) {
        key.expire_at(moved);
    }
    done.is_any().then(|| Change { name: key.name(), index, done, fresh })
}

/// Sends the effects on several keys to copies, in one command if that is possible: as it was called, if that `says_all`.
/// Deletes the emptied keys, stores the new limiters, and tells other modules of all.
///
/// A module that is told of a key may write to any other, and copies must see everything in the order in which it
/// happened. So if there are other modules, and several new keys, copies get the effect on each of these just before the
/// server tells of it. An emptied limiter must not be seen, so it is deleted before anything is told.
pub fn tell<'a>(
    call: &mut Call<'a>,
    changes: SmallList<Change<'a>>,
    says_all: bool,
    effect: impl Fn(&Change) -> Effect,
) {
    if changes.is_empty() {
        return;
    }
    let one_by_one = neighbors::any() && changes.iter().filter(|change| change.fresh.is_some()).count() > 1;
    if one_by_one {
        for change in changes.iter().filter(|change| change.fresh.is_none()) {
            call.replicate(change.name, || effect(change));
        }
    } else if says_all {
        call.replicate_verbatim();
    } else {
        call.replicate_all(changes.iter().map(|change| (change.name, effect(change))));
    }
    let mut deleted: SmallList<Arg> = SmallList::new();
    for change in changes.iter().filter(|change| change.done.emptied) {
        if let Ok(key) = OpenKey::to_write(call, change.name)
            && key.limiter().is_some()
        {
            key.delete();
            deleted.push(change.name);
        }
    }
    for change in changes.iter().filter(|change| change.done.changed && change.fresh.is_none()) {
        call.signal_modified(change.name);
    }
    for change in changes {
        if change.fresh.is_some()
            && let Effect::Counted(counted) = effect(&change)
        {
            create_among_others(call, change, counted, one_by_one);
        }
    }
    for name in deleted {
        call.notify(Event::Deleted, name);
    }
}

/// Stores the new limiter, or counts its units if another module has put some there. Sends that just before if it
/// `replicates`.
fn create_among_others<'a>(call: &mut Call<'a>, change: Change<'a>, counted: Counted, replicates: bool) {
    let Change { name, done, fresh, .. } = change;
    // Another module may have put a value of another type there meanwhile.
    let Ok(mut key) = OpenKey::to_change(call, name) else { return };
    let current = key.expires_at();
    let before = Before { is_new: false, expires_at: current };
    let (done, fresh) = match key.handle_mut().limiter_mut() {
        None => (done, fresh),
        Some(limiter) => {
            let Ok(accepted) = limiter.accept(&counted) else { return };
            let mut done = accepted.apply(before, server::now);
            // It lives as long as either needs it.
            done.moved = done.moved.filter(|moved| current.is_none_or(|current| *moved > current));
            (done, None)
        }
    };
    let replicate = |call: &Call| {
        if replicates {
            call.replicate(name, || done.effect(|| counted));
        }
    };
    close_and_tell(key, fresh, done, replicate, |_| u64::MAX);
}

/// Deletes the key, which has given back the last unit that counts.
#[cold]
fn delete<'c, 'a>(key: OpenKey<'c, 'a, ToWrite>) -> &'c mut Call<'a> {
    let name = key.name();
    let call = key.delete();
    call.signal_modified(name);
    call.notify(Event::Deleted, name);
    call
}

/// Stores a limiter in the empty key, which is to expire at `moved`. Returns the call, and what `longest_wait_ms` says of
/// the key.
#[cold]
fn create<'c, 'a>(
    key: OpenKey<'c, 'a, ToWrite>,
    fresh: Limiter,
    moved: Option<UnixMs>,
    longest_wait_ms: impl FnOnce(&Handle) -> u64,
) -> (&'c mut Call<'a>, u64) {
    let name = key.name();
    let call = key.insert(fresh);
    // Another module may have deleted, renamed or replaced it meanwhile.
    let longest_wait_ms = OpenKey::to_write(call, name).map_or(u64::MAX, |mut key| {
        // If another module has set a time to live, copies got that after this one.
        if let (Some(moved), None) = (moved, key.expires_at()) {
            key.handle_mut().expire_at(moved);
        }
        longest_wait_ms(&key)
    });
    call.signal_modified(name);
    (call, longest_wait_ms)
}

/// What a decided request did to an open key, or to the `fresh` limiter for an empty one. The expiry is not set yet.
#[inline(always)]
pub fn applied(key: &mut Handle, fresh: Option<&mut Limiter>, time: Time, outcome: &Outcome) -> Applied {
    let (changed, emptied, facts) = (outcome.changed(), outcome.emptied, outcome.expiry_facts(time));
    let moved = if emptied || !facts.may_move_expiry() { None } else { new_expiry(key, fresh, facts) };
    Applied { changed, emptied, moved }
}

/// The time that the expiry moves to; `None` if it does not.
#[cold]
#[inline(never)]
fn new_expiry(key: &mut Handle, fresh: Option<&mut Limiter>, facts: ExpiryFacts) -> Option<UnixMs> {
    let current = key.expires_at();
    let limiter = key.limiter_mut().or(fresh)?;
    let expiry = facts.expiry(current, |now, slack_ms| limiter.lifetime(now, slack_ms));
    limiter.set_source(expiry.source);
    expiry.moves_to
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
