//! Unwind data of a view below the stored head: the values, at the fork point of a branch, of rows
//! that stored blocks above the fork point have changed.
//!
//! Built from unwind records, newest first, and held in memory as long as the view. Its size is
//! therefore bounded: a branch that forks off deeper can be read only after the store itself has
//! been unwound.

use crate::chain::{
    rows::ReadError,
    store::{Snapshot, mismatch},
};
use alloy_primitives::Bytes;
use std::collections::BTreeMap;

/// Bytes that a row takes in memory beside its key and its value.
const OVERHEAD: usize = 150;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unwound {
    /// By row key; `None` where the row did not exist.
    pub rows: BTreeMap<Bytes, Option<Bytes>>,
    weight: usize,
}

impl Unwound {
    /// Unwinds block `number`, the next lower one: `rows` holds the values after it. The record of
    /// the lowest block that changed a row determines its value at the fork point.
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
