//! The columns of a span batch, as slices of the batch's bytes.

use super::{
    BatchContext, MAX_SPAN_ELEMENTS, SpanError,
    transaction::{LEGACY, SpanTransaction, is_counted_as_legacy},
};
use alloy_primitives::{Bytes, FixedBytes};
use alloy_rlp::Header;

/// The columns of a span batch, each checked to be complete. Bits and numbers are decoded when
/// read.
#[derive(Debug)]
pub(super) struct Columns {
    pub context: BatchContext,
    /// Seconds from the L2 genesis to the first block.
    pub rel_timestamp: u64,
    /// Number of the last block's L1 origin.
    pub l1_origin_num: u64,
    pub parent_check: FixedBytes<20>,
    pub l1_origin_check: FixedBytes<20>,
    /// Number of blocks, at least 1.
    pub blocks: usize,
    pub origin_bits: Bytes,
    /// Number of transactions in each block, as uvarints.
    tx_counts: Bytes,
    /// Total number of transactions.
    transactions: usize,
    creations: Bytes,
    parities: Bytes,
    /// r and s of each transaction, 64 bytes.
    signatures: Bytes,
    /// Recipient of each transaction that is not a contract creation, 20 bytes.
    tos: Bytes,
    /// Data of each transaction, in the form that [`ColumnReader::transaction_data`] reads.
    datas: Bytes,
    /// Nonce of each transaction, as uvarints.
    nonces: Bytes,
    /// Gas limit of each transaction, as uvarints.
    gases: Bytes,
    /// One bit for each legacy transaction: whether the signature covers the chain id.
    protected: Bytes,
}

/// Position of the next item in each column.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ColumnPosition {
    /// Index of the next block.
    pub block: usize,
    /// Byte offset of the next block's number of transactions.
    tx_counts: usize,
    /// Index of the next transaction.
    transaction: usize,
    /// Index of the next recipient.
    to: usize,
    /// Index of the next protected bit.
    legacy: usize,
    /// Byte offset of the next transaction's data; the next two fields are byte offsets, too.
    pub datas: usize,
    nonces: usize,
    gases: usize,
}

/// The items of one transaction, one from each column.
#[derive(Debug)]
pub(super) struct ColumnRow<'a> {
    /// The type byte; [`LEGACY`] if there is none.
    pub kind: Option<u8>,
    /// Content of the RLP list in `tx_datas`.
    pub payload: &'a [u8],
    pub nonce: u64,
    pub gas: u64,
    /// Recipient; `None` for a contract creation.
    pub to: Option<&'a [u8; 20]>,
    /// The signature's r ‖ s.
    pub signature: &'a [u8; 64],
    pub parity: bool,
    /// Whether the signature covers the chain id; always true for typed transactions.
    pub is_protected: bool,
}

impl Columns {
    pub fn decode(body: &Bytes, context: &BatchContext) -> Result<Self, SpanError> {
        let mut cursor = ColumnReader(body);
        let rel_timestamp = cursor.uvarint("rel_timestamp")?;
        let l1_origin_num = cursor.uvarint("l1_origin_num")?;
        let parent_check = FixedBytes::from_slice(cursor.take(20, "parent_check")?);
        let l1_origin_check = FixedBytes::from_slice(cursor.take(20, "l1_origin_check")?);
        let blocks = bounded(cursor.uvarint("block_count")?, "block_count")?;
        if blocks == 0 {
            return Err(SpanError::NoBlock);
        }
        let origin_bits = cursor.bits(blocks, "origin_bits")?;
        let (tx_counts, transactions) = cursor.tx_counts(blocks)?;
        let creations = cursor.bits(transactions, "contract_creation_bits")?;
        let parities = cursor.bits(transactions, "y_parity_bits")?;
        let signatures = cursor.take(64 * transactions, "tx_sigs")?;
        let ones: u32 = creations.iter().map(|byte| byte.count_ones()).sum();
        let tos = cursor.take(20 * (transactions - ones as usize), "tx_tos")?;
        let (datas, legacy) = cursor.transaction_datas(transactions)?;
        let nonces = cursor.uvarints(transactions, "tx_nonces")?;
        let gases = cursor.uvarints(transactions, "tx_gases")?;
        let protected = cursor.bits(legacy, "protected_bits")?;
        Ok(Self {
            context: *context,
            rel_timestamp,
            l1_origin_num,
            parent_check,
            l1_origin_check,
            blocks,
            origin_bits: body.slice_ref(origin_bits),
            tx_counts: body.slice_ref(tx_counts),
            transactions,
            creations: body.slice_ref(creations),
            parities: body.slice_ref(parities),
            signatures: body.slice_ref(signatures),
            tos: body.slice_ref(tos),
            datas: body.slice_ref(datas),
            nonces: body.slice_ref(nonces),
            gases: body.slice_ref(gases),
            protected: body.slice_ref(protected),
        })
    }

