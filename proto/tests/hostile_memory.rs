//! Memory of the pipeline under a hostile batcher, a tenth of the sizes that the protocol allows. The
//! bench `pipeline` has the full sizes. One test, in a process whose memory nothing else takes.

#[path = "hostile_memory/cases.rs"]
mod cases;

/// Tenth of the bar of 64 MB, and what is the same at any size: the program's caches, the window of
/// the decompressor, 3 L1 blocks of 9 MB.
const ABOVE: u64 = 6_400_000 + (48 << 20);

#[test]
fn a_hostile_batcher_costs_little_more_than_the_protocol_makes_a_node_hold() {
    for (name, make) in cases::CASES {
        let case = make(10);
        let (protocol, (reason, times)) = (case.protocol, case.dropped);
        let (peak, (_, drops)) = cases::peak_memory(|| case.run());
        println!("{name}: peak {peak}, protocol {protocol}");
        assert_eq!(drops.get(reason), times, "{name}: {drops:?}");
        let is_bounded = !name.contains("no bound");
        assert!(
            !is_bounded || peak < protocol + ABOVE,
            "{name}: {peak}, {protocol}"
        );
    }
}
