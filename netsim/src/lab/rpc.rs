//! Calls of a node's JSON-RPC over HTTP/1.0. Nodes are on this machine, and each call has a
//! connection of its own and a time limit.

use alloy_primitives::B256;
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

/// Timeout of a call: a node that is frozen accepts connections and does not respond.
const LIMIT: Duration = Duration::from_secs(2);
/// Timeout of a read that a verdict depends on: a busy machine delays responses of a sound node.
pub const VERDICT_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two reads of a value that is not there yet.
const PAUSE: Duration = Duration::from_millis(100);
/// Largest response that is read, in bytes: a block of a thousand hashes has 70 KB.
const LARGEST: u64 = 8 << 20;

/// A block as the lab sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabBlock {
    pub number: u64,
    pub hash: B256,
    pub parent: B256,
}

/// The result of a call, or the reason why there is none.
pub async fn try_call(node: SocketAddr, method: &str, params: Value) -> Result<Value, String> {
    let response = timeout(LIMIT, post(node, method, params))
        .await
        .ok()
        .flatten();
    let response = response.ok_or("no response")?;
    let mut response: Value = serde_json::from_str(&response).map_err(|error| error.to_string())?;
    match response["error"]["message"].as_str() {
        Some(reason) => Err(reason.to_owned()),
        None => Ok(response["result"].take()),
    }
}

/// The result of a call; `None` if the node does not respond or refuses.
pub async fn call(node: SocketAddr, method: &str, params: Value) -> Option<Value> {
    let response = timeout(LIMIT, post(node, method, params)).await.ok()??;
    let mut response: Value = serde_json::from_str(&response).ok()?;
    let result = response.get_mut("result")?.take();
    Some(result).filter(|result| !result.is_null())
}

async fn post(node: SocketAddr, method: &str, params: Value) -> Option<String> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let request = format!(
        "POST / HTTP/1.0\r\nHost: {node}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    exchange(node, &request).await
}

/// The text at a path of a node's HTTP server; `None` if it does not respond in time.
pub async fn get(node: SocketAddr, path: &str) -> Option<String> {
    let request = format!("GET {path} HTTP/1.0\r\nHost: {node}\r\n\r\n");
    timeout(LIMIT, exchange(node, &request)).await.ok()?
}

/// Sends a request on a connection of its own. Returns the body of the response.
async fn exchange(node: SocketAddr, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(node).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut response = String::new();
    stream
        .take(LARGEST)
        .read_to_string(&mut response)
        .await
        .ok()?;
    Some(response.split_once("\r\n\r\n")?.1.to_owned())
}

/// Reads a value again and again, until it is there or `limit` is over.
pub async fn read_until_some<T, F: Future<Output = Option<T>>>(
    limit: Duration,
    read: impl Fn() -> F,
) -> Option<T> {
    let begun = Instant::now();
    loop {
        let value = read().await;
        if value.is_some() || begun.elapsed() > limit {
            return value;
        }
        sleep(PAUSE).await;
    }
}

/// The number in a result such as `"0x2a"`.
pub fn quantity(value: &Value) -> Option<u64> {
    u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok()
}

/// The node's newest block, or its block with this number.
pub async fn block(node: SocketAddr, number: Option<u64>) -> Option<LabBlock> {
    let tag = number.map_or("latest".to_owned(), |number| format!("{number:#x}"));
    tagged(node, &tag).await
}

/// The node's block with a number, or that it has none; `None` if it does not respond.
pub async fn lookup(node: SocketAddr, number: u64) -> Option<Option<LabBlock>> {
    let params = json!([format!("{number:#x}"), false]);
    let block = try_call(node, "eth_getBlockByNumber", params).await.ok()?;
    if block.is_null() {
        return Some(None);
    }
    parsed(&block).map(Some)
}

fn parsed(block: &Value) -> Option<LabBlock> {
    Some(LabBlock {
        number: quantity(&block["number"])?,
        hash: block["hash"].as_str()?.parse().ok()?,
        parent: block["parentHash"].as_str()?.parse().ok()?,
    })
}

/// The block that a tag such as `safe` or a number in hex names.
pub async fn tagged(node: SocketAddr, tag: &str) -> Option<LabBlock> {
    parsed(&call(node, "eth_getBlockByNumber", json!([tag, false])).await?)
}
