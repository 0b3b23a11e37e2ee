//! The account of the batcher on L1: its transactions in blocks and in the pool, by geth's rules,
//! and the responses of an endpoint to the transaction manager.

use alloy_primitives::{B256, Bytes, keccak256};
use starling::machines::{FeeCaps, MinedTx, PublishResult};
use std::{collections::BTreeMap, time::Duration};

/// Percent by which a transaction must raise the fees of the one that it replaces.
const PRICE_BUMP: u128 = 10;

/// A transaction of the account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountTx {
    pub hash: B256,
    pub nonce: u64,
    pub caps: FeeCaps,
    /// The batcher's data; empty for a filler.
    pub data: Bytes,
}

impl AccountTx {
    pub fn new(nonce: u64, caps: FeeCaps, data: Bytes) -> Self {
        let words = [u128::from(nonce), caps.tip, caps.fee];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend_from_slice(&data);
        Self {
            hash: keccak256(bytes),
            nonce,
            caps,
            data,
        }
    }
}

/// The transactions of the account.
#[derive(Default)]
pub struct L1Account {
    /// Transactions in no block yet.
    pool: BTreeMap<u64, AccountTx>,
    /// Transactions by the hash of their block.
    blocks: BTreeMap<B256, Vec<AccountTx>>,
}

impl L1Account {
    /// The transactions of this block.
    pub fn of(&self, block: &B256) -> &[AccountTx] {
        self.blocks.get(block).map_or(&[], Vec::as_slice)
    }

    /// The next nonce after these blocks.
    pub fn nonce(&self, blocks: impl Iterator<Item = B256>) -> u64 {
        blocks.map(|block| self.of(&block).len() as u64).sum()
    }

    /// The next nonce after the pool's consecutive transactions from `latest` on.
    pub fn pending(&self, latest: u64) -> u64 {
        let is_free = |nonce: &u64| !self.pool.contains_key(nonce);
        (latest..).find(is_free).unwrap_or(latest)
    }

    /// Takes a transaction into the pool, by geth's rules. `latest` is the next nonce.
    pub fn publish(&mut self, tx: AccountTx, latest: u64) -> PublishResult {
        if tx.nonce < latest {
            return PublishResult::NonceTooLow;
        }
        if let Some(old) = self.pool.get(&tx.nonce) {
            if old.hash == tx.hash {
                return PublishResult::AlreadyKnown;
            }
            let raised = |old: u128, new: u128| new * 100 >= old * (100 + PRICE_BUMP) && new > old;
            if !raised(old.caps.tip, tx.caps.tip) || !raised(old.caps.fee, tx.caps.fee) {
                let message = "replacement transaction underpriced";
                return PublishResult::Underpriced(message.to_owned());
            }
        }
        self.pool.insert(tx.nonce, tx);
        PublishResult::Accepted
    }

    /// Moves transactions from the pool to a new block: consecutive ones from `latest` on that pay
    /// the base fee, as long as `included` allows.
    pub fn mine(
        &mut self,
        block: B256,
        latest: u64,
        base_fee: u128,
        mut included: impl FnMut() -> bool,
    ) {
        let mut mined: Vec<AccountTx> = Vec::new();
        let pays = |tx: &AccountTx| tx.caps.fee >= base_fee;
        for nonce in latest.. {
            if !self.pool.get(&nonce).is_some_and(pays) || !included() {
                break;
            }
            mined.extend(self.pool.remove(&nonce));
        }
        self.pool.retain(|nonce, _| *nonce >= latest);
        self.blocks.insert(block, mined);
    }

    /// Removes a block. Returns its transactions.
    pub fn remove(&mut self, block: &B256) -> Vec<AccountTx> {
        self.blocks.remove(block).unwrap_or_default()
    }

    /// Returns transactions of removed blocks to the pool.
    pub fn restore(&mut self, removed: Vec<AccountTx>) {
        for tx in removed {
            self.pool.entry(tx.nonce).or_insert(tx);
        }
    }
}

/// The receipt of a transaction in this block.
pub fn mined(tx: &AccountTx, number: u64, block: B256) -> MinedTx {
    MinedTx {
        hash: tx.hash,
        block: number,
        block_hash: block,
        success: true,
        gas_used: 21_000,
        gas_price: 1,
        blob_gas_used: 0,
        blob_gas_price: 0,
        delay: Duration::ZERO,
    }
}
