//! Torn-write recovery: repairs keyspaces that disagree on the head. The cause is a journal that
//! was cut below rows that one of the keyspaces had already flushed to tables.
//!
//! Used by `starling db repair`. Every keyspace is rewound to the lowest head: the state by its
//! unwind records, provided that they reach up to the state's head, the others by the block numbers
//! in their rows. One batch writes all of this and sets a mark. While the mark is set, only a
//! repair opens the store. Once the state is verified, the mark is removed.

use super::{
    FINALIZED_ROW, HEAD, Identity, SAFE_ROW, Space, Store, StoreBatch, StoreError, StoreInner, get,
    history::PROOFS, open, unwind,
};
use crate::chain::rows::{ReadError, codec, keys};
use alloy_primitives::{B256, Bytes};
use fjall::{Database, Keyspace, Readable};
use starling_proto::payload::BlockId;
use std::{collections::BTreeMap, path::Path};

/// Key of the row of `meta` that exists while the state of a recovered store is not verified.
pub(super) const UNVERIFIED: &[u8] = b"_unproven";

/// The head of each keyspace.
pub(super) type KeyspaceHeads = [Option<BlockId>; 6];

/// Reads the head of every keyspace: its head row, or for `blocks` its newest block.
pub(super) fn read_heads(
    db: &Database,
    spaces: &[Keyspace; 6],
) -> Result<KeyspaceHeads, StoreError> {
    let snapshot = db.snapshot();
    let mut heads = KeyspaceHeads::default();
    for space in Space::ALL.into_iter().filter(|space| space.has_head()) {
        heads[space as usize] =
            get(&snapshot, &spaces[space as usize], HEAD)?.and_then(|row| codec::decode_id(&row));
    }
    if let Some(row) = snapshot.last_key_value(&spaces[Space::Blocks as usize])
        && let Some((number, _)) = keys::block_row_parts(&row.key()?)
    {
        // The index has the hash of the block. If the index is behind `blocks`, then this head is
        // not the lowest, and its hash is not used.
        let index = heads[Space::Index as usize]
            .filter(|head| head.number == number)
            .map(|head| head.hash);
        let hash = match index {
            Some(hash) => Some(hash),
            None => get(
                &snapshot,
                &spaces[Space::Index as usize],
                &keys::hash_of(number),
            )?
            .and_then(|row| B256::try_from(&row[..]).ok()),
        };
        heads[Space::Blocks as usize] = Some(BlockId {
            number,
            hash: hash.unwrap_or_default(),
        });
    }
    Ok(heads)
}

/// The lowest of the heads.
pub(super) fn lowest(heads: &KeyspaceHeads) -> Option<BlockId> {
    heads
        .iter()
        .copied()
        .collect::<Option<Vec<_>>>()?
        .into_iter()
        .min_by_key(|head| head.number)
}

/// The heads of all keyspaces as text, for the error message.
pub(super) fn describe(heads: &KeyspaceHeads) -> String {
    let show = |head: &Option<BlockId>| {
        head.map_or("none".into(), |head| {
            format!("{} {}", head.number, head.hash)
        })
    };
    let each: Vec<_> = Space::ALL
        .iter()
        .zip(heads)
        .map(|(space, head)| format!("{}: {}", space.name(), show(head)))
        .collect();
    each.join(", ")
}

impl Store {
    /// Opens a store for a repair. A torn store is rewound to the lowest head of its keyspaces,
    /// which is returned. It can then be opened only for repairs until [`Store::set_verified`].
    pub(crate) fn open_to_repair(
        dir: &Path,
        cache: u64,
    ) -> Result<(Self, Option<BlockId>), StoreError> {
        let (store, heads) =
            Self::open_as(dir, cache, None::<Identity>, open::OpenPurpose::Repair)?;
        let head = store.head();
        if heads.iter().all(|other| *other == Some(head)) {
            return Ok((store, None));
        }
        match store.0.rewind_to_lowest(head, &heads) {
            Ok(batch) => batch.commit(head)?,
            Err(cause) => {
                let what = format!(
                    "its keyspaces disagree on the head ({}), and it cannot be rewound: {cause}",
                    describe(&heads)
                );
                return Err(StoreError::Damaged {
                    dir: dir.into(),
                    what,
                });
            }
        }
        store.sync()?;
        Ok((store, Some(head)))
    }

    /// Whether the store was torn and rewound, and its state has not been verified since.
    pub(crate) fn is_unverified(&self) -> Result<bool, StoreError> {
        is_unverified(&self.0.db, &self.0.spaces)
    }

    /// Removes the mark of a recovered store, once its state has been verified.
    pub(crate) fn set_verified(&self) -> Result<(), StoreError> {
        let head = self.0.writer.lock();
        let mut batch = StoreBatch::new(&self.0);
        batch.set(Space::Meta, UNVERIFIED, None);
        batch.commit(*head)?;
        self.0.sync()
    }
}

/// Whether the mark of a recovered store is set.
pub(super) fn is_unverified(db: &Database, spaces: &[Keyspace; 6]) -> Result<bool, StoreError> {
    let meta = &spaces[Space::Meta as usize];
    Ok(get(&db.snapshot(), meta, UNVERIFIED)?.is_some())
}

