//! RL.FIXED, RL.SLIDING and RL.LOG: decide, and count or give back.

// Inlined, here and in what a single command calls of `command`, `keyspace`, `server` and `stats`: all together that saves an
// RL.FIXED 300 of its 6,800 instructions. RL.PEEK and RL.ALL gain nothing by it.

use super::{commit, partial, reply};
use crate::keyspace::{OpenKey, ToWrite};
use crate::limiter::{Algorithm, Decision, Limiter, TakeError, Time};
use crate::request::{Mode, Options, Refusal, Request};
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
        // Nearly every request: compiled apart, so that the options it lacks cost nothing.
        [limit, window] => decide(call, algorithm, &Request::of_one_tier(limit.bytes(), window.bytes())?),
        args => take_with_options(call, algorithm, args),
    }
}

#[inline(never)]
fn take_with_options(call: &mut Call, algorithm: Algorithm, args: &[Arg]) -> Result<(), Refusal> {
    let request = Request::parse(args, Options::CostAndMode)?;
    match request.mode {
        Mode::AllOrNothing | Mode::Force => decide(call, algorithm, &request),
        Mode::Partial => partial::take_what_fits(call, algorithm, &request),
    }
}

#[inline(always)]
fn decide(call: &mut Call, algorithm: Algorithm, request: &Request) -> Result<(), Refusal> {
    let time = Time { clock: server::now(), at: request.at };
    let name = call.key();
    let mut key = OpenKey::to_write(call, name)?;
    let Some(limiter) = key.handle_mut().limiter_mut() else {
        // A copy, so that other requests stay in registers.
        return take_from_empty(key, algorithm, request.clone(), time);
    };
    let decision = count(limiter, algorithm, request, time)?;
    close_and_reply(key, None, algorithm, request, time, decision)
}

/// Creates the key if anything is counted.
#[cold]
#[inline(never)]
fn take_from_empty(
    key: OpenKey<ToWrite>,
    algorithm: Algorithm,
    request: Request,
    time: Time,
) -> Result<(), Refusal> {
    let mut fresh = None;
    let mut key = key.open_again()?;
    let limiter = key.handle_mut().limiter_or(&mut fresh, algorithm);
    let decision = count(limiter, algorithm, &request, time)?;
    close_and_reply(key, fresh, algorithm, &request, time, decision)
}

#[inline(always)]
fn count(
    limiter: &mut Limiter,
    algorithm: Algorithm,
    request: &Request,
    time: Time,
) -> Result<Decision, TakeError> {
    let force = request.mode == Mode::Force;
    limiter.decide_and_commit(algorithm, &request.quotas, request.cost, force, time)
}

#[inline(always)]
fn close_and_reply(
    key: OpenKey<ToWrite>,
    fresh: Option<Limiter>,
    algorithm: Algorithm,
    request: &Request,
    time: Time,
    Decision { verdict, outcome }: Decision,
) -> Result<(), Refusal> {
    let name = key.name();
    // Version 1.0.0 sent its effects as requests with FORCE, so others spare the look-up.
    let replayed = request.mode == Mode::Force && key.call().is_replayed();
    let asked = (algorithm, request.quotas.as_slice(), request.cost);
    let (call, longest_wait_ms) = commit::close_decided(key, fresh, asked, time, &outcome);
    let verdict = verdict.within(longest_wait_ms);
    if !replayed {
        stats::taken(algorithm, request.cost, verdict.limited, outcome.change);
        commit::publish_if_limited(call, name, verdict.limited);
    }
    reply::verdict(call, &verdict);
    Ok(())
}
