//! The executor: the thread that owns the tree, executes payloads, decides heads and publishes views.
//!
//! Everybody who wants a block executed or a head moved sends it a [`Command`] over one bounded channel and waits for the reply.
//! Readers never come here: they take the published [`View`]. It never touches the write path of the store; it waits only when
//! executed but not yet stored blocks exceed [`Limits::overlays`], the node's one point of back-pressure, or when not even the payload
//! log has room on the disk.

mod choice;
mod import;
mod views;

pub use import::Imported;

use crate::chain::{
    ChainError, Heads, Inserted, Shared,
    execute::{self, InvalidBlock, Preparation, ValidateError},
    payload_log::{LogError, Logged, PayloadLog},
    persister::{Done, Work},
    store::Snapshot,
    tree::{self, Branch, Tree},
    view::{self, ExecutedBlock, View},
};
use alloy_primitives::{B256, map::HashSet};
use starling_p2p::Provenance;
use starling_proto::payload::{BlockId, Payload};
use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::AtomicBool,
        mpsc::{Receiver, SyncSender, TryRecvError},
    },
    time::Instant,
};
use tokio::sync::{mpsc, oneshot};

/// Bytes that the executor may hold, a part of the node's memory budget.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Executed blocks above the store: several full blocks, so that a commit that waits for the database does not stop execution.
    pub overlays: usize,
    /// What leads back from the store's head to where a side branch leaves it.
    pub way_back: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            overlays: 32_000_000,
            way_back: view::WAY_BACK,
        }
    }
}

/// Blocks of the payload log kept below the store's head: what a restarted sequencer may be asked to send again.
const LOG_RETAINED: u64 = 1024;
/// The payload log is pruned once in so many blocks.
const LOG_PRUNE_EVERY: u64 = 256;

/// Blocks below the store's head down to which a branch may leave it: what has to be read to stand there. L1 reorgs are much shorter.
const MAX_UNWIND: u64 = 16_384;

/// In the payload log: a block like any other, and one that may have been signed here.
pub const FOLLOWED: u8 = 0;
pub const BUILT: u8 = 1;

/// A head that was left for a branch which may become higher. Until it is, the log has this head: who kills the process, or finds the
/// branch invalid, gets it back.
#[derive(Clone, Copy, Debug)]
struct Left {
    head: BlockId,
    /// Height up to which both branches are one.
    base: u64,
}

type Reply<T> = oneshot::Sender<Result<T, ChainError>>;

/// What the executor is asked.
pub enum Command {
    /// Execute; with `follow`, apply the fork choice of unsafe blocks too.
    Insert {
        payload: Preparation,
        provenance: Provenance,
        follow: bool,
        reply: Reply<Inserted>,
    },
    /// Take over a block that the builder has executed.
    Adopt {
        block: Arc<ExecutedBlock>,
        reply: Reply<()>,
    },
    /// Execute blocks of a file and make each the head.
    Import {
        payloads: Vec<Preparation>,
        /// Set when a block is refused. Nothing is imported once it is set.
        stop: Arc<AtomicBool>,
        reply: Reply<Imported>,
    },
    Forkchoice {
        head: B256,
        safe: Option<B256>,
        finalized: Option<B256>,
        reply: Reply<()>,
    },
    /// A view whose head is this block, to build on or to read.
    ViewOf { hash: B256, reply: Reply<Arc<View>> },
    /// The persister is done with something.
    Wake,
}

pub struct Executor {
    shared: Arc<Shared>,
    tree: Tree,
    snapshot: Snapshot,
    heads: Heads,
    /// The view of the heads: the published one, or, within an import, one that is published later.
    head: Arc<View>,
    /// The last view of something else: its index, and the way back below the stored head, are made once, however often it is asked for.
    aside: RefCell<Option<Arc<View>>>,
    log: PayloadLog,
    work: SyncSender<Work>,
    done: Receiver<Done>,
    persisting: bool,
    /// Blocks from the builder, a file or a gap that are not in the payload log, at least not yet.
    unlogged: HashSet<B256>,
    /// The head that was left to follow a branch which is not yet higher.
    left: Option<Left>,
    log_pruned: u64,
    limits: Limits,
}

