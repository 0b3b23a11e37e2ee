//! The chain of a node of a tree world: hashes and rules, no execution. It stands for the execution core:
//! blocks with known parents are accepted on any branch, and the highest branch that keeps the safe
//! block is canonical, the first of several.
//!
//! A crash with loss of power takes back everything since the last [`TreeChain::sync`].

use alloy_primitives::{B256, map::HashMap};
use starling_p2p::{ChainHeads, Settled};
use starling_proto::payload::{BlockId, Payload};
use std::sync::Arc;

/// The state of a node that survives a loss of power.
#[derive(Clone, Copy)]
struct Durable {
    blocks: usize,
    head: BlockId,
}

/// The blocks of one node.
#[derive(Clone)]
pub struct TreeChain {
    blocks: HashMap<B256, Arc<Payload>>,
    /// Hashes in the order of arrival.
    log: Vec<B256>,
    canonical: Vec<B256>,
    heads: ChainHeads,
    durable: Durable,
}

impl TreeChain {
    pub fn new(genesis: &Arc<Payload>) -> Self {
        let id = genesis.id();
        Self {
            blocks: HashMap::from_iter([(id.hash, genesis.clone())]),
            log: vec![id.hash],
            canonical: vec![id.hash],
            heads: ChainHeads { head: id, safe: id },
            durable: Durable {
                blocks: 1,
                head: id,
            },
        }
    }

    pub fn heads(&self) -> ChainHeads {
        self.heads
    }

    pub fn get(&self, hash: &B256) -> Option<&Arc<Payload>> {
        self.blocks.get(hash)
    }

    pub fn head_block(&self) -> &Arc<Payload> {
        &self.blocks[&self.heads.head.hash]
    }

    /// The canonical block of this number.
    pub fn at(&self, number: u64) -> Option<&Arc<Payload>> {
        let hash = self.canonical.get(usize::try_from(number).ok()?)?;
        self.blocks.get(hash)
    }

    pub fn is_canonical(&self, id: BlockId) -> bool {
        self.at(id.number)
            .is_some_and(|block| block.hash == id.hash)
    }

    /// Accepts a block of the swarm. `wins`: whether a block of height `.0` becomes the head in
    /// place of one of height `.1`.
    pub fn import(&mut self, block: &Arc<Payload>, wins: impl Fn(u64, u64) -> bool) -> Settled {
        if !self.blocks.contains_key(&block.parent_hash()) {
            return Settled::Dropped;
        }
        self.insert(block);
        if wins(block.number(), self.heads.head.number) && self.keeps_safe(block) {
            self.set_head(block.id());
        }
        Settled::Ok
    }

    pub fn insert(&mut self, block: &Arc<Payload>) {
        if self.blocks.insert(block.hash, block.clone()).is_none() {
            self.log.push(block.hash);
        }
    }

    fn keeps_safe(&self, block: &Payload) -> bool {
        let safe = self.heads.safe;
        let mut at = (block.number(), block.parent_hash());
        while at.0 > safe.number + 1 {
            // A parent on our chain keeps what our chain keeps.
            if self.canonical.get(at.0 as usize - 1) == Some(&at.1) {
                return true;
            }
            let Some(parent) = self.blocks.get(&at.1) else {
                return false;
            };
            at = (at.0 - 1, parent.parent_hash());
        }
        at.0 == safe.number + 1 && at.1 == safe.hash
    }

    /// Makes a known block the head, whatever its height.
    pub fn set_head(&mut self, head: BlockId) {
        self.heads.head = head;
        self.canonical.truncate(head.number as usize + 1);
        self.canonical.resize(head.number as usize + 1, B256::ZERO);
        let mut at = head;
        while self.canonical[at.number as usize] != at.hash {
            self.canonical[at.number as usize] = at.hash;
            let Some(block) = self.blocks.get(&at.hash) else {
                break;
            };
            at = BlockId {
                number: at.number.saturating_sub(1),
                hash: block.parent_hash(),
            };
        }
    }

    /// Makes a canonical block safe. Blocks that are not canonical are left alone.
    pub fn set_safe(&mut self, safe: BlockId) {
        if safe.number > self.heads.safe.number && self.is_canonical(safe) {
            self.heads.safe = safe;
        }
    }

    /// Moves the safe head to a known block, also downwards, and the head with it if the block is
    /// on another branch.
    pub fn reset_safe(&mut self, safe: BlockId) {
        if !self.is_canonical(safe) {
            self.set_head(safe);
        }
        self.heads.safe = safe;
    }

    /// Makes all blocks durable, with their head.
    pub fn sync(&mut self) {
        self.durable = Durable {
            blocks: self.log.len(),
            head: self.heads.head,
        };
    }

    /// Takes back everything since the last [`TreeChain::sync`].
    pub fn lose_unsynced(&mut self) {
        for hash in self.log.drain(self.durable.blocks..) {
            self.blocks.remove(&hash);
        }
        self.set_head(self.durable.head);
        if !self.is_canonical(self.heads.safe) {
            // Derivation finds the safe head again from L1.
            self.heads.safe = BlockId {
                number: 0,
                hash: self.canonical[0],
            };
        }
    }
}
