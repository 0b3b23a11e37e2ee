//! `cargo +nightly fuzz run --features libfuzzer l1_answers`: see `src/targets/l1_answers.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::l1_answers::target(data);
});
