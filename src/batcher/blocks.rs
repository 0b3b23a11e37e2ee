//! L2 blocks above the safe head: the hash and size of every block, and the bodies of a few.
//!
//! A body stays in memory from loading until a channel has encoded it. If the channel is
//! dropped, the body is loaded again and must have the same hash. A backlog therefore costs about 60
//! bytes per block.

use alloy_primitives::B256;
use starling_proto::{
    encoder::{block_da_size, block_raw_size},
    payload::{BlockId, Payload},
};
use std::{collections::VecDeque, sync::Arc};

/// Consecutive blocks above a base block.
#[derive(Debug, Default)]
pub struct HeldBlocks {
    /// The block below the first block in `blocks`.
    base: BlockId,
    blocks: VecDeque<HeldBlock>,
    /// Total bytes of the bodies in memory.
    body_bytes: usize,
}

/// A block in [`HeldBlocks`]. Its number follows from its position there.
#[derive(Debug)]
struct HeldBlock {
    hash: B256,
    sizes: BlockSizes,
    body: Option<Arc<Payload>>,
}

/// Sizes of blocks in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockSizes {
    /// Estimated size on L1 as part of a channel ([`block_da_size`]).
    pub da: u64,
    /// Size before compression ([`block_raw_size`]).
    pub raw: u64,
}

impl BlockSizes {
    /// Computes the sizes of one block.
    pub fn of(payload: &Payload) -> Self {
        Self {
            da: block_da_size(payload),
            raw: block_raw_size(payload),
        }
    }

    /// Adds the sizes of another block to these.
    pub fn add(&mut self, other: Self) {
        self.da += other.da;
        self.raw += other.raw;
    }
}

/// Number of blocks in a range, and their total sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockTotals {
    /// Number of blocks.
    pub blocks: u64,
    /// Sizes of these blocks, summed.
    pub sizes: BlockSizes,
}

/// Result of inserting a loaded block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// The block was appended as the newest one, or its missing body was restored.
    Held,
    /// The block was dropped: the held blocks have changed since it was requested.
    Unwanted,
    /// The block differs from the held block of its height, or its parent is not the newest held
    /// block.
    Reorg,
}

impl HeldBlocks {
    /// Drops all blocks. The next block to insert is a child of `base`.
    pub fn restart(&mut self, base: BlockId) {
        *self = Self {
            base,
            ..Self::default()
        };
    }

    /// Drops the blocks up to `number`, which becomes the base. Does nothing if no held block has
    /// it.
    pub fn prune(&mut self, number: u64) {
        let Some(hash) = self.hash(number) else {
            return;
        };
        let dropped = (number - self.base.number) as usize;
        for block in self.blocks.drain(..dropped) {
            self.body_bytes -= block.body.map_or(0, |body| body.weight());
        }
        self.base = BlockId { hash, number };
    }

    /// Whether no block is held above the base.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block below the first held block.
    pub fn base(&self) -> BlockId {
        self.base
    }

    /// The newest held block, or the base if there is none.
    pub fn newest(&self) -> BlockId {
        BlockId {
            hash: self
                .blocks
                .back()
                .map_or(self.base.hash, |block| block.hash),
            number: self.base.number + self.blocks.len() as u64,
        }
    }

    /// Hash of the block with this number, which may be the base.
    pub fn hash(&self, number: u64) -> Option<B256> {
        if number == self.base.number {
            return Some(self.base.hash);
        }
        self.get(number).map(|block| block.hash)
    }

    /// Body of the block with this number, if it is in memory.
    pub fn body(&self, number: u64) -> Option<&Payload> {
        self.get(number)?.body.as_deref()
    }

    /// Drops the body of the block with this number, but keeps its hash and sizes.
    pub fn drop_body(&mut self, number: u64) {
        let block = self.index(number).and_then(|at| self.blocks.get_mut(at));
        if let Some(body) = block.and_then(|block| block.body.take()) {
            self.body_bytes -= body.weight();
        }
    }

    /// Drops all bodies, but keeps the blocks' hashes and sizes.
    pub fn drop_bodies(&mut self) {
        for block in &mut self.blocks {
            block.body = None;
        }
        self.body_bytes = 0;
    }

    /// Total bytes of the bodies in memory.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Inserts a loaded block: either a child of the newest block, or a held block without a body.
    pub fn insert(&mut self, payload: Arc<Payload>) -> Insertion {
        let (id, newest) = (payload.id(), self.newest());
        if let Some(held) = self.hash(id.number) {
            if held != id.hash {
                return Insertion::Reorg;
            }
            let weight = payload.weight();
            let block = self.index(id.number).and_then(|at| self.blocks.get_mut(at));
            let Some(block) = block.filter(|block| block.body.is_none()) else {
                return Insertion::Unwanted;
            };
            block.body = Some(payload);
            self.body_bytes += weight;
            return Insertion::Held;
        }
        if id.number != newest.number + 1 {
            return Insertion::Unwanted;
        }
        if payload.parent_hash() != newest.hash {
            return Insertion::Reorg;
        }
        self.body_bytes += payload.weight();
        self.blocks.push_back(HeldBlock {
            hash: id.hash,
            sizes: BlockSizes::of(&payload),
            body: Some(payload),
        });
        Insertion::Held
    }

    /// Number of the first block from `from` on whose body is not in memory.
    pub fn first_missing(&self, from: u64) -> u64 {
        let held = from..=self.newest().number;
        let mut missing = held.filter(|number| self.body(*number).is_none());
        missing.next().unwrap_or(from.max(self.newest().number + 1))
    }

    /// Sizes of the held block with this number; zero if there is none.
    pub fn sizes(&self, number: u64) -> BlockSizes {
        self.get(number)
            .map(|block| block.sizes)
            .unwrap_or_default()
    }

    /// Number and total sizes of the held blocks from `from` on.
    pub fn totals(&self, from: u64) -> BlockTotals {
        let skipped = from.saturating_sub(self.base.number + 1) as usize;
        let mut totals = BlockTotals::default();
        for block in self.blocks.iter().skip(skipped) {
            totals.blocks += 1;
            totals.sizes.add(block.sizes);
        }
        totals
    }

    fn index(&self, number: u64) -> Option<usize> {
        let distance = number.checked_sub(self.base.number)?;
        usize::try_from(distance).ok()?.checked_sub(1)
    }

    fn get(&self, number: u64) -> Option<&HeldBlock> {
        self.blocks.get(self.index(number)?)
    }
}

#[cfg(test)]
mod tests;
