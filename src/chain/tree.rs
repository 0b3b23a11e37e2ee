//! The tree of executed blocks above (and just below) the store's head: which blocks are known, how
//! they link, which branch a head is on.
//!
//! Pure: no store, no clock. The executor owns the one instance. Every block in it leads down to
//! the store: [`Tree::prune`] drops blocks too far behind the stored head together with their
//! descendants on side branches. Bounded in height by [`RETAINED`], in width by [`MAX_SIBLINGS`], in
//! bytes by [`RETAINED_WEIGHT`] below the stored head and by the executor's budget above it.

use crate::chain::rows::ExecutedBlock;
use alloy_primitives::B256;
use lru::LruCache;
use starling_proto::payload::BlockId;
use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroUsize,
    sync::Arc,
};

/// Number of blocks behind the stored head that stay in memory, so that a side branch can become
/// canonical again without being fetched.
pub const RETAINED: u64 = 128;
/// Maximum bytes of blocks at and behind the stored head that stay in memory.
pub const RETAINED_WEIGHT: usize = 8_000_000;
/// Maximum number of blocks kept at one height. Gossip accepts six signed blocks of one height. More
/// can only come from a rollup node, in this process or over the Engine API.
pub const MAX_SIBLINGS: usize = 16;
/// Number of hashes remembered as invalid, so that an invalid block and its descendants are refused
/// without work.
const INVALID: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");

/// Executed blocks by hash and height, and hashes of invalid ones.
pub struct Tree {
    blocks: HashMap<B256, Arc<ExecutedBlock>>,
    heights: BTreeMap<u64, Height>,
    /// Bytes of all blocks together.
    weight: usize,
    invalid: LruCache<B256, String>,
}

#[derive(Default)]
struct Height {
    blocks: Vec<B256>,
    weight: usize,
}

/// The blocks of the tree from a stored or unknown block up to a tip.
pub struct Branch {
    /// The parent of the first of `blocks`, or the tip if `blocks` is empty. The block is stored,
    /// or not in the tree.
    pub base: BlockId,
    /// Blocks of the branch, oldest first. Empty if the tip is not in the tree.
    pub blocks: Vec<Arc<ExecutedBlock>>,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            blocks: HashMap::new(),
            heights: BTreeMap::new(),
            weight: 0,
            invalid: LruCache::new(INVALID),
        }
    }
}

impl Tree {
    pub fn get(&self, hash: &B256) -> Option<&Arc<ExecutedBlock>> {
        self.blocks.get(hash)
    }

    /// Whether one more block can be kept at this height.
    pub fn has_capacity(&self, number: u64) -> bool {
        self.heights
            .get(&number)
            .is_none_or(|height| height.blocks.len() < MAX_SIBLINGS)
    }

    /// Adds an executed block, whose parent is in the tree or in the store. Returns false if this
    /// height is full.
    pub fn insert(&mut self, block: Arc<ExecutedBlock>) -> bool {
        let (number, hash) = (block.payload.number(), block.payload.hash);
        if self.blocks.contains_key(&hash) {
            return true;
        }
        if !self.has_capacity(number) {
            return false;
        }
        let height = self.heights.entry(number).or_default();
        height.blocks.push(hash);
        let weight = block.weight();
        height.weight += weight;
        self.weight += weight;
        self.blocks.insert(hash, block);
        true
    }

    /// Bytes of all blocks above this height.
    pub fn weight_above(&self, number: u64) -> usize {
        // Sum the heights at or below `number` and subtract: usually there are about `RETAINED` of
        // them, but many above may exist.
        let below: usize = self
            .heights
            .range(..=number)
            .map(|(_, height)| height.weight)
            .sum();
        self.weight.saturating_sub(below)
    }

    /// Collects the blocks from `tip` down to the first block that is stored or that the tree does
    /// not have.
    pub fn branch<E>(
        &self,
        tip: BlockId,
        is_stored: impl Fn(&BlockId) -> Result<bool, E>,
    ) -> Result<Branch, E> {
        let mut blocks = Vec::new();
        let mut at = tip;
        while !is_stored(&at)? {
            let Some(block) = self.blocks.get(&at.hash) else {
                break;
            };
            at = parent_of(block);
            blocks.push(block.clone());
        }
        blocks.reverse();
        Ok(Branch { base: at, blocks })
    }

