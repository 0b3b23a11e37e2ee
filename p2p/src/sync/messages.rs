//! Requests to peers, their responses, and the ways in which a request fails.

use alloy_primitives::B256;
use starling_proto::payload::BlockId;
use std::sync::Arc;

/// The blocks that a peer says it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    pub head: BlockId,
    /// The lowest block it serves.
    pub oldest: u64,
    pub safe: Option<BlockId>,
    pub finalized: Option<BlockId>,
}

/// A request for a range of headers or blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeRequest {
    /// The headers of this block and of those below it.
    Headers { from: BlockId, count: u32 },
    /// The blocks of these hashes, lowest first.
    Bodies {
        first: u64,
        hashes: Arc<[B256]>,
        max_bytes: u32,
    },
}

/// Hash links downward from a trusted block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashLinks {
    /// The hashes of its parent, its parent's parent, and so on.
    pub parents: Vec<B256>,
    /// Index of the first of them that the chain has executed.
    pub known: Option<usize>,
}

impl HashLinks {
    /// The links below `bottom`, which these lead to from `from`; `None` if they do not.
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

/// The reason why a request was not answered to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// The peer has no such block, or not on its chain.
    NotFound,
    /// The stream was dropped, or the connection is gone.
    Unreachable,
    /// Nothing came in time, or an error that is not "not found".
    TimedOut,
    /// The peer speaks neither spelling of `payload_by_number`.
    Unsupported,
    /// The response is not one of the protocol.
    Malformed(String),
    /// The response is a block or header other than the requested one: no honest peer sends that.
    False(String),
}

impl FetchError {
    /// The metrics label.
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
