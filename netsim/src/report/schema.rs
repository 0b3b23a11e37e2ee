//! The public form of one run: what lab, model, calibration and bench write as JSON, and what the
//! page and `netsim compare` read.
//!
//! Only `schema`, `name`, `layer` and `seed` are required. A layer fills the sections that it has;
//! an empty section is left out of the page. Times are seconds since the begin of the run, on one
//! axis for all sections. All numbers must be finite: JSON has no others.

use super::text::number;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of this form. A reader refuses a report with another number.
pub const SCHEMA: u32 = 2;
/// The layer of a lab's report.
pub const LAB_LAYER: &str = "lab";

/// The report of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// [`SCHEMA`] of the program that wrote the report.
    pub schema: u32,
    /// Name of the scenario, or a short description of the network.
    pub name: String,
    /// `model`, `lab`, `calibration` or `bench`.
    pub layer: String,
    pub seed: u64,
    /// Sentence on the purpose of the scenario.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub purpose: String,
    /// Backend of the links, and the reason where the wanted one was refused.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub backend: String,
    /// Versions by program: `netsim`, `starling`, and others in the network.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// Settings by the names of options or of keys in a scenario. A list of a scenario is written
    /// as its length.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Length of the run on the time axis, in seconds; in the model these are virtual.
    #[serde(default)]
    pub seconds: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub propagation: Option<RunPropagation>,
    /// Height of the head of each node over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heads: Vec<RunSeries>,
    /// Blocks behind the newest one over time, for each node or for quantiles of many nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lag: Vec<RunSeries>,
    /// Peers in the gossip mesh over time, for each node or for quantiles of many nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mesh: Vec<RunSeries>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<RunTraffic>,
    /// Use of the processor over time for each process, in percent of one core.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu: Vec<RunSeries>,
    /// Resident memory over time for each process, in MB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<RunSeries>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joining: Option<RunJoining>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<RunFault>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bans: Vec<RunBan>,
    /// Hostile peers, with the outcome at each node that they dialled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hostile: Vec<RunHostile>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<RunCheck>,
    /// The nodes one by one, where they are few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<RunNode>,
    /// The links one by one, where they are few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<RunLink>,
    /// Labs beside the model of their networks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calibration: Vec<RunCalibration>,
    /// Further figures by name, such as `cost of the links, %`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

impl RunReport {
    /// An empty report of this version of the form.
    pub fn new(layer: &str, name: &str, seed: u64) -> Self {
        Self {
            schema: SCHEMA,
            name: name.to_owned(),
            layer: layer.to_owned(),
            seed,
            ..Self::default()
        }
    }

    /// Whether all checks passed; `None` without checks.
    pub fn passed(&self) -> Option<bool> {
        (!self.checks.is_empty()).then(|| self.checks.iter().all(|check| check.passed))
    }
}

/// The propagation of a lab beside that of the model of its network. Times are milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunCalibration {
    pub nodes: u32,
    /// Name on the ladder.
    pub links: String,
    /// Number of blocks of the lab.
    pub blocks: u64,
    pub lab: RunSpread,
    /// The model in which each node has a processor.
    pub model: RunSpread,
    /// The model in which all nodes share the processors of the machine that ran the lab.
    pub shared: RunSpread,
    /// Copies of a block at a node: lab, model.
    pub copies: [f64; 2],
    /// Median size of the meshes: lab, model.
    pub mesh: [f64; 2],
    /// Processor time of a block at a node.
    pub work: f64,
    /// The same at a node of the line, from which the model has its costs.
    #[serde(default)]
    pub line_work: f64,
    /// Time for which threads of a node waited for a processor because of a block.
    pub wait: f64,
    /// Processor time of one copy, and the share of the processors that work without blocks takes.
    pub copy: f64,
    pub background: f64,
    /// Cumulative curves of lab and models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<RunSeries>,
}

impl RunCalibration {
    /// Largest deviation of the model with shared processors, as a share of the lab's time.
    pub const DEVIATION: f64 = 0.25;

    pub fn name(&self) -> String {
        format!("{} nodes, {}", self.nodes, self.links)
    }

    /// The ratio of a model's time to that of the lab.
    pub fn ratio(model: f64, lab: f64) -> f64 {
        model / lab.max(1e-3)
    }