impl Executor {
    pub fn new(
        shared: Arc<Shared>,
        snapshot: Snapshot,
        log: PayloadLog,
        work: SyncSender<Work>,
        done: Receiver<Done>,
        limits: Limits,
    ) -> Self {
        let (heads, head) = (*shared.heads.borrow(), shared.view.load_full());
        Self {
            shared,
            tree: Tree::default(),
            snapshot,
            heads,
            head,
            aside: RefCell::default(),
            log,
            work,
            done,
            persisting: false,
            unlogged: HashSet::default(),
            left: None,
            log_pruned: 0,
            limits,
        }
    }

    /// Executes again what the payload log holds and the store does not. First the branch of the head that was acknowledged last, which
    /// becomes the head; then, in order of arrival, the rest: side branches, and what was logged later. A later block that was built
    /// here may be signed, so it becomes the head if it extends the head and is the block of its height and parent that was sent to the
    /// signer last. Runs before any request is served.
    pub fn replay(&mut self) -> Result<usize, ChainError> {
        let mut replayed = 0;
        let (mut later, mut lost) = (0, false);
        if let Some(followed) = self.log.head().map_err(ChainError::store)? {
            // A head that does not rise is stored before it is acknowledged.
            lost = followed.head.number > self.snapshot.head().number
                && !self.restore(followed.head, &mut replayed)?;
            later = if lost { 0 } else { followed.next };
        }
        let head = self.heads.head;
        // The store's head may be on another branch than the log's newer blocks, which leave it below.
        let lowest = self
            .snapshot
            .head()
            .number
            .min(head.number)
            .saturating_sub(tree::RETAINED);
        for (arrival, id) in self.log.arrivals(lowest).map_err(ChainError::store)? {
            let known = self.tree.get(&id.hash).is_some() || self.stored(&id)?;
            if known && arrival < later {
                continue;
            }
            let Some(Logged { payload, origin }) = self.logged(|log| log.at(arrival), id) else {
                continue;
            };
            let (timestamp, parent) = (payload.timestamp(), payload.parent_hash());
            if !known {
                // A branch cut off by pruning is not an error.
                if self.insert(Preparation::later(Arc::new(payload)), Provenance::Imported)?
                    != Inserted::Valid
                {
                    continue;
                }
                replayed += 1;
            }
            // In place of a head that is lost, whatever leads furthest.
            let wanted = if origin == BUILT {
                self.is_last_signed(id, parent)?
            } else {
                lost
            };
            if arrival >= later
                && wanted
                && let Some((heads, view)) = self.preferred(id, timestamp)?
                && view.hash_of(head.number).map_err(ChainError::store)? == Some(head.hash)
            {
                self.set_heads(heads, view)?;
            }
            self.collect(false)?;
        }
        Ok(replayed)
    }

    /// Whether this block was the last one of its height and parent to be sent to the signer.
    fn is_last_signed(&self, id: BlockId, parent: B256) -> Result<bool, ChainError> {
        let guards = self
            .log
            .guards(id.number, parent)
            .map_err(ChainError::store)?;
        Ok(guards.last().is_none_or(|last| last.hash == id.hash))
    }

    /// A payload of the log. One that cannot be read is as if it had never come: others will send it.
    fn logged(
        &self,
        read: impl Fn(&PayloadLog) -> Result<Option<Logged>, LogError>,
        id: BlockId,
    ) -> Option<Logged> {
        read(&self.log).unwrap_or_else(|error| {
            tracing::warn!(number = id.number, hash = %id.hash, %error, "a payload in the log cannot be read and is passed over");
            None
        })
    }

