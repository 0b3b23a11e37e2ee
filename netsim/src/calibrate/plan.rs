//! The labs of a calibration: a network on one rung, and a line of three nodes over loopback.

use crate::{
    lab::{
        LabScenario, LabVerb,
        measured::{self, WARM_UP},
        scenario::{LabStep, LabTarget},
    },
    ladder::Rung,
};
use std::time::Duration;

/// Blocks by which a node may be behind at one instant: 64 nodes wait for two processors.
const LAG: u64 = 3;

/// Labs of one calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalibrationPlan {
    /// Blocks that count in each lab.
    pub blocks: u64,
    /// Seconds between two blocks.
    pub block_time: u64,
    /// Transactions per second.
    pub load: u32,
}

/// A part of a lab on the scenario's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabSpan {
    pub from: Duration,
    pub to: Duration,
}

impl LabSpan {
    pub fn contains_ms(&self, at: u64) -> bool {
        (self.from..self.to).contains(&Duration::from_millis(at))
    }
}

impl CalibrationPlan {
    /// The span with the blocks that count.
    pub fn active(&self) -> LabSpan {
        let from = Duration::from_secs(WARM_UP);
        let to = from + Duration::from_secs(self.counted());
        LabSpan { from, to }
    }

    /// Seconds of the blocks that count.
    fn counted(&self) -> u64 {
        self.blocks * self.block_time
    }

    /// A network of `nodes` nodes.
    pub fn network(&self, nodes: u32, rung: &'static Rung) -> LabScenario {
        let name = format!("calibrate-{}-{nodes}", rung.name);
        let purpose = "Propagation of blocks in a whole network, beside the model";
        self.finish(measured::network(
            &name,
            purpose,
            self.counted(),
            nodes,
            rung,
        ))
    }

    /// Three nodes in a line over loopback: the sequencer, `a` and `b`.
    pub fn line(&self) -> LabScenario {
        let purpose = "Time of one hop and of two, without delays and without other nodes";
        let scenario = measured::scenario("calibrate-line", purpose, self.counted());
        let mut scenario = self.finish(scenario.replicas(["a", "b"]));
        let direct = LabTarget::Pair("seq".to_owned(), "b".to_owned());
        let cut = LabStep {
            at: Duration::from_secs(1),
            verb: LabVerb::Cut(direct),
            line: 0,
        };
        scenario.steps.push(cut);
        scenario
    }

    /// Sets what all labs of the plan have in common.
    fn finish(&self, scenario: LabScenario) -> LabScenario {
        let mut scenario = scenario.load(self.load);
        scenario.block_time = self.block_time;
        scenario.allow.lag = LAG;
        scenario
    }
}

/// The plan of tests: an empty block each second.
#[cfg(test)]
pub(super) const PLAN: CalibrationPlan = CalibrationPlan {
    blocks: 60,
    block_time: 1,
    load: 0,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labs_of_all_sizes_can_run() {
        for rung in ["lan", "transatlantic"] {
            let rung = Rung::named(rung).unwrap();
            for nodes in [2, 16, 64] {
                let scenario = PLAN.network(nodes, rung);
                assert_eq!(scenario.check(), Ok(()));
                assert_eq!(scenario.replicas.len() as u32, nodes - 1);
            }
        }
        assert_eq!(PLAN.line().check(), Ok(()));
    }

    #[test]
    fn the_blocks_that_count_are_before_the_end() {
        let active = PLAN.active();
        assert!(active.to + Duration::from_secs(measured::REST) <= PLAN.line().length);
        assert!(active.contains_ms(40_000) && !active.contains_ms(100_000));
    }
}
