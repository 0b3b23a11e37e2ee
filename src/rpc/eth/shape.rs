//! The JSON of blocks and transactions, field by field. It is written out instead of taken from a
//! library, because clients notice every difference: quantities have no leading zeros (not even `r`
//! and `s`), and `totalDifficulty` exists on OP chains only.

use crate::{
    chain::{pool::PoolTx, rules::block_bytes, transaction::ChainTx},
    rpc::decoded::Place,
};
use alloy_consensus::{Header, Transaction, Typed2718};
use alloy_eips::{eip2930::AccessList, eip4895::Withdrawal, eip7702::SignedAuthorization};
use alloy_primitives::{Address, B64, B256, Bloom, Bytes, U64, U128, U256};
use serde::Serialize;
use starling_proto::payload::Payload;

/// A header, as `newHeads` sends it. The JSON of a block begins with the same members.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderJson {
    pub number: U64,
    pub hash: B256,
    pub parent_hash: B256,
    pub nonce: B64,
    pub mix_hash: B256,
    pub sha3_uncles: B256,
    pub logs_bloom: Bloom,
    pub transactions_root: B256,
    pub state_root: B256,
    pub receipts_root: B256,
    pub miner: Address,
    pub difficulty: U256,
    pub extra_data: Bytes,
    pub gas_limit: U64,
    pub gas_used: U64,
    pub timestamp: U64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_fee_per_gas: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawals_root: Option<B256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blob_gas_used: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excess_blob_gas: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_beacon_block_root: Option<B256>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_hash: Option<B256>,
}

impl HeaderJson {
    pub fn new(hash: B256, header: &Header) -> Self {
        Self {
            number: U64::from(header.number),
            hash,
            parent_hash: header.parent_hash,
            nonce: header.nonce,
            mix_hash: header.mix_hash,
            sha3_uncles: header.ommers_hash,
            logs_bloom: header.logs_bloom,
            transactions_root: header.transactions_root,
            state_root: header.state_root,
            receipts_root: header.receipts_root,
            miner: header.beneficiary,
            difficulty: header.difficulty,
            extra_data: header.extra_data.clone(),
            gas_limit: U64::from(header.gas_limit),
            gas_used: U64::from(header.gas_used),
            timestamp: U64::from(header.timestamp),
            base_fee_per_gas: header.base_fee_per_gas.map(U64::from),
            withdrawals_root: header.withdrawals_root,
            blob_gas_used: header.blob_gas_used.map(U64::from),
            excess_blob_gas: header.excess_blob_gas.map(U64::from),
            parent_beacon_block_root: header.parent_beacon_block_root,
            requests_hash: header.requests_hash,
        }
    }
}

/// A block with its transactions as hashes or in full.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockJson {
    #[serde(flatten)]
    pub header: HeaderJson,
    /// Zero on OP chains; left out on Ethereum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_difficulty: Option<U64>,
    pub size: U64,
    pub transactions: TransactionsJson,
    pub uncles: Vec<B256>,
    /// Withdrawals, from Shanghai (Canyon) on; always empty on OP chains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawals: Option<Vec<Withdrawal>>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum TransactionsJson {
    Hashes(Vec<B256>),
    Full(Vec<TransactionJson>),
}

impl BlockJson {
    pub fn new(payload: &Payload, optimism: bool, transactions: TransactionsJson) -> Self {
        Self {
            header: HeaderJson::new(payload.hash, &payload.header),
            total_difficulty: optimism.then_some(U64::ZERO),
            size: U64::from(block_bytes(payload)),
            transactions,
            uncles: payload.uncles().iter().map(Header::hash_slow).collect(),
            withdrawals: (payload.header.withdrawals_root).map(|_| payload.withdrawals().to_vec()),
        }
    }
}

/// An uncle, of which only the header is known.
#[derive(Clone, Debug, Serialize)]
pub struct UncleJson {
    #[serde(flatten)]
    pub header: HeaderJson,
    pub size: U64,
    pub uncles: [B256; 0],
}

impl UncleJson {
    pub fn new(header: Header) -> Self {
        let payload = Payload::sealed(header, Vec::new());
        Self {
            header: HeaderJson::new(payload.hash, &payload.header),
            size: U64::from(block_bytes(&payload)),
            uncles: [],
        }
    }
}

