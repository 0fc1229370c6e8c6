//! The pure rooms against plain models of them: random histories of calls, hostile bytes, random
//! arguments. No server, no clock.
//!
//! - `naive`: the three algorithms as the README words them, slow and obviously right.
//! - `history`: random calls, and what a command does with one.
//! - `replies`: every reply of a history is the model's.
//! - `waits`: waits are exact to the millisecond, keys live long enough, a log never overflows.
//! - `bytes`: encodings round-trip, and hostile bytes are refused.
//! - `arguments`: the parser takes what is valid in any form, and survives the rest.

#[path = "model/arguments.rs"]
mod arguments;
#[path = "model/bytes.rs"]
mod bytes;
#[path = "model/history.rs"]
mod history;
#[path = "model/naive.rs"]
mod naive;
#[path = "model/replies.rs"]
mod replies;
#[path = "model/waits.rs"]
mod waits;

use proptest::test_runner::Config;

/// `cases` random cases; a failing one is printed, not written to a file.
fn cases(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}
