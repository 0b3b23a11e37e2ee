//! Write batches: the rows of blocks, as one atomic batch across keyspaces.

use crate::chain::{
    receipt::Receipt,
    rows::{ExecutedBlock, Overlay, ReadError, RowChange, codec, keys},
    store::{
        HEAD, Snapshot, Space, StoreError, StoreInner, UnwindRecord, ValueIndex, block_cache_key,
        cache::WrittenRows,
        memtables::Weights,
        proofs, unwind,
        value_index::{self, BlockParts, PerIndex},
    },
};
use alloy_primitives::{B256, Bytes};
use fjall::OwnedWriteBatch;
use starling_proto::payload::{BlockId, Payload};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

/// The rows of `state` that a group of blocks writes, each with its last value.
fn state_rows(blocks: &[Arc<ExecutedBlock>]) -> BTreeMap<&Bytes, Option<&Bytes>> {
    let rows = blocks.iter().flat_map(|block| &block.overlay.rows);
    rows.map(|(key, row)| (key, row.after.as_ref())).collect()
}

/// Selects the optional rows of blocks that are written.
#[derive(Clone, Copy)]
struct OptionalRows {
    /// The addresses and slots whose hashes are the keys of the state.
    names: bool,
    indexes: PerIndex<bool>,
}

/// Passes all rows of each block except those of `state` to `put`. Adds the bytes of the blocks'
/// trie history to `trie_history`.
fn kept_rows(
    blocks: &[Arc<ExecutedBlock>],
    optional: OptionalRows,
    trie_history: &mut u64,
    put: &mut impl FnMut(Space, &[u8], Option<&[u8]>),
) {
    for block in blocks {
        let (overlay, number) = (&block.overlay, block.payload.number());
        for (key, row) in overlay.rows.iter().filter(|(key, _)| keys::is_flat(key)) {
            put(
                Space::History,
                &keys::history(key, number),
                Some(&codec::encode_before(row.before.as_ref())),
            );
        }
        proofs::rows(overlay, number, |key, entry| {
            *trie_history = trie_history.wrapping_add((key.len() + entry.len()) as u64);
            put(Space::History, key, Some(entry));
        });
        put(
            Space::History,
            &keys::trie_history_bytes(number),
            Some(&trie_history.to_be_bytes()),
        );
        put(
            Space::History,
            &keys::unwind(number),
            Some(&unwind::encode(overlay)),
        );
        code_rows(overlay, put);
        if optional.names {
            name_rows(overlay, put);
        }
        let parts = BlockParts {
            transactions: &block.payload.transactions,
            senders: &block.senders,
            receipts: &block.receipts,
        };
        for index in ValueIndex::ALL {
            if optional.indexes[index as usize] {
                value_index::rows(index, number, &parts, |key| {
                    put(Space::History, key, Some(&[]))
                });
            }
        }
        block_rows(
            &block.payload,
            block.transaction_hashes(),
            &block.receipts,
            put,
        );
        if !block.senders.is_empty() {
            put(
                Space::Blocks,
                &keys::senders(number),
                Some(&codec::encode_senders(&block.senders)),
            );
        }
    }
}

fn code_rows(overlay: &Overlay, put: &mut impl FnMut(Space, &[u8], Option<&[u8]>)) {
    for (hash, code) in &overlay.codes {
        put(Space::Code, hash.as_slice(), Some(code));
    }
}

/// Rows of addresses and slots. They are in the keyspace of codes because, like a code, each has
/// the hash of its value as its key.
fn name_rows(overlay: &Overlay, put: &mut impl FnMut(Space, &[u8], Option<&[u8]>)) {
    for name in &overlay.names {
        put(Space::Code, name.hash().as_slice(), Some(&name.preimage()));
    }
}

