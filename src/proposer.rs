//! The proposer: claims on L1 the output roots of L2's blocks, from which withdrawals are proven.
//!
//! Proposals go to an L2OutputOracle, which names the next block itself, or as dispute games to a
//! DisputeGameFactory, one per interval. [`options`] has the settings and their checks,
//! [`contracts`] encodes calls and decodes their answers, [`schedule`] decides what is proposed and
//! when: these are pure. [`reader`] reads the contracts on L1, [`source`] the claims, [`task`] is
//! the loop, [`handle`] stops and starts it.
//!
//! Callers are the node and the `admin` RPC, through [`handle`] (16 commands). One transaction is in
//! flight; the walk over games is bounded by `reader::MAX_WALK`.
//!
//! Nothing is kept on disk. Every decision follows from one reading of L1: the contracts at one
//! block, that block's time as the clock, and the account's transactions that are not mined yet. A
//! proposer that was killed between sending and the receipt therefore finds its proposal on L1, or
//! waits for it.

pub mod contracts;
pub mod handle;
mod metrics;
pub mod options;
pub mod reader;
pub mod schedule;
pub mod source;
#[cfg(test)]
mod stand_in;
pub mod task;

pub use handle::{ProposerCommandError, ProposerHandle};
pub use options::ProposerOptions;
pub use source::{ProposalSource, Supervisors};
pub use task::{ProposerError, ProposerParts, ProposerTask, proposer};
