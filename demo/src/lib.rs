//! A tour of the three limiters: the same traffic, and what each admits and refuses, live.

/// The traffic, and what became of it.
pub mod state;
/// The requests on their way to a server.
pub mod traffic;
/// The picture.
pub mod view;
