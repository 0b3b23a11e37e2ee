//! Decoded blocks and their cache, through which the `eth` namespace reads blocks.
//!
//! Wallets and indexers request the same few blocks and their receipts again and again. Blocks are
//! cached by hash, so a reorg invalidates no entry. The cache holds at most [`BUDGET`] bytes, and
//! evicts the least recently used blocks first.

use crate::{
    chain::{
        receipt::Receipt,
        rules::Rules,
        transaction::ChainTx,
        view::{ReadError, View},
    },
    rpc::error::RpcError,
};
use alloy_consensus::Header;
use alloy_primitives::{Address, B256};
use lru::LruCache;
use parking_lot::Mutex;
use starling_proto::{
    l1info::L1BlockInfo,
    payload::{BlockId, Payload},
};
use std::sync::{Arc, OnceLock};

/// Maximum bytes of the cache, a part of the node's memory budget: some forty blocks of 250
/// transfers.
const BUDGET: usize = 16 << 20;

/// The position of a transaction in the chain.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub block: BlockId,
    pub timestamp: u64,
    pub index: usize,
    pub base_fee: Option<u64>,
    /// Nonce of a deposit, from its receipt.
    pub deposit_nonce: Option<u64>,
    /// Receipt version of a deposit, from its receipt.
    pub deposit_version: Option<u64>,
}

impl Place {
    pub fn new(block: BlockId, header: &Header, index: usize, receipt: &Receipt) -> Self {
        Self {
            block,
            timestamp: header.timestamp,
            index,
            base_fee: header.base_fee_per_gas,
            deposit_nonce: receipt.deposit_nonce,
            deposit_version: receipt.deposit_version,
        }
    }
}

/// A block of the chain with decoded transactions and receipts.
pub struct DecodedBlock {
    pub payload: Arc<Payload>,
    pub receipts: Arc<Vec<Receipt>>,
    pub transactions: Vec<ChainTx>,
    senders: OnceLock<Vec<Address>>,
}

impl DecodedBlock {
    fn read(view: &View, number: u64) -> Result<Option<Self>, RpcError> {
        let (Some(payload), Some(receipts)) = (view.payload(number)?, view.receipts(number)?)
        else {
            return Ok(None);
        };
        if payload.transactions.len() != receipts.len() {
            return Err(ReadError::Damaged(format!("receipts of block {number}")).into());
        }
        let transactions = payload
            .transactions
            .iter()
            .map(|raw| transaction(number, raw))
            .collect::<Result<_, _>>()?;
        Ok(Some(Self {
            payload,
            receipts,
            transactions,
            senders: OnceLock::new(),
        }))
    }

    /// Senders of the transactions, in block order. `view` must contain this block.
    pub fn senders(&self, view: &View) -> Result<&[Address], RpcError> {
        if let Some(senders) = self.senders.get() {
            return Ok(senders);
        }
        let senders = view.senders(&self.payload)?;
        if senders.len() != self.transactions.len() {
            return Err(
                ReadError::Damaged(format!("senders of block {}", self.payload.number())).into(),
            );
        }
        Ok(self.senders.get_or_init(|| senders))
    }

    /// The position of the transaction at `index`, which must exist.
    pub fn place(&self, index: usize) -> Place {
        Place::new(
            self.payload.id(),
            &self.payload.header,
            index,
            &self.receipts[index],
        )
    }

    /// The L1 attributes; `None` on Ethereum, and in a block without L1 attributes such as genesis.
    pub fn l1_info(&self, rules: &Rules) -> Option<L1BlockInfo> {
        l1_info(rules, self.transactions.first()?)
    }

    /// Approximate bytes that the block takes in memory. Inputs count twice, because decoded
    /// transactions have their own copy.
    fn weight(&self) -> usize {
        let logs = self.receipts.iter().flat_map(|receipt| &receipt.logs);
        let logs: usize = logs
            .map(|log| 100 + 32 * log.topics().len() + log.data.data.len())
            .sum();
        let each = size_of::<ChainTx>() + size_of::<Receipt>() + size_of::<Address>();
        size_of::<Self>() + 2 * self.payload.weight() + each * self.transactions.len() + logs
    }
}

