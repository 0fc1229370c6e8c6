//! The commands: parse, open, decide by `limiter`, carry out, reply.

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
