//! Starling: an OP Stack node in one binary.
//!
//! `docs/architecture.md` is the long version of this page: flows with their files, threads and
//! queues, storage and its crash argument, the module graph. Modules in reading order: [`node`]
//! wires everything, [`follow`] takes blocks from the swarm, [`chain`] executes and stores them,
//! [`rollup`] derives the safe chain and sequences, [`rpc`] serves clients.
//!
//! # Rules
//!
//! `proto` ◀ `p2p` ◀ this crate ◀ `netsim`; nothing reaches back. Decisions are pure (events and
//! `now` in, actions out) and I/O is a thin shell. Every piece of state has one owner, every
//! channel a bound. Only [`node`] spawns long-lived tasks. `tests/it/tidy.rs` checks most of
//! these rules.
//!
//! # Glossary
//!
//! - **payload**: a block on the wire, with or without its signature.
//! - **head**: unsafe (newest), safe (derivable from L1), finalized (final on L1).
//! - **branch**, **fork point**: a chain of blocks beside the canonical one, and the last block
//!   that both have. A **displaced head** is one that a longer branch replaced.
//! - **view** ([`chain::view::View`]): one consistent reading of the chain at a head.
//! - **overlay**: the rows that an executed block changes, kept in memory until it is stored.
//! - **executor**, **persister**, **builder**: the threads that execute blocks, store them and
//!   build new ones.
//! - **store**: the canonical chain on disk (fjall). **Keyspace**, **memtable**, **flush**,
//!   **compaction**, **journal** and **manifest** are terms of such a database.
//! - **unwind record**: the previous values of the rows that a block changed. An **unwind** applies
//!   unwind records, block by block, to move the store's head down.
//! - **payload log**: every accepted payload, written before its state. A **replay** executes these
//!   payloads again at open. A **guard row** says that a block of a height may have been signed.
//! - **core**: the executor, its views and its store, in this process or (for `starling rollup`) in an
//!   execution client. **Engine** ([`rollup::engine::Engine`]): the handle on a core, local or over
//!   the Engine API; never the database. **Head owner**: the party that moves the unsafe head, a
//!   rollup node or the node itself.
//! - **pipeline**: the stages of derivation. The pipeline's **L1 origin** is the L1 block up to which
//!   it has read. A block is **pending-safe** inside a span batch and **local-safe** after the batch's
//!   **concluding** block. To **consolidate** is to find that the unsafe block matches the derived
//!   attributes.
//! - **inclusion block** (in records and attributes: `derived_from`): the L1 block that completed the
//!   data of a batch. **Epoch**: the L1 block that a batch names as its L1 origin.
//! - **class** of a transaction: whether it carries its data as calldata or in blobs (op-batcher: DA
//!   type). **Filler**: an empty transaction that uses up a nonce, so that later nonces can be mined.
//! - **attributes**: everything that determines a block, except its transactions from the pool. **L1
//!   origin**: the L1 block from which an L2 block has its deposits and its L1 base fee.
//! - **swarm**: the libp2p host and its peers. **Mesh**: the peers that gossip goes to. **Static**
//!   peers are configured, **protected** peers are set by an operator, both are **trusted**.
//! - **gap**: missing blocks between a known block and a signed one. The **skeleton** of a gap is the
//!   missing blocks' hashes, its **bodies** are the blocks themselves.
//! - **offence**, **penalty**, **score**, **ban**: a peer's misbehaviour, its cost, the sum, and
//!   the consequence; the **ledger** keeps the reasons.
//! - **permit**, **quota**, **budget**: bounds of work at once, of work per time, and of memory.
//!   **Cool-down**: the time for which an endpoint gets no request after a failure.
//! - **heavy call**: an RPC call that runs the EVM or scans many blocks, in slices of time.
//! - **interval block production**: a block every N seconds on an L1 of our own (`--dev.period`).

pub mod batcher;
pub mod beacon_api;
pub mod chain;
pub mod cli;
pub mod clock;
pub mod db;
pub mod devnet;
pub mod file_access;
pub mod follow;
pub mod interval;
pub mod jwt;
pub mod l2_source;
pub mod networks;
pub mod node;
pub mod open_files;
pub mod pending;
pub mod proposer;
pub mod rollup;
pub mod rpc;
pub mod script_host;
pub mod secret;
pub mod tasks;
pub mod telemetry;
pub mod transfer;
pub mod txmgr;
pub mod version;

/// The execution core and the state machines of batcher and transaction manager, for simulations of
/// networks.
#[doc(hidden)]
pub mod machines {
    pub use crate::{
        batcher::{
            blocks::Insertion,
            channels::ChannelPlan,
            state::{BatcherNotice, BatcherRules, BatcherState, NextTx, PublishContext},
            sync_actions::SourceStatus,
        },
        chain::{
            Chain, ChainError, Inserted, Options, Threads, genesis, init, payload_log_dir,
            store::{Store, StoreError},
        },
        db::verify::{Samples, verify, verify_payload_log},
        txmgr::{
            fees::{FeeCaps, FeeRules, L1Fees, TxClass},
            machine::{
                AccountReading, MinedTx, SendAction, SendEvent, SendFailure, SendId, SendMachine,
                SendRules, SendSettings, SendWork, SignedTx,
            },
            options::TxOptions,
            publish_result::PublishResult,
        },
    };
}

/// Allocator of the program, and of every test, benchmark and tool that links this crate. The
/// process allocates and frees rows and nodes of all sizes on many threads for months. With glibc's
/// allocator, it held twice the memory in use after ten minutes of full blocks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
