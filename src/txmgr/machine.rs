//! State machine of one L1 account: decides which transaction to sign, publish, replace or give up
//! next. Pure: events and `now` in, actions out.
//!
//! Requests wait in a queue. The first one gets the next nonce, and its transaction is signed and
//! published. The next request follows only when L1's pool has accepted that transaction, or a
//! block includes it. This keeps nonces without gaps, and requests reach L1 in the order in which
//! they were made. A nonce belongs to its request until a transaction with that nonce is confirmed,
//! the request is given up, or a filler takes the nonce over. The machine remembers the
//! transactions that it signed for a nonce, each with the request that it was for. A request
//! therefore succeeds only if one of its own transactions was mined.
//!
//! **Fillers** are empty transactions of the account to itself. A filler uses up a nonce so that
//! later nonces can be mined. There are three cases: a request was given up while its transaction
//! was in the pool, a reorg removed a transaction, or a pending transaction of the other class
//! blocks the account.
//!
//! **Restarts.** The machine first waits, for one resubmission timeout at most, until the
//! transactions that an earlier process left in the pool are mined. Then it continues after them,
//! or replaces those that are stuck. If another process used a nonce, the machine adopts that
//! nonce, which means that it continues above it: the transaction may be one of an earlier process
//! that the endpoint did not know. If this repeats between transactions of our own, another process
//! is running with the same key, and the machine stops with [`SendAction::Stopped`].
//! `machine/foreign.rs` has the exact rule.

mod foreign;
mod polls;
mod publication;
mod requests;
mod slot;
#[cfg(test)]
mod tests;
mod types;

pub use types::{
    AccountReading, MinedTx, SendAction, SendEvent, SendFailure, SendId, SendRules, SendSettings,
    SendWork, SignedTx,
};

use super::fees::TxClass;
use alloy_primitives::Address;
use foreign::ForeignNonces;
use slot::NonceSlot;
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// Attempts to create a transaction before its request fails (op-service: 5).
const CRAFT_TRIES: u32 = 5;
/// Delay between two attempts to create a transaction (as in op-service).
const CRAFT_PAUSE: Duration = Duration::from_secs(5);
/// Minimum delay between two attempts of any action, so that an interval of zero causes no busy
/// loop.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// Number of signed transactions per nonce that are remembered. Each one adds a receipt to every
/// poll. With so many, a pool's response that the fees are too low no longer raises them at once.
const MAX_ATTEMPTS: usize = 64;
/// Number of `already reserved` errors before a filler replaces the transaction. A lower number may
/// be due to a pool that has not processed the last block yet.
const RESERVED_LIMIT: u32 = 3;

/// Phase of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendPhase {
    /// Waiting, `until` this time at most, for transactions of an earlier process.
    Settling {
        until: Option<Instant>,
    },
    Running,
    Stopped,
}

/// A request that has no nonce yet.
#[derive(Clone, Debug)]
struct WaitingSend {
    id: SendId,
    class: TxClass,
    /// Time at which the request fails, if `--txmgr.send-timeout` is set.
    deadline: Option<Instant>,
}

/// State machine of one account. See the module's documentation.
pub struct SendMachine {
    address: Address,
    settings: SendSettings,
    phase: SendPhase,
    closing: bool,
    queue: VecDeque<WaitingSend>,
    /// Slots by nonce, from the lowest nonce that is not confirmed.
    slots: BTreeMap<u64, NonceSlot>,
    /// The nonce after the highest one in `slots`; initially the account's nonce on L1.
    next: u64,
    /// Nonces below this one may have been used by an earlier process.
    inherited: u64,
    /// Recent nonces on L1, and which of them other processes used.
    foreign: ForeignNonces,
    head: Option<u64>,
    /// Operation number of the poll in flight; `None` if there is none.
    polling: Option<u64>,
    poll_at: Option<Instant>,
    polled_at: Option<Instant>,
    /// Whether the last poll failed. A new request must not bring the next poll forward then.
    poll_failed: bool,
    /// Number of consecutive polls that found L1's nonce above all of ours.
    beyond: u32,
    /// Number of consecutive polls that found a gap between L1's pool and our lowest nonce.
    gaps: u32,
    last_op: u64,
    actions: Vec<SendAction>,
}

impl SendMachine {
    /// Creates a machine whose first action is to poll the account `address`.
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
            foreign: ForeignNonces::default(),
            head: None,
            polling: None,
            poll_at: Some(now),
            polled_at: None,
            poll_failed: false,
            beyond: 0,
            gaps: 0,
            last_op: 0,
            actions: Vec::new(),
        }
    }

    /// Handles one event, and returns the actions to carry out. `now` must never decrease.
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

    /// Time at which to send the next [`SendEvent::Tick`]; `None` if no action depends on time.
    pub fn wakeup(&self) -> Option<Instant> {
        let slots = self.slots.values().filter_map(NonceSlot::wakeup);
        let queue = self.queue.iter().filter_map(|waiting| waiting.deadline);
        let poll = self.poll_at.filter(|_| self.wants_poll());
        slots.chain(queue).chain(poll).min()
    }

    /// Whether the wait for an earlier process's transactions is over.
    pub fn is_settled(&self) -> bool {
        !matches!(self.phase, SendPhase::Settling { .. })
    }

    /// Number of requests that are not finished.
    pub fn pending(&self) -> usize {
        let slots = self.slots.values().filter(|slot| slot.request().is_some());
        self.queue.len() + slots.count()
    }

    /// The nonce after the highest one in use.
    pub fn next_nonce(&self) -> u64 {
        self.next
    }

    pub fn settings(&self) -> &SendSettings {
        &self.settings
    }

    /// Settings to change. A transaction in flight uses new settings from its next step on.
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

    /// Stops the machine. `sentence` is the message to the operator: the reason and the next step.
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
}
