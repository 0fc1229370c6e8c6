//! RL.PEEK: replies whether a request would be allowed, and counts nothing.

use super::{commit, reply};
use crate::keyspace::OpenKey;
use crate::limiter::{Algorithm, Decision, Limiter, Quotas, Time};
use crate::request::{Options, Refusal, Request};
use crate::server::{self, Arg, Call, Command, Keys};
use crate::stats;

/// RL.PEEK.
pub struct Peek;

impl Command for Peek {
    fn run<'a>(call: &'a Call<'a>, keys: Keys<'a>) -> Result<(), Refusal> {
        match call.args_after_key() {
            [limit, window] => run(call, keys, &Request::of_one_tier(limit.bytes(), window.bytes())?),
            args => peek_with_options(call, keys, args),
        }
    }
}

#[inline(never)]
fn peek_with_options<'a>(call: &'a Call<'a>, keys: Keys<'a>, args: &[Arg]) -> Result<(), Refusal> {
    // By reference, as in RL.FIXED and the others.
    let request = Request::parse(args, Options::Cost);
    run(call, keys, request.as_ref().map_err(|refusal| *refusal)?)
}

#[inline(always)]
fn run<'a, Q: Quotas>(call: &'a Call<'a>, keys: Keys<'a>, request: &Request<Q>) -> Result<(), Refusal> {
    let time = Time { clock: server::now(), at: request.at };
    let key = OpenKey::to_read(keys.first())?;
    // A missing key counts nothing, whatever the algorithm.
    let nothing = Limiter::new(Algorithm::Fixed);
    let limiter = key.limiter().unwrap_or(&nothing);
    let Decision { verdict, outcome } = limiter.peek(&request.quotas, request.cost, time)?;
    let verdict = verdict.within(commit::longest_wait_ms(&key, time, &outcome));
    stats::peeked(&verdict);
    reply::verdict(call, &verdict);
    Ok(())
}
