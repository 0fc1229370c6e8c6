//! The limiter in this process, without a server.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use redis::{Arg, Cmd, ConnectionLike, Parser, RedisResult, Value, from_redis_value, parse_redis_value};
use redis_rl_core::memory::Memory;

use crate::commands::Clock;
use crate::locked;

/// The limiter in this process, for tests and single-process services. It runs the module's own code, and takes the place
/// of a connection and of a client. Clones share the keys.
#[derive(Clone)]
pub struct MemoryLimiter {
    memory: Arc<Mutex<Memory>>,
    pub(crate) clock: Clock,
}

impl MemoryLimiter {
    /// A limiter of at most 100,000 keys.
    #[must_use]
    pub fn new() -> MemoryLimiter {
        MemoryLimiter::with_keys(100_000)
    }

    /// A limiter of at most this many keys: another key replaces the one that expires first. With a million keys, the call
    /// that doubles the table takes some 35 ms.
    #[must_use]
    pub fn with_keys(max_keys: usize) -> MemoryLimiter {
        let memory = Arc::new(Mutex::new(Memory::new(max_keys)));
        MemoryLimiter { memory, clock: Clock::from(SystemTime::now) }
    }

    /// Decides by this clock instead of that of this process. Tests use it to move time.
    #[must_use]
    pub fn clock(self, clock: impl Into<Clock>) -> MemoryLimiter {
        MemoryLimiter { clock: clock.into(), ..self }
    }

    /// Forgets all keys, so that tests of one process do not meet each other's counts.
    pub fn clear(&self) {
        let _ = self.reply(&redis::cmd("FLUSHALL"));
    }

    /// The replies to commands, error replies among them.
    fn replies<'a>(&self, commands: impl Iterator<Item = Vec<&'a [u8]>>) -> RedisResult<Vec<Value>> {
        let now = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut memory = locked(&self.memory);
        let reply = |words: Vec<&[u8]>| {
            // The error for an unknown command repeats its name, which may be any bytes.
            parse_redis_value(String::from_utf8_lossy(memory.call(now.as_millis() as u64, &words)).as_bytes())
        };
        commands.map(reply).collect()
    }

    pub(crate) fn reply(&self, command: &Cmd) -> RedisResult<Value> {
        let mut replies = self.replies([words(command)].into_iter())?;
        Ok(replies.remove(0))
    }
}

fn words(command: &Cmd) -> Vec<&[u8]> {
    let word = |word| match word {
        Arg::Simple(word) => Some(word),
        _ => None,
    };
    command.args_iter().filter_map(word).collect()
}

impl Default for MemoryLimiter {
    fn default() -> MemoryLimiter {
        MemoryLimiter::new()
    }
}

impl fmt::Debug for MemoryLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLimiter").field("keys", &locked(&self.memory).len()).finish_non_exhaustive()
    }
}

/// The replies of a pipeline. Those of a transaction are one array; redis-rs then skips `offset` replies.
fn of_pipeline(replies: Vec<Value>, offset: usize) -> Vec<Value> {
    if offset == 0 { replies } else { vec![Value::Array(replies)] }
}

impl ConnectionLike for MemoryLimiter {
    fn req_packed_command(&mut self, cmd: &[u8]) -> RedisResult<Value> {
        Ok(self.req_packed_commands(cmd, 0, 1)?.remove(0))
    }

    fn req_packed_commands(&mut self, cmd: &[u8], offset: usize, _: usize) -> RedisResult<Vec<Value>> {
        let (mut parser, mut rest, mut commands) = (Parser::new(), cmd, Vec::new());
        while let Ok(words) = parser.parse_value(&mut rest) {
            let words: Vec<Vec<u8>> = from_redis_value(words)?;
            commands.extend(Some(words).filter(|words| ![&b"MULTI"[..], b"EXEC"].contains(&&words[0][..])));
        }
        let words = commands.iter().map(|words| words.iter().map(Vec::as_slice).collect());
        self.replies(words).map(|replies| of_pipeline(replies, offset))
    }

    fn req_command(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        self.reply(cmd)
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}

#[cfg(feature = "aio")]
impl redis::aio::ConnectionLike for MemoryLimiter {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> redis::RedisFuture<'a, Value> {
        Box::pin(std::future::ready(self.reply(cmd)))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a redis::Pipeline,
        offset: usize,
        _: usize,
    ) -> redis::RedisFuture<'a, Vec<Value>> {
        let replies = self.replies(cmd.cmd_iter().map(words)).map(|replies| of_pipeline(replies, offset));
        Box::pin(std::future::ready(replies))
    }

    fn get_db(&self) -> i64 {
        0
    }
}
