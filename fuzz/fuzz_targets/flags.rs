//! `cargo +nightly fuzz run --features libfuzzer flags`: see `src/targets/flags.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::flags::target(data);
});
