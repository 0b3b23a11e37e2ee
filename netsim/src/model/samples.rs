//! Samples of the whole network over time: sizes of the meshes, and blocks behind the newest one,
//! as quantiles over the established nodes. A sample is taken just before a block is published, so
//! a node is behind only if it lacks a block for a whole block time.

use super::{
    config::ModelConfig,
    node::ModelNode,
    world::{SECOND, WARM_UP},
};
use crate::report::RunSeries;

/// Largest number of samples of a run.
const SAMPLES: u64 = 240;
const NAMES: [&str; 3] = ["least", "median", "most"];

pub(super) struct ModelSamples {
    next: u64,
    step: u64,
    end: u64,
    pub mesh: [RunSeries; 3],
    pub lag: [RunSeries; 3],
}

impl ModelSamples {
    pub fn new(config: &ModelConfig) -> Self {
        let block_time = config.block_time.as_nanos() as u64;
        let end = WARM_UP + block_time * u64::from(config.blocks);
        let least = (end / SAMPLES).max(SECOND / 4);
        let step = least.next_multiple_of(block_time);
        let series = || {
            NAMES.map(|name| RunSeries {
                name: name.to_owned(),
                points: Vec::new(),
            })
        };
        Self {
            next: (WARM_UP - 1) % step,
            step,
            end,
            mesh: series(),
            lag: series(),
        }
    }

    /// Time of the next sample if it is due before `time`.
    pub fn due(&mut self, time: u64) -> Option<u64> {
        let due = (self.next <= time && self.next <= self.end).then_some(self.next)?;
        self.next += self.step;
        Some(due)
    }

    /// Takes a sample when `published` blocks were published.
    pub fn take(&mut self, at: u64, published: u32, nodes: &[ModelNode]) {
        let seconds = at as f64 / SECOND as f64;
        let add = |series: &mut [RunSeries; 3], mut values: Vec<u32>| {
            values.sort_unstable();
            let picked = [
                values[0],
                values[values.len() / 2],
                values[values.len() - 1],
            ];
            for (series, value) in series.iter_mut().zip(picked) {
                series.points.push([seconds, value.into()]);
            }
        };
        add(&mut self.mesh, nodes.iter().map(|it| it.mesh).collect());
        let behind = nodes.iter().map(|it| published - it.head.min(published));
        add(&mut self.lag, behind.collect());
    }
}
