//! The proposer: posts output roots of L2 blocks on L1, which withdrawals are proven against.
//!
//! There are two kinds of target contract. An L2OutputOracle names the next block itself. A
//! DisputeGameFactory gets one dispute game per interval. [`options`] has the settings and their
//! checks, [`contracts`] encodes calls and decodes responses, and [`schedule`] decides when to
//! propose which block; these three are pure. [`reader`] reads the contracts on L1, [`source`]
//! reads the roots, [`task`] is the loop, and [`handle`] stops and starts the loop.
//!
//! The callers are the node and the `admin` RPC, through [`handle`] (16 queued commands). At most
//! one transaction is in flight. The walk over games is bounded by `reader::MAX_WALK`.
//!
//! Nothing is stored on disk. Every decision follows from one reading of the source and one of L1:
//! the contracts at one block, that block's time as the clock, and the account's pending
//! transactions. If a proposer is killed between sending a transaction and its receipt, the next
//! start finds the proposal on L1, or waits until it is mined.

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
