//! A proxy in front of an L1 endpoint. It fails on command when blocks or receipts are requested,
//! and always reports L1's head correctly.

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

/// Faults in the responses to requests for blocks and receipts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L1Fault {
    None,
    /// The block is reported as missing, although the head is above it.
    Withheld,
    /// The parent is returned instead of the requested block.
    OtherBlock,
    /// The block is returned without its last transaction.
    CutBlock,
    /// The receipts are returned without logs.
    NoLogs,
    /// A JSON-RPC error is returned.
    Refused,
    /// The response has status 503.
    Busy,
    /// The response is a web page with status 200.
    Html,
    /// The body of the response is cut in half.
    Half,
    /// No response is sent.
    Silence,
}

/// State shared by the server's threads.
struct EndpointState {
    upstream: String,
    fault: L1Fault,
    /// Number of requests whose responses the current fault has changed.
    spoiled: usize,
}

pub struct StandInL1 {
    pub url: String,
    state: Arc<Mutex<EndpointState>>,
}

impl StandInL1 {
    /// Starts a proxy for the L1 at `upstream`, which runs until the test process ends.
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

    /// Switches to another L1 at `upstream`.
    pub fn set_upstream(&self, upstream: &str) {
        self.state.lock().expect("no panic").upstream = upstream.into();
    }

    /// Number of requests whose responses the current fault has changed since it was set.
    pub fn spoiled(&self) -> usize {
        self.state.lock().expect("no panic").spoiled
    }
}

/// Reads one request and responds.
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

/// The response, in which the results of the affected calls are replaced according to the fault.
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
