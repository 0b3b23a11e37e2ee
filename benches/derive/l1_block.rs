//! Synthetic L1 blocks with transactions of a batcher and of other users (the crowd). Block hashes,
//! transactions roots and receipts roots are correct; there is no state.

use super::crowd::{Crowd, encode_receipt, receipt_json};
use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, Eip658Value, Header, Receipt, TxEnvelope, constants::EMPTY_WITHDRAWALS,
};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, Bytes, U64, U256, keccak256};
use alloy_trie::root::ordered_trie_root_with_encoder;
use starling_proto::attributes::L1Block;
use std::sync::Arc;

/// Gas limit of an L1 block.
const GAS_LIMIT: u64 = 30_000_000;
/// Base fee of every L1 block, in wei.
const BASE_FEE: u64 = 1_000_000_000;

/// The batcher's transactions in one L1 block, and their blobs of 131,072 bytes in order.
#[derive(Clone, Default)]
pub struct Posting {
    pub transactions: Vec<TxEnvelope>,
    pub blobs: Vec<Bytes>,
}

impl Posting {
    /// Appends the transactions and blobs of another posting.
    pub fn append(&mut self, mut other: Posting) {
        self.transactions.append(&mut other.transactions);
        self.blobs.append(&mut other.blobs);
    }
}

/// A synthetic L1 block.
pub struct SyntheticBlock {
    pub block: L1Block,
    pub posting: Posting,
    header: Header,
    crowd: Arc<Crowd>,
}

impl SyntheticBlock {
    /// Builds the block after `parent` (if `None`, a genesis block) at `time` in Unix seconds.
    /// The crowd's transactions precede the batcher's.
    pub fn new(parent: Option<&Self>, time: u64, crowd: Arc<Crowd>, posting: Posting) -> Self {
        let posted = posting
            .transactions
            .iter()
            .map(|tx| Bytes::from(tx.encoded_2718()));
        let transactions: Vec<Bytes> = crowd.transactions.iter().cloned().chain(posted).collect();
        let mut receipts = crowd.receipts.clone();
        receipts
            .extend(posted_receipts(&crowd, &posting).map(|(receipt, ty, _)| encode(&receipt, ty)));
        let number = parent.map_or(0, |parent| parent.header.number + 1);
        let header = Header {
            parent_hash: parent.map_or(B256::ZERO, |parent| parent.block.hash),
            ommers_hash: EMPTY_OMMER_ROOT_HASH,
            transactions_root: root(&transactions),
            receipts_root: root(&receipts),
            state_root: keccak256(number.to_be_bytes()),
            logs_bloom: crowd.bloom,
            number,
            gas_limit: GAS_LIMIT,
            gas_used: crowd.gas_used,
            timestamp: time,
            mix_hash: keccak256(time.to_be_bytes()),
            base_fee_per_gas: Some(BASE_FEE),
            withdrawals_root: Some(EMPTY_WITHDRAWALS),
            blob_gas_used: Some(131_072 * posting.blobs.len() as u64),
            excess_blob_gas: Some(0),
            parent_beacon_block_root: Some(B256::with_last_byte(1)),
            difficulty: U256::ZERO,
            ..Default::default()
        };
        Self {
            block: reference(&header),
            posting,
            header,
            crowd,
        }
    }

    /// The block as a JSON-RPC object: with full transactions if `whole`, otherwise with their
    /// hashes.
    pub fn json(&self, whole: bool) -> String {
        let header = alloy_rpc_types_eth::Header::new(self.header.clone());
        let mut text = serde_json::to_string(&header).expect("a header has JSON");
        text.pop();
        text.push_str(r#","uncles":[],"withdrawals":[],"transactions":["#);
        let posted = self.posting.transactions.iter();
        if whole {
            let posted = posted.map(|tx| serde_json::to_string(tx).expect("JSON"));
            push_list(&mut text, &self.crowd.transactions_json, posted);
        } else {
            let hashes = posted.map(|tx| tx.tx_hash());
            let hashes = self.crowd.hashes.iter().chain(hashes);
            push_list(&mut text, "", hashes.map(|hash| format!("\"{hash}\"")));
        }
        text.push_str("]}");
        text
    }

    /// The receipts as a JSON-RPC list.
    pub fn receipts_json(&self) -> String {
        let mut text = "[".to_owned();
        let posted = posted_receipts(&self.crowd, &self.posting)
            .map(|(receipt, ty, hash)| receipt_json(&receipt.with_bloom(), ty, hash));
        push_list(&mut text, &self.crowd.receipts_json, posted);
        text.push(']');
        text
    }
}

/// Receipt, type and hash of each of the batcher's transactions, which are transfers without logs.
fn posted_receipts(crowd: &Crowd, posting: &Posting) -> impl Iterator<Item = (Receipt, u8, B256)> {
    let gas = crowd.gas_used;
    let posted = posting.transactions.iter().enumerate();
    posted.map(move |(index, transaction)| {
        let receipt = Receipt {
            status: Eip658Value::Eip658(true),
            cumulative_gas_used: gas + 21_000 * (index as u64 + 1),
            logs: vec![],
        };
        (receipt, transaction.tx_type() as u8, *transaction.tx_hash())
    })
}

fn encode(receipt: &Receipt, ty: u8) -> Bytes {
    encode_receipt(&receipt.clone().with_bloom(), ty)
}

/// Appends `first` and then the `others` as the items of a JSON list.
fn push_list(text: &mut String, first: &str, others: impl Iterator<Item = String>) {
    text.push_str(first);
    let mut is_first = first.is_empty();
    for item in others {
        if !std::mem::take(&mut is_first) {
            text.push(',');
        }
        text.push_str(&item);
    }
}

fn root(items: &[Bytes]) -> B256 {
    ordered_trie_root_with_encoder(items, |bytes, out| out.extend_from_slice(bytes))
}

fn reference(header: &Header) -> L1Block {
    L1Block {
        number: header.number,
        hash: header.hash_slow(),
        parent_hash: header.parent_hash,
        time: header.timestamp,
        base_fee: BASE_FEE,
        mix_hash: header.mix_hash,
        excess_blob_gas: header.excess_blob_gas,
        parent_beacon_root: header.parent_beacon_block_root,
        receipts_root: header.receipts_root,
        state_root: header.state_root,
    }
}

/// Parses a JSON-RPC quantity such as `"0x1f"`.
pub fn quantity(text: &str) -> Option<u64> {
    text.parse::<U64>().ok().map(|number| number.to())
}
