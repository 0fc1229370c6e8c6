//! What several tests use.
//!
//! - `errors`: the texts of errors.
//! - `expiries`: commands that change when a key expires, and a check that copies agree on it.
//! - `hosts`: a server and a map in memory, asked the same.
//! - `requests`: the commands, and the replies to RL.ALL and RL.INFO.
//! - `traffic`: random requests of all kinds, and a check that two servers hold the same.
//! - `histories`: clients whose server is killed while they send, and which of their requests it must hold.
//! - `nodes`: a cluster of six servers.
//! - `payload`: takes the reply of DUMP apart.

use std::fs;
use std::path::Path;

pub mod errors;
pub mod expiries;
pub mod histories;
pub mod hosts;
pub mod nodes;
pub mod payload;
pub mod requests;
pub mod traffic;

/// The text of a file of this repository.
pub fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a file")
}