    /// Serves commands until every sender is gone or the chain is stopped, then stores what is left. Returns the error that ended the
    /// chain, if one did; commands that still wait are answered with [`ChainError::Stopped`].
    pub fn run(mut self, mut commands: mpsc::Receiver<Command>) -> Result<(), ChainError> {
        while let Some(command) = commands.blocking_recv() {
            if self.shared.is_stopping() {
                break;
            }
            self.collect(false)?;
            self.obey(command)?;
        }
        self.idle()
    }

    /// The error is one that ends the chain.
    fn obey(&mut self, command: Command) -> Result<(), ChainError> {
        match command {
            Command::Insert {
                payload,
                provenance,
                follow: false,
                reply,
            } => answer(reply, self.insert(payload, provenance)),
            Command::Insert {
                payload,
                provenance,
                follow: true,
                reply,
            } => answer(reply, self.follow(payload, provenance)),
            Command::Adopt { block, reply } => answer(reply, self.adopt(block)),
            Command::Import {
                payloads,
                stop,
                reply,
            } => answer(reply, self.import(payloads, &stop)),
            Command::Forkchoice {
                head,
                safe,
                finalized,
                reply,
            } => answer(reply, self.forkchoice(head, safe, finalized)),
            Command::ViewOf { hash, reply } => answer(reply, self.view_of(hash)),
            Command::Wake => Ok(()),
        }
    }

    fn insert(
        &mut self,
        preparation: Preparation,
        provenance: Provenance,
    ) -> Result<Inserted, ChainError> {
        let payload = preparation.payload().clone();
        let id = payload.id();
        if self.tree.get(&id.hash).is_none() && !self.stored(&id)? {
            let parent = payload.parent_hash();
            if let Some(reason) = self.tree.known_invalid(id.hash, parent) {
                return Ok(Inserted::Invalid {
                    latest_valid: self.known(parent)?.then_some(parent),
                    reason,
                });
            }
            if !self.known(parent)? {
                return Ok(Inserted::Syncing);
            }
            if !self.wait_for_room(parent)? {
                tracing::warn!(number = id.number, hash = %id.hash, ?provenance, "side branches take too much memory for one more block");
                return Ok(Inserted::NoRoom);
            }
            // A block of ours on which none can stand: what has changed since is too much, or no longer kept.
            let Some(parent_view) = self.find_view(parent)? else {
                return Ok(Inserted::NoRoom);
            };
            // A driver may reorganise as often as it likes, and a file is authority: what was built long ago makes room.
            if matches!(provenance, Provenance::Engine | Provenance::Imported) {
                self.make_room(id.number);
            }
            if !self.tree.has_room(id.number) {
                tracing::warn!(number = id.number, hash = %id.hash, ?provenance, "there are too many blocks at this height");
                return Ok(Inserted::NoRoom);
            }
            let started = Instant::now();
            let block = match execute::validate_prepared(
                &self.shared.spec,
                parent_view.state(),
                preparation,
            ) {
                Ok(block) => Arc::new(block),
                Err(ValidateError::Invalid(error)) => {
                    let reason = error.to_string();
                    tracing::warn!(number = id.number, hash = %id.hash, ?provenance, reason, "a block is invalid");
                    // The wrong transactions for a header say nothing about the block of that hash.
                    if !matches!(error, InvalidBlock::TransactionsRoot { .. }) {
                        self.tree.mark_invalid(id.hash, reason.clone());
                    }
                    return Ok(Inserted::Invalid {
                        latest_valid: Some(parent),
                        reason,
                    });
                }
                Err(ValidateError::Read(error)) => return Err(ChainError::store(error)),
            };
            metrics::histogram!("starling_execute_seconds").record(started.elapsed().as_secs_f64());
            match provenance {
                Provenance::Imported => {}
                // Peers that filled a gap fill it again.
                Provenance::Linked { .. } | Provenance::Ancestor { .. } => {
                    drop(self.unlogged.insert(id.hash))
                }
                _ => {
                    self.log_adopted(parent)?;
                    self.log_payload(&payload, FOLLOWED)?;
                }
            }
            self.tree.insert(block);
            self.shared.known.write().insert(id.hash, payload);
        } else if provenance == Provenance::Engine {
            // Built here for a driver, which may have published it.
            self.log_adopted(id.hash)?;
        }
        Ok(Inserted::Valid)
    }

