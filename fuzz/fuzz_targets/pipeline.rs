//! `cargo +nightly fuzz run --features libfuzzer pipeline`: see `src/targets/pipeline.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::pipeline::target(data);
});