    /// Percentiles by name: of the lab, of the model, and of the model with shared processors.
    pub fn percentiles(&self) -> [(&'static str, [f64; 3]); 2] {
        let all = [&self.lab, &self.model, &self.shared];
        [("p50", all.map(|it| it.p50)), ("p99", all.map(|it| it.p99))]
    }

    /// Sentences on the gap between the lab and the model, the part of it that shared processors
    /// explain, and what those leave out where they deviate by more than [`Self::DEVIATION`].
    pub fn reading(&self) -> String {
        let sentences = self.percentiles().map(|(name, [lab, model, shared])| {
            let gap = lab - model;
            let (side, size) = if gap < 0.0 {
                ("faster", -gap)
            } else {
                ("slower", gap)
            };
            let explained = (shared - model) / gap * 100.0;
            let end = if gap > 0.1 * lab {
                format!(", and waiting for the processor explains {explained:.0} % of it")
            } else {
                String::new()
            };
            let deviation = Self::ratio(shared, lab) - 1.0;
            let missing = if deviation > Self::DEVIATION && self.work > self.line_work {
                "; with shared processors the model is too slow: its processors do all work in the \
                 order of its arrival, and those of the lab prefer threads that have slept"
                    .to_owned()
            } else if deviation > Self::DEVIATION {
                format!(
                    "; with shared processors the model is too slow: it has {} ms of work for a \
                     block at a node, as in the line, and this lab's nodes needed {} ms",
                    number(self.line_work),
                    number(self.work)
                )
            } else if deviation < -Self::DEVIATION {
                format!(
                    "; with shared processors the model is too fast: it leaves out the work \
                     between blocks, which takes {:.0} % of the processors",
                    self.background * 100.0
                )
            } else {
                String::new()
            };
            format!(
                "{name}: the lab is {} ms {side} than the model{end}{missing}",
                number(size)
            )
        });
        sentences.join("; ")
    }
}

/// Time from the publication of a block until a node has received it, over all nodes and blocks. A
/// lab measures it from the sequencer's log line of the block to the node's log line of the new head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunPropagation {
    /// All receipts, in milliseconds.
    pub all: RunSpread,
    /// Points of the cumulative curve: milliseconds, and the share of all expected receipts that
    /// took at most this time.
    pub curve: Vec<[f64; 2]>,
    /// Receipts by the number of hops from the publisher.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<RunHop>,
    /// Receipts that were expected and did not occur before the end of the run.
    #[serde(default)]
    pub missed: u64,
}

/// Receipts at one distance from the publisher.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunHop {
    /// Number of hops; the publisher's mesh is at 1.
    pub hop: u32,
    /// Share of all receipts.
    pub share: f64,
    /// Milliseconds from the publication to the receipt.
    pub times: RunSpread,
    /// Points of the cumulative curve: milliseconds, and share of the receipts at this distance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<[f64; 2]>,
}

/// Traffic of the nodes over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunTraffic {
    /// Copies of a block that a node received in vain, per node and block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<RunSpread>,
    /// Bytes that a node sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<RunSpread>,
    /// Bytes that a node received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<RunSpread>,
    /// The nodes one by one, where they are few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<RunNodeTraffic>,
}

/// Traffic of one node over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunNodeTraffic {
    pub node: String,
    pub sent: u64,
    pub received: u64,
    /// Copies of blocks that the node received in vain.
    pub duplicates: u64,
}

/// The state of one node at the end, and the events of its log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunNode {
    pub name: String,
    /// `sequencer`, `replica`, `l1`, …
    pub role: String,
    /// Peer id; empty for a node without a swarm.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub peer: String,
    /// Number of starts of the process.
    pub starts: u64,
    /// Whether the node ran at the end.
    pub runs: bool,
    /// Number of blocks that another one of the same height replaced.
    #[serde(default)]
    pub reorgs: u64,
    /// Number of disconnected peers, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub disconnects: BTreeMap<String, u64>,
    /// Number of warnings in the log, by message.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub warnings: BTreeMap<String, u64>,
    /// Lines of the log at level error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

/// A link and what it carried. Up is from near to far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLink {
    pub near: String,
    pub far: String,
    /// Name on the ladder.
    pub conditions: String,
    /// Bytes from near to far, and from far to near.
    pub up: u64,
    pub down: u64,
    /// Packets that did not arrive: lost, dropped by a full queue, or segments of a connection that
    /// were lost and sent again.
    #[serde(default)]
    pub lost: u64,
    /// Connections that the link reset; on the packet backend, resets that its router sent.
    #[serde(default)]
    pub resets: u64,
}

/// Nodes that joined late and filled their gap by range sync.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunJoining {
    pub joined: u64,
    /// Nodes that had not caught up at the end of the run.
    pub unfinished: u64,
    /// Length of the gap at the start of the range sync, in blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<RunSpread>,
    /// Seconds from the start until the first gossiped block arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_block: Option<RunSpread>,
    /// Seconds from the start until the node was at the newest block that it knew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synced: Option<RunSpread>,
}

