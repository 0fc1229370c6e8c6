//! RL.PEEK: replies whether a request would be allowed, and counts nothing.

use super::{commit, reply};
use crate::keyspace::OpenKey;
use crate::limiter::{Algorithm, Decision, Limiter, Time};
use crate::request::{Options, Refusal, Request};
use crate::server::{self, Call, Command};
use crate::stats;

/// RL.PEEK.
pub struct Peek;

impl Command for Peek {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        let request = match call.args_after_key() {
            [limit, window] => Request::of_one_tier(limit.bytes(), window.bytes()),
            args => Request::parse(args, Options::Cost),
        }?;
        let time = Time { clock: server::now(), at: request.at };
        let name = call.key();
        let key = OpenKey::to_read(call, name)?;
        // A missing key counts nothing, whatever the algorithm.
        let nothing = Limiter::new(Algorithm::Fixed);
        let limiter = key.limiter().unwrap_or(&nothing);
        let Decision { verdict, outcome } = limiter.peek(&request.quotas, request.cost, time)?;
        let verdict = verdict.within(commit::longest_wait_ms(&key, time, &outcome));
        drop(key);
        stats::peeked(&verdict);
        reply::verdict(call, &verdict);
        Ok(())
    }
}
