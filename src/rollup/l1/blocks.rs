//! L1 blocks for derivation: fetched in batches, verified, and cached. Receipts are fetched only
//! for blocks that may have logs of the rollup. Called by the [`Prefetcher`](super::Prefetcher),
//! and by the driver for single blocks. Bounded by one batch per call and by a cache of
//! [`CACHE_BYTES`].

use super::{
    L1BlockAt, L1Client, L1Error, RpcCause,
    block_receipts::BlockReceipts,
    cache::L1Cache,
    data::{L1BlockData, Watched},
    read,
    receipts::ReceiptMethod,
    request::L1Responses,
    response::{self, CheckedL1Block},
    transport::{L1Response, RpcCall},
};
use crate::rollup::metrics::L1CacheMetrics;
use alloy_consensus::constants::EMPTY_RECEIPTS;
use alloy_primitives::{B256, Bytes};
use parking_lot::Mutex;
use serde_json::{json, value::RawValue};
use starling_proto::attributes::ReceiptLogs;
use std::{collections::HashMap, sync::Arc};

/// Largest total size of the cached blocks in bytes, regardless of `--l1.cache-size`.
const CACHE_BYTES: usize = 32 << 20;

/// Consecutive fetched blocks, and the size of their responses.
#[derive(Clone, Debug, Default)]
pub(super) struct FetchedBlocks {
    pub blocks: Vec<Arc<L1BlockData>>,
    /// Bytes of the JSON of the block objects and receipts.
    pub json_bytes: usize,
}

/// A cloneable reader of the blocks of one rollup's L1. Clones share the cache.
///
/// Like [`L1Client`] it leaves retries to its callers.
#[derive(Clone)]
pub struct L1Blocks {
    l1: L1Client,
    watched: Watched,
    cache: Arc<Mutex<L1Cache>>,
    metrics: L1CacheMetrics,
}

impl L1Blocks {
    /// Caches at most `cache_size` blocks and 32 MiB. Requests are bulk requests, which yield to
    /// the urgent ones of `l1`.
    pub fn new(l1: L1Client, watched: Watched, cache_size: usize) -> Self {
        Self {
            l1: l1.for_bulk(),
            watched,
            cache: Arc::new(Mutex::new(L1Cache::new(cache_size, CACHE_BYTES))),
            metrics: L1CacheMetrics::new(),
        }
    }

    /// Largest number of cached blocks: `--l1.cache-size`, or 3/2 of the sequencing window (in L1
    /// blocks) if that is zero.
    pub fn cache_size(given: u64, seq_window_size: u64) -> usize {
        let size = if given == 0 {
            seq_window_size.saturating_mul(3) / 2
        } else {
            given
        };
        usize::try_from(size).unwrap_or(usize::MAX)
    }

    /// The client that sends this reader's requests.
    pub fn client(&self) -> &L1Client {
        &self.l1
    }

    /// A block; `None` if the endpoint does not have it, or if the requested number is above the
    /// endpoint's head. A cached block is returned only if it is requested by hash or is canonical
    /// now.
    pub async fn get(&self, at: L1BlockAt) -> Result<Option<Arc<L1BlockData>>, L1Error> {
        match at {
            L1BlockAt::Hash(hash) => {
                if let Some(data) = self.cached(hash) {
                    return Ok(Some(data));
                }
            }
            L1BlockAt::Number(number) => {
                if self.cache.lock().has_number(number) {
                    let Some(block) = self.l1.block_by_number(number).await? else {
                        return Ok(None);
                    };
                    if let Some(data) = self.cached(block.hash) {
                        return Ok(Some(data));
                    }
                }
            }
        }
        Ok(self.fetch(&[at]).await?.blocks.pop())
    }

