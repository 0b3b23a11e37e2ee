//! Serves blocks of the execution client to the swarm and its peers. Called from threads that may
//! block. Each call waits at most the client's time limit, after which the block counts as missing.

use super::EngineClient;
use crate::rollup::engine::BlockAt;
use alloy_primitives::B256;
use starling_p2p::Blocks;
use starling_proto::payload::{BlockId, Payload};
use std::sync::Arc;
use tokio::runtime::Handle;

/// Access to the execution client's blocks for the swarm and its peers.
pub struct PeerBlocks {
    client: EngineClient,
    runtime: Handle,
}

impl PeerBlocks {
    /// Must be called within the tokio runtime on which the calls to the client are made.
    pub fn new(client: EngineClient) -> Self {
        Self {
            client,
            runtime: Handle::current(),
        }
    }
}

impl Blocks for PeerBlocks {
    fn knows(&self, hash: B256) -> bool {
        let found = self.runtime.block_on(self.client.link(hash));
        found.is_ok_and(|found| found.is_some())
    }

    fn block(&self, number: u64) -> Option<Payload> {
        let found = self
            .runtime
            .block_on(self.client.block(BlockAt::Number(number)));
        found.ok().flatten().map(Arc::unwrap_or_clone)
    }

    fn finalized(&self) -> Option<BlockId> {
        self.client.heads().borrow().finalized
    }
}
