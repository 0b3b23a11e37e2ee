//! The persister: the thread that owns the store's write path. Commits groups of blocks, unwinds block by block, syncs.
//!
//! The executor gives it one piece of [`Work`] at a time and gets one [`Done`] back, so groups form by themselves while a commit runs.
//! A full disk makes it wait and try again, until the chain is stopped; any other failure of the store ends the chain, that of a sync
//! too: what the disk has once failed to take may be lost, whatever it says next.

use crate::chain::{
    Shared,
    executor::Command,
    store::{Snapshot, Store, StoreError},
    view::ExecutedBlock,
};
use starling_proto::payload::BlockId;
use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

/// Time between two writes of all memtables: those that fill slowly keep old journals, which an open has to read.
const ROTATE_EVERY: Duration = Duration::from_secs(600);
/// The same while memtables hold more than this many bytes: a node that is killed, but not while it imports at full speed, then opens
/// with little to read.
const ROTATE_ABOVE: u64 = 24 << 20;
const ROTATE_SOON: Duration = Duration::from_secs(60);
/// Time that the end of the node may take for it.
const ROTATE_AT_END: Duration = Duration::from_secs(10);

/// Bytes of blocks that are committed as one batch, which is a second copy of them in memory: a full block or two, or a hundred small
/// ones, over which the cost of a batch is spread well enough.
const BATCH_WEIGHT: usize = 8_000_000;

/// Take the store from its head down to `unwind_to`, then up along `blocks`.
pub struct Work {
    pub unwind_to: u64,
    /// Oldest first, on top of `unwind_to`.
    pub blocks: Vec<Arc<ExecutedBlock>>,
    pub safe: Option<BlockId>,
    pub finalized: Option<BlockId>,
}

/// The store after a piece of work. An error may come at any time: it ends the chain.
pub type Done = Result<Snapshot, StoreError>;

/// Runs until the executor drops its end. `sync_every` bounds what a power cut can lose; a killed process loses nothing.
pub fn run(
    store: &Store,
    shared: &Shared,
    work: Receiver<Work>,
    done: SyncSender<Done>,
    wake: tokio::sync::mpsc::WeakSender<Command>,
    sync_every: Duration,
) {
    // False: nobody hears it any more.
    let tell = |result: Done| {
        let heard = done.send(result).is_ok();
        // A full command channel means that the executor is awake.
        if let Some(wake) = wake.upgrade() {
            let _ = wake.try_send(Command::Wake);
        }
        heard
    };
    let mut synced = Instant::now();
    let mut rotated = Instant::now();
    let mut dirty = false;
    loop {
        match work.recv_timeout(sync_every) {
            Ok(piece) => {
                let result = perform(store, shared, &piece);
                let failed = result.is_err();
                dirty = true;
                if !tell(result) || failed {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if dirty && synced.elapsed() >= sync_every {
            if let Err(error) = store.sync() {
                tell(Err(error));
                break;
            }
            if rotated.elapsed() >= rest(store.buffered()) {
                if let Err(error) = store.rotate_within(Duration::ZERO) {
                    tracing::warn!(%error, "what is in memory could not be written out");
                }
                rotated = Instant::now();
            }
            synced = Instant::now();
            dirty = false;
        }
    }
    if let Err(error) = store.sync() {
        return tracing::error!(%error, "the store could not be synced to disk at the end");
    }
    if let Err(error) = store.rotate_within(ROTATE_AT_END) {
        tracing::warn!(%error, "what is in memory was not written out at the end: the next start replays it");
    }
}

/// Time between two writes of memtables that hold so many bytes.
fn rest(buffered: u64) -> Duration {
    if buffered > ROTATE_ABOVE {
        ROTATE_SOON
    } else {
        ROTATE_EVERY
    }
}

fn perform(store: &Store, shared: &Shared, work: &Work) -> Done {
    let started = Instant::now();
    while store.head().number > work.unwind_to {
        shared.when_there_is_room(StoreError::is_full, || store.unwind_one())?;
    }
    // What is finalized is told last: it lets unwind records go, which only matters above all of these blocks.
    let mut rest = &work.blocks[..];
    while let Some(count) = first_batch(rest) {
        let (batch, more) = rest.split_at(count);
        shared.when_there_is_room(StoreError::is_full, || store.commit(batch, None, None))?;
        rest = more;
    }
    shared.when_there_is_room(StoreError::is_full, || {
        store.commit(rest, work.safe, work.finalized)
    })?;
    metrics::histogram!("starling_persist_seconds").record(started.elapsed().as_secs_f64());
    metrics::counter!("starling_persisted_blocks_total").increment(work.blocks.len() as u64);
    store.snapshot()
}

/// How many of the blocks are committed before the rest, if that is too heavy for one batch.
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
    use crate::chain::view::Overlay;
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
    fn what_would_take_long_to_replay_is_written_out_sooner() {
        assert_eq!(
            (rest(ROTATE_ABOVE), rest(ROTATE_ABOVE + 1)),
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
            "two of them and what is around them are too much"
        );
        let giant = [block(1, 3 * half), block(2, 10)];
        assert_eq!(first_batch(&giant), Some(1), "a block is never divided");
        assert_eq!(first_batch(&giant[..1]), None);
    }
}
