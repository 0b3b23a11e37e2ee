//! The chain: the execution core. It executes payloads, keeps state, builds blocks, and serves
//! reads through a [`View`].
//!
//! [`Chain`] is a cloneable handle. Behind it run three threads: the *executor* (owns the tree,
//! publishes views), the *persister* (owns the store's write path) and the *builder*. Readers take
//! [`Chain::view`] without waiting. Requests to execute a block or move a head are commands over a
//! bounded channel. The chain has no access to the network or to L1.

pub mod abandoned;
pub mod blobs;
pub mod block_rlp;
pub mod build;
pub mod builder;
pub mod changes;
pub mod evm;
pub mod execute;
pub mod executor;
mod fork_times;
pub mod genesis;
pub mod head_owner;
pub mod heads;
pub mod kzg;
pub mod l1fee;
pub mod memory_only;
pub mod miner;
pub mod participants;
pub mod payload_log;
pub mod persister;
pub mod pool;
pub mod pool_maintenance;
pub mod receipt;
pub mod rejected;
pub mod replay;
pub mod rows;
pub mod rules;
pub mod simulate;
pub mod store;
pub mod transaction;
pub mod tree;
pub mod trie;
pub mod types;
pub mod unsigned;
pub mod view;

pub(crate) use fork_times::spec_of;
pub use types::{ChainError, Heads, Inserted, Shared};

use crate::chain::{
    abandoned::Abandoned,
    blobs::{BlobStore, BlockSidecar},
    builder::Build,
    execute::{ExpectedTransactions, Preparation},
    executor::{Executor, ExecutorCommand, ExecutorLimits, Imported, SwitchPolicy},
    genesis::Genesis,
    head_owner::HeadOwner,
    payload_log::{LogError, PayloadLog, SignGuard},
    pool::{Pool, PoolConfig},
    rejected::BadBlock,
    rows::{ExecutedBlock, ReadError},
    rules::{ChainSpec, Rules},
    store::{Identity, IndexWindow, Snapshot, Store, StoreError},
    view::View,
};
use alloy_primitives::B256;
use alloy_rpc_types_engine::PayloadId;
use arc_swap::ArcSwap;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use parking_lot::{Mutex, RwLock};
use starling_proto::{
    network::overrides::ScheduleChange,
    payload::{BlockId, Payload},
    provenance::Provenance,
};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc as std_mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};
use tokio::sync::{mpsc, oneshot, watch};

/// Capacity of the executor's command queue.
const COMMANDS: usize = 64;
/// Capacity of the builder's request queue. Further requests are refused.
const BUILD_JOBS: usize = 4;
/// Memory of the store for reads and memtables in `init`, in bytes.
const INIT_CACHE: u64 = 16 << 20;
/// The payload log's folder inside the data directory.
const WAL: &str = "wal";
/// The blobs' folder inside the data directory of an Ethereum chain.
const BLOBS: &str = "blobs";

/// The folder of the payload log in this data directory.
pub fn payload_log_dir(datadir: &Path) -> PathBuf {
    datadir.join(WAL)
}

/// How to open a chain.
#[derive(Clone, Debug)]
pub struct Options {
    pub datadir: PathBuf,
    /// Memory of the store for reads and memtables, in bytes.
    pub cache: u64,
    /// Time between two syncs of the store to disk, while it changes.
    pub commit_interval: Duration,
}

