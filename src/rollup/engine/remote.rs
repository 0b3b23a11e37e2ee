//! An execution core in another process (ours, op-geth, op-reth or another), driven over the Engine
//! API.
//!
//! [`EngineClient`] does what a local core does by itself: it checks that a new head's branch
//! contains the safe, the finalized and the derived block, applies the fork choice of unsafe
//! blocks, and publishes the heads. [`rpc`] makes the calls, [`branch`] decides, [`cache`] stores
//! blocks, [`blocks`] reads blocks, [`connect`] makes the first contact and detects a restart,
//! [`revive`] has a client execute blocks again whose states it has lost, [`verdict`] tells a
//! verdict on a block from a report of such a loss, [`peers`] serves blocks to the swarm.
//!
//! One lock orders all methods that move a head, so that derivation and the sequencer do not
//! interleave within a method. Callers wait for the lock. To protect the execution client from
//! overload, only one call that moves heads is in flight at a time, with a time limit. A failed
//! call is not repeated here; the driver, the sequencer and the swarm retry later. If a call's
//! outcome is unknown, or if the client may have been restarted, the heads are read from the client
//! before the next method runs.

mod blocks;
mod branch;
mod cache;
pub mod connect;
mod held;
mod peers;
mod revive;
mod rpc;
mod state;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod verdict;

pub use peers::PeerBlocks;

use super::error::{CoreError, EngineCallError, EngineCause, EngineConnectError};
use crate::{
    chain::{ChainError, Heads, Inserted, head_owner::HeadOwner, payload_log::PayloadLog},
    jwt::JwtSecret,
};
use alloy_primitives::B256;
use alloy_rpc_types_engine::PayloadId;
use branch::LabelMoves;
use cache::{BlockLink, RemoteBlockCache};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use parking_lot::Mutex as SyncMutex;
use rpc::{EngineRpc, EngineStatus, INVALID_ATTRIBUTES, UNKNOWN_PAYLOAD};
use starling_proto::{
    config::RollupConfig,
    payload::{BlockId, Payload, decode_transaction},
};
use state::RemoteState;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Mutex, MutexGuard, watch};

/// Address, secret and time limit for calls to the execution client.
#[derive(Clone, Debug)]
pub struct EngineEndpoint {
    /// URL of the Engine API (`--l2`), beginning with http:// or https://.
    pub url: String,
    pub secret: JwtSecret,
    /// Timeout of a call (`--l2.engine-rpc-timeout`).
    pub timeout: Duration,
}

/// A client of an execution core in another process. Clones share connection and state.
#[derive(Clone)]
pub struct EngineClient(Arc<RemoteEngine>);

struct RemoteEngine {
    rpc: EngineRpc,
    rollup: Arc<RollupConfig>,
    state: Mutex<RemoteState>,
    cache: SyncMutex<RemoteBlockCache>,
    /// The execution client's heads, published at the end of each method.
    heads: watch::Sender<Heads>,
    /// The default owner, never changed: no other rollup node drives this node.
    owner: watch::Sender<HeadOwner>,
    /// Set if the execution client may have been restarted: its heads are read before the next
    /// method runs.
    suspect: AtomicBool,
    /// The payload log of a sequencer. Followed blocks are logged too, since they may carry the
    /// signature of the sequencer's key.
    log: Option<PayloadLog>,
}

impl EngineClient {
    /// Creates the client without connecting. `log` is given on a sequencer only.
    pub fn new(
        endpoint: &EngineEndpoint,
        rollup: Arc<RollupConfig>,
        log: Option<PayloadLog>,
    ) -> Result<Self, EngineConnectError> {
        let rpc = EngineRpc::new(&endpoint.url, endpoint.secret.clone(), endpoint.timeout)
            .map_err(EngineConnectError::Url)?;
        Ok(Self(Arc::new(RemoteEngine {
            rpc,
            rollup,
            state: Mutex::default(),
            cache: SyncMutex::default(),
            heads: watch::Sender::new(Heads::default()),
            owner: watch::Sender::new(HeadOwner::default()),
            suspect: AtomicBool::new(true),
            log,
        })))
    }

    /// Scheme, host and port of the execution client.
    pub fn endpoint(&self) -> Arc<str> {
        self.0.rpc.name().clone()
    }

    /// Implements [`Engine::heads`](super::Engine::heads).
    pub(super) fn heads(&self) -> watch::Receiver<Heads> {
        self.0.heads.subscribe()
    }

