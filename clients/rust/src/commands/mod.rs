//! The commands: their arguments, their replies, and methods that send them.

mod acquire;
mod clock;
pub mod cmd;
mod connection;
mod quota;
mod reply;
mod request;

pub use acquire::Acquire;
#[cfg(feature = "leases")]
pub(crate) use clock::{Clock, Time};
#[cfg(feature = "aio")]
pub use connection::RlAsyncCommands;
pub use connection::RlCommands;
#[cfg(feature = "leases")]
pub(crate) use connection::explained;
pub use quota::{Invalid, Quota, Quotas};
#[cfg(feature = "leases")]
pub(crate) use quota::{MAX_LIMIT, check};
pub use reply::{Decision, Info, Verdict, WindowInfo};
#[cfg(feature = "leases")]
pub(crate) use request::MAX_COST;
#[cfg(feature = "leases")]
pub use request::slot;
pub use request::{Algorithm, All, Take};
