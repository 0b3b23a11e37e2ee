//! Numbers and hashes of the newest L1 blocks that derivation has read since its last reset. With
//! these a reorg of L1 is detected even if the new branch is shorter. op-node detects such a reorg
//! only when L1 grows beyond the old height. Pure.

use crate::rollup::l1::L1Block;
use alloy_primitives::B256;
use starling_proto::payload::BlockId;
use std::collections::VecDeque;

/// Number of blocks remembered, 40 bytes each. If a reorg lowers L1's head below all of them, it is
/// detected when L1 grows back to their heights.
const MAX_BLOCKS: usize = 1_024;

/// Consecutive blocks of one L1 branch, the newest last.
#[derive(Debug, Default)]
pub struct DerivedL1 {
    blocks: VecDeque<BlockId>,
}

impl DerivedL1 {
    /// Adds the block that was read last. If it does not follow the newest one, all earlier blocks
    /// are dropped.
    pub fn push(&mut self, block: BlockId) {
        let newest = self.blocks.back();
        if newest.is_some_and(|newest| newest.number.checked_add(1) != Some(block.number)) {
            self.blocks.clear();
        }
        if self.blocks.len() == MAX_BLOCKS {
            self.blocks.pop_front();
        }
        self.blocks.push_back(block);
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        self.blocks.clear();
    }

    /// Whether `canonical`, a canonical block of L1, or its parent has the height of a remembered
    /// block and another hash. A block of the same branch at a lower height is no contradiction:
    /// the endpoint may lag.
    pub fn is_contradicted_by(&self, canonical: &L1Block) -> bool {
        let differs = |number, hash| self.hash_at(number).is_some_and(|known| known != hash);
        let parent = canonical.number.checked_sub(1);
        differs(canonical.number, canonical.hash)
            || parent.is_some_and(|parent| differs(parent, canonical.parent_hash))
    }

    fn hash_at(&self, number: u64) -> Option<B256> {
        let index = number.checked_sub(self.blocks.front()?.number)?;
        let block = self.blocks.get(usize::try_from(index).ok()?)?;
        Some(block.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64, branch: u8) -> B256 {
        let mut hash = B256::left_padding_from(&number.to_be_bytes());
        hash.0[0] = branch;
        hash
    }

    fn block(number: u64, branch: u8, parent_branch: u8) -> L1Block {
        L1Block {
            number,
            hash: hash(number, branch),
            parent_hash: hash(number.wrapping_sub(1), parent_branch),
            ..Default::default()
        }
    }

    fn read(numbers: std::ops::Range<u64>) -> DerivedL1 {
        let mut derived = DerivedL1::default();
        for number in numbers {
            derived.push(block(number, 1, 1).id());
        }
        derived
    }

    #[test]
    fn a_head_of_another_branch_contradicts_at_any_height_that_was_read() {
        let derived = read(10..20);
        for number in 10..=20 {
            assert!(derived.is_contradicted_by(&block(number, 2, 2)), "{number}");
        }
        assert!(derived.is_contradicted_by(&block(12, 2, 1)));
        assert!(!derived.is_contradicted_by(&block(20, 2, 1)), "a new block");
    }

    #[test]
    fn a_head_that_is_lower_or_elsewhere_contradicts_nothing() {
        let derived = read(10..20);
        for number in 10..=20 {
            assert!(
                !derived.is_contradicted_by(&block(number, 1, 1)),
                "{number}"
            );
        }
        for number in [0, 9, 21, u64::MAX] {
            assert!(
                !derived.is_contradicted_by(&block(number, 2, 2)),
                "{number}"
            );
        }
        assert!(!DerivedL1::default().is_contradicted_by(&block(0, 2, 2)));
    }

    #[test]
    fn the_oldest_blocks_are_forgotten_and_a_jump_begins_anew() {
        let most = MAX_BLOCKS as u64;
        let mut derived = read(0..most + 5);
        assert_eq!(derived.blocks.len(), MAX_BLOCKS);
        assert!(!derived.is_contradicted_by(&block(4, 2, 2)));
        assert!(derived.is_contradicted_by(&block(5, 2, 2)));
        derived.push(block(3, 1, 1).id());
        assert_eq!(derived.blocks.len(), 1);
        assert!(derived.is_contradicted_by(&block(3, 2, 2)));
        derived.clear();
        assert!(!derived.is_contradicted_by(&block(3, 2, 2)));
    }
}
