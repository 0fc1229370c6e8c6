//! Replays `fuzz/corpus`: inputs that cover the code, and inputs that once showed a fault.

use std::fs;
use std::path::Path;

use crate::fuzzed::{decoder, effects, operations, parser};

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
