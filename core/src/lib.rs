#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! From top to bottom, each module calling only those below it:
//!
//! - [`memory`]: keys in the memory of a process, for programs without a server.
//! - [`encoding`]: a limiter as versioned bytes, an effect as a word.
//! - [`reply`]: the shapes of replies.
//! - [`request`]: parses arguments, and holds every text by which a command is refused.
//! - [`limiter`]: the algorithms, and what a command does to its keys.
//!
//! Both `memory` and the server's module are built on the last four. They are public for the module and for tests only, and
//! unstable: docs and editors do not show them.

#[doc(hidden)]
pub mod encoding;
#[doc(hidden)]
pub mod limiter;
pub mod memory;
#[doc(hidden)]
pub mod reply;
#[doc(hidden)]
pub mod request;