    /// Remembers that a block is invalid.
    pub fn mark_invalid(&mut self, hash: B256, reason: String) {
        self.invalid.put(hash, reason);
    }

    /// The reason to refuse this block if it or its parent was refused before, otherwise `None`. A
    /// child of an invalid block is remembered as invalid too.
    pub fn known_invalid(&mut self, hash: B256, parent: B256) -> Option<String> {
        if let Some(reason) = self.invalid.get(&hash) {
            return Some(reason.clone());
        }
        self.invalid.get(&parent)?;
        let reason = "links to previously rejected block".to_owned();
        self.invalid.put(hash, reason.clone());
        Some(reason)
    }

    /// Drops blocks more than [`RETAINED`] blocks or [`RETAINED_WEIGHT`] bytes behind the stored
    /// block `base`. Also drops blocks that afterwards no longer lead down to the store. Returns
    /// the hashes of the dropped blocks.
    pub fn prune<E>(
        &mut self,
        base: u64,
        is_stored: impl Fn(&BlockId) -> Result<bool, E>,
    ) -> Result<Vec<B256>, E> {
        let mut weight = 0;
        let lowest = base.saturating_sub(RETAINED);
        let too_much = self.heights.range(lowest..=base).rev().find(|(_, height)| {
            weight += height.weight;
            weight > RETAINED_WEIGHT
        });
        let floor = too_much.map_or(lowest, |(number, _)| number.saturating_add(1));
        let kept = self.heights.split_off(&floor);
        let old = std::mem::replace(&mut self.heights, kept).into_values();
        let mut gone: Vec<B256> = Vec::new();
        for height in old {
            self.weight = self.weight.saturating_sub(height.weight);
            gone.extend(height.blocks);
        }
        for hash in &gone {
            self.blocks.remove(hash);
        }
        let cut_off = |tree: &Self, block: &ExecutedBlock| -> Result<bool, E> {
            let parent = parent_of(block);
            Ok(!tree.blocks.contains_key(&parent.hash) && !is_stored(&parent)?)
        };
        // Parents first, so that the descendants of a dropped block are dropped too.
        let kept: Vec<B256> = self
            .heights
            .values()
            .flat_map(|height| height.blocks.iter().copied())
            .collect();
        for hash in kept {
            if self
                .blocks
                .get(&hash)
                .map_or(Ok(false), |block| cut_off(self, block))?
            {
                self.remove(hash);
                gone.push(hash);
            }
        }
        Ok(gone)
    }

    /// Drops all blocks above height `base` except those on the branch that ends in `tip`. Returns
    /// the hashes of the dropped blocks.
    pub fn keep_branch(&mut self, base: u64, tip: B256) -> Vec<B256> {
        let mut branch = Vec::new();
        let mut at = tip;
        while let Some(block) = self.blocks.get(&at) {
            branch.push(at);
            at = block.payload.parent_hash();
        }
        let above = self
            .heights
            .range(base.saturating_add(1)..)
            .flat_map(|(_, height)| height.blocks.iter().copied());
        let gone: Vec<B256> = above.filter(|hash| !branch.contains(hash)).collect();
        for hash in &gone {
            self.remove(*hash);
        }
        gone
    }

    /// If height `number` is full, drops the oldest block there that is not an ancestor of `tip`,
    /// and its descendants. Returns the hashes of the dropped blocks.
    pub fn drop_oldest_sibling(&mut self, number: u64, tip: B256) -> Vec<B256> {
        if self.has_capacity(number) {
            return vec![];
        }
        let mut kept = tip;
        while let Some(block) = self
            .blocks
            .get(&kept)
            .filter(|block| block.payload.number() > number)
        {
            kept = block.payload.parent_hash();
        }
        let oldest = self
            .heights
            .get(&number)
            .and_then(|height| height.blocks.iter().find(|hash| **hash != kept));
        let mut gone = Vec::from_iter(oldest.copied());
        let above = self
            .heights
            .range(number.saturating_add(1)..)
            .flat_map(|(_, height)| height.blocks.iter().copied());
        for hash in above {
            if self
                .blocks
                .get(&hash)
                .is_some_and(|block| gone.contains(&block.payload.parent_hash()))
            {
                gone.push(hash);
            }
        }
        for hash in &gone {
            self.remove(*hash);
        }
        gone
    }

