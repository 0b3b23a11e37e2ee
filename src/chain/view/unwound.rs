//! Unwind data of a view below the stored head: the values, at the fork point of a branch, of the
//! rows that stored blocks above the fork point have changed.
//!
//! Built from unwind records, newest first, and kept in memory as long as the view. Its size is
//! therefore bounded. A branch that forks off deeper can be read only after the store itself has
//! been unwound.

use crate::chain::{
    rows::ReadError,
    store::{Snapshot, mismatch},
};
use alloy_primitives::Bytes;
use std::collections::BTreeMap;

/// Estimated bytes that a row uses in memory in addition to its key and its value.
const OVERHEAD: usize = 150;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unwound {
    /// Values at the fork point by row key; `None` if the row did not exist then.
    pub rows: BTreeMap<Bytes, Option<Bytes>>,
    weight: usize,
}

impl Unwound {
    /// Unwinds one more block, `number`: on entry `rows` has the values after this block. Blocks
    /// are added downwards, so the lowest block that changed a row determines the row's value at
    /// the fork point.
    pub fn add(&mut self, snapshot: &Snapshot, number: u64) -> Result<(), ReadError> {
        let bytes = |row: &Option<Bytes>| row.as_ref().map_or(0, |row| row.len());
        for (key, before) in snapshot
            .unwind_record(number)?
            .ok_or(ReadError::Pruned(number))?
        {
            let known = self.rows.get(&key).cloned();
            match &known {
                Some(later) => self.weight -= bytes(later),
                None => self.weight += OVERHEAD + key.len(),
            }
            let after = known.map_or_else(|| snapshot.state_row(&key), Ok)?;
            let before = before
                .row(after.as_ref())
                .ok_or_else(|| mismatch(number, &key))?;
            self.weight += bytes(&before);
            self.rows.insert(key, before);
        }
        Ok(())
    }

    /// Approximate bytes held in memory.
    pub fn weight(&self) -> usize {
        self.weight
    }
}
