//! Encoded blocks of a branch, in the form in which they are sent to Starling peers. Stored blocks
//! are passed as rows, many at a time, without decoding.

use super::{ReadError, View};
use starling_proto::{payload::BlockId, wire};
use std::ops::RangeInclusive;

impl View {
    /// Passes the RLP of the header of block `from`, then of its ancestors, highest first, to
    /// `take` until `take` returns false. Passes nothing if the block is not on this branch.
    /// Headers of blocks in memory come first, then those of stored blocks.
    pub fn encoded_headers(
        &self,
        from: BlockId,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), ReadError> {
        if self.hash_of(from.number)? != Some(from.hash) {
            return Ok(());
        }
        let oldest = self.oldest_in_memory();
        for number in (oldest..=from.number).rev() {
            if let Some(block) = self.in_memory(number)
                && !take(&wire::encode_block(&block.payload)[0])
            {
                return Ok(());
            }
        }
        for number in (0..=from.number.min(oldest.saturating_sub(1))).rev() {
            if !self
                .snapshot
                .encoded_header(number)?
                .is_some_and(|header| take(&header))
            {
                break;
            }
        }
        Ok(())
    }

    /// Passes the RLP of each block's header, and the RLP of its list of transactions, to `take`,
    /// lowest block first, until `take` returns false.
    pub fn encoded_blocks(
        &self,
        numbers: RangeInclusive<u64>,
        take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ReadError> {
        let (first, last) = numbers.into_inner();
        let oldest = self.oldest_in_memory();
        let stored = first..=last.min(oldest.saturating_sub(1));
        if !stored.is_empty() && !self.snapshot.encoded_blocks(stored, take)? {
            return Ok(());
        }
        for block in (first.max(oldest)..=last).map_while(|number| self.in_memory(number)) {
            let [header, transactions] = wire::encode_block(&block.payload);
            if !take(&header, &transactions) {
                break;
            }
        }
        Ok(())
    }

    /// The lowest block in memory. All lower blocks are read from the store.
    fn oldest_in_memory(&self) -> u64 {
        self.recent
            .first()
            .or(self.blocks.first())
            .map_or(self.base.number + 1, |block| block.payload.number())
    }
}
