//! Builds of the Engine API: starts to build a block on the head, and returns the same block for
//! every request with its payload id.

use super::{EngineBackend, EngineError};
use crate::chain::{ChainError, rules::Active, view::ExecutedBlock};
use alloy_primitives::B256;
use alloy_rpc_types_engine::PayloadId;
use lru::LruCache;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use std::{num::NonZeroUsize, sync::Arc};

/// Maximum builds that can still be fetched (op-geth: 10).
pub(super) const BUILDS: NonZeroUsize = NonZeroUsize::new(10).expect("not zero");

/// The latest builds, by payload id.
pub(super) struct Builds(LruCache<PayloadId, RequestedBuild>);

impl Default for Builds {
    fn default() -> Self {
        Self(LruCache::new(BUILDS))
    }
}

/// A build that a rollup node has requested.
struct RequestedBuild {
    parent: B256,
    attributes: OpPayloadAttributes,
    /// The built block, once the rollup node has fetched it.
    block: Option<Arc<ExecutedBlock>>,
}

/// The payload id, byte for byte the same as op-geth's. Absent withdrawals count as an empty list.
/// Byte 0 is the version of the method that was called with the attributes.
pub fn payload_id(parent: B256, attributes: &OpPayloadAttributes, version: u8) -> PayloadId {
    if attributes.payload_attributes.withdrawals.is_some() {
        return attributes.payload_id(&parent, version);
    }
    let mut attributes = attributes.clone();
    attributes.payload_attributes.withdrawals = Some(vec![]);
    attributes.payload_id(&parent, version)
}

impl EngineBackend {
    pub(super) async fn start(
        &self,
        parent: B256,
        attributes: OpPayloadAttributes,
        version: u8,
    ) -> Result<PayloadId, EngineError> {
        let id = payload_id(parent, &attributes, version);
        let mut builds = self.builds.lock().await;
        if builds.0.get(&id).is_none() {
            self.chain
                .start_as(id, parent, attributes.clone())
                .await
                .map_err(build_error)?;
            builds.0.put(
                id,
                RequestedBuild {
                    parent,
                    attributes,
                    block: None,
                },
            );
        }
        Ok(id)
    }

    /// The payload with this id, the same one every time. `serves` decides, from the rules of the
    /// block, whether the called method may return it.
    pub async fn payload(
        &self,
        id: PayloadId,
        serves: impl Fn(&Active) -> bool,
    ) -> Result<Arc<ExecutedBlock>, EngineError> {
        let mut builds = self.builds.lock().await;
        let build = builds.0.get_mut(&id).ok_or(EngineError::UnknownPayload)?;
        let timestamp = build.attributes.payload_attributes.timestamp;
        if !serves(&self.chain.spec().at(timestamp)) {
            return Err(EngineError::UnsupportedFork);
        }
        if let Some(block) = &build.block {
            return Ok(block.clone());
        }
        let block = match self.chain.seal(id).await {
            // Another build has replaced this one in the builder: build the block again.
            Err(ChainError::UnknownPayload) => {
                self.chain
                    .start_as(id, build.parent, build.attributes.clone())
                    .await
                    .map_err(build_error)?;
                self.chain.seal(id).await
            }
            sealed => sealed,
        }?;
        // Log the block now: the rollup node may publish it before it sends it back as a new
        // payload.
        self.chain.keep(block.payload.clone()).await?;
        build.block = Some(block.clone());
        Ok(block)
    }
}

fn build_error(error: ChainError) -> EngineError {
    match error {
        ChainError::Build(reason) => EngineError::Attributes(reason),
        other => other.into(),
    }
}
