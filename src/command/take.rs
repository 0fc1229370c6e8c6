//! RL.FIXED, RL.SLIDING, RL.LOG and RL.BUCKET: decide, and count or give back.

// Inlined, here and in what a single command calls of `command`, `keyspace`, `server` and `stats`: see DESIGN.md, Decisions.
// RL.PEEK and RL.ALL gain nothing by it.

use super::commit;
use crate::keyspace::{OpenKey, ToWrite};
use crate::server::{self, Arg, Call, Command};
use crate::stats;
use redis_rl_core::limiter::key::{Take, Taken};
use redis_rl_core::limiter::{Algorithm, Applied, Cost, Counted, Key, Limiter, Mode, Outcome, Quota, Time};
use redis_rl_core::reply;
use redis_rl_core::request::{self, Options, Refusal, Request};

/// RL.FIXED.
pub struct Fixed;
/// RL.SLIDING.
pub struct Sliding;
/// RL.LOG.
pub struct Log;
/// RL.BUCKET.
pub struct Bucket;

impl Command for Fixed {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        take(call, Algorithm::Fixed)
    }
}

impl Command for Sliding {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        take(call, Algorithm::Sliding)
    }
}

impl Command for Log {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        take(call, Algorithm::Log)
    }
}

impl Command for Bucket {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        take(call, Algorithm::Bucket)
    }
}

#[inline(always)]
fn take(call: &mut Call, algorithm: Algorithm) -> Result<(), Refusal> {
    match call.args_after_key() {
        // Nearly every request: compiled apart, so that the options it lacks cost nothing.
        [limit, window] => {
            let quotas = [request::parse_quota(limit.bytes(), window.bytes())?];
            let time = Time { clock: server::now(), at: None };
            decide(call, Take { algorithm, quotas: &quotas, cost: Cost::ONE, mode: Mode::AllOrNothing, time })
        }
        args => take_with_options(call, algorithm, args),
    }
}

#[inline(never)]
fn take_with_options(call: &mut Call, algorithm: Algorithm, args: &[Arg]) -> Result<(), Refusal> {
    let Request { quotas, cost, mode, at } = Request::parse(args, Options::CostAndMode)?;
    let time = Time { clock: server::now(), at };
    decide(call, Take { algorithm, quotas: &quotas, cost, mode, time })
}

#[inline(always)]
fn decide(call: &mut Call, take: Take) -> Result<(), Refusal> {
    let name = call.key();
    let mut key = OpenKey::to_write(call, name)?;
    if key.limiter().is_none() {
        let Take { algorithm, quotas, cost, mode, time } = take;
        return take_from_empty(key, algorithm, quotas, cost, mode, time);
    }
    let taken = take.run(key.handle_mut(), &mut None)?;
    carry_out_and_reply(key, None, take, taken)
}

/// Creates the key if anything is counted. The request comes in pieces, so that others keep it in registers.
#[cold]
#[inline(never)]
fn take_from_empty(
    key: OpenKey<ToWrite>,
    algorithm: Algorithm,
    quotas: &[Quota],
    cost: Cost,
    mode: Mode,
    time: Time,
) -> Result<(), Refusal> {
    let mut key = key.open_again()?;
    let (take, mut fresh) = (Take { algorithm, quotas, cost, mode, time }, None);
    let taken = take.run(key.handle_mut(), &mut fresh)?;
    carry_out_and_reply(key, fresh, take, taken)
}

#[inline(always)]
fn carry_out_and_reply(
    key: OpenKey<ToWrite>,
    fresh: Option<Limiter>,
    take: Take,
    taken: Taken,
) -> Result<(), Refusal> {
    let name = key.name();
    let (Take { algorithm, quotas, cost, .. }, Taken { verdict, outcome, applied, partial, .. }) =
        (take, taken);
    if applied.is_told_first() {
        if key.call().has_copies() {
            send(key.call(), name, algorithm, quotas, cost, outcome, applied);
        } else {
            key.call().replicate_verbatim();
        }
    }
    let call = commit::carry_out(key, fresh, applied);
    // What PARTIAL counts is within the limit, so never forced.
    stats::taken(algorithm, verdict.limited, partial.is_none() && outcome.changed());
    stats::units(cost, outcome.change);
    commit::publish_if_limited(call, name, verdict.limited);
    reply::taken(call, &taken);
    Ok(())
}

/// Sends the effect to copies: apart, so that a request without copies stays in registers.
#[cold]
#[inline(never)]
fn send(
    call: &Call,
    name: Arg,
    algorithm: Algorithm,
    quotas: &[Quota],
    cost: Cost,
    outcome: Outcome,
    applied: Applied,
) {
    call.replicate(name, || applied.effect(|| Counted::of(algorithm, quotas, cost, &outcome)));
}
