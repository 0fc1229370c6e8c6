//! What the fuzzer tries, each with its `check` that panics on anything wrong:
//!
//! - `parser`: arguments, against a plain reading of the docs' table of arguments; `rows`: the same for RL.ALL.
//! - `decoder`: stored bytes, and how what they make goes on, against the plain model.
//! - `operations`: random calls of one key, against the plain model.
//!
//! `fuzz_targets` hands them the fuzzer's bytes. `corpus` holds the inputs that reach every part
//! of the code; `cargo test` runs through them too, see `tests/model/corpus.rs`.

pub mod decoder;
pub mod operations;
pub mod parser;
pub mod rows;

#[path = "../../tests/model/calls.rs"]
pub mod calls;
#[path = "../../tests/model/naive.rs"]
pub mod naive;
