//! Which block a height takes for which blocks were sent to the signer before: for one height and parent only one block is ever signed
//! while its L1 origin is canonical.
//!
//! Pure: the guard rows and what L1 says come in, the decision comes out. A block that was sent to the signer counts as signed, because
//! the signer may have signed it and its answer may have been lost.

use crate::chain::payload_log::Guard;
use alloy_primitives::B256;

/// What L1 says of the block after the parent's L1 origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextL1 {
    NotAsked,
    /// L1 has no block there.
    Missing,
    Known(B256),
}

/// The block to sign on a parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A new one: every block that was sent to the signer before is on an L1 block that is gone.
    Build,
    /// This one, which was sent to the signer before.
    Again(B256),
    /// No decision is possible before L1 is asked for the block after the parent's origin.
    AskNext,
    /// A block on this L1 block was sent to the signer, and L1 has no block at that height: neither it nor another one may be signed.
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
