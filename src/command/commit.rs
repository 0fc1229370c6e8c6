//! What follows from a decision or an effect on the server: the expiry is set, copies and other modules are told.
//!
//! Other modules may write to any key when they are told of a change, and would free a limiter that is still in use here. So
//! every key is closed by then. Copies get each effect before that, and a deletion right after it: so they see everything in the
//! order in which it happened.

// What single commands call is inlined: see `command/take.rs`.

use crate::keyspace::{KeyPart, OpenKey, ToWrite};
use crate::server::{self, Arg, Call, Event, neighbors};
use redis_rl_core::encoding;
use redis_rl_core::limiter::{Effect, Key, Limiter, Pending, UnixMs};

/// Does what is still to be done to an open key: stores `fresh` in an empty key if anything was counted, sets the expiry if it
/// moved, deletes an emptied key, closes it, and tells other modules. Copies were told before, except of a deletion: see
/// [`Pending::is_told_first`].
#[inline(always)]
pub fn carry_out<'c, 'a>(
    mut key: OpenKey<'c, 'a, ToWrite>,
    fresh: Option<Limiter>,
    pending: Pending,
) -> &'c mut Call<'a> {
    let name = key.name();
    if pending.emptied {
        return delete(key);
    }
    if let Some(fresh) = fresh
        && pending.changed
    {
        return create(key, fresh, pending.moved.expires);
    }
    if let Some(at) = pending.moved.expires {
        key.handle_mut().expire_at(at);
    }
    let call = key.close();
    if pending.changed {
        call.signal_modified(name);
    }
    call
}

/// Deletes the key, and tells copies only then: newer servers tell other modules just before a key is deleted, and what these
/// modules do to it is deleted too.
#[cold]
fn delete<'c, 'a>(key: OpenKey<'c, 'a, ToWrite>) -> &'c mut Call<'a> {
    let name = key.name();
    let call = key.delete();
    call.replicate(name, || Effect::Deleted);
    call.notify(Event::Deleted, name);
    call
}

/// Stores a limiter in the empty key, which is to expire at `expires`.
#[cold]
fn create<'c, 'a>(
    key: OpenKey<'c, 'a, ToWrite>,
    fresh: Limiter,
    expires: Option<UnixMs>,
) -> &'c mut Call<'a> {
    let name = key.name();
    // Other modules are told of the new key, and may change it: comparing its bytes shows that.
    let stored = if neighbors::is_alone() { None } else { Some(encoding::encode(&fresh)) };
    let call = key.insert(fresh);
    match OpenKey::to_write(call, name) {
        Ok(key) => set_expiry(key, expires, stored),
        // Another module has put a value of another type there, and the server has dropped the time to live that it may have had.
        Err(_) => call.replicate_persist(name),
    }
    call.signal_modified(name);
    call
}

/// Makes a new key expire at `expires`. If its bytes are not those `stored`, another module has counted in it: then the key
/// lives as long as it counts. Copies are told so, since the server has dropped the expiry that the key had from that module.
fn set_expiry(mut key: OpenKey<ToWrite>, expires: Option<UnixMs>, stored: Option<Vec<u8>>) {
    let (Some(limiter), Some(mut end)) = (key.limiter(), expires) else { return };
    if stored.is_some_and(|stored| encoding::encode(limiter) != stored) {
        let now = server::now();
        end = end.max(now.plus_up_to_max(limiter.lifetime_ms(now)));
        key.call().replicate(key.name(), || Effect::expires_at(end));
    }
    key.handle_mut().expire_at(end);
}

