//! Typed reads of a [`Snapshot`].

use crate::chain::{
    memory_only,
    receipt::{MinedLog, MinedReceipt, Receipt},
    rows::{
        ReadError,
        codec::{self, BlockBody},
        keys,
    },
    store::{SENDERS_ROW, Snapshot, Space, StoreError, UnwindRecord, describe_error, unwind},
};
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes};
use fjall::Readable;
use starling_proto::payload::BlockId;
use std::{ops::RangeInclusive, sync::atomic::Ordering};

/// Number of newest blocks whose links are checked when a chain is opened.
const TIP: u64 = 256;

impl Snapshot {
    /// Checks that the newest blocks link down from the head without a gap. The head row alone
    /// cannot reveal a gap: batches after a missing journal write it too.
    pub(crate) fn check_tip(&self) -> Result<(), StoreError> {
        let genesis = self.0.inner.identity.genesis_hash;
        let mut at = self.head();
        for _ in 0..TIP {
            let gap = |what| StoreError::Gap { block: at, what };
            if self.hash_of(at.number)? != Some(at.hash) {
                return Err(gap("row in the index"));
            }
            if at.hash == genesis {
                break;
            }
            let header = self.header(at.number)?.ok_or_else(|| gap("header"))?;
            let below = at.number.checked_sub(1).ok_or_else(|| gap("parent"))?;
            at = BlockId {
                number: below,
                hash: header.parent_hash,
            };
        }
        Ok(())
    }

    /// A row of the `state` keyspace at the stored head.
    pub fn state_row(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        match self.0.generation {
            Some(generation) => self
                .0
                .inner
                .rows
                .get(key, generation, || self.get(Space::State, key)),
            None => self.get(Space::State, key),
        }
    }

    /// The rows of the `state` keyspace with this prefix, at or after `from`, ascending.
    pub fn state_scan(
        &self,
        prefix: &[u8],
        from: &[u8],
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), ReadError>> + use<> {
        self.scan(Space::State, prefix, from)
    }

    /// The value of a flat row after an earlier block. One seek: the oldest history row of a later
    /// block contains the value before that block.
    pub fn state_row_at(&self, key: &[u8], number: u64) -> Result<Option<Bytes>, ReadError> {
        let from = keys::history(key, number.saturating_add(1));
        match self
            .scan(Space::History, &keys::history_prefix(key), &from)
            .next()
            .transpose()?
        {
            Some((_, before)) => {
                codec::decode_before(&before).ok_or_else(|| damaged("history", &from))
            }
            None => self.state_row(key),
        }
    }

