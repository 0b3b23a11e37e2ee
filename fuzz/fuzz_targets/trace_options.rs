//! `cargo +nightly fuzz run --features libfuzzer trace_options`: see `src/targets/trace_options.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::trace_options::target(data);
});
