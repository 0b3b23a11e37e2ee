//! Reads L1 for the driver: blocks with logs and inbox transactions, and their blobs. Blocks and
//! blobs are fetched ahead, bounded by [`Prefetcher`] (512 blocks, 16 MiB) and [`BlobsAhead`] (128
//! blobs, 16 MiB).

use super::blobs_ahead::BlobsAhead;
use crate::rollup::{
    beacon::{BeaconClient, BeaconError},
    l1::{L1Block, L1BlockAt, L1BlockData, L1Blocks, L1Client, L1Error, Prefetcher},
};
use alloy_primitives::{Address, B256, Bytes};
use starling_proto::{
    config::RollupConfig,
    derive::{BlobRef, L1Input, RelevantLogs},
};
use std::sync::Arc;

/// The reason why an L1 block or its blobs could not be read. A later attempt may succeed.
#[derive(Debug, thiserror::Error)]
pub enum L1ReadError {
    #[error(transparent)]
    L1(#[from] L1Error),
    #[error(transparent)]
    Beacon(#[from] BeaconError),
    /// L1's head is reported at or above `number`, but the block is not served.
    #[error(
        "L1 at {endpoint} has no block {number}, which is not above the head that it reported: if this \
         goes on, the servers behind that endpoint disagree"
    )]
    NotServed { endpoint: String, number: u64 },
    #[error(
        "the batcher posts blobs and no beacon endpoint is given: set --l1.beacon to the beacon API \
         of an L1 consensus client"
    )]
    NoBeacon,
}

/// The blocks and blobs to fetch ahead.
#[derive(Clone, Copy, Debug, Default)]
struct AheadTarget {
    /// Number of the newest L1 block that may be fetched.
    head: u64,
    /// Batcher address: only blobs of its transactions are fetched.
    batcher: Option<Address>,
}

/// Reads L1 blocks and blobs, and fetches further ones ahead.
pub struct L1Reader {
    blocks: L1Blocks,
    prefetcher: Prefetcher,
    /// Blobs fetched ahead; `None` without `--l1.beacon`.
    blobs: Option<BlobsAhead>,
    /// Number of the next L1 block to check for blobs to fetch ahead.
    next_blobs: u64,
    /// The arguments of the last call of [`Self::input`], which bound what is fetched ahead.
    target: AheadTarget,
    rollup: Arc<RollupConfig>,
}

impl L1Reader {
    /// At most `max_in_flight` requests for blocks, each of at most `max_batch` blocks, and as many
    /// requests for blobs are in flight at once. Up to `max_in_flight` further block responses may
    /// wait to be checked, so that new requests are sent meanwhile.
    pub fn new(
        blocks: L1Blocks,
        max_in_flight: usize,
        max_batch: usize,
        beacon: Option<BeaconClient>,
        rollup: Arc<RollupConfig>,
    ) -> Self {
        Self {
            prefetcher: Prefetcher::new(blocks.clone(), 2 * max_in_flight, max_batch),
            blocks,
            blobs: beacon.map(|beacon| BlobsAhead::new(beacon, max_in_flight)),
            next_blobs: 0,
            target: AheadTarget::default(),
            rollup,
        }
    }

    pub fn client(&self) -> &L1Client {
        self.blocks.client()
    }

    /// The hash of the canonical L1 block of this number, which the caller knows to be at or below
    /// L1's head.
    pub async fn canonical_hash(&self, number: u64) -> Result<B256, L1ReadError> {
        let block = self.client().block_by_number(number).await?;
        Ok(block.ok_or_else(|| self.not_served(number))?.hash)
    }

    /// The canonical block of this number, which is not above `head`. Fetches ahead the blocks up
    /// to `head` and the blobs that `batcher` posted in them. Cancelling the call loses nothing.
    pub async fn input(
        &mut self,
        number: u64,
        head: u64,
        batcher: Option<Address>,
    ) -> Result<L1Input, L1ReadError> {
        self.target = AheadTarget { head, batcher };
        let data = self.prefetcher.next(number, head).await?;
        let data = data.ok_or_else(|| self.not_served(number))?;
        self.fetch_blobs_ahead(number);
        Ok(self.convert(&data))
    }

    /// Requests the blobs that `batcher` posted in the L1 blocks, from `number` on, that the
    /// prefetcher already has. If the batcher address changes later, these blobs are not used, and
    /// derivation requests those of the new batcher.
    fn fetch_blobs_ahead(&mut self, number: u64) {
        let (Some(ahead), Some(batcher)) = (&mut self.blobs, self.target.batcher) else {
            return;
        };
        for data in self.prefetcher.ready_from(number.max(self.next_blobs)) {
            if !ahead.has_room() {
                return;
            }
            self.next_blobs = data.block.number + 1;
            let posted = data.inbox.iter().filter(|read| read.sender == batcher);
            let wanted: Vec<BlobRef> = posted.flat_map(|read| &read.blobs).copied().collect();
            if !wanted.is_empty() {
                ahead.start(&data.block, wanted);
            }
        }
    }

    /// The L1 block with this hash, on any branch; `None` if L1 does not have it.
    pub async fn input_by_hash(&self, hash: B256) -> Result<Option<L1Input>, L1ReadError> {
        let data = self.blocks.get(L1BlockAt::Hash(hash)).await?;
        Ok(data.map(|data| self.convert(&data)))
    }

    /// Drops all blocks and blobs that were fetched ahead: they may be orphaned.
    pub fn on_reset(&mut self) {
        self.prefetcher.restart(0);
        self.next_blobs = 0;
        if let Some(blobs) = &mut self.blobs {
            blobs.clear();
        }
    }

    /// Blobs of a block, in the order of `blobs`, checked against their versioned hashes. Meanwhile
    /// later blocks and blobs are fetched ahead.
    pub async fn blobs(
        &mut self,
        block: &L1Block,
        blobs: &[BlobRef],
    ) -> Result<Vec<Bytes>, L1ReadError> {
        loop {
            let ahead = self.blobs.as_mut().ok_or(L1ReadError::NoBeacon)?;
            tokio::select! {
                biased;
                fetched = ahead.take(block, blobs) => return Ok(fetched?),
                () = self.prefetcher.fetch_ahead(self.target.head) => {}
            }
            self.fetch_blobs_ahead(block.number);
        }
    }

    fn not_served(&self, number: u64) -> L1ReadError {
        L1ReadError::NotServed {
            endpoint: self.client().endpoint().to_owned(),
            number,
        }
    }

    fn convert(&self, data: &L1BlockData) -> L1Input {
        L1Input {
            block: data.block,
            logs: RelevantLogs::of(&data.receipts, &self.rollup),
            inbox: data.inbox.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
