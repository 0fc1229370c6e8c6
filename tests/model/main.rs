//! The pure modules against plain models: random histories of calls, hostile bytes, random arguments. No server,
//! no clock.
//!
//! - `naive`: the three algorithms as docs/algorithms.md describes them, slow and obviously right.
//! - `calls`: a call, and what a command does with it.
//! - `history`: random histories of calls.
//! - `refunds`: a give-back leaves the units of others.
//! - `replies`: every reply equals the model's, and a log never admits too much.
//! - `lifetimes`: keys live long enough.
//! - `bytes`: encodings round-trip, and hostile bytes are refused.
//! - `all`: several keys in one step.
//! - `forms`: short and large logs differ in memory only.
//! - `steps_back`: a clock that steps back frees nothing early.
//! - `turns`: nobody who waits is overtaken, and who leaves last leaves no trace.
//! - `calendar`: the days of all months.
//! - `memory`: the host in memory.
//! - `arguments`: the parser accepts every valid form, and refuses the rest.
//! - `corpus`: replays what the fuzzer has found. `fuzzed` are its targets, see `fuzz/src/lib.rs`.

mod all;
mod arguments;
mod bytes;
mod calendar;
mod calls;
mod corpus;
mod forms;
mod history;
mod lifetimes;
mod memory;
mod naive;
mod refunds;
mod replies;
mod steps_back;
mod turns;

#[path = "../../fuzz/src"]
mod fuzzed {
    pub mod decoder;
    pub mod effects;
    pub mod operations;
    pub mod parser;
}

use proptest::test_runner::Config;

/// Runs `cases` random cases. A failing one is printed, not written to a file.
fn cases(cases: u32) -> Config {
    Config { cases, failure_persistence: None, ..Config::default() }
}
