//! The pure rooms against plain models of them: random histories of calls, hostile bytes, random
//! arguments. No server, no clock.
//!
//! - `naive`: the three algorithms as docs/algorithms.md words them, slow and obviously right.
//! - `calls`: calls, and what a command does with one.
//! - `history`: random calls.
//! - `replies`: every reply of a history is the model's, and a log never admits too much.
//! - `waits`: waits are exact to the millisecond, and keys live long enough.
//! - `bytes`: encodings round-trip, and hostile bytes are refused.
//! - `all`: several keys in one step.
//! - `forms`: a short log and a large one are told apart by their memory alone.
//! - `arguments`: the parser takes what is valid in any form, and survives the rest.
//! - `corpus`: what the fuzzer has found, tried again; `fuzzed` is what it tries, see `fuzz/src/lib.rs`.

mod all;
mod arguments;
mod bytes;
mod calls;
mod corpus;
mod forms;
mod history;
mod naive;
mod replies;
mod waits;

#[path = "../../fuzz/src"]
mod fuzzed {
    pub mod decoder;
    pub mod operations;
    pub mod parser;
    pub mod rows;
}

use proptest::test_runner::Config;

/// `cases` random cases; a failing one is printed, not written to a file.
fn cases(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}