/// The reason why a data directory could not be initialised.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error(
        "database contains incompatible genesis (have {have}, new {new}): give another --datadir, or remove this one"
    )]
    OtherGenesis { have: B256, new: B256 },
    #[error(
        "the chain has passed {fork} by other rules than this genesis sets: its blocks would be invalid"
    )]
    ForkPassed { fork: &'static str },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A cloneable handle to the chain's threads.
#[derive(Clone)]
pub struct Chain {
    shared: Arc<Shared>,
    commands: mpsc::Sender<ExecutorCommand>,
    builds: std_mpsc::SyncSender<Build>,
    log: PayloadLog,
    settings: Store,
}

/// The chain's threads. They end by [`Threads::stop`]. Executor and persister end also when the
/// last [`Chain`] handle is dropped, or after a fatal error.
pub struct Threads {
    shared: Arc<Shared>,
    commands: mpsc::WeakSender<ExecutorCommand>,
    builds: std_mpsc::SyncSender<Build>,
    executor: JoinHandle<Result<(), ChainError>>,
    others: [JoinHandle<()>; 2],
}

impl Threads {
    /// Stores and syncs the blocks up to the head, then ends the threads, even while handles exist.
    /// On a full disk this does not wait for space, since the payload log or the blocks' source
    /// still has the blocks. Returns the error that ended the chain earlier, or prevented storing.
    pub fn stop(self) -> Result<(), ChainError> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Some(commands) = self.commands.upgrade() {
            // If the channel is full, the executor is awake already.
            let _ = commands.try_send(ExecutorCommand::Wake);
        }
        // If the channel is full, the builder is awake already.
        let _ = self.builds.try_send(Build::Wake);
        let result = self.executor.join().unwrap_or(Err(ChainError::Stopped));
        for thread in self.others {
            let _ = thread.join();
        }
        result
    }
}

/// Creates the databases of a data directory and writes the genesis block. Returns `Ok(false)` if
/// the directory already holds this genesis.
pub fn init(datadir: &Path, genesis: &Genesis) -> Result<bool, InitError> {
    let payload = genesis.payload();
    let identity = Identity {
        chain_id: genesis.spec.chain_id,
        genesis_hash: payload.hash,
    };
    let store = match Store::open(datadir, INIT_CACHE, None) {
        Ok(store) => store,
        Err(StoreError::Missing(_) | StoreError::Uninitialised(_)) => {
            let store = Store::create(datadir, INIT_CACHE, identity, &payload, &genesis.overlay)?;
            fork_times::record_config(&store, genesis)?;
            return Ok(true);
        }
        Err(error) => return Err(error.into()),
    };
    let have = store.identity();
    if have != identity {
        return Err(InitError::OtherGenesis {
            have: have.genesis_hash,
            new: identity.genesis_hash,
        });
    }
    let head = store
        .snapshot()?
        .header(store.head().number)?
        .map_or(0, |header| header.timestamp);
    if let Ok(ChainSpec {
        rules: Rules::Optimism { forks: old, .. },
        ..
    }) = spec_of(&store)
        && let Rules::Optimism { forks: new, .. } = &genesis.spec.rules
        && let Some(conflict) = old.conflict(new, head)
    {
        return Err(InitError::ForkPassed {
            fork: conflict.fork,
        });
    }
    fork_times::record_config(&store, genesis)?;
    Ok(false)
}

/// Builds the shared state of a chain, with the store's heads as the heads.
fn open_shared(
    store: &Store,
    snapshot: &Snapshot,
    pool: PoolConfig,
    blobs: BlobStore,
) -> Result<Shared, ChainError> {
    let spec = Arc::new(spec_of(store)?);
    snapshot.check_tip()?;
    let (head, safe, finalized) = (snapshot.head(), snapshot.safe(), snapshot.finalized());
    let view = View::new(snapshot.clone(), vec![], safe, finalized)?;
    let heads = Heads {
        head,
        timestamp: view.header().timestamp,
        safe,
        finalized,
    };
    Ok(Shared {
        pool: Arc::new(Pool::with_config(&spec, pool)),
        spec,
        blobs,
        view: ArcSwap::from_pointee(view),
        heads: watch::Sender::new(heads),
        head_owner: watch::Sender::default(),
        known: RwLock::default(),
        abandoned: Mutex::default(),
        rejected: Mutex::default(),
        stopping: AtomicBool::new(false),
    })
}

impl Chain {
    /// Opens a data directory and replays the blocks of the payload log above the store.
    pub fn open(options: &Options) -> Result<(Self, Threads), ChainError> {
        Self::open_with(options, PoolConfig::default())
    }

    /// Like [`Chain::open`], but with these limits of the pool.
    pub fn open_with(options: &Options, pool: PoolConfig) -> Result<(Self, Threads), ChainError> {
        Self::open_within(options, pool, ExecutorLimits::default())
    }

