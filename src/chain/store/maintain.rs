//! Operations for `starling db`, most of which a running node does not need: all rows of a
//! keyspace, their sizes, and writes that repair derived rows. The writes need the chain's threads
//! stopped.

use crate::chain::{
    receipt::Receipt,
    rows::{ReadError, codec, keys},
    store::{Snapshot, Space, Store, StoreBatch, StoreError},
};
use alloy_primitives::{Address, B256, Bytes};
use std::{path::Path, sync::atomic::Ordering};

/// Size of a repair's batch, in bytes of rows.
const BATCH: usize = 4 << 20;

/// The kinds of rows in each keyspace: tag and name.
pub(crate) const KINDS: [(Space, &[(u8, &str)]); 6] = [
    (
        Space::State,
        &[
            (keys::ACCOUNT, "accounts"),
            (keys::SLOT, "storage slots"),
            (keys::STATE_NODE, "state trie nodes"),
            (keys::STORAGE_NODE, "storage trie nodes"),
            (keys::TOTAL_DIFFICULTY, "total difficulty"),
        ],
    ),
    (
        Space::History,
        &[
            (b'H', "state history"),
            (b'T', "trie history"),
            (b'B', "trie history marks"),
            (b'U', "unwind records"),
            (keys::LOG, "log index"),
            (keys::PARTICIPANT, "address index"),
        ],
    ),
    (
        Space::Blocks,
        &[
            (keys::HEADER, "headers"),
            (keys::BODY, "bodies"),
            (keys::RECEIPTS, "receipts"),
            (keys::SENDERS, "senders"),
        ],
    ),
    (
        Space::Index,
        &[
            (b'n', "hashes by number"),
            (b'N', "numbers by hash"),
            (b'x', "transactions"),
        ],
    ),
    (Space::Code, &[]),
    (Space::Meta, &[]),
];

impl Space {
    /// The index in [`KINDS`] of this row's kind; `None` for internal rows of the store and for
    /// rows of no known kind.
    pub(crate) fn kind(self, key: &[u8]) -> Option<usize> {
        let tag = match self {
            Self::Blocks => keys::block_row_parts(key)?.1,
            _ => *key.first()?,
        };
        KINDS[self as usize]
            .1
            .iter()
            .position(|(kind, _)| *kind == tag)
    }
}

/// Key and value of a row, or the error of reading it.
pub(crate) type RowResult = Result<(Bytes, Bytes), ReadError>;

impl Snapshot {
    /// The rows of a keyspace with this prefix, ascending.
    pub(crate) fn rows(
        &self,
        space: Space,
        prefix: &[u8],
    ) -> impl Iterator<Item = RowResult> + use<> {
        self.scan(space, prefix, prefix)
    }

    /// Splits the key of a history row into the key of the state row and the block number.
    pub(crate) fn history_row(key: &[u8]) -> Option<(&[u8], u64)> {
        let (row, number) = key.strip_prefix(b"H")?.split_last_chunk()?;
        Some((row, u64::from_be_bytes(*number)))
    }

    /// The value of a state row before this block; `None` if the block did not change the row,
    /// `Some(None)` if the block created the row.
    pub(crate) fn before(
        &self,
        row: &[u8],
        number: u64,
    ) -> Result<Option<Option<Bytes>>, ReadError> {
        let key = keys::history(row, number);
        self.get(Space::History, &key)?
            .map(|before| {
                codec::decode_before(&before)
                    .ok_or_else(|| ReadError::Damaged(format!("history row {key}")))
            })
            .transpose()
    }

    /// The oldest block that can be unwound.
    pub fn oldest_unwind(&self) -> u64 {
        self.0.kept.unwinds
    }

    /// Version of the row layout on the disk.
    pub fn schema(&self) -> u32 {
        self.0.inner.schema.load(Ordering::Relaxed)
    }
}

/// Whether this row is internal to the store. Every keyspace except `blocks` has such rows.
pub(crate) fn is_own(key: &[u8]) -> bool {
    key.starts_with(b"_")
}

