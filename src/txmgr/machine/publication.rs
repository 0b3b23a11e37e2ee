//! Steps of one nonce until its transaction is mined: fees, signature, publication, the pool's
//! responses, replacements.

use super::{
    CRAFT_PAUSE, CRAFT_TRIES, MAX_ATTEMPTS, MIN_PAUSE, RESERVED_LIMIT, SendAction, SendFailure,
    SendMachine, SendWork, SignedTx, slot::SlotOwner,
};
use crate::txmgr::{
    fees::{FeeError, L1Fees},
    publish_result::PublishResult,
};
use std::time::Instant;

impl SendMachine {
    /// Starts creating a transaction for a nonce, by reading L1's current fees.
    pub(super) fn craft(&mut self, nonce: u64) {
        let op = self.operation();
        if let Some(slot) = self.slots.get_mut(&nonce) {
            slot.busy = Some(op);
            slot.publish_at = None;
            self.actions.push(SendAction::ReadFees { op });
        }
    }

    pub(super) fn publish(&mut self, nonce: u64, now: Instant) {
        let op = self.operation();
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        let Some(tx) = slot.current.clone() else {
            slot.publish_at = Some(now + MIN_PAUSE);
            return;
        };
        slot.busy = Some(op);
        slot.publish_at = None;
        slot.sent = true;
        self.actions.push(SendAction::Publish { op, nonce, tx });
    }

    /// Ends operation `op`, and returns its nonce; `None` if no slot waits for the result any more.
    pub(super) fn end_operation(&mut self, op: u64) -> Option<u64> {
        let (nonce, slot) = self
            .slots
            .iter_mut()
            .find(|(_, slot)| slot.busy == Some(op))?;
        slot.busy = None;
        Some(*nonce)
    }

    pub(super) fn fees_read(&mut self, op: u64, fees: Result<L1Fees, String>, now: Instant) {
        let Some(nonce) = self.end_operation(op) else {
            return;
        };
        let slot = &self.slots[&nonce];
        let (Some(owner), None) = (&slot.owner, &slot.mined) else {
            return;
        };
        let rules = &self.settings.fees;
        let class = owner.class;
        let too_high =
            |error: FeeError| format!("failed to get gas price info or it's too high: {error}");
        let caps = fees.and_then(|l1| {
            let now = rules.suggest(&l1).map_err(too_high)?;
            let caps = match slot.caps.filter(|_| slot.wants_bump) {
                Some(old) => rules.bump(class, &old, &now),
                None => rules.first(class, &now),
            };
            caps.map_err(|error| error.to_string())
        });
        match caps {
            Ok(caps) => {
                let (work, replaced_gas) = (owner.work, slot.current.as_ref().map(|tx| tx.gas));
                let op = self.operation();
                if let Some(slot) = self.slots.get_mut(&nonce) {
                    slot.busy = Some(op);
                    slot.signing = Some(caps);
                }
                self.actions.push(SendAction::Sign {
                    op,
                    nonce,
                    work,
                    class,
                    caps,
                    replaced_gas,
                });
            }
            Err(reason) => self.not_crafted(nonce, reason, now),
        }
    }

    pub(super) fn signed(&mut self, op: u64, signed: Result<SignedTx, String>, now: Instant) {
        let Some(nonce) = self.end_operation(op) else {
            return;
        };
        match signed {
            Ok(tx) => {
                let resubmission = self.settings.rules.resubmission_timeout;
                let slot = self.slots.get_mut(&nonce);
                // Publish only if no transaction of this nonce was mined meanwhile.
                if slot.is_some_and(|slot| slot.signed(tx, now + resubmission)) {
                    self.publish(nonce, now);
                }
            }
            Err(reason) => self.not_crafted(nonce, reason, now),
        }
    }

    /// Handles a failure to create a transaction. If an earlier one exists, it is published again,
    /// since pools may drop transactions.
    pub(super) fn not_crafted(&mut self, nonce: u64, reason: String, now: Instant) {
        let resubmission = self.settings.rules.resubmission_timeout;
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        if slot.current.is_some() {
            slot.bump_at = Some(now + resubmission);
            self.actions.push(SendAction::NotBumped { nonce, reason });
            return self.publish(nonce, now);
        }
        slot.craft_failures += 1;
        slot.publish_at = Some(now + CRAFT_PAUSE);
        if slot.request().is_some() && slot.craft_failures >= CRAFT_TRIES {
            self.give_up(nonce, SendFailure::Craft(reason));
        }
    }

