//! Starling: an OP Stack node in one binary. This page is the architecture.
//!
//! # Crates
//!
//! `proto` ◀ `p2p` ◀ this crate ◀ `netsim`. *proto* is the protocol: wire formats and every rule that needs no I/O. *p2p* is the
//! swarm: one task that owns libp2p, behind a cloneable [`starling_p2p::Network`]. This crate is the node. Nothing reaches back.
//!
//! # Words
//!
//! A **payload** is a block on the wire. The **follower** ([`follow`]) takes blocks from the network into the **chain** ([`chain`],
//! the execution core), whose **executor** and **persister** are threads. A **view** ([`chain::view::View`]) is one consistent
//! reading of the chain. The **engine** ([`engine`]) is what a rollup node in another process may say to it. The **heads** are
//! unsafe, safe and finalized.
//!
//! # Flows
//!
//! *A gossiped block*: socket ▸ decompressed once, never failing ▸ checked on the swarm's own threads, signature before decoding ▸
//! verdict to gossipsub at once ▸ gap filling if its parent is missing ═▸ follower ═▸ executor: execute, root, tree, publish a
//! view ▸ everyone who follows heads. While a rollup node drives an execution core ([`chain::driver`]), such a block is executed but does
//! not become the head, and gaps are filled only below the heads that the rollup node names.
//!
//! *A transaction*: wallet ▸ `rpc` ▸ forwarded to the sequencer, or into the pool ▸ the sequencer's tick: origin ▸ attributes ▸
//! start … seal ▸ payload log and guard row, fsync ▸ sign ▸ publish ▸ the flow above on every replica.
//!
//! *Heads without gaps*: `watch<Heads>` only wakes; each consumer keeps a [`chain::heads::Cursor`] and walks from it.
//!
//! # Storage
//!
//! The store holds the canonical chain only: the flat state (latest), path-keyed trie nodes, an unwind record and state history per
//! block, blocks, receipts, indexes. Blocks above it live in memory as overlays of the same rows. A branch that leaves below the
//! stored head stands on turned-around unwind records. Every accepted payload is in the payload log before its state is stored, so
//! a killed process executes it again at open; but for those of a file and of a gap, which are read or fetched again.
//!
//! # Rules of the house
//!
//! `tests/it/tidy.rs` holds the invariants. Decisions are pure (events and `now` in, actions out); I/O is a thin shell. Every piece
//! of state has one owner, every channel a bound. Only [`node`] spawns long-lived tasks.

pub mod chain;
pub mod cli;
pub mod db;
pub mod devnet;
pub mod engine;
pub mod follow;
pub mod node;
pub mod open_files;
pub mod period;
pub mod rollup;
pub mod rpc;
pub mod tasks;
pub mod telemetry;
pub mod transfer;

/// For the program and for everything that measures it. Rows and nodes of all sizes come and go on many threads for months: with glibc's
/// allocator the process held twice the memory that was in use after ten minutes of full blocks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
