//! The rows of the executed blocks of a branch, by key: what a read costs does not grow with the blocks above the store.
//!
//! One index serves all views of its branch. Each sees what its own blocks wrote and nothing newer, so the index may grow at its tip
//! while older views are read; a block beside the tip begins an index of its own. The executor extends it block by block and lets
//! blocks go when they are stored. A view that still stands below them is told, and goes through its blocks one by one.

use crate::chain::view::ExecutedBlock;
use alloy_primitives::{Bytes, map::HashMap};
use parking_lot::RwLock;
use starling_proto::payload::BlockId;
use std::{collections::VecDeque, sync::Arc};

#[derive(Default)]
pub(super) struct Rows(RwLock<Inner>);

#[derive(Default)]
struct Inner {
    /// The number of the block below the first of `blocks`.
    base: u64,
    /// Oldest first.
    blocks: VecDeque<Arc<ExecutedBlock>>,
    /// What these blocks wrote: each value with the number of its block, oldest first.
    versions: HashMap<Bytes, Versions>,
}

/// Never empty. Most rows are written once.
struct Versions {
    newest: (u64, Option<Bytes>),
    older: VecDeque<(u64, Option<Bytes>)>,
}

/// What the blocks of a view say about a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The last that wrote it made it so.
    Written(Option<Bytes>),
    /// None of them wrote it.
    Unchanged,
    /// Some of them are no longer here.
    Unknown,
}

impl Rows {
    /// The index of the branch that leads over `blocks`, the first of which stands on `base`: one of `near` if it is of this branch.
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
        let mut inner = Inner {
            base,
            ..Inner::default()
        };
        blocks.iter().for_each(|block| inner.push(block));
        Arc::new(Self(RwLock::new(inner)))
    }

    /// The row after block `tip`, for a view whose first block stands on `base`.
    pub fn get(&self, key: &[u8], base: u64, tip: u64) -> Found {
        let inner = self.0.read();
        if inner.base > base {
            return Found::Unknown;
        }
        // What was written at or below the view's base is in its snapshot, and what is there may be newer.
        let visible = |(number, value): &(u64, Option<Bytes>)| {
            (base + 1..=tip).contains(number).then(|| value.clone())
        };
        let versions = inner.versions.get(key);
        let value = versions.and_then(|row| {
            visible(&row.newest).or_else(|| row.older.iter().rev().find_map(visible))
        });
        value.map_or(Found::Unchanged, Found::Written)
    }

    /// Lets go of the blocks up to this one, which are stored.
    pub fn forget(&self, stored: u64) {
        // Block by block, so that readers do not wait for long.
        while self.0.write().pop(stored) {}
    }
}

impl Inner {
    /// Whether all of these blocks are here, if need be after they were put on the tip.
    fn cover(&mut self, base: u64, blocks: &[Arc<ExecutedBlock>]) -> bool {
        if self.base > base {
            return false;
        }
        let Some(last) = blocks.last().map(|block| block.payload.id()) else {
            return true;
        };
        let place = |number: u64| {
            number
                .checked_sub(self.base + 1)
                .map(|place| place as usize)
        };
        if let Some(here) = place(last.number).and_then(|place| self.blocks.get(place)) {
            return here.payload.id() == last;
        }
        let Some(tip) = self.blocks.back().map(|block| block.payload.id()) else {
            // Nothing is here: it does not matter where that stood.
            self.base = base;
            blocks.iter().for_each(|block| self.push(block));
            return true;
        };
        // The tip among the blocks, or right below them.
        let above = match tip.number.checked_sub(base) {
            Some(0) => parent(&blocks[0]) == Some(tip),
            Some(place) => blocks
                .get(place as usize - 1)
                .is_some_and(|block| block.payload.id() == tip),
            None => false,
        };
        if above {
            blocks[(tip.number - base) as usize..]
                .iter()
                .for_each(|block| self.push(block));
        }
        above
    }

    fn push(&mut self, block: &Arc<ExecutedBlock>) {
        let number = block.payload.number();
        for (key, row) in &block.overlay.rows {
            let version = (number, row.after.clone());
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

    /// Lets go of the oldest block, if it is stored.
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
                // The root of the trie has as many versions as there are blocks: only the oldest is looked at.
                if row
                    .older
                    .front()
                    .is_some_and(|(number, _)| *number <= self.base)
                {
                    row.older.pop_front();
                } else if row.newest.0 <= self.base {
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
    use crate::chain::view::{Overlay, RowChange};
    use alloy_consensus::Header;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use starling_proto::payload::Payload;

    const KEYS: u8 = 12;

    /// A view, as far as rows go.
    struct Branch {
        base: u64,
        blocks: Vec<Arc<ExecutedBlock>>,
        rows: Arc<Rows>,
    }

    impl Branch {
        fn tip(&self) -> u64 {
            self.base + self.blocks.len() as u64
        }

        /// What the blocks say, one by one.
        fn plain(&self, key: &[u8], tip: u64) -> Found {
            let blocks = self.blocks[..(tip - self.base) as usize].iter().rev();
            blocks
                .filter_map(|block| block.overlay.rows.get(key))
                .next()
                .map_or(Found::Unchanged, |row| Found::Written(row.after.clone()))
        }

        /// Whether the index could tell.
        fn check(&self) -> bool {
            let mut told = true;
            for tip in self.base..=self.tip() {
                for key in 0..KEYS {
                    match self.rows.get(&[key], self.base, tip) {
                        Found::Unknown => told = false,
                        found => assert_eq!(
                            found,
                            self.plain(&[key], tip),
                            "key {key} at {tip} on {}",
                            self.base
                        ),
                    }
                }
            }
            told
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
        });
        Arc::new(ExecutedBlock::new(
            Arc::new(Payload::sealed(header, vec![])),
            vec![],
            Arc::default(),
            overlay,
        ))
    }

    /// Branches that fork, grow, are stored from below and go on at other indexes: what an index tells is what the blocks say.
    #[test]
    fn an_index_tells_what_the_blocks_say() {
        let mut random = StdRng::seed_from_u64(11);
        let (mut shared, mut untold) = (0, 0);
        for _ in 0..60 {
            let mut branches = vec![Branch {
                base: 7,
                blocks: vec![],
                rows: Arc::default(),
            }];
            for _ in 0..40 {
                let from = &branches[random.random_range(0..branches.len())];
                // A fork at some of its blocks, on a store that may have some of them.
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
                let rows = Rows::of(
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
                    branch.rows.forget(branch.base);
                }
                untold += branches.iter().filter(|branch| !branch.check()).count();
            }
        }
        assert!(
            shared > 500 && untold > 500,
            "{shared} shared, {untold} untold"
        );
    }

    #[test]
    fn what_is_forgotten_is_gone() {
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
        let rows = Rows::of([], 0, &blocks);
        rows.forget(20);
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
        rows.forget(50);
        assert!(rows.0.read().versions.is_empty() && rows.0.read().blocks.is_empty());
    }
}