    /// Like [`Chain::open_with`], but with fork times that replace those of the genesis config.
    pub fn open_by(
        options: &Options,
        pool: PoolConfig,
        change: &ScheduleChange,
    ) -> Result<(Self, Threads), ChainError> {
        Self::open_all(options, pool, ExecutorLimits::default(), change)
    }

    /// Like [`Chain::open_with`], but with this memory budget for the executor.
    pub fn open_within(
        options: &Options,
        pool: PoolConfig,
        limits: ExecutorLimits,
    ) -> Result<(Self, Threads), ChainError> {
        Self::open_all(options, pool, limits, &ScheduleChange::default())
    }

    fn open_all(
        options: &Options,
        pool: PoolConfig,
        limits: ExecutorLimits,
        change: &ScheduleChange,
    ) -> Result<(Self, Threads), ChainError> {
        let store = Store::open(&options.datadir, options.cache, None)?;
        let log = PayloadLog::open(&payload_log_dir(&options.datadir))?;
        fork_times::put_in_force(&store, &log, change)?;
        let snapshot = store.snapshot()?;
        let blobs = BlobStore::open(&options.datadir.join(BLOBS))?;
        let shared = Arc::new(open_shared(&store, &snapshot, pool, blobs)?);
        let (commands, command_queue) = mpsc::channel(COMMANDS);
        let (work, work_queue) = std_mpsc::sync_channel(1);
        let (done, done_queue) = std_mpsc::sync_channel(1);
        let (builds, build_queue) = std_mpsc::sync_channel(BUILD_JOBS);

        let (waker, weak_commands) = (commands.downgrade(), commands.downgrade());
        let wake = move || {
            // If the command channel is full, the executor is awake already.
            if let Some(commands) = waker.upgrade() {
                let _ = commands.try_send(ExecutorCommand::Wake);
            }
        };
        let interval = options.commit_interval;
        let settings = store.clone();
        let persisting = shared.clone();
        let persister = thread("persister", move || {
            persister::run(&store, &persisting, work_queue, done, wake, interval)
        })?;
        let building = shared.clone();
        let builder = thread("builder", move || builder::run(building, build_queue))?;
        let mut executor = Executor::new(
            shared.clone(),
            snapshot,
            log.clone(),
            work,
            done_queue,
            limits,
        );
        let replayed = executor.replay()?;
        let head = shared.heads.borrow().head;
        tracing::info!(number = head.number, hash = %head.hash, replayed, "the chain is open");
        let executor = thread("executor", move || executor.run(command_queue))?;
        let threads = Threads {
            shared: shared.clone(),
            commands: weak_commands,
            builds: builds.clone(),
            executor,
            others: [persister, builder],
        };
        let chain = Self {
            shared,
            commands,
            builds,
            log,
            settings,
        };
        Ok((chain, threads))
    }

    pub fn spec(&self) -> &Arc<ChainSpec> {
        &self.shared.spec
    }

    /// The newest published view.
    pub fn view(&self) -> Arc<View> {
        self.shared.view.load_full()
    }

    /// A receiver that wakes when a head changes. It may skip changes: to see every block, walk
    /// with a [`heads::Cursor`].
    pub fn heads(&self) -> watch::Receiver<Heads> {
        self.shared.heads.subscribe()
    }

    /// A receiver that wakes when the owner of the unsafe head changes.
    pub fn head_owner(&self) -> watch::Receiver<HeadOwner> {
        self.shared.head_owner.subscribe()
    }

