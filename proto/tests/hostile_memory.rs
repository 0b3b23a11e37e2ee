//! Memory of the pipeline under a hostile batcher, with a tenth of the sizes that the protocol
//! allows. The bench `pipeline` has the full sizes. The only test runs itself in one process per
//! case, because an allocator keeps freed memory: after an earlier case, the next one would seem to
//! need none.

#[path = "hostile_memory/cases.rs"]
mod cases;

use std::process::Command;

/// Allowed memory: a tenth of the bench's bar of 64 MB, and the parts that do not scale. These are
/// the program's caches, the decompressor's window, and 3 L1 blocks of 9 MB.
const ABOVE: u64 = 6_400_000 + (48 << 20);
/// Divisor for the least memory that a case must use, relative to what the protocol requires, so
/// that the case measures something. Brotli and empty blocks use less than their bytes.
const TAKEN: u64 = 10;
/// Environment variable with the index of the case that a child process runs.
const CASE: &str = "STARLING_HOSTILE_CASE";
const TEST: &str = "a_hostile_batcher_costs_little_more_than_the_protocol_makes_a_node_hold";

#[test]
fn a_hostile_batcher_costs_little_more_than_the_protocol_makes_a_node_hold() {
    if let Ok(index) = std::env::var(CASE) {
        return check(index.parse().expect("a number"));
    }
    let program = std::env::current_exe().expect("our own path");
    for (index, (name, _)) in cases::CASES.iter().enumerate() {
        let run = Command::new(&program)
            .args(["--exact", TEST, "--nocapture"])
            .env(CASE, index.to_string())
            .status();
        assert!(run.expect("our own program").success(), "{name}");
    }
}

fn check(index: usize) {
    let (name, make) = cases::CASES[index];
    let case = make(10);
    let (protocol, (reason, times)) = (case.protocol, case.dropped);
    let (peak, (_, drops)) = cases::peak_memory(|| case.run());
    println!("{name}: peak {peak}, protocol {protocol}");
    assert_eq!(drops.get(reason), times, "{name}: {drops:?}");
    assert!(peak > protocol / TAKEN, "{name}: {peak}, {protocol}");
    let is_bounded = !name.contains("no bound");
    assert!(
        !is_bounded || peak < protocol + ABOVE,
        "{name}: {peak}, {protocol}"
    );
}
