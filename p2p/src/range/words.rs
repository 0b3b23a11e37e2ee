//! What peers are asked, and what they say.

use alloy_primitives::B256;
use starling_proto::payload::BlockId;
use std::sync::Arc;

/// What a peer says it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    pub head: BlockId,
    /// The lowest block it serves.
    pub oldest: u64,
    pub safe: Option<BlockId>,
    pub finalized: Option<BlockId>,
}

/// A question to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The headers of this block and of those below it.
    Headers { from: BlockId, count: u32 },
    /// The blocks of these hashes, the lowest first.
    Bodies {
        first: u64,
        hashes: Arc<[B256]>,
        max_bytes: u32,
    },
}

/// Hash links downward from a trusted block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Of its parent, its parent's parent, and so on.
    pub parents: Vec<B256>,
    /// The first of them that the chain has executed.
    pub known: Option<usize>,
}

impl Links {
    /// Those below `bottom`, which they lead to from `from`; `None` if they do not.
    pub fn below(&self, from: BlockId, bottom: BlockId) -> Option<Links> {
        let above = usize::try_from(from.number.checked_sub(bottom.number)?).ok()?;
        let meets = if above == 0 {
            from.hash
        } else {
            *self.parents.get(above - 1)?
        };
        let known = self.known.map(|known| known.saturating_sub(above));
        (meets == bottom.hash).then(|| Links {
            parents: self.parents[above..].to_vec(),
            known,
        })
    }
}

/// Why a question was not answered to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It has no such block, or not on its chain.
    NotFound,
    /// The stream or the connection is gone.
    Unreachable,
    NoAnswer,
    /// The answer is not of the protocol.
    Malformed(String),
    /// The answer is a block or header other than the one named: no honest peer sends that.
    False(String),
}
