//! The persister: the thread that owns the store's write path. Commits groups of blocks, unwinds
//! block by block, syncs, and extends the log and address indexes while it has no other work.
//!
//! The executor sends it one piece of [`PersistWork`] at a time and receives one [`PersistReport`]
//! for it. Blocks executed while a commit runs therefore form the next group. An additional report
//! follows when an index has grown. On a full disk the persister waits and retries until the chain
//! is stopped. Any other failure to move the store's head or to sync ends the chain: data that the
//! disk once failed to write may be lost, even if a later sync succeeds.

mod indexer;

use crate::chain::{
    rows::ExecutedBlock,
    store::{Snapshot, Store, StoreError},
    types::Shared,
};
use indexer::{Indexer, IndexerStep};
use starling_proto::payload::BlockId;
use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

/// Time between two flushes of all memtables. Without the flush, a memtable that fills slowly keeps
/// its old journals, which an open has to read.
const ROTATE_EVERY: Duration = Duration::from_secs(600);
/// Bytes in memtables above which they are flushed after [`ROTATE_SOON`] instead. A killed node
/// then opens quickly, unless it was importing at full speed.
const ROTATE_ABOVE: u64 = 24 << 20;
const ROTATE_SOON: Duration = Duration::from_secs(60);
/// Maximum duration of the last flush when the node stops.
const ROTATE_AT_END: Duration = Duration::from_secs(10);

/// Maximum bytes of blocks in one batch, unless one block is larger. A batch is a second copy of
/// its blocks in memory. One or two full blocks, or a hundred small ones, are enough to amortise a
/// commit.
const BATCH_WEIGHT: usize = 8_000_000;

/// A move of the store's head: down to `unwind_to`, then up along `blocks`.
pub struct PersistWork {
    pub unwind_to: u64,
    /// Blocks to commit on top of `unwind_to`, oldest first.
    pub blocks: Vec<Arc<ExecutedBlock>>,
    pub safe: Option<BlockId>,
    pub finalized: Option<BlockId>,
}

/// A new snapshot of the store, for the executor.
pub enum PersistReport {
    /// A piece of work is done.
    Stored(Snapshot),
    /// No work was done, but an index reaches further down. The head is the same as in the last
    /// report.
    Indexed(Snapshot),
}

/// The persister's report, or the error that ends the chain. An error may be sent at any time.
pub type PersistResult = Result<PersistReport, StoreError>;

