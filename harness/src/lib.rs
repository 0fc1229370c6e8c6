//! Real servers for the tests, the benchmarks and the demo. Each listens on a free loopback port, keeps
//! its files in a temporary folder, and ends with the value that stands for it.
//!
//! `REDIS_SERVER` names the program to run; without it, `redis-server`.
//!
//! - `process`: a child process that cannot be left behind, and how a server becomes one.
//! - `server`: a server, and what tests ask of it.
//! - `clock`: a server's clock that the test sets.
//! - `wire`: commands, replies and errors.
//! - `effects`: what a server sends to its replicas and writes to its append-only file.

mod clock;
mod effects;
mod process;
mod random;
mod server;
mod wire;

use std::thread;
use std::time::{Duration, Instant};

pub use effects::{ReplicationStream, commands_in_aof};
pub use process::{Launch, Process, free_port, server_program};
pub use random::Random;
pub use server::{Server, module};
pub use wire::{Figures, clock_ms, command, error_text, figures, info, pipeline};

/// The commands that count, one for each algorithm.
pub const COMMANDS: [&str; 3] = ["RL.FIXED", "RL.SLIDING", "RL.LOG"];

/// Settings that put each command on disk before it is answered.
pub const APPEND_ONLY: [(&str, &str); 2] = [("appendonly", "yes"), ("appendfsync", "always")];

/// How long a condition may take to come true.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds; panics if it never does.
#[track_caller]
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
