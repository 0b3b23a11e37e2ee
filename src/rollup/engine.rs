//! The engine: the handle through which derivation, the sequencer and the follower use an execution
//! core.
//!
//! These callers reach the chain only through an [`Engine`]. The core is in this process, or in
//! another process that is driven over the Engine API ([`remote`]). Callers wait for the core,
//! which bounds its own load (the executor's command queue, the builder's queue). Signing records
//! are not part of this interface, since they are kept with the key: see [`super::signing_log`].

pub mod error;
pub mod remote;

pub use error::CoreError;
pub use remote::EngineClient;

use crate::chain::{
    Chain, ChainError, Heads, Inserted, execute::ExpectedTransactions, head_owner::HeadOwner,
};
use alloy_primitives::{B256, Bytes};
use alloy_rpc_types_engine::PayloadId;
use futures::future::{Either, ready};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use starling_p2p::Provenance;
use starling_proto::payload::Payload;
use std::{sync::Arc, time::Instant};
use tokio::sync::watch;

/// An execution core. Clones are handles to the same core.
///
/// Methods that use the executor fail with [`ChainError::Stopped`] once the local core has stopped,
/// and with a fatal error ([`CoreError::is_fatal`]) if the core's database fails, which ends the
/// core. If a core in another process is unreachable, methods fail with [`CoreError::Remote`],
/// which is never fatal: callers retry later. After such a failure a head may have moved all the
/// same.
#[derive(Clone)]
pub enum Engine {
    /// The core in this process.
    Local(Chain),
    /// A core in another process.
    Remote(EngineClient),
}

/// Selects the block that [`Engine::block`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockAt {
    /// The unsafe head.
    Head,
    /// The canonical block of this number.
    Number(u64),
    /// The block with this hash, on any branch.
    Hash(B256),
}

impl Engine {
    /// Executes a payload on a known parent.
    ///
    /// Returns `Valid` for an executed or already known block, `Invalid` with the latest valid
    /// ancestor, and `Syncing` if the parent is missing. Returns `NotExecutable` if memory or the
    /// number of side branches does not allow executing the block now. Never moves a head, and
    /// never fetches a parent.
    pub async fn insert(
        &self,
        payload: Arc<Payload>,
        provenance: Provenance,
    ) -> Result<Inserted, CoreError> {
        match self {
            Self::Local(chain) => Ok(chain.insert(payload, provenance).await?),
            Self::Remote(client) => client.insert(payload).await,
        }
    }

    /// Executes an unsafe payload and applies the fork choice of unsafe blocks. The head moves only
    /// to a strictly higher block, on a branch that contains the safe head and the block of
    /// [`Engine::protect`], and only while no rollup node drives the core ([`HeadOwner`]).
    ///
    /// With a local core this returns once the payload is queued, and the returned future yields
    /// the outcome. With a core in another process it returns only after execution. Payloads are
    /// executed in the order of the calls. Outcomes are those of [`Engine::insert`]. Never moves
    /// the safe or finalized head.
    pub async fn queue_follow(
        &self,
        payload: Arc<Payload>,
        provenance: Provenance,
    ) -> Result<impl Future<Output = Result<Inserted, CoreError>> + use<>, CoreError> {
        Ok(match self {
            Self::Local(chain) => {
                let executed = chain.submit(payload, provenance).await?;
                Either::Left(async move { Ok(executed.await?) })
            }
            Self::Remote(client) => Either::Right(ready(Ok(client.follow(payload).await?))),
        })
    }

    /// Moves the unsafe head to a known block: up, down or to another branch. Also moves the safe
    /// and the finalized head if they are given.
    ///
    /// Fails if a block is unknown ([`ChainError::UnknownBlock`]), or if finalized would be above
    /// safe ([`ChainError::FinalizedAboveSafe`]). Also fails if the safe block, the finalized block
    /// or the block of [`Engine::protect`] is not on the head's branch, even if it is unchanged
    /// ([`ChainError::NotOnBranch`]). After these failures no head has moved. Unless the head only
    /// moves up, a local core has made it durable when this returns. Never executes a block.
    pub async fn forkchoice(
        &self,
        head: B256,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), CoreError> {
        match self {
            Self::Local(chain) => Ok(chain.forkchoice(head, safe, finalized).await?),
            Self::Remote(client) => client.forkchoice(head, safe, finalized).await,
        }
    }

    /// Moves the safe and the finalized head, each if it is given, to blocks on the branch of the
    /// unsafe head.
    ///
    /// Fails like [`Engine::forkchoice`]. Never moves the unsafe head, also not during concurrent
    /// calls.
    pub async fn promote(
        &self,
        safe: Option<B256>,
        finalized: Option<B256>,
    ) -> Result<(), CoreError> {
        match self {
            Self::Local(chain) => Ok(chain.promote(safe, finalized).await?),
            Self::Remote(client) => client.promote(safe, finalized).await,
        }
    }