/// Tells copies what was done to several keys, in one command if possible: in this very command, if it `is_complete`. Deletes
/// the emptied keys, stores the new limiters, and tells other modules.
///
/// A module that is told of a key may write to any other, and copies must see everything in the order in which it happened.
/// So beside a module that may write, copies get the effects one by one, if there are several: that on a new key just before it is
/// stored, that on an emptied key just after it was deleted.
pub fn carry_out_all<'a, T>(
    call: &mut Call<'a>,
    parts: &mut [KeyPart<'a, T>],
    is_complete: bool,
    effect: impl Fn(&KeyPart<'a, T>) -> Effect,
) {
    let (mut changed, mut new, mut emptied) = (0, 0, 0);
    for part in &*parts {
        changed += usize::from(part.pending.is_any());
        new += usize::from(is_new(part));
        emptied += usize::from(part.pending.emptied);
    }
    if changed == 0 {
        return;
    }
    let one_by_one = (new > 1 || emptied > 0) && changed > 1 && neighbors::may_write();
    if one_by_one {
        for part in &*parts {
            if part.pending.is_told_first() && !is_new(part) {
                call.replicate(part.name, || effect(part));
            }
        }
    }
    if emptied > 0 {
        for part in &mut *parts {
            if part.pending.emptied && !delete_among_others(call, part.name, one_by_one) {
                part.pending = Pending::default();
            }
        }
    }
    if !one_by_one {
        if is_complete {
            call.replicate_verbatim();
        } else {
            let done = parts.iter().filter(|part| part.pending.is_any());
            call.replicate_all(|| done.map(|part| (part.name, effect(part))));
        }
    }
    for part in &mut *parts {
        if is_new(part) {
            let effect = effect(part);
            create_among_others(call, part, effect, one_by_one);
        } else if part.pending.changed && !part.pending.emptied {
            call.signal_modified(part.name);
        }
    }
    if emptied > 0 {
        for part in parts.iter().filter(|part| part.pending.emptied) {
            call.notify(Event::Deleted, part.name);
        }
    }
}

/// Whether a limiter is to be stored in an empty key.
fn is_new<T>(part: &KeyPart<T>) -> bool {
    part.pending.changed && part.fresh.is_some()
}

/// Deletes an emptied key. Returns whether it was still there: another module may have deleted it.
#[cold]
fn delete_among_others<'a>(call: &mut Call<'a>, name: Arg<'a>, replicates: bool) -> bool {
    let Ok(key) = OpenKey::to_write(call, name) else { return false };
    if key.limiter().is_none() {
        return false;
    }
    let call = key.delete();
    if replicates {
        call.replicate(name, || Effect::Deleted);
    }
    true
}

/// Stores the new limiter. If another module has put a limiter there meanwhile, counts the units in that. Tells copies the effect just
/// before, if it `replicates`. Otherwise they have it already, and are told only of an expiry that it does not name.
#[cold]
fn create_among_others<'a, T>(
    call: &mut Call<'a>,
    part: &mut KeyPart<'a, T>,
    effect: Effect,
    replicates: bool,
) {
    let (name, mut pending, mut fresh) = (part.name, part.pending, part.fresh.take());
    // Another module may have put a value of another type there meanwhile.
    let Ok(mut key) = OpenKey::to_write_or_insert(call, name) else { return };
    let (current, Effect::Recorded(recorded)) = (key.expires_at(), effect) else { return };
    if let Some(limiter) = key.handle_mut().limiter_mut() {
        let Ok(again) = recorded.apply(limiter, false) else { return };
        // The key lives as long as either of the two needs it.
        pending = again;
        pending.moved.expires = again.moved.expires.max(current);
        fresh = None;
    }
    match pending.moved.expires {
        _ if replicates => key.call().replicate(name, || pending.effect(|| recorded)),
        Some(at) if fresh.is_none() => key.call().replicate(name, || Effect::expires_at(at)),
        _ => {}
    }
    carry_out(key, fresh, pending);
}

/// Publishes `rl.limited` if the request was limited. Only the server that decided does so, never a copy.
#[inline(always)]
pub fn publish_if_limited(call: &mut Call, key: Arg, limited: bool) {
    if limited {
        call.notify(Event::Limited, key);
    }
}
