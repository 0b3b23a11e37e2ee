//! Blobs of L1 blocks that derivation has not come to yet, fetched ahead.
//!
//! Asked by the [`L1Reader`](super::L1Reader) alone. Without it, each L1 block with blobs would cost
//! derivation a request to the beacon API. [`AHEAD_BLOBS`] bounds the memory.

use crate::rollup::beacon::{BeaconClient, BeaconError};
use alloy_primitives::{B256, Bytes};
use starling_proto::{attributes::L1Block, derive::BlobRef};
use std::collections::BTreeMap;
use tokio::task::JoinSet;

/// Blobs that are fetched or wait to be taken, 128 KiB each, at which no further block's are begun: 16 MiB,
/// and the blobs of the block that reaches the bound. Seven blocks with 21 blobs, the most that BPO2
/// allows, or 22 with six.
const AHEAD_BLOBS: usize = 128;

/// The blobs of one block.
#[derive(Debug)]
struct BlockBlobs {
    hash: B256,
    wanted: Vec<BlobRef>,
    /// The request that brings them.
    request: u64,
    /// `None` while they are fetched.
    fetched: Option<Result<Vec<Bytes>, BeaconError>>,
}

/// A request that has ended.
#[derive(Debug)]
struct EndedFetch {
    number: u64,
    request: u64,
    fetched: Result<Vec<Bytes>, BeaconError>,
}

/// Requests run while the caller does other work; they end when it is dropped.
pub(super) struct BlobsAhead {
    beacon: BeaconClient,
    max_in_flight: usize,
    /// By block number.
    blocks: BTreeMap<u64, BlockBlobs>,
    requests: JoinSet<EndedFetch>,
    last_request: u64,
}

impl BlobsAhead {
    pub fn new(beacon: BeaconClient, max_in_flight: usize) -> Self {
        Self {
            beacon,
            max_in_flight: max_in_flight.max(1),
            blocks: BTreeMap::new(),
            requests: JoinSet::new(),
            last_request: 0,
        }
    }

    /// Whether another block's blobs may be fetched ahead.
    pub fn has_room(&mut self) -> bool {
        // Blobs that are never taken, as after a change of the batcher, must not count as in flight.
        while let Some(joined) = self.requests.try_join_next() {
            if let Ok(ended) = joined {
                self.on_end(ended);
            }
        }
        let held: usize = self.blocks.values().map(|block| block.wanted.len()).sum();
        held < AHEAD_BLOBS && self.requests.len() < self.max_in_flight
    }

    /// Begins to fetch the blobs of a block.
    pub fn start(&mut self, block: &L1Block, wanted: Vec<BlobRef>) {
        let (number, time) = (block.number, block.time);
        self.last_request += 1;
        let request = self.last_request;
        let (beacon, requested) = (self.beacon.clone(), wanted.clone());
        self.requests.spawn(async move {
            let fetched = fetch(&beacon, time, &requested).await;
            EndedFetch {
                number,
                request,
                fetched,
            }
        });
        let entry = BlockBlobs {
            hash: block.hash,
            wanted,
            request,
            fetched: None,
        };
        self.blocks.insert(number, entry);
    }

    /// The blobs of a block in the order of `wanted`, checked against their versioned hashes. The
    /// error of a request that failed ahead is returned, and the next call repeats the request. Drops
    /// the blobs of earlier blocks. Cancelling it loses nothing.
    pub async fn take(
        &mut self,
        block: &L1Block,
        wanted: &[BlobRef],
    ) -> Result<Vec<Bytes>, BeaconError> {
        self.blocks = self.blocks.split_off(&block.number);
        loop {
            match self.blocks.get_mut(&block.number) {
                Some(ahead) if ahead.hash == block.hash && ahead.wanted == wanted => {
                    if let Some(fetched) = ahead.fetched.take() {
                        self.blocks.remove(&block.number);
                        return fetched;
                    }
                }
                _ => self.start(block, wanted.to_vec()),
            }
            match self.requests.join_next().await {
                Some(Ok(ended)) => self.on_end(ended),
                // A request that panicked is repeated here.
                Some(Err(_)) | None => {
                    self.blocks.remove(&block.number);
                    return fetch(&self.beacon, block.time, wanted).await;
                }
            }
        }
    }

    /// Whether a request is in flight.
    #[cfg(test)]
    pub fn has_requests(&mut self) -> bool {
        self.has_room();
        !self.requests.is_empty()
    }

    /// Forgets everything, for instance after a reorg of L1.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.requests = JoinSet::new();
    }

    fn on_end(&mut self, ended: EndedFetch) {
        if let Some(block) = self.blocks.get_mut(&ended.number)
            && block.request == ended.request
        {
            block.fetched = Some(ended.fetched);
        }
    }
}

async fn fetch(
    beacon: &BeaconClient,
    time: u64,
    wanted: &[BlobRef],
) -> Result<Vec<Bytes>, BeaconError> {
    let found = beacon.blobs(time, wanted).await?;
    let bytes = found.iter().map(|blob| Bytes::copy_from_slice(&blob[..]));
    Ok(bytes.collect())
}

#[cfg(test)]
pub(super) mod tests;
