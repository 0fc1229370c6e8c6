#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| redis_rl_fuzz::operations::check(bytes));