    fn adopt(&mut self, block: Arc<ExecutedBlock>) -> Result<(), ChainError> {
        let parent = block.payload.parent_hash();
        if !self.wait_for_room(parent)? {
            self.forget_side_branches(self.snapshot.head().number);
        }
        let id = block.payload.id();
        if self.tree.get(&id.hash).is_some() || self.stored(&id)? {
            return Ok(());
        }
        // Since the build began it may have been forgotten.
        if !self.known(parent)? {
            return Err(ChainError::UnknownBlock(parent));
        }
        self.make_room(id.number);
        let payload = block.payload.clone();
        if !self.tree.insert(block) {
            return Err(ChainError::Build(format!(
                "there are {} blocks at height {} already",
                tree::MAX_SIBLINGS,
                id.number
            )));
        }
        self.unlogged.insert(id.hash);
        self.shared.known.write().insert(id.hash, payload);
        Ok(())
    }

    fn follow(
        &mut self,
        payload: Preparation,
        provenance: Provenance,
    ) -> Result<Inserted, ChainError> {
        let (id, timestamp) = (payload.payload().id(), payload.payload().timestamp());
        let parent = payload.payload().parent_hash();
        let whole = payload.payload().clone();
        let mut inserted = self.insert(payload, provenance)?;
        let admitted = self.admits(id.hash, provenance);
        let tip = match provenance {
            Provenance::Linked { tip } => tip,
            Provenance::Ancestor { of } => of.number,
            _ => id.number,
        };
        let highest = self
            .left
            .map_or(self.heads.head.number, |left| left.head.number);
        // A branch that ends above our head may replace it.
        if admitted && inserted == Inserted::NoRoom && tip > highest {
            inserted = match self.lead(&whole, provenance) {
                Err(error @ (ChainError::Store(_) | ChainError::Stopped)) => return Err(error),
                Err(error) => {
                    tracing::warn!(number = id.number, hash = %id.hash, %error, "a branch cannot be followed");
                    Inserted::NoRoom
                }
                Ok(inserted) => inserted,
            };
        }
        // The branch for which a higher head was left goes no further.
        if matches!(inserted, Inserted::Invalid { .. }) && parent == self.heads.head.hash {
            self.come_back()?;
        }
        if admitted
            && inserted == Inserted::Valid
            && let Some((heads, view)) = self.preferred(id, timestamp)?
        {
            match provenance {
                // Gap blocks are not logged, since there may be thousands a second: after a crash they are fetched again.
                Provenance::Linked { .. } | Provenance::Ancestor { .. }
                    if parent == self.heads.head.hash =>
                {
                    self.set_heads(heads, view)?;
                }
                _ => self.move_heads(heads, view)?,
            }
        }
        Ok(inserted)
    }

    /// Whether a block of the swarm may become the head. While a rollup node drives, only blocks that lead to its missing head may.
    fn admits(&self, hash: B256, provenance: Provenance) -> bool {
        self.shared
            .driver
            .send_if_modified(|driver| driver.on_time(Instant::now()));
        self.shared.driver.borrow().admits(hash, provenance)
    }

