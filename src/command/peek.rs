//! RL.PEEK: replies whether a request would be allowed, and counts nothing.

use crate::keyspace::OpenKey;
use crate::server::{self, Call, Command};
use crate::stats;
use redis_rl_core::limiter::{Time, key};
use redis_rl_core::reply;
use redis_rl_core::request::{Arguments, Refusal, Verb};

pub struct Peek;

impl Command for Peek {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        let arguments = Arguments::parse(call.args_after_key(), Verb::Peek)?;
        let time = Time { clock: server::now(), at: arguments.at };
        let name = call.key();
        let key = OpenKey::to_read(call, name)?;
        let verdict = key::peek(&*key, &arguments.quotas, arguments.cost, time)?;
        drop(key);
        stats::peeked(&verdict);
        reply::verdict(call, &verdict);
        Ok(())
    }
}
