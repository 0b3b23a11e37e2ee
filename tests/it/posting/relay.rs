//! A JSON-RPC relay before an L1, which changes its blob fee and refuses transactions by order.

use crate::net::post;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
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
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let orders = Arc::new(RelayOrders::default());
        let (shared, upstream) = (orders.clone(), upstream.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, upstream) = (shared.clone(), upstream.clone());
                // A client that hangs up is no concern of the server.
                std::thread::spawn(move || serve(stream, &upstream, &shared).ok());
            }
        });
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
fn serve(stream: TcpStream, upstream: &str, orders: &RelayOrders) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line)? > 2 {
        let header = line.to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let request: Value = serde_json::from_slice(&body)?;
    let answer = match &request {
        Value::Array(calls) => {
            let answers = calls.iter().map(|call| answer(call, upstream, orders));
            Value::Array(answers.collect::<std::io::Result<_>>()?)
        }
        call => answer(call, upstream, orders)?,
    };
    let answer = answer.to_string();
    let mut stream = reader.into_inner();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
        answer.len()
    )
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
