//! The fuzz targets, each with a `check` that panics on a fault:
//!
//! - `parser`: arguments, against a plain parser of the documented table of arguments.
//! - `decoder`: stored bytes, and how the decoded limiter behaves, against the plain model.
//! - `effects`: what replicas and append-only files get, and what it does to a key.
//! - `operations`: random calls on one key, against the plain model.
//!
//! `fuzz_targets` passes the fuzzer's bytes to them. `corpus` holds inputs that together cover the code, each a line
//! of hex; `cargo test` runs them too, see `tests/model/corpus.rs`.

pub mod decoder;
pub mod effects;
pub mod operations;
pub mod parser;

#[path = "../../tests/model/calls.rs"]
pub mod calls;
#[path = "../../tests/model/naive.rs"]
pub mod naive;
