//! RL.INFO: shows what a key counts.

use super::reply::integer;
use crate::keyspace::OpenKey;
use crate::limiter::{Parts, key};
use crate::request::Refusal;
use crate::server::{self, Call, Command};

/// RL.INFO.
pub struct Info;

impl Command for Info {
    fn run(call: &mut Call) -> Result<(), Refusal> {
        let now = server::now();
        let name = call.key();
        let key = OpenKey::to_read(call, name)?;
        let info = key::info(&*key, now);
        let call = key.close();
        let Some(key::Info { algorithm, windows, entries }) = info else {
            call.reply_null();
            return Ok(());
        };

        call.reply_map(2 + usize::from(entries.is_some()));
        call.reply_text("algorithm");
        call.reply_text(algorithm.name());
        call.reply_text("windows");
        call.reply_array(windows.len());
        for usage in windows {
            call.reply_map(
                3 + usize::from(usage.limit.is_some()) + if usage.parts.is_some() { 2 } else { 0 },
            );
            call.reply_text("window_ms");
            call.reply_integer(integer(usage.window.get()));
            if let Some(limit) = usage.limit {
                call.reply_text("limit");
                call.reply_integer(integer(limit));
            }
            call.reply_text("used");
            call.reply_integer(integer(usage.used));
            call.reply_text("reset_after_ms");
            call.reply_integer(integer(usage.reset_after_ms));
            if let Some(Parts { current, previous }) = usage.parts {
                call.reply_text("current");
                call.reply_integer(integer(current));
                call.reply_text("previous");
                call.reply_integer(integer(previous));
            }
        }
        if let Some(entries) = entries {
            call.reply_text("entries");
            call.reply_integer(integer(entries));
        }
        Ok(())
    }
}
