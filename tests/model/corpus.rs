//! Replays `fuzz/corpus`: inputs that cover the code, and inputs that once showed a fault.

use std::fs;
use std::path::Path;

use crate::fuzzed::{decoder, operations, parser};

fn try_all(target: &str, check: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let inputs = fs::read_dir(folder).expect("a corpus");
    let tried = inputs.map(|input| {
        let input = input.expect("an entry").path();
        // Shown on failure.
        println!("{}", input.display());
        check(&fs::read(input).expect("a file"));
    });
    assert!(tried.count() > 10);
}

#[test]
fn the_parser_reads_all_that_the_fuzzer_has_found_as_the_docs_say() {
    try_all("parser", parser::check);
}

#[test]
fn the_decoder_refuses_or_keeps_all_that_the_fuzzer_has_found() {
    try_all("decoder", decoder::check);
}

#[test]
fn calls_that_the_fuzzer_has_found_are_answered_as_the_model_does() {
    try_all("operations", operations::check);
}
