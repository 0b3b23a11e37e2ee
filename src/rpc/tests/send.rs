//! Transactions that wallets send: forwarded to the sequencer unchanged, or added to our own pool.

use super::{
    Api, Server, Setup,
    chain::{Chain, ask_of},
};
use crate::{
    chain::{
        kzg,
        tests::blobs::{L1Forks, blob, mine, raw, submit, test_l1},
    },
    rollup::http_fake::{Canned, CannedServer},
    rpc::{NAMESPACES, Reader, RpcContext, TxRoute, error::RpcError, params::Args},
};
use alloy_consensus::{SignableTransaction, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, Bytes, Signature, TxKind, U256, hex};
use futures::FutureExt;
use op_alloy_consensus::{OpTxEnvelope, TxDeposit};
use parking_lot::Mutex;
use secp256k1::{Message, SECP256K1, SecretKey};
use serde_json::{Value, json};
use starling_proto::fork::Fork;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// A signed transfer from the account that the chain of these tests funds.
pub fn transfer(nonce: u64, gas_limit: u64) -> Bytes {
    let to = TxKind::Call(Address::repeat_byte(1));
    let tx = TxLegacy {
        chain_id: Some(901),
        nonce,
        gas_price: 2_000_000,
        gas_limit,
        to,
        ..Default::default()
    };
    let key = SecretKey::from_slice(&[0x11; 32]).unwrap();
    let message = Message::from_digest(tx.signature_hash().0);
    let (recovery, bytes) = SECP256K1
        .sign_ecdsa_recoverable(&message, &key)
        .serialize_compact();
    let signature = Signature::from_bytes_and_parity(&bytes, i32::from(recovery) == 1);
    OpTxEnvelope::from(tx.into_signed(signature))
        .encoded_2718()
        .into()
}

/// The sender of [`transfer`].
pub const SENDER: Address = Address::new(hex!("19e7e376e7c213b7e7e7e46cc70a5dd086daff2a"));

/// A sequencer that responds with the result of `respond` and counts its calls.
async fn sequencer(
    respond: impl Fn(String) -> Result<Value, RpcError> + Send + Sync + 'static,
) -> (Server, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let mut api = Api::default();
    api.insert("eth_sendRawTransaction", move |mut args: Args| {
        counted.fetch_add(1, Ordering::Relaxed);
        let reply = args
            .required()
            .and_then(&respond)
            .and_then(crate::rpc::error::reply);
        async { reply }.boxed()
    });
    (Server::of(api, Setup::default()).await, calls)
}

async fn replica(url: &str) -> Chain {
    Chain::new(Fork::Ecotone).with_route(TxRoute::sequencer(url, false).unwrap())
}

fn url(server: &Server) -> String {
    format!("http://{}", server.addrs.http.unwrap())
}

#[tokio::test]
async fn the_sequencers_result_is_returned_unchanged() {
    let (server, _) = sequencer(|raw| Ok(json!({ "got": raw }))).await;
    let raw = transfer(0, 21_000);
    let response = replica(&url(&server))
        .await
        .result("eth_sendRawTransaction", json!([raw]))
        .await;
    assert_eq!(response, json!({ "got": raw }));
}

#[tokio::test]
async fn the_sequencers_error_is_returned_unchanged() {
    let (server, _) = sequencer(|_| {
        let data = Some(serde_json::value::to_raw_value(&json!({ "by": ["sequencer"] })).unwrap());
        Err(RpcError {
            data,
            ..RpcError::new(-38_123, "not \"today\"")
        })
    })
    .await;
    let response = replica(&url(&server))
        .await
        .ask("eth_sendRawTransaction", json!([transfer(0, 21_000)]))
        .await;
    let error =
        json!({ "code": -38_123, "message": "not \"today\"", "data": { "by": ["sequencer"] } });
    assert_eq!(response["error"], error);
}

#[tokio::test]
async fn a_sequencer_that_is_not_there_is_an_error_with_its_cause() {
    let (server, _) = sequencer(|_| Ok(Value::Null)).await;
    let (gone, token) = (url(&server), server.token.clone());
    token.cancel();
    server.running.await.unwrap();
    let (code, message) = replica(&gone)
        .await
        .error("eth_sendRawTransaction", json!([transfer(0, 21_000)]))
        .await;
    assert!(
        code == -32000 && message.starts_with("the sequencer could not be reached: "),
        "{code} {message}"
    );
}

