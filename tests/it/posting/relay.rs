//! A JSON-RPC relay before an L1, which changes its blob fee and refuses transactions by order.

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

/// Blob base fee at which calldata is cheaper, wei.
pub const DEAR: u64 = 200_000_000_000;

/// Orders that the server's threads follow.
#[derive(Default)]
struct RelayOrders {
    /// Blob base fee in wei; 0 is that of the L1.
    blob_fee: AtomicU64,
    refuses: AtomicBool,
}

pub struct RpcRelay {
    pub url: String,
    orders: Arc<RelayOrders>,
}

impl RpcRelay {
    /// Serves the L1 at `upstream`, until the process ends.
    pub fn start(upstream: &str) -> Self {
        let orders = Arc::new(RelayOrders::default());
        let (shared, upstream) = (orders.clone(), upstream.to_owned());
        let url = listen(move |stream| serve(stream, &upstream, &shared));
        Self { url, orders }
    }

    /// Sets the blob base fee that is shown, in wei; 0 is that of the L1.
    pub fn show_blob_fee(&self, wei: u64) {
        self.orders.blob_fee.store(wei, Ordering::Relaxed);
    }

    /// Whether transactions are refused.
    pub fn refuse(&self, refuses: bool) {
        self.orders.refuses.store(refuses, Ordering::Relaxed);
    }
}

/// Answers one request.
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