    /// The fork choice of unsafe blocks: at one height the first valid block stays, the head moves only to a strictly higher block, and
    /// only on a branch that contains the safe and the finalized head. Gives the heads and their view if this block is to be the head.
    fn preferred(
        &self,
        head: BlockId,
        timestamp: u64,
    ) -> Result<Option<(Heads, Arc<View>)>, ChainError> {
        let heads = Heads {
            head,
            timestamp,
            ..self.heads
        };
        if head.number <= self.heads.head.number {
            return Ok(None);
        }
        // What cannot be read, because it leaves our chain too deep, is not preferred.
        let Some(view) = self.make_view(&heads)? else {
            return Ok(None);
        };
        for id in [heads.safe, heads.finalized].into_iter().flatten() {
            if view.hash_of(id.number).map_err(ChainError::store)? != Some(id.hash) {
                return Ok(None);
            }
        }
        Ok(Some((heads, view)))
    }

    /// `view` is the view of these heads.
    fn set_heads(&mut self, heads: Heads, view: Arc<View>) -> Result<(), ChainError> {
        self.record_abandoned(|number| view.hash_of(number))?;
        (self.heads, self.head) = (heads, view);
        if self
            .left
            .take_if(|left| left.head.number < heads.head.number)
            .is_some()
        {
            self.log.set_head(heads.head).map_err(ChainError::store)?;
        }
        self.publish();
        self.persist()
    }

    /// Logs the blocks on the way to this one that nobody has logged: what is the head, or below a logged block, is in the log or stored.
    fn log_adopted(&mut self, tip: B256) -> Result<(), ChainError> {
        let mut way = Vec::new();
        let mut at = tip;
        while self.unlogged.contains(&at)
            && let Some(block) = self.tree.get(&at)
            && !self.stored(&block.payload.id())?
        {
            self.unlogged.remove(&at);
            at = block.payload.parent_hash();
            way.push(block.payload.clone());
        }
        way.iter()
            .rev()
            .try_for_each(|payload| self.log_payload(payload, FOLLOWED))
    }

    /// Waits for room on a full disk.
    fn log_payload(&self, payload: &Payload, origin: u8) -> Result<(), ChainError> {
        self.shared
            .when_there_is_room(LogError::is_full, || self.log.append(payload, origin))
            .map_err(ChainError::store)
    }

    /// Publishes the view of the heads, then wakes who follows.
    fn publish(&self) {
        self.shared.view.store(self.head.clone());
        self.shared
            .heads
            .send_if_modified(|heads| std::mem::replace(heads, self.heads) != self.heads);
        metrics::gauge!("starling_head_number").set(self.heads.head.number as f64);
    }

    /// Whether this block is on the store's canonical chain.
    fn stored(&self, id: &BlockId) -> Result<bool, ChainError> {
        is_stored(&self.snapshot, id)
    }

    fn known(&self, hash: B256) -> Result<bool, ChainError> {
        Ok(self.tree.get(&hash).is_some()
            || self
                .snapshot
                .number_of(&hash)
                .map_err(ChainError::store)?
                .is_some())
    }

    fn branch(&self, tip: BlockId) -> Result<Branch, ChainError> {
        self.tree.branch(tip, |id| self.stored(id))
    }

    /// Hands the persister the way from the store's heads to ours, if it is idle.
    fn persist(&mut self) -> Result<(), ChainError> {
        let Heads {
            head,
            safe,
            finalized,
            ..
        } = self.heads;
        if self.persisting
            || (
                self.snapshot.head(),
                self.snapshot.safe(),
                self.snapshot.finalized(),
            ) == (head, safe, finalized)
        {
            return Ok(());
        }
        let Branch { base, blocks } = self.branch(head)?;
        self.send(Work {
            unwind_to: base.number,
            blocks,
            safe,
            finalized,
        })
    }

    fn send(&mut self, work: Work) -> Result<(), ChainError> {
        self.work.send(work).map_err(|_| ChainError::Stopped)?;
        self.persisting = true;
        Ok(())
    }