/// Runs until the executor drops its end of the channels. `wake` is called after each report, so
/// that an idle executor receives it. `sync_every` bounds the data that a power cut can lose; a
/// kill of the process loses nothing.
pub fn run(
    store: &Store,
    shared: &Shared,
    work: Receiver<PersistWork>,
    done: SyncSender<PersistResult>,
    wake: impl Fn(),
    sync_every: Duration,
) {
    // Returns false once the executor has ended.
    let report = |result: PersistResult| {
        let received = done.send(result).is_ok();
        wake();
        received
    };
    let mut synced = Instant::now();
    let mut rotated = Instant::now();
    let mut dirty = false;
    let mut indexer = Indexer::default();
    loop {
        match work.recv_timeout(
            indexer
                .pause()
                .map_or(sync_every, |pause| pause.min(sync_every)),
        ) {
            Ok(piece) => {
                indexer.look_again();
                let result = perform(store, shared, &piece);
                let failed = result.is_err();
                dirty = true;
                if !report(result) || failed {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let step = indexer.step(store);
                dirty |= step != IndexerStep::None;
                if step == IndexerStep::Milestone
                    && !report(store.snapshot().map(PersistReport::Indexed))
                {
                    break;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if dirty && synced.elapsed() >= sync_every {
            if let Err(error) = sync(store, &mut rotated) {
                report(Err(error));
                break;
            }
            synced = Instant::now();
            dirty = false;
        }
    }
    if let Err(error) = store.sync() {
        return tracing::error!(%error, "the store could not be synced to disk at the end");
    }
    if let Err(error) = store.rotate_within(ROTATE_AT_END) {
        tracing::warn!(%error, "the memtables were not flushed at the end: the next start replays the journals");
    }
}

/// Syncs the store to disk, and flushes its memtables if the last flush was long ago.
fn sync(store: &Store, rotated: &mut Instant) -> Result<(), StoreError> {
    store.sync()?;
    if rotated.elapsed() >= rotation_pause(store.buffered()) {
        if let Err(error) = store.rotate_within(Duration::ZERO) {
            tracing::warn!(%error, "the memtables could not be flushed");
        }
        *rotated = Instant::now();
    }
    Ok(())
}

/// Time between two flushes of memtables that hold `buffered` bytes.
fn rotation_pause(buffered: u64) -> Duration {
    if buffered > ROTATE_ABOVE {
        ROTATE_SOON
    } else {
        ROTATE_EVERY
    }
}

/// Moves the store's head. The work may be split into several batches: after a crash the head is at
/// the end of one of these.
fn perform(store: &Store, shared: &Shared, work: &PersistWork) -> PersistResult {
    let started = Instant::now();
    while store.head().number > work.unwind_to {
        shared.retry_while_full(StoreError::is_full, || store.unwind_one())?;
    }
    // Pass the safe and the finalized head with the last batch only: they may be above the heads of
    // the earlier batches.
    let mut remaining = &work.blocks[..];
    while let Some(count) = first_batch(remaining) {
        let (batch, more) = remaining.split_at(count);
        shared.retry_while_full(StoreError::is_full, || store.commit(batch, None, None))?;
        remaining = more;
    }
    shared.retry_while_full(StoreError::is_full, || {
        store.commit(remaining, work.safe, work.finalized)
    })?;
    metrics::histogram!("starling_persist_seconds").record(started.elapsed().as_secs_f64());
    metrics::counter!("starling_persisted_blocks_total").increment(work.blocks.len() as u64);
    store.snapshot().map(PersistReport::Stored)
}

/// Number of leading blocks to commit as a batch of their own. `None` if all blocks form one batch.
fn first_batch(blocks: &[Arc<ExecutedBlock>]) -> Option<usize> {
    let mut weight = 0;
    let full = blocks.iter().position(|block| {
        weight += block.weight();
        weight > BATCH_WEIGHT
    })?;
    let count = full.max(1);
    (count < blocks.len()).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::rows::Overlay;
    use alloy_consensus::Header;
    use starling_proto::payload::Payload;

    fn block(number: u64, bytes: usize) -> Arc<ExecutedBlock> {
        let header = Header {
            number,
            ..Default::default()
        };
        let payload = Arc::new(Payload::sealed(header, vec![vec![0; bytes].into()]));
        Arc::new(ExecutedBlock::new(
            payload,
            vec![],
            Arc::default(),
            Arc::new(Overlay::default()),
        ))
    }

    #[test]
    fn memtables_that_would_take_long_to_replay_are_flushed_sooner() {
        assert_eq!(
            (
                rotation_pause(ROTATE_ABOVE),
                rotation_pause(ROTATE_ABOVE + 1)
            ),
            (ROTATE_EVERY, ROTATE_SOON)
        );
    }

    #[test]
    fn a_batch_is_not_heavier_than_it_must() {
        let light = [block(1, 100), block(2, 100)];
        assert_eq!(first_batch(&light), None);
        assert_eq!(first_batch(&[]), None);
        let half = BATCH_WEIGHT / 2;
        let heavy: Vec<_> = (1..6).map(|number| block(number, half)).collect();
        assert_eq!(
            first_batch(&heavy),
            Some(1),
            "two of them and their overhead exceed the limit"
        );
        let giant = [block(1, 3 * half), block(2, 10)];
        assert_eq!(first_batch(&giant), Some(1), "a block is never divided");
        assert_eq!(first_batch(&giant[..1]), None);
    }
}
