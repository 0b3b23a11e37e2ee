//! The model of a lab's network, with the measured times, beside the lab.
//!
//! Without processors, each hop takes the time that it takes in the line, and the line's first hop
//! is added to all times. With processors, the same work is done on those of this machine: a copy,
//! a check, an import and what follows it each take processor time, and wait while other nodes work.
//! Work between blocks (announcements, timers, readings of the controller) is left out.

use super::{
    measured::{HopTimes, LabMeasurement, millis},
    plan::CalibrationPlan,
};
use crate::{
    ladder::Rung,
    model::{
        BandwidthScope, LinkShare, ModelConfig, ModelError, PeerRange, ProcessorLoad, simulate,
    },
    report::{RunCalibration, RunPropagation, RunSeries, RunSpread},
};

/// Blocks of the model. There is no reason to have as few as a lab.
const BLOCKS: u32 = 200;
/// Size of a block without transactions on the wire, in bytes, and of each transaction in it.
const EMPTY: u32 = 1 << 10;
const TRANSACTION: u32 = 130;

/// A lab's network, and the machine.
#[derive(Clone, Copy, Debug)]
pub struct CalibratedNetwork {
    pub nodes: u32,
    pub rung: &'static Rung,
    pub cores: u32,
    pub seed: u64,
}

/// Costs of the model with shared processors, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WorkCosts {
    copy: f64,
    check: f64,
    /// Work from the check until the block is the head.
    import: f64,
    /// Work after that, which delays other nodes only.
    rest: f64,
}

impl WorkCosts {
    /// A copy costs the work that the network has in addition to the line, for each further copy, and
    /// at most the time that the check leaves of a hop.
    fn of(lab: &LabMeasurement, line: &HopTimes) -> Self {
        let most = (line.hop - line.check).max(0.0);
        let further = (lab.copies - 1.0).max(1.0);
        let copy = ((lab.work - line.work) / further).clamp(0.0, most);
        Self {
            copy,
            check: line.hop - copy,
            import: (line.first - line.hop).max(0.0),
            rest: (line.work - line.first.max(line.hop)).max(0.0),
        }
    }
}

/// One row: the lab, and both models of its network.
pub fn row(
    network: &CalibratedNetwork,
    plan: &CalibrationPlan,
    lab: LabMeasurement,
    line: &HopTimes,
) -> Result<RunCalibration, ModelError> {
    let mut config = config(network, plan);
    config.check = line.hop_time();
    let model = simulate(&config)?.report();
    let costs = WorkCosts::of(&lab, line);
    config.check = millis(costs.check);
    config.processors = Some(ProcessorLoad {
        cores: network.cores,
        copy: millis(costs.copy),
        import: millis(costs.import),
        rest: millis(costs.rest),
    });
    let shared = simulate(&config)?.report();
    let quiet = shifted(model.propagation.unwrap_or_default(), line.first);
    let loaded = shared.propagation.unwrap_or_default();
    let duplicates = model.traffic.and_then(|it| it.duplicates);
    let mesh = model.mesh.iter().find(|series| series.name == "median");
    let mesh = mesh.and_then(|series| series.points.last());
    let curve = |name: &str, points| RunSeries {
        name: name.to_owned(),
        points,
    };
    Ok(RunCalibration {
        nodes: network.nodes,
        links: network.rung.name.to_owned(),
        blocks: lab.blocks,
        lab: lab.propagation,
        model: quiet.all,
        shared: loaded.all,
        copies: [lab.copies, 1.0 + duplicates.map_or(0.0, |it| it.mean)],
        mesh: [lab.mesh, mesh.map_or(0.0, |point| point[1])],
        work: lab.work,
        wait: lab.wait,
        copy: costs.copy,
        background: lab.background / f64::from(network.cores),
        line_work: line.work,
        curves: vec![
            curve("lab", lab.curve),
            curve("model", quiet.curve),
            curve("model with shared processors", loaded.curve),
        ],
    })
}

