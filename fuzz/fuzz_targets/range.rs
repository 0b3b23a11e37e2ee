//! `cargo +nightly fuzz run --features libfuzzer range`: see `src/targets/range.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::range::target(data);
});
