//! Inputs and outputs of [`SendMachine`](super::SendMachine): its settings, the events that it
//! handles, the actions that it returns. No logic.

use crate::txmgr::{
    fees::{FeeCaps, FeeRules, L1Fees, TxClass},
    publish_result::PublishResult,
};
use alloy_primitives::{B256, Bytes};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Number of a request, chosen by the caller in increasing order.
pub type SendId = u64;

/// Times and counts after which a transaction is replaced, given up or confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRules {
    /// Number of blocks from the one with the transaction to L1's head, both included, for it to be
    /// confirmed (`--num-confirmations`); never zero.
    pub confirmations: u64,
    /// Number of observations that another transaction has used a nonce, until the nonce is given
    /// up (`--safe-abort-nonce-too-low-count`); never zero.
    pub nonce_too_low_limit: u32,
    /// Time in the pool until the fees are raised (`--resubmission-timeout`).
    pub resubmission_timeout: Duration,
    /// Time until an unmined transaction is published again unchanged
    /// (`--txmgr.rebroadcast-interval`); zero means never.
    pub rebroadcast_interval: Duration,
    /// Delay after a failed publication (`--txmgr.retry-interval`).
    pub retry_interval: Duration,
    /// Maximum number of consecutive refused publications to repeat (`--txmgr.max-retries`).
    pub max_retries: u64,
    /// Time until a request must be mined (`--txmgr.send-timeout`); zero means no limit.
    pub send_timeout: Duration,
    /// Time until a pool must accept a request's transaction (`--txmgr.not-in-mempool-timeout`).
    pub mempool_timeout: Duration,
    /// Interval of polls for nonces and receipts (`--txmgr.receipt-query-interval`).
    pub receipt_poll_interval: Duration,
}

impl SendRules {
    /// Time of the next publication of an unchanged transaction; `None` means never.
    pub(super) fn rebroadcast_at(&self, now: Instant) -> Option<Instant> {
        (!self.rebroadcast_interval.is_zero()).then(|| now + self.rebroadcast_interval)
    }
}

/// Settings of a machine, some of which the RPC can change while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendSettings {
    pub rules: SendRules,
    pub fees: FeeRules,
}

/// Purpose of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendWork {
    Request(SendId),
    /// An empty transaction that only uses up a nonce.
    Filler,
}

/// A signed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedTx {
    pub hash: B256,
    /// Encoding for `eth_sendRawTransaction`, with the sidecar of a blob transaction.
    pub raw: Bytes,
    /// Gas limit.
    pub gas: u64,
}

/// A transaction in an L1 block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinedTx {
    pub hash: B256,
    pub block: u64,
    pub block_hash: B256,
    /// False if the execution was reverted, which uses up the nonce nevertheless.
    pub success: bool,
    pub gas_used: u64,
    /// Price paid per gas, in wei.
    pub gas_price: u128,
    pub blob_gas_used: u64,
    pub blob_gas_price: u128,
    /// Time from the request until the transaction was first seen in a block; set by
    /// [`shell`](crate::txmgr::shell).
    pub delay: Duration,
}

/// State of the account on L1, read from one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountReading {
    /// Number of the newest block.
    pub head: u64,
    /// The account's next nonce after the newest block.
    pub latest: u64,
    /// Next nonce after the pool's consecutive transactions of the account.
    pub pending: u64,
    /// Next nonce after `deep_block`, the newest block with enough confirmations
    /// ([`SendAction::Poll`]).
    pub deep_nonce: Option<u64>,
    /// Age of the newest block, if the poll requested it. Zero if its time is ahead of our clock.
    pub head_age: Option<Duration>,
    /// For each hash in the poll, the mined transaction, or `None` if no block has it.
    pub receipts: HashMap<B256, Option<MinedTx>>,
}

/// The reason why a request failed. Unless its message says otherwise, the data may still reach L1.
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

/// An event for the machine. `op` is the number of the action whose result the event is.
#[derive(Clone, Debug)]
pub enum SendEvent {
    /// A new request to send a transaction.
    Submit { id: SendId, class: TxClass },
    /// Result of [`SendAction::ReadFees`].
    Fees {
        op: u64,
        fees: Result<L1Fees, String>,
    },
    /// Result of [`SendAction::Sign`].
    Signed {
        op: u64,
        signed: Result<SignedTx, String>,
    },
    /// Result of [`SendAction::Publish`].
    Published { op: u64, answer: PublishResult },
    /// Result of [`SendAction::Poll`].
    Polled {
        op: u64,
        reading: Result<AccountReading, String>,
    },
    /// Accept no more requests. Requests in a pool continue, the others fail.
    Close,
    /// Time has passed: take the steps that are due.
    Tick,
}

/// An action to carry out. Each action with an `op` results in one event with the same number.
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
        /// Gas limit of the transaction to replace; the new gas limit must not be lower.
        replaced_gas: Option<u64>,
    },
    Publish {
        op: u64,
        nonce: u64,
        tx: SignedTx,
    },
    /// Read the account's nonces and these receipts, in one batch if possible.
    Poll {
        op: u64,
        /// Newest block with enough confirmations, whose nonce to read; `None` before the head is
        /// known.
        deep_block: Option<u64>,
        /// Whether to read the age of the newest block too.
        with_age: bool,
        hashes: Vec<B256>,
    },
    /// A transaction of this request is in a block.
    Included {
        id: SendId,
    },
    /// The request is finished.
    Finished {
        id: SendId,
        result: Result<MinedTx, SendFailure>,
    },
    /// The fees could not be raised, so the transaction is published unchanged.
    NotBumped {
        nonce: u64,
        reason: String,
    },
    /// A filler was started at this nonce, for this reason.
    Filling {
        nonce: u64,
        reason: &'static str,
    },
    /// Another process used this nonce. The next request gets a higher one.
    Adopted {
        nonce: u64,
    },
    /// A transaction that was in a block is in no block any more.
    ReorgedOut {
        nonce: u64,
        hash: B256,
    },
    /// The machine has stopped for good. The message names the reason and the next step.
    Stopped(String),
}