    /// The first flat row with this prefix, at or after key `from`, that existed after block
    /// `number`.
    pub fn state_first_at(
        &self,
        prefix: &[u8],
        from: &[u8],
        number: u64,
    ) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        let mut from = from.max(prefix).to_vec();
        loop {
            // A row that existed after block `number` either still exists or has a history row. Try
            // the nearest key of both kinds.
            let stored = self
                .state_scan(prefix, &from)
                .next()
                .transpose()?
                .map(|(key, _)| key);
            let changed = self
                .scan(
                    Space::History,
                    &keys::history_prefix(prefix),
                    &keys::history_prefix(&from),
                )
                .next()
                .transpose()?;
            let changed = changed.map(|(key, _)| key.slice(1..key.len().saturating_sub(8).max(1)));
            let Some(key) = [stored, changed].into_iter().flatten().min() else {
                return Ok(None);
            };
            if key.as_ref() >= from.as_slice()
                && let Some(value) = self.state_row_at(&key, number)?
            {
                return Ok(Some((key, value)));
            }
            // Flat keys of one kind have one length, so this position is after all history rows of
            // `key` and before those of the next key.
            from = [key.as_ref(), &[0xff; 9]].concat();
        }
    }

    /// The rows that this block changed, with their values before the block; `None` if the unwind
    /// record is no longer kept.
    pub fn unwind_record(&self, number: u64) -> Result<Option<UnwindRecord>, ReadError> {
        // A record below the bound may still exist, but may be dropped at any time.
        if number < self.oldest_unwind() {
            return Ok(None);
        }
        let key = keys::unwind(number);
        self.read(Space::History, &key, unwind::decode)
    }

    /// Hash of the canonical block of this number.
    pub fn hash_of(&self, number: u64) -> Result<Option<B256>, ReadError> {
        self.read(Space::Index, &keys::hash_of(number), |row| {
            row.try_into().ok()
        })
    }

    /// Number of a canonical block.
    pub fn number_of(&self, hash: &B256) -> Result<Option<u64>, ReadError> {
        self.read(Space::Index, &keys::number_of(hash), codec::decode_number)
    }

    pub fn header(&self, number: u64) -> Result<Option<Header>, ReadError> {
        self.read(Space::Blocks, &keys::header(number), codec::decode_whole)
    }

    /// Raw transactions of a block.
    pub fn body(&self, number: u64) -> Result<Option<Vec<Bytes>>, ReadError> {
        Ok(self.whole_body(number)?.map(|body| body.transactions))
    }

    /// The body row of a block: its transactions and everything else that is not in the header.
    pub(crate) fn whole_body(&self, number: u64) -> Result<Option<BlockBody>, ReadError> {
        self.read(Space::Blocks, &keys::body(number), codec::decode_body)
    }

    /// The header of the genesis block; `None` if the lowest stored block is not the genesis block.
    pub fn genesis_header(&self) -> Result<Option<Header>, ReadError> {
        let Some((key, _)) = self.scan(Space::Blocks, &[], &[]).next().transpose()? else {
            return Ok(None);
        };
        let Some((number, _)) = keys::block_row_parts(&key) else {
            return Ok(None);
        };
        Ok(self
            .header(number)?
            .filter(|header| header.hash_slow() == self.0.inner.identity.genesis_hash))
    }

    /// Number of the lowest block of the chain.
    pub fn lowest_block(&self) -> Result<u64, ReadError> {
        Ok(self.genesis_header()?.map_or(0, |header| header.number))
    }

    /// The RLP of a header, as stored.
    pub fn encoded_header(&self, number: u64) -> Result<Option<Bytes>, ReadError> {
        self.get(Space::Blocks, &keys::header(number))
    }

    /// Passes the RLP of each block's header, and the RLP of its list of transactions, to `take`,
    /// both as stored, lowest block first. Stops and returns false when `take` returns false.
    pub fn encoded_blocks(
        &self,
        numbers: RangeInclusive<u64>,
        take: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<bool, ReadError> {
        let (mut next, last) = numbers.into_inner();
        if memory_only::refuses() {
            return Err(ReadError::NotInMemory);
        }
        let ends = keys::block_row(next, 0)..=keys::block_row(last, u8::MAX);
        let mut body = None;
        for row in self
            .0
            .snapshot
            .range(&self.0.inner.spaces[Space::Blocks as usize], ends)
        {
            let wanted = |key: &fjall::UserKey| {
                !matches!(key.last(), Some(&keys::RECEIPTS | &keys::SENDERS))
            };
            let (key, row) = row
                .into_inner_if(wanted)
                .map_err(|error| ReadError::Store(describe_error(&error)))?;
            let Some(row) = row else { continue };
            match (keys::block_row_parts(&key), body.take()) {
                (Some((number, keys::BODY)), _) if number == next => body = Some(row),
                (Some((number, keys::HEADER)), Some(body)) if number == next => {
                    if !take(&row, &body) {
                        return Ok(false);
                    }
                    next += 1;
                }
                _ => return Err(damaged("blocks", &key)),
            }
        }
        if next > last {
            Ok(true)
        } else {
            Err(damaged("blocks", &keys::header(next)))
        }
    }

    /// The lowest block whose transactions are stored. All higher blocks have theirs too.
    pub fn oldest_body(&self) -> Result<u64, ReadError> {
        if memory_only::refuses() {
            return Err(ReadError::NotInMemory);
        }
        let rows = self.0.snapshot.range(
            &self.0.inner.spaces[Space::Blocks as usize],
            keys::body(0)..,
        );
        for row in rows {
            let key = row
                .key()
                .map_err(|error| ReadError::Store(describe_error(&error)))?;
            if let Some((number, keys::BODY)) = keys::block_row_parts(&key) {
                return Ok(number);
            }
        }
        Ok(self.head().number)
    }

    pub fn receipts(&self, number: u64) -> Result<Option<Vec<Receipt>>, ReadError> {
        self.read(
            Space::Blocks,
            &keys::receipts(number),
            codec::decode_receipts,
        )
    }

    /// One receipt of a block, read without the block's other receipts. `None` if the block has no
    /// receipts, `Some(None)` if it has no transaction at `index`.
    pub fn receipt(
        &self,
        number: u64,
        index: usize,
    ) -> Result<Option<Option<MinedReceipt>>, ReadError> {
        self.read(Space::Blocks, &keys::receipts(number), |row| {
            codec::decode_receipt(row, index)
        })
    }

    /// The logs of a block that `wanted` accepts by address and topics; `None` if the block has no
    /// receipts.
    pub fn logs(
        &self,
        number: u64,
        wanted: &dyn Fn(&Address, &[B256]) -> bool,
    ) -> Result<Option<Vec<MinedLog>>, ReadError> {
        self.read(Space::Blocks, &keys::receipts(number), |row| {
            codec::decode_logs(row, wanted)
        })
    }

    /// The raw transactions of a block at `indexes`, read without the block's other transactions;
    /// `None` for an index that the block does not have.
    pub fn transactions(
        &self,
        number: u64,
        indexes: &[usize],
    ) -> Result<Option<Vec<Option<Bytes>>>, ReadError> {
        self.read(Space::Blocks, &keys::body(number), |row| {
            indexes
                .iter()
                .map(|index| codec::decode_transaction(row, *index))
                .collect()
        })
    }

    /// The first block from which on the senders of every block are stored.
    pub fn oldest_senders(&self) -> Result<u64, ReadError> {
        Ok(self
            .read(Space::Meta, SENDERS_ROW, codec::decode_number)?
            .unwrap_or(u64::MAX))
    }

    /// Senders of a block's transactions in block order; `None` if the block has none or an older
    /// version wrote it.
    pub fn senders(&self, number: u64) -> Result<Option<Vec<Address>>, ReadError> {
        self.read(Space::Blocks, &keys::senders(number), codec::decode_senders)
    }

    /// Block number and index of a transaction in the canonical chain.
    pub fn transaction(&self, hash: &B256) -> Result<Option<(u64, usize)>, ReadError> {
        self.read(Space::Index, &keys::transaction(hash), |row| {
            let (number, index) = row.split_at_checked(8)?;
            let index = u32::from_be_bytes(index.try_into().ok()?);
            Some((codec::decode_number(number)?, index as usize))
        })
    }

    /// Whether new blocks store the addresses and slots whose hashes are the keys of the state.
    pub fn keeps_names(&self) -> bool {
        self.0.inner.keeps_names.load(Ordering::Relaxed)
    }

    pub fn code(&self, hash: &B256) -> Result<Option<Bytes>, ReadError> {
        self.get(Space::Code, hash.as_slice())
    }

    /// Reads and decodes a row. An undecodable row is [`ReadError::Damaged`].
    fn read<T>(
        &self,
        space: Space,
        key: &[u8],
        decode: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, ReadError> {
        let Some(row) = self.get(space, key)? else {
            return Ok(None);
        };
        decode(&row)
            .map(Some)
            .ok_or_else(|| damaged(space.name(), key))
    }
}

fn damaged(keyspace: &str, key: &[u8]) -> ReadError {
    ReadError::Damaged(format!(
        "row {} of {keyspace}",
        alloy_primitives::hex::encode(key)
    ))
}
