//! Reads of blocks and state: raw transactions, uncles, slots of many accounts, and every way to
//! name a block.

use super::chain::{CONTRACT, Chain, RICH, legacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, Bytes};
use serde_json::{Value, json};
use starling_proto::fork::Fork;

#[tokio::test]
async fn raw_transactions_and_uncles() {
    let mut chain = Chain::new(Fork::Ecotone);
    let block = chain.add(&[(legacy(3), vec![])]);
    let (hash, raw) = (
        block.payload.hash,
        json!(Bytes::from(legacy(3).encoded_2718())),
    );
    let tx = block.transaction_hashes()[1];
    assert_eq!(
        chain
            .result("eth_getRawTransactionByHash", json!([tx]))
            .await,
        raw
    );
    assert_eq!(
        chain
            .result(
                "eth_getRawTransactionByBlockNumberAndIndex",
                json!(["latest", "0x1"])
            )
            .await,
        raw
    );
    assert_eq!(
        chain
            .result(
                "eth_getRawTransactionByBlockHashAndIndex",
                json!([hash, "0x1"])
            )
            .await,
        raw
    );
    assert_eq!(
        chain
            .result(
                "eth_getRawTransactionByBlockHashAndIndex",
                json!([hash, "0x2"])
            )
            .await,
        "0x"
    );
    assert_eq!(
        chain
            .result("eth_getRawTransactionByHash", json!([B256::ZERO]))
            .await,
        "0x"
    );
    assert_eq!(
        chain
            .result("eth_getUncleCountByBlockNumber", json!(["latest"]))
            .await,
        "0x0"
    );
    assert_eq!(
        chain
            .result("eth_getUncleCountByBlockHash", json!([hash]))
            .await,
        "0x0"
    );
    assert_eq!(
        chain
            .result("eth_getUncleCountByBlockHash", json!([B256::ZERO]))
            .await,
        Value::Null
    );
    assert_eq!(
        chain
            .result("eth_getUncleByBlockNumberAndIndex", json!(["0x1", "0x0"]))
            .await,
        Value::Null
    );
    assert_eq!(
        chain
            .result("eth_getUncleByBlockHashAndIndex", json!([hash, "0x0"]))
            .await,
        Value::Null
    );
    for method in [
        "eth_sendTransaction",
        "eth_signTransaction",
        "eth_sign",
        "eth_resend",
    ] {
        assert_eq!(
            chain.error(method, json!([{ "from": RICH }])).await,
            (-32000, "unknown account".into())
        );
    }
    assert_eq!(chain.result("eth_blobBaseFee", json!([])).await, "0x1");
    let next = chain
        .result("eth_feeHistory", json!(["0x1", "latest", []]))
        .await["baseFeePerGas"][1]
        .clone();
    assert_eq!(chain.result("eth_baseFee", json!([])).await, next);
}

#[tokio::test]
async fn slots_of_many_accounts_at_once() {
    let chain = Chain::new(Fork::Ecotone);
    let wanted = json!({ CONTRACT.to_string(): [B256::with_last_byte(1), B256::ZERO], RICH.to_string(): [B256::ZERO] });
    let values = chain
        .result("eth_getStorageValues", json!([wanted, "latest"]))
        .await;
    let expected = json!({ CONTRACT.to_string().to_lowercase(): [B256::with_last_byte(0x38), B256::ZERO], RICH.to_string().to_lowercase(): [B256::ZERO] });
    assert_eq!(values, expected);
    assert_eq!(
        chain.error("eth_getStorageValues", json!([{}])).await,
        (-32602, "empty request".into())
    );
    let many = json!([{ CONTRACT.to_string(): vec![B256::ZERO; 1025] }]);
    assert_eq!(
        chain.error("eth_getStorageValues", many).await,
        (-32602, "too many slots (max 1024)".into())
    );
}

