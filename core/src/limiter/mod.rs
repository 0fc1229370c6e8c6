//! The limiters: from quotas, a cost and a time to a verdict, and what it does to the key.
//!
//! Pure: no clock, no server, no unsafe code. From the bottom up:
//!
//! - `quota`: times, windows, quotas and costs, each within its bounds.
//! - `calendar`: when weeks and months begin.
//! - `words`: windows as words, with the names of their units.
//! - `algorithm`: the algorithms, and what RL.INFO shows of a limiter.
//! - `lifetime`: what a request changed, and when the key must expire.
//! - `decision`: decides about one key, by the same steps for every algorithm.
//! - `counters`: the state of RL.FIXED and RL.SLIDING.
//! - `log`: the state of RL.LOG.
//! - `bucket`: the state of RL.BUCKET.
//! - `state`: [`Limiter`], the state of a key: decide, then commit.
//! - `effect`: what a request did to a key, for its copies.
//! - [`key`]: what a command does to a key, wherever that is stored.
//! - [`several`]: what a command does to several keys: all or nothing.
//!
//! `inline(always)` stands where it makes requests to a server faster: see DESIGN.md, Decisions.

pub(crate) mod algorithm;
pub(crate) mod bucket;
mod calendar;
pub(crate) mod counters;
mod decision;
mod effect;
pub mod key;
mod lifetime;
pub(crate) mod log;
mod quota;
pub mod several;
pub(crate) mod state;
pub(crate) mod words;

pub use algorithm::{Algorithm, Mover, SlidingCounts, WindowUsage};
pub use bucket::Bucket;
pub use decision::{Decision, Mismatch, Mode, Request, Verdict, Wait};
pub use effect::{Effect, Moved, Pending, Recorded};
pub use key::Key;
pub use lifetime::{Change, MostAhead, MoveBack, Outcome, OwnTime, TimeSource};
pub use quota::{
    Calendar, Cost, MAX_COUNT, MAX_SAFE_INTEGER, MAX_TIERS, Quota, QuotaList, Time, UnixMs, WindowMs, digits,
    leading_integer,
};
pub use state::Limiter;
