//! The choice between a new block and one that was sent to the signer before: for one height and parent only one block is ever signed
//! while its L1 origin is canonical.
//!
//! Pure: guard rows and L1 blocks go in, the decision comes out. A block that was sent to the signer counts as signed, because the signer
//! may have signed it although its response was lost.

use crate::chain::payload_log::Guard;
use alloy_primitives::B256;

/// The L1 block after the parent's L1 origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextL1 {
    NotAsked,
    /// L1 has no block at that height.
    Missing,
    Known(B256),
}

/// The block to sign on a parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A new one: no block that was sent to the signer before has a canonical L1 origin.
    Build,
    /// This one, which was sent to the signer before.
    Again(B256),
    /// The decision needs the L1 block after the parent's origin.
    AskNext,
    /// A block with this L1 origin was sent to the signer, and L1 has no block at the origin's height: no block may be signed yet.
    Unknown(B256),
}

/// Decides from the guard rows of one height and parent, in the order of signing. `epoch` is the parent's L1 origin, which is canonical.
/// The origin of a child is that block or the next one.
pub(super) fn turn(guards: &[Guard], epoch: B256, next: NextL1) -> Turn {
    for guard in guards.iter().rev() {
        match next {
            _ if guard.l1_origin == epoch => return Turn::Again(guard.hash),
            NextL1::Known(next) if guard.l1_origin == next => return Turn::Again(guard.hash),
            NextL1::Known(_) => {}
            NextL1::NotAsked => return Turn::AskNext,
            NextL1::Missing => return Turn::Unknown(guard.l1_origin),
        }
    }
    Turn::Build
}

#[cfg(test)]
mod tests;
