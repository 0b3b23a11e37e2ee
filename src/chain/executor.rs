//! The executor: the thread that owns the tree, executes payloads, decides heads and publishes
//! views.
//!
//! [`crate::chain::Chain`] sends it an [`ExecutorCommand`] over one bounded channel for every block
//! to execute and every head to move, and waits for the reply. Readers of the head's branch send no
//! command: they take the published [`View`]. The executor never touches the write path of the
//! store: it hands blocks to the persister ([`commit`]). Blocks that take longer to execute or to
//! store than to send can overload the executor. It waits for the persister when executed blocks
//! that are not stored yet exceed [`ExecutorLimits::overlays`] (this slows down the whole node),
//! and when a lowered head or a switch of branches must be stored first. It also waits for disk
//! space to write the payload log.

mod commit;
mod forkchoice;
mod import;
mod replay;
mod switch;
mod views;

pub use import::Imported;
pub use switch::SwitchPolicy;

use crate::chain::{
    ChainError, Heads, Inserted, Shared,
    execute::{self, ExpectedTransactions, InvalidBlock, Preparation, ValidateError},
    payload_log::{FOLLOWED, LogError, Logged, PayloadLog},
    persister::{PersistResult, PersistWork},
    rejected::BadBlock,
    store::Snapshot,
    tree::{Branch, Tree},
    view::{self, ExecutedBlock, View},
};
use alloy_primitives::{B256, map::HashSet};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use starling_proto::payload::{BlockId, Payload};
use starling_proto::provenance::Provenance;
use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::AtomicBool,
        mpsc::{Receiver, SyncSender},
    },
    time::Instant,
};
use switch::DisplacedHead;
use tokio::sync::{mpsc, oneshot};

/// Memory limits of the executor in bytes, a part of the node's memory budget.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorLimits {
    /// Maximum bytes of executed blocks above the store. The default fits several full blocks, so
    /// that a commit that waits for the database does not stop execution.
    pub overlays: usize,
    /// Maximum bytes of unwind data kept in memory to read state at a fork point below the stored
    /// head.
    pub unwind_data: usize,
}

impl Default for ExecutorLimits {
    fn default() -> Self {
        Self {
            overlays: 32_000_000,
            unwind_data: view::UNWIND_DATA,
        }
    }
}

/// Deepest fork point below the stored head that we accept, in blocks. This bounds the
/// unwind records that one view reads. L1 reorgs are much shorter.
pub const MAX_UNWIND: u64 = 16_384;

type ReplySender<T> = oneshot::Sender<Result<T, ChainError>>;

/// Requests to the executor, served one at a time.
pub enum ExecutorCommand {
    /// Execute a payload on any branch, without moving a head.
    Insert {
        payload: Preparation,
        provenance: Provenance,
        reply: ReplySender<Inserted>,
    },
    /// Execute a payload, and switch to its branch if `policy` allows a switch. With
    /// [`SwitchPolicy::Follower`], apply the fork choice of unsafe blocks too.
    SwitchTo {
        payload: Preparation,
        provenance: Provenance,
        policy: SwitchPolicy,
        reply: ReplySender<Inserted>,
    },
    /// Reinstate the head that was displaced for a fork choice which is not completed, if one is
    /// held.
    AbandonForkchoice { reply: ReplySender<()> },
    /// Add a block that the builder has executed.
    Adopt {
        block: Arc<ExecutedBlock>,
        reply: ReplySender<()>,
    },
    /// Execute consecutive blocks of a file and make each the head.
    Import {
        payloads: Vec<Preparation>,
        /// Set when a block is refused. Once it is set, nothing more is imported.
        stop: Arc<AtomicBool>,
        reply: ReplySender<Imported>,
    },
    Forkchoice {
        head: B256,
        safe: Option<B256>,
        finalized: Option<B256>,
        reply: ReplySender<()>,
    },
    /// Move the safe and the finalized head, but not the unsafe head.
    Promote {
        safe: Option<B256>,
        finalized: Option<B256>,
        reply: ReplySender<()>,
    },
    /// Keep the head on the branch of this block, the newest one that was derived from L1. `None`
    /// ends that.
    Protect {
        derived: Option<B256>,
        reply: ReplySender<()>,
    },
    /// Build a block on `parent` with the transactions of these attributes alone, make it the head
    /// unless it is canonical already, and protect it.
    Derive {
        parent: B256,
        attributes: Box<OpPayloadAttributes>,
        expected: Option<ExpectedTransactions>,
        reply: ReplySender<Arc<Payload>>,
    },
    /// Return a view whose head is this block, to build on or to read.
    ViewOf {
        hash: B256,
        reply: ReplySender<Arc<View>>,
    },
    /// Wait until the heads are stored.
    FinishCommits { reply: ReplySender<()> },
    /// Wake up: the persister has reported a result, or the chain is to stop.
    Wake,
}

