//! Derivation on an L1 that mines on command. A sequencer builds a chain, and a batcher posts it
//! with the encoders of this crate. A verifier that sees only L1 must derive the sequencer's
//! hashes. Each test makes one change to L1 or to the data, and counts exactly what is dropped.

mod batches;
mod data;
mod forks;
mod l1;
mod network;
mod reorgs;
mod seeds;
#[path = "../../src/derive/tests/simulated.rs"]
mod simulated;
mod transactions;
mod unsafe_blocks;
mod verifier;