    /// Applies an event to the [`HeadOwner`]. `event` returns true if the owner has changed.
    pub fn update_head_owner(&self, event: impl FnOnce(&mut HeadOwner) -> bool) {
        self.shared.head_owner.send_if_modified(event);
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    /// Whether this block is canonical, or is an executed block of a side branch that is still in
    /// memory.
    pub fn knows(&self, hash: B256) -> bool {
        self.shared.known.read().contains_key(&hash)
            || matches!(self.view().number_of(hash), Ok(Some(_)))
    }

    /// Executes a payload on any branch. No head moves.
    pub async fn insert(
        &self,
        payload: Arc<Payload>,
        provenance: Provenance,
    ) -> Result<Inserted, ChainError> {
        self.enqueue(payload, provenance, None).await?.await
    }

    /// Executes an unsafe payload. Applies the fork choice of unsafe blocks too, unless a rollup
    /// node owns the head ([`HeadOwner`]).
    pub async fn follow(
        &self,
        payload: Arc<Payload>,
        provenance: Provenance,
    ) -> Result<Inserted, ChainError> {
        self.submit(payload, provenance).await?.await
    }

    /// Like [`Chain::follow`], but returns as soon as the payload is in the executor's queue, with
    /// a future of the outcome. Payloads are executed in the order of these calls. While earlier
    /// payloads run, the senders of the queued ones are recovered.
    pub async fn submit(
        &self,
        payload: Arc<Payload>,
        provenance: Provenance,
    ) -> Result<impl Future<Output = Result<Inserted, ChainError>> + use<>, ChainError> {
        self.enqueue(payload, provenance, Some(SwitchPolicy::Follower))
            .await
    }

    /// Executes a payload that leads to the head of a fork choice. If the payload cannot be
    /// executed beside our chain, the head moves to the payload's parent, and the safe and the
    /// finalized head are lowered to blocks of that branch. The displaced head is held until the
    /// caller ends the switch with [`Chain::forkchoice`] or [`Chain::abandon_forkchoice`]. Fails
    /// with [`ChainError::UnknownBlock`] if the head cannot move to the parent.
    pub async fn switch_to(
        &self,
        payload: Arc<Payload>,
        provenance: Provenance,
    ) -> Result<Inserted, ChainError> {
        self.enqueue(payload, provenance, Some(SwitchPolicy::ForkChoice))
            .await?
            .await
    }

    /// Reinstates the heads that [`Chain::switch_to`] displaced, if any.
    pub async fn abandon_forkchoice(&self) -> Result<(), ChainError> {
        self.request(|reply| ExecutorCommand::AbandonForkchoice { reply })
            .await
    }

    /// Executes a run of blocks, each on a known parent, and makes the last valid one the head.
    /// Blocks on the head's branch are skipped. The blocks are not logged unless the head changes
    /// its branch, since the caller can read them again. Returns a future of the result as soon as
    /// the run is in the executor's queue. Runs are imported in the order of these calls, and a run
    /// is prepared while earlier ones are executed. The executor sets `stop` when it refuses a
    /// block. Once `stop` is set, nothing more is imported.
    pub async fn import(
        &self,
        payloads: Vec<Arc<Payload>>,
        stop: Arc<AtomicBool>,
    ) -> Result<impl Future<Output = Result<Imported, ChainError>> + use<>, ChainError> {
        let permit = self
            .commands
            .reserve()
            .await
            .map_err(|_| ChainError::Stopped)?;
        let view = self.view();
        // Blocks on our branch are not executed again, so they need no preparation.
        let known = |payload: &Payload| matches!(view.hash_of(payload.number()), Ok(Some(hash)) if hash == payload.hash);
        let payloads = Preparation::begin_all(payloads, known);
        let (reply, answer) = oneshot::channel();
        permit.send(ExecutorCommand::Import {
            payloads,
            stop,
            reply,
        });
        Ok(async { answer.await.map_err(|_| ChainError::Stopped)? })
    }

    /// Moves the heads. `None` keeps the safe or the finalized head. The safe head, the finalized
    /// head and the newest derived block ([`Chain::protect`]) must be on the branch of `head`, even
    /// if they are kept. Finalized must not be above safe. After an error no head has moved.
    pub async fn forkchoice(
        &self,
        head: B256,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), ChainError> {
        self.request(|reply| ExecutorCommand::Forkchoice {
            head,
            safe,
            finalized,
            reply,
        })
        .await
    }

    /// Moves the safe and the finalized head to the given blocks, and leaves the unsafe head as it
    /// is. Fails like [`Chain::forkchoice`].
    pub async fn promote(
        &self,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), ChainError> {
        self.request(|reply| ExecutorCommand::Promote {
            safe,
            finalized,
            reply,
        })
        .await
    }

    /// Protects this block, the newest one derived from L1: the head stays on its branch. The swarm
    /// cannot move the head to a branch without this block, and a fork choice that would do so
    /// fails with [`ChainError::NotOnBranch`]. `None` ends the protection. Returns as soon as the
    /// call is in the executor's queue, with a future of the outcome. The outcome is the same error
    /// if the block is not on the head's branch.
    pub async fn protect(
        &self,
        derived: Option<B256>,
    ) -> Result<impl Future<Output = Result<(), ChainError>> + use<>, ChainError> {
        let (reply, answer) = oneshot::channel();
        let sent = self
            .commands
            .send(ExecutorCommand::Protect { derived, reply });
        sent.await.map_err(|_| ChainError::Stopped)?;
        Ok(async { answer.await.map_err(|_| ChainError::Stopped)? })
    }

    /// Returns a view whose head is this block, on any branch.
    pub async fn view_of(&self, hash: B256) -> Result<Arc<View>, ChainError> {
        self.request(|reply| ExecutorCommand::ViewOf { hash, reply })
            .await
    }

    /// Waits until the heads are stored. A simulation waits here, so that its history does not
    /// depend on the speed of the persister.
    #[doc(hidden)]
    pub async fn finish_commits(&self) -> Result<(), ChainError> {
        self.request(|reply| ExecutorCommand::FinishCommits { reply })
            .await
    }

    /// Starts to build a block on `parent`; pool transactions are added until [`Chain::seal`].
    pub async fn start(
        &self,
        parent: B256,
        attributes: OpPayloadAttributes,
    ) -> Result<PayloadId, ChainError> {
        let id = attributes.payload_id(&parent, 3);
        self.start_as(id, parent, attributes).await?;
        Ok(id)
    }

    /// Like [`Chain::start`], under an id that the caller chooses.
    pub async fn start_as(
        &self,
        id: PayloadId,
        parent: B256,
        attributes: OpPayloadAttributes,
    ) -> Result<(), ChainError> {
        let parent = self.view_of(parent).await?;
        let (reply, answer) = oneshot::channel();
        self.build(Build::Start {
            id,
            parent,
            attributes: Box::new(attributes),
            reply,
        })?;
        answer.await.map_err(|_| ChainError::Stopped)?
    }

    /// Ends a build and returns its block, which the executor has then added to the known blocks.
    /// Moves no head.
    pub async fn seal(&self, id: PayloadId) -> Result<Arc<ExecutedBlock>, ChainError> {
        let (reply, answer) = oneshot::channel();
        self.build(Build::Seal { id, reply })?;
        let block = answer.await.map_err(|_| ChainError::Stopped)??;
        self.adopt(block).await
    }

    /// Builds a block on `parent` with the transactions of the attributes and none of the pool,
    /// makes the block the head unless it is canonical already, and protects it
    /// ([`Chain::protect`]). A build that [`Chain::start`] has begun is not replaced. Fails like
    /// [`Chain::start`] and [`Chain::forkchoice`], and then no head has moved.
    pub async fn derive(
        &self,
        parent: B256,
        attributes: OpPayloadAttributes,
        expected: Option<ExpectedTransactions>,
    ) -> Result<Arc<Payload>, ChainError> {
        self.request(|reply| ExecutorCommand::Derive {
            parent,
            attributes: Box::new(attributes),
            expected,
            reply,
        })
        .await
    }

    async fn adopt(&self, block: Arc<ExecutedBlock>) -> Result<Arc<ExecutedBlock>, ChainError> {
        let adopted = block.clone();
        self.request(|reply| ExecutorCommand::Adopt {
            block: adopted,
            reply,
        })
        .await?;
        Ok(block)
    }

    /// Writes a payload and its guard row to the payload log and syncs them to disk. Must precede
    /// every request for a signature. Waits for space on a full disk. Fails with
    /// [`ChainError::AlreadySigned`] if the guard row of this (height, parent, L1 origin) contains
    /// another block hash.
    pub async fn log_before_sign(
        &self,
        payload: Arc<Payload>,
        l1_origin: B256,
    ) -> Result<(), ChainError> {
        self.write_log(move |log| log.append_built(&payload, l1_origin, payload_log::BUILT))
            .await
    }

    /// The blocks of this height and parent that may have been signed here
    /// ([`Chain::log_before_sign`]). The block that was sent to the signer last comes last.
    pub fn guards(&self, number: u64, parent: B256) -> Result<Vec<SignGuard>, ChainError> {
        Ok(self.log.guards(number, parent)?)
    }

    /// A payload from the payload log, whether or not it ever became canonical.
    pub fn logged(&self, hash: B256) -> Result<Option<Payload>, ChainError> {
        Ok(self.log.by_hash(hash)?.map(|logged| logged.payload))
    }

    /// The payloads of this number and parent in the payload log, whatever their provenance.
    pub fn logged_children(&self, number: u64, parent: B256) -> Result<Vec<Payload>, ChainError> {
        let logged = self.log.by_number(number)?.into_iter();
        Ok(logged
            .map(|logged| logged.payload)
            .filter(|payload| payload.parent_hash() == parent)
            .collect())
    }

    /// A block of any branch, if it is in memory or in the payload log. Stored canonical blocks are
    /// read from a view instead.
    pub fn payload(&self, hash: B256) -> Result<Option<Arc<Payload>>, ChainError> {
        let in_memory = self.shared.known.read().get(&hash).cloned();
        match in_memory {
            Some(payload) => Ok(Some(payload)),
            None => Ok(self.logged(hash)?.map(Arc::new)),
        }
    }

    /// A block that the caller knows not to be canonical, if it is in memory or in the payload log.
    /// Only recently abandoned blocks have receipts.
    pub fn abandoned(&self, hash: B256) -> Result<Option<Abandoned>, ReadError> {
        let recent = self.shared.abandoned.lock().get(&hash);
        if recent.is_some() {
            return Ok(recent);
        }
        let payload = self
            .payload(hash)
            .map_err(|error| ReadError::Store(error.to_string()))?;
        Ok(payload.map(|payload| Abandoned {
            payload,
            receipts: None,
        }))
    }

    /// The newest blocks that the executor found invalid, newest first.
    pub fn rejected(&self) -> Vec<BadBlock> {
        self.shared.rejected.lock().all()
    }

    /// The blobs of a block that was built here, on any branch of an Ethereum chain. `None` if the
    /// block has no blobs, or if its blobs are older than [`blobs::RETENTION`]. Reads a file.
    pub fn blobs(&self, block: &Payload) -> Result<Option<Vec<BlockSidecar>>, ChainError> {
        Ok(self.shared.blobs.get(block.timestamp(), block.hash)?)
    }

    /// Appends a payload that has not been executed to the payload log. Waits for space on a full
    /// disk.
    pub async fn keep(&self, payload: Arc<Payload>) -> Result<(), ChainError> {
        self.write_log(move |log| log.append(&payload, payload_log::FOLLOWED))
            .await
    }

    /// Writes to the payload log on a thread for blocking work. Waits for space on a full disk.
    async fn write_log(
        &self,
        write: impl Fn(&PayloadLog) -> Result<(), LogError> + Send + 'static,
    ) -> Result<(), ChainError> {
        let (log, shared) = (self.log.clone(), self.shared.clone());
        let write = move || shared.retry_while_full(LogError::is_full, || write(&log));
        Ok(blocking(write).await??)
    }

    /// A future that completes when the chain has stopped, which without [`Threads::stop`] happens
    /// only on an error.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let commands = self.commands.clone();
        async move { commands.closed().await }
    }

