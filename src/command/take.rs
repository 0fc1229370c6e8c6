//! RL.FIXED, RL.SLIDING and RL.LOG: decides, and counts or gives back.

use super::{commit, reply};
use crate::keyspace::OpenKey;
use crate::limiter::{Algorithm, Quotas, Time};
use crate::request::{Options, Refusal, Request};
use crate::server::{self, Arg, Call, Command, Keys};
use crate::stats;

/// RL.FIXED.
pub struct Fixed;
/// RL.SLIDING.
pub struct Sliding;
/// RL.LOG.
pub struct Log;

impl Command for Fixed {
    fn run<'a>(call: &'a Call<'a>, keys: Keys<'a>) -> Result<(), Refusal> {
        take(call, keys, Algorithm::Fixed)
    }
}

impl Command for Sliding {
    fn run<'a>(call: &'a Call<'a>, keys: Keys<'a>) -> Result<(), Refusal> {
        take(call, keys, Algorithm::Sliding)
    }
}

impl Command for Log {
    fn run<'a>(call: &'a Call<'a>, keys: Keys<'a>) -> Result<(), Refusal> {
        take(call, keys, Algorithm::Log)
    }
}

#[inline(always)]
fn take<'a>(call: &'a Call<'a>, keys: Keys<'a>, algorithm: Algorithm) -> Result<(), Refusal> {
    match call.args_after_key() {
        [limit, window] => run(call, keys, algorithm, &Request::of_one_tier(limit.bytes(), window.bytes())?),
        args => take_with_options(call, keys, algorithm, args),
    }
}

#[inline(never)]
fn take_with_options<'a>(
    call: &'a Call<'a>,
    keys: Keys<'a>,
    algorithm: Algorithm,
    args: &[Arg],
) -> Result<(), Refusal> {
    run(call, keys, algorithm, &Request::parse(args.iter().map(|arg| arg.bytes()), Options::CostAndForce)?)
}

#[inline(always)]
fn run<'a, Q: Quotas>(
    call: &'a Call<'a>,
    keys: Keys<'a>,
    algorithm: Algorithm,
    request: &Request<Q>,
) -> Result<(), Refusal> {
    let time = Time { clock: server::now(), at: request.at };
    let mut key = OpenKey::to_write(keys.first())?;
    let mut fresh = None;
    let limiter = key.limiter_or(&mut fresh, algorithm);
    let outcome = limiter.take(algorithm, &request.quotas, request.cost, request.force, time)?;

    let tiers = &call.args_after_key()[..2 * request.quotas.as_ref().len()];
    let done = commit::Done { algorithm, tiers, cost: request.cost, time, outcome };
    // What is replayed comes with FORCE.
    let replayed = request.force && call.is_replayed();
    let name = key.name();
    let longest_wait_ms = commit::conclude(call, key, fresh, &done, replayed)?;
    let verdict = outcome.verdict.within(longest_wait_ms);
    if !replayed {
        stats::taken(algorithm, request.cost, verdict.limited, outcome.change);
        commit::publish_if_limited(call, name, verdict.limited);
    }
    reply::verdict(call, &verdict);
    Ok(())
}
