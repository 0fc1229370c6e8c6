//! The core of redis-rl: it decides about requests, and knows no server. It builds for any target, WebAssembly too. From top
//! to bottom, each module calling only those below it:
//!
//! - [`memory`]: keys in the memory of a process, for programs without a server.
//! - [`encoding`]: a limiter as versioned bytes, an effect as a word.
//! - [`reply`]: the shapes of replies.
//! - [`request`]: parses arguments, and holds every error text.
//! - [`limiter`]: the algorithms, and what a command does to its keys.
//!
//! Both `memory` and the server's module are built on the last four.

pub mod encoding;
pub mod limiter;
pub mod memory;
pub mod reply;
pub mod request;