    /// The blocks from `first` on, at most `count` and at most one batch. The list ends early at
    /// L1's head, or before a block that does not extend the previous one because of a reorg
    /// between the reads.
    pub(super) async fn range(&self, first: u64, count: usize) -> Result<FetchedBlocks, L1Error> {
        let count = count.min(self.l1.inner.max_batch) as u64;
        let numbers = first..first.saturating_add(count);
        let wanted: Vec<_> = numbers.map(L1BlockAt::Number).collect();
        self.fetch(&wanted).await
    }

    fn cached(&self, hash: B256) -> Option<Arc<L1BlockData>> {
        let found = self.cache.lock().get(hash);
        self.metrics.on_get(found.is_some());
        found
    }

    async fn fetch(&self, wanted: &[L1BlockAt]) -> Result<FetchedBlocks, L1Error> {
        let calls: Vec<_> = wanted.iter().map(|at| at.call(true)).collect();
        let read = |responses| self.read_blocks(wanted, responses, &HashMap::new());
        let (full, json_bytes) = match self.l1.request(&calls, read).await {
            Err(error) if matches!(error.cause, RpcCause::UnknownTransaction { .. }) => {
                self.fetch_with_unknown(wanted, &calls, error).await?
            }
            result => result?,
        };
        let receipts = self.receipts(&full).await;
        let mut lists = receipts.responses.into_iter();
        let mut blocks = Vec::with_capacity(full.len());
        for block in full {
            let list = if wants_receipts(&block) {
                lists.next()
            } else {
                Some(vec![])
            };
            let Some(receipts) = list else { break };
            let data = Arc::new(L1BlockData {
                block: block.block,
                inbox: block.inbox,
                receipts,
            });
            let mut cache = self.cache.lock();
            let evicts = cache.insert(data.clone());
            self.metrics.on_add(cache.len(), evicts);
            drop(cache);
            blocks.push(data);
        }
        // Keep the blocks before the failure. The caller requests the remaining ones again.
        match receipts.failure {
            Some(error) if blocks.is_empty() => Err(error),
            _ => Ok(FetchedBlocks {
                blocks,
                json_bytes: json_bytes + receipts.json_bytes,
            }),
        }
    }

    /// Parses whole blocks up to the first that is missing or does not extend the previous one.
    /// Also returns the bytes of their JSON.
    fn read_blocks(
        &self,
        wanted: &[L1BlockAt],
        responses: Vec<L1Response>,
        raw: &HashMap<B256, Bytes>,
    ) -> Result<(Vec<CheckedL1Block>, usize), RpcCause> {
        let mut blocks: Vec<CheckedL1Block> = Vec::with_capacity(wanted.len());
        let mut bytes = 0;
        for (at, response) in wanted.iter().zip(responses) {
            let response = match response {
                // Some endpoints return an error instead of null for a number above their head.
                Err(_) if !blocks.is_empty() => break,
                response => response?,
            };
            if response.get() == RawValue::NULL.get() {
                break;
            }
            let full = response::full_block(&response, &self.watched, self.l1.inner.trust, raw)?;
            at.check(&full.block)?;
            let parent = blocks.last().map(|block| block.block.hash);
            if parent.is_some_and(|parent| parent != full.block.parent_hash) {
                break;
            }
            bytes += response.get().len();
            blocks.push(full);
        }
        Ok((blocks, bytes))
    }

