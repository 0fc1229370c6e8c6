//! What a process decides by itself: units that it has leased, refusals that it remembers, requests by several
//! policies.
//!
//! Pure: it is told the time and what happens, and says which commands to send and what to answer.
//! `clients/README.md` has the rules, `clients/local.json` the cases.

mod key;
mod keys;
mod request;

pub use key::{Key, Lease, Refusal};
pub use keys::{Keys, MAX_KEYS};
pub use request::{Answer, Command, Request, RequestId, Rules, Share, Step, slot};
