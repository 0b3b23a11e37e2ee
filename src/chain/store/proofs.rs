//! The proof window: trie history on disk, and the oldest block that it can prove.
//!
//! Each block has its entries (see `trie/history.rs`) and a mark: the total bytes of trie history
//! written up to and including the block. When the window is full, a commit searches the marks, in
//! a few seeks, for the block from which on the entries fit the window. The compaction filter drops
//! older entries. Entries that prove the message passer's account and its slots are kept for
//! [`PASSER_BLOCKS`], whatever the window, so that withdrawals can be proven. Genesis, and a head
//! stored before trie history existed, have no mark: the window then begins at that head.

use crate::chain::{
    rows::{Overlay, ReadError, codec, keys},
    rules::MESSAGE_PASSER,
    store::{
        Snapshot, Space, Store, StoreError, StoreInner, get,
        history::{HistoryBounds, PROOFS},
    },
    trie::history,
};
use alloy_primitives::{Address, B256, Bytes, keccak256};
use starling_proto::payload::BlockId;
use std::sync::{LazyLock, atomic::Ordering};

/// Number of blocks below the head at which the message passer can be proven: seven days on a chain
/// with the shortest block time, one second.
pub const PASSER_BLOCKS: u64 = 604_800;

/// Smallest rise of [`HistoryBounds::passer`], in blocks, since each rise flushes a memtable.
const PASSER_STEP: u64 = 1024;

/// Number of blocks below the head that can be proven, however small the window is: as many as geth
/// keeps the states of.
pub const MIN_BLOCKS: u64 = 128;

/// Blocks between two log messages about the proof window.
const LOG_EVERY: u64 = 43_200;

static PASSER: LazyLock<B256> = LazyLock::new(|| keccak256(MESSAGE_PASSER));

/// Passes the key and the entry of each trie history row of a block to `put`.
pub(super) fn rows(overlay: &Overlay, number: u64, mut put: impl FnMut(&[u8], &[u8])) {
    let rows = overlay.rows.iter().filter(|(key, _)| !keys::is_flat(key));
    history::entries(rows, |node, entry| {
        put(&keys::trie_history(node, number), entry)
    });
}

/// Whether this history row is needed to prove the message passer's account or a slot of it.
pub(super) fn is_message_passer_history(key: &[u8]) -> bool {
    match key.split_first() {
        Some((b'H', row)) => row.get(1..33) == Some(PASSER.as_slice()),
        Some((b'T', _)) => keys::trie_history_parts(key).is_some_and(|key| {
            match key.trie.get(1..33) {
                Some(account) => account == PASSER.as_slice(),
                // A proof needs all children of the nodes on the path to the account. The last
                // nibble of a node's path may therefore have any value.
                None => {
                    let parent = key.depth.saturating_sub(1);
                    let (whole, odd) = (parent / 2, parent % 2 == 1);
                    key.path[..whole] == PASSER[..whole]
                        && (!odd || key.path[whole] >> 4 == PASSER[whole] >> 4)
                }
            }
        }),
        _ => false,
    }
}

/// Whether this row of `state` is needed for a proof of the message passer.
fn is_message_passer_state(key: &[u8]) -> bool {
    match key.first() {
        Some(&keys::STATE_NODE) => is_message_passer_history(&keys::trie_history(key, 0)),
        _ => key.get(1..33) == Some(PASSER.as_slice()),
    }
}

/// Size of the trie history in the store, counted while a group of blocks is added.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrieHistorySize {
    /// The stored head, on which the group builds.
    pub below: BlockId,
    /// Whether the stored head has a mark. A block's mark is the row with the total bytes of trie
    /// history up to this block. Genesis, and heads stored before trie history existed, have none.
    pub whole: bool,
    /// Bytes of trie history up to and including the last block of the group added so far.
    pub bytes: u64,
}

impl StoreInner {
    /// The size of the trie history up to the stored head, for a commit to add its blocks to.
    pub(super) fn written(&self, head: BlockId) -> Result<TrieHistorySize, StoreError> {
        let bytes = mark(&self.db.snapshot(), self, head.number)?;
        Ok(TrieHistorySize {
            below: head,
            whole: bytes.is_some(),
            bytes: bytes.unwrap_or_default(),
        })
    }

    /// Raises the bounds of proofs in `kept`, which has the old bounds on entry.
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
        if passer >= kept.passer.saturating_add(PASSER_STEP) {
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
        // Shrink the window to slightly below its limit, so that the bound moves rarely.
        let target = window - window / 64;
        let (mut low, mut high) = (
            kept.proofs,
            written
                .below
                .number
                .min(head.saturating_sub(MIN_BLOCKS))
                .max(kept.proofs),
        );
        while low < high {
            let middle = low + (high - low) / 2;
            if written.bytes.saturating_sub(bytes_at(middle)?) <= target {
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

/// The mark of a block; `None` if the block has no mark.
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

    /// Ends the proof window, which then begins again at the head. Compactions drop the older trie
    /// history.
    pub(crate) fn drop_proofs(&self) -> Result<(), StoreError> {
        let head = self.head().number;
        let mut rewrite = self.rewrite();
        rewrite.set(Space::History, &keys::trie_history_bytes(head), None)?;
        rewrite.set(
            Space::History,
            PROOFS,
            Some(&codec::encode_pair(head, head).into()),
        )?;
        rewrite.finish().map(drop)
    }
}

/// Logs how far back blocks can be proven.
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
    /// The oldest stored block at which this account, or its absence, can be proven.
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
        if is_message_passer_state(key) {
            bound.min(kept.passer)
        } else {
            bound
        }
    }

    /// The row of a trie node as it was after block `number`. Needs one seek for the node, and one
    /// for each of its children if the node has changed since.
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

    /// The oldest block whose tries can be read, in full or for the message passer alone. Trie
    /// history written by this block or older ones is no longer kept.
    pub fn oldest_trie(&self) -> u64 {
        self.0.kept.proofs.min(self.0.kept.passer)
    }

    /// The oldest block at which the node of this row of trie history can be read.
    pub(crate) fn oldest_trie_row(&self, key: &[u8]) -> u64 {
        if is_message_passer_history(key) {
            self.oldest_trie()
        } else {
            self.0.kept.proofs
        }
    }

    /// The rows of trie history that a block with this overlay should have written.
    pub(crate) fn trie_history_of(overlay: &Overlay, number: u64) -> Vec<(Bytes, Bytes)> {
        let mut all = Vec::new();
        rows(overlay, number, |key, entry| {
            all.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(entry)))
        });
        all
    }

    /// The number of the block that wrote a row of trie history.
    pub(crate) fn trie_history_number(key: &[u8]) -> Option<u64> {
        keys::trie_history_parts(key).map(|key| key.number)
    }

    /// Bytes of trie history up to and including a block; `None` if the block has no mark.
    pub(crate) fn trie_history_mark(&self, number: u64) -> Result<Option<u64>, ReadError> {
        mark(&self.0.snapshot, &self.0.inner, number)
    }

    /// A row of the `history` keyspace.
    pub(crate) fn history_get(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.get(Space::History, key)
    }

    /// Bytes of trie history in the proof window at the stored head.
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
