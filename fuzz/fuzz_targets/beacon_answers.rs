//! `cargo +nightly fuzz run --features libfuzzer beacon_answers`: see `src/targets/beacon_answers.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::beacon_answers::target(data);
});
