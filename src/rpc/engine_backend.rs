//! The backend of the Engine API. It carries out the calls of a rollup node on a [`Chain`], and
//! keeps the payloads, rejected blocks and builds that the Engine API requires a node to remember.
//!
//! The namespace ([`engine`](super::engine)) calls the backend for payloads, fork choices and
//! builds. The follower ([`crate::follow`]) calls it for every block of the swarm. New payloads and
//! fork choices are handled one after another. [`branch`] executes branches, [`heads`] resolves the
//! safe and the finalized head, [`builds`] builds blocks, [`swarm`] has missing ancestors fetched,
//! and [`halt`] is the configured halt. Memory is bounded: [`memory::EngineMemory`] bounds payloads
//! without a parent and hashes of rejected blocks, and the last [`builds::BUILDS`] builds are kept.

mod branch;
mod builds;
pub mod halt;
mod heads;
mod memory;
mod swarm;
#[cfg(test)]
mod tests;

pub use builds::payload_id;

use crate::chain::{Chain, ChainError, Inserted, head_owner::HeadOwner};
use alloy_primitives::B256;
use alloy_rpc_types_engine::{ForkchoiceState, PayloadId, PayloadStatus, PayloadStatusEnum};
use branch::BranchMode;
use builds::Builds;
use halt::Halt;
use memory::EngineMemory;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use starling_p2p::{Network, Provenance};
use starling_proto::payload::Payload;
use std::{sync::Arc, time::Instant};
use tokio::sync::Mutex;

/// Validation error of a block that has a rejected ancestor.
const REJECTED_BEFORE: &str = "links to previously rejected block";

/// Failures of a method that have a code of the Engine API.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The payload id is unknown (code -38001).
    #[error("Unknown payload")]
    UnknownPayload,
    /// The safe or finalized block is wrong (code -38002). The head has been applied.
    #[error("Invalid forkchoice state: {0}")]
    Forkchoice(String),
    /// The attributes are invalid (code -38003). The fork choice has been applied.
    #[error("Invalid payload attributes: {0}")]
    Attributes(String),
    /// The method does not serve the fork of the block (code -38005).
    #[error("Unsupported fork")]
    UnsupportedFork,
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// The part of the RPC context that the methods of the Engine API and `debug_sync` use.
pub struct EngineContext {
    pub engine: Arc<EngineBackend>,
    pub halt: Option<Halt>,
}

/// The backend of one chain.
pub struct EngineBackend {
    chain: Chain,
    /// Fetches the missing ancestors of a head that the rollup node names; `None` without a swarm.
    network: Option<Network>,
    memory: Mutex<EngineMemory>,
    builds: Mutex<Builds>,
}

fn valid(hash: B256) -> PayloadStatus {
    PayloadStatus::new(PayloadStatusEnum::Valid, Some(hash))
}

fn invalid(latest_valid: Option<B256>, reason: impl Into<String>) -> PayloadStatus {
    PayloadStatus::new(
        PayloadStatusEnum::Invalid {
            validation_error: reason.into(),
        },
        latest_valid,
    )
}

fn syncing() -> PayloadStatus {
    PayloadStatus::new(PayloadStatusEnum::Syncing, None)
}

fn accepted() -> PayloadStatus {
    PayloadStatus::new(PayloadStatusEnum::Accepted, None)
}

impl EngineBackend {
    pub fn new(chain: Chain, network: Option<Network>) -> Self {
        Self {
            chain,
            network,
            memory: Mutex::default(),
            builds: Mutex::default(),
        }
    }

    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Whether a rollup node moves the head of the chain now.
    pub fn is_driven(&self) -> bool {
        self.chain.head_owner().borrow().is_rollup_node()
    }

    /// Whether a rollup node has moved the head of the chain since the start.
    pub fn was_driven(&self) -> bool {
        self.chain.head_owner().borrow().was_driven()
    }

    /// Executes a payload. No head moves. A payload whose parent is unknown waits for its parent. A
    /// payload is accepted without execution if its branch is too long, or forks off too far below
    /// our head, to be executed beside our chain. It is kept until a fork choice names it or a
    /// descendant, and executed then.
    pub async fn new_payload(&self, payload: Arc<Payload>) -> Result<PayloadStatus, ChainError> {
        let mut memory = self.memory.lock().await;
        self.chain
            .update_head_owner(|owner| owner.on_payload(Instant::now()));
        // op-geth checks extra data before it looks up the parent, so this status names no valid
        // ancestor.
        if let Err(error) = self.chain.spec().check_extra_data(&payload.header) {
            return Ok(invalid(None, error.to_string()));
        }
        let (hash, parent) = (payload.hash, payload.parent_hash());
        if let Some(rejected) = memory.rejected(hash) {
            return Ok(invalid(rejected.latest_valid, rejected.reason.clone()));
        }
        if let Some(latest_valid) = memory
            .rejected(parent)
            .map(|rejected| rejected.latest_valid)
        {
            memory.reject(hash, latest_valid, REJECTED_BEFORE);
            return Ok(invalid(latest_valid, REJECTED_BEFORE));
        }
        match self.insert(&mut memory, payload.clone()).await? {
            Inserted::Valid => {
                self.execute_waiting(&mut memory, hash).await?;
                Ok(valid(hash))
            }
            Inserted::Invalid {
                latest_valid,
                reason,
            } => Ok(invalid(latest_valid, reason)),
            Inserted::NotExecutable => self.keep(&mut memory, payload).await,
            // A kept parent may since have been pruned from the payload log, if it is far below the
            // stored head.
            Inserted::Syncing
                if memory.is_kept(&parent) && self.find(&mut memory, parent).await?.is_some() =>
            {
                self.keep(&mut memory, payload).await
            }
            Inserted::Syncing => {
                memory.add_waiting(payload);
                Ok(self
                    .execute_branch(&mut memory, hash, BranchMode::BesideChain)
                    .await?
                    .unwrap_or_else(syncing))
            }
        }
    }

