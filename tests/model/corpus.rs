//! Replays `fuzz/corpus`: inputs that cover the code, and inputs that once showed a fault.

use std::fs;

use crate::fuzzed::{decoder, effects, operations, parser};

fn try_all(target: &str, check: impl Fn(&[u8])) {
    let file = format!("{}/fuzz/corpus/{target}.hex", env!("CARGO_MANIFEST_DIR"));
    let inputs = fs::read_to_string(file).expect("a corpus");
    assert!(inputs.lines().count() > 10);
    for line in inputs.lines() {
        // Shown on failure.
        println!("{line}");
        let (digits, _why) = line.split_once(' ').unwrap_or((line, ""));
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two hex digits");
        check(&(0..digits.len()).step_by(2).map(byte).collect::<Vec<_>>());
    }
}

#[test]
fn the_parser_agrees_with_the_docs_on_the_fuzzers_corpus() {
    try_all("parser", parser::check);
}

#[test]
fn the_decoder_refuses_or_round_trips_the_fuzzers_corpus() {
    try_all("decoder", decoder::check);
}

#[test]
fn effects_of_the_fuzzers_corpus_are_refused_or_have_one_form() {
    try_all("effects", effects::check);
}

#[test]
fn calls_in_the_fuzzers_corpus_get_the_models_replies() {
    try_all("operations", operations::check);
}
