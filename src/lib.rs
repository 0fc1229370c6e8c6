//! Rate limiting inside Redis and Valkey: a module with a fixed window, a sliding window counter
//! and an exact sliding log. From the top; each module calls only those below it:
//!
//! - `module`: the table of what is registered with the server.
//! - `command`: RL.FIXED, RL.SLIDING, RL.LOG, RL.PEEK, RL.INFO and RL.LOAD, each as its verbs.
//! - `keyspace`: the native type, and a safe handle on one key.
//! - `server`: the call under way, the clock, the replication stream, the log, the allocator.
//! - `stats`: what INFO tells of the requests so far.
//! - [`request`]: arguments to a request, or to the refusal that a user reads.
//! - [`encoding`]: a limiter as bytes.
//! - [`limiter`]: the arithmetic. Pure, like the two above it.

mod command;
pub mod encoding;
mod keyspace;
pub mod limiter;
mod module;
pub mod request;
mod server;
mod stats;
