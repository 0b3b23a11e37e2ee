//! `cargo +nightly fuzz run --features libfuzzer span`: see `src/targets/span.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::span::target(data);
});