    /// Implements [`Engine::head_owner`](super::Engine::head_owner).
    pub(super) fn head_owner(&self) -> watch::Receiver<HeadOwner> {
        self.0.owner.subscribe()
    }

    /// Implements [`Engine::insert`](super::Engine::insert).
    pub(super) async fn insert(&self, payload: Arc<Payload>) -> Result<Inserted, CoreError> {
        let mut state = self.lock().await?;
        self.execute(&mut state, &payload).await
    }

    /// Implements [`Engine::queue_follow`](super::Engine::queue_follow).
    pub(super) async fn follow(&self, payload: Arc<Payload>) -> Result<Inserted, CoreError> {
        let mut state = self.lock().await?;
        if self.is_known_canonical(&payload) {
            return Ok(Inserted::Valid);
        }
        let followed = self.follow_locked(&mut state, payload).await;
        self.publish(&state);
        followed
    }

    async fn follow_locked(
        &self,
        state: &mut RemoteState,
        payload: Arc<Payload>,
    ) -> Result<Inserted, CoreError> {
        let inserted = self.execute(state, &payload).await?;
        if inserted != Inserted::Valid {
            return Ok(inserted);
        }
        self.log_followed(&payload).await?;
        if payload.number() <= state.heads.head.number {
            return Ok(inserted);
        }
        let path = self.path_to(state, BlockLink::from(&*payload)).await?;
        let stay = LabelMoves::default();
        if path.check(&state.heads, state.protected, stay).is_ok() {
            self.set_heads(state, &path, stay, None).await?;
        }
        Ok(inserted)
    }

    /// Implements [`Engine::forkchoice`](super::Engine::forkchoice).
    pub(super) async fn forkchoice(
        &self,
        head: B256,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), CoreError> {
        let mut state = self.lock().await?;
        let moved = self.move_heads(&mut state, head, safe, finalized).await;
        self.publish(&state);
        moved
    }

    /// Implements [`Engine::promote`](super::Engine::promote).
    pub(super) async fn promote(
        &self,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), CoreError> {
        let mut state = self.lock().await?;
        let head = state.heads.head.hash;
        let moved = self.move_heads(&mut state, head, safe, finalized).await;
        self.publish(&state);
        moved
    }

    /// Implements [`Engine::protect`](super::Engine::protect).
    pub(super) async fn protect(&self, derived: Option<B256>) -> Result<(), CoreError> {
        let mut state = self.lock().await?;
        let Some(hash) = derived else {
            state.protected = None;
            return Ok(());
        };
        let block = self.known_link(hash).await?.id;
        let head = state.heads.head;
        if block.number > head.number || !self.is_canonical(&state, block).await? {
            let head = head.hash;
            return Err(ChainError::NotOnBranch { block: hash, head }.into());
        }
        state.protected = Some(block);
        Ok(())
    }

    /// Implements [`Engine::start`](super::Engine::start). The execution client builds on its head
    /// only, so `parent` must be the head.
    pub(super) async fn start(
        &self,
        parent: B256,
        attributes: &OpPayloadAttributes,
    ) -> Result<PayloadId, CoreError> {
        check_transactions(attributes)?;
        let mut state = self.lock().await?;
        if state.heads.head.hash != parent {
            return Err(ChainError::Busy("the head has moved").into());
        }
        // op-geth would answer with an id whose block it never finishes.
        if state.is_stateless() {
            let (block, reason) = (parent, "it has blocks without their states".into());
            return Err(self.failure(EngineCause::MissingState { block, reason }));
        }
        let parent = self.known_link(parent).await?;
        let path = self.path_to(&state, parent).await?;
        let stay = LabelMoves::default();
        self.set_heads(&mut state, &path, stay, Some(attributes))
            .await
            .and_then(|id| id.ok_or_else(|| self.failure(EngineCause::NoPayloadId)))
    }

    /// Implements [`Engine::seal`](super::Engine::seal).
    pub(super) async fn seal(&self, id: PayloadId) -> Result<Arc<Payload>, CoreError> {
        let mut state = self.lock().await?;
        let time = state.take_build(id).ok_or(ChainError::UnknownPayload)?;
        self.take_block(&mut state, id, time).await
    }

