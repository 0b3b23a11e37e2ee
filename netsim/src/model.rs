//! The model: blocks crossing networks that are too large to run, as discrete events. Numbers only:
//! no process, no socket, no clock.
//!
//! ```text
//! cli ── simulate ── world: queue of events + heartbeats
//!                      ├─ gossip   copies, duplicates, IHAVE, IWANT, IDONTWANT
//!                      ├─ mesh     GRAFT and PRUNE between lo and hi
//!                      ├─ range    joining nodes and their range sync
//!                      ├─ lines    bandwidth, delay, jitter, loss (the ladder's)
//!                      ├─ processors  those of one machine, for comparison with a lab
//!                      └─ outcome  report::RunReport
//! ```
//!
//! The seed determines everything. Memory: 21 bytes for each end of a connection (29 where each link
//! has a bandwidth of its own), some 200 bytes per node, 5 bytes per node and block, 32 bytes per
//! event in the queue, which holds about ten copies per node while a block crosses the network.
//! `docs/network.md` says what is left out.

pub mod cli;
mod config;
mod gossip;
mod lines;
mod mesh;
mod node;
mod outcome;
mod processors;
mod queue;
mod range;
mod samples;
#[cfg(test)]
mod tests;
mod topology;
mod world;

pub use config::{
    BandwidthScope, LinkShare, MeshShape, ModelConfig, ModelError, PeerRange, ProcessorLoad,
};
pub use outcome::ModelOutcome;
pub use world::ModelCounts;

/// Runs the network of `config` to its end.
pub fn simulate(config: &ModelConfig) -> Result<ModelOutcome, ModelError> {
    config.validate()?;
    let mut world = world::ModelWorld::new(config);
    world.run();
    Ok(ModelOutcome::of(config, world))
}
