//! A stand-in for L1: JSON-RPC and the beacon API on one loopback port, over prepared blocks. Every
//! response is delayed by a given time. Requests are counted, a JSON-RPC batch as one.

use super::l1_block::{SyntheticBlock, quantity};
use alloy_primitives::{B256, hex};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::net::{TcpListener, TcpStream};

/// L1 blocks between the head and the block reported as `safe`.
const SAFE_DEPTH: usize = 32;

/// Behaviour of the stand-in.
#[derive(Clone, Copy)]
pub struct Manners {
    /// Delay of each response.
    pub delay: Duration,
    /// L1 blocks between the head and the block reported as `finalized`.
    pub finalized_depth: usize,
}

/// Numbers of requests so far.
#[derive(Clone, Copy, Default)]
pub struct Requests {
    pub rpc: u64,
    pub beacon: u64,
}

impl Requests {
    pub fn sum(self) -> u64 {
        self.rpc + self.beacon
    }
}

/// A running stand-in for L1, which stops when dropped.
pub struct Layer1 {
    served: Arc<ServedChain>,
    /// URL of both JSON-RPC and the beacon API.
    pub url: String,
    runtime: tokio::runtime::Runtime,
}

struct ServedChain {
    /// All L1 blocks, from genesis on.
    blocks: Vec<SyntheticBlock>,
    by_hash: HashMap<B256, usize>,
    /// Number of the newest visible block.
    head: AtomicUsize,
    manners: Manners,
    rpc: AtomicU64,
    beacon: AtomicU64,
}

impl Layer1 {
    /// Serves the blocks up to number `head`.
    pub fn start(blocks: Vec<SyntheticBlock>, head: usize, manners: Manners) -> Self {
        let by_hash = blocks.iter().map(|block| block.block.hash).zip(0..);
        let served = Arc::new(ServedChain {
            by_hash: by_hash.collect(),
            blocks,
            head: AtomicUsize::new(head),
            manners,
            rpc: AtomicU64::new(0),
            beacon: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        runtime.spawn(accept(listener, served.clone()));
        Self {
            served,
            url,
            runtime,
        }
    }

    /// Makes the blocks up to number `head` visible.
    pub fn show(&self, head: usize) {
        self.served.head.store(head, Ordering::Relaxed);
    }

    /// Number of the newest prepared block, visible or not.
    pub fn last(&self) -> usize {
        self.served.blocks.len() - 1
    }

    /// Number of the newest visible block.
    pub fn head(&self) -> usize {
        self.served.head.load(Ordering::Relaxed)
    }

    pub fn requests(&self) -> Requests {
        Requests {
            rpc: self.served.rpc.load(Ordering::Relaxed),
            beacon: self.served.beacon.load(Ordering::Relaxed),
        }
    }

    /// Restarts the stand-in on the same blocks with other manners, visible up to number `head`.
    pub fn restart(self, head: usize, manners: Manners) -> Self {
        let Self {
            served, runtime, ..
        } = self;
        runtime.shutdown_timeout(Duration::from_secs(5));
        let served = Arc::into_inner(served).expect("no connection is left");
        Self::start(served.blocks, head, manners)
    }
}

async fn accept(listener: TcpListener, served: Arc<ServedChain>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream, served.clone()));
    }
}

async fn serve(stream: TcpStream, served: Arc<ServedChain>) {
    // Without this, a small response would wait until the previous one is acknowledged (Nagle).
    let _ = stream.set_nodelay(true);
    let answer = |request| respond(served.clone(), request);
    // The error is ignored: a node that is killed closes its connections.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await;
}

async fn respond(
    served: Arc<ServedChain>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_beacon = request.method() == Method::GET;
    let count = if is_beacon {
        &served.beacon
    } else {
        &served.rpc
    };
    count.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(served.manners.delay).await;
    let text = if is_beacon {
        served.beacon(request.uri().path())
    } else {
        let body = request.into_body().collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        Some(served.json_rpc(&body))
    };
    let status = if text.is_some() {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    let mut response = Response::new(Full::new(Bytes::from(text.unwrap_or_default())));
    *response.status_mut() = status;
    Ok(response)
}

impl ServedChain {
    fn shown(&self, number: usize) -> Option<&SyntheticBlock> {
        let head = self.head.load(Ordering::Relaxed);
        self.blocks.get(number).filter(|_| number <= head)
    }

    /// The response to a request for a path of the beacon API.
    fn beacon(&self, path: &str) -> Option<String> {
        let genesis = self.blocks[0].block.time;
        let data = match path.rsplit_once('/')? {
            (_, "version") => r#"{"version":"stand-in"}"#.to_owned(),
            (_, "genesis") => format!(r#"{{"genesis_time":"{genesis}"}}"#),
            (_, "spec") => format!(r#"{{"SECONDS_PER_SLOT":"{}"}}"#, super::L1_BLOCK_TIME),
            (folder, slot) if folder.ends_with("/blobs") => {
                let block = self.shown(slot.parse().ok()?)?;
                let blobs = block.posting.blobs.iter().map(hex::encode_prefixed);
                serde_json::to_string(&blobs.collect::<Vec<_>>()).expect("JSON")
            }
            _ => return None,
        };
        Some(format!(r#"{{"data":{data}}}"#))
    }

    /// The response to one JSON-RPC call or to a batch.
    fn json_rpc(&self, body: &[u8]) -> String {
        match serde_json::from_slice(body) {
            Ok(Value::Array(calls)) => {
                let responses: Vec<_> = calls.iter().map(|call| self.call(call)).collect();
                format!("[{}]", responses.join(","))
            }
            Ok(call) => self.call(&call),
            Err(_) => "null".to_owned(),
        }
    }

    fn call(&self, call: &Value) -> String {
        let method = call["method"].as_str().unwrap_or_default();
        let result = self.result(method, &call["params"]);
        let result = result.unwrap_or_else(|| "null".to_owned());
        format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#,
            call["id"]
        )
    }

    fn result(&self, method: &str, params: &Value) -> Option<String> {
        let (first, whole) = (params[0].as_str(), params[1] == true);
        match method {
            "eth_chainId" => Some(format!("\"{:#x}\"", super::L1_CHAIN_ID)),
            "eth_getBlockByNumber" => {
                let head = self.head.load(Ordering::Relaxed);
                let number = match first? {
                    "latest" => head,
                    "safe" => head.saturating_sub(SAFE_DEPTH),
                    "finalized" => head.saturating_sub(self.manners.finalized_depth),
                    number => usize::try_from(quantity(number)?).ok()?,
                };
                Some(self.shown(number)?.json(whole))
            }
            "eth_getBlockByHash" => Some(self.by_hash(first?)?.json(whole)),
            "eth_getBlockReceipts" => Some(self.by_hash(first?)?.receipts_json()),
            _ => None,
        }
    }

    fn by_hash(&self, hash: &str) -> Option<&SyntheticBlock> {
        self.shown(*self.by_hash.get(&hash.parse::<B256>().ok()?)?)
    }
}
