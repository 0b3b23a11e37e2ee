//! Rows of the state, and the types for them that the store, views, the trie and the EVM share.
//!
//! A block changes rows of the flat state and of the tries. [`Overlay`] contains these changes, and
//! [`ExecutedBlock`] the block with them. [`keys`] and [`codec`] define how rows are laid out on
//! disk. Pure data without I/O: most of the chain builds on this module, and the module depends
//! only on receipts and `changes`.

pub mod account;
pub mod codec;
pub mod keys;

pub use account::Account;

use crate::chain::{changes::KeyName, receipt::Receipt};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use starling_proto::payload::Payload;
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

/// One row of the flat state or of a trie, before and after a block; `None` if the row is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowChange {
    pub before: Option<Bytes>,
    pub after: Option<Bytes>,
}

/// All rows of the `state` keyspace that one block changes, by row key. The same value serves as
/// the overlay above the store, as the write set of a commit, and, by its old values, as the unwind
/// record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlay {
    pub rows: BTreeMap<Bytes, RowChange>,
    pub codes: Vec<(B256, Bytes)>,
    /// Addresses and slots that the block changes. The store saves them on request only.
    pub names: Vec<KeyName>,
}

/// Estimated bytes that a changed row uses in memory beside its key and its values, including its
/// entry in the row index of the branch.
const ROW_OVERHEAD: usize = 300;

impl Overlay {
    /// Approximate bytes used in memory, for memory budgets.
    pub fn weight(&self) -> usize {
        let value = |value: &Option<Bytes>| value.as_ref().map_or(0, |v| v.len());
        let rows: usize = self
            .rows
            .iter()
            .map(|(key, row)| ROW_OVERHEAD + key.len() + value(&row.before) + value(&row.after))
            .sum();
        let codes = self.codes.iter().map(|(_, code)| 64 + code.len());
        rows + codes.sum::<usize>() + size_of_val(&self.names[..])
    }
}

/// A block that has been executed, with everything that a commit writes for it.
#[derive(Debug)]
pub struct ExecutedBlock {
    pub payload: Arc<Payload>,
    pub senders: Vec<Address>,
    pub receipts: Arc<Vec<Receipt>>,
    pub overlay: Arc<Overlay>,
    transaction_hashes: OnceLock<Vec<B256>>,
}

impl ExecutedBlock {
    pub fn new(
        payload: Arc<Payload>,
        senders: Vec<Address>,
        receipts: Arc<Vec<Receipt>>,
        overlay: Arc<Overlay>,
    ) -> Self {
        Self {
            payload,
            senders,
            receipts,
            overlay,
            transaction_hashes: OnceLock::new(),
        }
    }

    /// Hashes of the transactions, in block order; computed once.
    pub fn transaction_hashes(&self) -> &[B256] {
        self.transaction_hashes
            .get_or_init(|| self.payload.transactions.iter().map(keccak256).collect())
    }

    /// Approximate bytes used in memory, for memory budgets.
    pub fn weight(&self) -> usize {
        self.payload.weight()
            + self.overlay.weight()
            + self.receipts.iter().map(Receipt::weight).sum::<usize>()
    }
}

/// The reason why the store or a view cannot return what was read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    #[error(
        "the database cannot be read ({0}): stop the node and run `starling db verify`, which says what is damaged and what helps"
    )]
    Store(String),
    #[error(
        "a stored row is damaged ({0}): stop the node and run `starling db verify`, which says what else is, and what helps"
    )]
    Damaged(String),
    #[error("the records of block {0} are no longer kept")]
    Pruned(u64),
    #[error("no trie is kept for the state after block {0}, only its values")]
    NoTrie(u64),
    #[error("too much has changed since block {0} to read the state of a branch that forks there")]
    Far(u64),
    #[error("block {0} does not build on the block below it")]
    Unlinked(u64),
    /// Only within [`memory_only::attempt`](super::memory_only::attempt), whose caller reads again.
    #[error("the row is not in memory, and this thread must not read the disk")]
    NotInMemory,
}

impl ReadError {
    /// The cause without advice, for callers that give their own advice.
    pub fn cause(&self) -> String {
        match self {
            Self::Store(what) | Self::Damaged(what) => what.clone(),
            other => other.to_string(),
        }
    }
}
