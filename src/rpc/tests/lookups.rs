//! Reads of blocks and state: raw transactions, uncles, slots of many accounts, and every form of
//! naming a block.

use super::chain::{CONTRACT, Chain, RICH, legacy};
use crate::{
    chain::{evm::Deadline, memory_only},
    rpc::{
        RpcContext,
        api::attempt_call,
        error::{Reply, RpcError, reply},
        eth::{blocks, state},
        params::Args,
    },
};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{B256, Bytes};
use serde_json::{Value, json, value::to_raw_value};
use starling_proto::fork::Fork;

/// Asserts the results of several methods, in order.
async fn assert_results<const N: usize>(chain: &Chain, cases: [(&str, Value, Value); N]) {
    for (method, params, expected) in cases {
        assert_eq!(
            chain.result(method, params.clone()).await,
            expected,
            "{method} {params}"
        );
    }
}

#[tokio::test]
async fn raw_transactions_are_found_by_hash_and_by_place() {
    let mut chain = Chain::new(Fork::Ecotone);
    let block = chain.add(&[(legacy(3), vec![])]);
    let hash = block.payload.hash;
    let raw = json!(Bytes::from(legacy(3).encoded_2718()));
    let tx = block.transaction_hashes()[1];
    let by_hash = "eth_getRawTransactionByHash";
    let by_number_and_index = "eth_getRawTransactionByBlockNumberAndIndex";
    let by_hash_and_index = "eth_getRawTransactionByBlockHashAndIndex";
    let cases = [
        (by_hash, json!([tx]), raw.clone()),
        (by_number_and_index, json!(["latest", "0x1"]), raw.clone()),
        (by_hash_and_index, json!([hash, "0x1"]), raw),
        (by_hash_and_index, json!([hash, "0x2"]), json!("0x")),
        (by_hash, json!([B256::ZERO]), json!("0x")),
    ];
    assert_results(&chain, cases).await;
}

#[tokio::test]
async fn blocks_have_no_uncles() {
    let mut chain = Chain::new(Fork::Ecotone);
    let hash = chain.add(&[]).payload.hash;
    let count_by_hash = "eth_getUncleCountByBlockHash";
    let cases = [
        (
            "eth_getUncleCountByBlockNumber",
            json!(["latest"]),
            json!("0x0"),
        ),
        (count_by_hash, json!([hash]), json!("0x0")),
        (count_by_hash, json!([B256::ZERO]), Value::Null),
        (
            "eth_getUncleByBlockNumberAndIndex",
            json!(["0x1", "0x0"]),
            Value::Null,
        ),
        (
            "eth_getUncleByBlockHashAndIndex",
            json!([hash, "0x0"]),
            Value::Null,
        ),
    ];
    assert_results(&chain, cases).await;
}

#[tokio::test]
async fn the_node_has_no_accounts_to_sign_with() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
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
}

#[tokio::test]
async fn the_base_fee_is_that_of_the_next_block() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[(legacy(3), vec![])]);
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

/// Names for the first block, if it is the head, safe and finalized.
const TAGS: [&str; 5] = ["latest", "pending", "safe", "finalized", "0x1"];

/// A chain whose only block after genesis is stored, safe and finalized. Returns the chain and the
/// hash of that block.
fn chain_with_all_tags() -> (Chain, B256) {
    let mut chain = Chain::new(Fork::Ecotone);
    let block = chain.add(&[]);
    let id = Some(block.payload.id());
    chain.store.commit(&chain.blocks, id, id).unwrap();
    let snapshot = chain.store.snapshot().unwrap();
    let view = crate::chain::view::View::new(snapshot, vec![], id, id).unwrap();
    *chain.view.lock() = std::sync::Arc::new(view);
    (chain, block.payload.hash)
}

