//! Row index: the rows of the executed blocks of a branch, by key. With it, the cost of a read does
//! not grow with the number of blocks above the store.
//!
//! All views of a branch share one index. Each view sees only the rows of its own blocks, so the
//! index may grow at its tip while older views are read. A block that does not build on the tip
//! starts a new index. The executor extends the index block by block, and releases blocks when they
//! are stored. A lookup for an older view whose blocks were released returns [`Found::Unknown`],
//! and the view then scans its blocks one by one.

use crate::chain::rows::ExecutedBlock;
use alloy_primitives::{Bytes, map::HashMap};
use parking_lot::RwLock;
use starling_proto::payload::BlockId;
use std::{collections::VecDeque, sync::Arc};

#[derive(Default)]
pub(super) struct RowIndex(RwLock<IndexInner>);

#[derive(Default)]
struct IndexInner {
    /// The number of the block below the first of `blocks`.
    base: u64,
    /// The indexed blocks, oldest first.
    blocks: VecDeque<Arc<ExecutedBlock>>,
    /// The versions of each row that these blocks wrote, by key.
    versions: HashMap<Bytes, Versions>,
}

/// Versions of a row, at least one. Most rows are written once.
struct Versions {
    newest: Version,
    /// All versions before the newest, oldest first.
    older: VecDeque<Version>,
}

/// The value of a row after one block; `None` if the block removed the row.
struct Version {
    number: u64,
    value: Option<Bytes>,
}

/// Result of looking a row up in the blocks of a view.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The value that the last write set; `None` if the last write removed the row.
    Written(Option<Bytes>),
    /// No block wrote the row.
    Unchanged,
    /// The result cannot be known, since the index has released some of the blocks.
    Unknown,
}

impl RowIndex {
    /// The index of the branch `blocks`, the first of which builds on `base`: an index among `near`
    /// that covers the branch or can be extended to it, otherwise a new one.
    pub fn of<'a>(
        near: impl IntoIterator<Item = &'a Arc<Self>>,
        base: u64,
        blocks: &[Arc<ExecutedBlock>],
    ) -> Arc<Self> {
        if let Some(near) = near
            .into_iter()
            .find(|near| near.0.write().cover(base, blocks))
        {
            return near.clone();
        }
        let mut inner = IndexInner {
            base,
            ..IndexInner::default()
        };
        blocks.iter().for_each(|block| inner.push(block));
        Arc::new(Self(RwLock::new(inner)))
    }

    /// An index that covers no block, for views that search their blocks one by one.
    pub fn none() -> Arc<Self> {
        Arc::new(Self(RwLock::new(IndexInner {
            base: u64::MAX,
            ..IndexInner::default()
        })))
    }

    /// The row after block `tip`, for a view whose first block builds on `base`.
    pub fn get(&self, key: &[u8], base: u64, tip: u64) -> Found {
        let inner = self.0.read();
        if inner.base > base {
            return Found::Unknown;
        }
        // Ignore versions at or below `base`: the view reads the state at `base` from elsewhere, and
        // that state already includes them.
        let visible = |version: &Version| {
            (base + 1..=tip)
                .contains(&version.number)
                .then(|| version.value.clone())
        };
        let versions = inner.versions.get(key);
        let value = versions.and_then(|row| {
            visible(&row.newest).or_else(|| row.older.iter().rev().find_map(visible))
        });
        value.map_or(Found::Unchanged, Found::Written)
    }

    /// Releases the blocks up to number `stored`, which are in the store.
    pub fn release(&self, stored: u64) {
        // Lock once per block, so that readers wait only briefly.
        while self.0.write().pop(stored) {}
    }
}

