//! Reuses blocks that were sent to the signer before a restart or a failure, so that no second
//! block of the same height and parent is signed.

use super::{CONFIRMATIONS, Sequencer, SequencerError};
use crate::{
    chain::{ChainError, Inserted, payload_log::SignGuard},
    rollup::engine::BlockAt,
};
use alloy_primitives::B256;
use starling_p2p::Provenance;
use starling_proto::{
    l1info::L2BlockRef,
    payload::{BlockId, Payload},
    signed_before::{self, NextL1, SigningChoice},
};
use std::sync::Arc;

impl Sequencer {
    /// The hash of the child of `parent` that must be used instead of a new block, if any. It was
    /// sent to the signer before, or it came from peers, with our key's signature, and was
    /// abandoned. `epoch` is the parent's L1 origin, which is canonical.
    pub(super) async fn block_to_resign(
        &mut self,
        parent: &Payload,
        epoch: BlockId,
    ) -> Result<Option<B256>, SequencerError> {
        let number = parent.number() + 1;
        let signed = self.signing_log.signed(number, parent.hash)?;
        let mut guards = Vec::new();
        for payload in self.signing_log.children(number, parent.hash)? {
            if let Ok(L2BlockRef { origin, .. }) = L2BlockRef::of(&payload, &self.rollup.genesis)
                && signed.iter().all(|guard| guard.hash != payload.hash)
            {
                guards.push(SignGuard {
                    l1_origin: origin.hash,
                    hash: payload.hash,
                    sent_order: 0,
                });
            }
        }
        guards.extend(signed);
        let mut next = NextL1::NotFetched;
        loop {
            match signed_before::choose(&guards, epoch.hash, next) {
                SigningChoice::Build => {
                    return match guards.last() {
                        Some(last) => self.confirm_reorg(parent.hash, last.hash).map(|()| None),
                        None => Ok(None),
                    };
                }
                SigningChoice::Resign(hash) => {
                    self.reorganised = None;
                    return Ok(Some(hash));
                }
                SigningChoice::FetchNext => {
                    next = self
                        .origins
                        .after(epoch)
                        .await?
                        .map_or(NextL1::Missing, NextL1::Known)
                }
                SigningChoice::OriginUnknown(hash) => {
                    return Err(SequencerError::OriginAhead(BlockId {
                        number: epoch.number + 1,
                        hash,
                    }));
                }
            }
        }
    }

    /// Fails until L1 has contradicted the origins of all possibly signed blocks on `parent` in
    /// [`CONFIRMATIONS`] checks in a row: one stale L1 response must not lead to a second signed
    /// block.
    fn confirm_reorg(&mut self, parent: B256, last: B256) -> Result<(), SequencerError> {
        let times = 1 + self
            .reorganised
            .take_if(|(on, _)| *on == parent)
            .map_or(0, |(_, times)| times);
        if times < CONFIRMATIONS {
            self.reorganised = Some((parent, times));
            return Err(SequencerError::SignedBlockReorganised(last));
        }
        Ok(())
    }

    /// Reads a block that must be signed again from the signing log, or else from the core, which may
    /// have blocks that the log has pruned.
    pub(super) async fn load_block_to_resign(
        &mut self,
        hash: B256,
    ) -> Result<Arc<Payload>, SequencerError> {
        let found = match self.signing_log.block(hash) {
            Err(ChainError::Stopped) => return Err(ChainError::Stopped.into()),
            Err(error) => {
                tracing::warn!(%hash, %error, "a block in the payload log cannot be read");
                None
            }
            Ok(found) => found,
        };
        let found = match found {
            Some(found) => Some(found),
            None => self.engine.block(BlockAt::Hash(hash)).await?,
        };
        let payload = found.ok_or(SequencerError::SignedBlockLost(hash))?;
        if self.unsigned_reported.replace(hash) != Some(hash) {
            tracing::warn!(number = payload.number(), %hash, "a block of this height may have been signed before; it is used again");
        }
        Ok(payload)
    }

    /// Executes a block that was sent to the signer before, unless the core already knows it.
    pub(super) async fn insert_block_to_resign(
        &self,
        payload: &Arc<Payload>,
    ) -> Result<(), SequencerError> {
        let hash = payload.hash;
        match self
            .engine
            .insert(payload.clone(), Provenance::Imported)
            .await?
        {
            Inserted::Valid => Ok(()),
            Inserted::Invalid { reason, .. } => {
                Err(SequencerError::SignedBlockInvalid { hash, reason })
            }
            Inserted::Syncing => Err(SequencerError::SignedBlockWaits {
                hash,
                reason: "its parent, or the parent's state, is not known",
            }),
            Inserted::NotExecutable => Err(SequencerError::SignedBlockWaits {
                hash,
                reason: "the parent's state is not known, or there is no room for the block",
            }),
        }
    }
}