    /// Checks that every transaction can be rebuilt.
    pub fn check_transactions(&self) -> Result<(), SpanError> {
        let mut at = ColumnPosition::default();
        for _ in 0..self.transactions {
            SpanTransaction::of(&self.row(&mut at)?)?;
        }
        Ok(())
    }

    /// Reads the number of transactions of the block at this position, and moves the position to
    /// the next block's number.
    pub fn tx_count(&self, at: &mut ColumnPosition) -> Result<usize, SpanError> {
        at.block += 1;
        let count = ColumnReader::at(&self.tx_counts, &mut at.tx_counts, |cursor| {
            cursor.uvarint("block_tx_counts")
        });
        Ok(count? as usize)
    }

    /// Reads the transaction at this position and moves the position to the next transaction.
    pub fn row(&self, at: &mut ColumnPosition) -> Result<ColumnRow<'_>, SpanError> {
        let (kind, payload) =
            ColumnReader::at(&self.datas, &mut at.datas, ColumnReader::transaction_data)?;
        let nonce = ColumnReader::at(&self.nonces, &mut at.nonces, |cursor| {
            cursor.uvarint("tx_nonces")
        })?;
        let gas = ColumnReader::at(&self.gases, &mut at.gases, |cursor| {
            cursor.uvarint("tx_gases")
        })?;
        let index = at.transaction;
        let signature = self.signatures.as_chunks::<64>().0.get(index);
        let mut to = None;
        if !bit(&self.creations, index) {
            let tos = self.tos.as_chunks::<20>().0;
            to = Some(tos.get(at.to).ok_or(SpanError::Truncated("tx_tos"))?);
            at.to += 1;
        }
        let is_protected = kind != LEGACY || bit(&self.protected, at.legacy);
        at.legacy += usize::from(kind == LEGACY);
        at.transaction += 1;
        Ok(ColumnRow {
            kind,
            payload,
            nonce,
            gas,
            to,
            signature: signature.ok_or(SpanError::Truncated("tx_sigs"))?,
            parity: bit(&self.parities, index),
            is_protected,
        })
    }
}

fn bounded(count: u64, column: &'static str) -> Result<usize, SpanError> {
    if count > MAX_SPAN_ELEMENTS {
        return Err(SpanError::TooLarge(column));
    }
    Ok(count as usize)
}

/// The bit of an item. The bit list is a big-endian integer whose lowest bit is item 0. Bits beyond
/// the list are 0.
pub(super) fn bit(bits: &[u8], item: usize) -> bool {
    let byte = bits.iter().rev().nth(item / 8).copied().unwrap_or_default();
    byte >> (item % 8) & 1 == 1
}

/// A reader with the bytes that are still unread.
pub(super) struct ColumnReader<'a>(pub &'a [u8]);

impl<'a> ColumnReader<'a> {
    /// Reads an item of a column at this offset, and moves the offset past the item.
    fn at<T>(
        column: &'a [u8],
        offset: &mut usize,
        read: impl FnOnce(&mut Self) -> Result<T, SpanError>,
    ) -> Result<T, SpanError> {
        let mut cursor = Self(column.get(*offset..).unwrap_or_default());
        let item = read(&mut cursor)?;
        *offset = column.len() - cursor.0.len();
        Ok(item)
    }

