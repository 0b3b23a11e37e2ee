//! The batcher's encoder: from blocks to the columns of a span batch. Derivation does not use it.

use super::{
    BatchContext, MAX_SPAN_ELEMENTS, SPAN_TYPE, SpanBlock,
    transaction::{LEGACY, RebuildError, SpanTransaction},
};
use alloy_primitives::{B256, FixedBytes};

/// Why a block cannot be appended to a span batch, which it leaves as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum SpanBuildError {
    #[error("the block's time {0} does not follow the span")]
    Timestamp(u64),
    #[error("the block's L1 origin {0} is neither the last block's nor the next one")]
    Epoch(u64),
    #[error("more than {MAX_SPAN_ELEMENTS} elements")]
    TooLarge,
    #[error("transaction {index}: {error}")]
    Transaction { index: usize, error: RebuildError },
}

/// Collects consecutive blocks in the columns of a span batch. A block costs the size of its
/// transactions, and [`Self::encode`] one copy of all columns.
#[derive(Clone, Debug)]
pub struct SpanBuilder {
    context: BatchContext,
    /// Unix seconds of the first block.
    first: u64,
    /// Time and L1 origin of the last block; `None` before the first.
    last: Option<(u64, u64)>,
    parent_check: FixedBytes<20>,
    l1_origin_check: FixedBytes<20>,
    origin_bits: BitList,
    tx_counts: Vec<u8>,
    creations: BitList,
    parities: BitList,
    signatures: Vec<u8>,
    tos: Vec<u8>,
    datas: Vec<u8>,
    nonces: Vec<u8>,
    gases: Vec<u8>,
    protected: BitList,
}

impl SpanBuilder {
    /// An empty span of the chain that the context describes.
    pub fn new(context: BatchContext) -> Self {
        Self {
            context,
            first: 0,
            last: None,
            parent_check: FixedBytes::ZERO,
            l1_origin_check: FixedBytes::ZERO,
            origin_bits: BitList::default(),
            tx_counts: Vec::new(),
            creations: BitList::default(),
            parities: BitList::default(),
            signatures: Vec::new(),
            tos: Vec::new(),
            datas: Vec::new(),
            nonces: Vec::new(),
            gases: Vec::new(),
            protected: BitList::default(),
        }
    }

    /// Appends a block with the hashes of its parent and of its L1 origin. `begins_epoch` tells
    /// whether its L1 origin differs from its parent's; it counts for the first block, and follows
    /// from the origins for the others.
    pub fn push(
        &mut self,
        block: &SpanBlock,
        parent_hash: B256,
        epoch_hash: B256,
        begins_epoch: bool,
    ) -> Result<(), SpanBuildError> {
        let origin_bit = self.follows(block, begins_epoch)?;
        let count = block.transactions.len();
        let most = MAX_SPAN_ELEMENTS as usize;
        if self.blocks() == most || self.transactions() + count > most {
            return Err(SpanBuildError::TooLarge);
        }
        let all: Vec<_> = block.transactions.iter().collect();
        let mut transactions = Vec::with_capacity(count);
        for (index, encoded) in all.iter().enumerate() {
            let parsed = SpanTransaction::parse(encoded, self.context.chain_id)
                .map_err(|error| SpanBuildError::Transaction { index, error })?;
            transactions.push(parsed);
        }
        if self.last.is_none() {
            self.first = block.timestamp;
            self.parent_check = FixedBytes::from_slice(&parent_hash[..20]);
        }
        self.last = Some((block.timestamp, block.epoch_number));
        self.l1_origin_check = FixedBytes::from_slice(&epoch_hash[..20]);
        self.origin_bits.push(origin_bit);
        put_uvarint(&mut self.tx_counts, count as u64);
        for transaction in &transactions {
            self.push_transaction(transaction);
        }
        Ok(())
    }

    /// The origin bit of a block that may follow the span.
    fn follows(&self, block: &SpanBlock, begins_epoch: bool) -> Result<bool, SpanBuildError> {
        let Some((timestamp, epoch)) = self.last else {
            return if block.timestamp < self.context.genesis_time {
                Err(SpanBuildError::Timestamp(block.timestamp))
            } else {
                Ok(begins_epoch)
            };
        };
        if timestamp.checked_add(self.context.block_time) != Some(block.timestamp) {
            return Err(SpanBuildError::Timestamp(block.timestamp));
        }
        match block.epoch_number.checked_sub(epoch) {
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            _ => Err(SpanBuildError::Epoch(block.epoch_number)),
        }
    }

    fn push_transaction(&mut self, transaction: &SpanTransaction<'_>) {
        self.creations.push(transaction.to.is_none());
        self.parities.push(transaction.parity);
        self.signatures.extend_from_slice(&transaction.signature);
        self.tos.extend(transaction.to.into_iter().flatten());
        transaction.data.write(transaction.kind, &mut self.datas);
        put_uvarint(&mut self.nonces, transaction.nonce);
        put_uvarint(&mut self.gases, transaction.gas);
        if transaction.kind == LEGACY {
            self.protected.push(transaction.is_protected);
        }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.origin_bits.len
    }

    /// Number of transactions of all blocks.
    pub fn transactions(&self) -> usize {
        self.creations.len
    }

    /// Upper bound of the bytes that [`Self::encode`] returns.
    pub fn size_bound(&self) -> usize {
        let bits = [
            &self.origin_bits,
            &self.creations,
            &self.parities,
            &self.protected,
        ];
        let columns = [
            &self.tx_counts,
            &self.signatures,
            &self.tos,
            &self.datas,
            &self.nonces,
            &self.gases,
        ];
        // A type byte, three numbers of at most ten bytes, and two pieces of hashes.
        let prefix = 1 + 3 * 10 + 2 * 20;
        prefix
            + bits.iter().map(|bits| bits.bytes.len()).sum::<usize>()
            + columns.iter().map(|column| column.len()).sum::<usize>()
    }

    /// The span batch with its type byte; `None` without a block.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let (_, last_epoch) = self.last?;
        let mut out = Vec::with_capacity(self.size_bound());
        out.push(SPAN_TYPE);
        put_uvarint(&mut out, self.first - self.context.genesis_time);
        put_uvarint(&mut out, last_epoch);
        out.extend_from_slice(self.parent_check.as_slice());
        out.extend_from_slice(self.l1_origin_check.as_slice());
        put_uvarint(&mut out, self.blocks() as u64);
        self.origin_bits.write(&mut out);
        out.extend_from_slice(&self.tx_counts);
        self.creations.write(&mut out);
        self.parities.write(&mut out);
        out.extend_from_slice(&self.signatures);
        out.extend_from_slice(&self.tos);
        out.extend_from_slice(&self.datas);
        out.extend_from_slice(&self.nonces);
        out.extend_from_slice(&self.gases);
        self.protected.write(&mut out);
        Some(out)
    }
}

/// A bit list that grows; the byte of item 0 is the first.
#[derive(Clone, Debug, Default)]
pub(super) struct BitList {
    bytes: Vec<u8>,
    len: usize,
}

impl BitList {
    pub fn push(&mut self, bit: bool) {
        if self.len.is_multiple_of(8) {
            self.bytes.push(0);
        }
        if let Some(last) = self.bytes.last_mut() {
            *last |= u8::from(bit) << (self.len % 8);
        }
        self.len += 1;
    }

    /// Appends the list as a big-endian integer.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.bytes.iter().rev());
    }
}

/// Appends seven bits per byte, the lowest first; the high bit of a byte tells that another follows.
pub(super) fn put_uvarint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
