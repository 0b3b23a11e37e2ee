//! The batcher: posts the blocks of the sequencer on L1.

pub mod options;
pub mod throttle;