/// Every method that takes a block takes it in every form.
#[tokio::test]
async fn every_method_knows_every_name_of_a_block() {
    let mut chain = Chain::new(Fork::Ecotone);
    let block = chain.add(&[]);
    chain
        .store
        .commit(
            &chain.blocks,
            Some(block.payload.id()),
            Some(block.payload.id()),
        )
        .unwrap();
    let snapshot = chain.store.snapshot().unwrap();
    let view = crate::chain::view::View::new(
        snapshot,
        vec![],
        Some(block.payload.id()),
        Some(block.payload.id()),
    )
    .unwrap();
    *chain.view.lock() = std::sync::Arc::new(view);
    let hash = block.payload.hash;
    let tags = ["latest", "pending", "safe", "finalized", "0x1"].map(|tag| json!(tag));
    let objects = [
        json!({ "blockNumber": "0x1" }),
        json!({ "blockNumber": "latest" }),
        json!({ "blockHash": hash }),
        json!({ "blockHash": hash, "requireCanonical": true }),
        json!(hash),
    ];
    let call = json!({ "to": CONTRACT });
    // With a state: tags and EIP-1898 objects.
    for (method, before) in [
        ("eth_getBalance", vec![json!(RICH)]),
        ("eth_getTransactionCount", vec![json!(RICH)]),
        ("eth_getCode", vec![json!(CONTRACT)]),
        ("eth_getStorageAt", vec![json!(CONTRACT), json!("0x1")]),
        (
            "eth_getStorageValues",
            vec![json!({ CONTRACT.to_string(): [B256::ZERO] })],
        ),
        ("eth_getProof", vec![json!(CONTRACT), json!(["0x1"])]),
        ("eth_call", vec![call.clone()]),
        ("eth_estimateGas", vec![call.clone()]),
        ("eth_createAccessList", vec![call.clone()]),
        ("eth_getBlockReceipts", vec![]),
    ] {
        let params =
            |block: &Value| Value::from([&before[..], std::slice::from_ref(block)].concat());
        let expected = chain.result(method, params(&tags[0])).await;
        for block in tags.iter().chain(&objects) {
            assert_eq!(
                chain.result(method, params(block)).await,
                expected,
                "{method} at {block}"
            );
        }
        chain.result(method, params(&json!("earliest"))).await;
        if method != "eth_getBlockReceipts" {
            let unknown = [
                (json!("0x2"), "header not found"),
                (
                    json!({ "blockHash": B256::ZERO }),
                    "header for hash not found",
                ),
            ];
            for (block, message) in unknown {
                assert_eq!(
                    chain.error(method, params(&block)).await,
                    (-32000, message.into()),
                    "{method} at {block}"
                );
            }
        }
        let both = json!({ "blockHash": hash, "blockNumber": "0x1" });
        assert_eq!(
            chain.error(method, params(&both)).await.0,
            -32602,
            "{method}"
        );
    }
    // By number: tags.
    for (method, after) in [
        ("eth_getBlockByNumber", vec![json!(true)]),
        ("eth_getHeaderByNumber", vec![]),
        ("eth_getBlockTransactionCountByNumber", vec![]),
        ("eth_getUncleCountByBlockNumber", vec![]),
        (
            "eth_getTransactionByBlockNumberAndIndex",
            vec![json!("0x0")],
        ),
        (
            "eth_getRawTransactionByBlockNumberAndIndex",
            vec![json!("0x0")],
        ),
        ("eth_getUncleByBlockNumberAndIndex", vec![json!("0x0")]),
    ] {
        let params =
            |block: &Value| Value::from([std::slice::from_ref(block), &after[..]].concat());
        let expected = chain.result(method, params(&tags[0])).await;
        for block in &tags {
            assert_eq!(
                chain.result(method, params(block)).await,
                expected,
                "{method} at {block}"
            );
        }
        chain.result(method, params(&json!("earliest"))).await;
    }
    for tag in &tags {
        chain
            .result("eth_feeHistory", json!(["0x1", tag, []]))
            .await;
        chain
            .result("eth_getLogs", json!([{ "fromBlock": tag, "toBlock": tag }]))
            .await;
    }
}
