//! History before Bedrock, from a test node that responds, sends wrong data, or hangs.

use super::{Server, Setup, chain::Chain};
use crate::rpc::{
    api::Api,
    error::{Reply, RpcError, reply},
    historical::Historical,
    params::Args,
};
use alloy_consensus::Header;
use alloy_primitives::{B256, keccak256};
use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use serde_json::{Value, json};
use starling_proto::fork::Fork;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

/// Number of our first block. The blocks of the test chain represent the blocks from this number
/// on.
const FIRST: u64 = 100;
const TIMEOUT: Duration = Duration::from_millis(400);

fn header(number: u64) -> Header {
    Header {
        number,
        difficulty: alloy_primitives::U256::from(2),
        gas_limit: 15_000_000,
        ..Default::default()
    }
}

/// The JSON of a block, as a node prints it.
fn block(number: u64) -> Value {
    let header = header(number);
    let mut json = serde_json::to_value(&header).unwrap();
    json["hash"] = json!(header.hash_slow());
    json["transactions"] = json!([]);
    json["uncles"] = json!([]);
    json
}

/// A node that has history, and the number of calls that it gets.
async fn history() -> (Server, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let mut api = Api::default();
    let mut insert = |name: &'static str, respond: fn(Args) -> Reply| {
        let calls = calls.clone();
        api.insert(name, move |args| {
            calls.fetch_add(1, Ordering::Relaxed);
            let response = respond(args);
            async { response }.boxed()
        });
    };
    insert("eth_getBalance", |_| reply("0x2a"));
    insert("eth_getBlockByNumber", |_| reply(block(7)));
    insert("eth_getBlockByHash", |_| reply(block(7)));
    insert("eth_getTransactionByHash", |_| {
        reply(json!({ "hash": keccak256([1]), "blockNumber": "0x7" }))
    });
    insert("eth_getTransactionReceipt", |_| {
        reply(json!({ "transactionHash": keccak256([1]), "blockNumber": "0x200" }))
    });
    insert("eth_getRawTransactionByHash", |_| reply("0x01"));
    insert("eth_call", |_| Err(RpcError::new(3, "execution reverted")));
    insert("eth_getLogs", |_| reply(json!([{ "address": "0x" }])));
    api.insert("eth_getStorageAt", |_| {
        async { std::future::pending::<Reply>().await }.boxed()
    });
    (Server::of(api, Setup::default()).await, calls)
}

fn chain(url: Option<&str>) -> Chain {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    chain.with(|context| {
        context.historical = Some(Historical::new(FIRST, url, TIMEOUT).unwrap());
    })
}

fn url(server: &Server) -> String {
    format!("http://{}", server.addrs.http.unwrap())
}

const WHO: &str = "0x0000000000000000000000000000000000000001";

#[tokio::test]
async fn blocks_below_the_first_are_asked_of_the_other_node_and_ours_are_not() {
    let (server, calls) = history().await;
    let chain = chain(Some(&url(&server)));
    assert_eq!(
        chain.result("eth_getBalance", json!([WHO, "0x7"])).await,
        "0x2a"
    );
    let object = json!([WHO, { "blockNumber": "0x63" }]);
    assert_eq!(chain.result("eth_getBalance", object).await, "0x2a");
    let found = chain
        .result("eth_getBlockByNumber", json!(["0x7", false]))
        .await;
    assert_eq!(found, block(7));
    let range = json!([{ "fromBlock": "0x1", "toBlock": "0x7" }]);
    assert_eq!(chain.result("eth_getLogs", range).await[0]["address"], "0x");
    let asked = calls.load(Ordering::Relaxed);
    for block in ["latest", "earliest", "pending", "0x64"] {
        let _ = chain.ask("eth_getBalance", json!([WHO, block])).await;
    }
    for bad in [
        json!([WHO, "7"]),
        json!([]),
        json!([WHO, {}]),
        json!([WHO, [7]]),
    ] {
        let _ = chain.ask("eth_getBalance", bad).await;
    }
    assert_eq!(
        calls.load(Ordering::Relaxed),
        asked,
        "those are ours to answer"
    );
}

#[tokio::test]
async fn hashes_that_are_nowhere_here_are_asked_for_and_the_answer_must_be_theirs() {
    let (server, calls) = history().await;
    let chain = chain(Some(&url(&server)));
    let known = header(7).hash_slow();
    let found = chain
        .result("eth_getBlockByHash", json!([known, false]))
        .await;
    assert_eq!(found["hash"], json!(known));
    let found = chain
        .result("eth_getTransactionByHash", json!([keccak256([1])]))
        .await;
    assert_eq!(found["blockNumber"], "0x7");
    let raw = chain
        .result("eth_getRawTransactionByHash", json!([keccak256([1])]))
        .await;
    assert_eq!(raw, "0x01");
    // Wrong data: another block, another transaction, and a receipt of one of our blocks.
    let other = B256::repeat_byte(1);
    for (method, params) in [
        ("eth_getBlockByHash", json!([other, false])),
        ("eth_getTransactionByHash", json!([other])),
        ("eth_getTransactionReceipt", json!([keccak256([1])])),
    ] {
        assert_eq!(chain.result(method, params).await, Value::Null, "{method}");
    }
    let raw = chain
        .result("eth_getRawTransactionByHash", json!([other]))
        .await;
    assert_eq!(raw, "0x");
    let asked = calls.load(Ordering::Relaxed);
    let ours = chain.head().hash;
    let found = chain
        .result("eth_getBlockByHash", json!([ours, false]))
        .await;
    assert_eq!(found["hash"], json!(ours));
    assert_eq!(
        calls.load(Ordering::Relaxed),
        asked,
        "our block is not asked for"
    );
}

