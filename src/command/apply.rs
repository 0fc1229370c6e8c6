//! RL.APPLY: does to keys what requests did elsewhere. Replicas and append-only files consist of this command.

use super::commit::{self, Change, What};
use crate::encoding::decode_effect;
use crate::keyspace::{Handle, OpenKey, OpenKeys};
use crate::limiter::{Accepted, Counted, Effect, Limiter, Outcome, Time, UnixMs};
use crate::request::{self, MAX_ROWS, Refusal, SmallList};
use crate::server::{self, Arg, Call, Command};

/// RL.APPLY.
pub struct Apply;

impl Command for Apply {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        match call.args() {
            [_, effect] => match parse(*effect)? {
                Effect::Counted(counted) => count(call, &counted)?,
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
    let time = counted.time(server::now());
    let name = call.key();
    let mut key = OpenKey::to_write(call, name)?;
    if key.limiter().is_none() {
        key = key.open_again()?;
    }
    let mut fresh = None;
    let outcome =
        key.handle_mut().limiter_or(&mut fresh, counted.algorithm).accept(counted)?.apply(time.clock);
    commit::close_and_tell(key, fresh, time, &outcome, |call| call.replicate_verbatim());
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
    let clock = server::now();
    let mut keys = OpenKeys::to_write(call, &names)?;
    let mut fresh: SmallList<Option<Limiter>> = effects.iter().map(|_| None).collect();
    let mut accepted = SmallList::new();
    for ((key, fresh), effect) in keys.handles().iter_mut().zip(&mut fresh).zip(&effects) {
        accepted.push(accept(key, fresh, effect)?);
    }
    // From here on nothing fails.
    let mut outcomes = SmallList::new();
    for accepted in accepted {
        outcomes.push(accepted.map_or_else(deleted, |units| units.apply(clock)));
    }

    let mut changes = SmallList::new();
    for (i, key) in keys.handles().iter_mut().enumerate() {
        changes.extend(update(key, fresh[i].take(), &effects[i], outcomes[i], clock));
    }
    let call = keys.close();
    commit::tell(call, &mut changes, |call, _| call.replicate_verbatim());
    Ok(())
}

/// The outcome of deleting a key.
fn deleted() -> Outcome {
    Outcome { emptied: true, ..Outcome::default() }
}

/// What a key is to count or give back; `None` if it is to be deleted.
fn accept<'s>(
    key: &'s mut Handle,
    fresh: &'s mut Option<Limiter>,
    effect: &'s Effect,
) -> Result<Option<Accepted<'s>>, Refusal> {
    match effect {
        Effect::Counted(counted) => Ok(Some(key.limiter_or(fresh, counted.algorithm).accept(counted)?)),
        Effect::Deleted => Ok(None),
    }
}

/// Updates the time to live of what was there before. Returns what has happened to the key, if anything.
fn update<'a, 'r>(
    key: &mut Handle<'_, 'a>,
    fresh: Option<Limiter>,
    effect: &'r Effect,
    outcome: Outcome,
    clock: UnixMs,
) -> Option<Change<'a, 'r>> {
    let time = match effect {
        Effect::Counted(counted) => counted.time(clock),
        Effect::Deleted => Time { clock, at: None },
    };
    if fresh.is_none() && outcome.changed() && !outcome.emptied {
        commit::move_expiry(key, time, &outcome);
    }
    let has_happened = if outcome.emptied { key.limiter().is_some() } else { outcome.changed() };
    has_happened.then_some(Change { name: key.name(), what: What::Effect(effect), fresh, time, outcome })
}
