//! Requests to peers, their responses, and the errors of failed requests.

use alloy_primitives::B256;
use starling_proto::payload::BlockId;
use std::sync::Arc;

/// The blocks that a peer claims to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    pub head: BlockId,
    /// The lowest block that the peer serves.
    pub oldest: u64,
    pub safe: Option<BlockId>,
    pub finalized: Option<BlockId>,
}

/// A request for a range of headers or blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeRequest {
    /// The headers of the block `from` and of its ancestors, `count` in total.
    Headers { from: BlockId, count: u32 },
    /// The blocks with these hashes, lowest first.
    Bodies {
        first: u64,
        hashes: Arc<[B256]>,
        max_bytes: u32,
    },
}

/// Hash links downward from a trusted block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashLinks {
    /// The hashes of the block's parent, of that parent's parent, and so on.
    pub parents: Vec<B256>,
    /// Index of the first hash in `parents` whose block the chain has executed.
    pub known: Option<usize>,
}

impl HashLinks {
    /// The links below `bottom`, if these links, which begin below `from`, pass through `bottom`;
    /// otherwise `None`.
    pub fn below(&self, from: BlockId, bottom: BlockId) -> Option<HashLinks> {
        let above = usize::try_from(from.number.checked_sub(bottom.number)?).ok()?;
        let meets = if above == 0 {
            from.hash
        } else {
            *self.parents.get(above - 1)?
        };
        let known = self.known.map(|known| known.saturating_sub(above));
        (meets == bottom.hash).then(|| HashLinks {
            parents: self.parents[above..].to_vec(),
            known,
        })
    }
}

/// The reason why a request has no complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// The peer does not have the block, or not on its chain.
    NotFound,
    /// The peer dropped the stream, or the connection is closed.
    Unreachable,
    /// No response in time, or an error response other than "not found".
    TimedOut,
    /// The peer supports neither spelling of the `payload_by_number` protocol id.
    Unsupported,
    /// The response does not follow the protocol.
    Malformed(String),
    /// The response is another block or header than the requested one: no honest peer sends that.
    False(String),
}

impl FetchError {
    /// The value of the metrics label.
    pub fn label(&self) -> &'static str {
        match self {
            FetchError::NotFound => "not_found",
            FetchError::Unreachable => "unreachable",
            FetchError::TimedOut => "no_answer",
            FetchError::Unsupported => "unsupported",
            FetchError::Malformed(_) => "malformed",
            FetchError::False(_) => "false",
        }
    }
}
