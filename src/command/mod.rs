//! The commands: each parses its arguments, opens its keys, decides by the core, does what follows and replies.

mod all;
mod apply;
mod commit;
mod info;
mod load;
mod peek;
mod take;

pub use all::All;
pub use apply::Apply;
pub use info::Info;
pub use load::Load;
pub use peek::Peek;
pub use take::{Bucket, Fixed, Log, Sliding};
