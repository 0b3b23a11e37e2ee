//! `cargo +nightly fuzz run --features libfuzzer transactions`: see `src/targets/transactions.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::transactions::target(data);
});
