//! Rate limits of a web service: middleware for tower, and what it is made of.
//!
//! [`RateLimitLayer`] takes units for each request by the [`Policies`] of its [`Guard`]. Where the cost is known only
//! later, or comes out of the body, ask the guard in the handler.
//!
//! # Answers
//!
//! Header fields are those of [draft-ietf-httpapi-ratelimit-headers-11][draft], a work in progress:
//!
//! ```text
//! HTTP/1.1 429 Too Many Requests
//! retry-after: 9
//! ratelimit-policy: "requests-10s";q=5;w=10, "requests-1h";q=100;w=3600
//! ratelimit: "requests-10s";r=0;t=9, "requests-1h";r=95
//! content-type: application/problem+json
//!
//! {"status":429,"title":"Quota Exceeded","type":"https://iana.org/assignments/http-problem-types#quota-exceeded","violated-policies":["requests-10s"]}
//! ```
//!
//! - Seconds are rounded up, so that waiting them is enough.
//! - `ratelimit` has the units left (`r`) of each quota, and the seconds until the whole limit is back (`t`), though
//!   some of it comes sooner. For a refused request `t` is the wait of each quota that refuses, and the others have
//!   none: it would lie beyond `retry-after`.
//! - A request that costs more than a limit is answered 403, without `retry-after`: no wait helps, and a client that
//!   repeats what is answered 429 does not repeat it forever.
//! - While Redis is away requests pass without the fields, or are answered 503: see [`Fail`].
//!
//! [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/

mod admission;
mod answer;
mod away;
mod client;
mod guard;
mod layer;
mod policies;
mod policy;
mod refusal;
mod reservation;

pub use admission::{Admission, Costs};
pub use answer::{answer, fields};
pub use client::client_address;
pub use guard::{Fail, Guard, InvalidFail};
pub use layer::{RateLimit, RateLimitLayer};
pub use policies::Policies;
pub use policy::{InvalidPolicy, Policy};
pub use refusal::Refusal;
pub use reservation::Reservation;