/// A sequencer behind a proxy that compresses, and a URL that is none.
#[tokio::test]
async fn a_sequencers_reply_in_gzip_is_read_and_its_url_is_not_shown() {
    let reply = r#"{"jsonrpc":"2.0","id":1,"result":"0x07"}"#;
    let server = CannedServer::start(move |_| Canned::gzip(reply)).await;
    let params = json!([transfer(0, 21_000)]);
    let chain = replica(&server.url()).await;
    assert_eq!(chain.result("eth_sendRawTransaction", params).await, "0x07");
    let route = TxRoute::sequencer("http://user:hush@host/hush", false).unwrap();
    assert!(!format!("{route:?}").contains("hush"), "{route:?}");
    let error = TxRoute::sequencer("ftp://user:hush@host/hush", false).unwrap_err();
    assert!(!error.contains("hush"), "{error}");
}

#[tokio::test]
async fn what_no_wallet_may_send_does_not_reach_the_sequencer() {
    let (server, calls) = sequencer(|_| Ok(Value::Null)).await;
    let chain = replica(&url(&server)).await;
    let deposit = Bytes::from(OpTxEnvelope::from(TxDeposit::default()).encoded_2718());
    for (raw, message) in [
        (deposit, "transaction type not supported"),
        (
            Bytes::from_static(&[3, 0xc0]),
            "transaction type not supported",
        ),
        (
            Bytes::from_static(&[0x7d, 0xc0]),
            "transaction type not supported",
        ),
        (
            vec![0xc0; 128 * 1024 + 1].into(),
            "oversized data: transaction size 131073, limit 131072",
        ),
    ] {
        assert_eq!(
            chain.error("eth_sendRawTransaction", json!([raw])).await,
            (-32000, message.to_owned())
        );
    }
    assert_eq!(
        chain
            .error("eth_sendRawTransaction", json!(["0xc1"]))
            .await
            .0,
        -32000
    );
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn what_the_sequencer_took_is_kept_if_that_is_wanted() {
    let (server, _) = sequencer(|raw| {
        if raw == transfer(1, 21_000).to_string() {
            Err(RpcError::server("nonce too high"))
        } else {
            Ok(json!("taken"))
        }
    })
    .await;
    for (admit, nonce) in [(true, "0x1"), (false, "0x0")] {
        let mut replica =
            Chain::new(Fork::Ecotone).with_route(TxRoute::sequencer(&url(&server), admit).unwrap());
        replica.add(&[]);
        let raw = transfer(0, 21_000);
        let pooled = json!([alloy_primitives::keccak256(&raw)]);
        assert_eq!(
            replica.result("eth_sendRawTransaction", json!([raw])).await,
            "taken"
        );
        assert_eq!(
            replica
                .result("eth_getTransactionCount", json!([SENDER, "pending"]))
                .await,
            nonce
        );
        assert_eq!(
            replica
                .result("eth_getTransactionByHash", pooled)
                .await
                .is_object(),
            admit
        );
        // The sequencer decides: a transaction that only our pool refuses is accepted, and a
        // transaction that the sequencer refuses is not kept.
        assert_eq!(
            replica.result("eth_sendRawTransaction", json!([raw])).await,
            "taken"
        );
        assert_eq!(
            replica
                .result("eth_sendRawTransaction", json!([transfer(2, 20_000)]))
                .await,
            "taken"
        );
        assert_eq!(
            replica
                .error("eth_sendRawTransaction", json!([transfer(1, 21_000)]))
                .await
                .1,
            "nonce too high"
        );
        assert_eq!(
            replica
                .result("eth_getTransactionCount", json!([SENDER, "pending"]))
                .await,
            nonce
        );
    }
}

#[tokio::test]
async fn without_a_sequencer_transactions_enter_the_pool() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    let raw = transfer(0, 21_000);
    let hash = chain.result("eth_sendRawTransaction", json!([raw])).await;
    assert_eq!(hash, json!(alloy_primitives::keccak256(&raw)));
    // A pooled transaction has nulls for its position, and counts for the nonce under `pending`.
    let pooled = chain
        .result("eth_getTransactionByHash", json!([hash]))
        .await;
    assert_eq!(
        (&pooled["from"], &pooled["gasPrice"]),
        (&json!(SENDER), &json!("0x1e8480"))
    );
    for absent in [
        "blockHash",
        "blockNumber",
        "blockTimestamp",
        "transactionIndex",
    ] {
        assert_eq!(pooled[absent], Value::Null, "{absent}");
    }
    assert_eq!(
        chain
            .result("eth_getTransactionReceipt", json!([hash]))
            .await,
        Value::Null
    );
    assert_eq!(
        chain
            .result("eth_getTransactionCount", json!([SENDER, "pending"]))
            .await,
        "0x1"
    );
    assert_eq!(
        chain
            .result("eth_getTransactionCount", json!([SENDER, "latest"]))
            .await,
        "0x0"
    );
    assert_eq!(
        chain.error("eth_sendRawTransaction", json!([raw])).await,
        (-32000, "already known".into())
    );
    let (code, message) = chain
        .error("eth_sendRawTransaction", json!([transfer(1, 20_000)]))
        .await;
    assert_eq!(
        (code, message.as_str()),
        (
            -32000,
            "intrinsic gas too low: gas 20000, minimum needed 21000"
        )
    );
}

