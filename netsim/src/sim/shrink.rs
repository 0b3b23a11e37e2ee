//! Shrinks a plan that fails: no derivation, fewer nodes, a shorter world, fewer faults, as long as
//! the same check fails.

use super::{
    checks::Violation,
    plan::{MIN_MINUTES, NODES, SimPlan},
    world::simulate,
};

/// Most worlds that are run to shrink one plan.
const RUNS: usize = 60;

/// The smallest plan found that violates the same check as `plan` does, and its violation.
pub fn shrink(plan: &SimPlan, violation: &Violation) -> (SimPlan, Violation) {
    let mut runs = 0;
    let mut best = (plan.clone(), violation.clone());
    let mut fails = |candidate: &SimPlan| {
        runs += 1;
        let outcome = (runs <= RUNS).then(|| simulate(candidate, false));
        outcome
            .and_then(|outcome| outcome.violation)
            .filter(|other| other.check == violation.check)
    };
    if plan.derivation.is_some() {
        let simpler = plan.clone().with_derivation(Some(false));
        if let Some(violation) = fails(&simpler) {
            best = (simpler, violation);
        }
    }
    // Fewer nodes and minutes draw another plan, so they come before the choice among its faults.
    for nodes in *NODES.start()..plan.nodes.len() {
        let fewer = best.0.redraw(nodes, best.0.minutes);
        if let Some(violation) = fails(&fewer) {
            best = (fewer, violation);
            break;
        }
    }
    for minutes in MIN_MINUTES..best.0.minutes {
        let shorter = best.0.redraw(best.0.nodes.len(), minutes);
        if let Some(violation) = fails(&shorter) {
            best = (shorter, violation);
            break;
        }
    }
    let mut kept: Vec<usize> = best.0.active().map(|(index, _)| index).collect();
    for index in kept.clone() {
        let without: Vec<usize> = kept.iter().copied().filter(|it| *it != index).collect();
        let fewer = SimPlan {
            kept: Some(without.clone()),
            ..best.0.clone()
        };
        if let Some(violation) = fails(&fewer) {
            (kept, best) = (without, (fewer, violation));
        }
    }
    best
}
