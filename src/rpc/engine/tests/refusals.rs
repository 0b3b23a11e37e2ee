//! Error codes and texts of fork choices and attributes that are refused.

use super::*;
use crate::chain::evm::tests::deposit;
use alloy_primitives::Address;
use alloy_trie::root::ordered_trie_root_encoded;
use op_alloy_consensus::TxDeposit;
use op_alloy_rpc_types_engine::{OpExecutionPayload, OpExecutionPayloadV4};
use starling_proto::payload::{Payload, WirePayload};

/// A case of refused attributes: version of the method, attributes, code, message, and words of the
/// detail.
type RefusedAttributes = (u8, Value, i64, &'static str, &'static str);

/// Attributes of the first block with one field changed.
fn attributes_with(name: &str, value: Value) -> Value {
    let mut attributes = attributes(crate::chain::tests::GENESIS_TIME + 2);
    attributes[name] = value;
    attributes
}

/// Attributes of the first block with one field missing.
fn attributes_without(name: &str) -> Value {
    let mut attributes = attributes(crate::chain::tests::GENESIS_TIME + 2);
    attributes.as_object_mut().unwrap().remove(name);
    attributes
}

/// The L1 attributes, and a deposit of a kind that Regolith has abolished.
fn with_system_deposit() -> [Bytes; 2] {
    let system = TxDeposit {
        is_system_transaction: true,
        ..deposit(Address::ZERO, 100_000)
    };
    [deposited(l1_attributes(0)).1, deposited(system).1]
}

#[tokio::test]
async fn a_payload_with_a_system_deposit_is_invalid() {
    let server = Server::new();
    let built: OpExecutionPayloadV4 = read(&server.built_payload().await);
    let beacon_root = Some(B256::ZERO);
    let wire = WirePayload::from_execution_payload(OpExecutionPayload::V4(built), beacon_root);
    let mut block = wire.unwrap().into_payload().unwrap();
    block.transactions = with_system_deposit().into();
    block.header.transactions_root = ordered_trie_root_encoded(&block.transactions);
    let block = Payload::sealed(block.header, block.transactions);
    let payload = json!(block.to_execution_payload(PayloadVersion::V4));
    let params = json!([payload, [], B256::ZERO, []]);
    let status = server.ask("engine_newPayloadV4", params).await;
    assert_eq!(status["status"], "INVALID", "{status}");
    let error = status["validationError"].as_str().unwrap();
    assert!(error.contains("system tx not supported"), "{error}");
}

/// Attributes that belong to another version of the method.
fn of_another_version() -> Vec<RefusedAttributes> {
    let complete = || attributes(crate::chain::tests::GENESIS_TIME + 2);
    vec![
        (
            1,
            complete(),
            -32602,
            "Invalid parameters",
            "withdrawals and beacon root not supported in V1",
        ),
        (
            2,
            complete(),
            -38003,
            "Invalid payload attributes",
            "unexpected beacon root",
        ),
        (
            2,
            attributes_without("parentBeaconBlockRoot"),
            -38005,
            "Unsupported fork",
            "fcuV2 must",
        ),
    ]
}

/// Attributes with a field missing or wrong, each with words from the detail of the error.
fn invalid_attributes() -> Vec<RefusedAttributes> {
    [
        (attributes_without("withdrawals"), "missing withdrawals"),
        (
            attributes_without("parentBeaconBlockRoot"),
            "missing beacon root",
        ),
        (attributes_without("gasLimit"), "gasLimit is missing"),
        (
            attributes_without("eip1559Params"),
            "eip1559Params is missing",
        ),
        (attributes_without("minBaseFee"), "minBaseFee is missing"),
        (
            attributes_with("eip1559Params", json!("0x0000000000000001")),
            "denominator",
        ),
        (attributes_with("eip1559Params", json!("0x00")), "want 8"),
        (
            attributes_with("transactions", json!([])),
            "missing L1 attributes deposit transaction",
        ),
        (
            attributes_with("transactions", json!(["0x02c0"])),
            "transaction 0 is not valid",
        ),
        (
            attributes_with("transactions", json!(["0x7d"])),
            "transaction 0 is not valid",
        ),
        (attributes_with("timestamp", json!("0x1")), "timestamp"),
        (
            attributes_with("transactions", json!(with_system_deposit())),
            "system tx not supported",
        ),
    ]
    .map(|(attributes, detail)| (3, attributes, -38003, "Invalid payload attributes", detail))
    .into()
}

#[tokio::test]
async fn refused_attributes_have_the_codes_of_the_engine_api() {
    let server = Server::new();
    let hash = server.genesis_hash().await;
    let state = json!({ "headBlockHash": hash, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO });
    for (version, attributes, code, message, detail) in
        [of_another_version(), invalid_attributes()].concat()
    {
        let method = format!("engine_forkchoiceUpdatedV{version}");
        let refusal = server.refusal(&method, json!([state, attributes])).await;
        assert_eq!(
            (refusal.0, refusal.1.as_str()),
            (code, message),
            "{refusal:?}"
        );
        assert!(refusal.2.contains(detail), "{refusal:?}");
    }
}

#[tokio::test]
async fn an_unknown_safe_block_is_refused_and_a_zero_head_invalid() {
    let server = Server::new();
    let (hash, zero) = (server.genesis_hash().await, B256::ZERO);
    let lost = json!({ "headBlockHash": hash, "safeBlockHash": B256::repeat_byte(1), "finalizedBlockHash": zero });
    let refusal = server
        .refusal("engine_forkchoiceUpdatedV3", json!([lost]))
        .await;
    assert_eq!(
        refusal,
        (
            -38002,
            "Invalid forkchoice state".into(),
            "safe block not available in database".into()
        )
    );
    let none = json!({ "headBlockHash": zero, "safeBlockHash": zero, "finalizedBlockHash": zero });
    let response = server
        .ask("engine_forkchoiceUpdatedV3", json!([none]))
        .await;
    assert_eq!(
        response["payloadStatus"],
        json!({ "status": "INVALID", "latestValidHash": null, "validationError": null })
    );
}

#[tokio::test]
async fn too_many_bodies_and_ranges_that_are_none_are_refused() {
    let server = Server::new();
    let by_hash = "engine_getPayloadBodiesByHashV1";
    let by_range = "engine_getPayloadBodiesByRangeV1";
    for (method, params, code) in [
        (by_hash, json!([vec![B256::ZERO; 1025]]), -38004),
        (by_range, json!(["0x1", "0x401"]), -38004),
        (by_range, json!(["0x0", "0x1"]), -32602),
        (by_range, json!(["0x1", "0x0"]), -32602),
        (by_range, json!(["0x1"]), -32602),
    ] {
        let refusal = server.refusal(method, params).await;
        assert_eq!(refusal.0, code, "{method}: {refusal:?}");
    }
}

#[tokio::test]
async fn heads_move_before_attributes_are_refused() {
    for (name, wrong) in [
        ("eip1559Params", json!("0x00")),
        ("transactions", json!(["0x7d"])),
        ("timestamp", json!("0x1")),
    ] {
        let server = Server::new();
        let hash = server.genesis_hash().await;
        let state = json!({ "headBlockHash": hash, "safeBlockHash": hash, "finalizedBlockHash": B256::ZERO });
        let attributes = attributes_with(name, wrong);
        assert_eq!(
            server
                .refusal("engine_forkchoiceUpdatedV3", json!([state, attributes]))
                .await
                .0,
            -38003
        );
        assert_eq!(
            server
                .ask("eth_getBlockByNumber", json!(["safe", false]))
                .await["hash"],
            hash,
            "{name}"
        );
    }
}