/// The lab's network: every two nodes are connected by a link of their own.
fn config(network: &CalibratedNetwork, plan: &CalibrationPlan) -> ModelConfig {
    let all = (network.nodes - 1).max(1);
    ModelConfig {
        nodes: network.nodes,
        blocks: BLOCKS,
        block_bytes: EMPTY + TRANSACTION * plan.load * plan.block_time as u32,
        block_time: std::time::Duration::from_secs(plan.block_time),
        links: vec![LinkShare::whole(network.rung.name)],
        scope: BandwidthScope::Link,
        peers: PeerRange { lo: all, hi: all },
        check_per_kib: std::time::Duration::ZERO,
        seed: network.seed,
        ..ModelConfig::default()
    }
}

/// A propagation whose times are all longer by `offset` milliseconds.
fn shifted(mut propagation: RunPropagation, offset: f64) -> RunPropagation {
    let later = |ms: f64| (ms + offset).max(0.0);
    let RunSpread {
        count,
        mean,
        p50,
        p90,
        p99,
        max,
    } = propagation.all;
    let [mean, p50, p90, p99, max] = [mean, p50, p90, p99, max].map(later);
    propagation.all = RunSpread {
        count,
        mean,
        p50,
        p90,
        p99,
        max,
    };
    for point in &mut propagation.curve {
        point[0] = later(point[0]);
    }
    propagation
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::plan::PLAN;

    const LINE: HopTimes = HopTimes {
        first: 4.0,
        hop: 1.0,
        check: 0.5,
        work: 5.0,
    };

    fn network(nodes: u32, rung: &str) -> CalibratedNetwork {
        CalibratedNetwork {
            nodes,
            rung: Rung::named(rung).unwrap(),
            cores: 2,
            seed: 1,
        }
    }

    fn lab(work: f64, copies: f64) -> LabMeasurement {
        LabMeasurement {
            blocks: 60,
            work,
            copies,
            background: 0.2,
            ..LabMeasurement::default()
        }
    }

    #[test]
    fn costs_are_the_work_of_the_line_and_of_further_copies() {
        let costs = WorkCosts::of(&lab(6.2, 7.0), &LINE);
        let expected = WorkCosts {
            copy: 0.2,
            check: 0.8,
            import: 3.0,
            rest: 1.0,
        };
        let of = |it: WorkCosts| [it.copy, it.check, it.import, it.rest];
        for (found, wanted) in of(costs).into_iter().zip(of(expected)) {
            assert!((found - wanted).abs() < 1e-9, "{costs:?}");
        }
        // No copy takes more than the check leaves of a hop, and none a negative time.
        assert_eq!(WorkCosts::of(&lab(99.0, 7.0), &LINE).copy, 0.5);
        assert_eq!(WorkCosts::of(&lab(1.0, 7.0), &LINE).copy, 0.0);
        let line = HopTimes { check: 2.0, ..LINE };
        assert_eq!(WorkCosts::of(&lab(6.2, 7.0), &line).copy, 0.0);
    }

    #[test]
    fn two_nodes_have_the_first_hop_of_the_line_in_both_models() {
        let row = row(&network(2, "loopback"), &PLAN, lab(5.0, 1.0), &LINE).unwrap();
        assert!((row.model.p50 - 4.0).abs() < 0.01, "{row:?}");
        assert!((row.shared.p50 - 4.0).abs() < 0.01, "{row:?}");
        assert!((row.background - 0.1).abs() < 1e-9, "{row:?}");
        assert_eq!(row.copies[1], 1.0);
    }

    #[test]
    fn many_nodes_wait_for_shared_processors_and_delays_hide_it() {
        let wait = |rung| {
            let row = row(&network(40, rung), &PLAN, lab(7.0, 7.0), &LINE).unwrap();
            assert!(row.shared.p50 > row.model.p50, "{row:?}");
            assert!(row.curves.iter().skip(1).all(|it| it.points.len() > 10));
            row.shared.p50 / row.model.p50
        };
        let (near, far) = (wait("lan"), wait("transatlantic"));
        assert!(near > 3.0 && far < near, "{near} {far}");
    }
}
