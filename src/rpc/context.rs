//! The parts of the node that methods answer from: the chain, the pool, the network, caches and
//! bounds.
//!
//! The node makes one [`RpcContext`]; [`api`](super::api) binds the methods of all namespaces to
//! it. A rollup node without a chain makes a [`RollupContext`], which the methods of the rollup node
//! need. It names no namespace, so that namespaces can name it.

use super::{
    access::Access, bounds::Bounds, cost_gate::CostGate, decoded::DecodedBlocks,
    engine_backend::EngineContext, filters::Filters, historical::Historical, node_files::NodeFiles,
    paused_replays::PausedReplays, route::TxRoute, server_control::ServerHandle,
};
use crate::{
    chain::{
        Chain, ChainError, Heads,
        abandoned::Abandoned,
        evm::ScriptHost,
        heads::{Cursor, Step, StepError},
        pool::{Pool, journal::TxJournal},
        rejected::BadBlock,
        rules::ChainSpec,
        view::{ReadError, View},
    },
    pending::Pending,
    rollup::{handle::RollupHandle, sequencer::SequencerHandle},
};
use alloy_primitives::B256;
use futures::{FutureExt, future::BoxFuture};
use starling_p2p::Network;
use starling_proto::payload::Payload;
use std::{path::PathBuf, sync::Arc};
use tokio::sync::{Semaphore, watch};

/// RPC's access to a chain: its newest view, a signal for the next, and its pool.
#[derive(Clone)]
pub struct Reader {
    pub spec: Arc<ChainSpec>,
    pub pool: Arc<Pool>,
    /// Wakes when a head moves.
    pub heads: watch::Receiver<Heads>,
    pub view: Arc<dyn Fn() -> Arc<View> + Send + Sync>,
    /// Finds an abandoned block by hash.
    pub abandoned: AbandonedLookup,
    /// The newest invalid blocks, newest first.
    pub rejected: RejectedList,
    /// The `config` object of the genesis file, with the fork times that are in force.
    pub config: ConfigReader,
    /// Moves the head to a block of any branch. Only `debug_setHead` does, where it is served.
    pub set_head: HeadSetter,
}

/// Lookup of abandoned blocks by hash.
pub type AbandonedLookup = Arc<dyn Fn(B256) -> Result<Option<Abandoned>, ReadError> + Send + Sync>;

/// A chain's configuration.
pub type ConfigReader = Arc<dyn Fn() -> Result<serde_json::Value, ChainError> + Send + Sync>;

/// A move of the head.
pub type HeadSetter = Arc<dyn Fn(B256) -> BoxFuture<'static, Result<(), ChainError>> + Send + Sync>;

/// The newest invalid blocks, newest first.
pub type RejectedList = Arc<dyn Fn() -> Vec<BadBlock> + Send + Sync>;

impl From<&Chain> for Reader {
    fn from(chain: &Chain) -> Self {
        let (spec, pool, heads) = (chain.spec().clone(), chain.pool().clone(), chain.heads());
        let (viewed, searched, listed) = (chain.clone(), chain.clone(), chain.clone());
        let (configured, moved) = (chain.clone(), chain.clone());
        let abandoned: AbandonedLookup = Arc::new(move |hash: B256| searched.abandoned(hash));
        Self {
            spec,
            pool,
            heads,
            view: Arc::new(move || viewed.view()),
            abandoned,
            rejected: Arc::new(move || listed.rejected()),
            config: Arc::new(move || configured.config()),
            set_head: Arc::new(move |hash| {
                let chain = moved.clone();
                async move { chain.forkchoice(hash, None, None).await }.boxed()
            }),
        }
    }
}

/// A synchronisation in progress (`eth_syncing`): a gap is being filled from peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncStatus {
    /// Head when the synchronisation began.
    pub starting: u64,
    /// Newest block that is being fetched.
    pub highest: u64,
}

/// The parts of a rollup node that its methods answer from.
#[derive(Clone)]
pub struct RollupContext {
    pub chain_id: u64,
    /// `None` where there is no swarm.
    pub network: Option<Network>,
    /// `None` where no blocks are made.
    pub sequencer: Option<SequencerHandle>,
    /// `None` where no chain is derived.
    pub rollup: Option<RollupHandle>,
    /// Permits of methods that read blocks or state.
    pub(super) reads: Arc<Semaphore>,
}