    fn remove(&mut self, hash: B256) {
        let Some(block) = self.blocks.remove(&hash) else {
            return;
        };
        let number = block.payload.number();
        if let Some(height) = self.heights.get_mut(&number) {
            height.blocks.retain(|other| *other != hash);
            let weight = block.weight();
            height.weight = height.weight.saturating_sub(weight);
            self.weight = self.weight.saturating_sub(weight);
            if height.blocks.is_empty() {
                self.heights.remove(&number);
            }
        }
    }
}

fn parent_of(block: &ExecutedBlock) -> BlockId {
    BlockId {
        number: block.payload.number().saturating_sub(1),
        hash: block.payload.parent_hash(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::rows::Overlay;
    use alloy_consensus::Header;
    use starling_proto::payload::Payload;

    fn block(number: u64, parent: B256, salt: u64) -> Arc<ExecutedBlock> {
        let header = Header {
            number,
            parent_hash: parent,
            gas_limit: salt,
            ..Default::default()
        };
        let payload = Arc::new(Payload::sealed(header, vec![]));
        Arc::new(ExecutedBlock::new(
            payload,
            vec![],
            Arc::new(vec![]),
            Arc::new(Overlay::default()),
        ))
    }

    #[test]
    fn a_branch_ends_at_the_store() {
        let mut tree = Tree::default();
        let a = block(1, B256::ZERO, 0);
        let b = block(2, a.payload.hash, 0);
        let c = block(2, a.payload.hash, 1);
        for x in [&a, &b, &c] {
            assert!(tree.insert(x.clone()));
        }
        let branch = tree
            .branch(c.payload.id(), |id| Ok::<_, ()>(id.hash == a.payload.hash))
            .unwrap();
        assert_eq!(branch.base, a.payload.id());
        assert_eq!(branch.blocks.len(), 1);
        assert_eq!(branch.blocks[0].payload.hash, c.payload.hash);
        let whole = tree.branch(b.payload.id(), |_| Ok::<_, ()>(false)).unwrap();
        assert_eq!(
            (whole.base.hash, whole.base.number, whole.blocks.len()),
            (B256::ZERO, 0, 2)
        );
    }

    #[test]
    fn descendants_of_an_invalid_block_are_refused() {
        let mut tree = Tree::default();
        let [bad, child, grandchild] = [1u8, 2, 3].map(B256::repeat_byte);
        tree.mark_invalid(bad, "wrong root".into());
        assert_eq!(
            tree.known_invalid(bad, B256::ZERO).as_deref(),
            Some("wrong root")
        );
        assert!(tree.known_invalid(child, bad).is_some());
        assert!(tree.known_invalid(grandchild, child).is_some());
        assert!(
            tree.known_invalid(B256::repeat_byte(9), B256::repeat_byte(8))
                .is_none()
        );
    }

    #[test]
    fn a_height_is_bounded() {
        let mut tree = Tree::default();
        for salt in 0..MAX_SIBLINGS as u64 {
            assert!(tree.has_capacity(5));
            assert!(tree.insert(block(5, B256::ZERO, salt)));
        }
        assert!(!tree.has_capacity(5) && tree.has_capacity(6));
        assert!(!tree.insert(block(5, B256::ZERO, 99)));
        assert!(
            tree.insert(block(5, B256::ZERO, 3)),
            "it is in the tree already"
        );
    }

    /// A branch of `count` blocks on `parent`, oldest first.
    fn chain(parent: B256, from: u64, count: u64, salt: u64) -> Vec<Arc<ExecutedBlock>> {
        let mut blocks: Vec<Arc<ExecutedBlock>> = vec![];
        for number in from..from + count {
            let parent = blocks.last().map_or(parent, |block| block.payload.hash);
            blocks.push(block(number, parent, salt));
        }
        blocks
    }

    #[test]
    fn old_blocks_are_dropped_with_their_descendants() {
        let mut tree = Tree::default();
        let canonical = chain(B256::ZERO, 1, RETAINED + 10, 0);
        // Branches that fork off below the floor, at the floor, and above it.
        let [cut, edge, kept] =
            [3, 4, 5].map(|at: u64| chain(canonical[at as usize].payload.hash, at + 2, 20, at));
        for block in [&canonical, &cut, &edge, &kept].into_iter().flatten() {
            assert!(tree.insert(block.clone()));
        }
        let is_stored =
            |id: &BlockId| Ok::<_, ()>(canonical.iter().any(|block| block.payload.id() == *id));
        let floor = 6;
        let gone = tree.prune(RETAINED + floor, is_stored).unwrap();
        for block in &cut {
            assert!(
                gone.contains(&block.payload.hash),
                "block {}",
                block.payload.number()
            );
        }
        for block in edge
            .iter()
            .chain(&kept)
            .chain(&canonical[floor as usize - 1..])
        {
            assert!(
                tree.get(&block.payload.hash).is_some(),
                "block {}",
                block.payload.number()
            );
        }
        assert_eq!(gone.len(), cut.len() + floor as usize - 1);
        assert_eq!(
            tree.blocks.len(),
            tree.heights
                .values()
                .map(|height| height.blocks.len())
                .sum::<usize>()
        );
        assert_eq!(
            tree.weight_above(0),
            tree.blocks
                .values()
                .map(|block| block.weight())
                .sum::<usize>()
        );
    }

    #[test]
    fn weight_is_bounded_behind_the_stored_head() {
        let mut tree = Tree::default();
        let heavy = |number, parent| {
            let header = Header {
                number,
                parent_hash: parent,
                ..Default::default()
            };
            let payload = Arc::new(Payload::sealed(
                header,
                vec![vec![0; RETAINED_WEIGHT / 3].into()],
            ));
            Arc::new(ExecutedBlock::new(
                payload,
                vec![],
                Arc::new(vec![]),
                Arc::new(Overlay::default()),
            ))
        };
        let mut parent = B256::ZERO;
        for number in 1..=6 {
            let block = heavy(number, parent);
            parent = block.payload.hash;
            tree.insert(block);
        }
        assert_eq!(tree.prune(5, |_| Ok::<_, ()>(true)).unwrap().len(), 3);
        assert_eq!(tree.heights.keys().copied().collect::<Vec<_>>(), [4, 5, 6]);
    }

    #[test]
    fn a_full_height_drops_the_oldest_sibling_and_keeps_the_head() {
        let mut tree = Tree::default();
        let ours = chain(B256::ZERO, 1, 3, 0);
        let oldest = chain(B256::ZERO, 1, 3, 1);
        for block in ours.iter().chain(&oldest) {
            tree.insert(block.clone());
        }
        let tip = ours[2].payload.hash;
        assert!(
            tree.drop_oldest_sibling(1, tip).is_empty(),
            "the height is not full"
        );
        for salt in 2..MAX_SIBLINGS as u64 {
            tree.insert(block(1, B256::ZERO, salt));
        }
        assert_eq!(
            tree.drop_oldest_sibling(1, tip),
            oldest
                .iter()
                .map(|block| block.payload.hash)
                .collect::<Vec<_>>()
        );
        assert!(
            tree.has_capacity(1)
                && ours
                    .iter()
                    .all(|block| tree.get(&block.payload.hash).is_some())
        );
        assert_eq!(
            tree.blocks.len(),
            tree.heights
                .values()
                .map(|height| height.blocks.len())
                .sum::<usize>()
        );
    }

    #[test]
    fn blocks_beside_the_head_branch_can_be_dropped() {
        let mut tree = Tree::default();
        let (ours, theirs) = (chain(B256::ZERO, 1, 5, 0), chain(B256::ZERO, 1, 9, 1));
        for block in ours.iter().chain(&theirs) {
            tree.insert(block.clone());
        }
        assert_eq!(tree.keep_branch(2, ours[4].payload.hash).len(), 7);
        assert!(
            ours.iter()
                .chain(&theirs[..2])
                .all(|block| tree.get(&block.payload.hash).is_some())
        );
        assert_eq!(tree.blocks.len(), 7);
    }
}
