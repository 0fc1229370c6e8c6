//! Rate limits of a web service: middleware for tower and actix-web, and what it is made of.
//!
//! A [`Guard`] takes units for each request by its [`Policies`]. Where the cost is known only later, or comes out of the
//! body, ask it in the handler.
//!
//! Header fields are those of [draft-ietf-httpapi-ratelimit-headers-11][draft], in seconds that are rounded up.
//!
//! [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/

#[cfg(feature = "tower")]
pub use crate::frameworks::RateLimit;
pub use crate::guard::{
    Costs, Fail, Guard, Policies, Policy, Refusal, Requester, Reservation, answer, client_address,
};
