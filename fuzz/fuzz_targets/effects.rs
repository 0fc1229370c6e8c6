#![no_main]

libfuzzer_sys::fuzz_target!(|lines: &[u8]| redis_rl_fuzz::effects::check(lines));
