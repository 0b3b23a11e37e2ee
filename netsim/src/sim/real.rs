//! The chain of a node of a real world: the production executor, persister and payload log on a
//! temporary store.
//!
//! Virtual time stands still during a call. Each call waits until the persister has stored its
//! result, so that no history depends on the speed of a thread. The first error that no caller
//! expects is kept in [`RealChain::take_failure`], and becomes a violation. A crash reopens the
//! files that would be left, by the production recovery ([`disk`]).

mod disk;

use super::rollup::genesis_json;
use alloy_primitives::{Address, B256};
use disk::ChainDisk;
pub use disk::{CrashKind, RealWorldError, memory_folder};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use starling::machines::{
    Chain, ChainError, Inserted, Options, Samples, Store, Threads,
    genesis::{Genesis, parse_with_rollup},
    payload_log_dir, verify, verify_payload_log,
};
use starling_p2p::{ChainHeads, Provenance, Settled};
use starling_proto::{
    config::RollupConfig,
    payload::{BlockId, Payload},
    signed_before::SignGuard,
};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;

/// Memory of a store for reads and memtables, in bytes.
const CACHE: u64 = 4 << 20;
/// Time between two syncs of a store by itself. A world decides when a store is synced.
const NEVER: Duration = Duration::from_secs(86_400);
/// Blocks and proofs that a verification samples. Worlds are short, so these are many of a world's.
const SAMPLES: Samples = Samples {
    unwinds: 16,
    replays: 4,
    proofs: 4,
};

/// The parts that all nodes of a real world share.
pub struct RealWorld {
    runtime: Runtime,
    genesis: Genesis,
    /// The files of a new node.
    initial: ChainDisk,
}

impl RealWorld {
    /// Initialises the files of a new node with the genesis of this rollup. All files of the world
    /// are in `folder`.
    pub fn new(rollup: &RollupConfig, folder: &Path) -> Result<Self, RealWorldError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let genesis = parse_with_rollup(&genesis_json(), rollup)?;
        let initial = ChainDisk::init(&genesis, folder)?;
        Ok(Self {
            runtime,
            genesis,
            initial,
        })
    }

    pub fn genesis(&self) -> Payload {
        self.genesis.payload()
    }
}

/// The execution core of a node.
pub struct RealChain {
    world: Arc<RealWorld>,
    disk: ChainDisk,
    chain: Chain,
    threads: Option<Threads>,
    genesis: BlockId,
    failure: Option<String>,
    import: ImportTime,
}

/// The cost of execution cores.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportTime {
    /// Number of executed blocks, and the time that they took with the wait until they were stored.
    pub blocks: u64,
    pub spent: Duration,
    /// Time to open, close, recover and verify data directories.
    pub files: Duration,
}

impl std::ops::AddAssign for ImportTime {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.spent += other.spent;
        self.files += other.files;
    }
}

fn open(dir: &Path) -> Result<(Chain, Threads), ChainError> {
    Chain::open(&Options {
        datadir: dir.to_owned(),
        cache: CACHE,
        commit_interval: NEVER,
    })
}

impl RealChain {
    /// The core of a new node. `loses_power`: whether power is cut later, so that the synced files
    /// must be kept.
    pub fn new(world: &Arc<RealWorld>, loses_power: bool) -> Result<Self, RealWorldError> {
        let begun = Instant::now();
        let disk = world.initial.of_new_node(loses_power)?;
        let (chain, threads) = open(disk.path())?;
        let import = ImportTime {
            files: begun.elapsed(),
            ..ImportTime::default()
        };
        Ok(Self {
            genesis: world.genesis.payload().id(),
            world: world.clone(),
            disk,
            chain,
            threads: Some(threads),
            failure: None,
            import,
        })
    }

    /// The production handle, which answers requests of peers.
    pub fn handle(&self) -> &Chain {
        &self.chain
    }

    pub fn import_time(&self) -> ImportTime {
        self.import
    }

    /// The first error of the core that no caller expects.
    pub fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    fn fail(&mut self, what: &str, error: &dyn std::fmt::Display) {
        self.failure.get_or_insert(format!("{what}: {error}"));
    }

