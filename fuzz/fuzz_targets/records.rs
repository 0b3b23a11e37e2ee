//! `cargo +nightly fuzz run --features libfuzzer records`: see `src/targets/records.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::records::target(data);
});