/// Decodes a transaction of a block.
pub fn transaction(number: u64, raw: &[u8]) -> Result<ChainTx, RpcError> {
    ChainTx::decode(raw).map_err(|error| {
        ReadError::Damaged(format!("a transaction of block {number}: {error}")).into()
    })
}

/// The L1 attributes that the first transaction of a block carries.
pub fn l1_info(rules: &Rules, first: &ChainTx) -> Option<L1BlockInfo> {
    match rules {
        Rules::Optimism { .. } => L1BlockInfo::decode(&first.as_deposit()?.input).ok(),
        Rules::Ethereum { .. } => None,
    }
}

/// Cache of decoded blocks.
pub struct DecodedBlocks(Mutex<BlockCache>);

struct BlockCache {
    blocks: LruCache<B256, Arc<DecodedBlock>>,
    weight: usize,
    budget: usize,
}

impl Default for DecodedBlocks {
    fn default() -> Self {
        Self::with_budget(BUDGET)
    }
}

impl DecodedBlocks {
    fn with_budget(budget: usize) -> Self {
        Self(Mutex::new(BlockCache {
            blocks: LruCache::unbounded(),
            weight: 0,
            budget,
        }))
    }

    /// Loads the block with this number in `view`, from the cache if it is there.
    pub fn load(&self, view: &View, number: u64) -> Result<Option<Arc<DecodedBlock>>, RpcError> {
        let Some(hash) = view.hash_of(number)? else {
            return Ok(None);
        };
        if let Some(block) = self.cached(&hash) {
            return Ok(Some(block));
        }
        let Some(block) = DecodedBlock::read(view, number)?.map(Arc::new) else {
            return Ok(None);
        };
        self.0.lock().insert(hash, block.clone());
        Ok(Some(block))
    }

    /// The block with this hash, if it is cached.
    pub fn cached(&self, hash: &B256) -> Option<Arc<DecodedBlock>> {
        self.0.lock().blocks.get(hash).cloned()
    }
}

impl BlockCache {
    fn insert(&mut self, hash: B256, block: Arc<DecodedBlock>) {
        self.weight += block.weight();
        if let Some((_, old)) = self.blocks.push(hash, block) {
            self.weight -= old.weight();
        }
        while self.weight > self.budget
            && let Some((_, old)) = self.blocks.pop_lru()
        {
            self.weight -= old.weight();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::TxLegacy;
    use alloy_eips::eip2718::Encodable2718;
    use alloy_primitives::{Bytes, Signature};
    use op_alloy_consensus::OpTxEnvelope;

    fn block(number: u64, input: usize) -> Arc<DecodedBlock> {
        use alloy_consensus::SignableTransaction;
        let tx = TxLegacy {
            input: vec![7; input].into(),
            ..Default::default()
        }
        .into_signed(Signature::test_signature());
        let tx = OpTxEnvelope::from(tx);
        let payload = Payload::sealed(
            Header {
                number,
                ..Default::default()
            },
            vec![Bytes::from(tx.encoded_2718())],
        );
        Arc::new(DecodedBlock {
            payload: Arc::new(payload),
            receipts: Arc::default(),
            transactions: vec![tx.into()],
            senders: OnceLock::new(),
        })
    }

    #[test]
    fn decoded_blocks_are_kept_within_their_bytes_and_the_one_in_use_stays() {
        let blocks = DecodedBlocks::with_budget(50_000);
        let first = block(0, 100);
        blocks.0.lock().insert(first.payload.hash, first.clone());
        for number in 1..100 {
            let next = block(number, 1_000);
            blocks.0.lock().insert(next.payload.hash, next.clone());
            assert!(
                blocks.cached(&first.payload.hash).is_some()
                    && blocks.cached(&next.payload.hash).is_some(),
                "{number}"
            );
        }
        let kept = blocks.0.lock();
        let weight: usize = kept.blocks.iter().map(|(_, block)| block.weight()).sum();
        assert_eq!(kept.weight, weight);
        assert!((30_000..=50_000).contains(&weight), "{weight}");
        drop(kept);
        let large = block(100, 60_000);
        blocks.0.lock().insert(large.payload.hash, large);
        let kept = blocks.0.lock();
        assert_eq!(
            (kept.weight, kept.blocks.len()),
            (0, 0),
            "one that is larger than the budget is not kept"
        );
    }
}
