//! Requests until they get a nonce, and the end of requests that are given up.

use super::{
    SendAction, SendFailure, SendId, SendMachine, SendPhase, SendWork, WaitingSend,
    slot::{NonceSlot, SlotOwner},
};
use crate::txmgr::fees::TxClass;
use std::{collections::VecDeque, time::Instant};

impl SendMachine {
    /// Puts a request that lost its nonce back into the queue, before later requests. If a later
    /// request is in flight already, the order cannot be kept, so the request fails and its caller
    /// decides anew.
    pub(super) fn requeue(&mut self, id: SendId, owner: SlotOwner) {
        let mut in_flight = self.slots.values().filter_map(NonceSlot::request);
        if in_flight.any(|other| other > id) {
            return self.finish(id, Err(SendFailure::Overtaken));
        }
        let earlier = self.queue.partition_point(|other| other.id < id);
        let waiting = WaitingSend {
            id,
            class: owner.class,
            deadline: owner.deadline,
        };
        self.queue.insert(earlier, waiting);
    }

    pub(super) fn submit(&mut self, id: SendId, class: TxClass, now: Instant) {
        if self.phase == SendPhase::Stopped || self.closing {
            return self.finish(id, Err(SendFailure::Closed));
        }
        let timeout = self.settings.rules.send_timeout;
        self.queue.push_back(WaitingSend {
            id,
            class,
            deadline: (!timeout.is_zero()).then(|| now + timeout),
        });
    }

    pub(super) fn close(&mut self) {
        self.closing = true;
        for waiting in std::mem::take(&mut self.queue) {
            self.finish(waiting.id, Err(SendFailure::Closed));
        }
        let is_unaccepted = |slot: &NonceSlot| slot.request().is_some() && !slot.accepted;
        let slots = self.slots.iter().filter(|(_, slot)| is_unaccepted(slot));
        let unaccepted: Vec<u64> = slots.map(|(nonce, _)| *nonce).collect();
        for nonce in unaccepted {
            self.give_up(nonce, SendFailure::Closed);
        }
    }

    /// Fails the request that owns this nonce, if there is one.
    fn fail_owner(&mut self, nonce: u64, failure: SendFailure) {
        if let Some(id) = self.slots.get(&nonce).and_then(NonceSlot::request) {
            self.finish(id, Err(failure));
        }
    }

    /// Fails the owner of a nonce whose transaction no pool has accepted. The next request gets the
    /// nonce.
    pub(super) fn give_up(&mut self, nonce: u64, failure: SendFailure) {
        self.fail_owner(nonce, failure);
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        slot.vacate();
        self.drop_unused(nonce);
    }

    /// Removes this nonce if it is free, the highest one, and was never published.
    pub(super) fn drop_unused(&mut self, nonce: u64) {
        let is_unused = |slot: &NonceSlot| slot.owner.is_none() && !slot.sent;
        if nonce + 1 == self.next && self.slots.get(&nonce).is_some_and(is_unused) {
            self.slots.remove(&nonce);
            self.next = nonce;
        }
    }

    /// Fails the requests whose deadline has passed.
    pub(super) fn expire(&mut self, now: Instant) {
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        let (over, kept) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition::<VecDeque<_>, _>(|waiting| is_over(waiting.deadline));
        self.queue = kept;
        for waiting in over {
            self.finish(waiting.id, Err(SendFailure::Timeout));
        }
        let slots = self.slots.iter().filter(|(_, slot)| slot.mined.is_none());
        let expired: Vec<(u64, SendFailure)> = slots
            .filter_map(|(nonce, slot)| {
                Some((*nonce, slot.owner.as_ref()?.expired(slot.accepted, now)?))
            })
            .collect();
        for (nonce, failure) in expired {
            if self.slots[&nonce].accepted {
                self.cancel(nonce, failure, now);
            } else {
                self.give_up(nonce, failure);
            }
        }
    }

    /// Fails the request of a nonce, and replaces its transaction in the pool by a filler.
    pub(super) fn cancel(&mut self, nonce: u64, failure: SendFailure, now: Instant) {
        self.fail_owner(nonce, failure);
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        let class = slot
            .owner
            .as_ref()
            .map_or(TxClass::Calldata, |owner| owner.class);
        slot.own(
            SlotOwner::filler(class),
            now + self.settings.rules.resubmission_timeout,
        );
        slot.wants_bump = true;
        self.actions.push(SendAction::Filling {
            nonce,
            reason: "its request was given up while the transaction was in the pool",
        });
        self.craft(nonce);
    }

    /// Gives a nonce to the first request in the queue, unless an earlier transaction is neither in
    /// the pool nor in a block yet.
    pub(super) fn start_next(&mut self, now: Instant) {
        let is_unaccepted = |slot: &NonceSlot| slot.owner.is_some() && !slot.accepted;
        if self.phase != SendPhase::Running || self.slots.values().any(is_unaccepted) {
            return;
        }
        let Some(class) = self.queue.front().map(|waiting| waiting.class) else {
            return;
        };
        let owned = || self.slots.values().filter(|slot| slot.owner.is_some());
        // Pools accept only one class at a time from the same account.
        if owned().any(|slot| slot.mined.is_none() && slot.class() != Some(class)) {
            return;
        }
        let is_fresh = |at: Instant| at + self.settings.rules.receipt_poll_interval > now;
        if owned().next().is_none() && !self.polled_at.is_some_and(is_fresh) {
            if !self.poll_failed && self.polling.is_none() {
                self.poll_by(now);
            }
            return;
        }
        let is_vacant = |slot: &NonceSlot| slot.owner.is_none() && slot.mined.is_none();
        let vacant = self.slots.iter().find(|(_, slot)| is_vacant(slot));
        let nonce = vacant.map_or(self.next, |(nonce, _)| *nonce);
        // Fill this nonce: after a reorg, an earlier request may have a higher nonce, and must not
        // be overtaken.
        if self
            .slots
            .range(nonce..)
            .any(|(_, slot)| slot.owner.is_some())
        {
            self.fill(nonce, Some(class), now);
            return self.craft(nonce);
        }
        let Some(waiting) = self.queue.pop_front() else {
            return;
        };
        self.next = self.next.max(nonce + 1);
        let owner = SlotOwner {
            work: SendWork::Request(waiting.id),
            class,
            deadline: waiting.deadline,
            mempool_deadline: Some(now + self.settings.rules.mempool_timeout),
        };
        let slot = self.slots.entry(nonce).or_default();
        slot.own(owner, now + self.settings.rules.resubmission_timeout);
        self.craft(nonce);
    }
}