    /// Waits for a call of the core and for the persister.
    fn wait<T>(&self, call: impl Future<Output = Result<T, ChainError>>) -> Result<T, ChainError> {
        self.world.runtime.block_on(async {
            let result = call.await;
            self.chain.finish_commits().await?;
            result
        })
    }

    /// The result of a call that must succeed.
    fn expect<T>(&mut self, what: &str, result: Result<T, ChainError>) -> Option<T> {
        result.map_err(|error| self.fail(what, &error)).ok()
    }

    pub fn heads(&self) -> ChainHeads {
        let heads = *self.chain.heads().borrow();
        ChainHeads {
            head: heads.head,
            safe: heads.safe.unwrap_or(self.genesis),
        }
    }

    /// The time of the head, Unix seconds.
    pub fn head_time(&self) -> u64 {
        self.chain.heads().borrow().timestamp
    }

    /// The canonical block of this number.
    pub fn at(&self, number: u64) -> Option<Arc<Payload>> {
        self.chain.view().payload(number).ok().flatten()
    }

    pub fn hash_at(&self, number: u64) -> Option<B256> {
        self.chain.view().hash_of(number).ok().flatten()
    }

    /// An executed block of any branch.
    pub fn get(&self, hash: &B256) -> Option<Arc<Payload>> {
        let view = self.chain.view();
        match view.number_of(*hash).ok().flatten() {
            Some(number) => view.payload(number).ok().flatten(),
            None if self.chain.knows(*hash) => self.chain.payload(*hash).ok().flatten(),
            None => None,
        }
    }

    /// Executes a block of the swarm, by the fork choice of unsafe blocks.
    pub fn follow(&mut self, block: &Arc<Payload>, provenance: Provenance) -> Settled {
        let begun = Instant::now();
        let inserted = self.wait(self.chain.follow(block.clone(), provenance));
        self.import.spent += begun.elapsed();
        self.import.blocks += 1;
        match self.expect("a block of the swarm", inserted) {
            Some(Inserted::Valid) => Settled::Ok,
            Some(Inserted::Invalid { reason, .. }) => Settled::Invalid(reason),
            Some(Inserted::Syncing | Inserted::NotExecutable) | None => Settled::Dropped,
        }
    }

    /// Executes a block without moving a head; `false` if that is not possible now.
    pub fn insert(&mut self, block: &Arc<Payload>) -> bool {
        let inserted = self.wait(self.chain.insert(block.clone(), Provenance::Imported));
        match self.expect("a block of this node", inserted) {
            Some(Inserted::Invalid { reason, .. }) => {
                self.fail("a block of this node is invalid", &reason);
                false
            }
            inserted => inserted == Some(Inserted::Valid),
        }
    }

    /// Builds a block on `parent`; `None` if that is not possible now.
    pub fn build(&mut self, parent: B256, attributes: OpPayloadAttributes) -> Option<Arc<Payload>> {
        let begun = Instant::now();
        let chain = self.chain.clone();
        let built = self.wait(async {
            let id = chain.start(parent, attributes).await?;
            chain.seal(id).await
        });
        self.import.spent += begun.elapsed();
        self.import.blocks += 1;
        Some(self.expect("a build", built)?.payload.clone())
    }

    /// Builds the block with derived attributes and makes it the head, unless it is canonical.
    pub fn derive(
        &mut self,
        parent: B256,
        attributes: OpPayloadAttributes,
    ) -> Option<Arc<Payload>> {
        let derived = self.wait(self.chain.derive(parent, attributes, None));
        self.expect("a derived block", derived)
    }

    /// Protects a canonical block that was derived, so that the head stays on its branch.
    pub fn protect(&mut self, derived: Option<B256>) {
        let chain = self.chain.clone();
        let protected = self.wait(async { chain.protect(derived).await?.await });
        self.expect("the protection of a derived block", protected);
    }

    /// Makes an executed block the head.
    pub fn set_head(&mut self, head: B256) {
        let moved = self.wait(self.chain.forkchoice(head, None, None));
        self.expect("a move of the head", moved);
    }

    /// Makes a canonical block safe.
    pub fn set_safe(&mut self, safe: B256) {
        let moved = self.wait(self.chain.promote(Some(safe), None));
        self.expect("a move of the safe head", moved);
    }

