//! Transactions whose receipt is awaited, that have conditions, or that are found by their nonce;
//! and the subscription to receipts.

use super::{
    Api, Server, Setup,
    chain::{CONTRACT, Chain, legacy},
    heads::subscribe_with,
    send::{SENDER, transfer},
};
use crate::{
    chain::transaction::ChainTx,
    rpc::{
        TxRoute,
        bounds::SyncTimeouts,
        cost_gate::CostGate,
        error::{RpcError, reply},
        params::Args,
    },
};
use alloy_primitives::{B256, Bytes, keccak256};
use futures::{FutureExt, StreamExt};
use op_alloy_consensus::OpTxEnvelope;
use serde_json::{Value, json};
use starling_proto::fork::Fork;
use std::time::Duration;

fn decoded(raw: &Bytes) -> OpTxEnvelope {
    ChainTx::decode(raw).unwrap().as_op().unwrap().clone()
}

fn quickly(chain: Chain, default: u64) -> Chain {
    chain.with(|context| {
        context.bounds.sync_timeouts = SyncTimeouts {
            default: Duration::from_millis(default),
            most: Duration::from_millis(2 * default),
        }
    })
}

#[tokio::test]
async fn a_transaction_that_is_waited_for_returns_its_receipt() {
    let mut chain = quickly(Chain::new(Fork::Isthmus), 10_000);
    chain.add(&[]);
    let raw = transfer(0, 21_000);
    let hash = keccak256(&raw);
    let api = std::mem::take(&mut chain.api);
    let context = chain.context.clone();
    let params = serde_json::value::to_raw_value(&json!([raw])).unwrap();
    let method = api.method("eth_sendRawTransactionSync").unwrap();
    let client = crate::rpc::schedule::Client::Connection(1);
    let sent = tokio::spawn(method(Args::parse(Some(&params)).unwrap(), client));
    while context.chain.pool.get(&hash).is_none() {
        tokio::task::yield_now().await;
    }
    chain.add(&[]);
    assert!(!sent.is_finished(), "this block does not have it");
    chain.add(&[(decoded(&raw), vec![])]);
    let receipt: Value = serde_json::from_str(sent.await.unwrap().unwrap().get()).unwrap();
    assert_eq!(receipt["transactionHash"], json!(hash));
    assert_eq!(receipt["blockNumber"], "0x3");
}

#[tokio::test]
async fn a_transaction_that_is_not_mined_in_time_is_an_error_with_its_hash() {
    let mut chain = quickly(Chain::new(Fork::Isthmus), 30);
    chain.add(&[]);
    let raw = transfer(0, 21_000);
    let response = chain.ask("eth_sendRawTransactionSync", json!([raw])).await;
    assert_eq!(
        response["error"],
        json!({
            "code": 4,
            "message": "The transaction was added to the transaction pool but wasn't processed in 30ms",
            "data": keccak256(&raw),
        })
    );
    let known = chain
        .ask("eth_sendRawTransactionSync", json!([raw, 5]))
        .await;
    assert_eq!(known["error"]["message"], "already known");
}

fn conditional(chain: Chain, rate: u64) -> Chain {
    chain.with(|context| context.conditional_gate = Some(CostGate::new(rate, 1000)))
}

#[tokio::test]
async fn conditions_are_checked_before_a_transaction_is_admitted() {
    let method = "eth_sendRawTransactionConditional";
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    chain.add(&[]);
    let raw = transfer(0, 21_000);
    let off = chain.ask(method, json!([raw, {}])).await;
    assert_eq!(off["error"]["code"], -32601);
    let chain = conditional(chain, 5000);
    let slot = |value: u64| json!({ CONTRACT.to_string(): { B256::with_last_byte(1).to_string(): format!("0x{value:064x}") } });
    let many: serde_json::Map<String, Value> = (0..1000u64)
        .map(|key| (format!("0x{key:064x}"), json!(B256::ZERO)))
        .collect();
    let rejected = [
        (
            json!({ "knownAccounts": { CONTRACT.to_string(): many } }),
            -32005,
        ),
        (
            json!({ "blockNumberMin": "0x5", "blockNumberMax": "0x4" }),
            -32003,
        ),
        (json!({ "blockNumberMax": "0x1" }), -32003),
        (json!({ "timestampMin": "0xffffffff" }), -32003),
        (json!({ "knownAccounts": slot(0x39) }), -32003),
        (
            json!({ "knownAccounts": { CONTRACT.to_string(): B256::ZERO } }),
            -32003,
        ),
        (json!({ "timestampMin": 5 }), -32602),
    ];
    for (conditions, code) in rejected {
        let response = chain.ask(method, json!([raw, conditions])).await;
        assert_eq!(response["error"]["code"], code, "{response} {conditions}");
    }
    let met = json!({ "knownAccounts": slot(0x38), "blockNumberMin": "0x1", "timestampMax": "0xffffffff" });
    let hash = chain.result(method, json!([raw, met])).await;
    assert_eq!(hash, json!(keccak256(&raw)));
    let pooled = chain.context.chain.pool.get(&keccak256(&raw)).unwrap();
    assert_eq!(pooled.conditional.as_ref().unwrap().cost(), 4);
    let slow = conditional(Chain::new(Fork::Isthmus), 1);
    let costly =
        json!({ "knownAccounts": { CONTRACT.to_string(): B256::ZERO }, "timestampMin": "0x0" });
    let mut codes = Vec::new();
    for _ in 0..2 {
        let fill = json!({ "knownAccounts": { SENDER.to_string(): many_slots(990) } });
        let response = slow.ask(method, json!([raw, fill])).await;
        codes.push(response["error"]["code"].clone());
    }
    let response = slow.ask(method, json!([raw, costly])).await;
    assert_eq!(
        response["error"]["code"], -32003,
        "a check fails before it costs: {response}"
    );
    assert_eq!(codes[1], -32005, "{codes:?}");
}

