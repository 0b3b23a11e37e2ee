//! Bounds of one request: time, gas, blocks, logs, bytes, slots, filters, subscriptions.

use super::{
    Server, Setup,
    chain::{CONTRACT, Chain, RICH, legacy},
};
use crate::{
    chain::{
        evm::Deadline,
        pool::{Admission, PoolTx},
        store::ValueIndex,
    },
    rpc::{
        NAMESPACES, RpcContext,
        api::{Api, Method},
        bounds::LogLimits,
        params::Args,
        schedule::Client,
    },
};
use alloy_primitives::{B256, Bytes, Log, U256, address};
use futures::FutureExt;
use serde_json::{Value, json, value::to_raw_value};
use starling_proto::fork::Fork;
use std::{sync::Arc, time::Duration};
use tokio::{io::AsyncWriteExt, net::TcpStream};

/// Code that jumps to its own beginning for ever.
const ENDLESS: &str = "0x5b600056";
const LONG: Duration = Duration::from_secs(600);

fn endless() -> Value {
    json!([{ "to": CONTRACT, "gas": "0x3fffffffffff" }, "latest", { CONTRACT.to_string(): { "code": ENDLESS } }])
}

/// Number of free permits for heavy calls on the public ports.
fn free_permits(context: &RpcContext) -> usize {
    context.bounds.heavy.queue(Client::Connection(0)).free()
}

fn patient(context: &mut RpcContext) {
    (context.bounds.gas_cap, context.bounds.timeout) = (u64::MAX, LONG);
}

