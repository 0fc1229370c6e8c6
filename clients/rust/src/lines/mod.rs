//! What is known of connections and servers.
//!
//! Pure: [`Line`] and [`Away`] are told what happens, and say what follows. `clients/README.md` has the rules,
//! `clients/errors.json` the errors, `clients/histories.json` random histories.

mod away;
mod errors;
mod line;

pub use away::{Ask, Away};
pub use errors::{ERRORS, Known, Means, known};
pub use line::{Line, State};
