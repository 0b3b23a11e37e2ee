//! `cargo +nightly fuzz run --features libfuzzer stored`: see `src/targets/stored.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::stored::target(data);
});
