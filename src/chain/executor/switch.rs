//! Branch switches: the head moves to a branch whose blocks cannot be executed beside our chain,
//! because they exceed the executor's limits or fork off too far below the stored head.
//!
//! Every switch to such a branch runs through [`Executor::switch_to`], for the follower, the Engine
//! API and the import of files. A [`SwitchPolicy`] names the party that requests the switch. Until
//! the branch has won, the abandoned head is held as the [`DisplacedHead`]: the payload log names
//! this head and keeps its blocks. An invalid block on the branch therefore reinstates the head,
//! and so does a restart as long as the stored head is lower. Crash order: the displaced head is
//! logged first, then the canonical blocks above the fork point, then the store unwinds.

use super::{Executor, forkchoice::SafeHeads};
use crate::chain::{ChainError, Heads, Inserted, execute::Preparation};
use starling_proto::payload::{BlockId, Payload};
use starling_proto::provenance::Provenance;

/// The party that requests a branch switch. It determines when the head may switch, and when the
/// branch has won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchPolicy {
    /// The swarm: the head moves only to a branch that is announced to end above the displaced
    /// head, and contains the safe head, the finalized head and the newest derived block. The
    /// branch wins when it is higher than the displaced head.
    Follower,
    /// The Engine API, while it executes the blocks that lead to the head of a fork choice. The
    /// safe and the finalized head are lowered to the newest blocks that both branches contain. The
    /// branch wins when the fork choice is applied.
    ForkChoice,
    /// A file takes precedence over our chain, but not over the safe and the finalized head. The
    /// branch wins with its first valid block, however low it ends.
    Import,
}

/// Whether the head that a branch switch has abandoned is still held.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum DisplacedHead {
    /// No branch switch is in progress: our head is the only one.
    #[default]
    Released,
    /// Our head is on a branch that has not won yet, and the earlier head is held.
    Held(HeldHead),
}

/// The head that a branch switch abandoned. Until the new branch has won (see [`SwitchPolicy`]),
/// the payload log still names this head. An invalid block on the branch reinstates the head, and
/// so does a restart while the stored head is lower.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldHead {
    head: BlockId,
    /// Height of the fork point of the displaced and the new branch. The payload log keeps the
    /// blocks above it.
    fork: u64,
    /// The policy of the latest switch. After several switches in a row, the head before the first
    /// one is held.
    policy: SwitchPolicy,
    /// The safe and the finalized head before a fork choice lowered them; `None` if no fork choice
    /// has done so.
    lowered: Option<LoweredHeads>,
}

/// Values of the safe and the finalized head before a fork choice lowered them.
#[derive(Clone, Copy, Debug)]
struct LoweredHeads {
    safe: Option<BlockId>,
    finalized: Option<BlockId>,
}

impl DisplacedHead {
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Held(_))
    }

    pub fn is_held_by(&self, policy: SwitchPolicy) -> bool {
        matches!(self, Self::Held(held) if held.policy == policy)
    }

    pub fn head(&self) -> Option<BlockId> {
        match self {
            Self::Released => None,
            Self::Held(held) => Some(held.head),
        }
    }

    /// Height of the fork point, above which the payload log must keep the displaced blocks.
    pub fn fork(&self) -> Option<u64> {
        match self {
            Self::Released => None,
            Self::Held(held) => Some(held.fork),
        }
    }

    /// Whether the payload log still names the displaced head when `head` becomes our head.
    pub fn outranks(&self, head: BlockId) -> bool {
        match self {
            Self::Released => false,
            Self::Held(held) if held.policy == SwitchPolicy::Follower => {
                held.head.number >= head.number
            }
            Self::Held(_) => true,
        }
    }

    /// Lets the higher branch win from now on, because the swarm moves the head: the fork choice
    /// that displaced a head has ended, or its caller is gone.
    pub fn continue_by_height(&mut self) {
        if let Self::Held(held) = self {
            held.policy = SwitchPolicy::Follower;
        }
    }
}

impl Executor {
    /// Executes a block. If the block cannot be executed beside our chain and the policy allows a
    /// switch, the head moves to the block's parent first. If the block then is not valid, the
    /// displaced head is reinstated. An error that does not end the chain says why the head cannot
    /// move to the parent, and then the head has not moved.
    pub(super) fn switch_to(
        &mut self,
        preparation: Preparation,
        provenance: Provenance,
        policy: SwitchPolicy,
    ) -> Result<Inserted, ChainError> {
        let payload = preparation.payload().clone();
        let inserted = self.insert(preparation, provenance)?;
        if inserted != Inserted::NotExecutable || !self.may_switch(&payload, provenance, policy) {
            return Ok(inserted);
        }
        self.displace_head(&payload, policy)?;
        let inserted = self.insert(Preparation::later(payload), provenance)?;
        if inserted != Inserted::Valid {
            self.reinstate()?;
        } else if policy == SwitchPolicy::Import {
            self.displaced = DisplacedHead::Released;
            self.log_head(self.heads.head)?;
        }
        Ok(inserted)
    }

