//! Checks of the indexes of logs and addresses against the blocks: no row may be missing, and no
//! row may exist without its value in the block.
//!
//! The rows of a block are spread over the whole index. Therefore rows are summed up by groups of
//! blocks, once from the blocks and once from a scan of the index, and the sums are compared. The
//! sums take about 50 bytes of memory per 512 blocks.

use super::{DamageReport, ProgressFn, Remedy};
use crate::chain::{
    rows::{ReadError, keys},
    store::{Snapshot, Space, ValueIndex},
};
use rayon::prelude::*;
use std::hash::{DefaultHasher, Hasher};

/// Number of blocks in a group.
const GROUP: u64 = 512;
/// Number of groups that are read in parallel, between two progress reports.
const PARALLEL: usize = 16;
/// Number of rows between two progress reports.
const REPORT_EVERY: u64 = 1 << 16;

/// The number and the sum of a group's rows, independent of their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RowSum {
    rows: u64,
    /// Wrapping sum of the hashes of the rows.
    sum: u64,
}

impl RowSum {
    fn add(&mut self, key: &[u8]) {
        let mut hasher = DefaultHasher::new();
        hasher.write(key);
        self.rows += 1;
        self.sum = self.sum.wrapping_add(hasher.finish());
    }
}

/// Checks the part of an index that is in use. Groups with damaged blocks are left out, since the
/// check of blocks reports these blocks.
pub(crate) fn check(
    snapshot: &Snapshot,
    index: ValueIndex,
    report: &mut DamageReport,
    progress: &mut ProgressFn<'_>,
) {
    let (first, head) = (snapshot.indexed_from(index), snapshot.head().number);
    let starts: Vec<u64> = (first..=head).step_by(GROUP as usize).collect();
    let mut needed = Vec::with_capacity(starts.len());
    for some in starts.chunks(PARALLEL) {
        let sums: Vec<_> = some
            .par_iter()
            .map(|start| needed_rows(snapshot, index, *start, head.min(start + GROUP - 1)))
            .collect();
        for sum in sums {
            needed.push(sum.unwrap_or_else(|error| {
                report.unreadable("a block, for an index of it", &error);
                None
            }));
        }
        progress(index.name(), needed.len() as u64 * GROUP, head + 1 - first);
    }
    let stored = match stored_rows(snapshot, index, &starts, report, progress) {
        Ok(stored) => stored,
        Err(error) => return report.unreadable(index.name(), &error),
    };
    for ((start, needed), stored) in starts.iter().zip(needed).zip(stored) {
        let end = head.min(start + GROUP - 1);
        if let Some(needed) = needed
            && needed != stored
        {
            report.add(
                difference(index, *start, end, needed, stored),
                Remedy::Repair,
            );
        }
    }
}

fn difference(index: ValueIndex, start: u64, end: u64, needed: RowSum, stored: RowSum) -> String {
    let (rows, wanted) = (stored.rows, needed.rows);
    let what = match rows.cmp(&wanted) {
        std::cmp::Ordering::Less => "rows are missing",
        std::cmp::Ordering::Equal => "rows are of other values",
        std::cmp::Ordering::Greater => "there are superfluous rows",
    };
    format!(
        "the {} of blocks {start} to {end} does not match them: {what} ({rows} are stored, {wanted} are needed)",
        index.name()
    )
}

/// The rows that these blocks must have; `None` if a block is damaged.
fn needed_rows(
    snapshot: &Snapshot,
    index: ValueIndex,
    start: u64,
    end: u64,
) -> Result<Option<RowSum>, ReadError> {
    let mut sum = RowSum::default();
    for number in start..=end {
        match snapshot.value_rows(index, number, |key| sum.add(key)) {
            Ok(true) => {}
            Ok(false) | Err(ReadError::Damaged(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(sum))
}

/// The stored rows, summed up by groups; `starts` are the first blocks of the groups. Rows of
/// blocks below the index's first block may exist and are ignored.
fn stored_rows(
    snapshot: &Snapshot,
    index: ValueIndex,
    starts: &[u64],
    report: &mut DamageReport,
    progress: &mut ProgressFn<'_>,
) -> Result<Vec<RowSum>, ReadError> {
    let (first, head) = (snapshot.indexed_from(index), snapshot.head().number);
    let mut stored = vec![RowSum::default(); starts.len()];
    let mut count = 0u64;
    for row in snapshot.rows(Space::History, &[index.tag()]) {
        let (key, value) = row?;
        match keys::value_row_number(&key).filter(|number| *number <= head && value.is_empty()) {
            Some(number) if number < first => {}
            Some(number) => {
                stored[((number - first) / GROUP) as usize].add(&key);
                count += 1;
            }
            None => report.add(
                format!(
                    "the row {key} of the {} is malformed, or above the head",
                    index.name()
                ),
                Remedy::Repair,
            ),
        }
        if count.is_multiple_of(REPORT_EVERY) {
            progress(index.name(), count, 0);
        }
    }
    report.count(index.rows_name(), count);
    Ok(stored)
}

#[cfg(test)]
mod tests;