pub struct Executor {
    shared: Arc<Shared>,
    tree: Tree,
    snapshot: Snapshot,
    heads: Heads,
    /// The view of `heads`. It is the published view, except during an import, which publishes its
    /// view at the end.
    head: Arc<View>,
    /// The last view made of a block other than the head, kept so that repeated requests reuse its
    /// row index and unwind data.
    cached_view: RefCell<Option<Arc<View>>>,
    log: PayloadLog,
    work: SyncSender<PersistWork>,
    done: Receiver<PersistResult>,
    /// A commit is in progress: the persister has work and has not reported its result.
    persisting: bool,
    /// Executed blocks that are not in the payload log: from the builder, a file or a gap.
    unlogged: HashSet<B256>,
    displaced: DisplacedHead,
    /// The newest block derived from L1, which may be above the safe head. A head on a branch
    /// without it is refused, except on the way to the head of a fork choice.
    derived: Option<BlockId>,
    /// The stored height at which the payload log was last pruned.
    log_pruned: u64,
    limits: ExecutorLimits,
}

impl Executor {
    pub fn new(
        shared: Arc<Shared>,
        snapshot: Snapshot,
        log: PayloadLog,
        work: SyncSender<PersistWork>,
        done: Receiver<PersistResult>,
        limits: ExecutorLimits,
    ) -> Self {
        let (heads, head) = (*shared.heads.borrow(), shared.view.load_full());
        Self {
            shared,
            tree: Tree::default(),
            snapshot,
            heads,
            head,
            cached_view: RefCell::default(),
            log,
            work,
            done,
            persisting: false,
            unlogged: HashSet::default(),
            displaced: DisplacedHead::default(),
            derived: None,
            log_pruned: 0,
            limits,
        }
    }

    /// Serves commands until every sender is gone or the chain is stopped, then stores the blocks
    /// up to the head. Returns the error that ended the chain, if one did. Callers whose commands
    /// are still in the queue then get [`ChainError::Stopped`].
    pub fn run(mut self, mut commands: mpsc::Receiver<ExecutorCommand>) -> Result<(), ChainError> {
        self.report_head();
        while let Some(command) = commands.blocking_recv() {
            if self.shared.is_stopping() {
                break;
            }
            self.poll_commit()?;
            self.handle_command(command)?;
        }
        self.finish_commits()
    }

