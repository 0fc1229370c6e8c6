//! Rate limiting inside Redis and Valkey: a module with a fixed window, a sliding window counter,
//! an exact sliding log and a token bucket. From top to bottom, each module calling only those below it:
//!
//! - `module`: the table of what is registered with the server.
//! - `command`: the commands: parse, open, decide by the core, carry out, reply.
//! - `keyspace`: the native type, and a safe handle on one key.
//! - `server`: the current call, the clock, replication, registration, the server's log, the allocator.
//! - `stats`: the counters shown in INFO.
//!
//! All that is decided is decided in the crate `redis-rl-core`, in the folder `core`: its `src/lib.rs` goes on with this map.
//! `tests/layers.rs` checks who calls whom.

mod command;
mod keyspace;
mod module;
mod server;
mod stats;
