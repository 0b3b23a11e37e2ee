//! One nonce: its owner, every transaction signed for it, and when it continues.

use super::{MinedTx, SendFailure, SendId, SendWork, SignedTx};
use crate::txmgr::fees::{FeeCaps, TxClass};
use alloy_primitives::B256;
use std::time::Instant;

/// The work that a nonce is for.
#[derive(Clone, Debug)]
pub(super) struct SlotOwner {
    pub work: SendWork,
    pub class: TxClass,
    /// End of the time for a request.
    pub deadline: Option<Instant>,
    /// End of the time until a pool has accepted it.
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

    /// The failure if a deadline is over.
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

/// The state of one nonce.
#[derive(Clone, Debug, Default)]
pub(super) struct NonceSlot {
    /// `None`: no pool accepted a transaction of the owner, which was given up; the nonce is free.
    pub owner: Option<SlotOwner>,
    /// Every transaction that was signed for this nonce, and the work it was for.
    pub attempts: Vec<(B256, SendWork)>,
    /// The newest transaction of the owner, or, where a filler could not be signed yet, the one it
    /// replaces.
    pub current: Option<SignedTx>,
    /// Fees of the newest transaction.
    pub caps: Option<FeeCaps>,
    /// Fees of the transaction being signed.
    pub signing: Option<FeeCaps>,
    /// Raise the fees before the next publication.
    pub wants_bump: bool,
    /// A transaction was published; whether a pool has it is not known.
    pub sent: bool,
    /// A pool has accepted a transaction of the owner.
    pub accepted: bool,
    /// One of `attempts` in a block.
    pub mined: Option<MinedTx>,
    /// Number of the operation in flight.
    pub busy: Option<u64>,
    /// Next publication, or next attempt to create a transaction if there is none.
    pub publish_at: Option<Instant>,
    /// Next raise of the fees.
    pub bump_at: Option<Instant>,
    pub craft_failures: u32,
    /// Refused publications in a row.
    pub retries: u64,
    /// Answers `nonce too low` since the last mined or new transaction.
    pub nonce_too_low: u32,
    /// Answers `already reserved`.
    pub reserved: u32,
    /// Polls in a row that saw the nonce used, and not by one of `attempts`.
    pub lost: u32,
}

impl NonceSlot {
    /// Gives the nonce to an owner. The transactions of the one before stay known.
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

    /// Takes the nonce from its owner.
    pub fn vacate(&mut self) {
        *self = Self {
            attempts: std::mem::take(&mut self.attempts),
            caps: self.caps.take(),
            sent: self.sent,
            ..Self::default()
        };
        // No pool has accepted these: the oldest are the least likely to be mined after all.
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

    /// Whether the slot continues when its time comes.
    pub fn is_waiting(&self) -> bool {
        self.owner.is_some() && self.busy.is_none() && self.mined.is_none()
    }

    pub fn wakeup(&self) -> Option<Instant> {
        let owner = self.owner.as_ref().filter(|_| self.mined.is_none())?;
        // The fees of a transaction that was not created, or too often, are not raised.
        let is_raised = self.current.is_some() && self.attempts.len() < super::MAX_ATTEMPTS;
        let step = [self.publish_at, self.bump_at.filter(|_| is_raised)];
        let step = step.into_iter().flatten().filter(|_| self.busy.is_none());
        let mempool = owner.mempool_deadline.filter(|_| !self.accepted);
        step.chain(owner.deadline).chain(mempool).min()
    }

    /// Takes over a new transaction; false if it must not be published.
    pub fn signed(&mut self, tx: SignedTx, bump_at: Instant) -> bool {
        let Some(owner) = self.owner.as_ref().filter(|_| self.mined.is_none()) else {
            return false;
        };
        // The same transaction signed for another request carries the same data.
        self.attempts.retain(|(hash, _)| *hash != tx.hash);
        self.attempts.push((tx.hash, owner.work));
        self.caps = self.signing.take();
        self.current = Some(tx);
        self.wants_bump = false;
        self.bump_at = Some(bump_at);
        true
    }

    pub fn was_accepted(&mut self, rebroadcast_at: Option<Instant>) {
        self.accepted = true;
        self.retries = 0;
        self.publish_at = rebroadcast_at;
    }

    /// The work of one of this nonce's transactions.
    pub fn work_of(&self, hash: B256) -> Option<SendWork> {
        let attempt = self.attempts.iter().find(|(known, _)| *known == hash);
        attempt.map(|(_, work)| *work)
    }
}