    /// Serves one command. Returns an error only if the error ends the chain.
    fn handle_command(&mut self, command: ExecutorCommand) -> Result<(), ChainError> {
        match command {
            ExecutorCommand::Insert {
                payload,
                provenance,
                reply,
            } => send_reply(reply, self.insert(payload, provenance)),
            ExecutorCommand::SwitchTo {
                payload,
                provenance,
                policy: SwitchPolicy::Follower,
                reply,
            } => send_reply(reply, self.follow(payload, provenance)),
            ExecutorCommand::SwitchTo {
                payload,
                provenance,
                policy,
                reply,
            } => send_reply(reply, self.switch_to(payload, provenance, policy)),
            ExecutorCommand::AbandonForkchoice { reply } => {
                send_reply(reply, self.abandon_fork_choice())
            }
            ExecutorCommand::Adopt { block, reply } => send_reply(reply, self.adopt(block)),
            ExecutorCommand::Import {
                payloads,
                stop,
                reply,
            } => send_reply(reply, self.import(payloads, &stop)),
            ExecutorCommand::Forkchoice {
                head,
                safe,
                finalized,
                reply,
            } => send_reply(reply, self.forkchoice(head, safe, finalized)),
            ExecutorCommand::Promote {
                safe,
                finalized,
                reply,
            } => send_reply(reply, self.promote(safe, finalized)),
            ExecutorCommand::Protect { derived, reply } => send_reply(reply, self.protect(derived)),
            ExecutorCommand::Derive {
                parent,
                attributes,
                expected,
                reply,
            } => send_reply(reply, self.derive(parent, *attributes, expected)),
            ExecutorCommand::ViewOf { hash, reply } => send_reply(reply, self.view_of(hash)),
            ExecutorCommand::FinishCommits { reply } => send_reply(reply, self.finish_commits()),
            ExecutorCommand::Wake => Ok(()),
        }
    }

    /// Executes a block on its parent, on any branch. No head moves.
    fn insert(
        &mut self,
        preparation: Preparation,
        provenance: Provenance,
    ) -> Result<Inserted, ChainError> {
        let id = preparation.payload().id();
        if self.tree.get(&id.hash).is_some() || self.stored(&id)? {
            if provenance == Provenance::Engine {
                // The rollup node may have published this block since it was built here: log it.
                self.log_unlogged(id.hash)?;
            }
            return Ok(Inserted::Valid);
        }
        // For a block of the unsupported fork Lagoon, return an error instead of `Invalid`: nothing
        // is known about its validity.
        let time = preparation.payload().timestamp();
        self.shared.spec.check_before_lagoon(time)?;
        let parent = preparation.payload().parent_hash();
        if let Some(reason) = self.tree.known_invalid(id.hash, parent) {
            return Ok(Inserted::Invalid {
                latest_valid: self.known(parent)?.then_some(parent),
                reason,
            });
        }
        if !self.known(parent)? {
            return Ok(Inserted::Syncing);
        }
        match self.parent_view(id, parent, provenance)? {
            Some(parent_view) => self.execute(preparation, provenance, &parent_view),
            None => Ok(Inserted::NotExecutable),
        }
    }

    /// The view of `parent`, to execute a block on. `None` if the block would exceed a limit: the
    /// bytes of executed blocks, the blocks of one height, or the unwind data of its fork point.
    fn parent_view(
        &mut self,
        id: BlockId,
        parent: B256,
        provenance: Provenance,
    ) -> Result<Option<Arc<View>>, ChainError> {
        if !self.wait_for_memory(parent)? {
            tracing::warn!(number = id.number, hash = %id.hash, ?provenance, "side branches take too much memory for one more block");
            return Ok(None);
        }
        // The parent is known, but its state may not be readable: its unwind data may exceed the
        // budget, or the unwind records may have been pruned.
        let Some(parent_view) = self.find_view(parent)? else {
            return Ok(None);
        };
        // Make room at a full height for a block of the Engine API, which may reorg any number of
        // times, and for an imported block, which takes precedence over our chain.
        if matches!(provenance, Provenance::Engine | Provenance::Imported) {
            self.drop_oldest_sibling(id.number);
        }
        if !self.tree.has_capacity(id.number) {
            tracing::warn!(number = id.number, hash = %id.hash, ?provenance, "there are too many blocks at this height");
            return Ok(None);
        }
        Ok(Some(parent_view))
    }

