//! An L1 endpoint before another one, which fails by order where blocks and receipts are asked for. It
//! always tells L1's head.

use crate::{
    net::{ask, number, post},
    stand_in::{listen, read_request, response},
};
use serde_json::{Value, json};
use std::{
    io::Write,
    net::TcpStream,
    sync::{Arc, Mutex},
    time::Duration,
};

/// How requests for blocks and receipts are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L1Fault {
    None,
    /// There is no such block, although the head is above it.
    Withheld,
    /// The parent of the block.
    OtherBlock,
    /// The block lacks its last transaction.
    CutBlock,
    /// The receipts have no logs.
    NoLogs,
    /// A JSON-RPC error.
    Refused,
    /// Status 503.
    Busy,
    /// A web page with status 200.
    Html,
    /// The first half of the answer.
    Half,
    /// No answer.
    Silence,
}

/// State that the server's threads share.
struct EndpointState {
    upstream: String,
    fault: L1Fault,
    /// Requests that the fault has spoiled.
    spoiled: usize,
}

pub struct StandInL1 {
    pub url: String,
    state: Arc<Mutex<EndpointState>>,
}

impl StandInL1 {
    /// Serves the L1 at `upstream`, until the process ends.
    pub fn start(upstream: &str) -> Self {
        let state = Arc::new(Mutex::new(EndpointState {
            upstream: upstream.into(),
            fault: L1Fault::None,
            spoiled: 0,
        }));
        let shared = state.clone();
        let url = listen(move |stream| serve(stream, &shared));
        Self { url, state }
    }

    pub fn set(&self, fault: L1Fault) {
        let mut state = self.state.lock().expect("no panic");
        (state.fault, state.spoiled) = (fault, 0);
    }

    /// Serves another L1 from now on.
    pub fn set_upstream(&self, upstream: &str) {
        self.state.lock().expect("no panic").upstream = upstream.into();
    }

    /// Requests that the fault has spoiled since it was set.
    pub fn spoiled(&self) -> usize {
        self.state.lock().expect("no panic").spoiled
    }
}

/// Answers one request.
fn serve(mut stream: TcpStream, state: &Mutex<EndpointState>) -> std::io::Result<()> {
    let body = read_request(&stream)?.body;
    let (upstream, fault) = {
        let state = state.lock().expect("no panic");
        (state.upstream.clone(), state.fault)
    };
    let (status, answer) = post(&upstream, &body)?;
    let request: Value = serde_json::from_str(&body).expect("JSON");
    let is_spoiled = calls(&request).any(|call| is_spoiled_by(fault, call));
    if is_spoiled {
        state.lock().expect("no panic").spoiled += 1;
    }
    let response = match fault {
        _ if !is_spoiled => response(status, &answer),
        L1Fault::Busy => response(503, ""),
        L1Fault::Html => response(200, "<html>sign in</html>"),
        L1Fault::Half => {
            let mut response = response(status, &answer);
            response.truncate(response.len() - answer.len() / 2);
            response
        }
        L1Fault::Silence => {
            std::thread::sleep(Duration::from_secs(60));
            return Ok(());
        }
        _ => response(status, &spoil(fault, &request, &answer, &upstream)),
    };
    stream.write_all(response.as_bytes())
}

/// The calls of a request, which may be a batch.
fn calls(request: &Value) -> impl Iterator<Item = &Value> {
    let one = request.is_object().then_some(request);
    one.into_iter()
        .chain(request.as_array().into_iter().flatten())
}

fn is_spoiled_by(fault: L1Fault, call: &Value) -> bool {
    let is_block = call["params"][0]
        .as_str()
        .is_some_and(|block| block.starts_with("0x"));
    let method = call["method"].as_str().unwrap_or_default();
    let (is_number, is_receipts) = (
        method == "eth_getBlockByNumber",
        method == "eth_getBlockReceipts",
    );
    let is_whole = call["params"][1] == json!(true);
    is_block
        && match fault {
            L1Fault::None => false,
            L1Fault::Withheld | L1Fault::OtherBlock => is_number,
            L1Fault::CutBlock => is_number && is_whole,
            L1Fault::NoLogs => is_receipts,
            _ => is_number || is_receipts,
        }
}

/// The answer with other results for the calls that the fault spoils.
fn spoil(fault: L1Fault, request: &Value, answer: &str, upstream: &str) -> String {
    let mut answer: Value = serde_json::from_str(answer).expect("JSON");
    let answers: Vec<&mut Value> = match &mut answer {
        Value::Array(list) => list.iter_mut().collect(),
        one => vec![one],
    };
    for reply in answers {
        let call = calls(request).find(|call| call["id"] == reply["id"]);
        let Some(call) = call.filter(|call| is_spoiled_by(fault, call)) else {
            continue;
        };
        match fault {
            L1Fault::Withheld => reply["result"] = Value::Null,
            L1Fault::OtherBlock => {
                let parent = number(&call["params"][0]).saturating_sub(1);
                let params = json!([format!("{parent:#x}"), call["params"][1]]);
                reply["result"] = ask(upstream, "eth_getBlockByNumber", params);
            }
            L1Fault::CutBlock => {
                if let Some(list) = reply["result"]["transactions"].as_array_mut() {
                    list.pop();
                }
            }
            L1Fault::NoLogs => {
                for receipt in reply["result"].as_array_mut().into_iter().flatten() {
                    receipt["logs"] = json!([]);
                }
            }
            _ => {
                let error = json!({ "code": -32000, "message": "out of order" });
                *reply = json!({ "jsonrpc": "2.0", "id": reply["id"], "error": error });
            }
        }
    }
    answer.to_string()
}
