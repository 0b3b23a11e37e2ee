//! The `ots` namespace: the results that Otterscan reads.

use super::chain::{CONTRACT, Chain, RICH};
use alloy_primitives::{Address, B256, Bytes, Log, TxKind, U256, hex, keccak256};
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use serde_json::{Value, json};
use starling_proto::fork::Fork;

const SENDER: Address = Address::repeat_byte(0xd1);
const HEIR: Address = Address::repeat_byte(0x0e);

fn deposit(to: TxKind, value: u64, input: Bytes) -> OpTxEnvelope {
    TxDeposit {
        source_hash: keccak256(&input),
        from: SENDER,
        to,
        mint: 1_000_000,
        value: U256::from(value),
        gas_limit: 1_000_000,
        is_system_transaction: false,
        input,
    }
    .into()
}

/// Init code that sends all of its value to the heir, and then reverts with two bytes if `fails`.
fn giver(fails: bool) -> Bytes {
    let mut code = hex!("60006000600060003473").to_vec();
    code.extend_from_slice(HEIR.as_slice());
    code.extend_from_slice(&hex!("5af1"));
    if fails {
        code.extend_from_slice(&hex!("61beef6000526002601efd"));
    }
    code.into()
}

struct OtsChain {
    chain: Chain,
    /// Hashes of the transaction that sends the value, and of the one that fails.
    hashes: [B256; 2],
}

fn prepared() -> OtsChain {
    let mut chain = Chain::new(Fork::Isthmus);
    let log = Log::new_unchecked(CONTRACT, vec![], Bytes::from_static(&[1]));
    let transactions = [
        deposit(TxKind::Create, 5, giver(false)),
        deposit(TxKind::Create, 6, giver(true)),
    ];
    let hashes = transactions.each_ref().map(OpTxEnvelope::tx_hash);
    let block = transactions.map(|tx| (tx, vec![log.clone()]));
    chain.add(&block);
    chain.serve(&["ots"]);
    OtsChain { chain, hashes }
}

#[tokio::test]
async fn blocks_come_by_page_without_logs_and_long_inputs() {
    let OtsChain { chain, hashes } = prepared();
    let page = chain
        .result("ots_getBlockTransactions", json!([1, 0, 2]))
        .await;
    let block = &page["fullblock"];
    assert_eq!(block["transactionCount"], 3);
    let listed = block["transactions"].as_array().unwrap();
    let listed: Vec<_> = listed.iter().map(|tx| &tx["hash"]).collect();
    assert_eq!(json!(listed), json!(hashes));
    assert_eq!(block["transactions"][0]["input"], "0x60006000");
    for receipt in page["receipts"].as_array().unwrap() {
        assert_eq!(receipt["logs"], Value::Null);
        assert_eq!(receipt["logsBloom"], Value::Null);
        assert_eq!(receipt["timestamp"], block["timestamp"]);
    }
    let next = chain
        .result("ots_getBlockTransactions", json!(["0x1", 1, 2]))
        .await;
    assert_eq!(
        next["fullblock"]["transactions"].as_array().unwrap().len(),
        1
    );
    let beyond = json!([1, u64::MAX, 25]);
    let beyond = chain.result("ots_getBlockTransactions", beyond).await;
    assert_eq!(beyond["receipts"], json!([]));
    let details = chain.result("ots_getBlockDetails", json!([1])).await;
    assert_eq!(details["block"]["transactionCount"], 3);
    assert_eq!(details["block"].get("transactions"), None);
    assert_eq!(details["totalFees"], "0x0");
    assert_eq!(details["issuance"]["blockReward"], "0x0");
    let by_hash = json!([chain.head().hash]);
    assert_eq!(
        chain.result("ots_getBlockDetailsByHash", by_hash).await,
        details
    );
    for method in ["ots_getHeaderByNumber", "erigon_getHeaderByNumber"] {
        let header = chain.result(method, json!([1])).await;
        assert_eq!(header["hash"], json!(chain.head().hash));
        assert_eq!(chain.result(method, json!([9])).await, Value::Null);
    }
    chain
        .fails("ots_getBlockDetails", json!([9]), "header not found")
        .await;
}

#[tokio::test]
async fn transactions_are_run_again() {
    let OtsChain { chain, hashes } = prepared();
    let [gives, fails] = hashes;
    let calls = chain.result("ots_traceTransaction", json!([gives])).await;
    assert_eq!(calls[0]["type"], "CREATE");
    assert_eq!(
        calls[1],
        json!({ "type": "CALL", "depth": 1, "from": SENDER.create(0), "to": HEIR, "value": "0x5", "input": "0x", "output": "0x" })
    );
    let inner = chain
        .result("ots_getInternalOperations", json!([gives]))
        .await;
    let transfer = json!({ "type": 0, "from": SENDER.create(0), "to": HEIR, "value": "0x5" });
    assert_eq!(inner, json!([transfer]));
    // In this chain's receipts every transaction has succeeded, and the method relies on the
    // receipts.
    let error = chain
        .result("ots_getTransactionError", json!([fails]))
        .await;
    assert_eq!(error, "0x");
    let unknown = json!([B256::repeat_byte(7)]);
    for (method, none) in [
        ("ots_traceTransaction", Value::Null),
        ("ots_getInternalOperations", json!([])),
        ("ots_getTransactionError", Value::Null),
    ] {
        assert_eq!(
            chain.result(method, unknown.clone()).await,
            none,
            "{method}"
        );
    }
}

#[tokio::test]
async fn accounts_are_looked_up() {
    let OtsChain { chain, .. } = prepared();
    let has_code = async |params: Value| chain.result("ots_hasCode", params).await;
    assert_eq!(has_code(json!([CONTRACT, 1])).await, true);
    assert_eq!(has_code(json!([CONTRACT, chain.head().hash])).await, true);
    assert_eq!(has_code(json!([RICH, "latest"])).await, false);
    assert_eq!(chain.result("ots_getApiLevel", json!([])).await, 8);
    // These accounts are in the genesis state, so no transaction created them.
    for address in [CONTRACT, RICH] {
        let creator = chain
            .result("ots_getContractCreator", json!([address]))
            .await;
        assert_eq!(creator, Value::Null);
    }
    let nonce = json!([RICH, 7]);
    let none = chain
        .result("ots_getTransactionBySenderAndNonce", nonce)
        .await;
    assert_eq!(none, Value::Null);
    for method in [
        "ots_searchTransactionsBefore",
        "ots_searchTransactionsAfter",
    ] {
        let params = json!([RICH, 0, 25]);
        let (code, message) = chain.error(method, params).await;
        assert_eq!(code, -32000);
        assert!(message.contains("--index.addresses"), "{message}");
    }
}