    /// Implements [`Engine::derive`](super::Engine::derive). If the call fails, the head from
    /// before the call is restored. If that fails too, the caller gets the first error, and the
    /// heads are read from the client before the next method runs.
    pub(super) async fn derive(
        &self,
        parent: B256,
        attributes: &OpPayloadAttributes,
    ) -> Result<Arc<Payload>, CoreError> {
        check_transactions(attributes)?;
        let mut state = self.lock().await?;
        let before = state.heads.head;
        let derived = self.derive_locked(&mut state, parent, attributes).await;
        if let Err(error) = &derived
            && let Err(restoring) = self.restore_displaced(&mut state, before, parent).await
        {
            self.suspect();
            tracing::warn!(%error, %restoring, head = %before, endpoint = %self.endpoint(), "a block could not be derived, and the head from before cannot be restored; the client's heads are read again");
        }
        self.publish(&state);
        derived
    }

    async fn derive_locked(
        &self,
        state: &mut RemoteState,
        parent: B256,
        attributes: &OpPayloadAttributes,
    ) -> Result<Arc<Payload>, CoreError> {
        let before = state.heads.head;
        let stay = LabelMoves::default();
        let parent = self.known_link(parent).await?;
        let on_parent = self.path_to(state, parent).await?;
        on_parent.check(&state.heads, None, stay)?;
        // If the derived block is canonical already, the blocks above it stay on the chain.
        let was_canonical = self.canonical_hash(state, parent.id.number + 1).await?;
        let id = self
            .set_heads(state, &on_parent, stay, Some(attributes))
            .await?;
        let id = id.ok_or_else(|| self.failure(EngineCause::NoPayloadId))?;
        let time = state.take_build(id).ok_or(ChainError::UnknownPayload)?;
        let block = self.take_block(state, id, time).await?;
        if was_canonical == Some(block.hash) && before.number >= block.number() {
            self.restore(state, before).await?;
        } else {
            let path = self.path_to(state, BlockLink::from(&*block)).await?;
            self.set_heads(state, &path, stay, None).await?;
        }
        state.protected = Some(block.id());
        Ok(block)
    }

    /// Restores the head from before a failed `derive`, and the protected block on its branch, if
    /// that call has made `parent`, the parent of the block to derive, the execution client's head.
    /// Any other head stays.
    async fn restore_displaced(
        &self,
        state: &mut RemoteState,
        before: BlockId,
        parent: B256,
    ) -> Result<(), CoreError> {
        if before.hash == parent {
            return Ok(());
        }
        let protected = state.protected;
        // The client may have made the parent its head although its response was lost.
        if self.0.suspect.load(Ordering::Relaxed) {
            self.read_heads(state).await?;
        }
        if state.heads.head.hash == parent {
            // Reading the heads drops a protected block above the parent.
            state.protected = protected;
            self.restore(state, before).await?;
        }
        Ok(())
    }

    /// Makes an earlier head the head again.
    async fn restore(&self, state: &mut RemoteState, head: BlockId) -> Result<(), CoreError> {
        let head = self.known_link(head.hash).await?;
        let path = self.path_to(state, head).await?;
        self.set_heads(state, &path, LabelMoves::default(), None)
            .await?;
        Ok(())
    }

    async fn move_heads(
        &self,
        state: &mut RemoteState,
        head: B256,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), CoreError> {
        let tip = self.known_link(head).await?;
        let path = self.path_to(state, tip).await?;
        let mut moves = LabelMoves::default();
        for (label, hash) in [(&mut moves.safe, safe), (&mut moves.finalized, finalized)] {
            let Some(hash) = hash else { continue };
            let block = self.known_link(hash).await?.id;
            let is_canonical = self.is_canonical(state, block).await?;
            if !path.contains(block, is_canonical) {
                return Err(ChainError::NotOnBranch { block: hash, head }.into());
            }
            *label = Some(block);
        }
        path.check(&state.heads, state.protected, moves)?;
        moves.check(&state.heads)?;
        if moves.applied(path.tip, &state.heads) != state.heads {
            self.set_heads(state, &path, moves, None).await?;
        }
        Ok(())
    }

