//! Rate limiting inside Redis and Valkey: a module with a fixed window, a sliding window counter,
//! an exact sliding log and a token bucket. From top to bottom, each module calling only those below it:
//!
//! - `module`: the table of what is registered with the server.
//! - `command`: the commands: parse, open, decide by `limiter`, carry out, reply.
//! - `keyspace`: the native type, and a safe handle on one key.
//! - `server`: the current call, the clock, replication, registration, the server's log, the allocator.
//! - `stats`: the counters shown in INFO.
//! - [`memory`]: a host in memory, for programs without a server.
//! - [`encoding`]: a limiter as versioned bytes, an effect as a word.
//! - `reply`: the shapes of replies.
//! - [`request`]: parses arguments, and holds every error text.
//! - [`limiter`]: the algorithms, and what a command does to its keys.
//!
//! The last four are pure. Two hosts use them: `memory`, and a server through the modules above that. Without the feature `server`, only
//! `memory` and these four are built, for any target. `tests/layers.rs` checks who calls whom.

#[cfg(feature = "server")]
mod command;
pub mod encoding;
#[cfg(feature = "server")]
mod keyspace;
pub mod limiter;
pub mod memory;
#[cfg(feature = "server")]
mod module;
mod reply;
pub mod request;
#[cfg(feature = "server")]
mod server;
#[cfg(feature = "server")]
mod stats;
