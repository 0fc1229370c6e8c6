//! Rate limits of a web service: middleware for tower, and what it is made of.
//!
//! [`RateLimitLayer`] takes units for each request by the [`Policies`] of its [`Guard`]. Where the cost is known only
//! later, or comes out of the body, ask the guard in the handler.
//!
//! Header fields are those of [draft-ietf-httpapi-ratelimit-headers-11][draft], in seconds that are rounded up.
//!
//! [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/

mod answer;
mod away;
mod client;
mod guard;
mod layer;
mod policies;
mod policy;
mod refusal;
mod reservation;

pub use answer::answer;
pub use client::client_address;
pub use guard::{Fail, Guard, InvalidFail};
pub use layer::{RateLimit, RateLimitLayer};
pub use policies::Policies;
pub use policy::{InvalidPolicy, Policy};
pub use refusal::Refusal;
pub use reservation::{Costs, Reservation};
