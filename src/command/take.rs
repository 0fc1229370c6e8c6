//! RL.FIXED, RL.SLIDING and RL.LOG: decide, and count or give back.

use super::{commit, reply};
use crate::keyspace::{OpenKey, ToWrite};
use crate::limiter::{Algorithm, Decision, Limiter, QuotaList, Quotas, Time};
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
    // By reference: eight tiers are not moved.
    let request = Request::parse(args, Options::CostAndForce);
    run(call, keys, algorithm, request.as_ref().map_err(|refusal| *refusal)?)
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
    let Some(limiter) = key.limiter_mut() else {
        return run_on_empty(call, key, algorithm, request.to_list(), time);
    };
    let taken = limiter.take(algorithm, &request.quotas, request.cost, request.force, time)?;
    conclude(call, key, None, algorithm, request, time, taken)
}

/// Handles a request for a missing key, and creates the key if anything is counted. Compiled once, not
/// for each kind of request.
#[cold]
#[inline(never)]
fn run_on_empty<'a>(
    call: &'a Call<'a>,
    key: OpenKey<'a, ToWrite>,
    algorithm: Algorithm,
    request: Request<QuotaList>,
    time: Time,
) -> Result<(), Refusal> {
    let mut fresh = Limiter::new(algorithm);
    let taken = fresh.take(algorithm, &request.quotas, request.cost, request.force, time)?;
    conclude(call, key, Some(fresh), algorithm, &request, time, taken)
}

#[inline(always)]
fn conclude<'a, Q: Quotas>(
    call: &'a Call<'a>,
    key: OpenKey<'a, ToWrite>,
    fresh: Option<Limiter>,
    algorithm: Algorithm,
    request: &Request<Q>,
    time: Time,
    Decision { verdict, outcome }: Decision,
) -> Result<(), Refusal> {
    let tiers = &call.args_after_key()[..2 * request.quotas.as_ref().len()];
    let decided = commit::DecidedRequest { algorithm, tiers, cost: request.cost, time, outcome };
    // Effects carry FORCE, so other requests spare the look-up.
    let replayed = request.force && call.is_replayed();
    let name = key.name();
    let verdict = verdict.within(commit::conclude(call, key, fresh, &decided, replayed)?);
    if !replayed {
        stats::taken(algorithm, request.cost, verdict.limited, outcome.change);
        commit::publish_if_limited(call, name, verdict.limited);
    }
    reply::verdict(call, &verdict);
    Ok(())
}