    /// Takes what the persister has finished; with `wait`, waits for it.
    fn collect(&mut self, wait: bool) -> Result<(), ChainError> {
        let result = if wait && self.persisting {
            self.done.recv().map_err(|_| ChainError::Stopped)?
        } else {
            match self.done.try_recv() {
                Ok(result) => result,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(ChainError::Stopped),
            }
        };
        self.persisting = false;
        self.snapshot = result.map_err(ChainError::store)?;
        self.aside.take();
        // The head may be on a side branch far below the store's head: what leads to it stays.
        let base = self.branch(self.heads.head)?.base;
        let snapshot = &self.snapshot;
        let gone = self.tree.prune(base.number, |id| is_stored(snapshot, id))?;
        self.forget(&gone);
        let stored = self.snapshot.head().number;
        if stored >= self.log_pruned.saturating_add(LOG_PRUNE_EVERY) {
            let lowest = self
                .left
                .map_or(base.number, |left| left.base.min(base.number))
                .min(stored);
            self.log
                .prune(lowest.saturating_sub(LOG_RETAINED))
                .map_err(ChainError::store)?;
            self.log.rotate().map_err(ChainError::store)?;
            self.log_pruned = stored;
        }
        // What was being stored when the heads left it is on the way back, however much it is.
        let view = match self.make_view_within(&self.heads, usize::MAX)? {
            Some(view) => view,
            // What was being stored when the heads left its branch may have let go what leads back.
            None => {
                let head = self.snapshot.head();
                tracing::error!(lost = %self.heads.head, stored = %head, "the head cannot be reached any more: the stored one is the head");
                let (safe, finalized) = (self.snapshot.safe(), self.snapshot.finalized());
                let view = self.make_view(&Heads {
                    head,
                    timestamp: 0,
                    safe,
                    finalized,
                })?;
                let view = view.ok_or(ChainError::UnknownBlock(head.hash))?;
                self.heads = Heads {
                    head,
                    timestamp: view.header().timestamp,
                    safe,
                    finalized,
                };
                view
            }
        };
        self.head = view;
        self.publish();
        self.head.release();
        self.persist()
    }

    /// Waits for the persister while executed blocks take more memory than they may. When nothing is left to store, it is side
    /// branches that take it: a block on the head makes them go, and for any other there is no room, which is false.
    fn wait_for_room(&mut self, parent: B256) -> Result<bool, ChainError> {
        while self.tree.weight_above(self.snapshot.head().number) > self.limits.overlays {
            if self.persisting {
                self.collect(true)?;
            } else if parent == self.heads.head.hash {
                self.forget_side_branches(self.snapshot.head().number);
                break;
            } else {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Forgets all blocks above this height that the head does not stand on.
    fn forget_side_branches(&mut self, above: u64) {
        let gone = self.tree.keep_branch(above, self.heads.head.hash);
        tracing::warn!(blocks = gone.len(), "blocks on side branches are forgotten");
        self.forget(&gone);
    }

    /// Makes room at a full height by forgetting a block that the head does not stand on.
    fn make_room(&mut self, number: u64) {
        let gone = self.tree.make_room(number, self.heads.head.hash);
        self.forget(&gone);
    }

    /// These blocks have left the tree.
    fn forget(&mut self, gone: &[B256]) {
        let mut known = self.shared.known.write();
        for hash in gone {
            known.remove(hash);
            self.unlogged.remove(hash);
        }
    }
}

/// Whether this block is on the canonical chain of this snapshot.
fn is_stored(snapshot: &Snapshot, id: &BlockId) -> Result<bool, ChainError> {
    Ok(id.number <= snapshot.head().number
        && snapshot.hash_of(id.number).map_err(ChainError::store)? == Some(id.hash))
}

/// Sends the reply. An error of the store is returned: it ends the chain.
fn answer<T>(reply: Reply<T>, result: Result<T, ChainError>) -> Result<(), ChainError> {
    let fatal = match &result {
        Err(error @ (ChainError::Store(_) | ChainError::Stopped)) => Err(error.clone()),
        _ => Ok(()),
    };
    let _ = reply.send(result);
    fatal
}