#[tokio::test]
async fn the_l1_fee_counts_at_admission() {
    // The account of these tests can pay for gas, but not for gas and the L1 data fee.
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    let gas = super::chain::FUNDS / U256::from(2_000_000);
    let raw = transfer(0, gas.to());
    let (code, message) = chain.error("eth_sendRawTransaction", json!([raw])).await;
    let start = format!(
        "insufficient funds for gas * price + value: balance {}, tx cost ",
        super::chain::FUNDS
    );
    assert!(code == -32000 && message.starts_with(&start), "{message}");
}

/// A chain whose pool has the sender's transactions with the nonces 0, 1, 2 and 9.
async fn chain_with_pending() -> Chain {
    let mut chain = Chain::new(Fork::Jovian);
    chain.add(&[]);
    for nonce in [0, 1, 2, 9] {
        chain
            .result("eth_sendRawTransaction", json!([transfer(nonce, 21_000)]))
            .await;
    }
    chain
}

/// Only transactions that could be mined now count, so a nonce gap ends the count.
#[tokio::test]
async fn the_pending_nonce_counts_pooled_transactions_up_to_a_gap() {
    let chain = chain_with_pending().await;
    for (block, count) in [
        (json!("pending"), "0x3"),
        (json!({ "blockNumber": "pending" }), "0x3"),
        (json!("latest"), "0x0"),
    ] {
        assert_eq!(
            chain
                .result("eth_getTransactionCount", json!([SENDER, block]))
                .await,
            count,
            "{block}"
        );
    }
    assert_eq!(
        chain.result("txpool_status", json!([])).await,
        json!({ "pending": "0x3", "queued": "0x1" })
    );
}

#[tokio::test]
async fn the_pending_block_is_the_head() {
    let chain = chain_with_pending().await;
    let contract = super::chain::CONTRACT;
    let number = json!({ contract.to_string(): { "code": "0x4360005260206000f3" } });
    let calls = |tag: &str| {
        let call = json!([{ "to": contract }, tag, number]);
        [
            ("eth_getBlockByNumber", json!([tag, true])),
            ("eth_getBlockTransactionCountByNumber", json!([tag])),
            ("eth_getBlockReceipts", json!([tag])),
            ("eth_getBalance", json!([SENDER, tag])),
            ("eth_getCode", json!([contract, tag])),
            ("eth_call", call.clone()),
            ("eth_estimateGas", call),
        ]
    };
    for ((method, pending), (_, latest)) in calls("pending").into_iter().zip(calls("latest")) {
        let response = chain.result(method, pending).await;
        assert_eq!(response, chain.result(method, latest).await, "{method}");
        assert!(!response.is_null(), "{method}");
    }
    // op-geth has no logs of a pending block that is the latest one.
    let pending = json!([{ "fromBlock": "pending", "toBlock": "pending" }]);
    let error = chain.error("eth_getLogs", pending).await;
    assert_eq!(error.1, "pending logs are not supported");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_transaction_follows_those_that_a_block_takes_during_its_admission() {
    let (_datadir, chain, threads) = test_l1(L1Forks::default());
    let sidecar = kzg::sidecar(vec![blob(1)]).unwrap();
    submit(&chain, raw(1, 0, sidecar.clone())).unwrap();
    let before = chain.view();
    mine(&chain, 12).await;
    // A request begins with the view from before the block.
    let mut reader = Reader::from(&chain);
    let first = Arc::new(Mutex::new(None));
    let (taken, newest) = (first.clone(), reader.view.clone());
    reader.view = Arc::new(move || taken.lock().take().unwrap_or_else(|| newest()));
    let context = Arc::new(RpcContext::new(reader, TxRoute::Pool));
    let api = Api::new(&["eth".to_owned()], &NAMESPACES, &context, "--http.api");
    for (nonce, refusal) in [
        (2, json!("nonce too high: tx nonce 2, gapped nonce 1")),
        (1, Value::Null),
    ] {
        *first.lock() = Some(before.clone());
        let raw = raw(1, nonce, sidecar.clone());
        let response = ask_of(&api, "eth_sendRawTransaction", json!([raw])).await;
        assert_eq!(response["error"]["message"], refusal, "{response}");
        assert!(first.lock().is_none(), "the old view was read");
    }
    drop((api, context, chain));
    threads.stop().unwrap();
}
