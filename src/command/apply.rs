//! RL.APPLY: does to keys what requests did elsewhere. Replicas and append-only files consist of this command.

use super::commit;
use crate::keyspace::{OpenKey, OpenKeys};
use crate::server::{Arg, Call, Command};
use redis_rl_core::encoding::decode_effect;
use redis_rl_core::limiter::several::{self, MAX_ROWS, Parts};
use redis_rl_core::limiter::{Effect, Pending, key};
use redis_rl_core::request::Refusal;

pub struct Apply;

impl Command for Apply {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        match call.args() {
            [_, effect] => apply_one(call, &parse(*effect)?)?,
            pairs => apply_all(call, pairs)?,
        }
        call.reply_ok();
        Ok(())
    }
}

fn parse(effect: Arg) -> Result<Effect, Refusal> {
    decode_effect(effect.bytes()).ok_or(Refusal::EFFECT)
}

fn apply_one(call: &mut Call, effect: &Effect) -> Result<(), Refusal> {
    let name = call.key();
    let mut key = OpenKey::to_write_or_insert(call, name)?;
    let mut fresh = None;
    let pending = key::apply(effect, key.handle_mut(), &mut fresh)?;
    if pending.is_told_first() {
        match is_complete(effect, &pending) {
            true => key.call().replicate_verbatim(),
            false => key.call().replicate(name, || told(effect, &pending)),
        }
    }
    commit::carry_out(key, fresh, pending);
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
    let mut parts = Parts::default();
    for (index, pair) in pairs.enumerate() {
        if parts.add(pair[0], parse(pair[1])?) < index {
            return Err(Refusal::EFFECT);
        }
    }
    let mut keys = OpenKeys::to_write(call, &mut parts)?;
    several::apply(keys.parts())?;
    keys.move_expiries_and_close();
    let are_complete = parts.iter().all(|part| is_complete(&part.task, &part.pending));
    commit::carry_out_all(call, &mut parts, are_complete, |part| told(&part.task, &part.pending));
    Ok(())
}

/// Whether copies can get the effect as it came. If it creates a key and does not tell when that expires, they would compute an
/// expiry of their own.
fn is_complete(effect: &Effect, pending: &Pending) -> bool {
    match effect {
        Effect::Recorded(recorded) => recorded.moved.expires == pending.moved.expires,
        Effect::Moved(_) | Effect::Deleted => true,
    }
}

/// The effect with the time at which the key expires, as copies get it.
fn told(effect: &Effect, pending: &Pending) -> Effect {
    match effect {
        Effect::Recorded(recorded) => pending.effect(|| recorded.clone()),
        Effect::Moved(_) | Effect::Deleted => effect.clone(),
    }
}
