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
const KEPT: [(u64, &str); 3] = [
    (16258, "sync refused the branch to which derivation moved"),
    (2636, "the same after a loss of power"),
    (
        14815,
        "of the world: a block whose origin L1 had replaced was safe",
    ),
];

#[test]
fn seeds_that_found_a_fault_violate_no_check() {
    for (seed, fault) in KEPT {
        let plan = SimPlan::draw(seed, None, 10);
        assert_eq!(simulate(&plan, false).violation, None, "{seed}: {fault}");
    }
}
