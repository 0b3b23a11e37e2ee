//! Faults with begin and end, from the changes of a run.

use super::{super::report::FaultReport, seconds};
use crate::report::RunFault;

/// Verbs whose fault lasts until it is taken back, or until the end of the run.
const LASTING: [&str; 11] = [
    "cut",
    "isolate",
    "split",
    "slow",
    "lossy",
    "flap",
    "kill",
    "stop",
    "freeze",
    "storm",
    "fill-disk",
];
/// Shortest change that is drawn with its duration, in milliseconds.
const SHORT: u64 = 500;

/// All faults in order of time. `end` is that of the run, in seconds.
pub fn spans(changes: &[FaultReport], end: f64) -> Vec<RunFault> {
    let mut is_end = vec![false; changes.len()];
    let mut spans = Vec::new();
    for (at, fault) in changes.iter().enumerate() {
        if is_end[at] {
            continue;
        }
        let is_lasting = LASTING.contains(&fault.verb.as_str()) && !fault.ends_fault;
        let until = if is_lasting {
            for (later, change) in changes.iter().enumerate().skip(at + 1) {
                is_end[later] |= ends(fault, change);
            }
            let last = changes[at + 1..].iter().find(|later| ends(fault, later));
            Some(last.map_or(end, |later| seconds(later.at_ms)))
        } else {
            let is_long = fault.done_ms - fault.at_ms >= SHORT;
            is_long.then(|| seconds(fault.done_ms))
        };
        spans.push(RunFault {
            from: seconds(fault.at_ms),
            until,
            what: fault.text.clone(),
        });
    }
    spans
}

/// Whether the later change takes the fault back.
fn ends(fault: &FaultReport, later: &FaultReport) -> bool {
    let has_common = |one: &[usize], other: &[usize]| one.iter().any(|it| other.contains(it));
    let is_same = fault.verb == later.verb;
    if !later.ends_fault {
        return false;
    }
    if has_common(&fault.links, &later.links) {
        return is_same || later.verb == "heal";
    }
    let starts = ["restart", "upgrade", "promote", "move", "new-key"];
    let is_start = starts.contains(&later.verb.as_str());
    has_common(&fault.nodes, &later.nodes)
        && match fault.verb.as_str() {
            "kill" | "stop" => is_start,
            "freeze" => later.verb == "thaw",
            _ => is_same,
        }
}
