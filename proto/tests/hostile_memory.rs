//! Memory of the pipeline under a hostile batcher, a tenth of the sizes that the protocol allows. The
//! bench `pipeline` has the full sizes. One test, which runs itself in a process for each case: an
//! allocator keeps what an earlier case has freed, and the next one would seem to take nothing.

#[path = "hostile_memory/cases.rs"]
mod cases;

use std::process::Command;

/// Tenth of the bar of 64 MB, and what is the same at any size: the program's caches, the window of
/// the decompressor, 3 L1 blocks of 9 MB.
const ABOVE: u64 = 6_400_000 + (48 << 20);
/// Least part of what the protocol makes a node hold that a case must take, so that it measures
/// something: brotli and empty blocks take less than their bytes.
const TAKEN: u64 = 10;
/// Names the case that a process runs.
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
