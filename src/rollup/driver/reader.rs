//! L1 as derivation reads it: blocks with their logs and inbox transactions, and blobs.

use crate::rollup::l1::{L1Block, L1Client, L1Error};
use alloy_primitives::{B256, Bytes};
use starling_proto::{
    config::RollupConfig,
    derive::{BlobRef, L1Input},
};
use std::sync::Arc;

/// An input that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    L1(#[from] L1Error),
    /// The endpoint reported a higher head.
    #[error("L1 at {endpoint} has no block {number} below the head that it reported")]
    NotServed { endpoint: String, number: u64 },
    #[error("the batcher posted blobs, and no beacon endpoint is given; set --l1.beacon")]
    NoBeacon,
}

/// Reads L1.
pub struct L1Reader {
    client: L1Client,
    rollup: Arc<RollupConfig>,
}

impl L1Reader {
    pub fn new(client: L1Client, rollup: Arc<RollupConfig>) -> Self {
        Self { client, rollup }
    }

    pub fn client(&self) -> &L1Client {
        &self.client
    }

    /// The hash of the canonical block of this number; `None` above the head.
    pub async fn hash_of(&self, number: u64) -> Result<Option<B256>, ReadError> {
        let block = self.client.block_by_number(number).await?;
        Ok(block.map(|block| block.hash))
    }

    /// The canonical block of this number, which is not above the head.
    pub async fn input(&self, number: u64) -> Result<L1Input, ReadError> {
        let _ = (&self.rollup, number);
        todo!()
    }

    /// The block with this hash, on any branch.
    pub async fn input_by_hash(&self, hash: B256) -> Result<Option<L1Input>, ReadError> {
        let _ = hash;
        todo!()
    }

    /// Blobs of a block, in the order of `blobs`, checked against their versioned hashes.
    pub async fn blobs(&self, block: &L1Block, blobs: &[BlobRef]) -> Result<Vec<Bytes>, ReadError> {
        let _ = (block, blobs);
        todo!()
    }
}
