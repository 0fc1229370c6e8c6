//! Connections, and whether their servers are away.
//!
//! [`Line`] and [`Away`] are pure: they are told what happens, and say what follows. `clients/porting.md` has the rules,
//! `clients/errors.json` the errors, `clients/histories.json` random histories.

mod away;
mod cluster;
mod errors;
mod line;
mod link;
mod server;

pub use away::{Ask, Away};
pub(crate) use cluster::Address;
pub(crate) use errors::is_away;
pub use errors::{Known, Means, known};
pub use line::{Line, State};
pub(crate) use link::{ENDED, io_error, is_misused, own_runtime};
pub use server::Redis;
