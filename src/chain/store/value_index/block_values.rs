//! The indexed values of a block.

use super::ValueIndex;
use crate::chain::{
    participants::participants,
    receipt::Receipt,
    rows::{ReadError, keys},
    store::Snapshot,
    transaction::ChainTx,
};
use alloy_primitives::{Address, B256, Bytes, map::HashSet};
use std::cell::RefCell;

/// The parts of a block from which its indexed values are computed.
#[derive(Clone, Copy)]
pub(in crate::chain::store) struct BlockParts<'a> {
    pub transactions: &'a [Bytes],
    /// Senders in block order. A missing sender is recovered from its transaction's signature.
    pub senders: &'a [Address],
    pub receipts: &'a [Receipt],
}

/// The indexed values of a block, without duplicates.
#[derive(Default)]
struct BlockValues(HashSet<keys::IndexedValue>);

impl BlockValues {
    fn add_log(&mut self, address: &Address, topics: &[B256]) {
        self.0.insert(keys::indexed_value(0, &address.into_word()));
        for (topic, position) in topics.iter().zip(1..) {
            self.0.insert(keys::indexed_value(position, topic));
        }
    }

    fn add_participants(&mut self, parts: &BlockParts<'_>) {
        let transactions = parts.transactions.iter().zip(parts.receipts);
        for (at, (raw, receipt)) in transactions.enumerate() {
            // The block has been executed, so a transaction that cannot be decoded means damage.
            // `db verify` reports it.
            let Ok(tx) = ChainTx::decode(raw) else {
                continue;
            };
            let sender = match parts.senders.get(at) {
                Some(sender) => Some(*sender),
                None => tx.signer_unchecked().ok(),
            };
            let Some(sender) = sender else { continue };
            for address in participants(&tx, sender, receipt) {
                self.0.insert(keys::indexed_value(0, &address.into_word()));
            }
        }
    }

    fn keys(&self, index: ValueIndex, number: u64, mut put: impl FnMut(&[u8])) {
        for value in &self.0 {
            let prefix = keys::value_prefix(index.tag(), value);
            put(&keys::value_row(&prefix, number));
        }
    }
}

/// Passes the key of each of a block's rows in an index to `put`.
pub(in crate::chain::store) fn rows(
    index: ValueIndex,
    number: u64,
    parts: &BlockParts<'_>,
    put: impl FnMut(&[u8]),
) {
    let mut values = BlockValues::default();
    match index {
        ValueIndex::Logs => {
            for log in parts.receipts.iter().flat_map(|receipt| &receipt.logs) {
                values.add_log(&log.address, log.topics());
            }
        }
        ValueIndex::Addresses => values.add_participants(parts),
    }
    values.keys(index, number, put);
}

impl Snapshot {
    /// Passes each key that a block must have in an index to `put`. Returns false if the block has
    /// no receipts, or, for the address index, no transactions to match them.
    pub(crate) fn value_rows(
        &self,
        index: ValueIndex,
        number: u64,
        put: impl FnMut(&[u8]),
    ) -> Result<bool, ReadError> {
        match index {
            ValueIndex::Logs => self.log_rows(number, put),
            ValueIndex::Addresses => self.participant_rows(number, put),
        }
    }

    fn log_rows(&self, number: u64, put: impl FnMut(&[u8])) -> Result<bool, ReadError> {
        let values = RefCell::new(BlockValues::default());
        // The closure rejects every log, so that none is copied.
        let found = self.logs(number, &|address, topics| {
            values.borrow_mut().add_log(address, topics);
            false
        })?;
        values.into_inner().keys(ValueIndex::Logs, number, put);
        Ok(found.is_some())
    }

    fn participant_rows(&self, number: u64, put: impl FnMut(&[u8])) -> Result<bool, ReadError> {
        let (Some(transactions), Some(receipts)) = (self.body(number)?, self.receipts(number)?)
        else {
            return Ok(false);
        };
        if transactions.len() != receipts.len() {
            return Ok(false);
        }
        let senders = self.senders(number)?.unwrap_or_default();
        let parts = BlockParts {
            transactions: &transactions,
            senders: &senders,
            receipts: &receipts,
        };
        rows(ValueIndex::Addresses, number, &parts, put);
        Ok(true)
    }
}
