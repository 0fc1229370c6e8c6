//! What hardly changes, and is tested each night: examples for operators, and what `make` does on a machine that lacks something.

mod kubernetes;
mod monitoring;
mod setup;

use std::fs;
use std::path::Path;

/// The text of a file of this repository.
fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a file")
}
