//! The parts of the node that RPC methods use: the chain, the pool, the network, caches and bounds.
//!
//! The node makes one [`RpcContext`]; [`api`](super::api) binds the methods of all namespaces to
//! it. A rollup node without a chain makes a [`RollupContext`] instead, which has only what the
//! methods of a rollup node need. This module uses no namespace, so that namespaces can use this
//! module.

use super::{
    access::Access,
    bounds::{Bounds, blocking, read_permits},
    cost_gate::CostGate,
    decoded::DecodedBlocks,
    engine_backend::EngineContext,
    error::RpcError,
    filters::Filters,
    historical::Historical,
    node_files::NodeFiles,
    paused_replays::PausedReplays,
    route::TxRoute,
    server_control::ServerHandle,
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
use starling_proto::payload::{BlockId, Payload};
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The methods' access to a chain: its newest view, a signal for the next view, and its pool.
#[derive(Clone)]
pub struct Reader {
    pub spec: Arc<ChainSpec>,
    pub pool: Arc<Pool>,
    /// Notifies of head changes.
    pub heads: watch::Receiver<Heads>,
    pub view: Arc<dyn Fn() -> Arc<View> + Send + Sync>,
    /// Finds an abandoned block by hash.
    pub abandoned: AbandonedLookup,
    /// Lists the newest invalid blocks, newest first.
    pub rejected: RejectedList,
    /// Reads the `config` object of the genesis file, with the fork times that are in force.
    pub config: ConfigReader,
    /// Moves the head to an earlier block of the chain, and lowers the safe and the finalized head
    /// to it. Only `debug_setHead` uses it.
    pub set_head: HeadSetter,
}

/// Function that finds an abandoned block by its hash.
pub type AbandonedLookup = Arc<dyn Fn(B256) -> Result<Option<Abandoned>, ReadError> + Send + Sync>;

/// Function that reads a chain's configuration.
pub type ConfigReader = Arc<dyn Fn() -> Result<serde_json::Value, ChainError> + Send + Sync>;

/// Function that moves the head to this block.
pub type HeadSetter =
    Arc<dyn Fn(BlockId) -> BoxFuture<'static, Result<(), ChainError>> + Send + Sync>;

/// Function that returns the newest invalid blocks, newest first.
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
            set_head: Arc::new(move |head| {
                let chain = moved.clone();
                async move {
                    let view = chain.view();
                    let lowered = |label: Option<BlockId>| {
                        let above = label.filter(|label| label.number > head.number);
                        above.map(|_| head.hash)
                    };
                    let (safe, finalized) = (lowered(view.safe()), lowered(view.finalized()));
                    chain.forkchoice(head.hash, safe, finalized).await
                }
                .boxed()
            }),
        }
    }
}

/// A synchronisation in progress (`eth_syncing`): a gap is being filled from peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncStatus {
    /// Number of the head when the synchronisation began.
    pub starting: u64,
    /// Number of the newest block that is being fetched.
    pub highest: u64,
}

/// The parts of a rollup node that its methods use.
#[derive(Clone)]
pub struct RollupContext {
    pub chain_id: u64,
    /// The swarm; `None` on a node without one.
    pub network: Option<Network>,
    /// The sequencer; `None` on a node that makes no blocks.
    pub sequencer: Option<SequencerHandle>,
    /// Derivation; `None` on a node that derives no chain.
    pub rollup: Option<RollupHandle>,
    /// Permits of methods that read blocks or state.
    reads: Arc<Semaphore>,
}

impl RollupContext {
    /// The context of a rollup node whose core is in another process.
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
            reads: read_permits(),
        }
    }

    /// Reads on the blocking pool, with the permit of a method that reads.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        name: &'static str,
        read: impl FnOnce() -> Result<T, RpcError> + Send + 'static,
    ) -> Result<T, RpcError> {
        blocking(name, self.reads.clone(), read).await
    }

    /// Waits for the permit of a method that reads blocks or state.
    pub(super) async fn read_permit(&self) -> Result<OwnedSemaphorePermit, RpcError> {
        let permit = self.reads.clone().acquire_owned().await;
        permit.map_err(|_| RpcError::server("the node has stopped"))
    }
}

/// The context of a rollup node, which is empty until its execution client has responded. The node
/// serves its RPC from its start on.
#[derive(Clone, Default)]
pub struct LateRollupContext(Arc<OnceLock<Arc<RollupContext>>>);

impl LateRollupContext {
    /// Fills the context, once.
    pub fn set(&self, context: RollupContext) {
        self.0.get_or_init(|| Arc::new(context));
    }

    /// The context, or the error of a call that came too early.
    pub fn get(&self) -> Result<Arc<RollupContext>, RpcError> {
        let waiting = || {
            RpcError::server(
                "this rollup node is starting: it waits for its execution client (--l2), as its log says",
            )
        };
        self.0.get().cloned().ok_or_else(waiting)
    }
}

