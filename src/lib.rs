//! Rate limiting inside Redis and Valkey: a module with a fixed window, a sliding window counter
//! and an exact sliding log. From top to bottom, each module calling only those below it:
//!
//! - `module`: the table of what is registered with the server.
//! - `command`: the commands: parse, open, decide, commit, reply.
//! - `keyspace`: the native type, and a safe handle on one key.
//! - `server`: the current call, the clock, replication, registration, the server's log, the allocator.
//! - `stats`: the counters shown in INFO.
//! - [`request`]: parses arguments, and holds every error text.
//! - [`encoding`]: a limiter as versioned bytes, an effect as a word.
//! - [`limiter`]: the algorithms. Pure, as are the two modules above it.

mod command;
pub mod encoding;
mod keyspace;
pub mod limiter;
mod module;
pub mod request;
mod server;
mod stats;
