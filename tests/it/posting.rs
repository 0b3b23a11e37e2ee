//! Batcher and proposer end to end, as processes: stops in every mode, kills, L1 reorgs, one chain
//! through every mode, and throttling. Each test reads what L1 holds, and has a replica that derives
//! from L1 alone. The first comment of a file names the variables of its full size.

mod chain;
pub mod inbox;
mod kills;
pub mod load;
mod modes;
pub mod process;
pub mod relay;
mod reorgs;
mod stops;
mod throttling;
