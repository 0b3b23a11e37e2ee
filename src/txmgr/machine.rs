//! The state machine of one L1 account: which transaction is signed, published, replaced or given up
//! next. Pure: events and `now` in, actions out.
//!
//! Requests wait in a queue. The first gets the next nonce, is signed and published; only when L1's
//! pool has accepted it, the next one follows. So nonces have no gaps, and requests reach L1 in the
//! order in which they were made. A nonce belongs to its request from the first publication until a
//! transaction with that nonce is confirmed, or the nonce is free again because no pool accepted
//! anything. Every transaction that was ever signed for a nonce is remembered with its work, so a
//! request counts only if a transaction of its own was mined.
//!
//! **Fillers** are empty transactions of the account to itself. They take a nonce that must be used
//! for later ones to go on: of a request that was given up in the pool, of a transaction that a
//! reorg removed, and of a predecessor's transaction of the other class that blocks the account.
//!
//! **Restarts.** The machine begins by waiting, for one resubmission timeout at most, until the
//! transactions that a predecessor left in the pool are mined; then it continues after them, or
//! replaces what is stuck. A nonce that neither this process nor a predecessor can have used means
//! that another process has the same key: the machine stops with [`SendAction::Stopped`].

mod nonces;
mod slot;
#[cfg(test)]
mod tests;

use super::{
    answer::PublishAnswer,
    fees::{FeeCaps, FeeError, FeeRules, L1Fees, TxClass},
};
use alloy_primitives::{Address, B256, Bytes};
use slot::{NonceSlot, SlotOwner};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

/// Attempts to create a transaction before the request fails (op-service: 5).
const CRAFT_TRIES: u32 = 5;
/// Pause between these attempts (op-service).
const CRAFT_PAUSE: Duration = Duration::from_secs(5);
/// Shortest pause between two attempts of anything, so that an interval of zero does not spin.
const LEAST_PAUSE: Duration = Duration::from_millis(1);
/// Transactions signed for one nonce. More than enough bumps of 10 % to reach any limit on fees;
/// bounds what a poll asks for.
const MAX_ATTEMPTS: usize = 64;
/// Answers `already reserved` before a cancellation: the pool may not have seen the last block.
const RESERVED_LIMIT: u32 = 3;

/// Number of a request, chosen by the caller, never used twice.
pub type SendId = u64;

/// Timing of the machine, and what counts as done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendTimes {
    /// Blocks from the one that has the transaction to L1's head, both included
    /// (`--num-confirmations`); never zero.
    pub confirmations: u64,
    /// Observations that a nonce is used by another transaction before it is given up
    /// (`--safe-abort-nonce-too-low-count`); never zero.
    pub nonce_too_low_limit: u32,
    /// Time in the pool before the fees are raised (`--resubmission-timeout`).
    pub resubmission: Duration,
    /// Time before an unmined transaction is published again unchanged
    /// (`--txmgr.rebroadcast-interval`); zero is never.
    pub rebroadcast: Duration,
    /// Pause after a failed publication (`--txmgr.retry-interval`).
    pub retry: Duration,
    /// Refused publications in a row that are repeated (`--txmgr.max-retries`).
    pub max_retries: u64,
    /// Time for a request until it is mined (`--txmgr.send-timeout`); zero is none.
    pub send_timeout: Duration,
    /// Time until a pool has accepted it (`--txmgr.not-in-mempool-timeout`).
    pub not_in_mempool: Duration,
    /// Interval of polls for receipts (`--txmgr.receipt-query-interval`).
    pub receipts: Duration,
}

impl Default for SendTimes {
    /// The defaults of the options.
    fn default() -> Self {
        Self {
            confirmations: 10,
            nonce_too_low_limit: 3,
            resubmission: Duration::from_secs(48),
            rebroadcast: Duration::from_secs(12),
            retry: Duration::from_secs(1),
            max_retries: 10,
            send_timeout: Duration::ZERO,
            not_in_mempool: Duration::from_secs(120),
            receipts: Duration::from_secs(12),
        }
    }
}

/// Settings of a machine. The RPC changes some of them while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendSettings {
    pub times: SendTimes,
    pub fees: FeeRules,
}

/// Purpose of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendWork {
    Request(SendId),
    /// Nothing: uses up a nonce.
    Filler,
}

/// A signed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedTx {
    pub hash: B256,
    /// As `eth_sendRawTransaction` takes it, with the sidecar of a blob transaction.
    pub raw: Bytes,
    /// Gas limit.
    pub gas: u64,
}