impl IndexInner {
    /// Whether the index covers all of these blocks, after extending it at its tip if possible.
    fn cover(&mut self, base: u64, blocks: &[Arc<ExecutedBlock>]) -> bool {
        if self.base > base {
            return false;
        }
        let Some(last) = blocks.last().map(|block| block.payload.id()) else {
            return true;
        };
        let at_height = |number: u64| {
            let index = number.checked_sub(self.base + 1)?;
            self.blocks.get(index as usize)
        };
        if let Some(indexed) = at_height(last.number) {
            return indexed.payload.id() == last;
        }
        let Some(tip) = self.blocks.back().map(|block| block.payload.id()) else {
            // An empty index can start at any base.
            self.base = base;
            blocks.iter().for_each(|block| self.push(block));
            return true;
        };
        // The index can be extended if its tip is one of `blocks`, or the parent of the first.
        let extends = match tip.number.checked_sub(base) {
            Some(0) => parent(&blocks[0]) == Some(tip),
            Some(covered) => blocks
                .get(covered as usize - 1)
                .is_some_and(|block| block.payload.id() == tip),
            None => false,
        };
        if extends {
            blocks[(tip.number - base) as usize..]
                .iter()
                .for_each(|block| self.push(block));
        }
        extends
    }

    fn push(&mut self, block: &Arc<ExecutedBlock>) {
        let number = block.payload.number();
        for (key, row) in &block.overlay.rows {
            let version = Version {
                number,
                value: row.after.clone(),
            };
            match self.versions.get_mut(key) {
                Some(row) => row
                    .older
                    .push_back(std::mem::replace(&mut row.newest, version)),
                None => drop(self.versions.insert(
                    key.clone(),
                    Versions {
                        newest: version,
                        older: VecDeque::new(),
                    },
                )),
            }
        }
        self.blocks.push_back(block.clone());
    }

    /// Releases the oldest block if its number is at most `stored`; otherwise returns false.
    fn pop(&mut self, stored: u64) -> bool {
        if self
            .blocks
            .front()
            .is_none_or(|block| block.payload.number() > stored)
        {
            return false;
        }
        let Some(block) = self.blocks.pop_front() else {
            return false;
        };
        self.base = block.payload.number();
        for key in block.overlay.rows.keys() {
            if let Some(row) = self.versions.get_mut(key) {
                // A block writes a row only once, so at most the row's oldest version is released.
                // Checking all versions would be slow for the trie's root, which has a version per
                // block.
                if row
                    .older
                    .front()
                    .is_some_and(|version| version.number <= self.base)
                {
                    row.older.pop_front();
                } else if row.newest.number <= self.base {
                    self.versions.remove(key);
                }
            }
        }
        true
    }
}

