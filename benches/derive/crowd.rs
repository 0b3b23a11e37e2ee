//! Transactions of other users of L1, and their receipts: the bulk of an L1 block, irrelevant to
//! derivation.

use alloy_consensus::{
    Eip658Value, Receipt, ReceiptWithBloom, SignableTransaction, TxEip1559, TxEnvelope, TxReceipt,
};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bloom, Bytes, Log, Signature, U256, keccak256};
use alloy_rlp::Encodable;
use serde_json::{Value, json};

/// Bytes of calldata of each transaction.
const CALLDATA: usize = 400;
/// Transaction type of the whole crowd (EIP-1559).
const TYPE: u8 = 2;

/// A list of transactions that many L1 blocks share. The signatures are random bytes: the node only
/// checks that the transactions match the transactions root.
#[derive(Default)]
pub struct Crowd {
    /// Transactions in EIP-2718 encoding.
    pub transactions: Vec<Bytes>,
    pub hashes: Vec<B256>,
    /// Transactions as JSON-RPC objects, separated by commas.
    pub transactions_json: String,
    /// Receipts in the encoding of the receipts trie.
    pub receipts: Vec<Bytes>,
    pub receipts_json: String,
    pub bloom: Bloom,
    pub gas_used: u64,
}

impl Crowd {
    /// `gas` and `logs` are totals over all transactions.
    pub fn new(salt: u64, transactions: usize, logs: usize, gas: u64) -> Self {
        let mut random = CrowdValues(B256::left_padding_from(&salt.to_be_bytes()));
        let (mut crowd, mut objects, mut receipts) = (Self::default(), vec![], vec![]);
        for index in 0..transactions {
            let transaction = random.transaction(index as u64, gas / transactions as u64);
            crowd.hashes.push(*transaction.tx_hash());
            crowd.transactions.push(transaction.encoded_2718().into());
            objects.push(random.object(&transaction, index));
            crowd.gas_used += gas / transactions as u64;
            let share = logs * (index + 1) / transactions - logs * index / transactions;
            let receipt = Receipt {
                status: Eip658Value::Eip658(true),
                cumulative_gas_used: crowd.gas_used,
                logs: (0..share).map(|_| random.log()).collect(),
            };
            let receipt = receipt.with_bloom();
            crowd.bloom |= receipt.logs_bloom;
            receipts.push(receipt_json(&receipt, TYPE, *transaction.tx_hash()));
            crowd.receipts.push(encode_receipt(&receipt, TYPE));
        }
        crowd.transactions_json = objects.join(",");
        crowd.receipts_json = receipts.join(",");
        crowd
    }
}

/// The encoding of a receipt in the receipts trie.
pub fn encode_receipt(receipt: &ReceiptWithBloom<Receipt>, ty: u8) -> Bytes {
    let mut encoded = vec![ty];
    receipt.encode(&mut encoded);
    encoded.into()
}

/// The receipt as a JSON-RPC object.
pub fn receipt_json(receipt: &ReceiptWithBloom<Receipt>, ty: u8, hash: B256) -> String {
    let log = |log: &Log| {
        json!({
            "address": log.address, "topics": log.topics(), "data": log.data.data,
            "blockHash": B256::ZERO, "transactionHash": hash, "logIndex": "0x0", "removed": false,
        })
    };
    let logs: Vec<Value> = receipt.logs().iter().map(log).collect();
    json!({
        "type": format!("{ty:#x}"), "status": "0x1",
        "cumulativeGasUsed": format!("{:#x}", receipt.receipt.cumulative_gas_used),
        "logs": logs, "logsBloom": receipt.logs_bloom, "transactionHash": hash,
        "blockHash": B256::ZERO, "from": Address::ZERO, "gasUsed": "0x5208",
    })
    .to_string()
}

/// A generator of pseudo-random values, with the same sequence in every run.
struct CrowdValues(B256);

impl CrowdValues {
    fn word(&mut self) -> B256 {
        self.0 = keccak256(self.0);
        self.0
    }

    fn bytes(&mut self, len: usize) -> Bytes {
        let mut bytes = Vec::with_capacity(len + 32);
        while bytes.len() < len {
            bytes.extend_from_slice(self.word().as_slice());
        }
        bytes.truncate(len);
        bytes.into()
    }

    fn transaction(&mut self, nonce: u64, gas_limit: u64) -> TxEnvelope {
        let transaction = TxEip1559 {
            chain_id: super::L1_CHAIN_ID,
            nonce,
            gas_limit,
            max_fee_per_gas: 30_000_000_000,
            max_priority_fee_per_gas: 1_000_000_000,
            to: Address::from_word(self.word()).into(),
            value: U256::from(nonce),
            input: self.bytes(CALLDATA),
            ..Default::default()
        };
        let [r, s] = [self.word(), self.word()].map(|word| U256::from_be_bytes(word.0));
        TxEnvelope::from(transaction.into_signed(Signature::new(r, s >> 1, nonce % 2 == 1)))
    }

    /// The transaction as a JSON-RPC object inside a block.
    fn object(&mut self, transaction: &TxEnvelope, index: usize) -> String {
        let mut object = serde_json::to_value(transaction).expect("a transaction has JSON");
        object["blockHash"] = json!(B256::ZERO);
        object["blockNumber"] = json!("0x0");
        object["from"] = json!(Address::from_word(self.word()));
        object["gasPrice"] = json!("0x6fc23ac00");
        object["transactionIndex"] = json!(format!("{index:#x}"));
        object.to_string()
    }

    /// A log of one of many random contracts.
    fn log(&mut self) -> Log {
        let address = Address::from_word(self.word());
        let topics = (0..3).map(|_| self.word()).collect();
        Log::new_unchecked(address, topics, self.bytes(32))
    }
}