    /// Moves the safe head also downwards, and the head with it if the block is on another branch.
    pub fn reset_safe(&mut self, safe: BlockId) {
        self.protect(None);
        let is_canonical = self.hash_at(safe.number) == Some(safe.hash);
        let head = if is_canonical {
            self.heads().head.hash
        } else {
            safe.hash
        };
        let moved = self.wait(self.chain.forkchoice(head, Some(safe.hash), None));
        if self.expect("a reset of the safe head", moved).is_some() {
            self.protect(Some(safe.hash));
        }
    }

    /// Logs a block and its guard row before it is signed; `false` if another block is guarded.
    pub fn log_before_sign(&mut self, block: &Arc<Payload>, l1_origin: B256) -> bool {
        match self.wait(self.chain.log_before_sign(block.clone(), l1_origin)) {
            Err(ChainError::AlreadySigned { .. }) => false,
            logged => {
                let kept = self.disk.sync_log();
                if let Err(error) = kept {
                    self.fail("a copy of the payload log", &error);
                }
                self.expect("a block to be signed", logged).is_some()
            }
        }
    }

    /// Logs a block without its guard row, and syncs nothing: a planted bug.
    pub fn log_unguarded(&mut self, block: &Arc<Payload>) {
        let logged = self.wait(self.chain.keep(block.clone()));
        self.expect("a block to be kept", logged);
    }

    /// The blocks on `parent` that may have been signed.
    pub fn guards(&self, parent: BlockId) -> Vec<SignGuard> {
        let guards = self.chain.guards(parent.number + 1, parent.hash);
        guards.unwrap_or_default()
    }

    /// A block of the payload log, executed again if a restart has forgotten it.
    pub fn logged(&mut self, hash: B256) -> Option<Arc<Payload>> {
        let logged = self.chain.payload(hash);
        let block = self.expect("a logged block", logged)??;
        self.insert(&block).then_some(block)
    }

    /// The next nonce of an account after this block; `None` if its state cannot be read now.
    pub fn nonce(&self, block: B256, account: Address) -> Option<u64> {
        let view = self
            .world
            .runtime
            .block_on(self.chain.view_of(block))
            .ok()?;
        let account = view.state().account(account).ok()?;
        Some(account.map_or(0, |account| account.nonce))
    }

    /// Makes everything durable that the store has.
    pub fn sync(&mut self) {
        if let Err(error) = self.disk.sync_store() {
            self.fail("a copy of the store", &error);
        }
    }

    /// Ends the process at once, and opens the files that are left by the production recovery.
    pub fn crash(&mut self, kind: CrashKind) {
        let begun = Instant::now();
        let threads = self.threads.take();
        let reopened = self.disk.after(kind).map_err(RealWorldError::from);
        let reopened = reopened.and_then(|disk| Ok((open(disk.path())?, disk)));
        match reopened {
            Ok(((chain, new_threads), disk)) => {
                self.chain = chain;
                // The old process still writes to the old files, until its threads have ended.
                let old = std::mem::replace(&mut self.disk, disk);
                end(threads);
                self.threads = Some(new_threads);
                drop(old);
            }
            Err(error) => self.fail("the files after a crash", &error),
        }
        self.import.files += begun.elapsed();
    }

    /// Ends the node and verifies a copy of its files as they were before, as `starling db verify`
    /// does. Returns the first damage.
    pub fn verify(&mut self) -> Result<Option<String>, RealWorldError> {
        let begun = Instant::now();
        let damage = self.damage();
        end(self.threads.take());
        self.import.files += begun.elapsed();
        damage
    }

    fn damage(&self) -> Result<Option<String>, RealWorldError> {
        let copy = self.disk.after(CrashKind::Kill)?;
        let store = Store::open(copy.path(), CACHE, None).map_err(ChainError::from)?;
        let mut report = verify(&store, SAMPLES, &mut |_, _, _| {})?;
        verify_payload_log(&payload_log_dir(copy.path()), &mut report);
        Ok(report.damages.into_iter().next().map(|damage| damage.what))
    }
}

/// Waits until the threads of a process have ended. Their result says nothing about a crash.
fn end(threads: Option<Threads>) {
    if let Some(threads) = threads {
        let _ = threads.stop();
    }
}

impl Drop for RealChain {
    fn drop(&mut self) {
        // The threads must not write to files that are removed.
        end(self.threads.take());
    }
}
