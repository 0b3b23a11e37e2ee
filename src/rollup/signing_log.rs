//! The durable record of blocks that may have been signed here: the payload log with its guard
//! rows.
//!
//! The record is apart from the [`Engine`](super::engine::Engine) because it belongs to the signing
//! key: a sequencer that drives a core in another process keeps its own. Only the sequencer writes
//! it, one row per block.

use crate::chain::{Chain, ChainError, payload_log::Guard};
use alloy_primitives::B256;
use starling_proto::payload::Payload;
use std::sync::Arc;

/// The signing records in a chain's payload log.
#[derive(Clone)]
pub struct SigningLog(Chain);

impl SigningLog {
    pub fn new(chain: Chain) -> Self {
        Self(chain)
    }

    /// Records a block, durably. Must precede every request for its signature. Fails with
    /// [`ChainError::AlreadySigned`] if another block of this height, parent and L1 origin is
    /// recorded.
    pub async fn record(&self, payload: Arc<Payload>, l1_origin: B256) -> Result<(), ChainError> {
        self.0.log_before_sign(payload, l1_origin).await
    }

    /// The records of this height and parent, in the order of signing.
    pub fn signed(&self, number: u64, parent: B256) -> Result<Vec<Guard>, ChainError> {
        self.0.guards(number, parent)
    }

    /// The logged blocks of this height and parent, built here or received.
    pub fn children(&self, number: u64, parent: B256) -> Result<Vec<Payload>, ChainError> {
        self.0.logged_children(number, parent)
    }

    /// A logged block, on any branch.
    pub fn block(&self, hash: B256) -> Result<Option<Arc<Payload>>, ChainError> {
        self.0.payload(hash)
    }
}
