//! Searches for the blocks that may hold the logs of a filter, by the store's log index.
//!
//! A filter constrains positions of a log: its address and its topics, each to some alternatives.
//! The index gives the next block of one alternative by one seek, so the next block of a position is
//! the lowest of its alternatives. The search moves all positions up to the highest of these until
//! they agree. What it finds is checked against the receipts by the reader. Blocks that are not in
//! the index, in memory or older than it, are candidates one by one.

use super::{ReadError, View};
use crate::chain::{
    rows::keys::{self, ValuePrefix},
    store::{Snapshot, ValueIndex},
};
use alloy_primitives::{Address, B256};

/// Alternatives of a filter above which rows are read by one seek each. Each open iterator holds a
/// block of several tables.
const MAX_OPEN: usize = 32;
/// Rows that an iterator is moved over before a seek is cheaper.
const NEAR: usize = 16;
/// Seeks after which the block that was reached becomes a candidate, so that the caller can check
/// its deadline.
const MAX_SEEKS: usize = 256;

/// The constrained positions of a filter, as prefixes of rows of the log index.
pub struct LogSearch {
    positions: Vec<Vec<ValuePrefix>>,
    /// Alternatives of all positions.
    alternatives: usize,
}

impl LogSearch {
    /// The search for logs of any of `addresses`, with any of the topics at each position. An empty
    /// list matches anything.
    pub fn new(addresses: &[Address], topics: &[Vec<B256>]) -> Self {
        let addresses = addresses.iter().map(|address| address.into_word());
        let all = [addresses.collect()]
            .into_iter()
            .chain(topics.iter().cloned());
        let prefixes = |(position, values): (usize, Vec<B256>)| {
            let prefix =
                |value: &B256| keys::value_prefix(keys::LOG, &keys::indexed_value(position, value));
            let mut prefixes: Vec<_> = values.iter().map(prefix).collect();
            prefixes.sort_unstable();
            prefixes.dedup();
            prefixes
        };
        let mut positions: Vec<_> = all.enumerate().map(prefixes).collect();
        positions.retain(|alternatives| !alternatives.is_empty());
        let alternatives = positions.iter().map(Vec::len).sum();
        Self {
            positions,
            alternatives,
        }
    }

    /// A cursor over blocks of the view's branch. For few blocks their headers are cheaper than the
    /// index.
    pub fn cursor(&self, view: &View, blocks: u64) -> LogCursor {
        let indexed = if self.positions.is_empty() || blocks <= self.alternatives as u64 {
            None
        } else {
            Some((
                view.snapshot.indexed_from(ValueIndex::Logs),
                view.base.number,
            ))
        };
        let open = self.alternatives <= MAX_OPEN;
        let posting = |prefix: &ValuePrefix| Posting {
            prefix: *prefix,
            next: NextBlock::Unknown,
            rows: None,
        };
        let positions = self.positions.iter();
        LogCursor {
            snapshot: view.snapshot.clone(),
            indexed,
            positions: positions
                .map(|prefixes| prefixes.iter().map(posting).collect())
                .collect(),
            open,
            seeks: 0,
        }
    }
}

/// The position of a search in one view. It pins the view's snapshot.
pub struct LogCursor {
    snapshot: Snapshot,
    /// First and last block in the index; `None` if the index is not used.
    indexed: Option<(u64, u64)>,
    positions: Vec<Vec<Posting>>,
    /// Whether iterators stay open.
    open: bool,
    /// Seeks since the last candidate.
    seeks: usize,
}

/// The rows of one alternative.
struct Posting {
    prefix: ValuePrefix,
    next: NextBlock,
    rows: Option<Box<dyn Iterator<Item = Result<u64, ReadError>>>>,
}

#[derive(Clone, Copy)]
enum NextBlock {
    Unknown,
    At(u64),
    /// There is no further block.
    End,
}

impl LogCursor {
    /// The first block at or after `from` and up to `to` that may hold matching logs: no block before
    /// it does. Blocks must be asked for in ascending order.
    pub fn candidate(&mut self, from: u64, to: u64) -> Result<Option<u64>, ReadError> {
        if from > to {
            return Ok(None);
        }
        let Some((_, last)) = self
            .indexed
            .filter(|(first, last)| (*first..=*last).contains(&from))
        else {
            return Ok(Some(from));
        };
        let found = self.agree(from, to.min(last), last)?;
        Ok(found.or((to > last).then(|| last + 1)))
    }

    /// The first block from `from` to `to` that all positions have, or one before it that took too
    /// long to pass. `last` is the last block in the index.
    fn agree(&mut self, from: u64, to: u64, last: u64) -> Result<Option<u64>, ReadError> {
        let (mut at, mut agreed, mut position) = (from, 0, 0);
        self.seeks = 0;
        while agreed < self.positions.len() {
            if self.seeks > MAX_SEEKS {
                return Ok(Some(at));
            }
            let Some(next) = self.next_of(position, at, last)?.filter(|next| *next <= to) else {
                return Ok(None);
            };
            agreed = if next == at { agreed + 1 } else { 1 };
            at = next;
            position = (position + 1) % self.positions.len();
        }
        Ok(Some(at))
    }

    /// The first block at or after `from` that has an alternative of this position.
    fn next_of(&mut self, position: usize, from: u64, last: u64) -> Result<Option<u64>, ReadError> {
        let mut lowest = None;
        for posting in &mut self.positions[position] {
            if let NextBlock::End = posting.next {
                continue;
            }
            let next = match posting.next {
                NextBlock::At(next) if next >= from => Some(next),
                _ => {
                    self.seeks += 1;
                    posting.seek(&self.snapshot, from, last, self.open)?
                }
            };
            posting.next = next.map_or(NextBlock::End, NextBlock::At);
            lowest = [lowest, next].into_iter().flatten().min();
        }
        Ok(lowest)
    }
}

impl Posting {
    /// The first block at or after `from`. An open iterator is moved there if it is near.
    fn seek(
        &mut self,
        snapshot: &Snapshot,
        from: u64,
        last: u64,
        open: bool,
    ) -> Result<Option<u64>, ReadError> {
        if let Some(rows) = &mut self.rows {
            for row in rows.take(NEAR) {
                match row? {
                    number if number < from => {}
                    number => return Ok(Some(number)),
                }
            }
        }
        let mut rows = snapshot.blocks_with(&self.prefix, from, last);
        let next = rows.next().transpose()?;
        self.rows = match next {
            Some(_) if open => Some(Box::new(rows)),
            _ => None,
        };
        Ok(next)
    }
}
