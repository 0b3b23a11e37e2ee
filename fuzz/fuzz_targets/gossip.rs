//! `cargo +nightly fuzz run --features libfuzzer gossip`: see `src/targets/gossip.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::gossip::target(data);
});
