//! Labs of many nodes on the processors of this machine: whether they keep up, and the cost of their
//! links.

use super::{BenchArgs, BenchFigures, BenchLine};
use crate::{
    lab::{
        LabRole, LabScenario,
        measured::{self, MeasuredLabs, WARM_UP},
        report::{CpuPoint, LabReport, UsagePoint},
    },
    ladder::Rung,
    report::{RunReport, RunSpread},
};
use anyhow::Context;

/// A lab with its bars.
struct BenchLab {
    nodes: u32,
    /// Transactions per second, and per block, as blocks are one second apart.
    load: u32,
    /// Largest share of one core for the links, in percent.
    links: Option<f64>,
}

const LABS: [BenchLab; 2] = [
    BenchLab {
        nodes: 32,
        load: 50,
        links: Some(10.0),
    },
    BenchLab {
        nodes: 64,
        load: 0,
        links: None,
    },
];

/// Seed of the links of all labs.
const SEED: u64 = 1;
/// Largest lag of 99 % of the readings, in blocks.
const LAG: f64 = 1.0;

/// Runs all labs.
pub fn all(args: &BenchArgs, figures: &mut BenchFigures) -> anyhow::Result<()> {
    let labs = MeasuredLabs::new(args.binary.as_deref(), &args.out, SEED)?;
    for lab in &LABS {
        let (measured, public) = labs.run_and_write(&lab.scenario(args.lab_seconds))?;
        lab.measure(&measured, &public, args.lab_seconds, figures)?;
    }
    Ok(())
}

impl BenchLab {
    fn scenario(&self, seconds: u64) -> LabScenario {
        let name = format!("bench-{}", self.nodes);
        let purpose = "Whether many nodes keep up on the processors of one machine";
        let rung = Rung::named("lan").expect("a rung of the ladder");
        measured::network(&name, purpose, seconds, self.nodes, rung).load(self.load)
    }

    fn measure(
        &self,
        lab: &LabReport,
        public: &RunReport,
        seconds: u64,
        figures: &mut BenchFigures,
    ) -> anyhow::Result<()> {
        let span = [WARM_UP, WARM_UP + seconds].map(|it| it as f64);
        let of = |what: &str| format!("lab of {} nodes: {what}", self.nodes);
        let lag = lag(public, span).context("the lab has no heads")?;
        figures.add(BenchLine::new(of("lag p99"), lag.p99, "blocks").at_most(LAG));
        figures.add(BenchLine::new(of("lag max"), lag.max, "blocks"));
        if let Some(propagation) = &public.propagation {
            let all = &propagation.all;
            figures.add(BenchLine::new(of("propagation p50"), all.p50, "ms"));
            figures.add(BenchLine::new(of("propagation p99"), all.p99, "ms"));
        }
        let process = |usage: &[UsagePoint]| percent(usage.iter().map(UsagePoint::cpu), span);
        let netsim = of("netsim, with links and readings");
        figures.add(BenchLine::new(
            netsim,
            process(&lab.controller),
            "% of a core",
        ));
        let links = percent(lab.link_threads.iter().copied(), span);
        let links = BenchLine::new(of("links"), links, "% of a core");
        figures.add(match self.links {
            Some(bar) => links.at_most(bar),
            None => links,
        });
        let nodes = lab.nodes.iter().map(|node| process(&node.usage));
        let nodes: f64 = nodes.sum();
        figures.add(BenchLine::new(of("all nodes"), nodes, "% of a core"));
        let accepted = lab.transactions.accepted as f64;
        let per_block = accepted / lab.blocks.len().max(1) as f64;
        figures.add(BenchLine::new(of("transactions per block"), per_block, ""));
        let resident = lab.nodes.iter().filter(|it| it.role == LabRole::Replica);
        let mut peaks: Vec<u64> = resident
            .filter_map(|node| node.usage.iter().map(|point| point.rss_kb).max())
            .collect();
        let memory = RunSpread::of(&mut peaks, 1.024e-3).context("no memory was read")?;
        figures.add(BenchLine::new(of("memory of a replica"), memory.p50, "MB"));
        Ok(())
    }
}

/// Lags of all nodes at all readings within the span of seconds.
fn lag(report: &RunReport, [from, to]: [f64; 2]) -> Option<RunSpread> {
    let points = report.lag.iter().flat_map(|series| &series.points);
    let mut lags: Vec<u64> = points
        .filter(|point| (from..to).contains(&point[0]))
        .map(|point| point[1] as u64)
        .collect();
    RunSpread::of(&mut lags, 1.0)
}

/// Mean use of the processor within the span, in percent of one core; zero without readings.
fn percent(usage: impl Iterator<Item = CpuPoint>, [from, to]: [f64; 2]) -> f64 {
    let within = |point: &CpuPoint| (from..to).contains(&(point.at_ms as f64 / 1e3));
    let mut points = usage.filter(within);
    let (Some(first), Some(last)) = (points.next(), points.last()) else {
        return 0.0;
    };
    let used = last.cpu_ms.saturating_sub(first.cpu_ms);
    used as f64 / (last.at_ms - first.at_ms) as f64 * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::RunSeries;

    #[test]
    fn all_labs_can_run() {
        for lab in &LABS {
            assert_eq!(lab.scenario(60).check(), Ok(()));
            assert_eq!(lab.scenario(10).check(), Ok(()));
        }
    }

    #[test]
    fn readings_outside_of_the_span_do_not_count() {
        let mut report = RunReport::new("lab", "x", 1);
        report.lag = vec![RunSeries {
            name: "a".to_owned(),
            points: vec![[1.0, 90.0], [12.0, 1.0], [13.0, 0.0], [14.0, 80.0]],
        }];
        let lag = lag(&report, [12.0, 14.0]).unwrap();
        assert_eq!((lag.count, lag.max), (2, 1.0));
        let point = |second: u64, cpu_ms| CpuPoint {
            at_ms: second * 1_000,
            cpu_ms,
        };
        let usage = [point(1, 0), point(12, 500), point(13, 600), point(20, 900)];
        assert_eq!(percent(usage.into_iter(), [12.0, 14.0]), 10.0);
        assert_eq!(percent(usage.into_iter().take(1), [12.0, 14.0]), 0.0);
    }
}
