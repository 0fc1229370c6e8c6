//! The commands: their arguments, their replies, and methods that send them.

mod acquire;
mod algorithm;
mod clock;
pub mod cmd;
mod connection;
mod quota;
mod reply;
mod request;
mod turn;

pub use acquire::Acquire;
pub use algorithm::Algorithm;
pub use clock::Clock;
pub(crate) use clock::Time;
#[cfg(feature = "tokio-comp")]
pub(crate) use clock::{NO_TIMERS, has_timers};
#[cfg(feature = "aio")]
pub use connection::RlAsyncCommands;
pub use connection::RlCommands;
pub(crate) use connection::explained;
pub(crate) use quota::{BLOCK, MAX_LIMIT, check};
pub use quota::{Invalid, Quota, Quotas};
pub use reply::{Info, Verdict, Verdicts, WindowInfo};
pub(crate) use request::MAX_COST;
pub use request::{All, Take, slot};
