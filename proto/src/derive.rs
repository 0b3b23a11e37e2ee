//! Derivation: the L2 chain that L1 alone defines, as a pure state machine (specs: derivation).
//!
//! The driver calls [`Pipeline::step`] in a loop and acts on each result. It fetches the data that
//! a [`Need`] names and pushes them. It passes [`DerivedAttributes`] to the execution engine and
//! reports the verdict. After a reset request it resets the pipeline from a safe head. A step does
//! a bounded amount of work and no I/O. Every step returns an open need again, so a failed read
//! changes nothing. Hostile input is dropped by rule and counted ([`DropCounts`]).
//!
//! Each stage pulls from the stage before it. Where op-node's stages are found here:
//!
//! | op-node | file |
//! |---|---|
//! | `DerivationPipeline.Step` | `derive.rs` |
//! | `initialReset` | `derive/walk.rs` |
//! | `L1Traversal`, `L1Retrieval`, `ChannelInReader` | `derive/source.rs`; the move to the next L1 block in `derive/derivation.rs` |
//! | `FrameQueue` | `derive/frames.rs` |
//! | `ChannelMux`: `ChannelBank`, `ChannelAssembler` | `derive/channels.rs`, `channels/bank.rs`, `channels/assembler.rs` |
//! | `BatchMux`: `BatchQueue`, `BatchStage` | `derive/batches.rs`, `batches/queue.rs`, `batches/holocene.rs` |
//! | `CheckBatch` | `derive/validity.rs`; the overlap of span batches in `derive/batches/overlap.rs` |
//! | `AttributesQueue` | `derive/derivation.rs` |
//! | `FetchingAttributesBuilder` | `attributes.rs` |
//!
//! `derive/stage.rs` has the types that all stages share. `derive/epochs.rs` keeps the L1 blocks
//! that batches may have as their origin. `derive/input.rs` extracts the part of an L1 block that
//! derivation reads. `derive/drops.rs` has the counters.
//!
//! Memory is bounded by the protocol's own limits for channels, by one decompressed batch, and by
//! the sequencing window for L1 blocks. Batches keep their encoded bytes. Transactions are copied
//! out of them only for a block that may fit its gas limit. Before Holocene nothing bounds the
//! number of future batches in the queue: every node has to keep them.

mod batches;
mod channels;
mod derivation;
mod drops;
mod epochs;
mod frames;
mod input;
mod source;
mod stage;
mod validity;
mod walk;

pub use drops::{DropCounts, DropReason, ReadCounts};
pub use input::{BlobRef, InboxTransaction, L1Input, RelevantLogs, inbox_transactions};
pub use stage::CHANNEL_TIMEOUT_GRANITE;

use self::{
    derivation::Derivation,
    source::BatchSource,
    stage::StageContext,
    walk::{ResetWalk, WalkError},
};
use crate::{
    attributes::L1Block,
    batch::BatchTransactions,
    config::RollupConfig,
    config_update::ConfigUpdateError,
    deposit::BlockDepositError,
    fork::{BlobSchedule, LagoonBlock},
    l1info::L2BlockRef,
    payload::{BlockId, Payload},
};
use alloy_primitives::{Address, B256, Bytes};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use std::sync::Arc;
use thiserror::Error;

/// The result of one step.
#[derive(Clone, Debug)]
pub enum PipelineStep {
    /// Progress was made: call again.
    More,
    /// Fetch the data of this need and push them. Every step returns the need again until then.
    Need(Need),
    /// Build or consolidate the next block, then call [`Pipeline::accepted`] or
    /// [`Pipeline::invalid`].
    Attributes(Box<DerivedAttributes>),
    /// The driver has not yet reported whether the attributes of an earlier step are valid.
    AwaitingVerdict,
    /// Everything up to `origin` is derived, and the caller has reported that the next L1 block,
    /// `next`, does not exist yet. The caller pushes that block once it exists. `origin` is `None`
    /// if L1 does not even have the block at which the pipeline starts.
    Idle {
        /// The last L1 block that was derived from.
        origin: Option<BlockId>,
        /// Number of the L1 block to push.
        next: u64,
    },
    /// The pipeline contradicts the present L1 or L2 chain: find a safe head and call
    /// [`Pipeline::reset`]. Every step returns this again until the reset.
    Reset(ResetReason),
    /// Derivation cannot go on. Every step returns this until the next reset. A reset usually ends
    /// in the same error again.
    Critical(CriticalError),
}

