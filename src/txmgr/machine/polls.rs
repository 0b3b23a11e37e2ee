//! Evaluates polls: which transactions are mined, confirmed, reorged out or displaced, and which
//! nonces other processes used.

use super::{
    AccountReading, MinedTx, SendAction, SendFailure, SendMachine, SendPhase, SendWork,
    WaitingSend, slot::SlotOwner,
};
use alloy_primitives::B256;
use std::time::Instant;

/// Maximum number of receipts in one poll. Transactions with the lowest nonces come first.
const MAX_HASHES: usize = 256;
/// Maximum depth of the block whose nonce is read: nodes keep the state of only 128 blocks.
const MAX_DEPTH: u64 = 96;
/// Number of consecutive polls that must see a gap. A pool reinjects reorged-out transactions only
/// after the new head.
const GAP_POLLS: u32 = 2;
/// Maximum number of nonces, beyond the known ones, that other processes may have used. An endpoint
/// that reports more is probably on another chain. Continuing above its nonce would block posting
/// forever.
const MAX_JUMP: u64 = 1_024;
/// Maximum number of fillers that one poll starts.
const MAX_FILLERS: u64 = 16;

impl SendMachine {
    /// Schedules the next poll at `at`, unless it is scheduled earlier.
    pub(super) fn poll_by(&mut self, at: Instant) {
        self.poll_at = Some(self.poll_at.map_or(at, |planned| planned.min(at)));
    }

    /// Whether a poll is useful now.
    pub(super) fn wants_poll(&self) -> bool {
        let has_owner = self.slots.values().any(|slot| slot.owner.is_some());
        let is_settling = matches!(self.phase, SendPhase::Settling { .. });
        self.polling.is_none() && (is_settling || has_owner || !self.queue.is_empty())
    }

    pub(super) fn poll_if_due(&mut self, now: Instant) {
        if self.poll_at.is_none() && !self.slots.is_empty() {
            self.poll_at = Some(now + self.settings.rules.receipt_poll_interval);
        }
        if !self.wants_poll() || self.poll_at.is_none_or(|at| at > now) {
            return;
        }
        let op = self.operation();
        self.polling = Some(op);
        self.poll_at = None;
        let attempts = self.slots.values().flat_map(|slot| &slot.attempts);
        let depth = self.settings.rules.confirmations.min(MAX_DEPTH);
        let action = SendAction::Poll {
            op,
            deep_block: self.head.map(|head| (head + 1).saturating_sub(depth)),
            with_age: self.foreign.needs_age(),
            hashes: attempts.map(|(hash, _)| *hash).take(MAX_HASHES).collect(),
        };
        self.actions.push(action);
    }

    pub(super) fn polled(
        &mut self,
        op: u64,
        reading: Result<AccountReading, String>,
        now: Instant,
    ) {
        if self.polling != Some(op) {
            return;
        }
        self.polling = None;
        let rules = &self.settings.rules;
        self.poll_failed = reading.is_err();
        let Ok(reading) = reading else {
            let pause = rules.retry_interval.max(super::MIN_PAUSE);
            return self.poll_by(now + pause);
        };
        self.poll_by(now + rules.receipt_poll_interval);
        self.head = Some(reading.head);
        self.polled_at = Some(now);
        if let SendPhase::Settling { until } = self.phase {
            return self.settle(&reading, until, now);
        }
        let nonces: Vec<u64> = self.slots.keys().copied().collect();
        for nonce in nonces {
            self.judge(nonce, &reading, now);
            if self.phase == SendPhase::Stopped {
                return;
            }
        }
        self.compare_nonces(&reading, now);
    }

    /// Ends the initial wait if the pool has no transaction of an earlier process or the time is
    /// over.
    fn settle(&mut self, reading: &AccountReading, until: Option<Instant>, now: Instant) {
        let rules = &self.settings.rules;
        let until = until.unwrap_or(now + rules.resubmission_timeout);
        self.inherited = self.inherited.max(reading.pending).max(reading.latest);
        if reading.pending <= reading.latest || until <= now {
            self.phase = SendPhase::Running;
            self.next = reading.latest;
        } else {
            self.phase = SendPhase::Settling { until: Some(until) };
        }
    }