/// A transaction in a block of L1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinedTx {
    pub hash: B256,
    pub block: u64,
    pub block_hash: B256,
    /// False if the execution was reverted; the nonce is used all the same.
    pub success: bool,
    pub gas_used: u64,
    /// Wei per gas that was paid.
    pub gas_price: u128,
    pub blob_gas_used: u64,
    pub blob_gas_price: u128,
}

/// One reading of L1, all from one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountReading {
    /// Number of the newest block.
    pub head: u64,
    /// Next nonce after the newest block.
    pub latest: u64,
    /// Next nonce after the pool's transactions that follow without a gap.
    pub pending: u64,
    /// Next nonce after the block that was asked for with [`SendAction::Poll`].
    pub settled: Option<u64>,
    /// For each hash that was asked for, the transaction if it is in a block.
    pub receipts: HashMap<B256, Option<MinedTx>>,
}

/// Why a request has failed. Unless the text says otherwise, its data may still reach L1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendFailure {
    #[error("failed to create the tx: {0}")]
    Craft(String),
    #[error("L1 does not take the transaction: {0}")]
    Refused(String),
    #[error("failed to get tx into the mempool (--txmgr.not-in-mempool-timeout)")]
    NotInMempool,
    #[error("the transaction was not mined in time (--txmgr.send-timeout)")]
    Timeout,
    #[error(
        "aborted tx send due to critical error: nonce too low: nonce {0} is used by an earlier transaction"
    )]
    NonceTaken(u64),
    #[error("transaction manager is closed")]
    Closed,
    #[error("{0}")]
    Stopped(String),
}

/// An event. `op` is the number of the action that it answers.
#[derive(Clone, Debug)]
pub enum SendEvent {
    /// A new request.
    Submit { id: SendId, class: TxClass },
    /// Answer to [`SendAction::ReadFees`].
    Fees {
        op: u64,
        fees: Result<L1Fees, String>,
    },
    /// Answer to [`SendAction::Sign`].
    Signed {
        op: u64,
        signed: Result<SignedTx, String>,
    },
    /// Answer to [`SendAction::Publish`].
    Published { op: u64, answer: PublishAnswer },
    /// Answer to [`SendAction::Poll`].
    Polled {
        op: u64,
        reading: Result<AccountReading, String>,
    },
    /// No more requests. Those in a pool are waited for, the others fail.
    Close,
    /// Time has passed.
    Tick,
}

/// An action. Each with an `op` is answered by one event with that number.
#[derive(Clone, Debug, PartialEq)]
pub enum SendAction {
    ReadFees {
        op: u64,
    },
    /// Create and sign a transaction.
    Sign {
        op: u64,
        nonce: u64,
        work: SendWork,
        class: TxClass,
        caps: FeeCaps,
        /// Gas limit of the transaction that is replaced: the least for this one.
        replaced_gas: Option<u64>,
    },
    Publish {
        op: u64,
        nonce: u64,
        tx: SignedTx,
    },
    /// Read the account and receipts, in one batch if possible.
    Poll {
        op: u64,
        /// Block whose nonce is `settled` in the answer; `None` before the head is known.
        settled_at: Option<u64>,
        hashes: Vec<B256>,
    },
    /// A request is done.
    Finished {
        id: SendId,
        result: Result<MinedTx, SendFailure>,
    },
    /// Replacing the transaction was refused or failed; it is published unchanged.
    NotBumped {
        nonce: u64,
        reason: String,
    },
    /// A filler was begun at this nonce, for this reason.
    Filling {
        nonce: u64,
        reason: &'static str,
    },
    /// A transaction that was in a block is in none any more.
    ReorgedOut {
        nonce: u64,
        hash: B256,
    },
    /// The machine does nothing any more; says why.
    Stopped(String),
}

/// Stage of the machine's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendPhase {
    /// A predecessor's transactions are waited for until then.
    Settling {
        until: Option<Instant>,
    },
    Running,
    Stopped,
}

/// A request without a nonce.
#[derive(Clone, Debug)]
struct WaitingSend {
    id: SendId,
    class: TxClass,
    /// End of the time for the request.
    deadline: Option<Instant>,
}