/// An input that derivation lacks.
#[expect(
    clippy::large_enum_variant,
    reason = "one lives at a time, for one request"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// An L1 block. Provide it with [`Pipeline::push_l1`], or report its absence with
    /// [`Pipeline::no_l1_yet`].
    L1Block {
        /// Number of the needed L1 block.
        number: u64,
        /// The branch that the needed block must be on.
        link: L1Link,
    },
    /// Blobs that the batcher posted in `block`, all of them at once. Provide them with
    /// [`Pipeline::push_blobs`].
    Blobs {
        /// The L1 block whose transactions carry the blobs.
        block: L1Block,
        /// The blobs to fetch, in the order in which they must be pushed.
        blobs: Vec<BlobRef>,
    },
    /// A block of the safe chain. Provide it with [`Pipeline::push_l2`].
    L2Block {
        /// Number of the needed L2 block.
        number: u64,
        /// Hash of the needed L2 block; `None` if derivation does not know it.
        hash: Option<B256>,
    },
}

/// The branch that an L1 block must be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L1Link {
    /// The block with this hash.
    Hash(B256),
    /// A child of the block with this hash.
    ChildOf(B256),
}

/// Attributes for the block after `parent`, the pending-safe head.
#[derive(Clone, Debug)]
pub struct DerivedAttributes {
    /// The block to build on.
    pub parent: L2BlockRef,
    /// Attributes for the Engine API, with `no_tx_pool` set.
    pub attributes: OpPayloadAttributes,
    /// Whether this block and the pending-safe blocks below it become local-safe at once (op-node:
    /// Concluding). From Holocene on every block is concluding; before Holocene only the last block
    /// of a batch is.
    pub concluding: bool,
    /// The pipeline's L1 origin when these attributes were derived.
    pub derived_from: L1Block,
    /// Whether all transactions are deposits. If the engine refuses such a block, the error is
    /// critical.
    pub deposits_only: bool,
    /// Configuration update logs that were ignored because they are malformed; the caller logs
    /// them.
    pub ignored: Vec<ConfigUpdateError>,
}

/// The reason why the pipeline has to start over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum ResetReason {
    #[error("the pipeline has no safe head yet")]
    Start,
    #[error("L1 reorg: block {got} does not follow {expected}")]
    L1Reorg { got: BlockId, expected: B256 },
    #[error("L1 origin {origin} of safe head {safe} is not on the L1 chain, which has {canonical}")]
    Origin {
        safe: BlockId,
        origin: BlockId,
        canonical: BlockId,
    },
    #[error("attributes do not fit the safe head: {0}")]
    Attributes(String),
}

/// Advice to an operator, appended to critical errors that no known input causes.
const NEXT_STEP: &str = "restart to derive again from the newest recorded safe head, and report this \
                         line if it comes back";

/// The reason why derivation stops.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum CriticalError {
    #[error("L1 holds a deposit that cannot be read, and deposits must not be skipped: {0}")]
    Deposit(#[from] BlockDepositError),
    #[error(
        "the block on {parent} is invalid although it holds only deposits: {cause}; check the fork \
         times of rollup.json and genesis, and the version"
    )]
    DepositsOnly { parent: BlockId, cause: String },
    #[error(transparent)]
    Lagoon(#[from] LagoonBlock),
    #[error("attributes cannot be built on {parent}: {cause}; {NEXT_STEP}")]
    Attributes { parent: BlockId, cause: String },
    #[error("block {block} of the safe chain cannot be read: {cause}; {NEXT_STEP}")]
    SafeBlock { block: BlockId, cause: String },
    #[error(
        "fewer than two L1 blocks are known at origin {origin} after safe head {safe}; {NEXT_STEP}"
    )]
    FewOrigins { origin: BlockId, safe: BlockId },
}

impl CriticalError {
    /// The error for a block of the safe chain that cannot be read.
    fn safe_block(block: BlockId, error: impl std::fmt::Display) -> Self {
        Self::SafeBlock {
            block,
            cause: error.to_string(),
        }
    }
}

/// The reason why a push was refused. The pipeline is unchanged and returns the same need again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum PushError {
    #[error("the pipeline did not need {0} now")]
    NotNeeded(&'static str),
    #[error("pushed {got}, but needed {wanted}")]
    Other { wanted: String, got: String },
}

/// Derives attributes from L1.
#[derive(Debug)]
pub struct Pipeline {
    schedule: BlobSchedule,
    cx: StageContext,
    state: PipelineState,
    /// An L1 block that was pushed and not yet read.
    pushed: Option<L1Input>,
    /// The caller has reported that the L1 block needed does not exist yet.
    is_idle: bool,
}

#[derive(Debug)]
enum PipelineState {
    /// Every step returns this result until the next reset.
    Stopped(Box<PipelineStep>),
    Walking(Box<ResetWalk>),
    Deriving(Box<Derivation>),
}