#[tokio::test]
async fn a_call_without_end_is_aborted_and_gives_back_its_place() {
    let chain = Chain::new(Fork::Isthmus).with(|context| {
        (context.bounds.gas_cap, context.bounds.timeout) = (u64::MAX, Duration::from_millis(50));
    });
    let permits = free_permits(&chain.context);
    for method in ["eth_call", "eth_estimateGas", "eth_createAccessList"] {
        let told = (-32000, "execution aborted (timeout = 50ms)".to_owned());
        let mut params = endless();
        if method == "eth_estimateGas" {
            // Before Karst nothing else bounds the gas of a transaction.
            params[0]["gas"] = json!("0x3fffffffffff");
        }
        assert_eq!(chain.error(method, params).await, told, "{method}");
    }
    while free_permits(&chain.context) < permits {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_call_has_the_gas_that_the_operator_gives() {
    let chain = Chain::new(Fork::Isthmus).with(|context| context.bounds.gas_cap = 30_000);
    // Code that returns the remaining gas.
    let gas = json!({ CONTRACT.to_string(): { "code": "0x5a60005260206000f3" } });
    for wanted in [
        json!({ "to": CONTRACT }),
        json!({ "to": CONTRACT, "gas": "0xffffffff" }),
    ] {
        assert_eq!(
            chain
                .result("eth_call", json!([wanted, "latest", gas]))
                .await,
            format!("0x{:064x}", 30_000 - 21_000 - 2)
        );
    }
    let (_, message) = chain.error("eth_estimateGas", endless()).await;
    assert_eq!(message, "gas required exceeds allowance (30000)");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_takes_its_call_with_it() {
    let chain = Chain::new(Fork::Isthmus).with(patient);
    let api = Api::new(
        &["eth".to_owned()],
        &NAMESPACES,
        &chain.context,
        "--http.api",
    );
    let server = Server::of(api, Setup::default()).await;
    let permits = free_permits(&chain.context);
    let body =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": endless() }).to_string();
    let mut socket = TcpStream::connect(server.addrs.http.unwrap())
        .await
        .unwrap();
    let request = format!(
        "{}\r\ncontent-length: {}\r\n\r\n{body}",
        super::POST,
        body.len()
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    while free_permits(&chain.context) == permits {
        tokio::task::yield_now().await;
    }
    drop(socket);
    while free_permits(&chain.context) < permits {
        tokio::task::yield_now().await;
    }
}

/// Calls every heavy method of the node when no time is left.
#[tokio::test]
async fn every_heavy_method_looks_at_its_deadline() {
    let mut chain = Chain::new(Fork::Isthmus);
    chain.store.keep_addresses(true);
    chain.store.extend_index(ValueIndex::Addresses).unwrap();
    chain.add(&[]);
    let filter = chain.result("eth_newFilter", json!([{}])).await;
    let over = Deadline::after(Duration::ZERO);
    for (name, method) in NAMESPACES.iter().flat_map(|namespace| namespace.methods) {
        let Method::Heavy(function) = method else {
            continue;
        };
        let params = match *name {
            "eth_getLogs" => json!([{ "fromBlock": "0x0" }]),
            "eth_getFilterLogs" => json!([filter]),
            "eth_getProof" => json!([CONTRACT, ["0x1"], "latest"]),
            "eth_feeHistory" => json!(["0x2", "latest", [50.0]]),
            "eth_callMany" => json!([[{ "transactions": [endless()[0]] }], {}, endless()[2]]),
            "eth_simulateV1" => json!([{ "blockStateCalls": [{
                "stateOverrides": endless()[2], "calls": [endless()[0]] }] }]),
            "eth_fillTransaction" => json!([{ "to": CONTRACT }]),
            // Tested with their own namespaces, because this chain has no parameters for a next
            // block.
            "testing_buildBlockV1" | "debug_executePayload" => continue,
            "debug_intermediateRoots"
            | "debug_executionWitnessByHash"
            | "debug_executionWitnessByBlockHash"
            | "debug_getModifiedAccountsByHash" => json!([chain.head().hash]),
            "debug_executionWitness" | "debug_dumpBlock" => json!(["0x1"]),
            "debug_getModifiedAccountsByNumber" => json!([1]),
            "debug_storageRangeAt" => json!(["0x1", 0, CONTRACT, "0x00", 10]),
            "ots_searchTransactionsBefore" | "ots_searchTransactionsAfter" => {
                json!([CONTRACT, 0, 10])
            }
            "debug_accountRange" => json!(["0x1", "0x00", 10, true, true, true]),
            _ => endless(),
        };
        let args = Args::parse(Some(&to_raw_value(&params).unwrap())).unwrap();
        let told = function(&chain.context, args, &over).unwrap_err();
        assert_eq!(
            (told.code, told.message.as_str()),
            (-32000, "execution aborted (timeout = 0ns)"),
            "{name}"
        );
    }
}

/// A chain with the given limits. It has four blocks of three logs each, and a log has 132 bytes.
fn chain_of_logs(limits: LogLimits) -> Chain {
    let mut chain = Chain::new(Fork::Canyon);
    let log = Log::new_unchecked(CONTRACT, vec![B256::ZERO], vec![7u8; 100].into());
    for nonce in 0..4 {
        chain.add(&[(legacy(nonce), vec![log.clone(); 3])]);
    }
    limit_logs(chain, limits)
}

fn limit_logs(chain: Chain, limits: LogLimits) -> Chain {
    chain.with(|context| context.bounds.logs = limits)
}

/// Number of logs from block `from` to block `to`.
async fn count_logs(chain: &Chain, from: &str, to: &str) -> usize {
    let filter = json!([{ "fromBlock": from, "toBlock": to }]);
    let logs = chain.result("eth_getLogs", filter).await;
    logs.as_array().unwrap().len()
}

/// The error of a query that is refused, for logs from block `from` to the head.
async fn refused_logs(chain: &Chain, from: &str) -> (i64, String) {
    let filter = json!([{ "fromBlock": from, "toBlock": "latest" }]);
    chain.error("eth_getLogs", filter).await
}

#[tokio::test]
async fn logs_are_bounded_by_blocks() {
    let defaults = LogLimits::default();
    assert_eq!(
        (defaults.blocks, defaults.logs, defaults.bytes),
        (100_000, 20_000, 10_000_000)
    );
    let chain = chain_of_logs(LogLimits {
        blocks: 4,
        ..defaults
    });
    assert_eq!(count_logs(&chain, "0x1", "latest").await, 12);
    assert_eq!(
        refused_logs(&chain, "0x0").await,
        (
            -32602,
            "query exceeds max block range 4, retry with the range 0-3".into()
        )
    );
    assert_eq!(count_logs(&chain, "0x0", "0x3").await, 9);
    let whole = json!([{ "fromBlock": "0x0", "toBlock": "latest" }]);
    let error = chain.ask("eth_getLogs", whole).await["error"].clone();
    assert_eq!(
        error["data"],
        json!({ "fromBlock": "0x0", "toBlock": "0x3" })
    );
}

#[tokio::test]
async fn logs_are_bounded_by_number_and_bytes() {
    let number = LogLimits {
        logs: 7,
        ..LogLimits::default()
    };
    let bytes = LogLimits {
        bytes: 7 * 132,
        ..LogLimits::default()
    };
    for (limits, limit) in [(number, "7"), (bytes, "of 924 bytes")] {
        let chain = chain_of_logs(limits);
        let message = format!("query exceeds max results {limit}, retry with the range 1-2");
        assert_eq!(refused_logs(&chain, "0x1").await, (-32602, message));
        assert_eq!(count_logs(&chain, "0x1", "0x2").await, 6);
    }
}

#[tokio::test]
async fn a_single_blocks_logs_are_not_bounded_and_a_filters_are() {
    let chain = chain_of_logs(LogLimits::default());
    let filter = chain
        .result("eth_newFilter", json!([{ "fromBlock": "0x1" }]))
        .await;
    let one = LogLimits {
        logs: 1,
        bytes: 1,
        ..LogLimits::default()
    };
    let chain = limit_logs(chain, one);
    assert_eq!(count_logs(&chain, "0x4", "latest").await, 3);
    // `eth_getFilterChanges` would return the logs in parts instead.
    assert_eq!(
        chain.error("eth_getFilterLogs", json!([filter])).await.0,
        -32602
    );
}

#[tokio::test]
async fn what_a_filter_tells_comes_in_parts() {
    for limits in [
        LogLimits {
            logs: 2,
            ..Default::default()
        },
        LogLimits {
            bytes: 100,
            ..Default::default()
        },
    ] {
        let mut chain = Chain::new(Fork::Canyon).with(|context| context.bounds.logs = limits);
        let filter = chain.result("eth_newFilter", json!([{}])).await;
        for nonce in 0..3 {
            let log = Log::new_unchecked(CONTRACT, vec![B256::ZERO; 2], vec![7u8; 100].into());
            chain.add(&[(legacy(nonce), vec![log.clone(), log])]);
        }
        for left in [2, 2, 2, 0] {
            assert_eq!(
                chain
                    .result("eth_getFilterChanges", json!([filter]))
                    .await
                    .as_array()
                    .unwrap()
                    .len(),
                left
            );
        }
    }
}

/// Adds three transfers to the pool of a chain and returns their bytes.
fn pool_transfers(chain: &Chain) -> [Bytes; 3] {
    let sent = [0, 1, 2].map(|nonce| super::send::transfer(nonce, 21_000));
    for raw in &sent {
        // The L1 fee depends on the bytes of a transaction, but the pool uses only the values given
        // here.
        let tx = PoolTx::decode(raw.clone()).unwrap();
        let at = Admission {
            nonce: 0,
            balance: U256::MAX,
            delegated: false,
            base_fee: 1,
            block_gas_limit: 30_000_000,
            l1_cost: U256::ZERO,
            now: 0,
        };
        chain.context.chain.pool.add(tx, &at).unwrap();
    }
    sent
}

/// The same chain, with at most `bytes` bytes of pool transactions in a response.
fn limit_transactions(chain: Chain, bytes: usize) -> Chain {
    chain.with(|context| context.bounds.transactions = bytes)
}

#[tokio::test]
async fn the_pools_content_is_bounded_in_bytes() {
    let mut chain = limit_transactions(Chain::new(Fork::Canyon), 1_000);
    chain.add(&[]);
    let size: usize = pool_transfers(&chain).iter().map(|raw| raw.len()).sum();
    assert!(chain.result("txpool_content", json!([])).await.is_object());
    let chain = limit_transactions(chain, size - 1);
    for (method, params) in [
        ("txpool_content", json!([])),
        ("txpool_contentFrom", json!([super::send::SENDER])),
    ] {
        let message = format!("response too large: {size} bytes of transactions");
        assert_eq!(
            chain.error(method, params).await,
            (-32003, message),
            "{method}"
        );
    }
}

/// A filter of whole transactions returns them in parts; a filter of hashes returns all at once.
#[tokio::test]
async fn a_filter_of_pending_transactions_gives_them_in_parts() {
    let mut chain = Chain::new(Fork::Canyon);
    chain.add(&[]);
    let method = "eth_newPendingTransactionFilter";
    let whole = chain.result(method, json!([true])).await;
    let hashes = chain.result(method, json!([])).await;
    let sent = pool_transfers(&chain);
    let chain = limit_transactions(chain, sent[0].len() + 1);
    for (filter, expected) in [(&whole, 2), (&whole, 1), (&whole, 0), (&hashes, 3)] {
        let changes = chain.result("eth_getFilterChanges", json!([filter])).await;
        assert_eq!(changes.as_array().map(Vec::len), Some(expected));
    }
}

#[tokio::test]
async fn slots_filters_and_subscriptions_are_bounded() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    let slots = |count| vec!["0x1"; count];
    assert!(
        chain
            .result("eth_getProof", json!([RICH, slots(1024), "latest"]))
            .await
            .is_object()
    );
    let told = (-32602, "too many slots (max 1024)".to_owned());
    assert_eq!(
        chain
            .error("eth_getProof", json!([RICH, slots(1025), "latest"]))
            .await,
        told
    );
    let halves = |count: usize| json!([{ RICH.to_string(): vec![B256::ZERO; 512], CONTRACT.to_string(): vec![B256::ZERO; count] }]);
    assert!(
        chain
            .result("eth_getStorageValues", halves(512))
            .await
            .is_object()
    );
    assert_eq!(chain.error("eth_getStorageValues", halves(513)).await, told);
    for _ in 0..1000 {
        chain.result("eth_newBlockFilter", json!([])).await;
    }
    for method in [
        "eth_newBlockFilter",
        "eth_newPendingTransactionFilter",
        "eth_newFilter",
    ] {
        let params = if method == "eth_newFilter" {
            json!([{}])
        } else {
            json!([])
        };
        chain
            .fails(method, params, "too many filters: 1000 are in use")
            .await;
    }
}

#[tokio::test]
async fn overrides_of_a_whole_state_are_only_data() {
    // As many accounts as fit into a request body, each with a slot.
    let chain = Chain::new(Fork::Isthmus);
    let accounts: serde_json::Map<String, Value> = (0..20_000u64)
        .map(|n| {
            let account = alloy_primitives::Address::left_padding_from(&(n + 1_000_000).to_be_bytes());
            (account.to_string(), json!({ "balance": "0x1", "stateDiff": { B256::ZERO.to_string(): B256::ZERO.to_string() } }))
        })
        .collect();
    let answer = chain
        .ask("eth_call", json!([{ "to": CONTRACT }, "latest", accounts]))
        .await;
    assert_eq!(answer["result"], "0x");
    // Code beyond the size limit of deployed contracts still runs until its gas is used.
    let code = Bytes::from(vec![0x5b; 1 << 20]);
    let target = address!("0x00000000000000000000000000000000000000c0");
    let call = json!([{ "to": target, "gas": "0x10000" }, "latest", { target.to_string(): { "code": code } }]);
    assert_eq!(
        chain.error("eth_call", call).await,
        (-32000, "out of gas".into())
    );
}

#[tokio::test]
async fn the_config_of_forks_waits_for_a_permit_of_reads() {
    let chain = Chain::new(Fork::Isthmus)
        .with(|context| context.bounds.reads = Arc::new(tokio::sync::Semaphore::new(0)));
    // `eth_config` reads a setting from the store, which may block its thread.
    let waiting = chain.ask("eth_config", json!([])).now_or_never();
    assert!(waiting.is_none(), "{waiting:?}");
    chain.context.bounds.reads.add_permits(1);
    let config = chain.result("eth_config", json!([])).await;
    assert!(config["current"].is_object(), "{config}");
}

/// Slow calls of one client leave half of the permits free, and do not delay methods of other
/// kinds.
#[tokio::test(flavor = "multi_thread")]
async fn slow_calls_of_one_client_hold_up_its_slow_calls_only() {
    let chain = Arc::new(Chain::new(Fork::Isthmus).with(patient));
    let (heavy, reads) = (
        free_permits(&chain.context),
        chain.context.bounds.reads.available_permits(),
    );
    let cores = std::thread::available_parallelism().unwrap().get().max(2);
    assert_eq!((heavy, reads), (cores, 4 * cores));
    let slow =
        |chain: Arc<Chain>| tokio::spawn(async move { chain.ask("eth_call", endless()).await });
    let calls: Vec<_> = (0..2 * heavy).map(|_| slow(chain.clone())).collect();
    while free_permits(&chain.context) > heavy - heavy / 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        chain.result("eth_getBalance", json!([RICH])).await,
        "0xf4240"
    );
    assert_eq!(chain.result("eth_blockNumber", json!([])).await, "0x0");
    assert_eq!(free_permits(&chain.context), heavy - heavy / 2);
    calls.iter().for_each(|call| call.abort());
    while free_permits(&chain.context) < heavy {
        tokio::task::yield_now().await;
    }
}

/// Makes an `eth_call` on a connection of its own. Returns the body of the response.
async fn call_over(server: &Server, params: &Value) -> String {
    let body =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": params }).to_string();
    let request = format!(
        "{}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        super::POST,
        body.len()
    );
    server.raw(request.as_bytes(), LONG).await
}

/// An honest call has a deadline. It would miss that deadline if it had to wait for the end of an
/// attacker's call.
#[tokio::test(flavor = "multi_thread")]
async fn honest_calls_succeed_while_endless_calls_of_a_hundred_connections_wait() {
    let limit = Duration::from_secs(20);
    let chain = Chain::new(Fork::Isthmus)
        .with(|context| (context.bounds.gas_cap, context.bounds.timeout) = (u64::MAX, limit));
    let api = Api::new(
        &["eth".to_owned()],
        &NAMESPACES,
        &chain.context,
        "--http.api",
    );
    let server = Server::of(api, Setup::default()).await;
    let endless = endless();
    let attack = futures::future::join_all((0..100).map(|_| async {
        loop {
            let answer = call_over(&server, &endless).await;
            // The call has reached its timeout, or was ended for another client.
            let ends = ["execution aborted (timeout = 20s)", "the call was ended"];
            assert!(ends.iter().any(|end| answer.contains(end)), "{answer}");
        }
    }));
    // Code that counts down from 1000.
    let short = json!([{ "to": CONTRACT }, "latest", { CONTRACT.to_string(): { "code": "0x63000003e85b6001900380600557" } }]);
    let honest = async {
        while free_permits(&chain.context) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..20 {
            let answer = call_over(&server, &short).await;
            assert!(answer.contains(r#""result":"0x""#), "{answer}");
        }
    };
    tokio::select! {
        _ = attack => unreachable!("attackers do not give up"),
        () = honest => {}
    }
}

#[tokio::test]
async fn filters_and_what_they_remember_are_bounded_in_bytes() {
    let addresses: Vec<_> = (0..1000u64)
        .map(|n| alloy_primitives::Address::left_padding_from(&n.to_be_bytes()))
        .collect();
    let mut chain = Chain::new(Fork::Canyon)
        .with(|context| context.bounds.filters = Arc::new(tokio::sync::Semaphore::new(64)));
    let filter = chain
        .result("eth_newFilter", json!([{ "address": addresses }]))
        .await;
    chain
        .result("eth_newFilter", json!([{ "address": addresses }]))
        .await;
    let told = (-32000, "too many filters: retry later".to_owned());
    assert_eq!(
        chain
            .error("eth_newFilter", json!([{ "address": addresses }]))
            .await,
        told
    );
    chain.result("eth_uninstallFilter", json!([filter])).await;
    let filter = chain.result("eth_newFilter", json!([{}])).await;
    // More logs than a filter may keep: they are reported, and none of them is kept.
    let free = chain.context.bounds.reported_logs.available_permits();
    let log = Log::new_unchecked(CONTRACT, vec![B256::ZERO], vec![7u8; 1000].into());
    chain.add(&[(legacy(0), vec![log; 1000])]);
    assert_eq!(
        chain
            .result("eth_getFilterChanges", json!([filter]))
            .await
            .as_array()
            .unwrap()
            .len(),
        1000
    );
    assert_eq!(chain.context.bounds.reported_logs.available_permits(), free);
    // The block leaves the chain and its receipts are gone: the client gets an error, because the
    // removed logs are unknown.
    chain
        .made
        .lock()
        .values_mut()
        .for_each(|block| block.receipts = None);
    chain.blocks.clear();
    chain.publish();
    chain
        .fails(
            "eth_getFilterChanges",
            json!([filter]),
            "blocks were removed",
        )
        .await;
}

#[tokio::test]
async fn logs_that_filters_keep_refuse_no_other_filter() {
    let permits = |kib| Arc::new(tokio::sync::Semaphore::new(kib));
    let mut chain = Chain::new(Fork::Canyon).with(|context| {
        // Memory for two filters, and for the logs of four blocks.
        (context.bounds.filters, context.bounds.reported_logs) = (permits(2), permits(4));
    });
    let filter = chain.result("eth_newFilter", json!([{}])).await;
    let log = Log::new_unchecked(CONTRACT, vec![], Bytes::new());
    for nonce in 0..7 {
        chain.add(&[(legacy(nonce), vec![log.clone()])]);
        let told = chain
            .result("eth_getFilterChanges", json!([filter.clone()]))
            .await;
        assert_eq!(told.as_array().unwrap().len(), 1);
    }
    chain.result("eth_newFilter", json!([{}])).await;
    // Logs that were not kept are read from the receipts.
    chain.blocks.clear();
    chain.publish();
    let told = chain.result("eth_getFilterChanges", json!([filter])).await;
    let heights = told.as_array().unwrap().iter().map(|log| {
        assert_eq!(log["removed"], true);
        log["blockNumber"].clone()
    });
    let all: Vec<_> = (1..=7).rev().map(|n| json!(format!("{n:#x}"))).collect();
    assert_eq!(heights.collect::<Vec<_>>(), all);
}

#[tokio::test]
async fn signers_are_not_recovered_for_gas_that_is_not_there() {
    let chain = Chain::new(Fork::Isthmus);
    let one = json!({ "chainId": "0x0", "address": CONTRACT, "nonce": "0x0", "yParity": "0x0", "r": "0x1", "s": "0x1" });
    let call = json!([{ "to": CONTRACT, "gas": "0x186a0", "authorizationList": vec![one; 5] }]);
    let (_, message) = chain.error("eth_createAccessList", call).await;
    assert!(message.starts_with("intrinsic gas too low"), "{message}");
}
