//! Rate limits of a web service, as middleware for tower and actix-web.
//!
//! A [`Guard`] takes units for each request by its [`Policies`]. Where the cost depends on the body, or is known only later,
//! call it in the handler.
//!
//! Header fields follow [draft-ietf-httpapi-ratelimit-headers-11][draft]. Seconds are rounded up.
//!
//! [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/

#[cfg(feature = "tower")]
pub use crate::frameworks::RateLimit;
pub use crate::guard::{
    Costs, Decision, Fail, Fields, FieldsOn, Figures, Guard, Outage, Policies, Policy, Refusal, Requester,
    client_address,
};
