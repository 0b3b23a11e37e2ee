//! The proof window: trie history on disk, and how far back it reaches.
//!
//! Besides its entries (see `trie/history.rs`) each block has a mark: the bytes of trie history
//! written up to it. From the marks a commit finds the block from which on the entries fill the
//! window, in a few seeks and only when the window is full; the compaction filter drops older
//! entries. Entries that prove the message passer's account and its slots stay for
//! [`PASSER_BLOCKS`], whatever the window, so that withdrawals can be proven. A stored head without
//! a mark was stored before trie history existed: the window begins there.

use crate::chain::{
    rows::{Overlay, ReadError, codec, keys},
    rules::MESSAGE_PASSER,
    store::{
        Snapshot, Space, Store, StoreError, StoreInner, get,
        history::{HistoryBounds, PROOFS},
    },
    trie::history::{self, TrieRow},
};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use starling_proto::payload::BlockId;
use std::sync::{LazyLock, atomic::Ordering};

/// Blocks below the head at which the message passer can be proven: seven days, on a chain of the
/// shortest block time, a second.
pub const PASSER_BLOCKS: u64 = 604_800;

/// Blocks below the head that can be proven, however small the window is: as many as geth keeps
/// states of.
pub const LEAST_BLOCKS: u64 = 128;

/// Blocks between two log messages about the window.
const LOG_EVERY: u64 = 43_200;

static PASSER: LazyLock<B256> = LazyLock::new(|| keccak256(MESSAGE_PASSER));

/// The trie history of a block.
pub(super) fn rows(overlay: &Overlay, number: u64, mut put: impl FnMut(&[u8], &[u8])) {
    let nodes = overlay.rows.iter().filter(|(key, _)| !keys::is_flat(key));
    let nodes =
        nodes.map(|(key, row)| -> TrieRow<'_> { (key, row.before.as_ref(), row.after.as_ref()) });
    history::entries(nodes, |node, entry| {
        put(&keys::trie_history(node, number), entry)
    });
}

/// Whether this history row is needed to prove the message passer's account or a slot of it.
pub(super) fn is_passers(key: &[u8]) -> bool {
    match key.split_first() {
        Some((b'H', row)) => row.get(1..33) == Some(PASSER.as_slice()),
        Some((b'T', _)) => keys::trie_history_parts(key).is_some_and(|(trie, depth, path, _)| {
            match trie.get(1..33) {
                Some(account) => account == PASSER.as_slice(),
                // The children of all nodes on the way to the account.
                None => {
                    let (whole, odd) = ((depth.max(1) - 1) / 2, (depth.max(1) - 1) % 2 == 1);
                    path[..whole] == PASSER[..whole]
                        && (!odd || path[whole] >> 4 == PASSER[whole] >> 4)
                }
            }
        }),
        _ => false,
    }
}

/// Whether this row of `state` belongs to a proof of the message passer.
fn is_passers_state(key: &[u8]) -> bool {
    match key.first() {
        Some(&keys::STATE_NODE) => is_passers(&keys::trie_history(key, 0)),
        _ => key.get(1..33) == Some(PASSER.as_slice()),
    }
}

/// Amount of trie history in the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrieHistorySize {
    /// The head below the blocks that are being written.
    pub below: BlockId,
    /// Whether all blocks up to it have their trie history, within the bounds.
    pub whole: bool,
    /// Bytes up to and including the blocks that are being written.
    pub bytes: u64,
}

impl StoreInner {
    /// The amount below the next block.
    pub(super) fn written(&self, head: BlockId) -> Result<TrieHistorySize, StoreError> {
        let bytes = mark(&self.db.snapshot(), self, head.number)?;
        Ok(TrieHistorySize {
            below: head,
            whole: bytes.is_some(),
            bytes: bytes.unwrap_or_default(),
        })
    }

    /// Raises the bounds of proofs in `kept`, which holds the old ones.
    pub(super) fn advance_proofs(
        &self,
        snapshot: &fjall::Snapshot,
        kept: &mut HistoryBounds,
        head: u64,
        written: TrieHistorySize,
    ) -> Result<(), StoreError> {
        if !written.whole {
            kept.proofs = kept.proofs.max(written.below.number);
            kept.passer = kept.passer.max(written.below.number);
            return Ok(());
        }
        let passer = head.saturating_sub(self.history.passer.load(Ordering::Relaxed));
        if passer >= kept.passer.saturating_add(1024) {
            kept.passer = passer;
        }
        let window = self.history.proofs.load(Ordering::Relaxed);
        let bytes_at = |number| -> Result<u64, StoreError> {
            Ok(mark(snapshot, self, number)?.unwrap_or_default())
        };
        let bytes = written.bytes.saturating_sub(bytes_at(kept.proofs)?);
        if window == 0 || bytes <= window {
            if written.below.number / LOG_EVERY < head / LOG_EVERY {
                log_window(*kept, head, bytes);
            }
            return Ok(());
        }
        // Shrink to slightly below the limit, so that the bound moves rarely.
        let room = window - window / 64;
        let (mut low, mut high) = (
            kept.proofs,
            written
                .below
                .number
                .min(head.saturating_sub(LEAST_BLOCKS))
                .max(kept.proofs),
        );
        while low < high {
            let middle = low + (high - low) / 2;
            if written.bytes.saturating_sub(bytes_at(middle)?) <= room {
                high = middle
            } else {
                low = middle + 1
            }
        }
        kept.proofs = low;
        log_window(*kept, head, written.bytes.saturating_sub(bytes_at(low)?));
        Ok(())
    }
}

