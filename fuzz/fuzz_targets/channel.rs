//! `cargo +nightly fuzz run --features libfuzzer channel`: see `src/targets/channel.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::channel::target(data);
});