    /// Executes a block on its parent's view and adds it to the tree. Logs the block unless its
    /// source can provide it again.
    fn execute(
        &mut self,
        preparation: Preparation,
        provenance: Provenance,
        parent_view: &Arc<View>,
    ) -> Result<Inserted, ChainError> {
        let payload = preparation.payload().clone();
        let (id, parent) = (payload.id(), payload.parent_hash());
        let started = Instant::now();
        let state = parent_view.state();
        let block = match execute::validate_prepared(&self.shared.spec, state, preparation) {
            Ok(block) => Arc::new(block),
            Err(ValidateError::Invalid(error)) => {
                let reason = error.to_string();
                tracing::warn!(number = id.number, hash = %id.hash, ?provenance, reason, "a block is invalid");
                // Transactions that do not match the header's root prove nothing about the block
                // with this hash: with the right transactions it may be valid.
                if !matches!(error, InvalidBlock::TransactionsRoot { .. }) {
                    self.tree.mark_invalid(id.hash, reason.clone());
                    self.shared.rejected.lock().add(BadBlock {
                        payload,
                        reason: reason.clone(),
                    });
                }
                return Ok(Inserted::Invalid {
                    latest_valid: Some(parent),
                    reason,
                });
            }
            Err(ValidateError::Read(error)) => return Err(error.into()),
        };
        metrics::histogram!("starling_execute_seconds").record(started.elapsed().as_secs_f64());
        match provenance {
            // The block can be read again from the file or the payload log.
            Provenance::Imported => {}
            // The block fills a gap: after a crash it is fetched again.
            Provenance::Linked { .. } | Provenance::Ancestor { .. } => {
                self.unlogged.insert(id.hash);
            }
            _ => {
                self.log_unlogged(parent)?;
                self.log_payload(&payload, FOLLOWED)?;
            }
        }
        self.tree.insert(block);
        self.shared.known.write().insert(id.hash, payload);
        Ok(Inserted::Valid)
    }

    /// Adds a block that the builder has executed. The block is logged later: when it becomes the
    /// head or an ancestor of a logged block, or when the Engine API delivers it.
    fn adopt(&mut self, block: Arc<ExecutedBlock>) -> Result<(), ChainError> {
        let parent = block.payload.parent_hash();
        if !self.wait_for_memory(parent)? {
            self.drop_side_branches(self.snapshot.head().number);
        }
        let id = block.payload.id();
        if self.tree.get(&id.hash).is_some() || self.stored(&id)? {
            return Ok(());
        }
        // The parent may have been dropped since the build began.
        if !self.known(parent)? {
            return Err(ChainError::UnknownBlock(parent));
        }
        self.drop_oldest_sibling(id.number);
        let payload = block.payload.clone();
        if !self.tree.insert(block) {
            return Err(ChainError::Busy("there are too many blocks at one height"));
        }
        self.unlogged.insert(id.hash);
        self.shared.known.write().insert(id.hash, payload);
        Ok(())
    }