impl Pipeline {
    /// A pipeline without a safe head: its first step requests a reset. `schedule` is the blob
    /// schedule of the L1 chain.
    pub fn new(rollup: Arc<RollupConfig>, schedule: BlobSchedule) -> Self {
        Self {
            schedule,
            cx: StageContext::new(rollup),
            state: stopped(PipelineStep::Reset(ResetReason::Start)),
            pushed: None,
            is_idle: false,
        }
    }

    /// Starts over from this safe head. The caller has checked that its L1 origin is canonical. The
    /// pipeline then walks the L2 chain back by itself, as far as a channel may have been open, and
    /// requests those blocks. Batches from L1 blocks before number `first_l1` are not applied:
    /// these blocks only fill channels. Drop counters are kept.
    ///
    /// The original run may have dropped a batch because its safe head was lower at that time. With
    /// a `first_l1` of 0 such a batch can be accepted. Then the chain would differ, or the L1 block
    /// that is recorded for a safe block. So pass an L1 block at whose beginning `safe` was already
    /// the safe head: at the latest the block that the child of `safe` was derived from. From
    /// Holocene on the result is then the same as without a reset. Before Holocene batches of
    /// earlier L1 blocks may still have been queued: pass 0.
    pub fn reset(&mut self, safe: Arc<Payload>, first_l1: u64) {
        self.pushed = None;
        self.is_idle = false;
        self.cx.safe_blocks.rewind();
        self.state = match ResetWalk::new(&self.cx.rollup, safe, first_l1) {
            Ok(walk) => PipelineState::Walking(Box::new(walk)),
            Err(error) => stopped(PipelineStep::Critical(error)),
        };
    }

    /// Does a bounded amount of work and returns what the driver has to do next.
    pub fn step(&mut self) -> PipelineStep {
        let step = match &mut self.state {
            PipelineState::Stopped(step) => return (**step).clone(),
            PipelineState::Walking(walk) => match walk.need(&self.cx.rollup) {
                Ok(need) if self.pushed.is_none() => PipelineStep::Need(need),
                Ok(_) => self.arrive(),
                Err(error) => PipelineStep::Critical(error),
            },
            PipelineState::Deriving(derivation) => {
                derivation.step(&mut self.cx, &self.schedule, &mut self.pushed)
            }
        };
        match step {
            PipelineStep::Reset(_) | PipelineStep::Critical(_) => {
                self.state = stopped(step.clone());
            }
            PipelineStep::Need(Need::L1Block { number, .. }) if self.is_idle => {
                return PipelineStep::Idle {
                    origin: self.origin().map(|origin| origin.id()),
                    next: number,
                };
            }
            _ => {}
        }
        step
    }

    /// Ends the reset walk at the L1 block that was pushed, and starts to derive.
    fn arrive(&mut self) -> PipelineStep {
        let (PipelineState::Walking(walk), Some(base)) = (&self.state, self.pushed.take()) else {
            return PipelineStep::More;
        };
        match walk.arrive(&self.cx.rollup, &base) {
            Ok(config) => {
                let derivation = Derivation::new(&mut self.cx, walk, base, config);
                self.state = PipelineState::Deriving(Box::new(derivation));
                PipelineStep::More
            }
            Err(WalkError::Reset(reason)) => PipelineStep::Reset(*reason),
            Err(WalkError::Critical(error)) => PipelineStep::Critical(error),
        }
    }

    /// Supplies the block that [`Need::L1Block`] requests, also while idle. The caller has checked
    /// header, transactions and receipts against each other. If the block is not on the expected
    /// branch, the next step returns a reset.
    pub fn push_l1(&mut self, input: L1Input) -> Result<(), PushError> {
        let next = match &self.state {
            PipelineState::Stopped(_) => None,
            PipelineState::Walking(walk) => match walk.need(&self.cx.rollup) {
                Ok(Need::L1Block { number, .. }) => Some(number),
                _ => None,
            },
            PipelineState::Deriving(derivation) => derivation.source.origin().number.checked_add(1),
        };
        let next = next.filter(|_| self.pushed.is_none());
        let number = next.ok_or(PushError::NotNeeded("an L1 block"))?;
        if input.block.number != number {
            return Err(PushError::Other {
                wanted: format!("L1 block {number}"),
                got: input.block.id().to_string(),
            });
        }
        self.pushed = Some(input);
        self.is_idle = false;
        Ok(())
    }

    /// Reports that L1 has no block yet with the number in [`Need::L1Block`]. The pipeline is idle
    /// until that block is pushed.
    pub fn no_l1_yet(&mut self) {
        self.is_idle = true;
    }

