//! The pool: its transactions by sender and nonce, and the limits that a batcher sets.

use super::{
    chain::{Chain, RICH},
    send::{SENDER, transfer},
};
use alloy_primitives::Address;
use serde_json::json;
use starling_proto::fork::Fork;

#[tokio::test]
async fn the_pool_is_shown_by_sender_and_nonce() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    let hash = chain
        .result("eth_sendRawTransaction", json!([transfer(0, 21_000)]))
        .await;
    let queued = chain
        .result("eth_sendRawTransaction", json!([transfer(2, 21_000)]))
        .await;
    let sender = SENDER.to_checksum(None);
    assert_ne!(sender, SENDER.to_string().to_lowercase());
    assert_eq!(
        chain.result("txpool_status", json!([])).await,
        json!({ "pending": "0x1", "queued": "0x1" })
    );
    let content = chain.result("txpool_content", json!([])).await;
    let first = &content["pending"][&sender]["0"];
    assert_eq!(
        *first,
        chain
            .result("eth_getTransactionByHash", json!([hash]))
            .await
    );
    assert_eq!(content["queued"][&sender]["2"]["hash"], queued);
    let of = chain.result("txpool_contentFrom", json!([SENDER])).await;
    assert_eq!(
        of,
        json!({ "pending": content["pending"][&sender], "queued": content["queued"][&sender] })
    );
    let none = chain.result("txpool_contentFrom", json!([RICH])).await;
    assert_eq!(none, json!({ "pending": {}, "queued": {} }));
    let inspect = chain.result("txpool_inspect", json!([])).await;
    let to = Address::repeat_byte(1).to_checksum(None);
    assert_eq!(
        inspect["pending"][&sender]["0"],
        format!("{to}: 0 wei + 21000 gas × 2000000 wei")
    );
    assert_eq!(
        chain.result("eth_pendingTransactions", json!([])).await,
        json!([])
    );
    let raw = chain
        .result("eth_getRawTransactionByHash", json!([hash]))
        .await;
    assert_eq!(raw, json!(transfer(0, 21_000)));
}

/// A chain that serves the namespace `miner`, which is not served by default.
fn miner_chain() -> Chain {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.serve(&["miner"]);
    chain
}

#[tokio::test]
async fn a_batcher_sets_the_data_limits_of_blocks() {
    let chain = miner_chain();
    let method = "miner_setMaxDASize";
    for (limits, max_tx_da, max_block_da) in [
        (json!(["0x12c", "0x5208"]), Some(300), Some(21_000)),
        (
            json!(["0x0", "0xffffffffffffffffffff"]),
            None,
            Some(u64::MAX),
        ),
    ] {
        assert_eq!(chain.result(method, limits).await, true);
        let settings = chain.context.chain.pool.miner();
        assert_eq!(
            (settings.max_tx_da, settings.max_block_da),
            (max_tx_da, max_block_da)
        );
    }
    assert_eq!(
        chain.error(method, json!(["0x1"])).await,
        (-32602, "missing value for required argument 1".into())
    );
}

#[tokio::test]
async fn an_operator_sets_the_tip_the_gas_limit_and_the_extra_data() {
    let chain = miner_chain();
    for (method, value) in [
        ("miner_setGasPrice", "0x3b9aca00"),
        ("miner_setGasLimit", "0x1c9c380"),
        ("miner_setExtra", "made here"),
    ] {
        assert_eq!(chain.result(method, json!([value])).await, true, "{method}");
    }
    let settings = chain.context.chain.pool.miner();
    assert_eq!(
        (settings.min_tip, settings.gas_limit),
        (Some(1_000_000_000), Some(30_000_000))
    );
    assert_eq!(settings.extra_data.as_ref(), b"made here");
    let long = chain
        .error(
            "miner_setExtra",
            json!(["a text of more than thirty-two bytes"]),
        )
        .await;
    assert_eq!(long, (-32000, "extra exceeds max length. 36 > 32".into()));
}

#[tokio::test]
async fn miner_is_served_only_where_it_is_named() {
    let chain = Chain::new(Fork::Isthmus);
    assert_eq!(
        chain
            .error("miner_setMaxDASize", json!(["0x0", "0x0"]))
            .await
            .0,
        -32601
    );
}
