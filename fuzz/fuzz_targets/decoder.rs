#![no_main]

libfuzzer_sys::fuzz_target!(|payload: &[u8]| redis_rl_fuzz::decoder::check(payload));
