//! RL.APPLY: does to keys what requests did elsewhere. Replicas and append-only files consist of this command.

use super::commit::{self, Change};
use crate::encoding::decode_effect;
use crate::keyspace::{Handle, OpenKey, OpenKeys};
use crate::limiter::{Accepted, Applied, Counted, Effect, Expires, Limiter, UnixMs};
use crate::request::{self, MAX_ROWS, Refusal, SmallList};
use crate::server::{self, Arg, Call, Command};

/// RL.APPLY.
pub struct Apply;

impl Command for Apply {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        match call.args() {
            [_, effect] => match parse(*effect)? {
                Effect::Counted(counted) => count(call, &counted)?,
                Effect::Moved(at) => expire(call, at)?,
                Effect::Deleted => delete(call)?,
            },
            pairs => apply_all(call, pairs)?,
        }
        call.reply_ok();
        Ok(())
    }
}

fn parse(effect: Arg) -> Result<Effect, Refusal> {
    decode_effect(effect.bytes()).ok_or(Refusal::EFFECT)
}

fn count(call: &mut Call, counted: &Counted) -> Result<(), Refusal> {
    let name = call.key();
    let mut key = OpenKey::to_change(call, name)?;
    let before = Before::of(&key, counted);
    let mut fresh = None;
    let done = before.apply(key.handle_mut().limiter_or(&mut fresh, counted.algorithm).accept(counted)?);
    let replicate = |call: &Call| match tells(counted, &done) {
        true => call.replicate_verbatim(),
        false => call.replicate(name, || Effect::Counted(told(counted.clone(), &done))),
    };
    commit::close_and_tell(key, fresh, done, replicate, |_| u64::MAX);
    Ok(())
}

/// Whether the effect tells when the key expires now. If not, copies of this server would work it out by their own clocks.
fn tells(counted: &Counted, done: &Applied) -> bool {
    counted.expires == done.moved.into()
}

/// The effect as copies get it, with the time at which the key expires.
fn told(counted: Counted, done: &Applied) -> Counted {
    Counted { expires: done.moved.into(), ..counted }
}

fn expire(call: &mut Call, at: UnixMs) -> Result<(), Refusal> {
    let name = call.key();
    let mut key = OpenKey::to_write(call, name)?;
    if key.limiter().is_some() {
        key.call().replicate_verbatim();
        key.handle_mut().expire_at(at);
    }
    Ok(())
}

fn delete(call: &mut Call) -> Result<(), Refusal> {
    let name = call.key();
    let key = OpenKey::to_write(call, name)?;
    if key.limiter().is_some() {
        key.call().replicate_verbatim();
        commit::delete(key);
    }
    Ok(())
}

/// What an effect has to know of a key before it is applied.
struct Before {
    is_new: bool,
    /// Looked up only if the effect does not tell when the key expires.
    expires_at: Option<UnixMs>,
}

impl Before {
    fn of(key: &Handle, counted: &Counted) -> Before {
        let is_untold = counted.expires == Expires::Untold;
        let expires_at = if is_untold { key.expires_at() } else { None };
        // One that holds nothing counts as missing, but a time to live that it has is the master's.
        let is_new = key.limiter().is_none_or(|limiter| limiter.is_empty() && key.expires_at().is_none());
        Before { is_new, expires_at }
    }

    fn apply(self, accepted: Accepted) -> Applied {
        accepted.apply(self.is_new, self.expires_at, server::now())
    }
}

/// Applies effects on several keys: all, or none if one cannot be applied.
fn apply_all<'a>(call: &mut Call<'a>, words: &[Arg<'a>]) -> Result<(), Refusal> {
    let pairs = words.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(Refusal::Arity);
    }
    if pairs.len() > MAX_ROWS {
        return Err(Refusal::EFFECT);
    }
    let mut effects = SmallList::new();
    for pair in pairs.clone() {
        effects.push(parse(pair[1])?);
    }
    let (names, _) = request::distinct(pairs.map(|pair| pair[0]));
    if names.len() < effects.len() {
        return Err(Refusal::EFFECT);
    }
    let mut keys = OpenKeys::to_write(call, &names)?;
    let mut fresh: SmallList<Option<Limiter>> = effects.iter().map(|_| None).collect();
    let mut accepted = SmallList::new();
    for ((key, fresh), effect) in keys.handles().iter_mut().zip(&mut fresh).zip(&effects) {
        accepted.push(accept(key, fresh, effect)?);
    }
    // From here on nothing fails.
    let mut done: SmallList<Option<Applied>> = SmallList::new();
    for accepted in accepted {
        done.push(accepted.map(|(before, units)| before.apply(units)));
    }

    let all_tell = effects.iter().zip(&done).all(|(effect, done)| match (effect, done) {
        (Effect::Counted(counted), Some(done)) => tells(counted, done),
        _ => true,
    });
    let mut changes = SmallList::new();
    for (((key, fresh), effect), done) in keys.handles().iter_mut().zip(fresh).zip(effects).zip(done) {
        changes.extend(update(key, fresh, effect, done));
    }
    let call = keys.close();
    commit::tell(call, changes, |call, changes| match all_tell {
        true => call.replicate_verbatim(),
        false => call.replicate_all(changes.iter().map(|change| (change.name, change.effect.clone()))),
    });
    Ok(())
}

/// What a key is to count or give back, if anything.
fn accept<'s>(
    key: &'s mut Handle,
    fresh: &'s mut Option<Limiter>,
    effect: &'s Effect,
) -> Result<Option<(Before, Accepted<'s>)>, Refusal> {
    let Effect::Counted(counted) = effect else { return Ok(None) };
    let before = Before::of(key, counted);
    Ok(Some((before, key.limiter_or(fresh, counted.algorithm).accept(counted)?)))
}

/// Sets the expiry of what was there before. Returns what happened to the key, if anything; `done` is what was counted.
fn update<'a>(
    key: &mut Handle<'a>,
    fresh: Option<Limiter>,
    effect: Effect,
    done: Option<Applied>,
) -> Option<Change<'a>> {
    let name = key.name();
    let effect = match (effect, done) {
        (_, Some(Applied { emptied: true, .. })) => Effect::Deleted,
        (Effect::Counted(counted), Some(done @ Applied { changed: true, .. })) => {
            Effect::Counted(told(counted, &done))
        }
        (Effect::Counted(_), Some(Applied { moved: Some(at), .. })) => Effect::Moved(at),
        (Effect::Counted(_), _) => return None,
        (effect @ (Effect::Moved(_) | Effect::Deleted), _) => effect,
    };
    let fresh = fresh.filter(|fresh| !fresh.is_empty());
    if key.limiter().is_none() && fresh.is_none() {
        return None;
    }
    let moved = match &effect {
        Effect::Counted(counted) => counted.expires.moved(),
        Effect::Moved(at) => Some(*at),
        Effect::Deleted => None,
    };
    if let (Some(at), None) = (moved, &fresh) {
        key.expire_at(at);
    }
    Some(Change { name, effect, fresh })
}