/// Methods whose last parameter is a tag or an EIP-1898 object, with the parameters before it.
fn methods_of_a_state() -> [(&'static str, Vec<Value>); 10] {
    let call = || vec![json!({ "to": CONTRACT })];
    [
        ("eth_getBalance", vec![json!(RICH)]),
        ("eth_getTransactionCount", vec![json!(RICH)]),
        ("eth_getCode", vec![json!(CONTRACT)]),
        ("eth_getStorageAt", vec![json!(CONTRACT), json!("0x1")]),
        (
            "eth_getStorageValues",
            vec![json!({ CONTRACT.to_string(): [B256::ZERO] })],
        ),
        ("eth_getProof", vec![json!(CONTRACT), json!(["0x1"])]),
        ("eth_call", call()),
        ("eth_estimateGas", call()),
        ("eth_createAccessList", call()),
        ("eth_getBlockReceipts", vec![]),
    ]
}

#[tokio::test]
async fn methods_of_a_state_take_tags_and_objects() {
    let (chain, hash) = chain_with_all_tags();
    let objects = [
        json!({ "blockNumber": "0x1" }),
        json!({ "blockNumber": "latest" }),
        json!({ "blockHash": hash }),
        json!({ "blockHash": hash, "requireCanonical": true }),
        json!(hash),
    ];
    for (method, before) in methods_of_a_state() {
        let params =
            |block: &Value| Value::from([&before[..], std::slice::from_ref(block)].concat());
        let expected = chain.result(method, params(&json!("latest"))).await;
        for block in TAGS.map(Value::from).iter().chain(&objects) {
            assert_eq!(
                chain.result(method, params(block)).await,
                expected,
                "{method} at {block}"
            );
        }
        chain.result(method, params(&json!("earliest"))).await;
    }
}

#[tokio::test]
async fn methods_of_a_state_refuse_unknown_blocks_and_two_names() {
    let (chain, hash) = chain_with_all_tags();
    for (method, before) in methods_of_a_state() {
        let params =
            |block: &Value| Value::from([&before[..], std::slice::from_ref(block)].concat());
        let unknown = [
            (json!("0x2"), "header not found"),
            (json!({ "blockHash": B256::ZERO }), "header not found"),
        ];
        // For an unknown block, receipts are null instead of an error.
        for (block, message) in unknown.iter().filter(|_| method != "eth_getBlockReceipts") {
            assert_eq!(
                chain.error(method, params(block)).await,
                (-32000, (*message).into()),
                "{method} at {block}"
            );
        }
        let both = json!({ "blockHash": hash, "blockNumber": "0x1" });
        assert_eq!(
            chain.error(method, params(&both)).await.0,
            -32602,
            "{method}"
        );
    }
}

#[tokio::test]
async fn methods_of_a_block_number_take_tags() {
    let (chain, _) = chain_with_all_tags();
    let index = || vec![json!("0x0")];
    for (method, after) in [
        ("eth_getBlockByNumber", vec![json!(true)]),
        ("eth_getHeaderByNumber", vec![]),
        ("eth_getBlockTransactionCountByNumber", vec![]),
        ("eth_getUncleCountByBlockNumber", vec![]),
        ("eth_getTransactionByBlockNumberAndIndex", index()),
        ("eth_getRawTransactionByBlockNumberAndIndex", index()),
        ("eth_getUncleByBlockNumberAndIndex", index()),
    ] {
        let params = |block: &str| Value::from([&[json!(block)], &after[..]].concat());
        let expected = chain.result(method, params("latest")).await;
        for block in TAGS {
            assert_eq!(
                chain.result(method, params(block)).await,
                expected,
                "{method} at {block}"
            );
        }
        chain.result(method, params("earliest")).await;
    }
}

#[tokio::test]
async fn fee_history_and_logs_take_tags() {
    let (chain, _) = chain_with_all_tags();
    for tag in TAGS {
        chain
            .result("eth_feeHistory", json!(["0x1", tag, []]))
            .await;
        let logs = json!([{ "fromBlock": tag, "toBlock": tag }]);
        // op-geth has no logs of a pending block that is the latest one.
        if tag == "pending" {
            let error = chain.error("eth_getLogs", logs).await;
            assert_eq!(error.1, "pending logs are not supported");
        } else {
            chain.result("eth_getLogs", logs).await;
        }
    }
}

fn args(params: &Value) -> Args {
    let params = to_raw_value(params).unwrap();
    Args::parse(Some(&params)).unwrap()
}

#[test]
fn lookups_are_answered_from_memory_once_their_rows_are_cached() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    let balance = json!([RICH, "latest"]);
    let genesis = json!(["0x0", false]);
    type Lookup = fn(&RpcContext, Args) -> Reply;
    let cases: [(Lookup, Value); 2] = [
        (state::get_balance, balance),
        (blocks::get_block_by_number, genesis),
    ];
    for (method, params) in cases {
        let attempt = || memory_only::attempt(|| method(&chain.context, args(&params)));
        assert!(attempt().is_none(), "{params}: the rows are on disk");
        let reply = method(&chain.context, args(&params)).unwrap();
        let attempted = attempt().expect("all rows in memory").unwrap();
        assert_eq!(attempted.get(), reply.get(), "{params}");
    }
}

#[test]
fn blocks_with_full_transactions_are_never_made_on_a_connections_task() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[(legacy(3), vec![])]);
    let attempt = |full: bool| {
        let params = args(&json!(["latest", full]));
        memory_only::attempt(|| blocks::get_block_by_number(&chain.context, params))
    };
    assert!(attempt(false).is_some() && attempt(true).is_none());
}

fn fails_at_once(_: &RpcContext, _: Args, _: &Deadline) -> Reply {
    Err(RpcError::server("reverted"))
}

fn runs_until_its_deadline(_: &RpcContext, _: Args, deadline: &Deadline) -> Reply {
    loop {
        deadline.check()?;
    }
}

fn succeeds_late(_: &RpcContext, _: Args, deadline: &Deadline) -> Reply {
    while !deadline.passed() {}
    reply(1)
}

fn breaks(_: &RpcContext, _: Args, _: &Deadline) -> Reply {
    panic!("a toy that breaks")
}

#[test]
fn calls_that_take_long_are_repeated_elsewhere() {
    let chain = Chain::new(Fork::Ecotone);
    let attempt = |call| attempt_call("toy", call, &chain.context, &Args::default());
    let error = |reply: Option<Reply>| reply.expect("a reply").expect_err("an error").message;
    assert_eq!(error(attempt(fails_at_once)), "reverted");
    // To report the panic may take so long that the call is repeated.
    let broken = attempt(breaks).map(|reply| reply.unwrap_err().message);
    assert!(broken.is_none_or(|message| message == "method handler crashed"));
    assert!(attempt(runs_until_its_deadline).is_none());
    assert_eq!(attempt(succeeds_late).unwrap().unwrap().get(), "1");
    let large = args(&json!(["x".repeat(8 << 10)]));
    assert!(attempt_call("toy", fails_at_once, &chain.context, &large).is_none());
}