impl RollupContext {
    /// A rollup node whose core is in another process.
    pub fn new(
        chain_id: u64,
        network: Option<Network>,
        sequencer: Option<SequencerHandle>,
        rollup: Option<RollupHandle>,
    ) -> Self {
        Self {
            chain_id,
            network,
            sequencer,
            rollup,
            reads: Bounds::default().reads,
        }
    }
}

/// The parts of the node that methods answer from.
pub struct RpcContext {
    pub chain: Reader,
    pub route: TxRoute,
    /// `None` where there is no swarm.
    pub network: Option<Network>,
    /// `None` where no blocks are made.
    pub sequencer: Option<SequencerHandle>,
    /// `None` where no chain is derived.
    pub rollup: Option<RollupHandle>,
    /// Reports the synchronisation in progress, or `None` at the head. The field is `None` where
    /// nothing fills a gap.
    pub syncing: Option<watch::Receiver<Option<SyncStatus>>>,
    /// `web3_clientVersion`.
    pub client_version: String,
    /// Leaves `l1FeeScalar` out of receipts from Ecotone on, as op-geth does
    /// (`--rpc.geth-exact-receipts`).
    pub geth_exact_receipts: bool,
    /// The folder of files that tracing methods write and read; `None` where there is none.
    pub traces: Option<PathBuf>,
    /// Runs tracers in JavaScript; `None` where they are turned off (`--rpc.jstracers`).
    pub scripts: Option<ScriptHost>,
    pub filters: Filters,
    pub blocks: DecodedBlocks,
    pub replays: PausedReplays,
    pub bounds: Bounds,
    /// The gate of conditional transactions; `None` where they are not served
    /// (`--rollup.sequencertxconditionalenabled`).
    pub conditional_gate: Option<CostGate>,
    /// `None` where no rollup node drives the chain from outside.
    pub engine: Option<EngineContext>,
    /// Where local transactions are recorded; `None` keeps no journal.
    pub journal: Option<Arc<TxJournal>>,
    /// `None` where there is no data directory.
    pub files: Option<NodeFiles>,
    /// `None` where no server can be started or stopped.
    pub servers: Option<ServerHandle>,
    /// Makes a block that was built here the head; `None` where nothing does.
    pub commit: Option<CommitBlock>,
    /// The source of the block `pending`.
    pub pending: Pending,
    /// History before the first block; `None` where that is block 0.
    pub historical: Option<Historical>,
    /// Keys and budgets; `None` where calls have no limit.
    pub access: Option<Arc<Access>>,
}

/// Inserts a block and makes it the head. The error is a sentence.
pub type CommitBlock =
    Arc<dyn Fn(Arc<Payload>) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

impl RpcContext {
    /// A context without a swarm that is always at the head; set the fields that differ.
    pub fn new(chain: Reader, route: TxRoute) -> Self {
        let client_version = format!(
            "starling/v{}/{}-{}",
            crate::version::VERSION,
            std::env::consts::OS,
            std::env::consts::ARCH
        );
        Self {
            chain,
            route,
            network: None,
            sequencer: None,
            rollup: None,
            syncing: None,
            client_version,
            geth_exact_receipts: false,
            traces: None,
            scripts: None,
            filters: Filters::default(),
            blocks: DecodedBlocks::default(),
            replays: PausedReplays::default(),
            bounds: Bounds::default(),
            conditional_gate: None,
            engine: None,
            journal: None,
            files: None,
            servers: None,
            commit: None,
            pending: Pending::Latest,
            historical: None,
            access: None,
        }
    }

    /// The parts that the methods of a rollup node answer from.
    pub fn rollup_node(&self) -> RollupContext {
        RollupContext {
            chain_id: self.chain.spec.chain_id,
            network: self.network.clone(),
            sequencer: self.sequencer.clone(),
            rollup: self.rollup.clone(),
            reads: self.bounds.reads.clone(),
        }
    }

    /// The newest view. Take it once per request.
    pub fn view(&self) -> Arc<View> {
        (self.chain.view)()
    }

    /// The view whose head is the pending block. Without one that is the newest view.
    pub fn pending_view(&self) -> Arc<View> {
        let view = self.view();
        let pending = self.pending.on(&self.chain.spec, &self.chain.pool, &view);
        pending.unwrap_or(view)
    }

    /// The next step of a cursor.
    pub(super) fn step(&self, cursor: &mut Cursor, view: &View) -> Result<Option<Step>, StepError> {
        cursor.step(view, |hash| (self.chain.abandoned)(hash))
    }
}
