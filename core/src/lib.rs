//! The core of redis-rl: it decides about requests, and knows no server. It builds for any target, WebAssembly too. From top
//! to bottom, each module calling only those below it:
//!
//! - [`memory`]: a host in memory, for programs without a server.
//! - [`encoding`]: a limiter as versioned bytes, an effect as a word.
//! - [`reply`]: the shapes of replies.
//! - [`request`]: parses arguments, and holds every error text.
//! - [`limiter`]: the algorithms, and what a command does to its keys.
//!
//! Two hosts use the last four: `memory`, and the module for a server.

pub mod encoding;
pub mod limiter;
pub mod memory;
pub mod reply;
pub mod request;