fn parent(block: &ExecutedBlock) -> Option<BlockId> {
    Some(BlockId {
        number: block.payload.number().checked_sub(1)?,
        hash: block.payload.parent_hash(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::rows::{Overlay, RowChange};
    use alloy_consensus::Header;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use starling_proto::payload::Payload;

    const KEYS: u8 = 12;

    /// A view's blocks and their index.
    struct Branch {
        base: u64,
        blocks: Vec<Arc<ExecutedBlock>>,
        rows: Arc<RowIndex>,
    }

    impl Branch {
        fn tip(&self) -> u64 {
            self.base + self.blocks.len() as u64
        }

        /// The lookup without the index, block by block.
        fn plain(&self, key: &[u8], tip: u64) -> Found {
            let blocks = self.blocks[..(tip - self.base) as usize].iter().rev();
            blocks
                .filter_map(|block| block.overlay.rows.get(key))
                .next()
                .map_or(Found::Unchanged, |row| Found::Written(row.after.clone()))
        }

        /// Compares the index with the blocks; returns false if any lookup returned `Unknown`.
        fn check(&self) -> bool {
            let mut answered = true;
            for tip in self.base..=self.tip() {
                for key in 0..KEYS {
                    match self.rows.get(&[key], self.base, tip) {
                        Found::Unknown => answered = false,
                        found => assert_eq!(
                            found,
                            self.plain(&[key], tip),
                            "key {key} at {tip} on {}",
                            self.base
                        ),
                    }
                }
            }
            answered
        }
    }

    fn block(
        random: &mut StdRng,
        number: u64,
        parent_hash: alloy_primitives::B256,
    ) -> Arc<ExecutedBlock> {
        let header = Header {
            number,
            parent_hash,
            gas_used: random.random(),
            ..Default::default()
        };
        let value = |random: &mut StdRng| {
            random
                .random_bool(0.8)
                .then(|| Bytes::from(vec![random.random(); 4]))
        };
        let row = |random: &mut StdRng| {
            (
                Bytes::from(vec![random.random_range(0..KEYS)]),
                RowChange {
                    before: None,
                    after: value(random),
                },
            )
        };
        let rows = (0..random.random_range(0..5))
            .map(|_| row(random))
            .collect();
        let overlay = Arc::new(Overlay {
            rows,
            codes: vec![],
            names: vec![],
        });
        Arc::new(ExecutedBlock::new(
            Arc::new(Payload::sealed(header, vec![])),
            vec![],
            Arc::default(),
            overlay,
        ))
    }

    /// Branches fork, grow, are stored from below, and share indexes or start new ones.
    #[test]
    fn an_index_agrees_with_the_blocks() {
        let mut random = StdRng::seed_from_u64(11);
        let (mut shared, mut unknown) = (0, 0);
        for _ in 0..60 {
            let mut branches = vec![Branch {
                base: 7,
                blocks: vec![],
                rows: Arc::default(),
            }];
            for _ in 0..40 {
                let from = &branches[random.random_range(0..branches.len())];
                // Fork at a block of `from`, above a store that may already have some of its
                // blocks.
                let kept = from.blocks.len() - random.random_range(0..4).min(from.blocks.len());
                let stored = random.random_range(0..3).min(kept);
                let (base, mut blocks) = (
                    from.base + stored as u64,
                    from.blocks[stored..kept].to_vec(),
                );
                for _ in 0..random.random_range(0..4) {
                    let parent = blocks
                        .last()
                        .or(from.blocks[..stored].last())
                        .map_or_else(Default::default, |b| b.payload.hash);
                    blocks.push(block(&mut random, base + 1 + blocks.len() as u64, parent));
                }
                let rows = RowIndex::of(
                    branches.iter().rev().take(3).map(|branch| &branch.rows),
                    base,
                    &blocks,
                );
                shared += branches
                    .iter()
                    .filter(|branch| Arc::ptr_eq(&branch.rows, &rows))
                    .count()
                    .min(1);
                branches.push(Branch { base, blocks, rows });
                if random.random_bool(0.2) {
                    let branch = &branches[random.random_range(0..branches.len())];
                    branch.rows.release(branch.base);
                }
                unknown += branches.iter().filter(|branch| !branch.check()).count();
            }
        }
        assert!(
            shared > 500 && unknown > 500,
            "{shared} shared, {unknown} unknown"
        );
    }

    #[test]
    fn released_blocks_are_gone() {
        let mut random = StdRng::seed_from_u64(12);
        let mut blocks: Vec<Arc<ExecutedBlock>> = vec![];
        for number in 1..=50 {
            blocks.push(block(
                &mut random,
                number,
                blocks
                    .last()
                    .map_or_else(Default::default, |block| block.payload.hash),
            ));
        }
        let rows = RowIndex::of([], 0, &blocks);
        rows.release(20);
        let of_the_rest: usize = blocks[20..]
            .iter()
            .map(|block| block.overlay.rows.len())
            .sum();
        let inner = rows.0.read();
        assert_eq!(
            inner
                .versions
                .values()
                .map(|row| 1 + row.older.len())
                .sum::<usize>(),
            of_the_rest
        );
        assert_eq!((inner.base, inner.blocks.len()), (20, 30));
        drop(inner);
        rows.release(50);
        assert!(rows.0.read().versions.is_empty() && rows.0.read().blocks.is_empty());
    }
}