    /// Supplies the blobs that [`Need::Blobs`] requests: the 131,072 bytes of each, in the order of
    /// the need. The caller has checked the blobs against their versioned hashes. `block` is the
    /// hash of the need's L1 block.
    pub fn push_blobs(&mut self, block: B256, blobs: &[Bytes]) -> Result<(), PushError> {
        match &mut self.state {
            PipelineState::Deriving(derivation)
                if derivation.source.wants_blobs() && derivation.source.origin().hash == block =>
            {
                derivation.source.push_blobs(&mut self.cx, blobs)
            }
            _ => Err(PushError::NotNeeded("blobs")),
        }
    }

    /// Supplies the block that [`Need::L2Block`] requests.
    pub fn push_l2(&mut self, payload: Arc<Payload>) -> Result<(), PushError> {
        let need = match &self.state {
            PipelineState::Stopped(_) => None,
            PipelineState::Walking(walk) => walk.need(&self.cx.rollup).ok(),
            PipelineState::Deriving(derivation) => derivation.needed.clone(),
        };
        let Some(Need::L2Block { number, hash }) = need else {
            return Err(PushError::NotNeeded("an L2 block"));
        };
        if payload.number() != number || hash.is_some_and(|hash| hash != payload.hash) {
            let hash = hash.map(|hash| format!(" ({hash})")).unwrap_or_default();
            return Err(PushError::Other {
                wanted: format!("L2 block {number}{hash}"),
                got: payload.id().to_string(),
            });
        }
        match &mut self.state {
            PipelineState::Walking(walk) => {
                if let Err(error) = walk.step_back(&self.cx.rollup, payload) {
                    self.state = stopped(PipelineStep::Critical(error));
                }
            }
            _ => self.cx.safe_blocks.put(payload),
        }
        Ok(())
    }

    /// Verdict on the attributes in flight: `payload` was built from them and is valid. It becomes
    /// the pending-safe head.
    pub fn accepted(&mut self, payload: Arc<Payload>) -> Result<(), PushError> {
        match &mut self.state {
            PipelineState::Deriving(derivation) => derivation.accepted(&self.cx.rollup, payload),
            _ => Err(PushError::NotNeeded("a block")),
        }
    }

    /// Verdict on the attributes in flight: the engine finds the block invalid, for this reason. If
    /// they were derived from an L1 block in Holocene, the rest of the channel is dropped, and the
    /// next step returns the same attributes with deposits only. Before Holocene the batch is
    /// dropped, and the pending-safe head moves back to the last block that concluded a batch
    /// ([`Pipeline::pending_safe`]).
    pub fn invalid(&mut self, reason: &str) -> Result<(), PushError> {
        match &mut self.state {
            PipelineState::Deriving(derivation) => {
                if let Some(error) = derivation.invalid(&mut self.cx, reason)? {
                    self.state = stopped(PipelineStep::Critical(error));
                }
                Ok(())
            }
            _ => Err(PushError::NotNeeded("a verdict")),
        }
    }

    /// The L1 block that is being read; all earlier ones are read. `None` until a reset is
    /// complete.
    pub fn origin(&self) -> Option<&L1Block> {
        match &self.state {
            PipelineState::Deriving(derivation) => Some(derivation.source.origin()),
            _ => None,
        }
    }

    /// The batcher's address as of the L1 origin; `None` until a reset is complete.
    pub fn batcher(&self) -> Option<Address> {
        match &self.state {
            PipelineState::Deriving(derivation) => Some(derivation.source.batcher()),
            _ => None,
        }
    }

    /// The block on which the next attributes build; `None` while stopped.
    pub fn pending_safe(&self) -> Option<L2BlockRef> {
        match &self.state {
            PipelineState::Stopped(_) => None,
            PipelineState::Walking(walk) => Some(walk.safe_ref()),
            PipelineState::Deriving(derivation) => Some(derivation.pending_safe()),
        }
    }

    /// Transactions of the block after the one in flight, if a batch with them is known. Their
    /// senders can be recovered while the block in flight executes. The pipeline may still drop
    /// that next block.
    pub fn next_transactions(&self) -> Option<BatchTransactions> {
        match &self.state {
            PipelineState::Deriving(derivation) => derivation.next_transactions(),
            _ => None,
        }
    }

    /// Returns the drop counts since the last call and resets them.
    pub fn drain_drops(&mut self) -> DropCounts {
        std::mem::take(&mut self.cx.drops)
    }

    /// Returns the number of frames and batches read since the last call and resets the count.
    pub fn drain_reads(&mut self) -> ReadCounts {
        std::mem::take(&mut self.cx.reads)
    }
}

fn stopped(step: PipelineStep) -> PipelineState {
    PipelineState::Stopped(Box::new(step))
}

#[cfg(test)]
mod tests;
