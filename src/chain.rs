//! The chain: the execution core. Executes payloads, keeps state, builds blocks, answers every reader through a [`View`].
//!
//! [`Chain`] is a cloneable handle. Behind it run three threads: the *executor* (owns the tree, publishes views), the *persister*
//! (owns the store's write path) and the *builder*. Whoever reads takes [`Chain::view`] and waits for nobody; whoever wants a block
//! executed or a head moved sends a command over a bounded channel. The chain knows no network and no L1.

pub mod abandoned;
pub mod build;
pub mod builder;
pub mod changes;
pub mod driver;
pub mod evm;
pub mod execute;
pub mod executor;
pub mod genesis;
pub mod heads;
pub mod l1fee;
pub mod miner;
pub mod payload_log;
pub mod persister;
pub mod pool;
pub mod receipt;
pub mod repair;
pub mod rules;
pub mod stats;
pub mod store;
pub mod tree;
pub mod trie;
pub mod upkeep;
pub mod verify;
pub mod view;

use crate::chain::{
    abandoned::Abandoned,
    builder::Build,
    driver::Driver,
    execute::Preparation,
    executor::{Command, Executor, Limits},
    genesis::Genesis,
    payload_log::{Guard, LogError, PayloadLog},
    pool::{Pool, PoolConfig},
    rules::{ChainSpec, Rules},
    store::{Identity, Store, StoreError},
    view::{ExecutedBlock, ReadError, View},
};
use alloy_primitives::{B256, map::HashMap};
use alloy_rpc_types_engine::PayloadId;
use arc_swap::ArcSwap;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use parking_lot::{Mutex, RwLock};
use starling_p2p::Provenance;
use starling_proto::payload::{BlockId, Payload};
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

/// Commands that may wait for the executor.
const COMMANDS: usize = 64;
/// Bytes of block cache that `init` needs.
const INIT_CACHE: u64 = 16 << 20;
/// Under this name the store keeps the `config` object of the genesis file.
const CONFIG_SETTING: &str = "genesis_config";
/// Time between two attempts to write to a full disk.
const RETRY_NO_SPACE: Duration = Duration::from_secs(2);
/// The payload log's folder inside the data directory.
const WAL: &str = "wal";

/// The payload log of a data directory.
pub fn payload_log_dir(datadir: &Path) -> PathBuf {
    datadir.join(WAL)
}

/// The three heads that a driver moves. `safe` and `finalized` are `None` until somebody has said them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    pub head: BlockId,
    /// Of the head, Unix seconds.
    pub timestamp: u64,
    pub safe: Option<BlockId>,
    pub finalized: Option<BlockId>,
}

/// What became of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inserted {
    Valid,
    Invalid {
        latest_valid: Option<B256>,
        reason: String,
    },
    /// Its parent is not known.
    Syncing,
    /// It was not looked at, though its parent is known: there are too many blocks at its height, side branches are too long, or too
    /// much is stored above the parent. A head that goes to the parent makes room.
    NoRoom,
}

/// Why the chain could not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ChainError {
    #[error("the chain has stopped")]
    Stopped,
    #[error("{0}")]
    Store(String),
    #[error("no block {0} in the chain")]
    UnknownBlock(B256),
    #[error("block {block} is not on the branch of {head}")]
    NotOnBranch { block: B256, head: B256 },
    #[error("the finalized block {finalized} would be above the safe block {safe}")]
    FinalizedAboveSafe { safe: BlockId, finalized: BlockId },
    #[error("the block cannot be built: {0}")]
    Build(String),
    #[error("the builder is busy")]
    Busy,
    #[error("no payload is being built under this id")]
    UnknownPayload,
    #[error("another block {have} is already signed for this height, parent and L1 origin")]
    AlreadySigned { have: B256 },
}

impl ChainError {
    /// A view could not be read.
    pub fn read(error: ReadError) -> Self {
        Self::store(error)
    }