impl Store {
    /// Bytes on the disk, by keyspace.
    pub fn disk_use(&self) -> Vec<(&'static str, u64)> {
        Space::ALL
            .iter()
            .map(|space| (space.name(), self.0.spaces[*space as usize].disk_space()))
            .collect()
    }

    /// Whether a memtable is being flushed.
    pub fn is_flushing(&self) -> bool {
        let spaces = self.0.spaces.iter();
        spaces
            .into_iter()
            .any(|space| space.sealed_memtable_count() > 0)
    }

    /// Bytes of the journals on the disk.
    pub fn journal_use(&self) -> Result<u64, StoreError> {
        Ok(self.0.db.journal_disk_space()?)
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Flushes all memtables and waits until the flush is complete.
    pub fn flush(&self) -> Result<(), StoreError> {
        Ok(self
            .0
            .spaces
            .iter()
            .try_for_each(|space| space.rotate_memtable_and_wait())?)
    }

    /// Drops the rows below the bounds of history, proofs and indexes now, however long it takes.
    /// Rows that a snapshot still needs stay.
    pub fn prune(&self) -> Result<(), StoreError> {
        self.commit(&[], None, None)?;
        self.0.prune()
    }

    /// Starts the writes of a repair.
    pub(crate) fn rewrite(&self) -> Rewrite<'_> {
        Rewrite {
            store: self,
            batch: StoreBatch::new(&self.0),
            weight: 0,
            rows: 0,
        }
    }
}

/// Writes of a repair, committed batch by batch. The repair may be interrupted between batches,
/// since every written row is correct by itself.
pub(crate) struct Rewrite<'a> {
    store: &'a Store,
    batch: StoreBatch<'a>,
    weight: usize,
    rows: u64,
}

impl Rewrite<'_> {
    /// Writes or removes a row.
    pub(crate) fn set(
        &mut self,
        space: Space,
        key: &[u8],
        value: Option<&Bytes>,
    ) -> Result<(), StoreError> {
        match space {
            Space::State => self.batch.state(&Bytes::copy_from_slice(key), value),
            _ => self.batch.set(space, key, value.map(AsRef::as_ref)),
        }
        self.rows += 1;
        self.weight += key.len() + value.map_or(0, |value| value.len());
        if self.weight >= BATCH {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Writes the index rows of a canonical block.
    pub(crate) fn index(
        &mut self,
        number: u64,
        hash: B256,
        transactions: &[Bytes],
    ) -> Result<(), StoreError> {
        self.set(
            Space::Index,
            &keys::hash_of(number),
            Some(&Bytes::copy_from_slice(hash.as_slice())),
        )?;
        self.set(
            Space::Index,
            &keys::number_of(&hash),
            Some(&Bytes::copy_from_slice(&number.to_be_bytes())),
        )?;
        for (index, raw) in transactions.iter().enumerate() {
            let key = keys::transaction(&alloy_primitives::keccak256(raw));
            self.set(
                Space::Index,
                &key,
                Some(&codec::encode_position(number, index).into()),
            )?;
        }
        Ok(())
    }

    /// Writes the receipts of a block.
    pub(crate) fn receipts(&mut self, number: u64, receipts: &[Receipt]) -> Result<(), StoreError> {
        self.set(
            Space::Blocks,
            &keys::receipts(number),
            Some(&codec::encode_receipts(receipts).into()),
        )
    }

    /// Writes the senders of a block; removes the row if there are none.
    pub(crate) fn senders(&mut self, number: u64, senders: &[Address]) -> Result<(), StoreError> {
        let row = (!senders.is_empty()).then(|| codec::encode_senders(senders).into());
        self.set(Space::Blocks, &keys::senders(number), row.as_ref())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        let head = self.store.0.writer.lock();
        let empty = StoreBatch::new(&self.store.0);
        self.weight = 0;
        std::mem::replace(&mut self.batch, empty).commit(*head)
    }

    /// Commits the last batch and syncs; returns the number of rows written.
    pub(crate) fn finish(mut self) -> Result<u64, StoreError> {
        self.flush()?;
        self.store.sync()?;
        Ok(self.rows)
    }
}
