//! RL.APPLY: does to keys what requests did elsewhere. Replicas and append-only files consist of this command.

use super::commit::{self, Change};
use crate::encoding::decode_effect;
use crate::keyspace::{Handle, OpenKey, OpenKeys};
use crate::limiter::several::{self, KeyRequest};
use crate::limiter::{Counted, Effect, Limiter, Outcome, QuotaList, Tiers, Time, UnixMs};
use crate::request::{self, List, MAX_ROWS, Refusal};
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
    let limiter = key.handle_mut().limiter_or(&mut fresh, counted.algorithm);
    let mut outcome = limiter.apply(counted, time.clock)?;
    outcome.emptied = outcome.changed() && limiter.is_empty();
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
    let mut effects: List<KeyEffect> =
        pairs.clone().map(|pair| parse(pair[1]).map(KeyEffect::new)).collect::<Result<_, _>>()?;
    let (names, _) = request::distinct(pairs.map(|pair| pair[0]));
    if names.len() < effects.len() {
        return Err(Refusal::EFFECT);
    }
    let clock = server::now();
    let mut keys = OpenKeys::to_write(call, &names)?;
    let limiters = keys.handles().iter_mut().zip(&mut effects);
    let decided = several::decide(limiters.filter_map(|(key, effect)| effect.on(key, clock)))?;
    // From here on nothing fails.
    let finished = decided.commit();

    let mut outcomes = finished.keys.iter().map(|key| key.outcome);
    let limiters = keys.handles().iter_mut().zip(effects);
    let mut changes: List<Change> =
        limiters.filter_map(|(key, effect)| effect.finish(key, &mut outcomes, clock)).collect();
    let call = keys.close();
    commit::tell(call, &mut changes, |call, _| call.replicate_verbatim());
    Ok(())
}

/// An effect on one of several keys.
struct KeyEffect {
    /// `None` if the key is deleted.
    counted: Option<Counted>,
    quotas: QuotaList,
    /// The limiter to store if the key is empty.
    fresh: Option<Limiter>,
    looked_up: Tiers,
}

impl KeyEffect {
    fn new(effect: Effect) -> KeyEffect {
        let counted = match effect {
            Effect::Counted(counted) => Some(counted),
            Effect::Deleted => None,
        };
        let quotas = counted.as_ref().map(Counted::quotas).unwrap_or_default();
        KeyEffect { counted, quotas, fresh: None, looked_up: Tiers::default() }
    }

    /// What is to be counted in the key.
    fn on<'s>(&'s mut self, key: &'s mut Handle, clock: UnixMs) -> Option<KeyRequest<'s>> {
        let counted = self.counted.as_ref()?;
        Some(KeyRequest {
            limiter: key.limiter_or(&mut self.fresh, counted.algorithm),
            algorithm: counted.algorithm,
            quotas: &self.quotas,
            cost: counted.units,
            time: counted.time(clock),
            tiers: &mut self.looked_up,
        })
    }

    /// Updates the time to live of what was there before. Returns what has happened to the key, if anything.
    fn finish<'a>(
        self,
        key: &mut Handle<'_, 'a>,
        outcomes: &mut impl Iterator<Item = Outcome>,
        clock: UnixMs,
    ) -> Option<Change<'a>> {
        let KeyEffect { counted, mut fresh, .. } = self;
        let Some(counted) = counted else {
            let outcome = Outcome { emptied: true, ..Outcome::default() };
            let time = Time { clock, at: None };
            return key.limiter().map(|_| Change {
                name: key.name(),
                counted: None,
                fresh: None,
                time,
                outcome,
            });
        };
        let (mut outcome, time) = (outcomes.next()?, counted.time(clock));
        if !outcome.changed() {
            return None;
        }
        outcome.emptied = key.limiter_or(&mut fresh, counted.algorithm).is_empty();
        if fresh.is_none() && !outcome.emptied {
            commit::move_expiry(key, time, &outcome);
        }
        Some(Change { name: key.name(), counted: Some(counted), fresh, time, outcome })
    }
}