/// Header, body, receipts and index rows of a canonical block.
fn block_rows(
    payload: &Payload,
    transactions: &[B256],
    receipts: &[Receipt],
    put: &mut impl FnMut(Space, &[u8], Option<&[u8]>),
) {
    let (hash, number) = (payload.hash, payload.number());
    put(
        Space::Blocks,
        &keys::header(number),
        Some(&alloy_rlp::encode(&payload.header)),
    );
    put(
        Space::Blocks,
        &keys::body(number),
        Some(&codec::encode_body(payload)),
    );
    put(
        Space::Blocks,
        &keys::receipts(number),
        Some(&codec::encode_receipts(receipts)),
    );
    put(Space::Index, &keys::hash_of(number), Some(hash.as_slice()));
    put(
        Space::Index,
        &keys::number_of(&hash),
        Some(&number.to_be_bytes()),
    );
    for (index, transaction) in transactions.iter().enumerate() {
        put(
            Space::Index,
            &keys::transaction(transaction),
            Some(&codec::encode_position(number, index)),
        );
    }
}

/// A row that a commit writes.
#[derive(Clone, Debug)]
pub struct WrittenRow {
    pub keyspace: &'static str,
    pub key: Bytes,
    /// The new value; `None` removes the row.
    pub value: Option<Bytes>,
}

/// The rows of these blocks that `Store::commit` writes with default options, for measurements.
pub fn written_rows(blocks: &[Arc<ExecutedBlock>]) -> Vec<WrittenRow> {
    let mut rows = Vec::new();
    let optional = OptionalRows {
        names: false,
        indexes: ValueIndex::ALL.map(|index| index == ValueIndex::Logs),
    };
    kept_rows(blocks, optional, &mut 0, &mut |space, key, value| {
        rows.push(WrittenRow {
            keyspace: space.name(),
            key: Bytes::copy_from_slice(key),
            value: value.map(Bytes::copy_from_slice),
        });
    });
    let state = state_rows(blocks).into_iter();
    rows.extend(state.map(|(key, value)| WrittenRow {
        keyspace: Space::State.name(),
        key: key.clone(),
        value: value.cloned(),
    }));
    rows
}

/// One atomic batch across keyspaces. Its rows also update the row caches at commit.
pub(super) struct StoreBatch<'a> {
    inner: &'a StoreInner,
    batch: OwnedWriteBatch,
    /// The rows of `state` in this batch, for the row cache.
    written: WrittenRows,
    /// Keys of the rows of `blocks` and `index` in this batch, for their cache.
    written_block_rows: Vec<Box<[u8]>>,
    weights: Weights,
}

impl<'a> StoreBatch<'a> {
    pub(super) fn new(inner: &'a StoreInner) -> Self {
        Self {
            inner,
            batch: inner.db.batch(),
            written: WrittenRows::new(),
            written_block_rows: Vec::new(),
            weights: Weights::default(),
        }
    }

    /// Adds the rows of a genesis block and its state. They bypass the row cache, which is still
    /// empty.
    pub(super) fn genesis(&mut self, genesis: &Payload, overlay: &Overlay) {
        for (key, row) in &overlay.rows {
            self.write(Space::State, key, row.after.as_ref().map(AsRef::as_ref));
        }
        code_rows(overlay, &mut |space, key, value| {
            self.write(space, key, value)
        });
        name_rows(overlay, &mut |space, key, value| {
            self.write(space, key, value)
        });
        block_rows(genesis, &[], &[], &mut |space, key, value| {
            self.write(space, key, value)
        });
    }

    /// Adds the rows of a group of blocks, oldest first, with the rows of the indexes that
    /// `indexes` selects. Adds the bytes of the blocks' trie history to `trie_history`.
    pub(super) fn blocks(
        &mut self,
        blocks: &[Arc<ExecutedBlock>],
        indexes: PerIndex<bool>,
        trie_history: &mut u64,
    ) {
        let optional = OptionalRows {
            names: self.inner.keeps_names.load(Ordering::Relaxed),
            indexes,
        };
        kept_rows(blocks, optional, trie_history, &mut |space, key, value| {
            self.write(space, key, value)
        });
        for (key, value) in state_rows(blocks) {
            self.state(key, value);
        }
    }

