//! The labs of a calibration: a network on one rung, and a line of three nodes over loopback.

use crate::{
    lab::{
        LabScenario, LabVerb,
        scenario::{LabReplica, LabStep, LabTarget},
    },
    ladder::Rung,
};
use std::time::Duration;

/// Time before the first block that counts, in seconds. Of 64 nodes on two processors, the last one
/// has caught up 26 s after all of them respond.
const WARM_UP: u64 = 40;
/// Time after the last block that counts until the end.
const REST: u64 = 12;
/// Memory of a node in MB, with 63 peers.
const MEMORY: u64 = 512;
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
        let to = from + Duration::from_secs(self.blocks * self.block_time);
        LabSpan { from, to }
    }

    /// A network of `nodes` nodes.
    pub fn network(&self, nodes: u32, rung: &'static Rung) -> LabScenario {
        let name = format!("calibrate-{}-{nodes}", rung.name);
        let purpose = "Propagation of blocks in a whole network, beside the model";
        let mut scenario = self.scenario(&name, purpose);
        scenario.rung = rung;
        let name = |number| LabReplica::new(&format!("r{number}"), Duration::ZERO);
        scenario.replicas = (1..nodes).map(name).collect();
        scenario
    }

    /// Three nodes in a line over loopback: the sequencer, `a` and `b`.
    pub fn line(&self) -> LabScenario {
        let purpose = "Time of one hop and of two, without delays and without other nodes";
        let mut scenario = self
            .scenario("calibrate-line", purpose)
            .replicas(["a", "b"]);
        let direct = LabTarget::Pair("seq".to_owned(), "b".to_owned());
        let cut = LabStep {
            at: Duration::from_secs(1),
            verb: LabVerb::Cut(direct),
            line: 0,
        };
        scenario.steps.push(cut);
        scenario
    }

    fn scenario(&self, name: &str, purpose: &str) -> LabScenario {
        let active = self.active().to.as_secs();
        let mut scenario = LabScenario::new(name, purpose)
            .load(self.load)
            .seconds(active + REST);
        scenario.block_time = self.block_time;
        scenario.allow.memory_mb = MEMORY;
        scenario.allow.lag = LAG;
        scenario
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: CalibrationPlan = CalibrationPlan {
        blocks: 60,
        block_time: 1,
        load: 0,
    };

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
        assert!(active.to + Duration::from_secs(REST) <= PLAN.line().length);
        assert!(active.contains_ms(40_000) && !active.contains_ms(100_000));
    }
}