    pub(super) fn published(&mut self, op: u64, answer: PublishResult, now: Instant) {
        let Some(nonce) = self.end_operation(op) else {
            return;
        };
        let rules = &self.settings.rules;
        let retry_at = now + rules.retry_interval.max(MIN_PAUSE);
        let rebroadcast_at = rules.rebroadcast_at(now);
        let bump_at = now + rules.resubmission_timeout;
        let (max_retries, receipts) = (rules.max_retries, rules.receipt_poll_interval);
        let has_lower = self
            .slots
            .range(..nonce)
            .any(|(_, slot)| slot.owner.is_some());
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        slot.publish_at = Some(retry_at);
        match answer {
            PublishResult::Accepted | PublishResult::AlreadyKnown => {
                slot.was_accepted(rebroadcast_at);
                self.poll_by(now + receipts);
            }
            PublishResult::NonceTooLow => {
                slot.nonce_too_low += 1;
                self.poll_by(now);
            }
            PublishResult::Underpriced(reason) => self.underpriced(nonce, reason, now),
            PublishResult::AlreadyReserved => self.reserved(nonce, now),
            // The pool has lost transactions with lower nonces, which are published again at their
            // own times. This is no refusal.
            PublishResult::NonceTooHigh(_) if has_lower => self.poll_by(now),
            PublishResult::NonceTooHigh(reason) | PublishResult::Refused(reason) => {
                slot.retries += 1;
                if slot.retries > max_retries {
                    let is_request = slot.request().is_some();
                    slot.publish_at = Some(rebroadcast_at.unwrap_or(bump_at));
                    if !slot.accepted && is_request {
                        self.give_up(nonce, SendFailure::Refused(reason));
                    }
                }
            }
            PublishResult::Unreachable(_) => {}
        }
    }

    /// Handles a pool's response that the fees are too low.
    pub(super) fn underpriced(&mut self, nonce: u64, reason: String, now: Instant) {
        let rebroadcast_at = self.settings.rules.rebroadcast_at(now);
        let bump_at = now + self.settings.rules.resubmission_timeout;
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        if slot.is_filler() && slot.attempts.len() == 1 {
            // Another transaction already has this nonce in the pool, which is all that a filler is
            // for.
            slot.was_accepted(rebroadcast_at);
        } else if slot.wants_bump || slot.attempts.len() >= MAX_ATTEMPTS {
            // A raise has just failed, or there are many replacements already: the next one comes at
            // its own time.
            slot.publish_at = Some(rebroadcast_at.unwrap_or(bump_at));
            self.actions.push(SendAction::NotBumped { nonce, reason });
        } else {
            slot.wants_bump = true;
            self.craft(nonce);
        }
    }

    /// Handles a pool's response that it has transactions of the other class from this account.
    /// They belong to an earlier process, or are ours with higher nonces after a reorg:
    /// [`Self::start_next`] never mixes classes. Repeated responses replace the transaction by a
    /// filler of the other class.
    pub(super) fn reserved(&mut self, nonce: u64, now: Instant) {
        let resubmission = self.settings.rules.resubmission_timeout;
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        slot.reserved += 1;
        let Some(owner) = slot.owner.clone() else {
            return;
        };
        if slot.reserved < RESERVED_LIMIT {
            return;
        }
        if let SendWork::Request(id) = owner.work {
            slot.owner = None;
            self.requeue(id, owner.clone());
        }
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        slot.own(SlotOwner::filler(owner.class.other()), now + resubmission);
        (slot.current, slot.accepted) = (None, false);
        slot.wants_bump = true;
        self.actions.push(SendAction::Filling {
            nonce,
            reason: "a pending transaction of the other class (calldata or blobs) blocks the account",
        });
        self.craft(nonce);
    }

    /// Takes the next step for every nonce whose time has come.
    pub(super) fn resume_slots(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let nonces: Vec<u64> = self.slots.keys().copied().collect();
        for nonce in nonces {
            let Some(slot) = self.slots.get_mut(&nonce).filter(|slot| slot.is_waiting()) else {
                continue;
            };
            if slot.current.is_none() {
                if due(slot.publish_at) || slot.publish_at.is_none() {
                    self.craft(nonce);
                }
            } else if due(slot.bump_at) {
                slot.wants_bump = true;
                slot.bump_at = Some(now + self.settings.rules.resubmission_timeout);
                self.craft(nonce);
            } else if due(slot.publish_at) {
                if slot.wants_bump {
                    self.craft(nonce);
                } else {
                    self.publish(nonce, now);
                }
            }
        }
    }
}