    fn store(error: impl std::fmt::Display) -> Self {
        Self::Store(error.to_string())
    }
}

/// What the threads share with the handle.
pub struct Shared {
    pub spec: Arc<ChainSpec>,
    pub pool: Arc<Pool>,
    view: ArcSwap<View>,
    heads: watch::Sender<Heads>,
    driver: watch::Sender<Driver>,
    /// The blocks in the executor's tree.
    known: RwLock<HashMap<B256, Arc<Payload>>>,
    /// Recently abandoned blocks.
    abandoned: Mutex<abandoned::Recent>,
    stopping: AtomicBool,
}

impl Shared {
    /// Whether the threads should finish what they do and end.
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Writes again and again while the disk is full, until the chain is stopped.
    fn when_there_is_room<T, E: std::fmt::Display>(
        &self,
        is_full: impl Fn(&E) -> bool,
        mut write: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            match write() {
                Err(error) if is_full(&error) && !self.is_stopping() => {
                    tracing::error!(%error, "writing has stopped and goes on by itself when there is room");
                    std::thread::sleep(RETRY_NO_SPACE);
                }
                result => return result,
            }
        }
    }
}

/// How to open a chain.
#[derive(Clone, Debug)]
pub struct Options {
    pub datadir: PathBuf,
    /// Bytes of block cache.
    pub cache: u64,
    /// The longest time between two syncs of the store to disk.
    pub commit_interval: Duration,
}

/// Why a data directory could not be initialised.
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
    commands: mpsc::Sender<Command>,
    builds: std_mpsc::SyncSender<Build>,
    log: PayloadLog,
    settings: Store,
}

/// The chain's threads. They end when the last [`Chain`] handle is gone, or by [`Threads::stop`].
pub struct Threads {
    shared: Arc<Shared>,
    commands: mpsc::WeakSender<Command>,
    executor: JoinHandle<Result<(), ChainError>>,
    others: [JoinHandle<()>; 2],
}

impl Threads {
    /// Stores and syncs what has been executed and ends, whoever still holds a handle. Waiting for room on a full disk is given up:
    /// the blocks are in the payload log. The error is what ended the chain before, or what could not be stored.
    pub fn stop(self) -> Result<(), ChainError> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Some(commands) = self.commands.upgrade() {
            // A full channel means that the executor is awake.
            let _ = commands.try_send(Command::Wake);
        }
        let result = self.executor.join().unwrap_or(Err(ChainError::Stopped));
        for thread in self.others {
            let _ = thread.join();
        }
        result
    }
}

/// Creates the databases of a data directory and writes the genesis block. `Ok(false)`: this genesis was there already.
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
            store.set_setting(CONFIG_SETTING, genesis.config.as_bytes())?;
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
        && let Some(fork) = old.conflict(new, head)
    {
        return Err(InitError::ForkPassed { fork: fork.name() });
    }
    store.set_setting(CONFIG_SETTING, genesis.config.as_bytes())?;
    Ok(false)
}

pub(crate) fn spec_of(store: &Store) -> Result<ChainSpec, ChainError> {
    let header = store
        .snapshot()
        .map_err(ChainError::store)?
        .genesis_header()
        .map_err(ChainError::store)?;
    let config = store.setting(CONFIG_SETTING).map_err(ChainError::store)?;
    let (Some(header), Some(config)) = (header, config) else {
        return Err(ChainError::Store(
            "the database does not say which chain it holds: run `starling init` again".into(),
        ));
    };
    let config = std::str::from_utf8(&config).map_err(ChainError::store)?;
    genesis::spec_of_config(config, &header).map_err(ChainError::store)
}

impl Chain {
    /// Opens a data directory and executes again what the payload log holds above the store.
    pub fn open(options: &Options) -> Result<(Self, Threads), ChainError> {
        Self::open_with(options, PoolConfig::default())
    }

