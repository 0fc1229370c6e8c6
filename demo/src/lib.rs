//! A live view of the limiters under the same traffic.

/// The traffic and its outcome.
pub mod state;
/// Requests to a server, and its replies.
pub mod traffic;
/// The screen.
pub mod view;
