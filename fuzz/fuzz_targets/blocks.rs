//! `cargo +nightly fuzz run --features libfuzzer blocks`: see `src/targets/blocks.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::blocks::target(data);
});
