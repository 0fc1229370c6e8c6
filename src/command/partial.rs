//! PARTIAL: takes the units that fit, and replies how many and as of when.

use super::{commit, reply};
use crate::keyspace::OpenKey;
use crate::limiter::{Algorithm, Time};
use crate::request::{Refusal, Request};
use crate::server::{self, Call};
use crate::stats;

/// RL.FIXED, RL.SLIDING and RL.LOG with PARTIAL.
pub fn take_what_fits(call: &mut Call, algorithm: Algorithm, request: &Request) -> Result<(), Refusal> {
    let time = Time { clock: server::now(), at: request.at };
    let name = call.key();
    let mut key = OpenKey::to_change(call, name)?;
    let mut fresh = None;
    let limiter = key.handle_mut().limiter_or(&mut fresh, algorithm);
    let decision = limiter.take_what_fits(algorithm, &request.quotas, request.cost, time)?;
    let (verdict, outcome) = (decision.verdict, decision.outcome);
    let taken = request.cost.get().signum() * reply::integer(outcome.change.units);
    let at = commit::counted_at(limiter, &request.quotas, request.cost, time, &outcome);
    let asked = (algorithm, request.quotas.as_slice(), request.cost);
    let (call, longest_wait_ms) = commit::close_decided(key, fresh, asked, time, &outcome);
    let verdict = verdict.within(longest_wait_ms);
    stats::taken_in_part(algorithm, request.cost, verdict.limited, outcome.change);
    commit::publish_if_limited(call, name, verdict.limited);
    reply::partial(call, &verdict, taken, at);
    Ok(())
}
