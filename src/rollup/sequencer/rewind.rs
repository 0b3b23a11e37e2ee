//! Rewinds the head after an L1 reorg, to the last L2 block with a canonical L1 origin, not below
//! the safe block.
//!
//! If the endpoint's L1 head changes during the search, the search may find a block that is too
//! high or too low. After a rewind that is too high, the next block fails again. After a rewind
//! that is too low, the blocks above are found in the payload log and used again.

use super::{CONFIRMATIONS, START_TIMEOUT, Sequencer, SequencerError};
use crate::rollup::{
    engine::BlockAt,
    head_search::{HeadSearch, RewindTarget, SearchStep},
};
use starling_proto::{l1info::L2BlockRef, payload::BlockId};
use tokio::time::timeout;

impl Sequencer {
    /// Rewinds the head after L1 has repeatedly contradicted its origin: to the last block with a
    /// canonical L1 origin, not below the safe block. Returns whether the head was rewound.
    pub(super) async fn rewind_after_reorg(&mut self) -> Result<bool, SequencerError> {
        let heads = *self.engine.heads().borrow();
        let (head, floor) = (heads.head, heads.safe.unwrap_or(self.rollup.genesis.l2));
        let searched = timeout(START_TIMEOUT, self.search(head, floor));
        let found = searched.await.map_err(|_| SequencerError::Slow)?;
        // The head moved during the search, which may also be why blocks were missing. The new head
        // is rewound only if its own checks fail.
        if self.engine.heads().borrow().head != head {
            return Ok(false);
        }
        match found? {
            RewindTarget::Stay => Ok(false),
            RewindTarget::FloorOrphaned { canonical } => Err(SequencerError::SafeOriginGone {
                safe: floor,
                origin: self.block_and_origin(floor.number).await?.1,
                canonical,
            }),
            RewindTarget::NotServed(number) => Err(SequencerError::OriginNotServed(
                self.block_and_origin(number).await?.1,
            )),
            RewindTarget::Block(number) => {
                let (to, _) = self.block_and_origin(number).await?;
                let (_, origin) = self.block_and_origin(head.number).await?;
                tracing::warn!(%head, %to, %origin, "L1 reorg: the head is rewound to the last block whose L1 origin is canonical");
                self.engine.forkchoice(to.hash, None, None).await?;
                // The reorg is confirmed: a signed child with an orphaned origin is checked once more.
                self.reorganised = Some((to.hash, CONFIRMATIONS - 1));
                // Count only here: a failed rewind is repeated and must count once.
                metrics::counter!("starling_sequencer_l1_reorgs_total").increment(1);
                self.metrics.on_rewind();
                Ok(true)
            }
        }
    }

    async fn search(&self, head: BlockId, floor: BlockId) -> Result<RewindTarget, SequencerError> {
        let mut search = HeadSearch::new(floor.number, head.number);
        loop {
            match search.step() {
                SearchStep::Found(found) => return Ok(found),
                SearchStep::Check(number) => {
                    let (_, origin) = self.block_and_origin(number).await?;
                    search.record(number, self.origins.status(origin).await?);
                }
            }
        }
    }

    /// The canonical L2 block of this number and its L1 origin.
    async fn block_and_origin(&self, number: u64) -> Result<(BlockId, BlockId), SequencerError> {
        let block = self.engine.block(BlockAt::Number(number)).await?;
        let block = block.ok_or(SequencerError::NoBlock(number))?;
        let origin = L2BlockRef::of(&block, &self.rollup.genesis)?.origin;
        Ok((block.id(), origin))
    }
}
