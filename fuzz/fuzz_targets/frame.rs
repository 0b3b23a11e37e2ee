//! `cargo +nightly fuzz run --features libfuzzer frame`: see `src/targets/frame.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::frame::target(data);
});