    /// Reads the block of a build from the execution client, then executes it with
    /// `engine_newPayload`.
    async fn take_block(
        &self,
        state: &mut RemoteState,
        id: PayloadId,
        time: u64,
    ) -> Result<Arc<Payload>, CoreError> {
        let taken = self.0.rpc.get_payload(id, time, &self.0.rollup.forks).await;
        let block = Arc::new(taken.map_err(|error| match error.cause {
            EngineCause::Refused {
                code: UNKNOWN_PAYLOAD,
                ..
            } => ChainError::UnknownPayload.into(),
            _ => self.suspected(error),
        })?);
        match self.execute(state, &block).await? {
            Inserted::Valid => Ok(block),
            Inserted::Invalid { reason, .. } => Err(ChainError::Build(reason).into()),
            Inserted::Syncing | Inserted::NotExecutable => {
                Err(self.failure(EngineCause::Syncing(block.hash)))
            }
        }
    }

    /// Executes a payload with `engine_newPayload`.
    async fn execute(
        &self,
        state: &mut RemoteState,
        payload: &Arc<Payload>,
    ) -> Result<Inserted, CoreError> {
        let sent = self.0.rpc.new_payload(payload).await;
        Ok(match sent.map_err(|error| self.suspected(error))? {
            EngineStatus::Valid => {
                self.0.cache.lock().add_block(payload.clone());
                Inserted::Valid
            }
            EngineStatus::Invalid {
                latest_valid,
                reason,
            } if self.is_verdict(&reason, payload.parent_hash()).await? => Inserted::Invalid {
                latest_valid,
                reason,
            },
            // The sender of this payload knew the parent, so the execution client may have lost
            // blocks or states.
            status => {
                self.suspect();
                if state.is_stateless() {
                    self.ask_to_fetch(state, payload.id()).await;
                }
                match status {
                    EngineStatus::Syncing => Inserted::Syncing,
                    _ => Inserted::NotExecutable,
                }
            }
        })
    }

    /// Whether the client's refusal of a block on `parent` is about that block. It is not if the
    /// client has lost the parent's state.
    async fn is_verdict(&self, reason: &str, parent: B256) -> Result<bool, CoreError> {
        if verdict::is_about_client(reason) {
            return Ok(false);
        }
        self.has_state(parent).await
    }

    /// Appends a followed block to the payload log, if this node is a sequencer.
    async fn log_followed(&self, payload: &Arc<Payload>) -> Result<(), CoreError> {
        let Some(log) = self.0.log.clone() else {
            return Ok(());
        };
        let payload = payload.clone();
        let append = move || log.append(&payload, crate::chain::payload_log::FOLLOWED);
        let appended = tokio::task::spawn_blocking(append).await;
        Ok(appended
            .map_err(|_| ChainError::Stopped)?
            .map_err(ChainError::from)?)
    }

    /// Locks the state. If the execution client may have been restarted, its heads are read first.
    async fn lock(&self) -> Result<MutexGuard<'_, RemoteState>, CoreError> {
        let mut state = self.0.state.lock().await;
        if self.0.suspect.load(Ordering::Relaxed) {
            let read = self.read_heads(&mut state).await;
            self.publish(&state);
            read?;
        }
        Ok(state)
    }

    fn publish(&self, state: &RemoteState) {
        self.0.heads.send_if_modified(|heads| {
            let changed = *heads != state.heads;
            *heads = state.heads;
            changed
        });
    }

    /// Marks the heads as uncertain, since the execution client may have been restarted.
    fn suspect(&self) {
        self.0.suspect.store(true, Ordering::Relaxed);
    }

    fn suspected(&self, error: EngineCallError) -> CoreError {
        if error.cause.may_be_restart() {
            self.suspect();
        }
        error.into()
    }

    /// The error for an unusable response of the execution client.
    fn failure(&self, cause: EngineCause) -> CoreError {
        self.suspected(self.0.rpc.error("Engine API", cause))
    }
}

/// Checks that the transactions decode. For an undecodable one some clients, such as op-geth,
/// return a general error, after which the same call would be retried for ever.
fn check_transactions(attributes: &OpPayloadAttributes) -> Result<(), ChainError> {
    for (index, raw) in attributes.transactions.iter().flatten().enumerate() {
        if let Err(cause) = decode_transaction(raw) {
            let reason = format!("transaction {index} is not valid: {cause}");
            return Err(ChainError::Build(reason));
        }
    }
    Ok(())
}

/// Whether the execution client reports that the attributes are invalid.
fn is_invalid_attributes(error: &EngineCallError) -> bool {
    matches!(
        error.cause,
        EngineCause::Refused {
            code: INVALID_ATTRIBUTES,
            ..
        }
    )
}