impl StoreInner {
    /// Builds the batch that rewinds every keyspace to `head`, the lowest head, or returns the
    /// reason why that is impossible.
    fn rewind_to_lowest(
        &self,
        head: BlockId,
        heads: &KeyspaceHeads,
    ) -> Result<StoreBatch<'_>, String> {
        let snapshot = self.db.snapshot();
        let mut batch = StoreBatch::new(self);
        let text = |error: ReadError| error.cause();
        for (key, before) in self.rows_at(&snapshot, head, heads)? {
            batch.state(&key, before.as_ref());
        }
        for space in [Space::History, Space::Blocks, Space::Index] {
            for row in snapshot.iter(&self.spaces[space as usize]) {
                let (key, value) = row
                    .into_inner()
                    .map_err(|error| super::describe_error(&error))?;
                if number_of(space, &key, &value).is_some_and(|number| number > head.number) {
                    batch.set(space, &key, None);
                }
            }
        }
        let row = |space: Space, key: &[u8]| {
            get(&snapshot, &self.spaces[space as usize], key).map_err(text)
        };
        for key in [SAFE_ROW, FINALIZED_ROW] {
            if row(Space::Meta, key)?
                .and_then(|row| codec::decode_id(&row))
                .is_some_and(|id| id.number > head.number)
            {
                batch.put(Space::Meta, key, codec::encode_id(head));
            }
        }
        if let Some((proofs, passer)) =
            row(Space::History, PROOFS)?.and_then(|row| codec::decode_pair(&row))
        {
            batch.put(
                Space::History,
                PROOFS,
                codec::encode_pair(proofs.min(head.number), passer.min(head.number)),
            );
        }
        batch.put(Space::Meta, UNVERIFIED, [1]);
        Ok(batch)
    }

    /// The rows of `state` that blocks above `head` changed, each with its value at `head` (`None`
    /// if the row did not exist then).
    fn rows_at(
        &self,
        snapshot: &fjall::Snapshot,
        head: BlockId,
        heads: &KeyspaceHeads,
    ) -> Result<BTreeMap<Bytes, Option<Bytes>>, String> {
        let [state, history] = [Space::State, Space::History]
            .map(|space| heads[space as usize].unwrap_or(head).number);
        if history < state {
            return Err(format!(
                "its state is ahead of its unwind records, which end with block {history}"
            ));
        }
        let mut rows = BTreeMap::new();
        for number in (head.number + 1..=state).rev() {
            let record = get(
                snapshot,
                &self.spaces[Space::History as usize],
                &keys::unwind(number),
            )
            .map_err(|error| error.cause())?;
            let record = record.and_then(|row| unwind::decode(&row));
            // Records are read downwards, so the last one read for a row has the row's value at
            // `head`.
            for (key, before) in record.ok_or_else(|| {
                format!("the unwind record of block {number} is missing or damaged")
            })? {
                let stored = || {
                    get(snapshot, &self.spaces[Space::State as usize], &key)
                        .map_err(|error| error.cause())
                };
                let after = rows.get(&key).cloned().map_or_else(stored, Ok)?;
                let before = before
                    .row(after.as_ref())
                    .ok_or_else(|| unwind::mismatch(number, &key).cause())?;
                rows.insert(key, before);
            }
        }
        Ok(rows)
    }
}

/// The number of the block that a row belongs to; `None` if it belongs to no single block.
fn number_of(space: Space, key: &[u8], value: &[u8]) -> Option<u64> {
    let last = |bytes: &[u8]| bytes.last_chunk().copied().map(u64::from_be_bytes);
    match (space, key.first()?) {
        (Space::History, b'H' | b'T' | b'B' | b'U' | &keys::LOG | &keys::PARTICIPANT)
        | (Space::Index, b'n') => last(key),
        (Space::Blocks, _) => keys::block_row_parts(key).map(|(number, _)| number),
        (Space::Index, b'N' | b'x') => value.first_chunk().copied().map(u64::from_be_bytes),
        _ => None,
    }
}

#[cfg(test)]
impl Store {
    /// Flushes one keyspace, so that it is ahead of the others after a power cut.
    pub(crate) fn flush_keyspace(&self, space: Space) {
        self.0.spaces[space as usize]
            .rotate_memtable_and_wait()
            .unwrap();
    }

    /// Opens a torn store and falsifies a flat row in the first unwind record above its lowest head.
    pub(crate) fn falsify_unwind_record(dir: &Path, cache: u64) {
        let (store, _) = Self::open_as(dir, cache, None, open::OpenPurpose::Repair).unwrap();
        let number = store.head().number + 1;
        let history = &store.0.spaces[Space::History as usize];
        let record = get(&store.0.db.snapshot(), history, &keys::unwind(number))
            .unwrap()
            .unwrap();
        let mut rows = unwind::decode(&record).unwrap();
        let flat = rows
            .iter_mut()
            .find(|(key, before)| keys::is_flat(key) && *before != unwind::Before::Whole(None))
            .unwrap();
        flat.1 = unwind::Before::Whole(None);
        let mut record = Vec::new();
        rows.iter()
            .for_each(|(key, before)| unwind::encode_row(key, before, &mut record));
        history
            .insert(keys::unwind(number).as_ref(), record)
            .unwrap();
    }
}
