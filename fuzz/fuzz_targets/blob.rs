//! `cargo +nightly fuzz run --features libfuzzer blob`: see `src/targets/blob.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::blob::target(data);
});
