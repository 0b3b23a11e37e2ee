//! What the machine remembers of the chain's answers: blocks handed over and not settled, blocks lately settled, blocks refused.

use super::{Action, Body, Limits};
use crate::handle::{Heads, Settled};
use alloy_primitives::B256;
use lru::LruCache;
use starling_proto::payload::{BlockId, Payload};
use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroUsize,
};

/// Lately settled blocks: bridges the moment between "does the chain know it?" and the answer's use.
const SETTLED: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Refused blocks: enough for hours of a branch that keeps growing on an invalid block.
const REFUSED: NonZeroUsize = NonZeroUsize::new(16_384).unwrap();

/// Why a block and its descendants are not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The chain found it, or an ancestor, invalid.
    Invalid,
    /// Its branch leaves ours below the safe block. Holds only while the safe head does not go back.
    Foreign,
}

#[derive(Debug)]
struct Unsettled {
    id: BlockId,
    parent: B256,
    weight: usize,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    genesis: BlockId,
    heads: Heads,
    limits: Limits,
    unsettled: HashMap<B256, Unsettled>,
    unsettled_bytes: usize,
    settled: LruCache<B256, ()>,
    refused: LruCache<B256, Refusal>,
}

impl Ledger {
    pub fn new(limits: Limits, genesis: BlockId) -> Self {
        Self {
            genesis,
            heads: Heads {
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

    /// Whether a child of this block may be handed over.
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

    /// The chain has this block by another way.
    pub fn learn(&mut self, hash: B256) {
        self.settled.put(hash, ());
    }

    /// The number of our head.
    pub fn head(&self) -> u64 {
        self.heads.head.number
    }

    /// Blocks at or below this number are never wanted.
    pub fn floor(&self) -> u64 {
        self.heads.safe.number.max(self.genesis.number)
    }

    /// From which number on a branch that comes down to `low` is likely missing: above what our branch has, or, if it leaves that below,
    /// as far again as it has left it already.
    pub fn likely_missing(&self, low: u64) -> u64 {
        let unsettled = self.unsettled.values().map(|block| block.id.number);
        let top = unsettled.fold(self.head(), u64::max);
        let known = match top.checked_sub(low) {
            None => top,
            Some(below) => low.saturating_sub(below.saturating_add(2)),
        };
        known.max(self.floor()).saturating_add(1)
    }

    /// Whether the block is refused. Asking keeps the answer alive.
    pub fn refusal(&mut self, hash: &B256) -> Option<Refusal> {
        self.refused.get(hash).copied()
    }

    pub fn refuse(&mut self, hash: B256, why: Refusal) {
        self.refused.put(hash, why);
    }

    pub fn set_heads(&mut self, heads: Heads) {
        if heads.safe.number < self.heads.safe.number {
            let foreign: Vec<B256> = self
                .refused
                .iter()
                .filter(|(_, why)| **why == Refusal::Foreign)
                .map(|(h, _)| *h)
                .collect();
            for hash in foreign {
                self.refused.pop(&hash);
            }
        }
        self.heads = heads;
    }

    /// One payload is always allowed, so that a block larger than the whole credit cannot stop the chain.
    pub fn has_credit(&self, payload: &Payload) -> bool {
        self.unsettled.is_empty()
            || (self.unsettled.len() < self.limits.unsettled
                && self.unsettled_bytes + payload.weight() <= self.limits.unsettled_bytes)
    }

    pub fn hand_over(&mut self, body: Body, actions: &mut VecDeque<Action>) {
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
        actions.push_back(Action::HandOver {
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
                self.refuse(hash, Refusal::Invalid);
                // Children handed over before the verdict, parents first.
                let mut waiting: Vec<(u64, B256, B256)> = self
                    .unsettled
                    .values()
                    .map(|u| (u.id.number, u.id.hash, u.parent))
                    .collect();
                waiting.sort_unstable();
                for (_, child, parent) in waiting {
                    if self.refused.contains(&parent) {
                        self.refuse(child, Refusal::Invalid);
                    }
                }
            }
        }
    }
}
