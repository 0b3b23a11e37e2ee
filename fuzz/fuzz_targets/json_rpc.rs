//! `cargo +nightly fuzz run --features libfuzzer json_rpc`: see `src/targets/json_rpc.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    starling_fuzz::targets::json_rpc::target(data);
});