    /// Keeps a payload that cannot be executed now. It goes to the payload log, where it takes no
    /// memory.
    async fn keep(
        &self,
        memory: &mut EngineMemory,
        payload: Arc<Payload>,
    ) -> Result<PayloadStatus, ChainError> {
        let hash = payload.hash;
        self.chain.keep(payload).await?;
        memory.mark_kept(hash);
        Ok(accepted())
    }

    /// Executes a payload beside our chain, and records it as rejected if it is invalid.
    async fn insert(
        &self,
        memory: &mut EngineMemory,
        payload: Arc<Payload>,
    ) -> Result<Inserted, ChainError> {
        let hash = payload.hash;
        let inserted = self.chain.insert(payload, Provenance::Engine).await?;
        memory.on_inserted(hash, &inserted);
        Ok(inserted)
    }

    /// Executes the waiting descendants of `parent`.
    async fn execute_waiting(
        &self,
        memory: &mut EngineMemory,
        parent: B256,
    ) -> Result<(), ChainError> {
        let mut parents = vec![parent];
        while let Some(parent) = parents.pop() {
            for child in memory.waiting_children(parent) {
                let hash = child.hash;
                match self.insert(memory, child).await? {
                    Inserted::Valid => parents.push(hash),
                    Inserted::Invalid { .. } => {}
                    Inserted::Syncing | Inserted::NotExecutable => continue,
                }
                memory.remove_waiting(&hash);
            }
        }
        Ok(())
    }

    /// Finds a payload by hash: among the waiting payloads, in the chain or in the payload log.
    async fn find(
        &self,
        memory: &mut EngineMemory,
        hash: B256,
    ) -> Result<Option<Arc<Payload>>, ChainError> {
        if let Some(payload) = memory.waiting(&hash) {
            return Ok(Some(payload));
        }
        let chain = self.chain.clone();
        blocking(move || chain.payload(hash)).await
    }

    /// Whether there is a payload of this hash, executed or not.
    pub async fn has_payload(&self, hash: B256) -> Result<bool, ChainError> {
        let mut memory = self.memory.lock().await;
        Ok(self.find(&mut memory, hash).await?.is_some())
    }

    /// Moves the heads and, if attributes are given, starts to build a block on the head. `version`
    /// is the version of the called method. From the first call on, the rollup node owns the head.
    /// A head that is unknown is fetched from the swarm, and becomes the head once it has been
    /// executed.
    ///
    /// An ancestor of the present head can be made the head like any other block: this is how a
    /// rollup node rewinds its unsafe chain. A zero hash for the safe or finalized block leaves
    /// that head unchanged, or lowers it to the last block that the new branch contains.
    pub async fn forkchoice(
        &self,
        state: ForkchoiceState,
        attributes: Option<OpPayloadAttributes>,
        version: u8,
    ) -> Result<(PayloadStatus, Option<PayloadId>), EngineError> {
        let head = state.head_block_hash;
        if head.is_zero() {
            return Ok((invalid(None, ""), None));
        }
        let mut memory = self.memory.lock().await;
        self.chain
            .update_head_owner(|owner| owner.on_forkchoice(Instant::now()));
        memory.pending_forkchoice = None;
        let resolved = match self.apply_forkchoice(&mut memory, &state).await? {
            Ok(resolved) => resolved,
            Err(status) => {
                if status.is_invalid() {
                    self.chain.update_head_owner(HeadOwner::on_settled);
                } else {
                    self.fetch_missing_head(&mut memory, state).await?;
                }
                return Ok((status, None));
            }
        };
        self.chain.update_head_owner(HeadOwner::on_settled);
        if let Some(problem) = resolved.problem {
            return Err(EngineError::Forkchoice(problem));
        }
        let id = match attributes {
            Some(attributes) => Some(self.start(head, attributes, version).await?),
            None => None,
        };
        Ok((valid(head), id))
    }
}

/// Runs a read of the store on the blocking pool, so that it blocks no worker of the runtime.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ChainError> + Send + 'static,
) -> Result<T, ChainError> {
    tokio::task::spawn_blocking(read)
        .await
        .unwrap_or(Err(ChainError::Stopped))
}
