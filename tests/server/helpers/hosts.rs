//! Two hosts with one clock: a server, and a map in memory. Both are asked the same, and their replies are equal to the byte.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::TcpStream;

use harness::{Figures, PATIENCE, Server, error_text, figures};
use redis::{Cmd, RedisResult, Value};
use redis_rl_core::memory::Memory;

use super::traffic::NOW;

/// What answers commands: a server, or [`Hosts`].
pub trait Host {
    /// The server.
    fn server(&self) -> &Server;

    /// The reply to a command whose arguments are separated by spaces.
    fn call(&self, line: &str) -> RedisResult<Value>;

    /// Sets the clock.
    fn set_clock(&self, unix_ms: i64);

    /// Moves the clock forward, or back if `ms` is negative.
    fn step_clock(&self, ms: i64) {
        self.set_clock(self.clock_ms() + ms);
    }

    /// The clock, in Unix milliseconds.
    fn clock_ms(&self) -> i64 {
        self.server().clock_ms()
    }

    /// The digest of the server's data.
    fn digest(&self) -> String {
        self.server().digest()
    }

    /// The reply to a command that must succeed.
    #[track_caller]
    fn value(&self, line: &str) -> Value {
        self.call(line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// The five integers in a command's reply.
    #[track_caller]
    fn figures(&self, line: &str) -> Figures {
        figures(&self.value(line))
    }

    /// The seven integers in the reply to PARTIAL or WITHIN.
    #[track_caller]
    fn seven(&self, line: &str) -> [i64; 7] {
        let integers = redis::from_redis_value::<Vec<i64>>(self.value(line)).expect("integers");
        integers.try_into().expect("seven integers")
    }

    /// A command's integer reply.
    #[track_caller]
    fn integer(&self, line: &str) -> i64 {
        redis::from_redis_value(self.value(line)).expect("an integer")
    }

    /// A command's error reply, with its code.
    #[track_caller]
    fn error(&self, line: &str) -> String {
        error_text(&self.call(line).expect_err(line))
    }
}

impl Host for Server {
    fn server(&self) -> &Server {
        self
    }

    fn call(&self, line: &str) -> RedisResult<Value> {
        Server::call(self, line)
    }

    fn set_clock(&self, unix_ms: i64) {
        Server::set_clock(self, unix_ms);
    }
}

/// The two hosts. Commands that only servers have change only the server: tests that need those need a [`Server`].
pub struct Hosts {
    /// The server, for what a map in memory does not have.
    pub server: Server,
    connection: RefCell<TcpStream>,
    memory: RefCell<Memory>,
    clock_ms: Cell<i64>,
}

impl Hosts {
    /// Both, empty, with a clock that only the test moves.
    #[track_caller]
    pub fn start() -> Hosts {
        Hosts::with_clock_at(NOW)
    }

    /// The same, with the clock set to this Unix time in milliseconds.
    #[track_caller]
    pub fn with_clock_at(unix_ms: i64) -> Hosts {
        let server = Server::with_clock_at(unix_ms, &[]);
        let connection = TcpStream::connect(("127.0.0.1", server.port())).expect("a server");
        connection.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let (connection, memory) = (RefCell::new(connection), RefCell::new(Memory::new(1_000_000)));
        Hosts { server, connection, memory, clock_ms: Cell::new(unix_ms) }
    }

    /// The bytes of the reply.
    #[track_caller]
    pub fn bytes(&self, words: &[&[u8]]) -> Vec<u8> {
        let mut command = Cmd::new();
        command.arg(words);
        let mut connection = self.connection.borrow_mut();
        connection.write_all(&command.get_packed_command()).expect("a server");
        let (mut by_server, mut read) = (Vec::new(), [0; 1 << 14]);
        while end(&by_server).is_none() {
            let len = connection.read(&mut read).expect("a reply");
            assert_ne!(len, 0, "the server has ended: {}", self.server.log());
            by_server.extend(&read[..len]);
        }
        let mut memory = self.memory.borrow_mut();
        let in_memory = memory.call(self.clock_ms.get() as u64, words);
        // Redis 8 leaves out that there are no arguments.
        let is_unknown = |reply: &[u8]| reply.starts_with(b"-ERR unknown command ");
        if !is_unknown(in_memory) || (is_unknown(&by_server) && words.len() > 1) {
            let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
            let line = words.iter().map(|word| shown(word)).collect::<Vec<_>>().join(" ");
            assert_eq!(shown(in_memory), shown(&by_server), "in memory, by the server: {line}");
        }
        by_server
    }
}

/// What follows the first reply in these bytes, if that is whole.
fn end(bytes: &[u8]) -> Option<&[u8]> {
    let line = bytes.windows(2).position(|two| two == b"\r\n")?;
    let (head, rest) = (&bytes[..line], &bytes[line + 2..]);
    let len = || str::from_utf8(&head[1..]).ok()?.parse::<usize>().ok();
    match head[0] {
        b'$' => len().map_or(Some(rest), |len| rest.get(len + 2..)),
        b'*' => (0..len().unwrap_or(0)).try_fold(rest, |rest, _| end(rest)),
        _ => Some(rest),
    }
}

impl Host for Hosts {
    fn server(&self) -> &Server {
        &self.server
    }

    #[track_caller]
    fn call(&self, line: &str) -> RedisResult<Value> {
        let words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        redis::parse_redis_value(&self.bytes(&words))?.extract_error()
    }

    fn set_clock(&self, unix_ms: i64) {
        self.server.set_clock(unix_ms);
        self.clock_ms.set(unix_ms);
    }
}
