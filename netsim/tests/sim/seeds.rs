//! Seeds without planted bugs. `STARLING_SIM_SEEDS` sets their number.

use crate::program::count;
use starling_netsim::sim::{SimPlan, simulate};

#[test]
fn no_seed_violates_a_check() {
    for seed in 0..count("STARLING_SIM_SEEDS", 60) {
        let plan = SimPlan::draw(seed, None, 8);
        let outcome = simulate(&plan, false);
        assert_eq!(outcome.violation, None, "{}", plan.command());
        assert!(outcome.height > 100, "{}", plan.command());
    }
}

/// Seeds that found a fault, of the node unless said otherwise.
const KEPT: [(u64, &str); 8] = [
    (16258, "sync refused the branch to which derivation moved"),
    (2636, "the same after a loss of power"),
    (
        88047,
        "a peer on another branch was banned for blocks that were requested at once",
    ),
    (
        88146,
        "the batcher waited for confirmations, since one answer of L1 was lost",
    ),
    (68348, "the same during a handover"),
    (
        14815,
        "of the world: a block whose origin L1 had replaced was safe",
    ),
    (
        87025,
        "of the world: a new sequencer forked off below the safe block of the others",
    ),
    (
        99890,
        "of the world: a full node had disconnected a static peer half a second before the end",
    ),
];

#[test]
fn seeds_that_found_a_fault_violate_no_check() {
    for (seed, fault) in KEPT {
        let plan = SimPlan::draw(seed, None, 10);
        assert_eq!(simulate(&plan, false).violation, None, "{seed}: {fault}");
    }
}