/// Values over time under one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunSeries {
    pub name: String,
    /// Seconds and value, in the order of time.
    pub points: Vec<[f64; 2]>,
}

/// A change that the scenario made: a fault, or what ended one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunFault {
    pub from: f64,
    /// End of the fault; `None` for an event without duration, such as a kill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<f64>,
    /// Verb with nodes or links, such as `kill b` or `cut a-seq`.
    pub what: String,
}

/// A ban that a node logged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunBan {
    pub at: f64,
    pub node: String,
    pub peer: String,
    pub reason: String,
}

/// A peer that breaks a rule of the protocol on purpose.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunHostile {
    pub name: String,
    /// Word of the broken rule, such as `garbage`.
    pub behaviour: String,
    /// Start of the peer.
    pub from: f64,
    pub outcomes: Vec<RunHostileOutcome>,
}

/// The entries about a hostile peer in the ledger of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunHostileOutcome {
    pub node: String,
    /// Whether the ledger could not be read, so that the other fields say nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
    /// Whether the node ran from the start of the peer to the end. A restart loses the ledger, which
    /// has at most 64 entries about one peer.
    pub ran_throughout: bool,
    /// Whether the peer was connected at the end.
    pub connected: bool,
    pub banned: bool,
    /// Number of offences, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub offences: BTreeMap<String, u64>,
}

/// The verdict of one check.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunCheck {
    pub name: String,
    pub passed: bool,
    /// The evidence: the bound and the measured value, or the first violation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// A distribution in five numbers. The unit is that of the field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunSpread {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl RunSpread {
    /// The distribution of `values`, in any order, each multiplied by `scale`; `None` without
    /// values. A percentile is the smallest value that so many percent do not exceed.
    pub fn of<T: Copy + Ord + Into<u64>>(values: &mut [T], scale: f64) -> Option<Self> {
        values.sort_unstable();
        let max = (*values.last()?).into();
        let at = |percent| quantile(values, percent as f64 / 100.0).into() as f64 * scale;
        let sum: u128 = values.iter().map(|it| u128::from((*it).into())).sum();
        Some(Self {
            count: values.len() as u64,
            mean: sum as f64 / values.len() as f64 * scale,
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max: max as f64 * scale,
        })
    }
}

/// The smallest of the sorted, non-empty `values` that a share `q` of them does not exceed.
fn quantile<T: Copy>(values: &[T], q: f64) -> T {
    let rank = (q * values.len() as f64).ceil() as usize;
    values[rank.clamp(1, values.len()) - 1]
}

/// Points of the cumulative curve of sorted values, of which `expected` should exist: at most
/// `points`, each value multiplied by `scale`.
pub fn cumulative<T: Copy + Into<u64>>(
    values: &[T],
    expected: u64,
    scale: f64,
    points: usize,
) -> Vec<[f64; 2]> {
    if values.is_empty() || expected == 0 {
        return Vec::new();
    }
    let points = points.min(values.len());
    let whole = values.len() as f64 / expected as f64;
    let first = [values[0].into() as f64 * scale, 0.0];
    let rest = (1..=points).map(|point| {
        let share = point as f64 / points as f64;
        [quantile(values, share).into() as f64 * scale, share * whole]
    });
    [first].into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occur() {
        let mut values: Vec<u32> = (1..=200).rev().collect();
        let spread = RunSpread::of(&mut values, 0.5).unwrap();
        let found = [spread.p50, spread.p90, spread.p99, spread.max];
        assert_eq!(found, [50.0, 90.0, 99.0, 100.0]);
        assert_eq!((spread.count, spread.mean), (200, 50.25));
        assert_eq!(RunSpread::of::<u32>(&mut [], 1.0), None);
        assert_eq!(RunSpread::of(&mut [7_u32], 1.0).unwrap().p50, 7.0);
    }

    #[test]
    fn a_cumulative_curve_ends_at_the_share_that_arrived() {
        let values: Vec<u32> = (1..=100).collect();
        let curve = cumulative(&values, 200, 1.0, 10);
        assert_eq!(curve.len(), 11);
        assert_eq!((curve[0], curve[10]), ([1.0, 0.0], [100.0, 0.5]));
        assert!(curve.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!(cumulative::<u32>(&[], 0, 1.0, 10).is_empty());
    }

    #[test]
    fn a_report_needs_no_section_and_survives_json() {
        let least = r#"{"schema":2,"name":"flap","layer":"lab","seed":7}"#;
        let report: RunReport = serde_json::from_str(least).unwrap();
        assert_eq!(report, RunReport::new("lab", "flap", 7));
        assert_eq!(report.passed(), None);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(text, least.replace('}', r#","seconds":0.0}"#));
    }
}