/// The transactions of one account. See the module's documentation.
pub struct SendMachine {
    address: Address,
    settings: SendSettings,
    phase: SendPhase,
    closing: bool,
    queue: VecDeque<WaitingSend>,
    /// Nonces in use, from the lowest that is not confirmed.
    slots: BTreeMap<u64, NonceSlot>,
    /// The nonce after the highest in `slots`, or the one to begin with.
    next: u64,
    /// Nonces below may be used by transactions of a predecessor.
    inherited: u64,
    head: Option<u64>,
    /// Operation number of the poll in flight.
    polling: Option<u64>,
    poll_at: Option<Instant>,
    polled_at: Option<Instant>,
    /// Polls in a row that saw a nonce used beyond ours.
    beyond: u32,
    /// Polls in a row that saw a gap below our nonces.
    gaps: u32,
    last_op: u64,
    actions: Vec<SendAction>,
}

impl SendMachine {
    /// A machine that begins by reading the account `address`.
    pub fn new(address: Address, settings: SendSettings, now: Instant) -> Self {
        Self {
            address,
            settings,
            phase: SendPhase::Settling { until: None },
            closing: false,
            queue: VecDeque::new(),
            slots: BTreeMap::new(),
            next: 0,
            inherited: 0,
            head: None,
            polling: None,
            poll_at: Some(now),
            polled_at: None,
            beyond: 0,
            gaps: 0,
            last_op: 0,
            actions: Vec::new(),
        }
    }

    /// Handles one event, and returns what to do. `now` never goes back.
    pub fn handle(&mut self, event: SendEvent, now: Instant) -> Vec<SendAction> {
        match event {
            SendEvent::Submit { id, class } => self.submit(id, class, now),
            SendEvent::Fees { op, fees } => self.fees_read(op, fees, now),
            SendEvent::Signed { op, signed } => self.signed(op, signed, now),
            SendEvent::Published { op, answer } => self.published(op, answer, now),
            SendEvent::Polled { op, reading } => self.polled(op, reading, now),
            SendEvent::Close => self.close(),
            SendEvent::Tick => {}
        }
        if self.phase != SendPhase::Stopped {
            self.expire(now);
            self.resume_slots(now);
            self.start_next(now);
            self.poll_if_due(now);
        }
        std::mem::take(&mut self.actions)
    }

    /// The time of the next [`SendEvent::Tick`]; `None` if only an answer or a request can change
    /// anything.
    pub fn wakeup(&self) -> Option<Instant> {
        let slots = self.slots.values().filter_map(NonceSlot::wakeup);
        let queue = self.queue.iter().filter_map(|waiting| waiting.deadline);
        let poll = self.poll_at.filter(|_| self.wants_poll());
        slots.chain(queue).chain(poll).min()
    }

    /// Whether the predecessor's transactions are mined or given up.
    pub fn is_settled(&self) -> bool {
        !matches!(self.phase, SendPhase::Settling { .. })
    }

    /// Requests that are not done.
    pub fn pending(&self) -> usize {
        let slots = self.slots.values().filter(|slot| slot.request().is_some());
        self.queue.len() + slots.count()
    }

    /// The nonce that the next request gets.
    pub fn next_nonce(&self) -> u64 {
        self.next
    }

    pub fn settings(&self) -> &SendSettings {
        &self.settings
    }

    /// Changes settings; transactions in flight take them over with their next step.
    pub fn settings_mut(&mut self) -> &mut SendSettings {
        &mut self.settings
    }

    fn operation(&mut self) -> u64 {
        self.last_op += 1;
        self.last_op
    }

    fn finish(&mut self, id: SendId, result: Result<MinedTx, SendFailure>) {
        self.actions.push(SendAction::Finished { id, result });
    }

    fn submit(&mut self, id: SendId, class: TxClass, now: Instant) {
        if self.phase == SendPhase::Stopped || self.closing {
            return self.finish(id, Err(SendFailure::Closed));
        }
        let timeout = self.settings.times.send_timeout;
        self.queue.push_back(WaitingSend {
            id,
            class,
            deadline: (!timeout.is_zero()).then(|| now + timeout),
        });
    }

