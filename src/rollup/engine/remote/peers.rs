//! Blocks of the execution client for the swarm: whether it has one, and whole ones for peers. Called
//! from threads that may block; each call waits for the client at most its time limit, and a client
//! that does not answer has no blocks.

use super::EngineClient;
use crate::rollup::engine::BlockAt;
use alloy_primitives::B256;
use starling_p2p::Blocks;
use starling_proto::payload::{BlockId, Payload};
use std::sync::Arc;
use tokio::runtime::Handle;

/// Answers to the swarm and to peers.
pub struct PeerBlocks {
    client: EngineClient,
    runtime: Handle,
}

impl PeerBlocks {
    /// Called within the runtime on which the calls are made.
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
