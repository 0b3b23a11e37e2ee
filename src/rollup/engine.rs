//! The engine: the handle through which derivation, the sequencer and the follower use an execution
//! core.
//!
//! They hold an [`Engine`] and nothing else of the chain: the core is in this process, or in another
//! one, which is driven over the Engine API ([`remote`]). Callers wait for the core: what can overload
//! it is bounded there (the executor's command queue, the builder's queue). Signing records are not
//! part of the seam, since they stay with the key: see [`super::signing_log`].

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
/// Every verb fails with [`ChainError::Stopped`] once the local
/// core has stopped, and with a fatal error ([`CoreError::is_fatal`]) if its database fails, which
/// ends the core. A core in another process that cannot be reached fails with
/// [`CoreError::Remote`], which is never fatal: callers try again later.
#[derive(Clone)]
pub enum Engine {
    /// The core in this process.
    Local(Chain),
    /// A core in another process.
    Remote(EngineClient),
}

/// The block that [`Engine::block`] returns.
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
    /// Executes a payload whose parent is known.
    ///
    /// Returns `Valid` also for a block that is known already, `Invalid` with the latest valid
    /// ancestor, `Syncing` if the parent is missing, and `NotExecutable` if memory or the number of
    /// side branches does not allow to execute it now. Never moves a head, and never fetches a
    /// parent.
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

    /// Executes an unsafe payload and applies the fork choice of unsafe blocks: the head moves only
    /// to a strictly higher block on a branch that contains the safe head and the block of
    /// [`Engine::protect`], and only while no rollup node drives the core ([`HeadOwner`]).
    ///
    /// Returns when the payload is queued, with its outcome to come; where the core is in another
    /// process, when the outcome is there. Payloads are executed in the
    /// order of the calls. Outcomes are those of [`Engine::insert`]. Never moves safe or finalized.
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

    /// Moves the unsafe head to a known block, up, down or to another branch, and with it safe and
    /// finalized where they are given.
    ///
    /// Fails if a block is unknown ([`ChainError::UnknownBlock`]), if safe, finalized or the block of
    /// [`Engine::protect`] are not on the branch of the head, also when they stay
    /// ([`ChainError::NotOnBranch`]), or if finalized
    /// would be above safe ([`ChainError::FinalizedAboveSafe`]); then no head has moved. A head
    /// that does not only rise is durable when this returns. Never executes a block.
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

    /// Moves safe and finalized, each where it is given, to blocks on the branch of the unsafe
    /// head.
    ///
    /// Fails like [`Engine::forkchoice`], and then neither has moved. Never moves the unsafe head,
    /// whatever other callers do at the same time.
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

    /// Keeps the unsafe head on the branch of this block, the newest one derived from L1, which may be
    /// above the safe head. From then on neither [`Engine::queue_follow`] nor [`Engine::forkchoice`] takes
    /// the head to a branch without it. `None` ends that.
    ///
    /// Fails if the block is not on the branch of the head ([`ChainError::NotOnBranch`]), and then the
    /// block before is still kept. Never moves a head.
    pub async fn protect(&self, derived: Option<B256>) -> Result<(), CoreError> {
        match self {
            Self::Local(chain) => Ok(chain.protect(derived).await?.await?),
            Self::Remote(client) => client.protect(derived).await,
        }
    }

    /// Queues [`Engine::protect`] and returns before its outcome is known, which is dropped. Calls that
    /// come later are handled after it.
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
    /// moves a head, and never makes the block durable.
    pub async fn seal(&self, id: PayloadId) -> Result<Arc<Payload>, CoreError> {
        match self {
            Self::Local(chain) => Ok(chain.seal(id).await?.payload.clone()),
            Self::Remote(client) => client.seal(id).await,
        }
    }

    /// Builds a block on a known parent with the transactions of the attributes and none of the pool,
    /// makes it the unsafe head unless it is canonical already, keeps the head on its branch as
    /// [`Engine::protect`] does, and returns it. It neither replaces nor delays a build that
    /// [`Engine::start`] has begun.
    ///
    /// Fails if the parent is unknown, if the attributes are invalid ([`ChainError::Build`]), or like
    /// [`Engine::forkchoice`]; then no head has moved.
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

    /// Recovers the senders of transactions on other threads, for the next call of
    /// [`Engine::derive`] if its attributes end with them. `None` if another process executes.
    pub fn expect(&self, transactions: Vec<Bytes>) -> Option<ExpectedTransactions> {
        match self {
            Self::Local(_) => Some(ExpectedTransactions::begin(transactions)),
            Self::Remote(_) => None,
        }
    }

    /// Reads a block; `None` if it is unknown or its body is pruned. By hash it finds blocks in
    /// memory, in the payload log and on the canonical chain. In this process it never waits for the executor.
    pub async fn block(&self, at: BlockAt) -> Result<Option<Arc<Payload>>, CoreError> {
        match self {
            Self::Local(chain) => Ok(local_block(chain, at)?),
            Self::Remote(client) => client.block(at).await,
        }
    }

    /// The heads. Wakes on every change and may skip changes in between.
    pub fn heads(&self) -> watch::Receiver<Heads> {
        match self {
            Self::Local(chain) => chain.heads(),
            Self::Remote(client) => client.heads(),
        }
    }

    /// The party that moves the unsafe head. Wakes when it changes.
    pub fn head_owner(&self) -> watch::Receiver<HeadOwner> {
        match self {
            Self::Local(chain) => chain.head_owner(),
            Self::Remote(client) => client.head_owner(),
        }
    }

    /// Lets the core follow the swarm again if the rollup node that drives it has been silent for
    /// too long at `now`.
    pub fn end_silent_drive(&self, now: Instant) {
        match self {
            Self::Local(chain) => chain.update_head_owner(|owner| owner.on_time(now)),
            // No rollup node drives a rollup node.
            Self::Remote(_) => {}
        }
    }
}

/// A block of the core in this process.
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
