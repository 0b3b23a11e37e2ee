//! Figures of one lab: arrivals of blocks, copies, and processor time of blocks.

use super::plan::{CalibrationPlan, LabSpan};
use crate::{
    lab::{
        LabRole,
        clocks::{ClockReading, ProcessClocks},
        report::{LabReport, NodeReport},
    },
    report::{RunSpread, cumulative},
};
use std::time::Duration;

/// Points of a curve.
const POINTS: usize = 100;

/// Figures of a network. Times are milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabMeasurement {
    /// Number of blocks that count.
    pub blocks: u64,
    /// Time from the sequencer's log line of a block to that of a replica's new head.
    pub propagation: RunSpread,
    /// Points of the cumulative curve: milliseconds, share of the arrivals.
    pub curve: Vec<[f64; 2]>,
    /// Copies of a block that a replica receives.
    pub copies: f64,
    /// Median size of the replicas' meshes.
    pub mesh: f64,
    /// Time of the check of a block, by the nodes' own metrics.
    pub check: f64,
    /// Processor time that a block causes at once at a replica, with its share of the links.
    pub work: f64,
    /// Time for which threads of a replica wait for a processor because of a block.
    pub wait: f64,
    /// Processors that are in use between the blocks.
    pub background: f64,
    /// Processors that the links and the controller use.
    pub links: f64,
}

/// Times of the line, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HopTimes {
    /// Time from the sequencer's log line to that of its only neighbour: receipt, check, import and
    /// log of the neighbour, less the time from the sequencer's publication to its own log line.
    pub first: f64,
    /// Further time to the neighbour's neighbour: receipt, check and sending.
    pub hop: f64,
    /// The part of it that is the check, by the nodes' own metrics.
    pub check: f64,
    /// Processor time that a block causes at once at a node that receives one copy.
    pub work: f64,
}

/// Indices of the second and the third node of the line, after L1 and the sequencer.
const LINE: [usize; 2] = [2, 3];

/// Changes of one clock of a process over many seconds. A burst is the time from the reading before
/// the block of a second to the reading after it. The rest of the second is called rest. Times are
/// microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct ClockChange {
    /// Number of bursts.
    burst_count: f64,
    /// Progress of the clock in all bursts.
    used_in_bursts: f64,
    /// Length of all bursts.
    time_in_bursts: f64,
    /// Progress of the clock in all rests.
    used_in_rests: f64,
    /// Length of all rests.
    time_in_rests: f64,
}

impl ClockChange {
    fn of(
        report: &LabReport,
        span: LabSpan,
        process: usize,
        value: fn(&ProcessClocks) -> u64,
    ) -> Self {
        let readings = report.clocks.iter();
        let readings: Vec<&ClockReading> =
            readings.filter(|it| span.contains_ms(it.at_ms)).collect();
        let mut change = Self::default();
        for pair in readings.windows(2) {
            let [from, to] = [pair[0], pair[1]];
            let used = value(&to.clocks[process]).saturating_sub(value(&from.clocks[process]));
            let time = to.at_ms.saturating_sub(from.at_ms) as f64 * 1e3;
            if from.is_before && !to.is_before {
                change.burst_count += 1.0;
                change.used_in_bursts += used as f64;
                change.time_in_bursts += time;
            } else if !from.is_before && to.is_before {
                change.used_in_rests += used as f64;
                change.time_in_rests += time;
            }
        }
        change
    }

    /// Processors in use in the rests.
    fn rate(&self) -> f64 {
        self.used_in_rests / self.time_in_rests.max(1.0)
    }

    /// Milliseconds in each second that the block causes at once.
    fn caused(&self) -> f64 {
        let caused = self.used_in_bursts - self.rate() * self.time_in_bursts;
        caused / self.burst_count.max(1.0) / 1e3
    }
}

fn used(clocks: &ProcessClocks) -> u64 {
    clocks.used
}

fn waited(clocks: &ProcessClocks) -> u64 {
    clocks.waited
}