    /// Whether the policy allows the head to move to this block's branch.
    fn may_switch(&self, payload: &Payload, provenance: Provenance, policy: SwitchPolicy) -> bool {
        if policy != SwitchPolicy::Follower {
            return true;
        }
        let tip = match provenance {
            Provenance::Linked { tip } => tip,
            Provenance::Ancestor { of } => of.number,
            _ => payload.number(),
        };
        let highest = self.displaced.head().unwrap_or(self.heads.head);
        tip > highest.number && self.may_become_head(payload.hash, provenance)
    }

    /// Moves the head to the parent of a block. Holds the present head as the displaced head,
    /// unless an earlier one is held already.
    fn displace_head(&mut self, payload: &Payload, policy: SwitchPolicy) -> Result<(), ChainError> {
        // Finish the pending commit first. `hold_head` names our head in the log, and from then on
        // the head's blocks must be stored or logged.
        self.finish_commits()?;
        self.drop_oldest_sibling(payload.number());
        let (before, old, parent) = (self.displaced, self.heads.head, payload.parent_hash());
        // The stored block below the parent; `None` if the parent itself is stored.
        let fork_point = match self.tree.get(&parent).map(|block| block.payload.id()) {
            Some(parent) => Some(self.branch(parent)?.base),
            None => None,
        };
        let fork = fork_point
            .map_or(payload.number().saturating_sub(1), |point| point.number)
            .min(self.branch(old)?.base.number);
        self.hold_head(fork, policy)?;
        // If the unwind data between our head and the parent exceeds its budget, unwind the store
        // to the fork point first.
        let first = if self.find_view(parent)?.is_none() {
            fork_point
        } else {
            None
        };
        let safe_heads = match policy {
            SwitchPolicy::Follower | SwitchPolicy::Import => SafeHeads::KEPT,
            SwitchPolicy::ForkChoice => SafeHeads::Lowered,
        };
        for head in first.map(|point| point.hash).into_iter().chain([parent]) {
            if let Err(error) = self.apply_forkchoice(head, safe_heads) {
                if self.heads.head == old {
                    self.displaced = before;
                } else {
                    self.reinstate()?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Holds the present head as the displaced head, or keeps holding an earlier one, until the
    /// branch with this fork point has won.
    fn hold_head(&mut self, fork: u64, policy: SwitchPolicy) -> Result<(), ChainError> {
        let mut held = match self.displaced {
            DisplacedHead::Released => HeldHead {
                head: self.heads.head,
                fork,
                policy,
                lowered: None,
            },
            DisplacedHead::Held(held) => HeldHead {
                fork: fork.min(held.fork),
                policy,
                ..held
            },
        };
        if policy == SwitchPolicy::ForkChoice && held.lowered.is_none() {
            held.lowered = Some(LoweredHeads {
                safe: self.heads.safe,
                finalized: self.heads.finalized,
            });
        }
        self.log.set_head(held.head)?;
        self.displaced = DisplacedHead::Held(held);
        Ok(())
    }

    /// Reinstates the head that was displaced for a fork choice, which has failed.
    pub(super) fn abandon_fork_choice(&mut self) -> Result<(), ChainError> {
        if self.displaced.is_held_by(SwitchPolicy::ForkChoice) {
            self.reinstate()?;
        }
        Ok(())
    }

    /// Makes the displaced head the head again, with the safe and the finalized head that a fork
    /// choice has lowered.
    pub(super) fn reinstate(&mut self) -> Result<(), ChainError> {
        let DisplacedHead::Held(HeldHead { head, lowered, .. }) = self.displaced else {
            return Ok(());
        };
        let restored = self.restore(head, &mut 0)?;
        self.displaced = DisplacedHead::Released;
        if !restored {
            tracing::error!(lost = %head, head = %self.heads.head, "a displaced head cannot be reached any more");
            return self.log_head(self.heads.head);
        }
        let heads = match lowered {
            Some(LoweredHeads { safe, finalized }) => Heads {
                safe,
                finalized,
                ..self.heads
            },
            None => self.heads,
        };
        if self.heads != heads {
            let view = self.make_view(&heads)?;
            self.set_heads(heads, view.ok_or(ChainError::UnknownBlock(head.hash))?)?;
        }
        Ok(())
    }
}
