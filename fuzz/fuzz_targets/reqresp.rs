//! `cargo +nightly fuzz run --features libfuzzer reqresp`: see `src/targets/reqresp.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::reqresp::target(data);
});
