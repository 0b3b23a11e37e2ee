//! Shapes compared with responses of other clients: `fixtures/rpc-json` (OP) and
//! `fixtures/rpc-compat` (Ethereum).

use super::chain::Chain;
use crate::rpc::decoded::Place;
use crate::rpc::eth::shape::{BlockJson, HeaderJson, TransactionJson, TransactionsJson};
use alloy_consensus::{Header, transaction::SignerRecoverable};
use alloy_primitives::{B256, TxKind, U256};
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use starling_proto::{fork::Fork, payload::BlockId};
use starling_testkit::{fixture, fixture_text};
use std::fs;

/// The JSON responses in the exchanges that are recorded for one method.
fn responses(method: &str) -> Vec<Value> {
    let Some(folder) = fixture(&format!("rpc-compat/tests/{method}")) else {
        return vec![];
    };
    let mut responses = Vec::new();
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("<< "));
        responses.extend(
            lines.map(|line| serde_json::from_str::<Value>(line).unwrap()["result"].take()),
        );
    }
    responses.retain(|response| !response.is_null());
    assert!(!responses.is_empty(), "{method}");
    responses
}

fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn number(value: &Value) -> u64 {
    let text = value.as_str().unwrap();
    u64::from_str_radix(&text[2..], 16).unwrap()
}

#[test]
fn transactions_look_as_geth_prints_them() {
    for expected in responses("eth_getTransactionByHash") {
        let tx: OpTxEnvelope = read(&expected);
        // The response contains the effective price: choose the base fee that leads to this price.
        let base_fee = match expected.get("maxPriorityFeePerGas") {
            Some(tip) => number(&expected["gasPrice"]) - number(tip),
            None => 0,
        };
        let place = Place {
            block: BlockId {
                hash: read(&expected["blockHash"]),
                number: number(&expected["blockNumber"]),
            },
            timestamp: number(&expected["blockTimestamp"]),
            index: number(&expected["transactionIndex"]) as usize,
            base_fee: Some(base_fee),
            deposit_nonce: None,
            deposit_version: None,
        };
        let ours = TransactionJson::new(
            &tx.clone().into(),
            tx.recover_signer().unwrap(),
            Some(&place),
        );
        assert_eq!(serde_json::to_value(ours).unwrap(), expected);
    }
}

#[test]
fn headers_look_as_geth_prints_them() {
    for expected in responses("eth_getBlockByNumber") {
        let header: Header = read(&expected);
        let hash: B256 = read(&expected["hash"]);
        assert_eq!(header.hash_slow(), hash);
        let ours = serde_json::to_value(HeaderJson::new(hash, &header)).unwrap();
        let mut rest = expected.as_object().unwrap().clone();
        for (name, value) in ours.as_object().unwrap() {
            assert_eq!(rest.remove(name).as_ref(), Some(value), "{name}");
        }
        // The remaining members come from the body.
        let payload = starling_proto::payload::Payload::sealed(header, vec![]);
        let block = BlockJson::new(&payload, false, TransactionsJson::Hashes(vec![]));
        let block = serde_json::to_value(block).unwrap();
        assert!(
            rest.keys().all(|name| block.get(name).is_some()),
            "{:?}",
            rest.keys()
        );
    }
}

#[test]
fn receipts_have_the_members_of_geths() {
    // Receipts from before Byzantium, which have a root in place of a status, are left out.
    for expected in responses("eth_getTransactionReceipt")
        .into_iter()
        .filter(|receipt| receipt.get("root").is_none())
    {
        let mut keys: Vec<_> = expected
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        keys.retain(|key| !key.starts_with("blobGas"));
        assert_eq!(keys, super::values::sorted(&[super::values::RECEIPT]));
        for log in expected["logs"].as_array().unwrap() {
            let keys: Vec<_> = log
                .as_object()
                .unwrap()
                .keys()
                .map(String::as_str)
                .collect();
            let ours = "address topics data blockNumber transactionHash transactionIndex blockHash blockTimestamp logIndex removed";
            assert_eq!(keys, super::values::sorted(&[ours]));
        }
    }
}

#[test]
fn deposits_look_as_op_clients_print_them() {
    let Some(text) = fixture_text("rpc-json/op-deposit-tx-compat.json") else {
        return;
    };
    let file: Value = serde_json::from_str(&text).unwrap();
    let literals = file["literals"].as_array().unwrap();
    assert!(!literals.is_empty());
    for literal in literals {
        let mut expected = literal["json"].clone();
        let deposit = TxDeposit {
            source_hash: read(&expected["sourceHash"]),
            from: read(&expected["from"]),
            to: TxKind::Call(read(&expected["to"])),
            mint: 0,
            value: read::<U256>(&expected["value"]),
            gas_limit: number(&expected["gas"]),
            is_system_transaction: false,
            input: read(&expected["input"]),
        };
        let from = deposit.from;
        let place = Place {
            block: BlockId {
                hash: read(&expected["blockHash"]),
                number: number(&expected["blockNumber"]),
            },
            timestamp: 1,
            index: number(&expected["transactionIndex"]) as usize,
            base_fee: Some(1),
            deposit_nonce: Some(number(&expected["nonce"])),
            deposit_version: Some(number(&expected["depositReceiptVersion"])),
        };
        let ours = TransactionJson::new(&OpTxEnvelope::from(deposit).into(), from, Some(&place));
        assert_eq!(
            expected["mint"], "0x0",
            "printed where nothing is minted, too"
        );
        // The recorded response is older than the member `blockTimestamp`.
        expected["blockTimestamp"] = json!("0x1");
        assert_eq!(serde_json::to_value(ours).unwrap(), expected);
    }
}

