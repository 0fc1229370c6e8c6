//! RL.FIXED, RL.SLIDING, RL.LOG and RL.BUCKET: decide, and count or give back.

// `inline(always)`, here and in what a single command calls in `command`, `keyspace`, `server` and `stats`, spares the command
// 2 to 4 % of its instructions (`make bench`). RL.PEEK and RL.ALL gain nothing by it.

use super::commit;
use crate::keyspace::OpenKey;
use crate::server::{self, Arg, Call, Command};
use crate::stats;
use redis_rl_core::limiter::key::{Take, Taken};
use redis_rl_core::limiter::{Algorithm, Cost, Counted, Mode, Time};
use redis_rl_core::reply;
use redis_rl_core::request::{self, Refusal, Request, Verb};

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
    match call.args_after_key() {
        // Nearly every request has no options, so it gets a copy of the code that has no branches for them.
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
    let Request { quotas, cost, mode, at } = Request::parse(args, Verb::Take(algorithm))?;
    let time = Time { clock: server::now(), at };
    decide(call, Take { algorithm, quotas: &quotas, cost, mode, time })
}

#[inline(always)]
fn decide(call: &mut Call, take: Take) -> Result<(), Refusal> {
    let name = call.key();
    let (mut key, mut fresh) = (OpenKey::to_change(call, name)?, None);
    let taken = take.run(key.handle_mut(), &mut fresh)?;
    let Taken { verdict, outcome, pending, counted, .. } = taken;
    if pending.is_told_first() {
        // Copies, by `move`: a closure that borrows the request would keep it in memory for the whole command.
        let Take { algorithm, quotas, cost, time, .. } = take;
        key.call().replicate(name, move || {
            let back = outcome.moved_back_to(time.clock);
            pending.effect(back, || Counted::of(algorithm, quotas, cost, &outcome, back))
        });
    }
    let call = commit::carry_out(key, fresh, pending);
    // A limited request that counted units was forced, unless it was PARTIAL, which counts only what fits.
    stats::taken(take.algorithm, verdict.limited, counted.is_none() && outcome.changed());
    stats::units(take.cost, outcome.change);
    commit::publish_if_limited(call, name, verdict.limited);
    reply::taken(call, &taken);
    Ok(())
}
