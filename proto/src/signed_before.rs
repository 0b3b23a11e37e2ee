//! Chooses between a new block and a block that was sent to the signer before. For one height and
//! parent, only one block is ever signed while its L1 origin is canonical.
//!
//! Pure: takes guard rows and L1 blocks, and returns the decision. A block that was sent to the
//! signer counts as signed, because the signer may have signed it although its response was lost.

use alloy_primitives::B256;

/// A block that was sent to the signer here, or was about to be: it counts as signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignGuard {
    /// The block's L1 origin.
    pub l1_origin: B256,
    /// The block.
    pub hash: B256,
    /// Orders the blocks of one height and parent by the time at which they were last sent to the
    /// signer. Zero in rows of older versions, which did not store it.
    pub sent_order: u64,
}

/// The L1 block after the parent's L1 origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextL1 {
    /// Not known yet.
    NotFetched,
    /// L1 has no block at the height after the parent's L1 origin.
    Missing,
    /// The block with this hash.
    Known(B256),
}

/// The block to sign on a parent: a new block or an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SigningChoice {
    /// A new block: no block that was sent to the signer before has a canonical L1 origin.
    Build,
    /// The block with this hash, which was sent to the signer before.
    Resign(B256),
    /// The decision needs the L1 block after the parent's origin, which must be fetched first.
    FetchNext,
    /// A block with this L1 origin was sent to the signer, and L1 has no block at the origin's
    /// height: no block may be signed yet.
    OriginUnknown(B256),
}

/// Decides from the guard rows of one height and parent, in the order of signing. `epoch` is the
/// parent's L1 origin, which is canonical. A child has that L1 block as its origin, or the next L1
/// block.
pub fn choose(guards: &[SignGuard], epoch: B256, next: NextL1) -> SigningChoice {
    for guard in guards.iter().rev() {
        match next {
            _ if guard.l1_origin == epoch => return SigningChoice::Resign(guard.hash),
            NextL1::Known(next) if guard.l1_origin == next => {
                return SigningChoice::Resign(guard.hash);
            }
            NextL1::Known(_) => {}
            NextL1::NotFetched => return SigningChoice::FetchNext,
            NextL1::Missing => return SigningChoice::OriginUnknown(guard.l1_origin),
        }
    }
    SigningChoice::Build
}

#[cfg(test)]
mod tests;
