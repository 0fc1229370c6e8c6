//! A large log whose entries all expire at once.

use anyhow::{Result, bail, ensure};
use redis::{Connection, Value};

use crate::server::{clock_ms, command, flush, send_all};

/// A log of distinct entries, evenly spread over a week: a million entries take two bytes each.
pub struct LargeLog {
    entries: u64,
    last_ms: u64,
}

const WINDOW: &str = "7d";
const WINDOW_MS: u64 = 7 * 24 * 60 * 60 * 1000;

impl LargeLog {
    /// Its key.
    pub const KEY: &str = "large";

    /// Fills the log.
    pub fn fill(connection: &mut Connection, entries: u64) -> Result<LargeLog> {
        let (gap_ms, first_ms) = (WINDOW_MS / entries, clock_ms(connection)? - WINDOW_MS);
        let log = LargeLog { entries, last_ms: first_ms + (entries - 1) * gap_ms };
        flush(connection)?;
        send_all(connection, (0..entries).map(|i| log.request(LargeLog::KEY, first_ms + i * gap_ms)))?;
        Ok(log)
    }

    fn request(&self, key: &str, at_ms: u64) -> String {
        format!("RL.LOG {key} {} {WINDOW} AT {at_ms}", self.entries)
    }

    /// Sends a request after all entries have expired.
    pub fn send_last_request(&self, connection: &mut Connection, key: &str) -> Result<()> {
        let line = self.request(key, self.last_ms + WINDOW_MS);
        let [_, limit, remaining, ..]: [u64; 5] = command(&line).query(connection)?;
        ensure!(remaining == limit - 1, "{line}: {remaining} remain");
        Ok(())
    }

    /// The times of that request in ms, for each of several copies, by the slow log.
    pub fn times_of_last_request(&self, connection: &mut Connection, copies: u32) -> Result<Vec<f64>> {
        redis::cmd("CONFIG").arg(&["SET", "slowlog-log-slower-than", "0"]).exec(connection)?;
        let time = |copy| {
            let key = format!("copy:{copy}");
            redis::cmd("COPY").arg(&[LargeLog::KEY, &key]).exec(connection)?;
            self.send_last_request(connection, &key)?;
            // The entry of the last command: id, time, microseconds, arguments and more.
            let last: Vec<Vec<Value>> = redis::cmd("SLOWLOG").arg(&["GET", "1"]).query(connection)?;
            let Some([_, _, Value::Int(micros), ..]) = last.first().map(Vec::as_slice) else {
                bail!("no command in the slow log")
            };
            Ok(*micros as f64 / 1_000.0)
        };
        (0..copies).map(time).collect()
    }
}
