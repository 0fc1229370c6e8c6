//! RL.APPLY: does to keys what requests did elsewhere. Replicas and append-only files consist of this command.

use super::commit;
use crate::encoding::decode_effect;
use crate::keyspace::{Handle, OpenKey, OpenKeys};
use crate::limiter::{Accepted, Applied, Before, Effect, Expires, Limiter, UnixMs};
use crate::request::{self, MAX_ROWS, Refusal, SmallList};
use crate::server::{self, Arg, Call, Command};

/// RL.APPLY.
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
    let mut key = OpenKey::to_change(call, name)?;
    let mut fresh = None;
    let done = Step::of(effect, key.handle_mut(), &mut fresh)?.apply();
    let replicate = |call: &Call| match says_all(effect, &done) {
        true => call.replicate_verbatim(),
        false => call.replicate(name, || told(effect, &done)),
    };
    commit::close_and_tell(key, fresh, done, replicate, |_| u64::MAX);
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
    let mut keys = OpenKeys::to_write(call, &names)?;
    let mut fresh: SmallList<Option<Limiter>> = effects.iter().map(|_| None).collect();
    let mut steps: SmallList<Step> = SmallList::new();
    for ((key, fresh), effect) in keys.handles().iter_mut().zip(&mut fresh).zip(&effects) {
        steps.push(Step::of(effect, key, fresh)?);
    }
    // From here on nothing fails.
    let done: SmallList<Applied> = steps.into_iter().map(Step::apply).collect();

    let mut changes = SmallList::new();
    for (index, (key, fresh)) in keys.handles().iter_mut().zip(fresh).enumerate() {
        changes.extend(commit::change(key, index, done[index], fresh));
    }
    let call = keys.close();
    let says_all = effects.iter().zip(&done).all(|(effect, done)| says_all(effect, done));
    commit::tell(call, changes, says_all, |change| told(&effects[change.index], &change.done));
    Ok(())
}

/// An effect on one of several keys, which cannot fail any more.
enum Step<'s> {
    Count(Before, Accepted<'s>),
    Done(Applied),
}

impl<'s> Step<'s> {
    fn of(effect: &'s Effect, key: &'s mut Handle, fresh: &'s mut Option<Limiter>) -> Result<Self, Refusal> {
        Ok(match effect {
            Effect::Counted(counted) => {
                let before = before(key, counted.expires);
                Step::Count(before, key.limiter_or(fresh, counted.algorithm).accept(counted)?)
            }
            Effect::Moved(at) => Step::Done(moved(key, *at)),
            Effect::Deleted => Step::Done(deleted(key)),
        })
    }

    fn apply(self) -> Applied {
        match self {
            Step::Count(before, accepted) => accepted.apply(before, server::now),
            Step::Done(done) => done,
        }
    }
}

/// What an effect that counts units has to know of the key.
fn before(key: &Handle, expires: Expires) -> Before {
    // One that holds nothing counts as missing, but a time to live that it has is the master's.
    let is_new = key.limiter().is_none_or(|limiter| limiter.is_empty() && key.expires_at().is_none());
    Before { is_new, expires_at: if expires == Expires::Untold { key.expires_at() } else { None } }
}

fn moved(key: &Handle, at: UnixMs) -> Applied {
    Applied { moved: key.limiter().map(|_| at), ..Applied::default() }
}

fn deleted(key: &Handle) -> Applied {
    let emptied = key.limiter().is_some();
    Applied { changed: emptied, emptied, moved: None }
}

/// Whether copies can get the effect as it came. If it does not tell when the key expires, they would work that out by
/// their own clocks.
fn says_all(effect: &Effect, done: &Applied) -> bool {
    match effect {
        Effect::Counted(counted) => counted.expires == done.moved.into(),
        Effect::Moved(_) | Effect::Deleted => true,
    }
}

/// The effect as copies get it, with the time at which the key expires.
fn told(effect: &Effect, done: &Applied) -> Effect {
    match effect {
        Effect::Counted(counted) => done.effect(|| counted.clone()),
        Effect::Moved(_) | Effect::Deleted => effect.clone(),
    }
}
