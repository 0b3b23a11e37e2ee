//! The branch of a new head, and the check that it contains the blocks that the head must keep.
//! Pure.

use super::cache::BlockLink;
use crate::chain::{ChainError, Heads};
use alloy_primitives::B256;
use starling_proto::payload::BlockId;

/// The branch from the execution client's canonical chain to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteBranch {
    pub tip: BlockLink,
    /// The highest canonical block on the branch; the tip itself if the tip is canonical.
    pub fork_point: BlockId,
    /// The blocks above the fork point, lowest first.
    pub above: Vec<BlockId>,
}

impl RemoteBranch {
    /// Whether a canonical block is on this branch too.
    pub(super) fn keeps(&self, canonical: BlockId) -> bool {
        canonical.number <= self.fork_point.number
    }

    /// Whether the tip is a canonical block below `head`. A fork choice to it may leave the client's
    /// own head in place.
    pub(super) fn lowers(&self, head: BlockId) -> bool {
        self.above.is_empty() && self.tip.id.number < head.number
    }

    /// Whether a block is on this branch. `is_canonical` states whether the block is canonical.
    pub(super) fn contains(&self, block: BlockId, is_canonical: bool) -> bool {
        self.above.contains(&block) || (is_canonical && self.keeps(block))
    }

    /// Fails unless the branch contains the protected block and the safe and finalized heads. A
    /// head that `moves` changes is not checked.
    pub(super) fn check(
        &self,
        heads: &Heads,
        protected: Option<BlockId>,
        moves: LabelMoves,
    ) -> Result<(), ChainError> {
        let safe = heads.safe.filter(|_| moves.safe.is_none());
        let finalized = heads.finalized.filter(|_| moves.finalized.is_none());
        let left = [safe, finalized, protected]
            .into_iter()
            .flatten()
            .find(|block| !self.keeps(*block));
        match left {
            Some(block) => Err(ChainError::NotOnBranch {
                block: block.hash,
                head: self.tip.id.hash,
            }),
            None => Ok(()),
        }
    }
}

/// New safe and finalized heads. `None` leaves a head unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LabelMoves {
    pub safe: Option<BlockId>,
    pub finalized: Option<BlockId>,
}

impl LabelMoves {
    /// Fails if the finalized head would be above the safe head.
    pub(super) fn check(&self, heads: &Heads) -> Result<(), ChainError> {
        let safe = self.safe.or(heads.safe);
        let finalized = self.finalized.or(heads.finalized);
        match (safe, finalized) {
            (Some(safe), Some(finalized)) if finalized.number > safe.number => {
                Err(ChainError::FinalizedAboveSafe { safe, finalized })
            }
            _ => Ok(()),
        }
    }

    /// `heads` with the new unsafe head `head` and with the changes of `self` applied.
    pub(super) fn applied(&self, head: BlockLink, heads: &Heads) -> Heads {
        Heads {
            head: head.id,
            timestamp: head.timestamp,
            safe: self.safe.or(heads.safe),
            finalized: self.finalized.or(heads.finalized),
        }
    }
}

/// The heads to continue with after an execution client was restarted. The unsafe head is the
/// client's own. The safe and the finalized head are those of `kept`, which are still canonical,
/// otherwise the client's own. A safe or finalized head above the unsafe head is dropped, because
/// the client has lost that block. A finalized block is also safe.
pub(super) fn after_restart(client: Heads, kept: LabelMoves) -> Heads {
    let below = |label: &BlockId| label.number <= client.head.number;
    let finalized = kept.finalized.or(client.finalized).filter(below);
    let safe = kept.safe.filter(below).or(client.safe.filter(below));
    let safe = [safe, finalized]
        .into_iter()
        .flatten()
        .max_by_key(|block| block.number);
    Heads {
        safe,
        finalized,
        ..client
    }
}

/// The hash to send for a safe or finalized head; zero, which leaves the head unchanged, for
/// `None`.
pub(super) fn hash_of(label: Option<BlockId>) -> B256 {
    label.map_or(B256::ZERO, |label| label.hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64, branch: u8) -> BlockId {
        let mut hash = B256::repeat_byte(branch);
        hash.0[0] = number as u8;
        BlockId { number, hash }
    }

    fn path(fork_point: u64, tip: u64) -> RemoteBranch {
        let above: Vec<_> = (fork_point + 1..=tip).map(|number| id(number, 2)).collect();
        let tip = above.last().copied().unwrap_or(id(fork_point, 1));
        RemoteBranch {
            tip: BlockLink {
                id: tip,
                parent: B256::ZERO,
                timestamp: 0,
            },
            fork_point: id(fork_point, 1),
            above,
        }
    }

    fn heads(head: u64, safe: Option<u64>, finalized: Option<u64>) -> Heads {
        Heads {
            head: id(head, 1),
            timestamp: 0,
            safe: safe.map(|number| id(number, 1)),
            finalized: finalized.map(|number| id(number, 1)),
        }
    }

    #[test]
    fn a_branch_keeps_safe_finalized_and_derived_blocks() {
        let heads = heads(20, Some(10), Some(5));
        let stay = LabelMoves::default();
        assert!(path(10, 30).check(&heads, None, stay).is_ok());
        for (path, protected) in [(path(9, 30), None), (path(12, 30), Some(id(13, 1)))] {
            let refused = path.check(&heads, protected, stay);
            assert!(matches!(refused, Err(ChainError::NotOnBranch { .. })));
        }
        // A lower safe head may be set together with the head.
        let lowered = LabelMoves {
            safe: Some(id(7, 1)),
            finalized: None,
        };
        assert!(path(8, 30).check(&heads, None, lowered).is_ok());
        assert!(path(4, 30).check(&heads, None, lowered).is_err());
        assert!(path(9, 30).contains(id(12, 2), false));
        assert!(!path(9, 30).contains(id(12, 1), true));
        assert!(path(9, 30).contains(id(9, 1), true));
        assert!(!path(9, 30).contains(id(8, 3), false));
    }

    #[test]
    fn finalized_is_never_above_safe() {
        let to = |safe: Option<u64>, finalized: Option<u64>| LabelMoves {
            safe: safe.map(|number| id(number, 1)),
            finalized: finalized.map(|number| id(number, 1)),
        };
        let heads = heads(20, Some(10), Some(5));
        assert!(to(None, Some(10)).check(&heads).is_ok());
        assert!(to(None, Some(11)).check(&heads).is_err());
        assert!(to(Some(4), None).check(&heads).is_err());
        assert!(to(Some(12), Some(11)).check(&heads).is_ok());
    }

    #[test]
    fn a_client_that_lost_blocks_has_no_label_above_its_head() {
        let kept = LabelMoves {
            safe: Some(id(18, 1)),
            finalized: Some(id(9, 1)),
        };
        assert_eq!(
            after_restart(heads(30, None, Some(4)), kept),
            heads(30, Some(18), Some(9))
        );
        assert_eq!(
            after_restart(heads(30, Some(3), Some(2)), LabelMoves::default()),
            heads(30, Some(3), Some(2))
        );
        assert_eq!(
            after_restart(heads(12, None, None), kept),
            heads(12, Some(9), Some(9)),
            "a final block is safe"
        );
        assert_eq!(
            after_restart(heads(5, Some(7), Some(6)), LabelMoves::default()),
            heads(5, None, None)
        );
    }
}
