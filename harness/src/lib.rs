//! Real servers for the tests and the benchmarks. Each listens on a free loopback port, keeps its files
//! in a temporary folder, and is stopped when its [`Server`] is dropped.
//!
//! `REDIS_SERVER` is the program to run; `redis-server` by default.
//!
//! - `process`: a child process that never outlives its parent, and the command line of a server.
//! - `server`: a running server, and helpers for tests. `neighbor.c` is a second module for it.
//! - `clock`: a server clock that the test sets.
//! - `wire`: commands, replies and errors.
//! - `wait`: waits for a condition.
//! - `effects`: the replication stream and the append-only file of a server.

mod clock;
mod effects;
mod process;
mod random;
mod server;
mod wait;
mod wire;

use std::io::{self, Write};
use std::thread;

pub use effects::{ReplicationStream, commands_in_aof, newest_part, without_expiry};
pub use process::{Launch, Process, cli, free_port, server_program};
pub use random::Random;
pub use server::{Server, module};
pub use wait::{PATIENCE, wait_for};
pub use wire::{Figures, clock_ms, command, error_text, figures, info, pipeline};

/// The rate-limiting commands, one for each algorithm.
pub const COMMANDS: [&str; 4] = ["RL.FIXED", "RL.SLIDING", "RL.LOG", "RL.BUCKET"];

/// Settings with which each command is on disk before its reply.
pub const APPEND_ONLY: [(&str, &str); 2] = [("appendonly", "yes"), ("appendfsync", "always")];

/// Says that this server cannot run the current test.
///
/// Past the test runner, which hides what a test that passes prints: a promise must not look tested where it is not.
pub fn not_tested(why: &str) {
    let test = thread::current().name().unwrap_or("a test").to_owned();
    // In one write, since tests run side by side. If nobody can read it, nobody misses it.
    let _ = io::stderr().write_all(format!("not tested: {test}: {why}\n").as_bytes());
}