    /// Fetches blocks with transactions of types that this build does not know. It requests the
    /// encodings of these transactions and verifies them against the transactions root. Returns the
    /// error `unknown` if the endpoint refuses.
    async fn fetch_with_unknown(
        &self,
        wanted: &[L1BlockAt],
        calls: &[RpcCall],
        unknown: L1Error,
    ) -> Result<(Vec<CheckedL1Block>, usize), L1Error> {
        let hashes = self.l1.request(calls, |responses| {
            let known = responses.into_iter().flatten();
            let known = known.filter(|response| response.get() != RawValue::NULL.get());
            let lists = known.map(|response| response::unknown_transactions(&response));
            Ok(lists.collect::<Result<Vec<_>, _>>()?.concat())
        });
        let hashes = hashes.await?;
        let mut raw = HashMap::new();
        for chunk in hashes.chunks(self.l1.inner.max_batch) {
            let encodings: Vec<_> = chunk
                .iter()
                .map(|hash| RpcCall {
                    method: "eth_getRawTransactionByHash",
                    params: json!([hash]),
                })
                .collect();
            let read_all = |responses: Vec<L1Response>| {
                let read_one = |response: L1Response| read::<Option<Bytes>>(&response?);
                responses
                    .into_iter()
                    .map(read_one)
                    .collect::<Result<Vec<_>, _>>()
            };
            let found = match self.l1.request(&encodings, read_all).await {
                Err(error) if matches!(error.cause, RpcCause::Refused { .. }) => {
                    return Err(unknown);
                }
                found => found?,
            };
            let pairs = chunk.iter().zip(found);
            raw.extend(pairs.filter_map(|(hash, bytes)| Some((*hash, bytes?))));
        }
        let read = |responses| self.read_blocks(wanted, responses, &raw);
        self.l1.request(calls, read).await
    }

    /// The receipts of those blocks that need them, in order, up to the first failure.
    async fn receipts(&self, blocks: &[CheckedL1Block]) -> L1Responses<Vec<ReceiptLogs>> {
        let wanted = blocks.iter().filter(|block| wants_receipts(block));
        let wanted: Vec<&CheckedL1Block> = wanted.collect();
        let mut found = self.receipts_at_once(&wanted).await;
        while found.failure.is_none()
            && let Some(block) = wanted.get(found.responses.len())
        {
            let fetched = self.l1.receipts_of(&block.block, &block.hashes).await;
            self.add(&mut found, fetched);
        }
        found
    }

    /// The receipts of several blocks from one request, or from several requests if one response
    /// would be too large. The list is empty for fewer than two blocks, and if the method needs a
    /// call for each transaction or turns out to be unsupported.
    async fn receipts_at_once(&self, blocks: &[&CheckedL1Block]) -> L1Responses<Vec<ReceiptLogs>> {
        let least = blocks.iter().map(|block| block.hashes.len()).min();
        let method = self.l1.receipt_method(least.unwrap_or_default());
        if blocks.len() < 2 || method == ReceiptMethod::EachTransaction {
            return self.l1.request_each(&[], |_, _| Ok(vec![])).await;
        }
        let calls = blocks
            .iter()
            .flat_map(|block| method.calls(&block.block, &[]));
        let calls: Vec<_> = calls.collect();
        let read = |index: usize, response: &RawValue| {
            let mut receipts = method.read(response, &blocks[index].block)?;
            self.watched.strip(&mut receipts);
            Ok(receipts)
        };
        let mut found = self.l1.request_each(&calls, read).await;
        let too_large = |error: &mut L1Error| error.cause.may_be_size();
        if let Some(error) = found.failure.take_if(|error| error.cause.is_unsupported()) {
            self.l1.note_unsupported(method, &error);
        } else if found.failure.take_if(too_large).is_some()
            && let Some(block) = blocks.get(found.responses.len())
        {
            // The receipts of this one block are too large for one response: fetch them one by one.
            let each = ReceiptMethod::EachTransaction;
            let fetched = self.l1.receipts_by(each, &block.block, &block.hashes).await;
            self.add(&mut found, fetched);
        }
        found
    }

    fn add(
        &self,
        found: &mut L1Responses<Vec<ReceiptLogs>>,
        fetched: Result<BlockReceipts, L1Error>,
    ) {
        match fetched {
            Ok(mut fetched) => {
                self.watched.strip(&mut fetched.receipts);
                found.responses.push(fetched.receipts);
                found.json_bytes += fetched.json_bytes;
            }
            Err(error) => found.failure = Some(error),
        }
    }
}

/// Whether derivation needs the block's receipts, judged by the header.
fn wants_receipts(block: &CheckedL1Block) -> bool {
    block.may_have_logs && block.block.receipts_root != EMPTY_RECEIPTS
}

#[cfg(test)]
mod tests;
