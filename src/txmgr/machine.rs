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
//! replaces what is stuck. A nonce that another process has used is adopted: the machine goes on
//! above it, since it may be a predecessor's that the endpoint did not know. Only if that repeats
//! between transactions of our own, another process has the same key, and the machine stops with
//! [`SendAction::Stopped`]; `machine/foreign.rs` has the rule.

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

/// Attempts to create a transaction before the request fails (op-service: 5).
const CRAFT_TRIES: u32 = 5;
/// Pause between these attempts (op-service).
const CRAFT_PAUSE: Duration = Duration::from_secs(5);
/// Shortest pause between two attempts of anything, so that an interval of zero does not spin.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// Signed transactions of one nonce at which its fees are no longer bumped: 63 bumps of 10 % raise
/// them 400-fold. Each adds a hash to a poll.
const MAX_ATTEMPTS: usize = 64;
/// Answers `already reserved` before a cancellation: the pool may not have seen the last block.
const RESERVED_LIMIT: u32 = 3;

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
    /// Nonces below this one may have been used by a predecessor.
    inherited: u64,
    /// Nonces that others have used since the start.
    foreign: ForeignNonces,
    head: Option<u64>,
    /// Operation number of the poll in flight.
    polling: Option<u64>,
    poll_at: Option<Instant>,
    polled_at: Option<Instant>,
    /// Whether the last poll failed: the next one keeps its pause.
    poll_failed: bool,
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
}
