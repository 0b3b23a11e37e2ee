//! Batcher and proposer end to end, as processes: stops in every mode, kills, L1 reorgs, one chain
//! posted in every mode, and throttling. Each test reads the data posted on L1, and has a replica
//! that derives from L1 alone. The module docs of each file name the variables for a run at full
//! size.

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