/// Nodes that blocks are sent to.
fn replicas(report: &LabReport) -> impl Iterator<Item = (usize, &NodeReport)> {
    let nodes = report.nodes.iter().enumerate();
    nodes.filter(|(_, node)| node.role.is_l2() && node.role != LabRole::Sequencer)
}

/// Arrivals of the counted blocks at the nodes that `is_meant` accepts, in microseconds.
fn arrivals(
    report: &LabReport,
    plan: &CalibrationPlan,
    is_meant: impl Fn(usize) -> bool,
) -> Vec<u64> {
    let span = plan.active();
    let blocks = report.blocks.iter();
    let blocks = blocks.filter(|block| span.contains_ms(block.made_ms));
    let arrivals = blocks.flat_map(|block| &block.arrivals);
    arrivals
        .filter(|(node, _)| is_meant(*node))
        .map(|(_, micros)| *micros)
        .collect()
}

impl LabMeasurement {
    /// The figures of a lab that followed `plan`; `None` if blocks or readings are missing.
    pub fn of(report: &LabReport, plan: &CalibrationPlan) -> Option<Self> {
        let active = plan.active();
        let mut times = arrivals(report, plan, |_| true);
        let propagation = RunSpread::of(&mut times, 1e-3)?;
        let blocks = report.blocks.iter();
        let blocks = blocks.filter(|block| active.contains_ms(block.made_ms));
        let change = |process, value| ClockChange::of(report, active, process, value);
        // The readings of the controller follow those of the nodes.
        let controller = change(report.nodes.len(), used);
        if controller.burst_count == 0.0 {
            return None;
        }
        let caused = |value: fn(&ProcessClocks) -> u64| -> f64 {
            let nodes = replicas(report).map(|(at, _)| change(at, value).caused());
            nodes.sum()
        };
        let each = plan.block_time as f64 / replicas(report).count() as f64;
        let all = (0..=report.nodes.len()).map(|process| change(process, used).rate());
        let counters = replicas(report).map(|(at, _)| &report.counters[at]);
        let (first, again) = counters.fold((0, 0), |(first, again), it| {
            (first + it.delivered.total(), again + it.duplicates.total())
        });
        let mut meshes: Vec<u64> = replicas(report)
            .filter_map(|(at, _)| Some(report.counters[at].mesh.last()?.peers))
            .collect();
        let counters = replicas(report).map(|(at, _)| &report.counters[at]);
        let (checks, ns) = counters.fold((0, 0), |(checks, ns), it| {
            (checks + it.checks.total(), ns + it.check_ns.total())
        });
        Some(Self {
            check: ns as f64 / 1e6 / checks.max(1) as f64,
            blocks: blocks.count() as u64,
            curve: cumulative(&times, times.len() as u64, 1e-3, POINTS),
            propagation,
            copies: (first + again) as f64 / first.max(1) as f64,
            mesh: RunSpread::of(&mut meshes, 1.0)?.p50,
            work: ((caused(used) + controller.caused()) * each).max(0.0),
            wait: (caused(waited) * each).max(0.0),
            background: all.sum(),
            links: controller.rate() + controller.caused() / 1e3,
        })
    }
}

impl HopTimes {
    /// The times of the line; `None` if blocks or readings are missing.
    pub fn of(report: &LabReport, plan: &CalibrationPlan) -> Option<Self> {
        let median = |node| {
            let mut times = arrivals(report, plan, |it| it == node);
            Some(RunSpread::of(&mut times, 1e-3)?.p50)
        };
        let [first, second] = LINE.map(median);
        let LabMeasurement { check, work, .. } = LabMeasurement::of(report, plan)?;
        Some(Self {
            first: first?,
            hop: (second? - first?).max(0.0),
            check,
            work,
        })
    }

    pub fn hop_time(&self) -> Duration {
        millis(self.hop)
    }
}