    /// Updates the slot of one nonce from a reading of L1.
    fn judge(&mut self, nonce: u64, reading: &AccountReading, now: Instant) {
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        let found = |hash: &B256| reading.receipts.get(hash).copied();
        let known = slot.attempts.iter().map(|(hash, _)| found(hash));
        let mined = known.clone().flatten().flatten().next();
        let all_known = known.into_iter().all(|known| known.is_some());
        match mined {
            Some(mined) => {
                let is_first = slot.mined.replace(mined).is_none();
                if let Some(SendWork::Request(id)) = slot.work_of(mined.hash).filter(|_| is_first) {
                    self.actions.push(SendAction::Included { id });
                }
                (slot.nonce_too_low, slot.lost, slot.reserved) = (0, 0, 0);
                let confirmations = self.settings.rules.confirmations;
                self.restore_owner(nonce, mined.hash);
                self.accept_mined(nonce);
                if mined.block + confirmations <= reading.head + 1 {
                    self.confirmed(nonce, mined);
                }
            }
            // Decide at a later poll: this reading has no result for some of the slot's
            // transactions.
            None if !all_known => {}
            None => {
                if let Some(gone) = slot.mined.take() {
                    slot.nonce_too_low = 0;
                    slot.publish_at = Some(now);
                    let hash = gone.hash;
                    self.actions.push(SendAction::ReorgedOut { nonce, hash });
                }
                slot.lost = if reading.latest > nonce {
                    slot.lost + 1
                } else {
                    0
                };
                self.judge_lost(nonce, reading, now);
            }
        }
    }

    /// Takes the mined transaction for accepted, also if no publication was answered, so that later
    /// requests do not wait for its confirmations. If the nonce had other owners, they do wait: after
    /// a reorg a block may include a transaction of another owner, whose request comes earlier.
    fn accept_mined(&mut self, nonce: u64) {
        if let Some(slot) = self.slots.get_mut(&nonce)
            && let Some(owner) = &slot.owner
            && slot.attempts.iter().all(|(_, work)| *work == owner.work)
        {
            slot.accepted = true;
        }
    }

    /// Gives the nonce back to the request whose transaction was mined, and requeues the request
    /// that had the nonce meanwhile.
    fn restore_owner(&mut self, nonce: u64, mined: B256) {
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        let work = slot.work_of(mined);
        let waits = |waiting: &WaitingSend| Some(SendWork::Request(waiting.id)) == work;
        let again = self.queue.iter().position(waits);
        let is_other = slot
            .owner
            .as_ref()
            .is_some_and(|owner| Some(owner.work) != work);
        if !is_other || (slot.accepted && again.is_none()) {
            return;
        }
        let displaced = slot.owner.take();
        (slot.busy, slot.current) = (None, None);
        if let Some(back) = again.and_then(|at| self.queue.remove(at)) {
            slot.accepted = true;
            slot.owner = Some(SlotOwner {
                work: SendWork::Request(back.id),
                class: back.class,
                deadline: back.deadline,
                mempool_deadline: None,
            });
        }
        if let Some((SendWork::Request(id), owner)) = displaced.map(|owner| (owner.work, owner)) {
            self.requeue(id, owner);
        }
    }

    /// Finishes a nonce whose transaction has enough confirmations.
    fn confirmed(&mut self, nonce: u64, mined: MinedTx) {
        let Some(slot) = self.slots.remove(&nonce) else {
            return;
        };
        self.foreign.own(nonce);
        let owner = slot.owner.as_ref().map(|owner| owner.work);
        match (owner, slot.work_of(mined.hash)) {
            (Some(SendWork::Request(id)), Some(SendWork::Request(of))) if id == of => {
                self.finish(id, Ok(mined));
            }
            (Some(SendWork::Request(id)), _) => {
                self.finish(id, Err(SendFailure::NonceTaken(nonce)));
            }
            _ => {}
        }
    }

    /// Gives up a nonce if another transaction has used it, seen in enough polls.
    fn judge_lost(&mut self, nonce: u64, reading: &AccountReading, now: Instant) {
        let limit = self.settings.rules.nonce_too_low_limit;
        let slot = &self.slots[&nonce];
        let is_used = reading.deep_nonce.is_some_and(|deep| deep > nonce);
        let is_deep = is_used && slot.lost >= limit;
        // A filler has done its work if any transaction used up its nonce.
        let is_inherited = nonce < self.inherited || slot.is_filler();
        let is_shallow = slot.lost > 0 && slot.nonce_too_low >= limit;
        let is_given_up = is_deep || (is_inherited && is_shallow);
        if !is_given_up {
            return;
        }
        if !is_inherited {
            self.adopt(nonce, reading, now);
        }
        let Some(slot) = self.slots.remove(&nonce) else {
            return;
        };
        let Some(id) = slot.request() else {
            return;
        };
        match slot.owner {
            // No pool has this request's transaction, and no later request has started. Requeueing
            // keeps the order.
            Some(owner) if !slot.accepted && !self.closing => {
                self.requeue(id, owner);
            }
            _ => self.finish(id, Err(SendFailure::NonceTaken(nonce))),
        }
    }

