//! Blocks that the local chain serves to peers, within the limits of the swarm's serving tasks.
//! Reads views only, so that serving never waits for the executor.

use crate::chain::{Chain, view::ReadError};
use alloy_primitives::B256;
use starling_p2p::Blocks;
use starling_proto::payload::{BlockId, Payload};

/// Serves requests of peers from the newest view.
impl Blocks for Chain {
    fn knows(&self, hash: B256) -> bool {
        Chain::knows(self, hash)
    }

    fn hash(&self, number: u64) -> Option<B256> {
        self.view().hash_of(number).ok().flatten()
    }

    fn block(&self, number: u64) -> Option<Payload> {
        readable(number, self.view().payload(number)).map(std::sync::Arc::unwrap_or_clone)
    }

    fn headers(&self, from: BlockId, take: &mut dyn FnMut(&[u8]) -> bool) {
        readable(
            from.number,
            self.view().encoded_headers(from, take).map(Some),
        );
    }

    fn bodies(
        &self,
        first: u64,
        last: BlockId,
        take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> bool {
        // Read one view, so that all blocks are on the branch of the last one.
        let view = self.view();
        let canonical = readable(last.number, view.hash_of(last.number)) == Some(last.hash);
        if canonical {
            readable(
                first,
                view.encoded_blocks(first..=last.number, take).map(Some),
            );
        }
        canonical
    }

    fn oldest(&self) -> u64 {
        let view = self.view();
        // Report only blocks that can be read.
        view.oldest_body().unwrap_or(view.head().number)
    }

    fn finalized(&self) -> Option<BlockId> {
        self.view().finalized()
    }
}

fn readable<T>(number: u64, block: Result<Option<T>, ReadError>) -> Option<T> {
    block.unwrap_or_else(|error| {
        tracing::error!(number, %error, "a block asked for by a peer could not be read");
        None
    })
}

#[cfg(test)]
mod tests;