#[tokio::test]
async fn deposit_receipts_have_the_members_of_a_real_one() {
    let Some(text) = fixture_text("rpc-json/op-receipt-real.json") else {
        return;
    };
    let file: Value = serde_json::from_str(&text).unwrap();
    let mut chain = Chain::new(Fork::Jovian);
    chain.add(&[]);
    let ours = chain
        .result("eth_getBlockReceipts", json!(["latest"]))
        .await;
    for name in file["literals"][0]["json"].as_object().unwrap().keys() {
        assert!(ours[0].get(name).is_some(), "{name} is missing");
    }
}

/// The shape of a response. Objects are reduced to their members, lists to their first element, and
/// texts to whether they are quantities or data.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(members) => members
            .iter()
            .map(|(name, member)| (name.clone(), shape(member)))
            .collect(),
        Value::Array(list) => list.first().map(shape).into_iter().collect(),
        Value::String(text) if text.starts_with("0x") && text.len() >= 42 => {
            json!(text.len().min(66))
        }
        Value::String(text) if text.starts_with("0x") => json!("quantity"),
        Value::String(_) => json!("text"),
        other => other.clone(),
    }
}

#[tokio::test]
async fn access_lists_proofs_and_storage_values_have_the_shapes_of_geths() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    let contract = super::chain::CONTRACT;
    let code = json!({ contract.to_string(): { "code": "0x600054506001545060006000fd" } });
    let call = json!({ "to": contract });
    let list = chain
        .result("eth_createAccessList", json!([call, "latest", code]))
        .await;
    let proof = chain
        .result("eth_getProof", json!([contract, ["0x01"], "latest"]))
        .await;
    let values = chain
        .result(
            "eth_getStorageValues",
            json!([{ contract.to_string(): [B256::ZERO] }, "latest"]),
        )
        .await;
    let ours = [
        ("eth_createAccessList", list),
        ("eth_getProof", proof),
        ("eth_getStorageValues", values),
    ];
    for (method, ours) in &ours {
        for theirs in responses(method) {
            let (mut ours, mut theirs) = (shape(ours), shape(&theirs));
            match *method {
                // A call that succeeds has no error.
                "eth_createAccessList" if theirs.get("error").is_none() => {
                    drop(ours.as_object_mut().unwrap().remove("error"))
                }
                // Some recorded requests name no slots.
                "eth_getProof" if theirs["storageProof"] == json!([]) => {
                    ours["storageProof"] = json!([])
                }
                // The result is keyed by address.
                "eth_getStorageValues" => {
                    ours = ours.as_object().unwrap().values().next().unwrap().clone();
                    theirs = theirs.as_object().unwrap().values().next().unwrap().clone();
                }
                _ => {}
            }
            assert_eq!(ours, theirs, "{method}");
        }
    }
}

#[tokio::test]
async fn the_pools_status_and_the_capabilities_have_the_shapes_of_geths() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    let status = chain.result("txpool_status", json!([])).await;
    assert!(
        responses("txpool_status")
            .iter()
            .all(|theirs| shape(theirs) == shape(&status))
    );
    let capabilities = chain.result("eth_capabilities", json!([])).await;
    for mut theirs in responses("eth_capabilities") {
        // geth deletes old logs and names its strategy; this node deletes no logs.
        theirs["logs"]
            .as_object_mut()
            .unwrap()
            .remove("deleteStrategy");
        assert_eq!(shape(&capabilities), shape(&theirs));
    }
}

#[tokio::test]
async fn a_pooled_transaction_has_the_fields_of_geths() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    chain
        .result(
            "eth_sendRawTransaction",
            json!([super::send::transfer(0, 21_000)]),
        )
        .await;
    let pooled = chain
        .result("txpool_contentFrom", json!([super::send::SENDER]))
        .await["pending"]["0"]
        .clone();
    for theirs in responses("txpool_content") {
        let theirs = theirs["pending"]
            .as_object()
            .unwrap()
            .values()
            .flat_map(|account| account.as_object().unwrap().values());
        let keys = |tx: &Value| tx.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let mut legacy = theirs.filter(|tx| tx["type"] == "0x0").map(keys).peekable();
        assert!(legacy.peek().is_some() && legacy.all(|names| names == keys(&pooled)));
    }
}
