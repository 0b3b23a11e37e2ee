//! Searches for the blocks in which an address takes part, using the store's address index.
//!
//! Otterscan's searches walk from block to block. Blocks above the store are not in the index, so
//! each of them is a candidate. The reader must check every block found, since two addresses may
//! share rows.

use super::{ReadError, View};
use crate::chain::{rows::keys, store::ValueIndex};
use alloy_primitives::Address;
use std::ops::RangeInclusive;

impl View {
    /// The first block from which on transactions are indexed by address; above the head if the
    /// index is still to be built. `None` if the index is turned off.
    pub fn addresses_from(&self) -> Option<u64> {
        let on = !self.snapshot.is_index_off(ValueIndex::Addresses);
        on.then(|| self.snapshot.indexed_from(ValueIndex::Addresses))
    }

    /// The lowest block of the chain.
    pub fn lowest_block(&self) -> Result<u64, ReadError> {
        self.snapshot.lowest_block()
    }

    /// The blocks of a range in which the address may take part, ascending; iterate from the back
    /// for descending order. Stored blocks below [`View::addresses_from`] are omitted.
    pub fn blocks_of(
        &self,
        address: &Address,
        range: RangeInclusive<u64>,
    ) -> impl DoubleEndedIterator<Item = Result<u64, ReadError>> + use<> {
        let (from, to) = range.into_inner();
        let stored = self.base.number;
        let value = keys::indexed_value(0, &address.into_word());
        let prefix = keys::value_prefix(keys::PARTICIPANT, &value);
        let first = self.addresses_from().unwrap_or(u64::MAX).max(from);
        let indexed = (first <= to.min(stored))
            .then(|| self.snapshot.blocks_with(&prefix, first, to.min(stored)));
        let in_memory = from.max(stored + 1)..=to.min(self.header.number);
        indexed.into_iter().flatten().chain(in_memory.map(Ok))
    }
}
