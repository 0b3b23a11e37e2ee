//! What the engine remembers of blocks that are not in the chain: those that wait for a parent, those that are kept in the payload log
//! until a fork choice leads to them, and those that were refused.
//!
//! Pure. All are bounded; what a rollup node sent longest ago goes first, and it sends it again when it needs it.

use alloy_primitives::B256;
use alloy_rpc_types_engine::ForkchoiceState;
use lru::LruCache;
use starling_proto::payload::Payload;
use std::{num::NonZeroUsize, sync::Arc};

/// Payloads that wait for a parent.
const WAITING: usize = 1024;
/// Bytes of them.
const WAITING_WEIGHT: usize = 32_000_000;
/// Hashes of blocks that are kept: of others, their parents are looked for in the log.
const KEPT: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");
/// Hashes of refused blocks.
const REJECTED: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");

/// Why a block was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Its newest valid ancestor, if that is known.
    pub latest_valid: Option<B256>,
    pub reason: String,
}

pub struct Memory {
    waiting: LruCache<B256, Arc<Payload>>,
    weight: usize,
    kept: LruCache<B256, ()>,
    rejected: LruCache<B256, Rejected>,
    /// The rollup node's last fork choice, if its head is still missing.
    pub wanted: Option<ForkchoiceState>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            waiting: LruCache::unbounded(),
            weight: 0,
            kept: LruCache::new(KEPT),
            rejected: LruCache::new(REJECTED),
            wanted: None,
        }
    }
}

impl Memory {
    /// Keeps a payload until its parent arrives.
    pub fn wait(&mut self, payload: Arc<Payload>) {
        self.arrived(&payload.hash);
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

    pub fn waiting_for(&self, parent: B256) -> Vec<Arc<Payload>> {
        self.waiting
            .iter()
            .map(|(_, payload)| payload)
            .filter(|payload| payload.parent_hash() == parent)
            .cloned()
            .collect()
    }

    /// This one waits no longer.
    pub fn arrived(&mut self, hash: &B256) {
        if let Some(payload) = self.waiting.pop(hash) {
            self.weight -= payload.weight();
        }
    }

    /// This one is in the payload log from now on.
    pub fn keep(&mut self, hash: B256) {
        self.arrived(&hash);
        self.kept.put(hash, ());
    }

    pub fn is_kept(&self, hash: &B256) -> bool {
        self.kept.contains(hash)
    }

    pub fn reject(&mut self, hash: B256, latest_valid: Option<B256>, reason: &str) {
        self.arrived(&hash);
        self.rejected.put(
            hash,
            Rejected {
                latest_valid,
                reason: reason.to_owned(),
            },
        );
    }

    pub fn rejected(&mut self, hash: B256) -> Option<&Rejected> {
        self.rejected.get(&hash)
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
    fn what_waits_is_bounded_in_number_and_in_bytes() {
        let mut memory = Memory::default();
        for number in 0..WAITING as u64 + 10 {
            memory.wait(payload(number, B256::ZERO, 1));
        }
        assert_eq!(memory.waiting.len(), WAITING);
        assert!(memory.waiting(&payload(9, B256::ZERO, 1).hash).is_none());
        assert!(memory.waiting(&payload(10, B256::ZERO, 1).hash).is_some());
        for number in 5000..5020 {
            memory.wait(payload(number, B256::ZERO, WAITING_WEIGHT / 8));
            assert!(memory.weight <= WAITING_WEIGHT);
        }
        assert_eq!(memory.waiting.len(), 7);
        // The same one twice counts once.
        let weight = memory.weight;
        memory.wait(payload(5019, B256::ZERO, WAITING_WEIGHT / 8));
        assert_eq!(memory.weight, weight);
        for number in 5000..5020 {
            memory.arrived(&payload(number, B256::ZERO, WAITING_WEIGHT / 8).hash);
        }
        assert_eq!((memory.waiting.len(), memory.weight), (0, 0));
    }

    #[test]
    fn children_are_found_and_the_refused_wait_no_longer() {
        let mut memory = Memory::default();
        let parent = B256::repeat_byte(1);
        let (a, b, other) = (
            payload(1, parent, 1),
            payload(2, parent, 1),
            payload(1, B256::ZERO, 1),
        );
        for payload in [&a, &b, &other] {
            memory.wait(payload.clone());
        }
        assert_eq!(memory.waiting_for(parent).len(), 2);
        memory.reject(a.hash, Some(parent), "wrong");
        assert_eq!(memory.waiting_for(parent), [b]);
        assert_eq!(
            memory.rejected(a.hash),
            Some(&Rejected {
                latest_valid: Some(parent),
                reason: "wrong".into()
            })
        );
        assert_eq!(memory.rejected(other.hash), None);
    }
}
