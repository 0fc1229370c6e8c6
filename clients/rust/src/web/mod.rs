//! Rate limits of a web service: middleware for tower and actix-web, and what it is made of.
//!
//! A [`Guard`] takes units for each request by its [`Policies`]. Where the cost is known only later, or comes out of the
//! body, ask it in the handler.
//!
//! Header fields are those of [draft-ietf-httpapi-ratelimit-headers-11][draft], in seconds that are rounded up.
//!
//! [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/
#![cfg_attr(
    not(all(feature = "axum", feature = "actix")),
    allow(dead_code, reason = "each adapter uses its part")
)]

#[cfg(feature = "actix")]
mod actix;
mod answer;
mod away;
mod client;
mod guard;
mod local;
mod policies;
mod policy;
mod refusal;
mod reservation;
#[cfg(feature = "tower")]
mod tower;

pub use answer::answer;
pub use client::client_address;
pub use guard::{Fail, Guard};
pub use policies::Policies;
pub use policy::Policy;
pub use refusal::Refusal;
pub use reservation::{Costs, Requester, Reservation};
#[cfg(feature = "tower")]
pub use tower::RateLimit;
