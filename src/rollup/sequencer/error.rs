//! Errors of the sequencer's steps, and their consequences for the loop.

use super::{START_TIMEOUT, StepFailure};
use crate::{
    chain::ChainError,
    rollup::{engine::CoreError, l1::L1Error, origin::OriginError, signer::SignerError},
};
use alloy_primitives::B256;
use starling_proto::{attributes::AttributesError, l1info::L1InfoError, payload::BlockId};

/// The reason why a step failed. [`Sequencer::run`](super::Sequencer::run) returns only errors
/// after which sequencing must not continue.
#[derive(Debug, thiserror::Error)]
pub enum SequencerError {
    /// An error of the log in which blocks are recorded before they are signed
    /// (`rollup/signing_log.rs`), or [`ChainError::Stopped`] when the core's heads have ended. Other
    /// errors of the core, also of one in this process, are `Core`.
    #[error(transparent)]
    Chain(#[from] ChainError),
    #[error(transparent)]
    Core(#[from] CoreError),
    #[error(transparent)]
    L1(#[from] L1Error),
    #[error(transparent)]
    Origin(#[from] OriginError),
    #[error(
        "the head's L1 origin {origin} is no longer canonical: L1 has {canonical} at this height"
    )]
    OriginGone { origin: BlockId, canonical: B256 },
    #[error("L1 has no block {} yet, which is the L1 origin of an L2 block: the L1 endpoint lags, or L1 became shorter", .0)]
    OriginAhead(BlockId),
    #[error(
        "L1 does not serve block {0}, which tells how deep an L1 reorg is: give an endpoint that serves older blocks with --l1"
    )]
    OriginNotServed(BlockId),
    #[error(
        "the L1 origin {origin} of the safe block {safe} is not canonical: L1 has {canonical} at this height. The sequencer does not rewind \
         the head below the safe block: no block is made until derivation has lowered the safe head, which it does by itself, or L1 has \
         that origin again. If this goes on, check that --l1 is a synchronised node of this chain's L1. Keep the data directory: it \
         holds the record of signed blocks"
    )]
    SafeOriginGone {
        safe: BlockId,
        origin: BlockId,
        canonical: B256,
    },
    #[error(transparent)]
    Attributes(#[from] AttributesError),
    #[error("the head {0} has no body in the chain")]
    NoHead(BlockId),
    #[error("block {0} is not in the chain: the head was moved, or the block's body is pruned")]
    NoBlock(u64),
    #[error("the head: {0}")]
    HeadInfo(#[from] L1InfoError),
    #[error("L1 and the chain did not start the block within {} seconds", START_TIMEOUT.as_secs())]
    Slow,
    #[error(
        "block {0} may have been signed here for this height, and the payload log does not hold it: no other block is made for the \
         height. It is used as soon as a peer sends it"
    )]
    SignedBlockLost(B256),
    #[error(
        "block {0} may have been signed here for this height, and L1 says that its origin is not canonical: L1 is asked again before \
         another block is made"
    )]
    SignedBlockReorganised(B256),
    #[error(
        "block {hash} may have been signed here for this height, but the chain cannot execute it now: {reason}"
    )]
    SignedBlockWaits { hash: B256, reason: &'static str },
    #[error(
        "block {hash} may have been signed here for this height, and this version finds it invalid: {reason}. Another one would be a \
         second signed block of the height: check that the fork times and the version are those with which it was made"
    )]
    SignedBlockInvalid { hash: B256, reason: String },
    #[error("block {number} is not signed: {cause}")]
    Unsigned { number: u64, cause: SignerError },
}

/// The effect of a failed step on the loop.
pub(super) enum Consequence {
    Retry(StepFailure),
    /// L1 contradicts the head's origin or does not have it. The head is rewound only after
    /// repeated checks ([`super::CONFIRMATIONS`]).
    Confirm,
    End,
}

impl SequencerError {
    pub(super) fn consequence(&self) -> Consequence {
        match self {
            Self::Origin(OriginError::Reorganised { .. })
            | Self::OriginGone { .. }
            | Self::OriginAhead(_) => Consequence::Confirm,
            Self::SignedBlockInvalid { .. } | Self::Attributes(AttributesError::Lagoon(_)) => {
                Consequence::End
            }
            error if error.is_chain_failure() => Consequence::End,
            Self::Attributes(_) => Consequence::Retry(StepFailure::Attributes),
            _ => Consequence::Retry(StepFailure::Temporary),
        }
    }

    /// Whether the block itself is invalid, rather than L1, the signer or the chain being at fault
    /// (op-node: sequencing errors).
    pub(super) fn is_invalid_block(&self) -> bool {
        matches!(
            self,
            Self::Attributes(_)
                | Self::Core(CoreError::Chain(ChainError::Build(_)))
                | Self::SignedBlockInvalid { .. }
        )
    }

    /// Whether the local chain has failed, and not only sequencing.
    pub fn is_chain_failure(&self) -> bool {
        match self {
            Self::Chain(error) => error.is_fatal(),
            Self::Core(error) => error.is_fatal(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
