//! Hostile peers in the public report: their outcomes, and the propagation as figures.

use super::{
    super::hostile::evidence::{HostileFinding, HostilePropagation, HostileReport},
    seconds,
};
use crate::report::{RunHostile, RunHostileOutcome};

pub fn public(hostile: &HostileReport) -> RunHostile {
    let outcome = |finding: &HostileFinding| RunHostileOutcome {
        node: finding.node.clone(),
        unread: finding.is_unread,
        ran_throughout: finding.ran_throughout,
        connected: finding.is_connected,
        banned: finding.is_banned,
        offences: finding.offences.clone(),
    };
    RunHostile {
        name: hostile.name.clone(),
        behaviour: hostile.behaviour.to_string(),
        from: seconds(hostile.start_ms),
        outcomes: hostile.findings.iter().map(outcome).collect(),
    }
}

/// The propagation to undisturbed nodes before and after hostile peers came, as `netsim compare`
/// reads it.
pub fn figures(propagation: &HostilePropagation) -> [(&'static str, f64); 9] {
    let HostilePropagation {
        before,
        after,
        blocks: _,
        left_out,
    } = propagation;
    let ms = |micros: u64| micros as f64 / 1e3;
    [
        ("propagation before hostile peers p50, ms", ms(before.p50)),
        ("propagation before hostile peers p99, ms", ms(before.p99)),
        ("receipts before hostile peers", before.arrivals as f64),
        (
            "expected receipts before hostile peers",
            before.expected as f64,
        ),
        ("propagation with hostile peers p50, ms", ms(after.p50)),
        ("propagation with hostile peers p99, ms", ms(after.p99)),
        ("receipts with hostile peers", after.arrivals as f64),
        (
            "expected receipts with hostile peers",
            after.expected as f64,
        ),
        ("blocks left out, as the machine stalled", *left_out as f64),
    ]
}
