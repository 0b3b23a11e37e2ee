//! Provenance: the source of a payload, which decides how far the node trusts it.

use crate::payload::BlockId;
use alloy_primitives::Address;

/// The source of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// Gossip. The block is signed by this address.
    Signed(Address),
    /// A block whose hash is the parent hash of a trusted payload.
    Linked {
        /// Height of the signed block from which the parent hashes lead to this block.
        tip: u64,
    },
    /// The Engine API, authenticated by JWT.
    Engine,
    /// An ancestor, by parent hashes, of the payload `of`, which the Engine API delivered.
    Ancestor {
        /// The descendant from the Engine API.
        of: BlockId,
    },
    /// A file or the payload log.
    Imported,
}
