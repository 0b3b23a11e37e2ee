//! Types that the chain's threads and their callers share: heads, outcomes, errors, and the state
//! ([`Shared`]) that threads and [`Chain`](super::Chain) handles have in common.
//!
//! In the module graph, this is above the store, views, the EVM and the pool, and below the
//! executor, the persister and the builder.

use crate::chain::{
    abandoned,
    blobs::{BlobStore, BlobStoreError},
    evm::StateError,
    genesis::GenesisError,
    head_owner::HeadOwner,
    payload_log::LogError,
    pool::Pool,
    rejected::RejectedBlocks,
    rows::ReadError,
    rules::ChainSpec,
    store::StoreError,
    view::View,
};
use alloy_primitives::{B256, map::HashMap};
use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use starling_proto::{
    fork::{ForkOrderError, LagoonBlock},
    network::overrides::RuleChangeError,
    payload::{BlockId, Payload},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// Time between two attempts to write to a full disk.
const RETRY_NO_SPACE: Duration = Duration::from_secs(2);

/// The three heads that a fork choice moves. `safe` and `finalized` are `None` until a fork choice
/// has named them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    pub head: BlockId,
    /// Timestamp of the head, Unix seconds.
    pub timestamp: u64,
    pub safe: Option<BlockId>,
    pub finalized: Option<BlockId>,
}

/// Outcome of inserting a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inserted {
    Valid,
    Invalid {
        latest_valid: Option<B256>,
        reason: String,
    },
    /// The payload was not executed, since its parent is not known.
    Syncing,
    /// The payload was not executed although its parent is known: there are too many blocks at its
    /// height, side branches use too much memory, or its parent is too deep below the stored head.
    /// It can be executed once the head has moved to the parent.
    NotExecutable,
}

/// The reason why the chain could not serve a request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ChainError {
    #[error("the chain has stopped")]
    Stopped,
    #[error(transparent)]
    Database(#[from] Arc<StoreError>),
    #[error(transparent)]
    PayloadLog(#[from] Arc<LogError>),
    #[error(transparent)]
    Blobs(#[from] Arc<BlobStoreError>),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("the database does not say which chain it holds: run `starling init` again")]
    NoGenesisConfig,
    #[error(transparent)]
    GenesisConfig(#[from] Arc<GenesisError>),
    #[error(transparent)]
    RuleChange(#[from] RuleChangeError),
    #[error("the fork times are out of order: {0}")]
    ForkOrder(#[from] ForkOrderError),
    #[error(
        "{fork} is to be active in the genesis block, which lacks its header fields: initialise a data directory with a genesis file of {fork}"
    )]
    GenesisLacks { fork: &'static str },
    #[error(
        "the data directory holds an Ethereum chain, and a network name or --override.* is for OP Stack chains: leave it out"
    )]
    NotOptimism,
    #[error(
        "the data directory holds chain {have} with its genesis block, and the network is chain {want} with another one: give the data directory of that network"
    )]
    OtherNetwork { have: u64, want: u64 },
    #[error("a thread of the chain cannot be started: {0}")]
    Thread(#[source] Arc<std::io::Error>),
    #[error("no block {0} in the chain")]
    UnknownBlock(B256),
    #[error("block {block} is not on the branch of {head}")]
    NotOnBranch { block: B256, head: B256 },
    #[error("the finalized block {finalized} would be above the safe block {safe}")]
    FinalizedAboveSafe { safe: BlockId, finalized: BlockId },
    #[error("the block cannot be built: {0}")]
    Build(String),
    /// The request may succeed later.
    #[error("the chain is busy: {0}")]
    Busy(&'static str),
    #[error("no payload is being built under this id")]
    UnknownPayload,
    #[error(transparent)]
    Lagoon(#[from] LagoonBlock),
    #[error("another block {have} is already signed for this height, parent and L1 origin")]
    AlreadySigned { have: B256 },
}

impl ChainError {
    /// Whether the data directory holds no chain, which `starling init` changes.
    pub fn is_uninitialised(&self) -> bool {
        matches!(self, Self::Database(error) if matches!(**error, StoreError::Missing(_) | StoreError::Uninitialised(_)))
    }

    /// Whether the chain cannot continue: it has stopped, or its data cannot be read or written.
    pub fn is_fatal(&self) -> bool {
        // All variants are listed, so that the compiler reports a new one that is missing here.
        match self {
            Self::Stopped
            | Self::Database(_)
            | Self::PayloadLog(_)
            | Self::Blobs(_)
            | Self::Read(_)
            | Self::State(_)
            | Self::NoGenesisConfig
            | Self::GenesisConfig(_)
            | Self::RuleChange(_)
            | Self::ForkOrder(_)
            | Self::GenesisLacks { .. }
            | Self::OtherNetwork { .. }
            | Self::NotOptimism
            | Self::Thread(_) => true,
            Self::UnknownBlock(_)
            | Self::NotOnBranch { .. }
            | Self::FinalizedAboveSafe { .. }
            | Self::Build(_)
            | Self::Busy(_)
            | Self::UnknownPayload
            | Self::Lagoon(_)
            | Self::AlreadySigned { .. } => false,
        }
    }
}

impl From<StoreError> for ChainError {
    fn from(error: StoreError) -> Self {
        Self::Database(Arc::new(error))
    }
}

impl From<BlobStoreError> for ChainError {
    fn from(error: BlobStoreError) -> Self {
        Self::Blobs(Arc::new(error))
    }
}

impl From<LogError> for ChainError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::GuardConflict { have } => Self::AlreadySigned { have },
            other => Self::PayloadLog(Arc::new(other)),
        }
    }
}

impl From<GenesisError> for ChainError {
    fn from(error: GenesisError) -> Self {
        Self::GenesisConfig(Arc::new(error))
    }
}

/// State that the chain's threads share with the [`Chain`](super::Chain) handles.
pub struct Shared {
    pub spec: Arc<ChainSpec>,
    pub pool: Arc<Pool>,
    /// Blobs of the blocks that were built here.
    pub(super) blobs: BlobStore,
    pub(super) view: ArcSwap<View>,
    pub(super) heads: watch::Sender<Heads>,
    pub(super) head_owner: watch::Sender<HeadOwner>,
    /// Payloads of the blocks in the executor's tree, by hash.
    pub(super) known: RwLock<HashMap<B256, Arc<Payload>>>,
    /// Recently abandoned blocks.
    pub(super) abandoned: Mutex<abandoned::AbandonedBlocks>,
    /// The newest invalid blocks.
    pub(super) rejected: Mutex<RejectedBlocks>,
    pub(super) stopping: AtomicBool,
}

impl Shared {
    /// Whether the threads should finish their current work and end.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Calls `write` again while it fails for lack of disk space, until it succeeds or the chain is
    /// stopped.
    pub(super) fn retry_while_full<T, E: std::fmt::Display>(
        &self,
        is_full: impl Fn(&E) -> bool,
        mut write: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            match write() {
                Err(error) if is_full(&error) && !self.is_stopping() => {
                    tracing::error!(%error, "writing has stopped, and continues by itself when there is space");
                    std::thread::sleep(RETRY_NO_SPACE);
                }
                result => return result,
            }
        }
    }
}
