//! The write buffers: what is committed but not in tables yet.
//!
//! The engine turns full memtables over on the thread that also compacts, and asks for it by a bounded queue that the same thread
//! empties: they would grow for as long as a compaction takes, and a long one could fill the queue and stop the thread for good. So the
//! writer turns them over itself, keyspace by keyspace, and waits for the engine when more is in memory than the budget. The writer is
//! the persister: its back-pressure is what the executor may keep unstored.

use crate::chain::store::{Inner, Space, space::GATHERED_TABLES};
use fjall::AbstractTree;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Written out tables of a keyspace above which merging falls behind.
const BEHIND: usize = 2 * GATHERED_TABLES as usize;
/// Bytes of all memtables, full ones included, above which the writer waits: a fifth more than they hold when none is being written
/// out. Counted here and not by the engine, which counts neither the nodes of its lists nor what an allocation costs: for the
/// short rows of trie history that is as much again.
const BUDGET: u64 = 68 << 20;
/// Longest wait for the engine after one batch. It may have stopped on an error, which the next batch is told.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);
/// Bytes that a row takes in a memtable beside its key and its value: a node of the list, and two allocations.
const ROW_OVERHEAD: usize = 140;

/// Bytes that each memtable holds.
#[derive(Default)]
pub(super) struct Buffers([AtomicU64; Space::ALL.len()]);

/// Bytes of a batch, by keyspace.
#[derive(Clone, Copy, Default)]
pub(super) struct Weights([u64; Space::ALL.len()]);

impl Weights {
    pub fn add(&mut self, space: Space, key: &[u8], value: Option<&[u8]>) {
        self.0[space as usize] += (key.len() + value.map_or(0, <[u8]>::len) + ROW_OVERHEAD) as u64;
    }
}

impl Space {
    /// Bytes at which a memtable is written out, with so many written out and not merged. The engine merges one step for each that is
    /// written out: a state of many levels needs more steps than that when blocks come at full speed, and with thirty tables unmerged the
    /// engine would wait for a step that nothing asks for any more.
    fn memtable(self, unmerged: usize) -> u64 {
        let bytes = match self {
            // Its keys are spread evenly, so that each compaction of what was written out rewrites all of the next level.
            Self::State => 24 << 20,
            Self::History => 16 << 20,
            _ => 4 << 20,
        };
        if unmerged > BEHIND { bytes / 4 } else { bytes }
    }
}

impl Inner {
    /// Counts a batch that was committed, and turns the memtables over that are full.
    pub(super) fn buffered(&self, batch: &Weights) -> Result<(), fjall::Error> {
        self.remove_retired();
        for space in Space::ALL {
            let held = &self.buffers.0[space as usize];
            let bytes = held.fetch_add(batch.0[space as usize], Ordering::Relaxed) + batch.0[space as usize];
            if bytes >= space.memtable(self.spaces[space as usize].tree.l0_run_count()) {
                self.spaces[space as usize].rotate_memtable()?;
                held.store(0, Ordering::Relaxed);
            }
        }
        let begun = Instant::now();
        while self.over_budget() && begun.elapsed() < LONGEST_WAIT {
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Turns all memtables over.
    pub(super) fn turn_over(&self) -> Result<(), fjall::Error> {
        self.remove_retired();
        for space in Space::ALL {
            self.spaces[space as usize].rotate_memtable()?;
            self.buffers.0[space as usize].store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether memtables hold too much, and some are being written out.
    fn over_budget(&self) -> bool {
        let active: u64 = self.buffers.0.iter().map(|held| held.load(Ordering::Relaxed)).sum();
        let sealed = |space: Space| self.spaces[space as usize].sealed_memtable_count() as u64 * space.memtable(0);
        let sealed: u64 = Space::ALL.into_iter().map(sealed).sum();
        sealed > 0 && active + sealed > BUDGET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_that_falls_behind_is_asked_for_more_often() {
        for space in Space::ALL {
            assert_eq!(space.memtable(BEHIND), space.memtable(0));
            assert_eq!(space.memtable(BEHIND + 1), space.memtable(0) / 4);
        }
    }
}
