//! Rewinds the head after an L1 reorg: to the last L2 block whose L1 origin is canonical, not below
//! the safe block.
//!
//! The origins along an L2 chain are an L1 chain, so all origins below a canonical one are
//! canonical, and the last canonical one is found by bisection: a reorg of 64 L1 blocks takes some
//! ten requests. If the endpoint changes its L1 head during the search, the result may be too high
//! or too low. If it is too high, the next block fails again. If it is too low, the blocks above
//! are found in the payload log and used again.

use super::{START_TIMEOUT, Sequencer, SequencerError, origins::OriginStatus};
use crate::rollup::engine::BlockAt;
use alloy_primitives::B256;
use starling_proto::{l1info::L2BlockRef, payload::BlockId};
use tokio::time::timeout;

/// The result of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RewindTarget {
    /// The head stays. Its origin is canonical, or L1 has not reached it yet and no lower origin is
    /// gone.
    Stay,
    /// The head is rewound to the block of this number.
    Block(u64),
    /// Even the lowest block's origin is gone.
    FloorGone { canonical: B256 },
}

/// The next step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchStep {
    /// Check the origin of the L2 block of this number on L1.
    Check(u64),
    Found(RewindTarget),
}

/// A bisection between the lowest block that may become the head and the head. Pure.
#[derive(Debug)]
pub(crate) struct Search {
    floor: u64,
    /// The highest block whose origin is known to be canonical.
    low: Option<u64>,
    /// The lowest block whose origin is known not to be canonical, and the result of its check.
    high: (u64, OriginStatus),
}

impl Search {
    pub(crate) fn new(floor: u64, head: u64) -> Self {
        Self {
            floor,
            low: None,
            high: (head.saturating_add(1), OriginStatus::Ahead),
        }
    }

    pub(crate) fn step(&self) -> SearchStep {
        let (high, above) = self.high;
        match (self.low, above) {
            (None, OriginStatus::Gone { canonical }) if high == self.floor => {
                SearchStep::Found(RewindTarget::FloorGone { canonical })
            }
            (None, _) if high == self.floor => SearchStep::Found(RewindTarget::Stay),
            (None, _) => SearchStep::Check(self.floor),
            (Some(low), _) if high - low > 1 => SearchStep::Check(low + (high - low) / 2),
            (Some(low), OriginStatus::Gone { .. }) => SearchStep::Found(RewindTarget::Block(low)),
            _ => SearchStep::Found(RewindTarget::Stay),
        }
    }

    /// Enters the result of [`SearchStep::Check`].
    pub(crate) fn answer(&mut self, number: u64, status: OriginStatus) {
        match status {
            OriginStatus::Canonical => self.low = Some(number),
            other => self.high = (number, other),
        }
    }
}

impl Sequencer {
    /// Rewinds the head, whose origin L1 has contradicted repeatedly, to the last block whose L1
    /// origin is canonical, not below the safe block.
    pub(super) async fn rewind_after_reorg(&mut self) -> Result<(), SequencerError> {
        let heads = *self.engine.heads().borrow();
        let (head, floor) = (heads.head, heads.safe.unwrap_or(self.rollup.genesis.l2));
        let searched = timeout(START_TIMEOUT, self.search(head, floor));
        let found = searched.await.map_err(|_| SequencerError::Slow)?;
        // A head that moved during the search has to fail by itself. Blocks may also be missing
        // because it moved.
        if self.engine.heads().borrow().head != head {
            return Ok(());
        }
        match found? {
            RewindTarget::Stay => Ok(()),
            RewindTarget::FloorGone { canonical } => Err(SequencerError::SafeOriginGone {
                safe: floor,
                origin: self.block_and_origin(floor.number).await?.1,
                canonical,
            }),
            RewindTarget::Block(number) => {
                let (to, _) = self.block_and_origin(number).await?;
                let (_, origin) = self.block_and_origin(head.number).await?;
                tracing::warn!(%head, %to, %origin, "L1 reorg: the head is rewound to the last block whose L1 origin is canonical");
                metrics::counter!("starling_sequencer_l1_reorgs_total").increment(1);
                Ok(self.engine.forkchoice(to.hash, None, None).await?)
            }
        }
    }

    async fn search(&self, head: BlockId, floor: BlockId) -> Result<RewindTarget, SequencerError> {
        let mut search = Search::new(floor.number, head.number);
        loop {
            match search.step() {
                SearchStep::Found(found) => return Ok(found),
                SearchStep::Check(number) => {
                    let (_, origin) = self.block_and_origin(number).await?;
                    search.answer(number, self.origins.status(origin).await?);
                }
            }
        }
    }

    /// The canonical L2 block of this number, and its L1 origin.
    async fn block_and_origin(&self, number: u64) -> Result<(BlockId, BlockId), SequencerError> {
        let missing = || {
            SequencerError::NoHead(BlockId {
                number,
                ..self.engine.heads().borrow().head
            })
        };
        let block = self.engine.block(BlockAt::Number(number)).await?;
        let block = block.ok_or_else(missing)?;
        let origin = L2BlockRef::of(&block, &self.rollup.genesis)?.origin;
        Ok((block.id(), origin))
    }
}

#[cfg(test)]
mod tests;
