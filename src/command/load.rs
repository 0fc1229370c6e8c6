//! RL.LOAD: creates a key from the bytes that a snapshot stores. A rewritten append-only file and an atomic
//! slot migration consist of this command.

use crate::encoding;
use crate::keyspace::OpenKey;
use crate::request::Refusal;
use crate::server::{Call, Command, Keys};

/// RL.LOAD.
pub struct Load;

impl Command for Load {
    fn run<'a>(call: &'a Call<'a>, keys: Keys<'a>) -> Result<(), Refusal> {
        let [payload] = call.args_after_key() else { return Err(Refusal::Arity) };
        let mut key = OpenKey::to_write(keys.first()).map_err(|_| Refusal::BUSY_KEY)?;
        if key.limiter().is_some() {
            return Err(Refusal::BUSY_KEY);
        }
        let limiter = encoding::decode(payload.bytes()).map_err(|_| Refusal::PAYLOAD)?;
        key.insert(limiter)?;
        let name = key.name();
        drop(key);
        call.signal_modified(name);
        call.replicate_verbatim();
        call.reply_ok();
        Ok(())
    }
}
