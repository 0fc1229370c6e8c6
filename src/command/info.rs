//! RL.INFO: shows what a key counts.

use crate::keyspace::OpenKey;
use crate::server::{self, Call, Command};
use redis_rl_core::limiter::key;
use redis_rl_core::reply;
use redis_rl_core::request::Refusal;

pub struct Info;

impl Command for Info {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        let now = server::now();
        let name = call.key();
        let key = OpenKey::to_read(call, name)?;
        let info = key::info(&*key, now);
        reply::info(key.close(), info);
        Ok(())
    }
}