    /// Like [`Chain::open`], with other limits of the pool.
    pub fn open_with(options: &Options, pool: PoolConfig) -> Result<(Self, Threads), ChainError> {
        Self::open_within(options, pool, Limits::default())
    }

    /// Like [`Chain::open_with`], with another budget of memory.
    pub fn open_within(
        options: &Options,
        pool: PoolConfig,
        limits: Limits,
    ) -> Result<(Self, Threads), ChainError> {
        let store =
            Store::open(&options.datadir, options.cache, None).map_err(ChainError::store)?;
        let log =
            PayloadLog::open(&payload_log_dir(&options.datadir)).map_err(ChainError::store)?;
        let spec = Arc::new(spec_of(&store)?);
        let snapshot = store.snapshot().map_err(ChainError::store)?;
        snapshot.check_tip().map_err(ChainError::store)?;
        let (head, safe, finalized) = (snapshot.head(), snapshot.safe(), snapshot.finalized());
        let view =
            View::new(snapshot.clone(), vec![], safe, finalized).map_err(ChainError::store)?;
        let heads = Heads {
            head,
            timestamp: view.header().timestamp,
            safe,
            finalized,
        };

        let shared = Arc::new(Shared {
            pool: Arc::new(Pool::with_config(&spec, pool)),
            spec,
            view: ArcSwap::from_pointee(view),
            heads: watch::Sender::new(heads),
            driver: watch::Sender::default(),
            known: RwLock::default(),
            abandoned: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let (commands, command_queue) = mpsc::channel(COMMANDS);
        let (work, work_queue) = std_mpsc::sync_channel(1);
        let (done, done_queue) = std_mpsc::sync_channel(1);
        let (builds, build_queue) = std_mpsc::sync_channel(4);

        let (wake, wake_to_stop) = (commands.downgrade(), commands.downgrade());
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
            commands: wake_to_stop,
            executor,
            others: [persister, builder],
        };
        Ok((
            Self {
                shared,
                commands,
                builds,
                log,
                settings,
            },
            threads,
        ))
    }

    pub fn spec(&self) -> &Arc<ChainSpec> {
        &self.shared.spec
    }

    /// The newest published view.
    pub fn view(&self) -> Arc<View> {
        self.shared.view.load_full()
    }

    /// Wakes on every change of a head and may skip: walk with a [`heads::Cursor`].
    pub fn heads(&self) -> watch::Receiver<Heads> {
        self.shared.heads.subscribe()
    }

    /// Wakes when the driver of the unsafe head changes.
    pub fn driver(&self) -> watch::Receiver<Driver> {
        self.shared.driver.subscribe()
    }

    /// Applies an event to the [`Driver`]; `event` returns true if the driver has changed.
    pub fn drive(&self, event: impl FnOnce(&mut Driver) -> bool) {
        self.shared.driver.send_if_modified(event);
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    /// Whether this block has been executed and a child of it can be, on any branch.
    pub fn knows(&self, hash: B256) -> bool {
        self.shared.known.read().contains_key(&hash)
            || matches!(self.view().number_of(hash), Ok(Some(_)))
    }

    /// Executes a payload. Never moves a head.
    pub async fn insert(
        &self,
        payload: Arc<Payload>,
        provenance: Provenance,
    ) -> Result<Inserted, ChainError> {
        self.enqueue(payload, provenance, false).await?.await
    }

    /// Executes an unsafe payload and, unless a rollup node drives ([`Driver`]), applies the fork choice of unsafe blocks.
    pub async fn follow(
        &self,
        payload: Arc<Payload>,
        provenance: Provenance,
    ) -> Result<Inserted, ChainError> {
        self.enqueue(payload, provenance, true).await?.await
    }

    /// Like [`Chain::follow`], but returns as soon as the payload is in the executor's queue, with the answer to come: payloads are
    /// executed in the order of these calls, and the senders of each are recovered while those before it run.
    pub async fn submit(
        &self,
        payload: Arc<Payload>,
        provenance: Provenance,
    ) -> Result<impl Future<Output = Result<Inserted, ChainError>> + use<>, ChainError> {
        self.enqueue(payload, provenance, true).await
    }

    /// Moves the heads. `None` leaves safe or finalized where they are. Both must be on the branch of `head`, also when they stay, and
    /// finalized not above safe; in every error nothing has moved.
    pub async fn forkchoice(
        &self,
        head: B256,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), ChainError> {
        self.ask(|reply| Command::Forkchoice {
            head,
            safe,
            finalized,
            reply,
        })
        .await
    }

    /// A view whose head is this block, on any branch.
    pub async fn view_of(&self, hash: B256) -> Result<Arc<View>, ChainError> {
        self.ask(|reply| Command::ViewOf { hash, reply }).await
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

    /// Like [`Chain::start`], under an id of the caller's.
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

    /// Ends a build. The block is executed and known afterwards; no head has moved.
    pub async fn seal(&self, id: PayloadId) -> Result<Arc<ExecutedBlock>, ChainError> {
        let (reply, answer) = oneshot::channel();
        self.build(Build::Seal { id, reply })?;
        let block = answer.await.map_err(|_| ChainError::Stopped)??;
        let adopted = block.clone();
        self.ask(|reply| Command::Adopt {
            block: adopted,
            reply,
        })
        .await?;
        Ok(block)
    }

    /// Writes a payload and its guard row to the payload log and syncs them to disk. Must precede every request for a signature. Waits
    /// for space on a full disk. Fails with [`ChainError::AlreadySigned`] if the guard of this (height, parent, L1 origin) holds another
    /// hash.
    pub async fn log_before_sign(
        &self,
        payload: Arc<Payload>,
        l1_origin: B256,
    ) -> Result<(), ChainError> {
        let (log, shared) = (self.log.clone(), self.shared.clone());
        let append = move || log.append_built(&payload, l1_origin, executor::BUILT);
        tokio::task::spawn_blocking(move || shared.when_there_is_room(LogError::is_full, append))
            .await
            .map_err(|_| ChainError::Stopped)?
            .map_err(|error| match error {
                LogError::GuardConflict { have } => ChainError::AlreadySigned { have },
                other => ChainError::store(other),
            })
    }

    /// The blocks of this height and parent that may have been signed here ([`Chain::log_before_sign`]). The one sent to the signer last
    /// comes last.
    pub fn signed(&self, number: u64, parent: B256) -> Result<Vec<Guard>, ChainError> {
        self.log.guards(number, parent).map_err(ChainError::store)
    }

    /// A payload from the payload log, whether or not it ever became canonical.
    pub fn logged(&self, hash: B256) -> Result<Option<Payload>, ChainError> {
        Ok(self
            .log
            .by_hash(hash)
            .map_err(ChainError::store)?
            .map(|logged| logged.payload))
    }

    /// The payloads of this number and parent in the payload log, whatever their provenance.
    pub fn logged_children(&self, number: u64, parent: B256) -> Result<Vec<Payload>, ChainError> {
        let all = self
            .log
            .by_number(number)
            .map_err(ChainError::store)?
            .into_iter()
            .map(|logged| logged.payload);
        Ok(all
            .filter(|payload| payload.parent_hash() == parent)
            .collect())
    }

    /// A block in memory or in the payload log, on whatever branch. Canonical blocks that are stored are in a view.
    pub fn payload(&self, hash: B256) -> Result<Option<Arc<Payload>>, ChainError> {
        let known = self.shared.known.read().get(&hash).cloned();
        known.map_or_else(
            || Ok(self.logged(hash)?.map(Arc::new)),
            |payload| Ok(Some(payload)),
        )
    }

    /// A block that is not canonical any more. Only recently abandoned blocks have receipts.
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

    /// Keeps a payload in the payload log though it has not been executed. Waits for room on a full disk.
    pub async fn keep(&self, payload: Arc<Payload>) -> Result<(), ChainError> {
        let (log, shared) = (self.log.clone(), self.shared.clone());
        let append = move || log.append(&payload, executor::FOLLOWED);
        tokio::task::spawn_blocking(move || shared.when_there_is_room(LogError::is_full, append))
            .await
            .map_err(|_| ChainError::Stopped)?
            .map_err(ChainError::store)
    }

    /// Ends when the chain has stopped, which it does by itself only on an error.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let commands = self.commands.clone();
        async move { commands.closed().await }
    }

    /// A value that the node keeps with the chain.
    pub fn remembered(&self, name: &str) -> Result<Option<alloy_primitives::Bytes>, ChainError> {
        self.settings.setting(name).map_err(ChainError::store)
    }

    /// Keeps a value with the chain, durably.
    pub async fn remember(&self, name: &'static str, value: Vec<u8>) -> Result<(), ChainError> {
        let settings = self.settings.clone();
        tokio::task::spawn_blocking(move || settings.set_setting(name, &value))
            .await
            .map_err(|_| ChainError::Stopped)?
            .map_err(ChainError::store)
    }

    /// How many blocks below the head keep their states readable; `None` is all. Old states go little by little, as blocks are stored.
    pub fn keep_states(&self, blocks: Option<u64>) {
        let view = self.view();
        let (oldest, head) = (view.oldest_state(), view.head().number);
        // What a window lets go a little late is not worth a word; an archive is.
        if let Some(kept) =
            blocks.filter(|blocks| oldest.saturating_add(blocks.saturating_mul(2)) < head)
        {
            tracing::warn!(
                oldest,
                kept,
                head,
                "old states go now that --history.state leaves out: stop the node and give --gcmode=archive to keep them"
            );
        }
        self.settings.keep_states(blocks);
    }

    /// How many bytes of trie history keep blocks provable; zero is no bound.
    pub fn keep_proofs(&self, bytes: u64) -> Result<(), ChainError> {
        self.settings.keep_proofs(bytes).map_err(ChainError::store)
    }

    /// The genesis block.
    pub fn genesis(&self) -> Result<BlockId, ChainError> {
        let hash = self.settings.identity().genesis_hash;
        let number = self
            .view()
            .number_of(hash)
            .map_err(ChainError::store)?
            .ok_or(ChainError::UnknownBlock(hash))?;
        Ok(BlockId { number, hash })
    }

    async fn enqueue(
        &self,
        payload: Arc<Payload>,
        provenance: Provenance,
        follow: bool,
    ) -> Result<impl Future<Output = Result<Inserted, ChainError>> + use<>, ChainError> {
        let place = self
            .commands
            .reserve()
            .await
            .map_err(|_| ChainError::Stopped)?;
        // What is known already is not executed again.
        let payload = match self.shared.known.read().contains_key(&payload.hash) {
            true => Preparation::later(payload),
            false => Preparation::begin(payload),
        };
        let (reply, answer) = oneshot::channel();
        place.send(Command::Insert {
            payload,
            provenance,
            follow,
            reply,
        });
        Ok(async { answer.await.map_err(|_| ChainError::Stopped)? })
    }

    fn build(&self, request: Build) -> Result<(), ChainError> {
        self.builds.try_send(request).map_err(|error| match error {
            std_mpsc::TrySendError::Full(_) => ChainError::Busy,
            std_mpsc::TrySendError::Disconnected(_) => ChainError::Stopped,
        })
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, ChainError>>) -> Command,
    ) -> Result<T, ChainError> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(command(reply))
            .await
            .map_err(|_| ChainError::Stopped)?;
        answer.await.map_err(|_| ChainError::Stopped)?
    }
}

fn thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, ChainError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(run)
        .map_err(ChainError::store)
}

#[cfg(test)]
pub(crate) mod tests;