    fn close(&mut self) {
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

    /// Ends everything: the sentence is the operator's next step.
    fn stop(&mut self, sentence: String) {
        self.phase = SendPhase::Stopped;
        let failure = SendFailure::Stopped(sentence.clone());
        let waiting = std::mem::take(&mut self.queue);
        let slots = std::mem::take(&mut self.slots);
        let ids = slots.values().filter_map(NonceSlot::request);
        for id in ids.chain(waiting.iter().map(|waiting| waiting.id)) {
            self.finish(id, Err(failure.clone()));
        }
        self.poll_at = None;
        self.actions.push(SendAction::Stopped(sentence));
    }

    /// Ends the owner of a nonce whose transaction no pool has accepted. The nonce is for the next
    /// request.
    fn give_up(&mut self, nonce: u64, failure: SendFailure) {
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        if let Some(id) = slot.request() {
            self.actions.push(SendAction::Finished {
                id,
                result: Err(failure),
            });
        }
        slot.vacate();
        self.drop_unused(nonce);
    }

    /// Removes the highest nonce if no transaction with it was ever published.
    fn drop_unused(&mut self, nonce: u64) {
        let is_unused = |slot: &NonceSlot| slot.owner.is_none() && !slot.sent;
        if nonce + 1 == self.next && self.slots.get(&nonce).is_some_and(is_unused) {
            self.slots.remove(&nonce);
            self.next = nonce;
        }
    }

    /// Ends requests whose time is over.
    fn expire(&mut self, now: Instant) {
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

    /// Replaces a transaction in the pool by a filler, and ends its request.
    fn cancel(&mut self, nonce: u64, failure: SendFailure, now: Instant) {
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        if let Some(id) = slot.request() {
            self.actions.push(SendAction::Finished {
                id,
                result: Err(failure),
            });
        }
        let class = slot
            .owner
            .as_ref()
            .map_or(TxClass::Calldata, |owner| owner.class);
        slot.own(
            SlotOwner::filler(class),
            now + self.settings.times.resubmission,
        );
        slot.wants_bump = true;
        self.actions.push(SendAction::Filling {
            nonce,
            reason: "its request was given up while the transaction was in the pool",
        });
        self.craft(nonce);
    }

    /// Gives the next nonce to the first request, unless an earlier one is not in the pool yet.
    fn start_next(&mut self, now: Instant) {
        let is_unaccepted = |slot: &NonceSlot| slot.owner.is_some() && !slot.accepted;
        if self.phase != SendPhase::Running || self.slots.values().any(is_unaccepted) {
            return;
        }
        let Some(class) = self.queue.front().map(|waiting| waiting.class) else {
            return;
        };
        let owned = || self.slots.values().filter(|slot| slot.owner.is_some());
        // Pools take one class at a time from an account.
        if owned().any(|slot| slot.mined.is_none() && slot.class() != Some(class)) {
            return;
        }
        let is_fresh = |at: Instant| at + self.settings.times.receipts > now;
        if owned().next().is_none() && !self.polled_at.is_some_and(is_fresh) {
            self.poll_at.get_or_insert(now);
            self.poll_at = self.poll_at.map(|at| at.min(now));
            return;
        }
        let Some(waiting) = self.queue.pop_front() else {
            return;
        };
        let vacant = self
            .slots
            .iter()
            .find(|(_, slot)| slot.owner.is_none() && slot.mined.is_none());
        let nonce = vacant.map_or(self.next, |(nonce, _)| *nonce);
        self.next = self.next.max(nonce + 1);
        let owner = SlotOwner {
            work: SendWork::Request(waiting.id),
            class,
            deadline: waiting.deadline,
            mempool_deadline: Some(now + self.settings.times.not_in_mempool),
        };
        let slot = self.slots.entry(nonce).or_default();
        slot.own(owner, now + self.settings.times.resubmission);
        self.craft(nonce);
    }

    /// Begins to create the transaction of a nonce, with fees as L1 has them now.
    fn craft(&mut self, nonce: u64) {
        let op = self.operation();
        if let Some(slot) = self.slots.get_mut(&nonce) {
            slot.busy = Some(op);
            slot.publish_at = None;
            self.actions.push(SendAction::ReadFees { op });
        }
    }

    fn publish(&mut self, nonce: u64, now: Instant) {
        let op = self.operation();
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        let Some(tx) = slot.current.clone() else {
            slot.publish_at = Some(now + LEAST_PAUSE);
            return;
        };
        slot.busy = Some(op);
        slot.publish_at = None;
        slot.sent = true;
        self.actions.push(SendAction::Publish { op, nonce, tx });
    }

    /// The nonce whose operation `op` is; `None` if the answer comes too late.
    fn answered(&mut self, op: u64) -> Option<u64> {
        let (nonce, slot) = self
            .slots
            .iter_mut()
            .find(|(_, slot)| slot.busy == Some(op))?;
        slot.busy = None;
        Some(*nonce)
    }

    fn fees_read(&mut self, op: u64, fees: Result<L1Fees, String>, now: Instant) {
        let Some(nonce) = self.answered(op) else {
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

    fn signed(&mut self, op: u64, signed: Result<SignedTx, String>, now: Instant) {
        let Some(nonce) = self.answered(op) else {
            return;
        };
        match signed {
            Ok(tx) => {
                let resubmission = self.settings.times.resubmission;
                let slot = self.slots.get_mut(&nonce);
                // A transaction of this nonce may have been mined meanwhile.
                if slot.is_some_and(|slot| slot.signed(tx, now + resubmission)) {
                    self.publish(nonce, now);
                }
            }
            Err(reason) => self.not_crafted(nonce, reason, now),
        }
    }

    /// No transaction was created. One that was published before is published again, since pools
    /// forget transactions.
    fn not_crafted(&mut self, nonce: u64, reason: String, now: Instant) {
        let resubmission = self.settings.times.resubmission;
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

    fn published(&mut self, op: u64, answer: PublishAnswer, now: Instant) {
        let Some(nonce) = self.answered(op) else {
            return;
        };
        let times = &self.settings.times;
        let retry_at = now + times.retry.max(LEAST_PAUSE);
        let rebroadcast_at = (!times.rebroadcast.is_zero()).then(|| now + times.rebroadcast);
        let (max_retries, receipts) = (times.max_retries, times.receipts);
        let has_lower = self
            .slots
            .range(..nonce)
            .any(|(_, slot)| slot.owner.is_some());
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        slot.publish_at = Some(retry_at);
        match answer {
            PublishAnswer::Accepted | PublishAnswer::AlreadyKnown => {
                slot.was_accepted(rebroadcast_at);
                self.poll_by(now + receipts);
            }
            PublishAnswer::NonceTooLow => {
                slot.nonce_too_low += 1;
                self.poll_by(now);
            }
            PublishAnswer::Underpriced(reason) => self.underpriced(nonce, reason, rebroadcast_at),
            PublishAnswer::AlreadyReserved => self.reserved(nonce, now),
            // Pools that have lost the lower ones get them again soon.
            PublishAnswer::NonceTooHigh(_) if has_lower => self.poll_by(now),
            PublishAnswer::NonceTooHigh(reason) | PublishAnswer::Refused(reason) => {
                slot.retries += 1;
                if slot.retries > max_retries {
                    let is_request = slot.request().is_some();
                    slot.publish_at = rebroadcast_at.or(slot.bump_at);
                    if !slot.accepted && is_request {
                        self.give_up(nonce, SendFailure::Refused(reason));
                    }
                }
            }
            PublishAnswer::Unreachable(_) => {}
        }
    }

    /// A pool wants higher fees.
    fn underpriced(&mut self, nonce: u64, reason: String, rebroadcast_at: Option<Instant>) {
        let Some(slot) = self.slots.get_mut(&nonce) else {
            return;
        };
        if slot.is_filler() && slot.attempts.len() == 1 {
            // Another transaction has the nonce already, which is all that a filler is for.
            slot.was_accepted(rebroadcast_at);
        } else if slot.wants_bump || slot.attempts.len() >= MAX_ATTEMPTS {
            // The limit on fees has refused a higher one just now.
            slot.publish_at = rebroadcast_at.or(slot.bump_at);
            self.actions.push(SendAction::NotBumped { nonce, reason });
        } else {
            slot.wants_bump = true;
            self.craft(nonce);
        }
    }

    /// A pool has transactions of the other class: a predecessor's, since [`Self::start_next`] waits
    /// for ours, or ours with higher nonces after a reorg. A filler of their class takes the nonce.
    fn reserved(&mut self, nonce: u64, now: Instant) {
        let resubmission = self.settings.times.resubmission;
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
            self.queue.push_front(WaitingSend {
                id,
                class: owner.class,
                deadline: owner.deadline,
            });
        }
        slot.own(SlotOwner::filler(owner.class.other()), now + resubmission);
        (slot.current, slot.accepted) = (None, false);
        slot.wants_bump = true;
        self.actions.push(SendAction::Filling {
            nonce,
            reason: "a pending transaction of the other type blocks the account",
        });
        self.craft(nonce);
    }

    /// Continues every nonce whose time has come.
    fn resume_slots(&mut self, now: Instant) {
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
            } else if due(slot.bump_at) && slot.attempts.len() < MAX_ATTEMPTS {
                slot.wants_bump = true;
                slot.bump_at = Some(now + self.settings.times.resubmission);
                self.craft(nonce);
            } else if due(slot.publish_at) {
                if slot.wants_bump && slot.attempts.len() < MAX_ATTEMPTS {
                    self.craft(nonce);
                } else {
                    self.publish(nonce, now);
                }
            }
        }
    }
}
