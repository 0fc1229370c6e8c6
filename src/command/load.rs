//! RL.LOAD: creates a key from the bytes that a snapshot stores. A rewritten append-only file and an atomic
//! slot migration consist of this command.

use crate::keyspace::OpenKey;
use crate::server::{Call, Command};
use redis_rl_core::encoding;
use redis_rl_core::limiter::Key;
use redis_rl_core::request::Refusal;

pub struct Load;

impl Command for Load {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        let [payload] = call.args_after_key() else { return Err(Refusal::Arity) };
        let name = call.key();
        let key = OpenKey::to_write_or_insert(call, name).map_err(|_| Refusal::BUSY_KEY)?;
        if key.limiter().is_some() {
            return Err(Refusal::BUSY_KEY);
        }
        let limiter = encoding::decode(payload.bytes()).map_err(|_| Refusal::PAYLOAD)?;
        key.call().replicate_verbatim();
        let call = key.insert(limiter);
        call.signal_modified(name);
        call.reply_ok();
        Ok(())
    }
}
