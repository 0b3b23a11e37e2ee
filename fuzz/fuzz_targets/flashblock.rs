//! `cargo +nightly fuzz run --features libfuzzer flashblock`: see `src/targets/flashblock.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::flashblock::target(data);
});
