//! Blocks that the executor found invalid, kept for `debug_getBadBlocks` and `debug_traceBadBlock`.
//!
//! The executor adds the blocks. Peers can send any number of invalid blocks, so only the newest
//! are kept, within [`BLOCKS`] and [`BYTES`].

use alloy_primitives::B256;
use starling_proto::payload::Payload;
use std::{collections::VecDeque, sync::Arc};

/// Maximum number of blocks kept, as in geth.
const BLOCKS: usize = 10;
/// Maximum bytes of payloads kept.
const BYTES: usize = 8_000_000;

/// A block that was found invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlock {
    pub payload: Arc<Payload>,
    pub reason: String,
}

/// The newest invalid blocks.
#[derive(Debug, Default)]
pub struct RejectedBlocks {
    /// The blocks in the order in which they were rejected, oldest first.
    blocks: VecDeque<BadBlock>,
    bytes: usize,
}

impl RejectedBlocks {
    pub fn add(&mut self, block: BadBlock) {
        let known = |old: &BadBlock| old.payload.hash == block.payload.hash;
        if block.payload.weight() > BYTES || self.blocks.iter().any(known) {
            return;
        }
        self.bytes += block.payload.weight();
        self.blocks.push_back(block);
        while (self.blocks.len() > BLOCKS || self.bytes > BYTES)
            && let Some(oldest) = self.blocks.pop_front()
        {
            self.bytes -= oldest.payload.weight();
        }
    }

    pub fn get(&self, hash: &B256) -> Option<BadBlock> {
        let found = self.blocks.iter().find(|block| block.payload.hash == *hash);
        found.cloned()
    }

    /// All blocks kept, newest first.
    pub fn all(&self) -> Vec<BadBlock> {
        self.blocks.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::Header;

    fn block(number: u64, bytes: usize) -> BadBlock {
        let header = Header {
            number,
            ..Header::default()
        };
        BadBlock {
            payload: Arc::new(Payload::sealed(header, vec![vec![0; bytes].into()])),
            reason: "a test".into(),
        }
    }

    #[test]
    fn the_newest_are_kept_within_their_number_and_bytes() {
        let mut rejected = RejectedBlocks::default();
        for number in 0..BLOCKS as u64 + 5 {
            rejected.add(block(number, 10));
            rejected.add(block(number, 10));
        }
        let numbers = |rejected: &RejectedBlocks| -> Vec<u64> {
            let all = rejected.all().into_iter();
            all.map(|block| block.payload.number()).collect()
        };
        let newest: Vec<u64> = (5..BLOCKS as u64 + 5).rev().collect();
        assert_eq!(numbers(&rejected), newest);
        rejected.add(block(100, BYTES - 100_000));
        assert_eq!(numbers(&rejected)[0], 100);
        assert!(rejected.bytes <= BYTES);
        rejected.add(block(101, BYTES + 1));
        assert_eq!(numbers(&rejected)[0], 100);
        assert!(
            rejected
                .get(&block(100, BYTES - 100_000).payload.hash)
                .is_some()
        );
    }
}
