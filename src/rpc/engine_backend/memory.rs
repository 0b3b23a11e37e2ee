//! The memory of the Engine API: payloads that wait for a parent, hashes of payloads kept in the
//! payload log until a fork choice names their branch, and rejected blocks.
//!
//! Pure. Every part is bounded: the entries that the rollup node sent longest ago are dropped
//! first. The rollup node sends them again when it needs them.

use crate::chain::Inserted;
use alloy_primitives::B256;
use alloy_rpc_types_engine::ForkchoiceState;
use lru::LruCache;
use starling_proto::payload::Payload;
use std::{num::NonZeroUsize, sync::Arc};

/// Maximum payloads that wait for a parent.
const WAITING: usize = 1024;
/// Maximum bytes of the waiting payloads.
const WAITING_WEIGHT: usize = 32_000_000;
/// Maximum hashes of kept payloads. If a payload's parent is not among these hashes, its ancestors
/// are looked up in the payload log.
const KEPT: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");
/// Maximum hashes of rejected blocks.
const REJECTED: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");

/// A rejected block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedBlock {
    /// Newest valid ancestor of the block, if it is known.
    pub latest_valid: Option<B256>,
    pub reason: String,
}

pub struct EngineMemory {
    waiting: LruCache<B256, Arc<Payload>>,
    /// Bytes of the payloads in `waiting`.
    weight: usize,
    kept: LruCache<B256, ()>,
    rejected: LruCache<B256, RejectedBlock>,
    /// The rollup node's last fork choice, if its head is still missing.
    pub pending_forkchoice: Option<ForkchoiceState>,
}

impl Default for EngineMemory {
    fn default() -> Self {
        Self {
            waiting: LruCache::unbounded(),
            weight: 0,
            kept: LruCache::new(KEPT),
            rejected: LruCache::new(REJECTED),
            pending_forkchoice: None,
        }
    }
}

impl EngineMemory {
    /// Keeps a payload in memory until its parent arrives.
    pub fn add_waiting(&mut self, payload: Arc<Payload>) {
        self.remove_waiting(&payload.hash);
        self.weight += payload.weight();
        self.waiting.put(payload.hash, payload);
        while (self.waiting.len() > WAITING || self.weight > WAITING_WEIGHT)
            && let Some((_, oldest)) = self.waiting.pop_lru()
        {
            self.weight -= oldest.weight();
        }
    }

    pub fn waiting(&self, hash: &B256) -> Option<Arc<Payload>> {
        self.waiting.peek(hash).cloned()
    }

    pub fn waiting_children(&self, parent: B256) -> Vec<Arc<Payload>> {
        self.waiting
            .iter()
            .map(|(_, payload)| payload)
            .filter(|payload| payload.parent_hash() == parent)
            .cloned()
            .collect()
    }

    pub fn remove_waiting(&mut self, hash: &B256) {
        if let Some(payload) = self.waiting.pop(hash) {
            self.weight -= payload.weight();
        }
    }

    /// Records that the payload is in the payload log.
    pub fn mark_kept(&mut self, hash: B256) {
        self.remove_waiting(&hash);
        self.kept.put(hash, ());
    }

    pub fn is_kept(&self, hash: &B256) -> bool {
        self.kept.contains(hash)
    }

    pub fn reject(&mut self, hash: B256, latest_valid: Option<B256>, reason: &str) {
        self.remove_waiting(&hash);
        self.rejected.put(
            hash,
            RejectedBlock {
                latest_valid,
                reason: reason.to_owned(),
            },
        );
    }

    pub fn rejected(&mut self, hash: B256) -> Option<&RejectedBlock> {
        self.rejected.get(&hash)
    }

    /// Records a block that the chain has found invalid.
    pub fn on_inserted(&mut self, hash: B256, inserted: &Inserted) {
        if let Inserted::Invalid {
            latest_valid,
            reason,
        } = inserted
        {
            self.reject(hash, *latest_valid, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::Header;

    fn payload(number: u64, parent: B256, bytes: usize) -> Arc<Payload> {
        let header = Header {
            number,
            parent_hash: parent,
            ..Default::default()
        };
        Arc::new(Payload::sealed(header, vec![vec![0; bytes].into()]))
    }

    #[test]
    fn waiting_payloads_are_bounded_in_number_and_in_bytes() {
        let mut memory = EngineMemory::default();
        for number in 0..WAITING as u64 + 10 {
            memory.add_waiting(payload(number, B256::ZERO, 1));
        }
        assert_eq!(memory.waiting.len(), WAITING);
        assert!(memory.waiting(&payload(9, B256::ZERO, 1).hash).is_none());
        assert!(memory.waiting(&payload(10, B256::ZERO, 1).hash).is_some());
        for number in 5000..5020 {
            memory.add_waiting(payload(number, B256::ZERO, WAITING_WEIGHT / 8));
            assert!(memory.weight <= WAITING_WEIGHT);
        }
        assert_eq!(memory.waiting.len(), 7);
        // A payload that is added twice counts once.
        let weight = memory.weight;
        memory.add_waiting(payload(5019, B256::ZERO, WAITING_WEIGHT / 8));
        assert_eq!(memory.weight, weight);
        for number in 5000..5020 {
            memory.remove_waiting(&payload(number, B256::ZERO, WAITING_WEIGHT / 8).hash);
        }
        assert_eq!((memory.waiting.len(), memory.weight), (0, 0));
    }

    #[test]
    fn children_are_found_and_rejected_blocks_wait_no_longer() {
        let mut memory = EngineMemory::default();
        let parent = B256::repeat_byte(1);
        let (a, b, other) = (
            payload(1, parent, 1),
            payload(2, parent, 1),
            payload(1, B256::ZERO, 1),
        );
        for payload in [&a, &b, &other] {
            memory.add_waiting(payload.clone());
        }
        assert_eq!(memory.waiting_children(parent).len(), 2);
        memory.reject(a.hash, Some(parent), "wrong");
        assert_eq!(memory.waiting_children(parent), [b]);
        assert_eq!(
            memory.rejected(a.hash),
            Some(&RejectedBlock {
                latest_valid: Some(parent),
                reason: "wrong".into()
            })
        );
        assert_eq!(memory.rejected(other.hash), None);
    }
}
