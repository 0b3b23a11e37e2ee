//! Slot of one nonce: its owner, the transactions signed for it, and the time of its next step.

use super::{MinedTx, SendFailure, SendId, SendWork, SignedTx};
use crate::txmgr::fees::{FeeCaps, TxClass};
use alloy_primitives::B256;
use std::time::Instant;

/// The request or filler that a nonce is for.
#[derive(Clone, Debug)]
pub(super) struct SlotOwner {
    pub work: SendWork,
    pub class: TxClass,
    /// Time at which the request fails; `None` for a filler.
    pub deadline: Option<Instant>,
    /// Time by which a pool must have accepted the transaction.
    pub mempool_deadline: Option<Instant>,
}

impl SlotOwner {
    pub fn filler(class: TxClass) -> Self {
        Self {
            work: SendWork::Filler,
            class,
            deadline: None,
            mempool_deadline: None,
        }
    }

    /// The failure of the request, if one of its deadlines has passed.
    pub fn expired(&self, accepted: bool, now: Instant) -> Option<SendFailure> {
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if is_over(self.deadline) {
            Some(SendFailure::Timeout)
        } else if !accepted && is_over(self.mempool_deadline) {
            Some(SendFailure::NotInMempool)
        } else {
            None
        }
    }
}

/// State of one nonce.
#[derive(Clone, Debug, Default)]
pub(super) struct NonceSlot {
    /// Owner of the nonce. `None` if the owner was given up before a pool accepted its transaction:
    /// the nonce is free.
    pub owner: Option<SlotOwner>,
    /// Hashes of the newest transactions signed for this nonce, with their purpose.
    pub attempts: Vec<(B256, SendWork)>,
    /// The owner's newest transaction. For a filler that is not signed yet, the transaction to
    /// replace.
    pub current: Option<SignedTx>,
    /// Fees of the newest transaction signed for this nonce.
    pub caps: Option<FeeCaps>,
    /// Fees of the transaction that is being signed.
    pub signing: Option<FeeCaps>,
    /// Whether to raise the fees before the next publication.
    pub wants_bump: bool,
    /// Whether a transaction with this nonce was ever published, accepted or not.
    pub sent: bool,
    /// Whether a pool has accepted a transaction of the owner, or of the request that a filler
    /// replaces, or a block includes a transaction of the only owner.
    pub accepted: bool,
    /// The transaction of `attempts` that is in an L1 block.
    pub mined: Option<MinedTx>,
    /// Number of the operation in flight for this nonce.
    pub busy: Option<u64>,
    /// Time of the next publication, or of the next attempt to create a transaction.
    pub publish_at: Option<Instant>,
    /// Time of the next raise of the fees.
    pub bump_at: Option<Instant>,
    pub craft_failures: u32,
    /// Number of consecutive refused publications.
    pub retries: u64,
    /// Number of `nonce too low` responses since a transaction of this nonce was last mined or the
    /// owner last changed.
    pub nonce_too_low: u32,
    /// Number of `already reserved` responses since a pool last accepted a transaction of the owner,
    /// or a transaction of this nonce was last mined.
    pub reserved: u32,
    /// Number of consecutive polls in which a transaction outside `attempts` had used the nonce.
    pub lost: u32,
}

impl NonceSlot {
    /// Gives the nonce to a new owner. Transactions signed for the previous owner stay in
    /// `attempts`.
    pub fn own(&mut self, owner: SlotOwner, bump_at: Instant) {
        let was_accepted = self.accepted && owner.work == SendWork::Filler;
        *self = Self {
            owner: Some(owner),
            attempts: std::mem::take(&mut self.attempts),
            current: self.current.take().filter(|_| was_accepted),
            caps: self.caps.take(),
            sent: self.sent,
            accepted: was_accepted,
            bump_at: Some(bump_at),
            ..Self::default()
        };
    }

    /// Removes the owner, so that the nonce is free.
    pub fn vacate(&mut self) {
        *self = Self {
            attempts: std::mem::take(&mut self.attempts),
            caps: self.caps.take(),
            sent: self.sent,
            ..Self::default()
        };
        // No pool accepted these transactions. Drop the oldest ones, which are the least likely to
        // be mined, so that fees of the next owner's can be raised at once.
        let excess = self.attempts.len().saturating_sub(super::MAX_ATTEMPTS / 2);
        self.attempts.drain(..excess);
    }

    pub fn request(&self) -> Option<SendId> {
        match self.owner.as_ref()?.work {
            SendWork::Request(id) => Some(id),
            SendWork::Filler => None,
        }
    }

    pub fn is_filler(&self) -> bool {
        let owner = self.owner.as_ref();
        owner.is_some_and(|owner| owner.work == SendWork::Filler)
    }

    pub fn class(&self) -> Option<TxClass> {
        self.owner.as_ref().map(|owner| owner.class)
    }

    /// Whether the slot takes a step when its time comes: no operation is in flight, nothing is
    /// mined.
    pub fn is_waiting(&self) -> bool {
        self.owner.is_some() && self.busy.is_none() && self.mined.is_none()
    }

    pub fn wakeup(&self) -> Option<Instant> {
        let owner = self.owner.as_ref().filter(|_| self.mined.is_none())?;
        // Fees are not raised before a transaction exists.
        let bump_at = self.bump_at.filter(|_| self.current.is_some());
        let step = [self.publish_at, bump_at];
        let step = step.into_iter().flatten().filter(|_| self.busy.is_none());
        let mempool = owner.mempool_deadline.filter(|_| !self.accepted);
        step.chain(owner.deadline).chain(mempool).min()
    }

    /// Stores a newly signed transaction. Returns false if it must not be published.
    pub fn signed(&mut self, tx: SignedTx, bump_at: Instant) -> bool {
        let Some(owner) = self.owner.as_ref().filter(|_| self.mined.is_none()) else {
            return false;
        };
        // The same hash means the same data: let it count for the new owner.
        self.attempts.retain(|(hash, _)| *hash != tx.hash);
        self.attempts.push((tx.hash, owner.work));
        // The oldest one is the least likely to be mined: pools that have accepted a later one have
        // dropped it.
        let excess = self.attempts.len().saturating_sub(super::MAX_ATTEMPTS);
        self.attempts.drain(..excess);
        self.caps = self.signing.take();
        self.current = Some(tx);
        self.wants_bump = false;
        self.bump_at = Some(bump_at);
        true
    }

    pub fn was_accepted(&mut self, rebroadcast_at: Option<Instant>) {
        self.accepted = true;
        (self.retries, self.reserved) = (0, 0);
        self.publish_at = rebroadcast_at;
    }

    /// Purpose of the transaction with this hash, if it was signed for this nonce.
    pub fn work_of(&self, hash: B256) -> Option<SendWork> {
        let attempt = self.attempts.iter().find(|(known, _)| *known == hash);
        attempt.map(|(_, work)| *work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `already reserved` replaces a transaction only if no pool has accepted it in between.
    #[test]
    fn an_accepted_publication_ends_the_count_of_reserved_ones() {
        let mut slot = NonceSlot {
            reserved: 2,
            ..NonceSlot::default()
        };
        slot.was_accepted(None);
        assert_eq!(slot.reserved, 0);
    }
}
