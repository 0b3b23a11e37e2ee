//! A cache of recently read L1 blocks by hash, bounded in number and in bytes. Pure.

use super::data::L1BlockData;
use alloy_primitives::B256;
use lru::LruCache;
use std::sync::Arc;

/// An LRU cache of L1 blocks: the least recently used block is dropped first.
pub(super) struct L1Cache {
    blocks: LruCache<B256, Arc<L1BlockData>>,
    max_blocks: usize,
    /// Total size of the cached blocks in bytes, as counted by [`L1BlockData::size`].
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

    /// Whether a block of this height is cached, on any branch.
    pub(super) fn has_number(&self, number: u64) -> bool {
        self.blocks
            .iter()
            .any(|(_, data)| data.block.number == number)
    }

    /// Number of cached blocks.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Caches a block. Returns whether other blocks were dropped to make room.
    pub(super) fn insert(&mut self, data: Arc<L1BlockData>) -> bool {
        self.bytes += data.size();
        if let Some(old) = self.blocks.put(data.block.hash, data) {
            self.bytes -= old.size();
        }
        let mut evicts = false;
        while self.blocks.len() > self.max_blocks || self.bytes > self.max_bytes {
            let Some((_, old)) = self.blocks.pop_lru() else {
                break;
            };
            self.bytes -= old.size();
            evicts = true;
        }
        evicts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollup::l1::{
        L1BlockAt, L1Blocks, L1Client, L1Config, Watched,
        fake::{FakeL1, chain},
    };
    use alloy_primitives::{Address, Bytes};
    use metrics_exporter_prometheus::PrometheusBuilder;
    use starling_proto::{attributes::L1Block, derive::InboxTransaction};

    fn data(number: u64, input: usize) -> Arc<L1BlockData> {
        let transaction = InboxTransaction {
            sender: Address::ZERO,
            calldata: Bytes::from(vec![0; input]),
            blobs: vec![],
        };
        Arc::new(L1BlockData {
            block: L1Block {
                number,
                hash: B256::left_padding_from(&number.to_be_bytes()),
                ..Default::default()
            },
            inbox: vec![transaction],
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

    #[tokio::test]
    async fn a_reader_of_blocks_reports_the_use_of_its_cache() {
        let l1 = FakeL1::start().await;
        let headers = chain(5, 100, 3, 1);
        l1.set(&headers);
        let client = L1Client::new(&L1Config::new(l1.url())).unwrap();
        let watched = Watched {
            inbox: Address::ZERO,
            portal: Address::ZERO,
            system_config: Address::ZERO,
        };
        let recorder = PrometheusBuilder::new().build_recorder();
        let blocks = metrics::with_local_recorder(&recorder, || L1Blocks::new(client, watched, 2));
        for header in &headers {
            let found = blocks.get(L1BlockAt::Hash(header.hash_slow())).await;
            assert!(found.unwrap().is_some());
        }
        blocks.get(L1BlockAt::Number(7)).await.unwrap();
        let text = recorder.handle().render();
        for line in [
            "_size{type=\"txs\"} 2",
            "_get{type=\"txs\",hit=\"false\"} 3",
            "_get{type=\"txs\",hit=\"true\"} 1",
            "_add{type=\"txs\",evicted=\"false\"} 2",
            "_add{type=\"txs\",evicted=\"true\"} 1",
        ] {
            let line = format!("op_node_default_l1_source_cache{line}");
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
    }
}