    /// Executes a block of the swarm and applies the fork choice of unsafe blocks.
    fn follow(
        &mut self,
        payload: Preparation,
        provenance: Provenance,
    ) -> Result<Inserted, ChainError> {
        let (id, timestamp) = (payload.payload().id(), payload.payload().timestamp());
        let parent = payload.payload().parent_hash();
        let inserted = match self.switch_to(payload, provenance, SwitchPolicy::Follower) {
            Ok(inserted) => inserted,
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => {
                tracing::warn!(number = id.number, hash = %id.hash, %error, "a branch cannot be followed");
                Inserted::NotExecutable
            }
        };
        // The branch for which a head was displaced ends with this invalid block.
        if matches!(inserted, Inserted::Invalid { .. })
            && parent == self.heads.head.hash
            && self.displaced.is_held_by(SwitchPolicy::Follower)
        {
            self.reinstate()?;
        }
        if inserted == Inserted::Valid
            && self.may_become_head(id.hash, provenance)
            && let Some((heads, view)) = self.preferred_heads(id, timestamp)?
        {
            self.displaced.continue_by_height();
            match provenance {
                // Gap blocks are not logged, since there may be thousands a second: after a crash
                // they are fetched again.
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

    /// Whether a block of the swarm may become the head. While a rollup node owns the head, only
    /// blocks that lead to the missing head it has named may.
    fn may_become_head(&self, hash: B256, provenance: Provenance) -> bool {
        self.shared
            .head_owner
            .send_if_modified(|owner| owner.on_time(Instant::now()));
        self.shared
            .head_owner
            .borrow()
            .may_become_head(hash, provenance)
    }

    /// The fork choice of unsafe blocks. The head moves only to a strictly higher block, so that
    /// among valid blocks of one height the first stays. Its branch must contain the safe head, the
    /// finalized head and the newest derived block. Returns the heads and their view if this block
    /// is to be the head.
    fn preferred_heads(
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
        // A branch is not preferred if its fork point is too deep below the stored head for a view.
        let Some(view) = self.make_view(&heads)? else {
            return Ok(None);
        };
        for id in [heads.safe, heads.finalized, self.derived]
            .into_iter()
            .flatten()
        {
            if view.hash_of(id.number)? != Some(id.hash) {
                return Ok(None);
            }
        }
        Ok(Some((heads, view)))
    }

    /// Logs this block and its ancestors as far as they are neither in the payload log nor stored.
    /// Every ancestor of a logged block must be in the log or stored.
    fn log_unlogged(&mut self, tip: B256) -> Result<(), ChainError> {
        let mut path = Vec::new();
        let mut at = tip;
        while self.unlogged.contains(&at)
            && let Some(block) = self.tree.get(&at)
            && !self.stored(&block.payload.id())?
        {
            self.unlogged.remove(&at);
            at = block.payload.parent_hash();
            path.push(block.payload.clone());
        }
        path.iter()
            .rev()
            .try_for_each(|payload| self.log_payload(payload, FOLLOWED))
    }

    /// Appends a payload to the payload log. Waits for space on a full disk.
    fn log_payload(&self, payload: &Payload, origin: u8) -> Result<(), ChainError> {
        Ok(self
            .shared
            .retry_while_full(LogError::is_full, || self.log.append(payload, origin))?)
    }

    /// Reads a payload from the log. A damaged payload counts as never received: peers send it
    /// again.
    fn logged(
        &self,
        read: impl Fn(&PayloadLog) -> Result<Option<Logged>, LogError>,
        id: BlockId,
    ) -> Option<Logged> {
        read(&self.log).unwrap_or_else(|error| {
            tracing::warn!(number = id.number, hash = %id.hash, %error, "a payload in the log cannot be read and is skipped");
            None
        })
    }

    /// Publishes the view of the heads, then wakes their subscribers.
    fn publish(&self) {
        self.shared.view.store(self.head.clone());
        self.shared
            .heads
            .send_if_modified(|heads| std::mem::replace(heads, self.heads) != self.heads);
        self.report_head();
    }

    fn report_head(&self) {
        metrics::gauge!("starling_head_number").set(self.heads.head.number as f64);
    }

    /// Whether this block is on the store's canonical chain.
    fn stored(&self, id: &BlockId) -> Result<bool, ChainError> {
        is_stored(&self.snapshot, id)
    }

    /// Whether this block is in the tree or on the store's canonical chain.
    fn known(&self, hash: B256) -> Result<bool, ChainError> {
        Ok(self.tree.get(&hash).is_some() || self.snapshot.number_of(&hash)?.is_some())
    }

    /// The unstored blocks that lead to `tip`, and the stored block below them.
    fn branch(&self, tip: BlockId) -> Result<Branch, ChainError> {
        self.tree.branch(tip, |id| self.stored(id))
    }
}

/// Whether this block is on the canonical chain of this snapshot.
fn is_stored(snapshot: &Snapshot, id: &BlockId) -> Result<bool, ChainError> {
    Ok(id.number <= snapshot.head().number && snapshot.hash_of(id.number)? == Some(id.hash))
}

/// Sends the result to the caller. If it is a fatal error, which ends the chain, returns it too.
fn send_reply<T>(reply: ReplySender<T>, result: Result<T, ChainError>) -> Result<(), ChainError> {
    let fatal = match &result {
        Err(error) if error.is_fatal() => Err(error.clone()),
        _ => Ok(()),
    };
    let _ = reply.send(result);
    fatal
}