/// A transaction of the chain, or of the pool with nulls for its position.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TransactionJson {
    #[serde(rename = "type")]
    pub ty: U64,
    pub hash: B256,
    pub block_hash: Option<B256>,
    pub block_number: Option<U64>,
    pub block_timestamp: Option<U64>,
    pub transaction_index: Option<U64>,
    pub from: Address,
    pub to: Option<Address>,
    pub nonce: U64,
    pub value: U256,
    pub gas: U64,
    /// Price paid per gas; for a pooled transaction, the fee cap.
    pub gas_price: U128,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_fee_per_gas: Option<U128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_priority_fee_per_gas: Option<U128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_fee_per_blob_gas: Option<U128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blob_versioned_hashes: Option<Vec<B256>>,
    pub input: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain_id: Option<U64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_list: Option<AccessList>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization_list: Option<Vec<SignedAuthorization>>,
    pub v: U128,
    pub r: U256,
    pub s: U256,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub y_parity: Option<U64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub deposit: Option<DepositJson>,
}

/// Additional fields of a deposit (type 0x7e).
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DepositJson {
    pub source_hash: B256,
    /// Zero if the deposit mints nothing: op-geth decodes the empty value in a block's RLP as 0.
    pub mint: U128,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_system_tx: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deposit_receipt_version: Option<U64>,
}

impl TransactionJson {
    /// The JSON of a transaction of the pool.
    pub fn pooled(pooled: &PoolTx) -> Self {
        Self::new(pooled.tx.inner(), pooled.tx.signer(), None)
    }

    /// The JSON of a transaction in a simulated block, whose signature is all zeros.
    pub fn unsigned(tx: &ChainTx, from: Address, place: &Place) -> Self {
        Self {
            v: U128::ZERO,
            ..Self::new(tx, from, Some(place))
        }
    }

    /// The JSON of a transaction. `place` is `None` for a transaction of the pool.
    pub fn new(tx: &ChainTx, from: Address, place: Option<&Place>) -> Self {
        let deposit = tx.as_deposit().map(|deposit| DepositJson {
            source_hash: deposit.source_hash,
            mint: U128::from(deposit.mint),
            is_system_tx: deposit.is_system_transaction,
            deposit_receipt_version: place.and_then(|place| place.deposit_version).map(U64::from),
        });
        let nonce = match deposit {
            Some(_) => place.and_then(|place| place.deposit_nonce).unwrap_or(0),
            None => tx.nonce(),
        };
        let (v, r, s) = match (tx.signature(), tx.as_legacy()) {
            (None, _) => Default::default(),
            (Some(signature), legacy) => {
                let parity = u128::from(signature.v());
                let v = match legacy {
                    // EIP-155, or 27 and 28 for a legacy transaction without a chain id.
                    Some(legacy) => {
                        legacy.chain_id().map_or(27, |id| u128::from(id) * 2 + 35) + parity
                    }
                    None => parity,
                };
                (v, signature.r(), signature.s())
            }
        };
        let dynamic = tx.is_dynamic_fee() && deposit.is_none();
        Self {
            ty: U64::from(tx.ty()),
            hash: tx.tx_hash(),
            block_hash: place.map(|place| place.block.hash),
            block_number: place.map(|place| U64::from(place.block.number)),
            block_timestamp: place.map(|place| U64::from(place.timestamp)),
            transaction_index: place.map(|place| U64::from(place.index)),
            from,
            to: tx.to(),
            nonce: U64::from(nonce),
            value: tx.value(),
            gas: U64::from(tx.gas_limit()),
            gas_price: U128::from(effective_gas_price(
                tx,
                place.and_then(|place| place.base_fee),
            )),
            max_fee_per_gas: dynamic.then(|| U128::from(tx.max_fee_per_gas())),
            max_priority_fee_per_gas: tx
                .max_priority_fee_per_gas()
                .filter(|_| dynamic)
                .map(U128::from),
            max_fee_per_blob_gas: tx.max_fee_per_blob_gas().map(U128::from),
            blob_versioned_hashes: tx.blob_versioned_hashes().map(<[_]>::to_vec),
            input: tx.input().clone(),
            chain_id: tx.chain_id().filter(|_| deposit.is_none()).map(U64::from),
            access_list: tx.access_list().cloned(),
            authorization_list: tx.authorization_list().map(<[_]>::to_vec),
            v: U128::from(v),
            r,
            s,
            y_parity: (tx.ty() != 0 && deposit.is_none()).then_some(U64::from(v)),
            deposit,
        }
    }
}

/// Price per gas that a transaction pays at this base fee, in wei; without a base fee, the fee cap.
/// Deposits pay nothing.
pub fn effective_gas_price(tx: &ChainTx, base_fee: Option<u64>) -> u128 {
    if tx.is_deposit() {
        return 0;
    }
    match base_fee {
        None => tx.max_fee_per_gas(),
        Some(_) => Transaction::effective_gas_price(tx, base_fee),
    }
}
