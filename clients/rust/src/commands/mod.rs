//! The commands: their arguments, their replies, and methods that send them.

mod algorithm;
mod clock;
pub mod cmd;
mod connection;
mod quota;
mod reply;
mod request;

pub use algorithm::Algorithm;
pub use clock::Clock;
#[cfg(feature = "leases")]
pub(crate) use clock::Time;
#[cfg(feature = "leases")]
pub(crate) use clock::has_timers;
#[cfg(feature = "aio")]
pub use connection::RlAsyncCommands;
pub use connection::RlCommands;
pub(crate) use connection::explained;
pub(crate) use quota::{BLOCK, MAX_LIMIT, MAX_WINDOW, check};
pub use quota::{Invalid, Quota, Quotas};
pub use reply::{Info, Verdict, Verdicts, WindowInfo};
pub(crate) use request::MAX_COST;
pub use request::{All, Take, slot};