    /// The value that [`Chain::remember`] has stored under this name.
    pub fn remembered(&self, name: &str) -> Result<Option<alloy_primitives::Bytes>, ChainError> {
        Ok(self.settings.setting(name)?)
    }

    /// The `config` object of the genesis file, with the fork times that are in force.
    pub fn config(&self) -> Result<serde_json::Value, ChainError> {
        fork_times::config_in_force(&self.settings, &self.shared.spec.rules)
    }

    /// Stores a value under this name in the chain's database, and syncs it to disk.
    pub async fn remember(&self, name: &'static str, value: Vec<u8>) -> Result<(), ChainError> {
        let settings = self.settings.clone();
        Ok(blocking(move || settings.set_setting(name, &value)).await??)
    }

    /// Sets how many blocks below the head keep readable states; `None` keeps all. Old states are
    /// pruned gradually, as blocks are stored.
    pub fn keep_states(&self, blocks: Option<u64>) {
        let view = self.view();
        let (oldest, head) = (view.oldest_state(), view.head().number);
        // Warn when this discards the states of an archive. A node that kept a window of states
        // always has slightly more states than the window: these need no warning.
        if let Some(kept) =
            blocks.filter(|blocks| oldest.saturating_add(blocks.saturating_mul(2)) < head)
        {
            tracing::warn!(
                oldest,
                kept,
                head,
                "states older than --history.state are pruned from now on: to keep them, stop the node and give --gcmode=archive"
            );
        }
        self.settings.keep_states(blocks);
    }

