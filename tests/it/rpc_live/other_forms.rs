//! Responses of methods that op-geth lacks, on the recorded chains. Those of the namespaces `trace`
//! and `ots` are checked against blocks and receipts, the witness of a payload against its block.

use super::{Header, ImportedNode, WitnessState};
use crate::net::ask;
use alloy_primitives::Bytes;
use alloy_rlp::Decodable;
use serde_json::{Value, json};
use starling::chain::{block_rlp, execute::validate, rules::ChainSpec, trie::Witness};
use starling_proto::payload::Payload;
use std::{collections::BTreeMap, sync::Arc};

/// Number of blocks of a chain that are checked.
const BLOCKS: u64 = 300;
/// Number of contract creations, and number of nonces, that are searched for.
const SEARCHES: usize = 8;

/// The payload attributes from which a block can be built again.
fn attributes(payload: &Payload) -> Value {
    let header = &payload.header;
    let extra = &header.extra_data;
    let mut attributes = json!({
        "timestamp": format!("{:#x}", header.timestamp),
        "prevRandao": header.mix_hash,
        "suggestedFeeRecipient": header.beneficiary,
        "transactions": payload.transactions,
        "gasLimit": format!("{:#x}", header.gas_limit),
    });
    if header.withdrawals_root.is_some() {
        attributes["withdrawals"] = json!([]);
    }
    if let Some(root) = header.parent_beacon_block_root {
        attributes["parentBeaconBlockRoot"] = json!(root);
    }
    if extra.len() >= 9 {
        attributes["eip1559Params"] = json!(extra.slice(1..9));
    }
    if extra.len() >= 17 {
        let least = u64::from_be_bytes(extra[9..17].try_into().expect("eight bytes"));
        attributes["minBaseFee"] = json!(least);
    }
    attributes
}

/// Executes a block with no state except the witness of its attributes.
pub(super) fn check_payload(node: &ImportedNode, spec: &ChainSpec, block: &Value) {
    let raw = ask(&node.url, "debug_getRawBlock", json!([block]));
    let raw: Bytes = serde_json::from_value(raw).expect("bytes");
    let payload = block_rlp::decode(raw).expect("a block");
    let params = json!([payload.parent_hash(), attributes(&payload)]);
    let witness = ask(&node.url, "debug_executePayload", params);
    let bytes = |name: &str| -> Vec<Bytes> {
        serde_json::from_value(witness[name].clone()).expect("bytes")
    };
    let headers = bytes("headers");
    let parent = Header::decode(&mut headers[0].as_ref()).expect("the parent's header");
    assert_eq!(parent.hash_slow(), payload.parent_hash());
    let parts = [bytes("state"), bytes("codes"), headers].concat();
    let state = WitnessState {
        witness: Witness::new(parts),
        header: parent,
    };
    validate(spec, state, Arc::new(payload)).expect("the witness is complete");
}

/// A transaction with its receipt, as the `eth` namespace returns them.
struct TracedTransaction<'a> {
    tx: &'a Value,
    receipt: &'a Value,
}

impl TracedTransaction<'_> {
    /// Checks the frames of the transaction against its fields and its receipt.
    fn check(&self, frames: &[&Value]) {
        let Self { tx, receipt } = self;
        let root = frames.first().expect("a root frame");
        assert_eq!(root["traceAddress"], json!([]), "{root}");
        assert_eq!(root["action"]["from"], tx["from"], "{root}");
        assert_eq!(root["action"]["value"], tx["value"], "{root}");
        let failed = receipt["status"] == "0x0";
        assert_eq!(!root["error"].is_null(), failed, "{root}");
        if tx["to"].is_null() {
            assert_eq!(root["action"]["init"], tx["input"], "{root}");
            let address = &root["result"]["address"];
            assert!(failed || *address == receipt["contractAddress"], "{root}");
        } else {
            assert_eq!(root["action"]["to"], tx["to"], "{root}");
            assert_eq!(root["action"]["input"], tx["input"], "{root}");
        }
    }
}

/// Transactions that must be found by creator, and by sender and nonce.
#[derive(Default)]
struct Searched {
    creations: Vec<(Value, Value)>,
    nonces: BTreeMap<String, Value>,
}

impl Searched {
    fn note(&mut self, tx: &Value, receipt: &Value) {
        let created = &receipt["contractAddress"];
        if !created.is_null() && receipt["status"] == "0x1" && self.creations.len() < SEARCHES {
            self.creations.push((created.clone(), tx.clone()));
        }
        if tx["type"] != "0x7e" && self.nonces.len() < SEARCHES {
            let key = format!("{} {}", tx["from"], tx["nonce"]);
            self.nonces.insert(key, tx.clone());
        }
    }

    fn check(&self, url: &str) {
        for (created, tx) in &self.creations {
            let creator = ask(url, "ots_getContractCreator", json!([created]));
            let code = ask(url, "eth_getCode", json!([created, "latest"]));
            let want = json!({ "hash": tx["hash"], "creator": tx["from"] });
            assert_eq!(creator, if code == "0x" { Value::Null } else { want });
        }
        assert!(!self.nonces.is_empty());
        for tx in self.nonces.values() {
            let params = json!([tx["from"], tx["nonce"]]);
            let hash = ask(url, "ots_getTransactionBySenderAndNonce", params);
            assert_eq!(hash, tx["hash"]);
        }
    }
}

/// Checks a sample of the blocks up to number `head`.
pub(super) fn check(url: &str, head: u64) {
    let mut searched = Searched::default();
    let step = (head / BLOCKS).max(1);
    for block in (1..=head).step_by(step as usize) {
        let tag = format!("{block:#x}");
        let full = ask(url, "eth_getBlockByNumber", json!([tag, true]));
        let receipts = ask(url, "eth_getBlockReceipts", json!([tag]));
        let frames = ask(url, "trace_block", json!([tag]));
        let frames = frames.as_array().expect("frames");
        let page = ask(url, "ots_getBlockTransactions", json!([block, 0, 1000]));
        let transactions = full["transactions"].as_array().expect("transactions");
        assert_eq!(page["fullblock"]["transactionCount"], transactions.len());
        for (index, tx) in transactions.iter().enumerate() {
            let receipt = &receipts[index];
            let of_tx = frames.iter();
            let of_tx: Vec<_> = of_tx
                .filter(|frame| frame["transactionPosition"] == index)
                .collect();
            TracedTransaction { tx, receipt }.check(&of_tx);
            let inner = &page["fullblock"]["transactions"][index];
            assert_eq!(inner["hash"], tx["hash"]);
            searched.note(tx, receipt);
            if receipt["status"] == "0x0" {
                let error = ask(url, "ots_getTransactionError", json!([tx["hash"]]));
                let output = &of_tx[0]["result"]["output"];
                assert!(error == *output || output.is_null(), "{error} {output}");
            }
        }
    }
    searched.check(url);
    let last = format!("{head:#x}");
    let filter = json!([{ "fromBlock": last, "toBlock": last }]);
    let filtered = ask(url, "trace_filter", filter);
    assert_eq!(filtered, ask(url, "trace_block", json!([last])));
}