    /// Restores the rows of `state` to their values before the newest block, from the block's
    /// unwind record, and removes the block's history rows.
    pub(super) fn unwind_state(
        &mut self,
        snapshot: &Snapshot,
        number: u64,
        record: UnwindRecord,
    ) -> Result<(), ReadError> {
        let mut overlay = Overlay::default();
        for (key, before) in record {
            let after = snapshot.state_row(&key)?;
            let before = before
                .row(after.as_ref())
                .ok_or_else(|| unwind::mismatch(number, &key))?;
            self.state(&key, before.as_ref());
            if keys::is_flat(&key) {
                self.set(Space::History, &keys::history(&key, number), None);
            } else {
                overlay.rows.insert(key, RowChange { before, after });
            }
        }
        proofs::rows(&overlay, number, |key, _| {
            self.set(Space::History, key, None)
        });
        self.set(Space::History, &keys::trie_history_bytes(number), None);
        self.set(Space::History, &keys::unwind(number), None);
        Ok(())
    }

    /// Removes the rows that a block has in the selected indexes.
    pub(super) fn remove_values(
        &mut self,
        number: u64,
        parts: &BlockParts<'_>,
        indexes: PerIndex<bool>,
    ) {
        for index in ValueIndex::ALL {
            if indexes[index as usize] {
                value_index::rows(index, number, parts, |key| {
                    self.set(Space::History, key, None)
                });
            }
        }
    }

    /// Removes the rows of a block, and the index rows that find the block or its transactions by
    /// number or hash.
    pub(super) fn remove_block(&mut self, block: BlockId, body: &[Bytes]) {
        for key in
            [keys::header, keys::body, keys::receipts, keys::senders].map(|key| key(block.number))
        {
            self.set(Space::Blocks, &key, None);
        }
        self.set(Space::Index, &keys::hash_of(block.number), None);
        self.set(Space::Index, &keys::number_of(&block.hash), None);
        for transaction in body {
            self.set(
                Space::Index,
                &keys::transaction(&alloy_primitives::keccak256(transaction)),
                None,
            );
        }
    }

    /// Sets or removes a row of `state`.
    pub(super) fn state(&mut self, key: &Bytes, value: Option<&Bytes>) {
        self.write(Space::State, key, value.map(AsRef::as_ref));
        self.written.push((key.clone(), value.cloned()));
    }

    pub(super) fn put(&mut self, space: Space, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.set(space, key.as_ref(), Some(value.as_ref()));
    }

    /// Sets or removes a row.
    pub(super) fn set(&mut self, space: Space, key: &[u8], value: Option<&[u8]>) {
        match space {
            Space::State => self.state(
                &Bytes::copy_from_slice(key),
                value.map(Bytes::copy_from_slice).as_ref(),
            ),
            _ => self.write(space, key, value),
        }
    }

    fn write(&mut self, space: Space, key: &[u8], value: Option<&[u8]>) {
        self.weights.add(space, key, value);
        if matches!(space, Space::Blocks | Space::Index) {
            self.written_block_rows.push(block_cache_key(space, key));
        }
        let keyspace = &self.inner.spaces[space as usize];
        match value {
            Some(value) => self.batch.insert(keyspace, key, value),
            None => self.batch.remove(keyspace, key),
        }
    }

    /// Writes the batch, with `head` as the head row of every keyspace that has one.
    pub(super) fn commit(mut self, head: BlockId) -> Result<(), StoreError> {
        for space in Space::ALL.into_iter().filter(|space| space.has_head()) {
            self.write(space, HEAD, Some(&codec::encode_id(head)));
        }
        let Self {
            inner,
            batch,
            written,
            written_block_rows,
            weights,
        } = self;
        let commit = || {
            let rows = &inner.block_rows;
            rows.invalidate(&written_block_rows, || batch.commit())
        };
        if written.is_empty() {
            commit()?;
        } else {
            inner.rows.write(written, commit)?;
        }
        // The batch is committed. If the flush fails, return the error all the same: the database
        // must accept no further batch.
        Ok(inner.count_batch(&weights)?)
    }
}