    /// Sets whether the addresses and slots behind the hashed keys of the state are stored too,
    /// from the next block on.
    pub fn keep_names(&self, keep: bool) {
        self.settings.keep_names(keep);
    }

    /// Sets the window of blocks with indexed logs. Blocks of the window that have no index yet are
    /// indexed in the background, while no block waits to be stored.
    pub fn keep_logs(&self, window: IndexWindow) {
        self.settings.keep_logs(window);
    }

    /// Sets whether transactions are indexed by address. Older transactions are then indexed in the
    /// background. If `keep` is false, an existing index is dropped.
    pub fn keep_addresses(&self, keep: bool) {
        self.settings.keep_addresses(keep);
    }

    /// Sets the maximum bytes of trie history kept for proofs of old blocks; zero means no maximum.
    pub fn keep_proofs(&self, bytes: u64) -> Result<(), ChainError> {
        Ok(self.settings.keep_proofs(bytes)?)
    }

    /// Number and hash of the genesis block.
    pub fn genesis(&self) -> Result<BlockId, ChainError> {
        let hash = self.settings.identity().genesis_hash;
        let number = self
            .view()
            .number_of(hash)?
            .ok_or(ChainError::UnknownBlock(hash))?;
        Ok(BlockId { number, hash })
    }

    async fn enqueue(
        &self,
        payload: Arc<Payload>,
        provenance: Provenance,
        policy: Option<SwitchPolicy>,
    ) -> Result<impl Future<Output = Result<Inserted, ChainError>> + use<>, ChainError> {
        let permit = self
            .commands
            .reserve()
            .await
            .map_err(|_| ChainError::Stopped)?;
        // A known block is not executed again, so it need not be prepared.
        let payload = if self.shared.known.read().contains_key(&payload.hash) {
            Preparation::later(payload)
        } else {
            Preparation::begin(payload)
        };
        let (reply, answer) = oneshot::channel();
        permit.send(match policy {
            None => ExecutorCommand::Insert {
                payload,
                provenance,
                reply,
            },
            Some(policy) => ExecutorCommand::SwitchTo {
                payload,
                provenance,
                policy,
                reply,
            },
        });
        Ok(async { answer.await.map_err(|_| ChainError::Stopped)? })
    }

    fn build(&self, request: Build) -> Result<(), ChainError> {
        self.builds.try_send(request).map_err(|error| match error {
            std_mpsc::TrySendError::Full(_) => {
                ChainError::Busy("too many requests wait for the builder")
            }
            std_mpsc::TrySendError::Disconnected(_) => ChainError::Stopped,
        })
    }

    async fn request<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, ChainError>>) -> ExecutorCommand,
    ) -> Result<T, ChainError> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(command(reply))
            .await
            .map_err(|_| ChainError::Stopped)?;
        answer.await.map_err(|_| ChainError::Stopped)?
    }
}

/// Runs `work`, which takes long or waits for the disk, on a thread for blocking work.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ChainError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| ChainError::Stopped)
}

fn thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, ChainError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(run)
        .map_err(|error| ChainError::Thread(Arc::new(error)))
}

#[cfg(test)]
pub(crate) mod tests;
