//! Provenance: how a payload reached the node, which decides how far it is trusted.

use crate::payload::BlockId;
use alloy_primitives::Address;

/// How a payload reached the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// Gossip, signed by this address.
    Signed(Address),
    /// A block whose hash is the parent hash of a trusted payload.
    Linked {
        /// Height of the signed block above it.
        tip: u64,
    },
    /// The Engine API (JWT).
    Engine,
    /// An ancestor, linked by parent hashes, of the payload `of`, which came over the Engine API.
    Ancestor {
        /// The payload.
        of: BlockId,
    },
    /// Read from a file or the payload log.
    Imported,
}