#[tokio::test]
async fn errors_lies_and_silence_are_op_geths_errors() {
    let (server, _) = history().await;
    let chain = chain(Some(&url(&server)));
    let fails = async |method: &str, params: Value, words: &str| {
        let (code, message) = chain.error(method, params).await;
        assert_eq!(code, -32000, "{message}");
        assert!(
            message.starts_with("historical backend error: "),
            "{message}"
        );
        assert!(message.contains(words), "{message}");
    };
    let call = json!([{ "to": WHO }, "0x7"]);
    let (code, message) = chain.error("eth_call", call).await;
    assert_eq!(
        (code, &*message),
        (-32000, "historical backend error: execution reverted")
    );
    fails(
        "eth_getBlockByNumber",
        json!(["0x8", false]),
        "it is another block",
    )
    .await;
    fails(
        "eth_getTransactionCount",
        json!([WHO, "0x7"]),
        "does not exist",
    )
    .await;
    let asked = Instant::now();
    fails(
        "eth_getStorageAt",
        json!([WHO, "0x0", "0x7"]),
        "no answer within",
    )
    .await;
    assert!(asked.elapsed() < TIMEOUT * 10);
}

#[tokio::test]
async fn requests_to_a_node_that_hangs_are_bounded_and_the_next_one_does_not_wait() {
    let (server, _) = history().await;
    let chain = chain(Some(&url(&server)));
    let hangs = || chain.error("eth_getStorageAt", json!([WHO, "0x0", "0x7"]));
    let mut responses: FuturesUnordered<_> = (0..129).map(|_| hangs()).collect();
    let busy = "too many requests are in flight";
    let (_, first) = responses.next().await.unwrap();
    assert!(first.contains(busy), "{first}");
    let rest: Vec<_> = responses.collect().await;
    assert!(rest.iter().all(|(_, message)| !message.contains(busy)));
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_not_read() {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let hostile = tokio::spawn(async move {
        let (mut stream, _) = socket.accept().await.unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let chunk = [&b"100000\r\n"[..], &[b' '; 1 << 20], b"\r\n"].concat();
        let mut sent = 0;
        while sent < 256 && stream.write_all(&chunk).await.is_ok() {
            sent += 1;
        }
        sent
    });
    let mut chain = Chain::new(Fork::Ecotone);
    chain.add(&[]);
    let minute = Duration::from_secs(60);
    let chain = chain.with(|context| {
        context.historical = Some(Historical::new(FIRST, Some(&url), minute).unwrap());
    });
    let error = chain.error("eth_getBalance", json!([WHO, "0x7"])).await;
    assert_eq!(error.0, -32000, "{}", error.1);
    let sent = hostile.await.unwrap();
    assert!((32..128).contains(&sent), "{sent} MiB were read");
}

#[tokio::test]
async fn a_block_of_ours_is_none_of_the_other_nodes() {
    let mut api = Api::default();
    api.insert("eth_getBlockByHash", |_| {
        async { reply(block(FIRST)) }.boxed()
    });
    let server = Server::of(api, Setup::default()).await;
    let chain = chain(Some(&url(&server)));
    let params = json!([header(FIRST).hash_slow(), false]);
    let found = chain.result("eth_getBlockByHash", params).await;
    assert_eq!(found, Value::Null);
}

#[tokio::test]
async fn a_block_whose_hash_is_not_that_of_its_header_is_a_lie() {
    let mut api = Api::default();
    api.insert("eth_getBlockByNumber", |_| {
        let mut lie = block(7);
        lie["stateRoot"] = json!(B256::repeat_byte(1));
        async move { reply(lie) }.boxed()
    });
    let server = Server::of(api, Setup::default()).await;
    let chain = chain(Some(&url(&server)));
    let (_, message) = chain
        .error("eth_getBlockByNumber", json!(["0x7", false]))
        .await;
    assert!(message.contains("not that of its header"), "{message}");
}

#[tokio::test]
async fn without_another_node_states_are_an_error_and_blocks_unknown() {
    let chain = chain(None);
    let error = chain.error("eth_getBalance", json!([WHO, "0x7"])).await;
    let words =
        "no historical RPC is available for this historical (pre-bedrock) execution request";
    assert_eq!(error, (-32801, words.to_owned()));
    let unknown = chain
        .result("eth_getTransactionByHash", json!([B256::ZERO]))
        .await;
    assert_eq!(unknown, Value::Null);
}

#[tokio::test]
async fn an_entry_of_a_batch_goes_there_by_itself() {
    use crate::rpc::{frame::Session, memory::Allowance, operator::RequestSender};
    let (server, _) = history().await;
    let chain = chain(Some(&url(&server)));
    let call = |id: u64, block: &str| json!({ "jsonrpc": "2.0", "id": id, "method": "eth_getBalance", "params": [WHO, block] });
    let batch = json!([call(1, "0x7"), call(2, "latest"), call(3, "0x8")]);
    let allowance = Allowance::new(1000, 25_000_000, 128 << 20, 256 << 20);
    let session = Session {
        api: &chain.api,
        allowance: &allowance,
        deadline: None,
        subscriptions: None,
        chunked: true,
        metrics: None,
        sender: &RequestSender::default(),
    };
    let response = session
        .respond(batch.to_string().as_bytes())
        .await
        .text
        .unwrap();
    let responses: Vec<Value> = serde_json::from_str(&response).unwrap();
    let results: Vec<_> = responses
        .iter()
        .map(|response| response["result"].clone())
        .collect();
    assert_eq!(results, [json!("0x2a"), json!("0x0"), json!("0x2a")]);
}