/// A duration of so many milliseconds; zero for a negative number.
pub(super) fn millis(ms: f64) -> Duration {
    Duration::from_secs_f64(ms.max(0.0) / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        calibrate::plan,
        lab::{counters::NodeCounters, report::BlockReport},
    };
    use std::collections::BTreeMap;

    const PLAN: CalibrationPlan = CalibrationPlan {
        blocks: 20,
        ..plan::PLAN
    };

    /// Readings of processes that use so many microseconds per second, and so many for each block.
    /// They wait twice as long.
    fn clocks(processes: &[[u64; 2]]) -> Vec<ClockReading> {
        let readings = (0..160).map(|half: u64| {
            let clocks = processes.iter().map(|[steady, block]| {
                let used = steady * half / 2 + block * half.div_ceil(2);
                let waited = 2 * used;
                ProcessClocks { used, waited }
            });
            ClockReading {
                at_ms: half * 500,
                is_before: half.is_multiple_of(2),
                clocks: clocks.collect(),
            }
        });
        readings.collect()
    }

    fn node(role: LabRole) -> NodeReport {
        NodeReport {
            name: role.word().to_owned(),
            role,
            peer: String::new(),
            starts: 1,
            is_up: true,
            heads: Vec::new(),
            reorgs: Vec::new(),
            usage: Vec::new(),
            bans: Vec::new(),
            disconnects: BTreeMap::new(),
            warnings: BTreeMap::new(),
            errors: Vec::new(),
        }
    }

    /// A line of three nodes, with a block each second.
    fn report() -> LabReport {
        let block = |number: u64| BlockReport {
            number,
            hash: String::new(),
            made_ms: number * 1_000,
            // Blocks outside of the span that counts are slow.
            arrivals: if PLAN.active().contains_ms(number * 1_000) {
                vec![(2, 3_000), (3, 4_500)]
            } else {
                vec![(2, 900_000), (3, 900_000)]
            },
        };
        LabReport {
            blocks: (0..80).map(block).collect(),
            nodes: vec![
                node(LabRole::L1),
                node(LabRole::Sequencer),
                node(LabRole::Replica),
                node(LabRole::Replica),
            ],
            counters: vec![NodeCounters::counted(10, 25, 3); 4],
            clocks: clocks(&[
                [10_000, 0],
                [10_000, 40_000],
                [4_000, 5_000],
                [4_000, 5_000],
                [26_000, 4_000],
            ]),
            ..LabReport::default()
        }
    }

    #[test]
    fn figures_are_those_of_the_counted_blocks_without_idle_work() {
        let measured = LabMeasurement::of(&report(), &PLAN).unwrap();
        assert_eq!(measured.blocks, 20);
        assert_eq!(measured.propagation.max, 4.5);
        assert_eq!((measured.copies, measured.mesh), (3.5, 3.0));
        let is = |found: f64, wanted: f64| (found - wanted).abs() < 1e-9;
        // Each replica 5 ms more than at rest, and half of the 4 ms of the links.
        assert!(is(measured.work, 7.0), "{measured:?}");
        assert!(is(measured.wait, 10.0), "{measured:?}");
        assert!(is(measured.background, 0.054), "{measured:?}");
        assert!(is(measured.links, 0.03), "{measured:?}");
    }

    #[test]
    fn the_line_has_the_times_of_one_hop_and_of_two() {
        let times = HopTimes::of(&report(), &PLAN).unwrap();
        assert_eq!((times.first, times.hop, times.check), (3.0, 1.5, 0.3));
        assert_eq!(times.hop_time(), Duration::from_micros(1_500));
    }

    #[test]
    fn a_lab_without_blocks_or_readings_has_no_figures() {
        let mut run = report();
        run.blocks.clear();
        assert_eq!(LabMeasurement::of(&run, &PLAN), None);
        let mut run = report();
        run.clocks.clear();
        assert_eq!(LabMeasurement::of(&run, &PLAN), None);
        assert_eq!(millis(-1.0), Duration::ZERO);
    }
}
