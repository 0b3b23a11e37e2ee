//! Inputs and outputs of [`SendMachine`](super::SendMachine): its settings, the events that it handles, the
//! actions that it wants. No logic.

use crate::txmgr::{
    fees::{FeeCaps, FeeRules, L1Fees, TxClass},
    publish_result::PublishResult,
};
use alloy_primitives::{B256, Bytes};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Number of a request, chosen by the caller; each is larger than those before.
pub type SendId = u64;

/// Times and counts by which a transaction is replaced, given up or done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRules {
    /// Blocks from the one that has the transaction to L1's head, both included
    /// (`--num-confirmations`); never zero.
    pub confirmations: u64,
    /// Observations that a nonce is used by another transaction before it is given up
    /// (`--safe-abort-nonce-too-low-count`); never zero.
    pub nonce_too_low_limit: u32,
    /// Time in the pool before the fees are raised (`--resubmission-timeout`).
    pub resubmission_timeout: Duration,
    /// Time before an unmined transaction is published again unchanged
    /// (`--txmgr.rebroadcast-interval`); zero is never.
    pub rebroadcast_interval: Duration,
    /// Pause after a failed publication (`--txmgr.retry-interval`).
    pub retry_interval: Duration,
    /// Refused publications in a row that are repeated (`--txmgr.max-retries`).
    pub max_retries: u64,
    /// Time for a request until it is mined (`--txmgr.send-timeout`); zero is none.
    pub send_timeout: Duration,
    /// Time until a pool has accepted it (`--txmgr.not-in-mempool-timeout`).
    pub mempool_timeout: Duration,
    /// Interval of polls for receipts (`--txmgr.receipt-query-interval`).
    pub receipt_poll_interval: Duration,
}

impl SendRules {
    /// The next publication of an unchanged transaction; `None` is never.
    pub(super) fn rebroadcast_at(&self, now: Instant) -> Option<Instant> {
        (!self.rebroadcast_interval.is_zero()).then(|| now + self.rebroadcast_interval)
    }
}

/// Settings of a machine. The RPC changes some of them while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendSettings {
    pub rules: SendRules,
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
    /// Time from the request until the transaction was seen in this block. Set for the caller.
    pub delay: Duration,
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
    /// Next nonce after `deep_block`, the newest block with enough confirmations ([`SendAction::Poll`]).
    pub deep_nonce: Option<u64>,
    /// Age of the newest block, if the poll wanted it. Zero if its time is ahead of our clock.
    pub head_age: Option<Duration>,
    /// For each hash of the poll, the transaction if it is in a block.
    pub receipts: HashMap<B256, Option<MinedTx>>,
}

/// The reason why a request has failed. Unless the text says otherwise, its data may still reach L1.
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
    #[error(
        "the transaction has lost its nonce while a later one is in flight: it is to be sent again"
    )]
    Overtaken,
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
    Published { op: u64, answer: PublishResult },
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
        /// Newest block with enough confirmations, whose nonce is read; `None` before the head is known.
        deep_block: Option<u64>,
        /// Whether the age of the newest block is wanted.
        with_age: bool,
        hashes: Vec<B256>,
    },
    /// A transaction of a request is in a block.
    Included {
        id: SendId,
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
    /// Another process used this nonce; the next request gets a higher one.
    Adopted {
        nonce: u64,
    },
    /// A transaction that was in a block is in none any more.
    ReorgedOut {
        nonce: u64,
        hash: B256,
    },
    /// The machine does nothing any more; says why.
    Stopped(String),
}
