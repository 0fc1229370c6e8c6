//! RL.FIXED, RL.SLIDING, RL.LOG and RL.BUCKET: decide, and count or give back.

// `inline(always)`, here and in what a single command calls in `command`, `keyspace`, `server` and `stats`, spares the command
// 2 to 4 % of its instructions (`make bench`). RL.PEEK and RL.ALL gain nothing by it.

use super::commit;
use crate::keyspace::OpenKey;
use crate::server::{self, Call, Command};
use crate::stats;
use redis_rl_core::limiter::key::Answer;
use redis_rl_core::limiter::{Algorithm, Cost, Mode, Recorded, Request, Time};
use redis_rl_core::reply;
use redis_rl_core::request::{self, Arguments, Refusal, Verb};

/// Makes a command of each algorithm.
macro_rules! commands {
    ($($name:ident),*) => { $(
        pub struct $name;

        impl Command for $name {
            fn run(call: &mut Call) -> Result<(), Refusal> {
                take(call, Algorithm::$name)
            }
        }
    )* };
}

commands!(Fixed, Sliding, Log, Bucket);

#[inline(always)]
fn take(call: &mut Call, algorithm: Algorithm) -> Result<(), Refusal> {
    // Nearly every request has no options, so it gets a copy of the code that has no branches for them.
    let plain = match call.args_after_key() {
        [limit, window] => request::parse_plain_quota(limit.bytes(), window.bytes()),
        _ => None,
    };
    let Some(quota) = plain else { return take_with_options(call, algorithm) };
    let time = Time { clock: server::now(), at: None };
    let mode = Mode::AllOrNothing;
    decide(call, Request { algorithm, quotas: &[quota], cost: Cost::ONE, mode, time })
}

#[inline(never)]
fn take_with_options(call: &mut Call, algorithm: Algorithm) -> Result<(), Refusal> {
    let Arguments { quotas, cost, mode, at } =
        Arguments::parse(call.args_after_key(), Verb::Take(algorithm))?;
    let time = Time { clock: server::now(), at };
    decide(call, Request { algorithm, quotas: &quotas, cost, mode, time })
}

#[inline(always)]
fn decide(call: &mut Call, request: Request) -> Result<(), Refusal> {
    let name = call.key();
    let (mut key, mut fresh) = (OpenKey::to_write_or_insert(call, name)?, None);
    let answer = request.run(key.handle_mut(), &mut fresh)?;
    let Answer { verdict, outcome, pending, granted, .. } = answer;
    if pending.is_told_first() {
        // The closure takes the fields by value: if it borrowed the request, that would stay in memory for the whole command.
        let Request { algorithm, quotas, cost, .. } = request;
        key.call()
            .replicate(name, move || pending.effect(|| Recorded::of(algorithm, quotas, cost, &outcome)));
    }
    let call = commit::carry_out(key, fresh, pending);
    // A limited request that counted units was forced, unless it was PARTIAL, which counts only what fits.
    stats::answered(request.algorithm, verdict.limited, granted.is_none() && outcome.changed());
    stats::units(request.cost, outcome.change);
    commit::publish_if_limited(call, name, verdict.limited);
    reply::answer(call, &answer);
    Ok(())
}
