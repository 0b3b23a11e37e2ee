//! The chain's verdicts that sync remembers: blocks handed over and not settled, blocks settled
//! lately, and blocks refused. They decide whether a block is known, and bound how many payloads
//! are handed over at once.

use super::{Body, SyncAction, SyncLimits};
use crate::types::{ChainHeads, Settled};
use alloy_primitives::B256;
use lru::LruCache;
use starling_proto::payload::{BlockId, Payload};
use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroUsize,
};

/// Number of blocks settled lately that are remembered. They cover the time between a query to the
/// chain and the use of its result, which may be out of date by then.
const SETTLED: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Number of refused blocks that are remembered: enough for hours of a branch that keeps growing on
/// an invalid block.
const REFUSED: NonZeroUsize = NonZeroUsize::new(16_384).unwrap();

/// The reason why a block and its descendants are not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockRefusal {
    /// The chain found the block, or an ancestor of it, invalid.
    Invalid,
    /// The block's branch forks off ours below the safe block. This refusal ends when the safe head
    /// moves back, or the head becomes a block that sync has not brought: derivation may have
    /// replaced safe blocks, and made as many safe since.
    Foreign,
}

/// A block that was handed over and has no verdict yet.
#[derive(Debug)]
struct Unsettled {
    id: BlockId,
    parent: B256,
    weight: usize,
}

/// The blocks that need not be fetched, and the blocks that must not be fetched.
#[derive(Debug)]
pub(super) struct KnownBlocks {
    genesis: BlockId,
    heads: ChainHeads,
    limits: SyncLimits,
    unsettled: HashMap<B256, Unsettled>,
    unsettled_bytes: usize,
    settled: LruCache<B256, ()>,
    refused: LruCache<B256, BlockRefusal>,
}

impl KnownBlocks {
    pub fn new(limits: SyncLimits, genesis: BlockId) -> Self {
        Self {
            genesis,
            heads: ChainHeads {
                head: genesis,
                safe: genesis,
            },
            limits,
            unsettled: HashMap::new(),
            unsettled_bytes: 0,
            settled: LruCache::new(SETTLED),
            refused: LruCache::new(REFUSED),
        }
    }

    /// Whether the block is known, so that a child of it may be handed over.
    pub fn knows(&self, hash: &B256) -> bool {
        let on_chain = [
            self.genesis.hash,
            self.heads.head.hash,
            self.heads.safe.hash,
        ]
        .contains(hash);
        (on_chain || self.unsettled.contains_key(hash) || self.settled.contains(hash))
            && !self.refused.contains(hash)
    }

    /// Records that the chain has this block from another source.
    pub fn learn(&mut self, hash: B256) {
        self.settled.put(hash, ());
    }

    /// The number of the chain's head.
    pub fn head(&self) -> u64 {
        self.heads.head.number
    }

    /// The number of the safe block, or of genesis. Blocks at or below it are never wanted.
    pub fn floor(&self) -> u64 {
        self.heads.safe.number.max(self.genesis.number)
    }

    /// Estimated first missing block of a branch that was followed down to `low`. While `low` is
    /// above our highest block, which is the head or an unsettled block: the number after that
    /// block. Otherwise: about as far below `low` as `low` is below our highest block, so that each
    /// probe doubles the depth.
    pub fn likely_missing(&self, low: u64) -> u64 {
        let unsettled = self.unsettled.values().map(|block| block.id.number);
        let top = unsettled.fold(self.head(), u64::max);
        let known = match top.checked_sub(low) {
            None => top,
            Some(below) => low.saturating_sub(below.saturating_add(2)),
        };
        known.max(self.floor()).saturating_add(1)
    }

    /// The reason why the block is refused, if it is. A lookup keeps the entry in the cache.
    pub fn refusal(&mut self, hash: &B256) -> Option<BlockRefusal> {
        self.refused.get(hash).copied()
    }

    pub fn refuse(&mut self, hash: B256, why: BlockRefusal) {
        self.refused.put(hash, why);
    }

    pub fn set_heads(&mut self, heads: ChainHeads) {
        if heads.safe.number < self.heads.safe.number || !self.knows(&heads.head.hash) {
            let foreign: Vec<B256> = self
                .refused
                .iter()
                .filter(|(_, why)| **why == BlockRefusal::Foreign)
                .map(|(h, _)| *h)
                .collect();
            for hash in foreign {
                self.refused.pop(&hash);
            }
        }
        self.heads = heads;
    }

    /// Whether the payload may be handed over now. A single payload always may, so a block larger
    /// than the whole capacity cannot stop the chain.
    pub fn has_capacity(&self, payload: &Payload) -> bool {
        self.unsettled.is_empty()
            || (self.unsettled.len() < self.limits.unsettled
                && self.unsettled_bytes + payload.weight() <= self.limits.unsettled_bytes)
    }

    pub fn hand_over(&mut self, body: Body, actions: &mut VecDeque<SyncAction>) {
        let Body {
            arrival,
            provenance,
        } = body;
        let (payload, blame) = (arrival.payload, arrival.from);
        let entry = Unsettled {
            id: payload.id(),
            parent: payload.parent_hash(),
            weight: payload.weight(),
        };
        self.unsettled_bytes += entry.weight;
        if let Some(old) = self.unsettled.insert(payload.hash, entry) {
            self.unsettled_bytes -= old.weight;
        }
        actions.push_back(SyncAction::HandOver {
            payload,
            provenance,
            blame,
        });
    }

    pub fn settle(&mut self, hash: B256, settled: &Settled) {
        if let Some(entry) = self.unsettled.remove(&hash) {
            self.unsettled_bytes -= entry.weight;
        }
        match settled {
            Settled::Ok => {
                self.refused.pop(&hash);
                self.settled.put(hash, ());
            }
            Settled::Dropped => {
                self.settled.pop(&hash);
            }
            Settled::Invalid(_) => {
                self.settled.pop(&hash);
                self.refuse(hash, BlockRefusal::Invalid);
                // Refuse descendants too: they may have been handed over before the verdict.
                let mut waiting: Vec<(u64, B256, B256)> = self
                    .unsettled
                    .values()
                    .map(|u| (u.id.number, u.id.hash, u.parent))
                    .collect();
                waiting.sort_unstable();
                for (_, child, parent) in waiting {
                    if self.refused.contains(&parent) {
                        self.refuse(child, BlockRefusal::Invalid);
                    }
                }
            }
        }
    }
}
