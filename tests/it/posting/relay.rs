//! A JSON-RPC relay in front of an L1. On command it changes the blob fee and refuses transactions.

use crate::{
    net::post,
    stand_in::{listen, read_request, response},
};
use serde_json::{Value, json};
use std::{
    io::Write,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// Blob base fee in wei at which calldata is cheaper than blobs.
pub const DEAR: u64 = 200_000_000_000;

/// Settings that the server's threads read.
#[derive(Default)]
struct RelayOrders {
    /// Blob base fee to return, in wei; 0 for the L1's own.
    blob_fee: AtomicU64,
    refuses: AtomicBool,
}

pub struct RpcRelay {
    pub url: String,
    orders: Arc<RelayOrders>,
}

impl RpcRelay {
    /// Relays to the L1 at `upstream`, until the test process ends.
    pub fn start(upstream: &str) -> Self {
        let orders = Arc::new(RelayOrders::default());
        let (shared, upstream) = (orders.clone(), upstream.to_owned());
        let url = listen(move |stream| serve(stream, &upstream, &shared));
        Self { url, orders }
    }

    /// Sets the blob base fee that the relay returns, in wei; 0 for the L1's own.
    pub fn show_blob_fee(&self, wei: u64) {
        self.orders.blob_fee.store(wei, Ordering::Relaxed);
    }

    /// Sets whether transactions are refused.
    pub fn refuse(&self, refuses: bool) {
        self.orders.refuses.store(refuses, Ordering::Relaxed);
    }
}

/// Reads one request and responds.
fn serve(mut stream: TcpStream, upstream: &str, orders: &RelayOrders) -> std::io::Result<()> {
    let request: Value = serde_json::from_str(&read_request(&stream)?.body)?;
    let answer = match &request {
        Value::Array(calls) => {
            let answers = calls.iter().map(|call| answer(call, upstream, orders));
            Value::Array(answers.collect::<std::io::Result<_>>()?)
        }
        call => answer(call, upstream, orders)?,
    };
    stream.write_all(response(200, &answer.to_string()).as_bytes())
}

fn answer(call: &Value, upstream: &str, orders: &RelayOrders) -> std::io::Result<Value> {
    let method = call["method"].as_str().unwrap_or_default();
    if method == "eth_sendRawTransaction" && orders.refuses.load(Ordering::Relaxed) {
        let error = json!({ "code": -32000, "message": "txpool is full" });
        return Ok(json!({ "jsonrpc": "2.0", "id": call["id"], "error": error }));
    }
    let (_, text) = post(upstream, &call.to_string())?;
    let mut answer: Value = serde_json::from_str(&text)?;
    let blob_fee = orders.blob_fee.load(Ordering::Relaxed);
    if method == "eth_blobBaseFee" && blob_fee > 0 {
        answer["result"] = json!(format!("{blob_fee:#x}"));
    }
    Ok(answer)
}
