//! The simulation: a network of 2 to 16 nodes in virtual time, every event drawn from one seed.
//!
//! Each node is the production machines of the swarm (`starling_p2p::machines`) and the pure rules
//! of the protocol (`starling_proto`): gap and range sync, the rules by which blocks are served,
//! the gossip check, the change of the signer, scores, bans, ledger, gate, redial of static peers,
//! dial candidates, trimming of peers, the sequencer's schedule and its choice between a new block
//! and one that it may have signed before, and in every other world derivation, the channel manager
//! and the transaction manager of the batcher ([`batcher`]). A message layer ([`wires`]) stands for
//! libp2p and discv5, and [`l1`] for L1. The chain of a node ([`chain`]) is a tree of hashes
//! ([`tree`]), or the production executor, persister and payload log on a temporary store
//! ([`real`]).
//!
//! [`plan`] draws nodes and faults, [`world`] runs them in a [`context`]
//! ([`active`] has the faults of a moment), [`checks`] tests what must hold at every
//! step and at the end, and [`shrink()`] finds a smaller plan that fails too. [`planted`] has bugs for
//! tests of the checks. [`cli`] is `netsim sim`.
//!
//! Time stands still while a machine works, so nothing can overload a world: its queue of events is
//! bounded by what the machines have in flight, which [`checks`] tests.

mod active;
mod batcher;
mod chain;
mod checks;
pub mod cli;
mod context;
mod history;
mod hostile;
mod keys;
mod l1;
mod node;
mod plan;
mod planted;
mod queue;
mod real;
mod rollup;
mod shrink;
mod tree;
mod wires;
mod world;

pub use chain::ChainKind;
pub use checks::Violation;
pub use plan::{DerivationPlan, SimFault, SimPlan, TimedFault};
pub use planted::PlantedBug;
pub use real::{ImportTime, memory_folder};
pub use shrink::shrink;
pub use world::{SimOutcome, simulate, simulate_to_end};
