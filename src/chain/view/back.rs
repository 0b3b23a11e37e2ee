//! The way back below the stored head: what rows were at the fork of a branch that stored blocks above it have changed.
//!
//! Made of unwind records, newest first, and in memory for as long as a view is. So it has a bound: a branch that leaves the stored
//! chain beyond that is stood on only after the store itself has gone back there, block by block.

use crate::chain::{
    store::{Snapshot, misfit},
    view::ReadError,
};
use alloy_primitives::Bytes;
use std::collections::BTreeMap;

/// Bytes that a row takes in memory beside its key and its value.
const OVERHEAD: usize = 150;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Back {
    pub rows: BTreeMap<Bytes, Option<Bytes>>,
    weight: usize,
}

impl Back {
    /// Goes back over this block, from the rows after it. The oldest record that knows a row tells what it was at the fork.
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
                .ok_or_else(|| misfit(number, &key))?;
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
