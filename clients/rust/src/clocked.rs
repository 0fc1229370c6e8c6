//! A connection with a clock of its own, for tests of applications.

use std::fmt;
use std::time::SystemTime;

use redis::{Arg, Cmd, ConnectionLike, Parser, RedisResult, Value, from_redis_value};

use crate::clock::Clock;
use crate::request::write_at;

/// A connection whose commands of redis-rl decide as of a clock of the application's own: with it a test moves time on
/// a real server.
///
/// It adds `AT` to each command that names no time, in pipelines too.
///
/// ```no_run
/// # use std::time::{Duration, UNIX_EPOCH};
/// use redis_rl_client::{Clocked, Quota, RlCommands};
///
/// # fn main() -> redis::RedisResult<()> {
/// let connection = redis::Client::open("redis://127.0.0.1/")?.get_connection()?;
/// let mut redis = Clocked::new(connection, || UNIX_EPOCH + Duration::from_secs(1_700_000_000));
/// redis.rl_log("api:42", Quota::per_second(5), 1)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Clocked<C> {
    connection: C,
    clock: Clock,
}

impl<C> Clocked<C> {
    /// Decides as of this clock.
    pub fn new(connection: C, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Clocked<C> {
        Clocked { connection, clock: Clock::new(now) }
    }

    /// The command with the time in it, if it takes one.
    fn timed(&self, command: &Cmd) -> Cmd {
        const TIMED: [&[u8]; 6] =
            [b"RL.FIXED", b"RL.SLIDING", b"RL.LOG", b"RL.BUCKET", b"RL.ALL", b"RL.PEEK"];
        let words: Vec<&[u8]> = command.args_iter().filter_map(simple).collect();
        let takes_time =
            words.first().is_some_and(|name| TIMED.iter().any(|timed| timed.eq_ignore_ascii_case(name)));
        let has_time = words.iter().rev().nth(1).is_some_and(|word| word.eq_ignore_ascii_case(b"AT"));
        let mut command = command.clone();
        if takes_time && !has_time {
            write_at(&mut command, self.clock.at());
        }
        command
    }

    /// Commands as they are sent.
    fn timed_packed(&self, packed: &[u8]) -> RedisResult<Vec<u8>> {
        let (mut parser, mut rest, mut timed) = (Parser::new(), packed, Vec::new());
        loop {
            match parser.parse_value(&mut rest) {
                Ok(words) => {
                    let words: Vec<Vec<u8>> = from_redis_value(words)?;
                    timed.extend(self.timed(Cmd::new().arg(words)).get_packed_command());
                }
                // That was the last one.
                Err(_) if rest.is_empty() && !timed.is_empty() => return Ok(timed),
                Err(error) => return Err(error),
            }
        }
    }
}

fn simple(word: Arg<&[u8]>) -> Option<&[u8]> {
    match word {
        Arg::Simple(word) => Some(word),
        _ => None,
    }
}

impl<C: fmt::Debug> fmt::Debug for Clocked<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clocked").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl<C: ConnectionLike> ConnectionLike for Clocked<C> {
    fn req_packed_command(&mut self, cmd: &[u8]) -> RedisResult<Value> {
        let timed = self.timed_packed(cmd)?;
        self.connection.req_packed_command(&timed)
    }

    fn req_packed_commands(&mut self, cmd: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        let timed = self.timed_packed(cmd)?;
        self.connection.req_packed_commands(&timed, offset, count)
    }

    fn req_command(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let timed = self.timed(cmd);
        self.connection.req_command(&timed)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }

    fn supports_pipelining(&self) -> bool {
        self.connection.supports_pipelining()
    }

    fn check_connection(&mut self) -> bool {
        self.connection.check_connection()
    }

    fn is_open(&self) -> bool {
        self.connection.is_open()
    }
}

#[cfg(feature = "aio")]
impl<C: redis::aio::ConnectionLike + Send> redis::aio::ConnectionLike for Clocked<C> {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> redis::RedisFuture<'a, Value> {
        let timed = self.timed(cmd);
        Box::pin(async move { self.connection.req_packed_command(&timed).await })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> redis::RedisFuture<'a, Vec<Value>> {
        let mut timed = cmd.clone();
        timed.clear();
        for command in cmd.cmd_iter() {
            timed.add_command(self.timed(command));
        }
        Box::pin(async move { self.connection.req_packed_commands(&timed, offset, count).await })
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}