impl From<RollupContext> for LateRollupContext {
    fn from(context: RollupContext) -> Self {
        let late = Self::default();
        late.set(context);
        late
    }
}

/// The parts of the node that methods use.
pub struct RpcContext {
    pub chain: Reader,
    pub route: TxRoute,
    /// The swarm; `None` on a node without one.
    pub network: Option<Network>,
    /// The sequencer; `None` on a node that makes no blocks.
    pub sequencer: Option<SequencerHandle>,
    /// Derivation; `None` on a node that derives no chain.
    pub rollup: Option<RollupHandle>,
    /// Reports the synchronisation in progress, or `None` at the head. The field itself is `None`
    /// on a node that fills no gaps.
    pub syncing: Option<watch::Receiver<Option<SyncStatus>>>,
    /// The response of `web3_clientVersion`.
    pub client_version: String,
    /// Gives receipts exactly op-geth's L1 fields: none on deposits, and no `l1FeeScalar` from
    /// Ecotone on (`--rpc.geth-exact-receipts`).
    pub geth_exact_receipts: bool,
    /// Folder of the files that tracing methods write and read; `None` if the node has none.
    pub traces: Option<PathBuf>,
    /// Host that runs tracers in JavaScript; `None` if they are turned off (`--rpc.jstracers`).
    pub scripts: Option<ScriptHost>,
    pub filters: Filters,
    pub blocks: DecodedBlocks,
    pub replays: PausedReplays,
    pub bounds: Bounds,
    /// Gate that limits the cost of conditional transactions; `None` if they are not served
    /// (`--rollup.sequencertxconditionalenabled`).
    pub conditional_gate: Option<CostGate>,
    /// Engine API; `None` on a node that is not driven through it.
    pub engine: Option<EngineContext>,
    /// Journal that records local transactions; with `None`, they are not recorded.
    pub journal: Option<Arc<TxJournal>>,
    /// Files that methods read and write; `None` on a node without a data directory.
    pub files: Option<NodeFiles>,
    /// Handle that starts and stops servers; `None` if the servers cannot be changed.
    pub servers: Option<ServerHandle>,
    /// Makes a block that was built here the head; `None` on a node that cannot do this.
    pub commit: Option<CommitBlock>,
    /// The source of the block `pending`.
    pub pending: Pending,
    /// History before the first block here; `None` if the first block is block 0.
    pub historical: Option<Historical>,
    /// Keys and budgets of callers; with `None`, calls are not limited.
    pub access: Option<Arc<Access>>,
}

/// Function that inserts a block and makes it the head. Its error is a sentence.
pub type CommitBlock =
    Arc<dyn Fn(Arc<Payload>) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

impl RpcContext {
    /// A context of a node without a swarm that is always at the head; set the fields that differ.
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

    /// The context for the methods of a rollup node.
    pub fn rollup_node(&self) -> RollupContext {
        RollupContext {
            chain_id: self.chain.spec.chain_id,
            network: self.network.clone(),
            sequencer: self.sequencer.clone(),
            rollup: self.rollup.clone(),
            reads: self.bounds.reads.clone(),
        }
    }

    /// The newest view. Call this once per request, so that the request reads a single view.
    pub fn view(&self) -> Arc<View> {
        (self.chain.view)()
    }

    /// The view whose head is the pending block, or the newest view if there is no pending block.
    pub fn pending_view(&self) -> Arc<View> {
        let view = self.view();
        let pending = self.pending.on(&self.chain.spec, &self.chain.pool, &view);
        pending.unwrap_or(view)
    }

    /// The next step of `cursor` towards the head of `view`.
    pub(super) fn step(&self, cursor: &mut Cursor, view: &View) -> Result<Option<Step>, StepError> {
        cursor.step(view, |hash| (self.chain.abandoned)(hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollup::sequencer::tests::World;

    #[tokio::test]
    async fn an_operator_sets_the_head_below_the_finalized_block() {
        let world = World::new(20, 30).await;
        let (chain, threads) = world.open();
        world.sequence(&chain).await;
        let view = chain.view();
        let id = |number| {
            let hash = view.hash_of(number).unwrap().unwrap();
            BlockId { number, hash }
        };
        let [first, finalized, safe] = [1, 2, 4].map(id);
        let labels = (Some(safe.hash), Some(finalized.hash));
        let head = view.head();
        chain
            .forkchoice(head.hash, labels.0, labels.1)
            .await
            .unwrap();
        let reader = Reader::from(&chain);
        (reader.set_head)(id(3)).await.unwrap();
        let labels = |view: &View| (view.head(), view.safe(), view.finalized());
        assert_eq!(labels(&chain.view()), (id(3), Some(id(3)), Some(finalized)));
        (reader.set_head)(first).await.unwrap();
        assert_eq!(labels(&chain.view()), (first, Some(first), Some(first)));
        drop((reader, view, chain));
        threads.stop().unwrap();
    }
}
