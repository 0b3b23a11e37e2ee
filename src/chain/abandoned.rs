//! Recently abandoned blocks, kept with their receipts so that subscriptions and filters can report
//! the blocks' logs as removed.
//!
//! The executor adds blocks before it publishes the heads that abandon them. Bounded by [`BLOCKS`]
//! and [`BYTES`]. Older blocks may still be in the payload log, without receipts.

use crate::chain::receipt::Receipt;
use alloy_primitives::B256;
use starling_proto::payload::Payload;
use std::{collections::VecDeque, sync::Arc};

/// Maximum number of blocks kept, on all abandoned branches together.
pub const BLOCKS: usize = 128;
/// Maximum bytes of payloads and receipts kept.
pub(super) const BYTES: usize = 8_000_000;

/// A block that is not canonical.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abandoned {
    pub payload: Arc<Payload>,
    /// `None` once the receipts have been dropped.
    pub receipts: Option<Arc<Vec<Receipt>>>,
}

impl Abandoned {
    /// Approximate bytes held in memory.
    pub(super) fn weight(&self) -> usize {
        self.payload.weight()
            + self
                .receipts
                .iter()
                .flat_map(|receipts| receipts.iter())
                .map(Receipt::weight)
                .sum::<usize>()
    }
}

/// The most recently abandoned blocks.
#[derive(Default)]
pub struct AbandonedBlocks {
    /// The blocks in the order in which they were abandoned, oldest first.
    blocks: VecDeque<Abandoned>,
    weight: usize,
}

impl AbandonedBlocks {
    pub fn get(&self, hash: &B256) -> Option<Abandoned> {
        self.blocks
            .iter()
            .rev()
            .find(|block| block.payload.hash == *hash)
            .cloned()
    }

    /// Adds the blocks of a branch, from its head downward. Only its highest blocks are kept if the
    /// branch exceeds [`BLOCKS`] or [`BYTES`].
    pub fn add(&mut self, branch: impl IntoIterator<Item = Abandoned>) {
        let mut weight = 0;
        let fits = |block: &Abandoned| {
            weight += block.weight();
            weight <= BYTES
        };
        let mut branch: Vec<Abandoned> = branch.into_iter().take(BLOCKS).take_while(fits).collect();
        self.blocks.retain(|old| {
            branch
                .iter()
                .all(|new| new.payload.hash != old.payload.hash)
        });
        branch.reverse();
        self.blocks.extend(branch);
        self.weight = self.blocks.iter().map(Abandoned::weight).sum();
        while (self.blocks.len() > BLOCKS || self.weight > BYTES)
            && let Some(oldest) = self.blocks.pop_front()
        {
            self.weight -= oldest.weight();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::Header;

    fn branch(salt: u64, count: u64, bytes: usize) -> Vec<Abandoned> {
        let block = |number| {
            let header = Header {
                number,
                gas_limit: salt,
                ..Default::default()
            };
            let payload = Arc::new(Payload::sealed(header, vec![vec![0; bytes].into()]));
            Abandoned {
                payload,
                receipts: Some(Arc::default()),
            }
        };
        (1..=count).rev().map(block).collect()
    }

    fn kept(recent: &AbandonedBlocks, branch: &[Abandoned]) -> Vec<u64> {
        let known = branch
            .iter()
            .filter(|block| recent.get(&block.payload.hash).is_some());
        known.map(|block| block.payload.number()).collect()
    }

    #[test]
    fn the_newest_branches_are_kept_from_their_heads_down() {
        let mut recent = AbandonedBlocks::default();
        let (first, second) = (branch(1, 100, 10), branch(2, 100, 10));
        recent.add(first.clone());
        recent.add(first.clone());
        assert_eq!(recent.blocks.len(), 100, "each once");
        recent.add(second.clone());
        assert_eq!(kept(&recent, &second).len(), 100);
        assert_eq!(kept(&recent, &first), (73..=100).rev().collect::<Vec<_>>());
        let heavy = branch(3, 10, BYTES / 4);
        recent.add(heavy.clone());
        assert_eq!(kept(&recent, &heavy), [10, 9, 8]);
        assert!(
            recent.weight <= BYTES
                && recent.blocks.len()
                    == kept(&recent, &second).len() + kept(&recent, &first).len() + 3
        );
    }
}
