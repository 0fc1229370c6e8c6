//! Rate limiting inside Redis and Valkey: a module with a fixed window, a sliding window counter
//! and an exact sliding log. The rooms, from the top; each calls only those below it:
//!
//! - `module`: the table of what is registered with the server.
//! - `command`: RL.FIXED, RL.SLIDING, RL.LOG, RL.PEEK and RL.INFO, each as its verbs.
//! - `keyspace`: the native type, and a safe slot over one key.
//! - `server`: the call under way, the clock, the replication stream, the log, the allocator.
//! - `stats`: what INFO tells of the requests so far.
//! - [`request`]: arguments to a request, or to the refusal that a user reads.
//! - [`encoding`]: a limiter as bytes.
//! - [`limiter`]: the arithmetic. Pure, as the two above it.

mod command;
pub mod encoding;
mod keyspace;
pub mod limiter;
mod module;
pub mod request;
mod server;
mod stats;
