//! Derivation on an L1 that is mined by order: a sequencer builds a chain, a batcher posts it with
//! the encoders of this crate, and a verifier that sees L1 alone must arrive at the sequencer's
//! hashes. Each test does one thing to L1 or to the data, and counts exactly what is dropped.

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
