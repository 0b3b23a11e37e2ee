//! `cargo +nightly fuzz run --features libfuzzer l1`: see `src/targets/l1.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::l1::target(data);
});
