//! The order of flashblocks: the parts of one block, from the first on, without a gap. Pure.

use super::frame::{Flashblock, FlashblockBase, FlashblockDiff};
use alloy_primitives::B64;

/// Maximum number of parts of one block, over ten times as many as sequencers usually publish.
const MAX_PARTS: usize = 256;
/// Maximum bytes of all parts of one block.
const MAX_BYTES: usize = 32 << 20;

/// The reason why a part does not continue the block in progress. The block is discarded then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    #[error("part {have} follows part {last}")]
    Gap { have: u64, last: u64 },
    #[error("a part of another block came in the middle of block {0}")]
    OtherBlock(u64),
    #[error("the first part of a block has no base")]
    NoBase,
    #[error("block {0} has too many parts, or too large ones")]
    TooLarge(u64),
    #[error("an L2 block has no withdrawals")]
    Withdrawals,
}

/// The result of accepting a part, given the block so far.
#[derive(Debug, PartialEq, Eq)]
pub enum FlashblockArrival {
    /// The part begins a new block, and the previous block has ended.
    Begins,
    /// The part continues the block in progress.
    Continues,
    /// The part is a duplicate, or belongs to a block whose first part was not received, or begins
    /// a lower block than the one in progress.
    Ignored,
}

/// The parts of one block received so far.
#[derive(Debug)]
pub struct FlashblockSequence {
    pub id: B64,
    pub base: FlashblockBase,
    pub parts: Vec<FlashblockDiff>,
    bytes: usize,
}

impl FlashblockSequence {
    pub fn number(&self) -> u64 {
        self.base.block_number.to()
    }
}

/// Assembles arriving parts to one block at a time.
#[derive(Debug, Default)]
pub struct Assembler {
    pub current: Option<FlashblockSequence>,
}

impl Assembler {
    /// Accepts a part. After an error there is no block in progress until the next block begins.
    pub fn accept(&mut self, part: Flashblock) -> Result<FlashblockArrival, SequenceError> {
        let accepted = self.place(part);
        if accepted.is_err() {
            self.current = None;
        }
        accepted
    }

    fn place(&mut self, part: Flashblock) -> Result<FlashblockArrival, SequenceError> {
        if !part.diff.withdrawals.is_empty() {
            return Err(SequenceError::Withdrawals);
        }
        if part.index == 0 {
            return self.begin(part);
        }
        let Some(current) = &mut self.current else {
            return Ok(FlashblockArrival::Ignored);
        };
        let number = current.number();
        if part.payload_id != current.id {
            return Err(SequenceError::OtherBlock(number));
        }
        let next = current.parts.len() as u64;
        if part.index < next {
            return Ok(FlashblockArrival::Ignored);
        }
        if part.index > next {
            return Err(SequenceError::Gap {
                have: part.index,
                last: next - 1,
            });
        }
        if part.base.is_some_and(|base| base != current.base) {
            return Err(SequenceError::OtherBlock(number));
        }
        current.bytes = current.bytes.saturating_add(part.diff.weight());
        if current.parts.len() >= MAX_PARTS || current.bytes > MAX_BYTES {
            return Err(SequenceError::TooLarge(number));
        }
        current.parts.push(part.diff);
        Ok(FlashblockArrival::Continues)
    }

    fn begin(&mut self, part: Flashblock) -> Result<FlashblockArrival, SequenceError> {
        let base = part.base.ok_or(SequenceError::NoBase)?;
        if let Some(current) = &self.current {
            let repeated = part.payload_id == current.id && base == current.base;
            // A block with a lower number than the one in progress has arrived late.
            if repeated || base.block_number < current.base.block_number {
                return Ok(FlashblockArrival::Ignored);
            }
        }
        let bytes = part.diff.weight();
        if bytes > MAX_BYTES {
            return Err(SequenceError::TooLarge(base.block_number.to()));
        }
        self.current = Some(FlashblockSequence {
            id: part.payload_id,
            base,
            parts: vec![part.diff],
            bytes,
        });
        Ok(FlashblockArrival::Begins)
    }
}
