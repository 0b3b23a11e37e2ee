//! Fetches the blobs of L1 blocks before derivation needs them.
//!
//! Used by the [`L1Reader`](super::L1Reader) alone. Without this module derivation would wait for
//! the beacon API at each L1 block with blobs. [`AHEAD_BLOBS`] bounds the memory.

use crate::rollup::beacon::{BeaconClient, BeaconError};
use alloy_primitives::{B256, Bytes};
use starling_proto::{attributes::L1Block, derive::BlobRef};
use std::collections::BTreeMap;
use tokio::task::JoinSet;

/// No further fetch ahead starts once this many blobs, of 128 KiB each, are in flight or fetched:
/// 16 MiB, plus the rest of the block that reaches the bound. It suffices for seven blocks with 21
/// blobs, the most that BPO2 allows, or for 22 blocks with six blobs.
const AHEAD_BLOBS: usize = 128;

/// The blobs of one L1 block, requested or fetched.
#[derive(Debug)]
struct BlockBlobs {
    hash: B256,
    wanted: Vec<BlobRef>,
    /// Id of the request that fetches these blobs.
    request: u64,
    /// `None` while the request is in flight.
    fetched: Option<Result<Vec<Bytes>, BeaconError>>,
}

/// The result of a request that has ended.
#[derive(Debug)]
struct EndedFetch {
    number: u64,
    request: u64,
    fetched: Result<Vec<Bytes>, BeaconError>,
}

/// Blob requests that run while the caller does other work. Dropping this value aborts them.
pub(super) struct BlobsAhead {
    beacon: BeaconClient,
    max_in_flight: usize,
    /// Fetched and requested blobs by block number.
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

    /// Whether the blobs of another block may be requested ahead.
    pub fn has_room(&mut self) -> bool {
        // First collect ended requests: those whose blobs are never taken, for instance after a
        // change of the batcher, must not count as in flight.
        while let Some(joined) = self.requests.try_join_next() {
            if let Ok(ended) = joined {
                self.on_end(ended);
            }
        }
        let held: usize = self.blocks.values().map(|block| block.wanted.len()).sum();
        held < AHEAD_BLOBS && self.requests.len() < self.max_in_flight
    }

    /// Starts a request for the blobs of a block.
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

    /// The blobs of a block in the order of `wanted`, checked against their versioned hashes. If
    /// the request made ahead failed, its error is returned, and the next call requests the blobs
    /// again. Drops the blobs of earlier blocks. Cancelling the call loses nothing.
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
                // The request panicked: repeat it here.
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

    /// Drops all blobs and aborts all requests, for instance after a reorg of L1.
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
