//! Recently read or sent blocks of the execution client: links by hash, canonical hashes by number,
//! and whole blocks. All bounded. Pure.
//!
//! Links and blocks stay valid for ever. Canonical hashes change when the head moves to another
//! branch, so [`RemoteBlockCache::cut`] drops them. A response that was requested before a cut is
//! not cached.

use alloy_primitives::B256;
use lru::LruCache;
use starling_proto::payload::{BlockId, Payload};
use std::{collections::BTreeMap, num::NonZeroUsize, sync::Arc};

/// Largest number of links in the cache, 80 bytes each.
const LINKS: NonZeroUsize = NonZeroUsize::new(16_384).expect("it is not zero");
/// Largest number of canonical hashes in the cache.
const CANONICAL: usize = 16_384;
/// Largest total size of the whole blocks in the cache, in bytes.
const BYTES: usize = 32 << 20;

/// A block's id, its parent and its timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockLink {
    pub id: BlockId,
    pub parent: B256,
    pub timestamp: u64,
}

impl From<&Payload> for BlockLink {
    fn from(payload: &Payload) -> Self {
        Self {
            id: payload.id(),
            parent: payload.parent_hash(),
            timestamp: payload.timestamp(),
        }
    }
}

pub(super) struct RemoteBlockCache {
    links: LruCache<B256, BlockLink>,
    canonical: BTreeMap<u64, B256>,
    blocks: LruCache<B256, Arc<Payload>>,
    bytes: usize,
    cuts: u64,
}

impl Default for RemoteBlockCache {
    fn default() -> Self {
        Self {
            links: LruCache::new(LINKS),
            canonical: BTreeMap::new(),
            blocks: LruCache::unbounded(),
            bytes: 0,
            cuts: 0,
        }
    }
}

impl RemoteBlockCache {
    pub(super) fn link(&mut self, hash: B256) -> Option<BlockLink> {
        self.links.get(&hash).copied()
    }

    pub(super) fn block(&mut self, hash: B256) -> Option<Arc<Payload>> {
        self.blocks.get(&hash).cloned()
    }

    pub(super) fn canonical(&self, number: u64) -> Option<B256> {
        self.canonical.get(&number).copied()
    }

    pub(super) fn add_link(&mut self, link: BlockLink) {
        self.links.put(link.id.hash, link);
    }

    pub(super) fn add_block(&mut self, block: Arc<Payload>) {
        self.add_link(BlockLink::from(&*block));
        self.bytes += block.weight();
        if let Some(old) = self.blocks.put(block.hash, block) {
            self.bytes -= old.weight();
        }
        while self.bytes > BYTES {
            let Some((_, old)) = self.blocks.pop_lru() else {
                break;
            };
            self.bytes -= old.weight();
        }
    }

    /// The number of cuts so far. Read it before a request for a canonical block, and pass it to
    /// [`Self::add_canonical`].
    pub(super) fn cuts(&self) -> u64 {
        self.cuts
    }

    /// Caches a canonical block, unless the chain was cut since `cuts` was read.
    pub(super) fn add_canonical(&mut self, block: BlockId, cuts: u64) {
        if cuts != self.cuts {
            return;
        }
        self.canonical.insert(block.number, block.hash);
        while self.canonical.len() > CANONICAL {
            self.canonical.pop_first();
        }
    }

    /// Drops the canonical hashes above `number`, which are no longer valid.
    pub(super) fn cut(&mut self, number: u64) {
        self.cuts += 1;
        self.canonical.split_off(&number.saturating_add(1));
    }

    /// Drops all canonical hashes, since any block may have been displaced.
    pub(super) fn cut_all(&mut self) {
        self.cuts += 1;
        self.canonical.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::Header;

    fn block(number: u64, salt: u8, bytes: usize) -> Arc<Payload> {
        let header = Header {
            number,
            extra_data: vec![salt].into(),
            ..Header::default()
        };
        Arc::new(Payload::sealed(header, vec![vec![1; bytes].into()]))
    }

    #[test]
    fn an_answer_from_before_a_reorg_is_not_canonical() {
        let mut cache = RemoteBlockCache::default();
        let before = cache.cuts();
        for number in 1..=9 {
            cache.add_canonical(block(number, 0, 0).id(), before);
        }
        cache.cut(5);
        assert!(cache.canonical(5).is_some() && cache.canonical(6).is_none());
        cache.add_canonical(block(6, 0, 0).id(), before);
        assert_eq!(cache.canonical(6), None);
        let other = block(6, 1, 0).id();
        cache.add_canonical(other, cache.cuts());
        assert_eq!(cache.canonical(6), Some(other.hash));
        cache.cut_all();
        assert_eq!(cache.canonical(1), None);
    }

    #[test]
    fn whole_blocks_are_bounded_in_bytes_and_keep_their_links() {
        let mut cache = RemoteBlockCache::default();
        let size = BYTES / 4;
        let blocks: Vec<_> = (0..10).map(|number| block(number, 0, size)).collect();
        for block in &blocks {
            cache.add_block(block.clone());
            cache.add_block(block.clone());
        }
        assert!(cache.bytes <= BYTES && cache.block(blocks[9].hash).is_some());
        assert!(cache.block(blocks[0].hash).is_none());
        assert_eq!(
            cache.link(blocks[0].hash),
            Some(BlockLink::from(&*blocks[0]))
        );
    }
}
