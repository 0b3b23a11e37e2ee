//! The batcher's encoder: from blocks to the columns of a span batch. Derivation does not use this
//! module.

use super::{
    BatchContext, MAX_SPAN_ELEMENTS, SPAN_TYPE, SpanBlock, SpanEdge,
    transaction::{LEGACY, RebuildError, SpanTransaction},
};
use alloy_primitives::{B256, FixedBytes};

/// Bytes of a signature's r and s.
const SIGNATURE: usize = 64;

/// The reason why a block cannot be appended to a span batch. The batch is unchanged.
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

/// Collects consecutive blocks in the columns of a span batch. A block needs memory for its
/// transactions and some hundred bytes more. [`Self::encode`] copies all columns once.
#[derive(Clone, Debug)]
pub struct SpanBuilder {
    context: BatchContext,
    parent_check: FixedBytes<20>,
    /// Ends of the columns after each block.
    ends: Vec<BlockEnd>,
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

/// Ends of the columns after a block, in bytes or items, and the values that the prefix of a span
/// ending with this block has.
#[derive(Clone, Debug)]
struct BlockEnd {
    edge: SpanEdge,
    l1_origin_check: FixedBytes<20>,
    tx_counts: usize,
    transactions: usize,
    tos: usize,
    datas: usize,
    nonces: usize,
    gases: usize,
    protected: usize,
}

impl SpanBuilder {
    /// An empty span for the chain of this context.
    pub fn new(context: BatchContext) -> Self {
        Self {
            context,
            parent_check: FixedBytes::ZERO,
            ends: Vec::new(),
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

    /// Appends a block, with the hashes of its parent and of its L1 origin. `begins_epoch` is
    /// whether the block's L1 origin differs from its parent's. It is used for the first block
    /// only: for later blocks the origins decide.
    pub fn push(
        &mut self,
        block: &SpanBlock,
        parent_hash: B256,
        epoch_hash: B256,
        begins_epoch: bool,
    ) -> Result<(), SpanBuildError> {
        let transactions: Vec<_> = block.transactions.iter().collect();
        let transactions: Vec<&[u8]> = transactions.iter().map(|encoded| &encoded[..]).collect();
        let edge = SpanEdge {
            epoch_number: block.epoch_number,
            timestamp: block.timestamp,
        };
        self.push_encoded(edge, &transactions, parent_hash, epoch_hash, begins_epoch)
    }

    /// Like [`Self::push`], for transactions that are already EIP-2718 encoded and without
    /// deposits.
    pub fn push_encoded(
        &mut self,
        edge: SpanEdge,
        transactions: &[&[u8]],
        parent_hash: B256,
        epoch_hash: B256,
        begins_epoch: bool,
    ) -> Result<(), SpanBuildError> {
        let origin_bit = self.follows(edge, begins_epoch)?;
        let count = transactions.len();
        let most = MAX_SPAN_ELEMENTS as usize;
        if self.blocks() == most || self.transactions() + count > most {
            return Err(SpanBuildError::TooLarge);
        }
        let mut parsed = Vec::with_capacity(count);
        for (index, encoded) in transactions.iter().enumerate() {
            let transaction = SpanTransaction::parse(encoded, self.context.chain_id)
                .map_err(|error| SpanBuildError::Transaction { index, error })?;
            parsed.push(transaction);
        }
        if self.ends.is_empty() {
            self.parent_check = FixedBytes::from_slice(&parent_hash[..20]);
        }
        self.origin_bits.push(origin_bit);
        put_uvarint(&mut self.tx_counts, count as u64);
        for transaction in &parsed {
            self.push_transaction(transaction);
        }
        self.ends.push(BlockEnd {
            edge,
            l1_origin_check: FixedBytes::from_slice(&epoch_hash[..20]),
            tx_counts: self.tx_counts.len(),
            transactions: self.creations.len,
            tos: self.tos.len(),
            datas: self.datas.len(),
            nonces: self.nonces.len(),
            gases: self.gases.len(),
            protected: self.protected.len,
        });
        Ok(())
    }

    /// The origin bit of the next block; fails if the block cannot follow the span.
    fn follows(&self, block: SpanEdge, begins_epoch: bool) -> Result<bool, SpanBuildError> {
        let Some(BlockEnd { edge: last, .. }) = self.ends.last() else {
            return if block.timestamp < self.context.genesis_time {
                Err(SpanBuildError::Timestamp(block.timestamp))
            } else {
                Ok(begins_epoch)
            };
        };
        if last.timestamp.checked_add(self.context.block_time) != Some(block.timestamp) {
            return Err(SpanBuildError::Timestamp(block.timestamp));
        }
        match block.epoch_number.checked_sub(last.epoch_number) {
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

    /// Number of blocks in the span.
    pub fn blocks(&self) -> usize {
        self.ends.len()
    }

    /// Total number of transactions.
    pub fn transactions(&self) -> usize {
        self.creations.len
    }

    /// Size of the encoded span batch with its type byte; 0 if it has no block.
    pub fn encoded_len(&self) -> usize {
        let (Some(first), Some(last)) = (self.ends.first(), self.ends.last()) else {
            return 0;
        };
        let numbers = [
            first.edge.timestamp - self.context.genesis_time,
            last.edge.epoch_number,
            self.blocks() as u64,
        ];
        let bits = [
            self.blocks(),
            last.transactions,
            last.transactions,
            last.protected,
        ];
        let columns = last.tx_counts + last.tos + last.datas + last.nonces + last.gases;
        // The type byte, `parent_check` and `l1_origin_check`.
        let prefix = 1 + 2 * 20;
        prefix
            + numbers.into_iter().map(uvarint_len).sum::<usize>()
            + bits.map(|bits| bits.div_ceil(8)).iter().sum::<usize>()
            + SIGNATURE * last.transactions
            + columns
    }

    /// Encodes the span batch with its type byte; `None` if it has no block.
    pub fn encode(&self) -> Option<Vec<u8>> {
        self.encode_first(self.blocks())
    }

    /// Encodes only the first `blocks` blocks, as [`Self::encode`] would have done before later
    /// blocks were appended. `None` if `blocks` is 0 or more than the span has.
    pub fn encode_first(&self, blocks: usize) -> Option<Vec<u8>> {
        let first = self.ends.first()?;
        let end = self.ends.get(blocks.checked_sub(1)?)?;
        let mut out = Vec::with_capacity(self.encoded_len());
        out.push(SPAN_TYPE);
        let rel_timestamp = first.edge.timestamp - self.context.genesis_time;
        put_uvarint(&mut out, rel_timestamp);
        put_uvarint(&mut out, end.edge.epoch_number);
        out.extend_from_slice(self.parent_check.as_slice());
        out.extend_from_slice(end.l1_origin_check.as_slice());
        put_uvarint(&mut out, blocks as u64);
        self.origin_bits.write_first(blocks, &mut out);
        out.extend_from_slice(&self.tx_counts[..end.tx_counts]);
        self.creations.write_first(end.transactions, &mut out);
        self.parities.write_first(end.transactions, &mut out);
        out.extend_from_slice(&self.signatures[..SIGNATURE * end.transactions]);
        out.extend_from_slice(&self.tos[..end.tos]);
        out.extend_from_slice(&self.datas[..end.datas]);
        out.extend_from_slice(&self.nonces[..end.nonces]);
        out.extend_from_slice(&self.gases[..end.gases]);
        self.protected.write_first(end.protected, &mut out);
        Some(out)
    }
}

/// A growing list of bits; item 0 is in the first byte.
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

    /// Appends the first `len` items as a big-endian integer.
    pub fn write_first(&self, len: usize, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend(self.bytes[..len.div_ceil(8)].iter().rev());
        if let Some(highest) = out.get_mut(begin)
            && !len.is_multiple_of(8)
        {
            *highest &= (1 << (len % 8)) - 1;
        }
    }
}

/// Appends a uvarint: seven bits per byte, lowest first. A byte's high bit means that another
/// follows.
pub(super) fn put_uvarint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Length of the uvarint that [`put_uvarint`] writes.
fn uvarint_len(number: u64) -> usize {
    let bits = u64::BITS - number.leading_zeros();
    bits.div_ceil(7).max(1) as usize
}
