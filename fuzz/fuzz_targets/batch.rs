//! `cargo +nightly fuzz run --features libfuzzer batch`: see `src/targets/batch.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::batch::target(data);
});
