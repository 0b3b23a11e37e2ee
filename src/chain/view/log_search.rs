//! Searches for the blocks that may contain logs matching a filter, using the store's log index.
//!
//! A filter constrains positions of a log (its address and its topics), each to a list of
//! alternatives. One seek in the index finds the next block with one alternative, so the next block
//! of a position is the lowest of the blocks of its alternatives. The search advances every
//! position to the highest of these blocks until all positions agree on a block. The reader must
//! check the block's receipts. Blocks that are not in the index, because they are in memory or
//! older than the index, are all candidates.

use super::{ReadError, View};
use crate::chain::{
    rows::keys::{self, ValuePrefix},
    store::{Snapshot, ValueIndex},
};
use alloy_primitives::{Address, B256};

/// Number of alternatives in a filter above which every row is read by its own seek. Up to this
/// number, iterators stay open, and each open iterator keeps a block of several tables in memory.
const MAX_OPEN: usize = 32;
/// Largest number of rows that an open iterator steps over to reach a block; beyond that a seek is
/// cheaper.
const NEAR: usize = 16;
/// Number of seeks after which the block reached so far is returned as a candidate, so that the
/// caller can check its deadline.
const MAX_SEEKS: usize = 256;

/// A search for the logs of a filter: its constrained positions, as prefixes of rows of the log
/// index.
pub struct LogSearch {
    positions: Vec<Vec<ValuePrefix>>,
    /// Number of alternatives, over all positions.
    alternatives: usize,
}

impl LogSearch {
    /// The search for logs that have one of `addresses` and, at each position, one of the topics
    /// listed there. An empty list matches anything.
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

    /// A cursor for a search over `blocks` blocks of the view's branch. If the blocks are few,
    /// reading their headers is cheaper than the index, which is then not used.
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

/// The state of a search through one view. It pins the view's snapshot.
pub struct LogCursor {
    snapshot: Snapshot,
    /// First and last block in the index; `None` if the index is not used.
    indexed: Option<(u64, u64)>,
    positions: Vec<Vec<Posting>>,
    /// Whether the iterators of alternatives stay open between seeks.
    open: bool,
    /// Seeks since the last candidate.
    seeks: usize,
}

/// The index rows of one alternative, and the next block among them.
struct Posting {
    prefix: ValuePrefix,
    next: NextBlock,
    rows: Option<Box<dyn Iterator<Item = Result<u64, ReadError>>>>,
}

#[derive(Clone, Copy)]
enum NextBlock {
    Unknown,
    At(u64),
    /// The alternative has no further block.
    End,
}

impl LogCursor {
    /// The first block at or after `from` and up to `to` that may have matching logs: all blocks
    /// before it have none. Successive calls must have ascending `from`.
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

    /// The first block from `from` to `to` that has an alternative of every position; or, after
    /// [`MAX_SEEKS`] seeks, the block reached so far. `last` is the last block in the index.
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

    /// The first block at or after `from` that has one of this position's alternatives.
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
    /// The first block at or after `from` that has this alternative. An open iterator is advanced
    /// if the block is near; otherwise the index is sought anew.
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