    /// Compares L1's nonces with ours: L1 may be above all of ours, or have a gap below them.
    fn compare_nonces(&mut self, reading: &AccountReading, now: Instant) {
        let limit = self.settings.rules.nonce_too_low_limit;
        let is_beyond = reading.latest > self.next.max(self.inherited);
        self.beyond = if is_beyond { self.beyond + 1 } else { 0 };
        if self.beyond >= limit {
            let known = self.next.max(self.inherited);
            if reading.latest - known > MAX_JUMP {
                let (address, latest) = (self.address, reading.latest);
                return self.stop(format!(
                    "L1 says that {latest} is the next nonce of {address}, which was {known}: check that each endpoint of --l1-eth-rpc is of the same chain, then start this process again"
                ));
            }
            return self.adopt(reading.latest - 1, reading, now);
        }
        let owned = self.slots.iter().find(|(_, slot)| slot.owner.is_some());
        let in_pool = reading.pending.max(reading.latest);
        let Some(lowest) = owned.map(|(nonce, _)| *nonce) else {
            return self.renumber(reading);
        };
        self.gaps = if in_pool < lowest { self.gaps + 1 } else { 0 };
        if self.gaps >= GAP_POLLS {
            self.gaps = 0;
            // Own confirmed transactions that a reorg removed may be mined again, and must not
            // count as foreign.
            self.inherited = self.inherited.max(lowest);
            let class = self.slots[&lowest].class();
            for nonce in in_pool..lowest.min(in_pool + MAX_FILLERS) {
                self.fill(nonce, class, now);
            }
        }
    }

    /// Adopts a nonce that another process used: continues above it. Stops the machine if this
    /// proves that a second process has the same key.
    fn adopt(&mut self, nonce: u64, reading: &AccountReading, now: Instant) {
        self.beyond = 0;
        self.foreign.foreign(nonce, reading.head_age, now);
        if self.foreign.is_contested(now) {
            return self.stop(contested(self.address, nonce));
        }
        self.inherited = self.inherited.max(nonce + 1);
        self.next = self.next.max(self.inherited);
        // Drop free slots up to this nonce: L1 has used their nonces.
        self.slots
            .retain(|at, slot| *at > nonce || slot.owner.is_some() || slot.mined.is_some());
        self.actions.push(SendAction::Adopted { nonce });
    }

    /// With no transaction in flight, takes the next nonce from L1: above an earlier process's
    /// transactions, or lower than before if a reorg removed ours for good.
    fn renumber(&mut self, reading: &AccountReading) {
        self.slots.retain(|nonce, _| *nonce >= reading.latest);
        if self.beyond > 0 {
            return;
        }
        let is_shorter = reading.pending.max(reading.latest) < self.next;
        if reading.latest > self.next || (is_shorter && self.slots.is_empty()) {
            self.inherited = self.inherited.max(self.next);
            self.next = reading.pending.max(reading.latest);
        }
    }

    /// Starts a filler, an empty transaction that uses up this nonce.
    pub(super) fn fill(&mut self, nonce: u64, class: Option<super::TxClass>, now: Instant) {
        let Some(class) = class else {
            return;
        };
        let bump_at = now + self.settings.rules.resubmission_timeout;
        let slot = self.slots.entry(nonce).or_default();
        slot.own(SlotOwner::filler(class), bump_at);
        self.actions.push(SendAction::Filling {
            nonce,
            reason: "no transaction has this nonce after a reorg, and later ones wait for it",
        });
    }
}

/// Message to the operator that another process uses the same key.
fn contested(address: alloy_primitives::Address, nonce: u64) -> String {
    format!(
        "nonce {nonce} of {address} was used by a transaction that this process did not send: another process has the same key; stop one of them, then start this one again"
    )
}
