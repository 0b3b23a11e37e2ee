//! Values over time for the charts of a report.

use super::{
    super::{
        counters::NodeCounters,
        report::{CpuPoint, NodeReport, UsagePoint},
        topology::LabRole,
    },
    seconds,
};
use crate::report::RunSeries;

/// Interval between two points of the lag, in milliseconds.
const STEP: u64 = 500;

fn series(node: &NodeReport, points: Vec<[f64; 2]>) -> Option<RunSeries> {
    let name = node.name.clone();
    (!points.is_empty()).then_some(RunSeries { name, points })
}

pub fn heads(nodes: &[NodeReport]) -> Vec<RunSeries> {
    let heads = nodes.iter().filter_map(|node| {
        let heads = node.heads.iter();
        let points = heads.map(|head| [seconds(head.at_ms), head.number as f64]);
        series(node, points.collect())
    });
    heads.collect()
}

/// Number of a node's head at a time.
fn head_at(node: &NodeReport, at_ms: u64) -> Option<u64> {
    let after = node.heads.partition_point(|head| head.at_ms <= at_ms);
    Some(node.heads.get(after.checked_sub(1)?)?.number)
}

/// The nodes of each chain. Those of a second chain come later, and begin with its L1.
pub fn chains(nodes: &[NodeReport]) -> impl Iterator<Item = &[NodeReport]> {
    nodes.chunk_by(|_, next| next.role != LabRole::L1)
}

/// Blocks by which each node is behind the highest head of its chain. Times at which a node has no
/// head yet are left out.
pub fn lag(nodes: &[NodeReport], length_ms: u64) -> Vec<RunSeries> {
    let lag = chains(nodes).flat_map(|chain| lag_of(chain, length_ms));
    lag.collect()
}

fn lag_of(chain: &[NodeReport], length_ms: u64) -> Vec<RunSeries> {
    let times = || (0..=length_ms).step_by(STEP as usize);
    let highest = |at| chain.iter().filter_map(|node| head_at(node, at)).max();
    let newest: Vec<u64> = times().map(|at| highest(at).unwrap_or(0)).collect();
    let lag = chain.iter().filter_map(|node| {
        let points = times().zip(&newest).filter_map(|(at, newest)| {
            let behind = newest.saturating_sub(head_at(node, at)?);
            Some([seconds(at), behind as f64])
        });
        series(node, points.collect())
    });
    lag.collect()
}

pub fn mesh(nodes: &[NodeReport], counters: &[NodeCounters]) -> Vec<RunSeries> {
    let mesh = nodes.iter().zip(counters).filter_map(|(node, counters)| {
        let samples = counters.mesh.iter();
        let points = samples.map(|sample| [sample.at.as_secs_f64(), sample.peers as f64]);
        series(node, points.collect())
    });
    mesh.collect()
}

/// Processor time between two readings, in percent of one core. A restarted process has no time
/// before its first reading.
pub fn cpu(nodes: &[NodeReport]) -> Vec<RunSeries> {
    let cpu = nodes
        .iter()
        .filter_map(|node| series(node, used(node.usage.iter().map(UsagePoint::cpu))));
    cpu.collect()
}

/// The controller's use of the processor, like [`cpu`]: the links, and the readings of the nodes.
pub fn controller(usage: &[UsagePoint]) -> Option<RunSeries> {
    named(
        "netsim, with the links",
        used(usage.iter().map(UsagePoint::cpu)),
    )
}

/// The links' use of the processor, like [`cpu`].
pub fn links(usage: &[CpuPoint]) -> Option<RunSeries> {
    named("links", used(usage.iter().copied()))
}

fn named(name: &str, points: Vec<[f64; 2]>) -> Option<RunSeries> {
    let name = name.to_owned();
    (!points.is_empty()).then_some(RunSeries { name, points })
}

fn used(usage: impl Iterator<Item = CpuPoint>) -> Vec<[f64; 2]> {
    let usage: Vec<CpuPoint> = usage.collect();
    let points = usage.windows(2).filter_map(|pair| {
        let used = pair[1].cpu_ms.checked_sub(pair[0].cpu_ms)?;
        let time = pair[1]
            .at_ms
            .checked_sub(pair[0].at_ms)
            .filter(|it| *it > 0)?;
        Some([seconds(pair[1].at_ms), used as f64 / time as f64 * 100.0])
    });
    points.collect()
}

pub fn memory(nodes: &[NodeReport]) -> Vec<RunSeries> {
    let memory = nodes.iter().filter_map(|node| {
        let points = node.usage.iter();
        let points = points.map(|point| [seconds(point.at_ms), point.rss_kb as f64 * 1.024e-3]);
        series(node, points.collect())
    });
    memory.collect()
}