fn many_slots(count: u64) -> serde_json::Map<String, Value> {
    (0..count)
        .map(|key| (format!("0x{key:064x}"), json!(B256::ZERO)))
        .collect()
}

#[tokio::test]
async fn conditions_go_to_the_sequencer_as_they_came() {
    let mut api = Api::default();
    api.insert("eth_sendRawTransactionConditional", |mut args| {
        async move {
            let raw: String = args.required()?;
            let crate::rpc::params::Json::<Value>(conditions) = args.required()?;
            if conditions["blockNumberMin"] != "0x1" {
                return Err(RpcError::server("not these"));
            }
            reply(keccak256(alloy_primitives::hex::decode(raw).unwrap()))
        }
        .boxed()
    });
    let server = Server::of(api, Setup::default()).await;
    let url = format!("http://{}", server.addrs.http.unwrap());
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    let chain = conditional(chain, 5000).with_route(TxRoute::sequencer(&url, false).unwrap());
    let raw = transfer(0, 21_000);
    let conditions = json!({ "blockNumberMin": "0x1" });
    let hash = chain
        .result(
            "eth_sendRawTransactionConditional",
            json!([raw, conditions]),
        )
        .await;
    assert_eq!(hash, json!(keccak256(&raw)));
    assert!(chain.context.chain.pool.get(&keccak256(&raw)).is_none());
}

#[tokio::test]
async fn transactions_are_found_by_sender_and_nonce() {
    let method = "eth_getTransactionBySenderAndNonce";
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    let raw = transfer(0, 21_000);
    chain.result("eth_sendRawTransaction", json!([raw])).await;
    let pending = chain.result(method, json!([SENDER, "0x0"])).await;
    assert_eq!(pending["hash"], json!(keccak256(&raw)));
    assert_eq!(pending["blockNumber"], Value::Null);
    assert_eq!(
        chain.result(method, json!([SENDER, "0x1"])).await,
        Value::Null
    );
    // Nonces that were used before the oldest kept state cannot be found.
    let (code, message) = chain
        .error(method, json!([super::chain::RICH, "0x3"]))
        .await;
    assert_eq!(code, -32000);
    assert!(message.contains("--gcmode=archive"), "{message}");
}

#[tokio::test]
async fn receipts_are_reported_by_block_and_only_those_that_are_wanted() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.add(&[]);
    let (wanted, other) = (transfer(0, 21_000), legacy(5));
    let subscribe = async |params| subscribe_with(&chain, "transactionReceipts", &params).await;
    let hashes = json!([{ "transactionHashes": [keccak256(&wanted)] }]);
    let mut all = subscribe(json!([])).await.unwrap();
    let mut some = subscribe(hashes).await.unwrap();
    let many = json!([{ "transactionHashes": vec![B256::ZERO; 201] }]);
    assert!(subscribe(many).await.is_err());
    chain.add(&[(other.clone(), vec![])]);
    chain.add(&[(other, vec![]), (decoded(&wanted), vec![])]);
    let receipts: Vec<Value> =
        serde_json::from_str(all.next().await.unwrap().unwrap().get()).unwrap();
    assert_eq!(receipts.len(), 2, "with the L1 attributes");
    let receipts: Vec<Value> =
        serde_json::from_str(all.next().await.unwrap().unwrap().get()).unwrap();
    assert_eq!(receipts.len(), 3);
    let receipts: Vec<Value> =
        serde_json::from_str(some.next().await.unwrap().unwrap().get()).unwrap();
    assert_eq!(receipts.len(), 1);
    assert_eq!(receipts[0]["transactionHash"], json!(keccak256(&wanted)));
    assert_eq!(receipts[0]["blockNumber"], "0x3");
}
