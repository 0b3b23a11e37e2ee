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