    /// Keeps the unsafe head on the branch of this block, the newest one derived from L1, which may
    /// be above the safe head. From then on neither [`Engine::queue_follow`] nor
    /// [`Engine::forkchoice`] moves the head to a branch without this block. `None` ends the
    /// protection.
    ///
    /// Fails if the block is not on the branch of the head ([`ChainError::NotOnBranch`]); the
    /// previously protected block then remains protected. Never moves a head.
    pub async fn protect(&self, derived: Option<B256>) -> Result<(), CoreError> {
        match self {
            Self::Local(chain) => Ok(chain.protect(derived).await?.await?),
            Self::Remote(client) => client.protect(derived).await,
        }
    }

    /// Queues [`Engine::protect`] without waiting for its outcome, which is dropped. Later calls
    /// are handled after it.
    pub async fn queue_protect(&self, derived: Option<B256>) -> Result<(), CoreError> {
        match self {
            Self::Local(chain) => drop(chain.protect(derived).await?),
            Self::Remote(client) => drop(client.protect(derived).await),
        }
        Ok(())
    }

    /// Starts to build a block on a known parent; transactions of the pool are added until
    /// [`Engine::seal`] unless the attributes forbid it.
    ///
    /// Fails if the parent is unknown, if the attributes are invalid ([`ChainError::Build`]), or if
    /// too many builds run ([`ChainError::Busy`]). Never moves a head.
    pub async fn start(
        &self,
        parent: B256,
        attributes: OpPayloadAttributes,
    ) -> Result<PayloadId, CoreError> {
        match self {
            Self::Local(chain) => Ok(chain.start(parent, attributes).await?),
            Self::Remote(client) => client.start(parent, &attributes).await,
        }
    }

    /// Ends a build and returns its block, which is executed and known from then on.
    ///
    /// Fails if no build has this id ([`ChainError::UnknownPayload`]) or if the build failed. Never
    /// moves a head, and does not ensure that the block is durable.
    pub async fn seal(&self, id: PayloadId) -> Result<Arc<Payload>, CoreError> {
        match self {
            Self::Local(chain) => Ok(chain.seal(id).await?.payload.clone()),
            Self::Remote(client) => client.seal(id).await,
        }
    }

    /// Builds a block on a known parent with the transactions of the attributes and none of the
    /// pool. Makes the block the unsafe head unless it is canonical already, protects it like
    /// [`Engine::protect`], and returns it. A build begun by [`Engine::start`] is not replaced.
    ///
    /// Fails if the parent is unknown, if the attributes are invalid ([`ChainError::Build`]), or
    /// like [`Engine::forkchoice`]. After these failures no head has moved. If a core in another
    /// process stays unreachable during the call, the parent may be left as its head.
    pub async fn derive(
        &self,
        parent: B256,
        attributes: OpPayloadAttributes,
        expected: Option<ExpectedTransactions>,
    ) -> Result<Arc<Payload>, CoreError> {
        match self {
            Self::Local(chain) => Ok(chain.derive(parent, attributes, expected).await?),
            Self::Remote(client) => client.derive(parent, &attributes).await,
        }
    }

    /// Recovers the senders of transactions on other threads. A call of [`Engine::derive`] that is
    /// given the result uses them if its attributes end with these transactions. `None` if the core
    /// is in another process.
    pub fn expect(&self, transactions: Vec<Bytes>) -> Option<ExpectedTransactions> {
        match self {
            Self::Local(_) => Some(ExpectedTransactions::begin(transactions)),
            Self::Remote(_) => None,
        }
    }

    /// Reads a block; `None` if it is unknown or its body is pruned. A hash is looked up in memory,
    /// in the payload log and on the canonical chain. With a local core this never waits for the
    /// executor.
    pub async fn block(&self, at: BlockAt) -> Result<Option<Arc<Payload>>, CoreError> {
        match self {
            Self::Local(chain) => Ok(local_block(chain, at)?),
            Self::Remote(client) => client.block(at).await,
        }
    }

    /// A receiver of the heads. It wakes on changes and may skip intermediate values.
    pub fn heads(&self) -> watch::Receiver<Heads> {
        match self {
            Self::Local(chain) => chain.heads(),
            Self::Remote(client) => client.heads(),
        }
    }

    /// A receiver of the party that moves the unsafe head. It wakes when the party changes.
    pub fn head_owner(&self) -> watch::Receiver<HeadOwner> {
        match self {
            Self::Local(chain) => chain.head_owner(),
            Self::Remote(client) => client.head_owner(),
        }
    }

    /// Lets the core follow the swarm again if, at `now`, the rollup node that drives it has been
    /// silent for too long.
    pub fn end_silent_drive(&self, now: Instant) {
        match self {
            Self::Local(chain) => chain.update_head_owner(|owner| owner.on_time(now)),
            // A remote core belongs to a rollup node, which no other rollup node drives.
            Self::Remote(_) => {}
        }
    }
}

/// Reads a block of the core in this process.
fn local_block(chain: &Chain, at: BlockAt) -> Result<Option<Arc<Payload>>, ChainError> {
    let view = chain.view();
    let number = match at {
        BlockAt::Head => Some(view.head().number),
        BlockAt::Number(number) => Some(number),
        BlockAt::Hash(hash) => match chain.payload(hash)? {
            Some(payload) => return Ok(Some(payload)),
            None => view.number_of(hash)?,
        },
    };
    match number {
        Some(number) => Ok(view.payload(number)?),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
