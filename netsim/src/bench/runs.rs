//! Speed and memory of simulations and models, which need no other process.

use super::{
    BenchFigures, BenchLine,
    process::{peak_mb, thread_time},
};
use crate::{
    model::{self, ModelConfig},
    sim::{self, SimPlan},
};
use std::time::Instant;

/// Simulated worlds, the virtual minutes and the nodes of each, and the largest processor time of
/// one in milliseconds.
const WORLDS: u64 = 200;
const MINUTES: u64 = 10;
const NODES: usize = 5;
const WORLD_MS: f64 = 20.0;

/// Nodes of models, with the bars of their time in seconds and of their memory in MB.
const MODELS: [(u32, Option<f64>, f64); 2] =
    [(10_000, Some(10.0), 1_000.0), (50_000, None, 2_000.0)];
const BLOCKS: u32 = 100;

/// Measures worlds with blocks every 2 s, without faults. Those with derivation have no bar: their
/// nodes also read a model of L1.
pub fn simulations(figures: &mut BenchFigures) -> anyhow::Result<()> {
    for derives in [false, true] {
        let begun = thread_time();
        for seed in 0..WORLDS {
            let plan = SimPlan::draw(seed, Some(NODES), MINUTES).with_derivation(Some(derives));
            let outcome = sim::simulate(&plan.without_faults(), false);
            if let Some(violation) = outcome.violation {
                anyhow::bail!("the simulation of seed {seed} fails: {violation}");
            }
        }
        let each = (thread_time() - begun).as_secs_f64() * 1e3 / WORLDS as f64;
        let kind = if derives { ", with derivation" } else { "" };
        let name = format!("simulation: {NODES} nodes for {MINUTES} virtual minutes{kind}");
        let line = BenchLine::new(name, each, "ms of a core");
        figures.add(if derives {
            line
        } else {
            line.at_most(WORLD_MS)
        });
    }
    Ok(())
}

/// Measures models of blocks of 5 KB.
pub fn models(figures: &mut BenchFigures) -> anyhow::Result<()> {
    for (nodes, seconds, megabytes) in MODELS {
        let config = ModelConfig {
            nodes,
            blocks: BLOCKS,
            ..ModelConfig::default()
        };
        let begun = Instant::now();
        let (outcome, peak) = peak_mb(|| model::simulate(&config))?;
        let took = begun.elapsed().as_secs_f64();
        let of = format!("model: {nodes} nodes, {BLOCKS} blocks");
        let time = BenchLine::new(format!("{of}: time"), took, "s");
        figures.add(match seconds {
            Some(bar) => time.at_most(bar),
            None => time,
        });
        let events = outcome?.counts().events as f64 / took / 1e6;
        figures.add(BenchLine::new(format!("{of}: speed"), events, "M events/s"));
        let memory = BenchLine::new(format!("{of}: memory"), peak, "MB");
        figures.add(memory.at_most(megabytes));
    }
    Ok(())
}
