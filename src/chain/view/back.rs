//! The way back below the stored head: what rows were at the fork of a branch that stored blocks above it have changed.
//!
//! Made of unwind records, newest first, and in memory for as long as a view is. So it has a bound: a branch that leaves the stored
//! chain beyond that is stood on only after the store itself has gone back there, block by block.

use crate::chain::store::UnwindRecord;
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
    /// Goes back one block more. The oldest record that knows a row tells what it was at the fork.
    pub fn add(&mut self, record: UnwindRecord) {
        let bytes = |value: &Option<Bytes>| value.as_ref().map_or(0, |value| value.len());
        for (key, before) in record {
            let (key_bytes, value_bytes) = (key.len(), bytes(&before));
            self.weight += value_bytes;
            match self.rows.insert(key, before) {
                Some(later) => self.weight -= bytes(&later),
                None => self.weight += OVERHEAD + key_bytes,
            }
        }
    }

    /// Approximate bytes held in memory.
    pub fn weight(&self) -> usize {
        self.weight
    }
}
