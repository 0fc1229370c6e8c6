//! RL.FIXED, RL.SLIDING and RL.LOG: decide, and count or give back.

use super::{commit, reply};
use crate::keyspace::{OpenKey, ToWrite};
use crate::limiter::{Algorithm, Decision, Limiter, QuotaList, Quotas, Time};
use crate::request::{Options, Refusal, Request};
use crate::server::{self, Arg, Call, Command};
use crate::stats;

/// RL.FIXED.
pub struct Fixed;
/// RL.SLIDING.
pub struct Sliding;
/// RL.LOG.
pub struct Log;

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

#[inline(always)]
fn take(call: &mut Call, algorithm: Algorithm) -> Result<(), Refusal> {
    match call.args_after_key() {
        [limit, window] => run(call, algorithm, &Request::of_one_tier(limit.bytes(), window.bytes())?),
        args => take_with_options(call, algorithm, args),
    }
}

#[inline(never)]
fn take_with_options(call: &mut Call, algorithm: Algorithm, args: &[Arg]) -> Result<(), Refusal> {
    // By reference: eight tiers are not moved.
    let request = Request::parse(args, Options::CostAndForce);
    run(call, algorithm, request.as_ref().map_err(|refusal| *refusal)?)
}

#[inline(always)]
fn run<Q: Quotas>(call: &mut Call, algorithm: Algorithm, request: &Request<Q>) -> Result<(), Refusal> {
    let time = Time { clock: server::now(), at: request.at };
    let name = call.key();
    let mut key = OpenKey::to_write(call, name)?;
    let Some(limiter) = key.limiter_mut() else {
        return run_on_empty(key, algorithm, request.to_list(), time);
    };
    let taken = limiter.take(algorithm, &request.quotas, request.cost, request.force, time)?;
    conclude(key, None, algorithm, request, time, taken)
}

/// Handles a request for a missing key, and creates the key if anything is counted. Compiled once, not
/// for each kind of request.
#[cold]
#[inline(never)]
fn run_on_empty(
    key: OpenKey<ToWrite>,
    algorithm: Algorithm,
    request: Request<QuotaList>,
    time: Time,
) -> Result<(), Refusal> {
    let mut fresh = None;
    let mut key = key.open_again()?;
    let limiter = key.limiter_or(&mut fresh, algorithm);
    let taken = limiter.take(algorithm, &request.quotas, request.cost, request.force, time)?;
    conclude(key, fresh, algorithm, &request, time, taken)
}

#[inline(always)]
fn conclude<Q: Quotas>(
    key: OpenKey<ToWrite>,
    fresh: Option<Limiter>,
    algorithm: Algorithm,
    request: &Request<Q>,
    time: Time,
    Decision { verdict, outcome }: Decision,
) -> Result<(), Refusal> {
    let (call, name) = (key.call(), key.name());
    let tiers = &call.args_after_key()[..2 * request.quotas.as_ref().len()];
    // Effects carry FORCE, so other requests spare the look-up.
    let replayed = request.force && call.is_replayed();
    let decided = commit::DecidedRequest { algorithm, tiers, cost: request.cost, time, outcome, replayed };
    let (call, longest_wait_ms) = commit::close_and_tell(key, fresh, &decided);
    let verdict = verdict.within(longest_wait_ms);
    if !replayed {
        stats::taken(algorithm, request.cost, verdict.limited, outcome.change);
        commit::publish_if_limited(call, name, verdict.limited);
    }
    reply::verdict(call, &verdict);
    Ok(())
}
