//! L1 blocks that were read lately, by hash; bounded in number and in bytes. Pure.

use super::data::L1BlockData;
use alloy_primitives::B256;
use lru::LruCache;
use std::sync::Arc;

/// The least recently used block is dropped first.
pub(super) struct L1Cache {
    blocks: LruCache<B256, Arc<L1BlockData>>,
    max_blocks: usize,
    /// Bytes of all blocks, as [`L1BlockData::size`] counts them.
    bytes: usize,
    max_bytes: usize,
}

impl L1Cache {
    pub(super) fn new(max_blocks: usize, max_bytes: usize) -> Self {
        Self {
            blocks: LruCache::unbounded(),
            max_blocks,
            bytes: 0,
            max_bytes,
        }
    }

    pub(super) fn get(&mut self, hash: B256) -> Option<Arc<L1BlockData>> {
        self.blocks.get(&hash).cloned()
    }

    /// Whether a block of this height is here, on any branch.
    pub(super) fn has_number(&self, number: u64) -> bool {
        self.blocks
            .iter()
            .any(|(_, data)| data.block.number == number)
    }

    pub(super) fn insert(&mut self, data: Arc<L1BlockData>) {
        self.bytes += data.size();
        if let Some(old) = self.blocks.put(data.block.hash, data) {
            self.bytes -= old.size();
        }
        while self.blocks.len() > self.max_blocks || self.bytes > self.max_bytes {
            let Some((_, old)) = self.blocks.pop_lru() else {
                break;
            };
            self.bytes -= old.size();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::Bytes;
    use starling_proto::attributes::L1Block;

    fn data(number: u64, input: usize) -> Arc<L1BlockData> {
        let transaction = super::super::data::L1Transaction {
            raw: Bytes::from(vec![0; input]),
            ..Default::default()
        };
        Arc::new(L1BlockData {
            block: L1Block {
                number,
                hash: B256::left_padding_from(&number.to_be_bytes()),
                ..Default::default()
            },
            transactions: vec![transaction],
            receipts: vec![],
        })
    }

    fn numbers(cache: &L1Cache) -> Vec<u64> {
        (0..100)
            .filter(|number| cache.has_number(*number))
            .collect()
    }

    #[test]
    fn the_oldest_blocks_leave_by_number_and_by_size() {
        let mut cache = L1Cache::new(3, 1_000_000);
        for number in 0..5 {
            cache.insert(data(number, 10));
        }
        assert_eq!(numbers(&cache), [2, 3, 4]);
        assert!(cache.get(data(2, 0).block.hash).is_some());
        cache.insert(data(5, 10));
        assert_eq!(
            numbers(&cache),
            [2, 4, 5],
            "the least recently used one left"
        );
        cache.insert(data(6, 999_000));
        assert!(
            cache.has_number(6) && numbers(&cache).len() < 3,
            "bytes count too"
        );
        assert!(cache.bytes <= 1_000_000);
        cache.insert(data(7, 2_000_000));
        assert_eq!(
            (numbers(&cache), cache.bytes),
            (vec![], 0),
            "one that is too large is not kept"
        );
    }

    #[test]
    fn a_block_that_is_put_twice_counts_once() {
        let mut cache = L1Cache::new(10, 1_000_000);
        cache.insert(data(1, 10));
        let once = cache.bytes;
        cache.insert(data(1, 10));
        assert_eq!(cache.bytes, once);
    }
}
