//! Guards as middleware of frameworks.

#[cfg(feature = "actix")]
mod actix;
#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "tower")]
mod tower;

#[cfg(feature = "tower")]
pub use tower::RateLimit;