fn mark(
    snapshot: &fjall::Snapshot,
    inner: &StoreInner,
    number: u64,
) -> Result<Option<u64>, ReadError> {
    let key = keys::trie_history_bytes(number);
    let row = get(snapshot, &inner.spaces[Space::History as usize], &key)?;
    row.map(|row| {
        codec::decode_number(&row).ok_or_else(|| ReadError::Damaged(format!("history row {key}")))
    })
    .transpose()
}

impl Store {
    /// Sets the bytes of trie history that are kept to prove blocks; zero is unlimited.
    pub fn keep_proofs(&self, bytes: u64) -> Result<(), StoreError> {
        self.0.history.proofs.store(bytes, Ordering::Relaxed);
        let snapshot = self.snapshot()?;
        log_window(
            snapshot.0.kept,
            snapshot.head().number,
            snapshot.proof_bytes()?,
        );
        Ok(())
    }

    /// Drops all trie history: the window begins again at the head.
    pub(crate) fn drop_proofs(&self) -> Result<(), StoreError> {
        let head = self.head().number;
        let mut rewrite = self.rewrite();
        rewrite.set(Space::History, &keys::trie_history_bytes(head), None)?;
        rewrite.set(
            Space::History,
            PROOFS,
            Some(&codec::encode_two(head, head).into()),
        )?;
        rewrite.finish().map(drop)
    }
}

/// Logs how far back the window reaches.
fn log_window(kept: HistoryBounds, head: u64, bytes: u64) {
    let oldest = kept.proofs.max(kept.states).min(head);
    tracing::info!(
        blocks = head - oldest,
        oldest,
        bytes,
        "blocks whose proofs are kept"
    );
}

impl Snapshot {
    /// The oldest block at which an account that exists or not can be proven, if it is stored.
    pub fn oldest_proof(&self, address: Address) -> u64 {
        let kept = self.0.kept;
        let all = kept.proofs.max(kept.states);
        if address == MESSAGE_PASSER {
            all.min(kept.passer)
        } else {
            all
        }
    }

    /// The oldest block at which this row of `state` can be read.
    pub fn oldest_row(&self, key: &[u8]) -> u64 {
        let kept = self.0.kept;
        let bound = if keys::is_flat(key) {
            kept.states
        } else {
            kept.proofs
        };
        if is_passers_state(key) {
            bound.min(kept.passer)
        } else {
            bound
        }
    }

    /// The row of a trie node after an earlier block: one seek for the node, and one for each of
    /// its children if it has changed since.
    pub fn node_row_at(&self, key: &[u8], number: u64) -> Result<Option<Bytes>, ReadError> {
        let entry_at = |node: &[u8]| {
            let (prefix, from) = (
                keys::trie_history_prefix(node),
                keys::trie_history(node, number.saturating_add(1)),
            );
            let entry = self
                .scan(Space::History, &prefix, &from)
                .next()
                .transpose()?;
            Ok(entry.map(|(_, entry)| entry))
        };
        history::row_at(key, &entry_at, &|node| self.state_row(node))
    }

    /// The highest block whose trie history is no longer kept, as all below it.
    pub fn oldest_trie(&self) -> u64 {
        self.0.kept.proofs.min(self.0.kept.passer)
    }

    /// The block above which rows of trie history with this key are kept.
    pub(crate) fn oldest_trie_row(&self, key: &[u8]) -> u64 {
        if is_passers(key) {
            self.oldest_trie()
        } else {
            self.0.kept.proofs
        }
    }

    /// The rows of trie history that a block must have written.
    pub(crate) fn trie_history_of(overlay: &Overlay, number: u64) -> Vec<(Bytes, Bytes)> {
        let mut made = Vec::new();
        rows(overlay, number, |key, entry| {
            made.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(entry)))
        });
        made
    }

    /// The block of a row of trie history.
    pub(crate) fn trie_history_number(key: &[u8]) -> Option<u64> {
        keys::trie_history_parts(key).map(|(_, _, _, number)| number)
    }

    /// Bytes of trie history up to a block.
    pub(crate) fn trie_history_mark(&self, number: u64) -> Result<Option<u64>, ReadError> {
        mark(&self.0.snapshot, &self.0.inner, number)
    }

    pub(crate) fn history_get(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.get(Space::History, key)
    }

    /// Bytes of trie history that the window holds at the stored head.
    pub fn proof_bytes(&self) -> Result<u64, ReadError> {
        let all = self
            .trie_history_mark(self.0.head.number)?
            .unwrap_or_default();
        Ok(all.saturating_sub(
            self.trie_history_mark(self.0.kept.proofs)?
                .unwrap_or_default(),
        ))
    }
}

#[cfg(test)]
mod tests;