    fn take(&mut self, len: usize, column: &'static str) -> Result<&'a [u8], SpanError> {
        let (taken, rest) = self
            .0
            .split_at_checked(len)
            .ok_or(SpanError::Truncated(column))?;
        self.0 = rest;
        Ok(taken)
    }

    /// The bytes read since `begin` was the unread part.
    fn since(&self, begin: &'a [u8]) -> &'a [u8] {
        &begin[..begin.len() - self.0.len()]
    }

    /// Reads a uvarint: at most ten bytes with seven bits each, lowest bits first. Leading zeros
    /// are allowed.
    pub fn uvarint(&mut self, column: &'static str) -> Result<u64, SpanError> {
        let mut number = 0;
        for (index, byte) in self.0.iter().enumerate().take(10) {
            if index == 9 && *byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.0 = &self.0[index + 1..];
                return Ok(number);
            }
        }
        Err(if self.0.len() < 10 {
            SpanError::Truncated(column)
        } else {
            SpanError::Varint(column)
        })
    }

    fn uvarints(&mut self, count: usize, column: &'static str) -> Result<&'a [u8], SpanError> {
        let begin = self.0;
        for _ in 0..count {
            self.uvarint(column)?;
        }
        Ok(self.since(begin))
    }

    /// Reads the column with the `blocks` numbers of transactions. Returns the column and their
    /// sum.
    fn tx_counts(&mut self, blocks: usize) -> Result<(&'a [u8], usize), SpanError> {
        const COLUMN: &str = "block_tx_counts";
        let (begin, mut sum) = (self.0, 0);
        for _ in 0..blocks {
            // No overflow: at most ten million numbers of at most ten million each.
            sum += bounded(self.uvarint(COLUMN)?, COLUMN)? as u64;
        }
        Ok((self.since(begin), bounded(sum, COLUMN)?))
    }

    fn bits(&mut self, items: usize, column: &'static str) -> Result<&'a [u8], SpanError> {
        let bits = self.take(items.div_ceil(8), column)?;
        let used = items % 8;
        if used != 0 && bits[0] >> used != 0 {
            return Err(SpanError::Bits(column));
        }
        Ok(bits)
    }

    /// Reads the column with `count` items of [`Self::transaction_data`]. Returns the column and
    /// the number of legacy transactions.
    fn transaction_datas(&mut self, count: usize) -> Result<(&'a [u8], usize), SpanError> {
        let (begin, mut legacy) = (self.0, 0);
        for _ in 0..count {
            let (kind, _) = self.transaction_data()?;
            legacy += usize::from(is_counted_as_legacy(kind));
        }
        Ok((self.since(begin), legacy))
    }

    /// Reads the type of a transaction and the content of its RLP list. A first byte below 0x80 is
    /// the type. The data of a legacy transaction begin with the list.
    pub fn transaction_data(&mut self) -> Result<(Option<u8>, &'a [u8]), SpanError> {
        const COLUMN: &str = "tx_datas";
        let first = *self.0.first().ok_or(SpanError::Truncated(COLUMN))?;
        let kind = (first < 0x80).then_some(first);
        let mut rest = &self.0[usize::from(kind.is_some())..];
        let begin = rest.len();
        let header = match Header::decode(&mut rest) {
            Ok(header) if header.list => header,
            Err(alloy_rlp::Error::InputTooShort) => return Err(SpanError::Truncated(COLUMN)),
            _ => return Err(SpanError::Data),
        };
        let length = (begin - rest.len()).saturating_add(header.payload_length);
        if length as u64 > MAX_SPAN_ELEMENTS {
            return Err(SpanError::TooLarge(COLUMN));
        }
        self.0 = rest;
        Ok((kind, self.take(header.payload_length, COLUMN)?))
    }
}
