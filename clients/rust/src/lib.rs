//! Rate limits by redis-rl, a module for Redis and Valkey, on [`redis`] connections. Each decision is one atomic step of the
//! server.
//!
//! - [`RlCommands`] and [`RlAsyncCommands`] add the commands to every connection, cluster connections too.
//! - [`Quotas`] reads them from text such as `5/10s, 100/h`.
//! - [`cmd`] builds the commands, for pipelines and scripts.
//! - [`Verdict`], [`Verdicts`] and [`Info`] are the replies.
#![cfg_attr(feature = "memory", doc = "- [`MemoryLimiter`] runs them in this process, without a server.")]
#![cfg_attr(
    feature = "leases",
    doc = "- [`Leases`] decides most requests for hot keys and floods without asking the server."
)]
#![cfg_attr(feature = "leases", doc = "- [`Acquire`] waits until units are allowed.")]
#![cfg_attr(feature = "leases", doc = "- [`Places`] limits how many blocks of code are at work at once.")]
#![cfg_attr(
    feature = "leases",
    doc = "- [`web`] limits the clients of a web service, as middleware for tower and actix-web."
)]
//!
//! # Time
//!
//! The server counts in whole milliseconds. Windows are rounded up, so that no more is allowed than you asked for;
//! [`at`](Take::at) is rounded down. Waits in replies are exact to the millisecond.
//!
//! # Clusters
//!
//! All keys of an [`All`] must have one hash tag, as `{42}:requests` and `{42}:tokens` have. After a lost connection, a
//! cluster connection of redis-rs sends a command again, and may count or give back twice; guards and leases do not.
#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(feature = "aio"))))]

#[cfg_attr(
    not(feature = "leases"),
    allow(dead_code, unused_imports, reason = "leases and guards use more of it")
)]
mod commands;
#[cfg(feature = "leases")]
mod frameworks;
#[cfg(feature = "leases")]
mod guard;
#[cfg(feature = "leases")]
#[doc(hidden)]
pub mod keys;
#[cfg(feature = "leases")]
#[doc(hidden)]
pub mod lines;
#[cfg(feature = "memory")]
mod memory;
#[cfg(feature = "leases")]
pub mod web;

#[cfg(feature = "aio")]
#[cfg_attr(docsrs, doc(cfg(any(feature = "tokio-comp", feature = "smol-comp"))))]
pub use commands::RlAsyncCommands;
pub use commands::{
    Algorithm, All, Clock, Info, Invalid, Quota, Quotas, RlCommands, Take, Verdict, Verdicts, WindowInfo, cmd,
};
#[cfg(feature = "leases")]
pub use guard::{Acquire, Hold, Leases, Places};
#[cfg(feature = "leases")]
pub use lines::Redis;
#[cfg(feature = "memory")]
pub use memory::MemoryLimiter;

#[cfg(feature = "memory")]
fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(all(doctest, feature = "axum", feature = "memory"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../recipes.md")]
struct Pages;
