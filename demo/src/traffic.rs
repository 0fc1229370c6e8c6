//! Sends the requests to a server, and reads its replies.

use std::time::Duration;

use redis::{Client, Connection, RedisResult};

use crate::state::{COMMANDS, LIMIT, Tour, WINDOW_MS};

/// How long to wait for a reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends the same requests to one key for each limiter.
pub struct Traffic {
    connection: Connection,
    keys: [String; COMMANDS.len()],
}

impl Traffic {
    /// Connects to the server at `url`; its keys begin with `name`.
    pub fn to(url: &str, name: &str) -> RedisResult<Traffic> {
        let connection = Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(Traffic { connection, keys: COMMANDS.map(|command| format!("{name}:{command}")) })
    }

    /// Sends the requests due by `now`, records the replies, and asks for the remaining units.
    ///
    /// Each request names its time with AT, so that all limiters decide on the same traffic.
    pub fn send(&mut self, tour: &mut Tour, now: u64) -> RedisResult<()> {
        let due = tour.advance(now);
        let mut pipeline = redis::pipe();
        let ask = |command: &str, key: &str, at: u64| {
            let mut ask = redis::cmd(command);
            ask.arg(key).arg(LIMIT).arg(format!("{WINDOW_MS}ms")).arg("AT").arg(at);
            ask
        };
        for (command, key) in COMMANDS.iter().zip(&self.keys) {
            for at in &due {
                pipeline.add_command(ask(command, key, *at));
            }
            pipeline.add_command(ask("RL.PEEK", key, tour.now()));
        }
        // Limited, limit, remaining, retry after, reset after.
        let replies: Vec<[i64; 5]> = pipeline.query(&mut self.connection)?;
        for (lane, replies) in tour.lanes.iter_mut().zip(replies.chunks(due.len() + 1)) {
            for (at, [limited, ..]) in due.iter().zip(replies) {
                lane.record(*at, *limited == 0);
            }
            lane.remaining = replies.last().map_or(0, |[_, _, remaining, ..]| remaining.unsigned_abs());
        }
        Ok(())
    }

    /// Deletes the keys.
    pub fn reset(&mut self) -> RedisResult<()> {
        redis::cmd("DEL").arg(&self.keys).query(&mut self.connection)
    }
}
