//! A JSON-RPC relay in front of a server. On command it returns wrong responses; other calls are
//! forwarded.

use crate::{
    net::{call, number, post},
    stand_in::{listen, read_request, response},
};
use serde_json::{Value, json};
use std::{
    io::Write,
    net::TcpStream,
    sync::{Arc, Mutex},
    time::Duration,
};

/// A wrong response to one call.
#[derive(Clone, Copy)]
pub enum RelayFault {
    /// A JSON-RPC error; the call is not forwarded.
    Error(i32, &'static str),
    /// The usual response to a transaction, which is not forwarded and so is lost.
    Vanish,
    /// The server's response, changed by a function.
    Change(fn(&mut Value)),
    /// The server's response as it was this number of L1 blocks ago.
    Behind(u64),
    /// This HTTP status for the whole request.
    Status(u16),
    /// No response to the whole request.
    Silence,
}

/// A fault that a test has ordered.
struct RelayOrder {
    /// Method of the affected calls; empty for any method.
    method: &'static str,
    fault: RelayFault,
    /// Number of calls that the fault still applies to.
    left: usize,
    /// Whether only every second request is affected.
    alternates: bool,
    /// Number of requests so far whose first call matched.
    turn: usize,
}

#[derive(Default)]
struct RelayState {
    upstream: String,
    orders: Vec<RelayOrder>,
}

/// A running relay, which serves until the test process ends.
pub struct Relay {
    pub url: String,
    state: Arc<Mutex<RelayState>>,
}

impl Relay {
    pub fn start(upstream: &str) -> Self {
        let state = Arc::new(Mutex::new(RelayState {
            upstream: upstream.into(),
            ..RelayState::default()
        }));
        let shared = state.clone();
        let url = listen(move |stream| serve(stream, &shared));
        Self { url, state }
    }

    /// Makes the next `times` calls of a method fail (of any method if empty).
    pub fn order(&self, method: &'static str, fault: RelayFault, times: usize) {
        self.add(method, fault, times, false);
    }

    /// Makes every second request fail, until [`Relay::clear`].
    pub fn alternate(&self, fault: RelayFault) {
        self.add("", fault, usize::MAX, true);
    }

    /// Makes every call of a method fail (of any method if empty), until [`Relay::clear`].
    pub fn always(&self, method: &'static str, fault: RelayFault) {
        self.add(method, fault, usize::MAX, false);
    }

    fn add(&self, method: &'static str, fault: RelayFault, left: usize, alternates: bool) {
        let mut state = self.state.lock().expect("no panic");
        state.orders.push(RelayOrder {
            method,
            fault,
            left,
            alternates,
            turn: 0,
        });
    }

    /// Whether all ordered faults have been used up.
    pub fn is_done(&self) -> bool {
        self.state.lock().expect("no panic").orders.is_empty()
    }

    /// Number of requests so far whose first call matched an order that is still active.
    pub fn requests(&self) -> usize {
        let state = self.state.lock().expect("no panic");
        state.orders.iter().map(|order| order.turn).sum()
    }

    pub fn clear(&self) {
        self.state.lock().expect("no panic").orders.clear();
    }
}

impl RelayState {
    /// The fault for a call, if one is ordered. `is_first` marks the first call of a request: all
    /// calls in a batch count as one request.
    fn fault(&mut self, method: &str, is_first: bool) -> Option<RelayFault> {
        let fits = |order: &RelayOrder| order.method.is_empty() || order.method == method;
        let at = self.orders.iter().position(fits)?;
        let order = &mut self.orders[at];
        order.turn += usize::from(is_first);
        if order.alternates && order.turn.is_multiple_of(2) {
            return None;
        }
        let fault = order.fault;
        order.left -= 1;
        if order.left == 0 {
            self.orders.remove(at);
        }
        Some(fault)
    }
}

/// Reads one request and responds.
fn serve(mut stream: TcpStream, state: &Mutex<RelayState>) -> std::io::Result<()> {
    let body = read_request(&stream)?.body;
    let request: Value = serde_json::from_str(&body).expect("JSON");
    let calls = match &request {
        Value::Array(calls) => calls.clone(),
        call => vec![call.clone()],
    };
    let (upstream, faults) = {
        let mut state = state.lock().expect("no panic");
        let method = |call: &Value| call["method"].as_str().unwrap_or_default().to_owned();
        let indexed = calls.iter().enumerate();
        let faults = indexed.map(|(index, call)| state.fault(&method(call), index == 0));
        let faults: Vec<_> = faults.collect();
        (state.upstream.clone(), faults)
    };
    for fault in faults.iter().flatten() {
        match fault {
            RelayFault::Status(status) => {
                let response = response(*status, "");
                return stream.write_all(response.as_bytes());
            }
            RelayFault::Silence => {
                std::thread::sleep(Duration::from_secs(30));
                return Ok(());
            }
            _ => {}
        }
    }
    let answers = calls.iter().zip(&faults);
    let answers: Vec<Value> = answers
        .map(|(call, fault)| answer(&upstream, call, *fault))
        .collect::<std::io::Result<_>>()?;
    let body = match request {
        Value::Array(_) => Value::from(answers),
        _ => answers.into_iter().next().unwrap_or_default(),
    };
    let response = response(200, &body.to_string());
    stream.write_all(response.as_bytes())
}

/// The response to one call.
fn answer(upstream: &str, request: &Value, fault: Option<RelayFault>) -> std::io::Result<Value> {
    let result = |value: Value| json!({ "jsonrpc": "2.0", "id": request["id"], "result": value });
    let passed_on = |request: &Value| -> std::io::Result<Value> {
        let (_, body) = post(upstream, &request.to_string())?;
        Ok(serde_json::from_str(&body)?)
    };
    Ok(match fault {
        Some(RelayFault::Error(code, message)) => {
            let error = json!({ "code": code, "message": message });
            json!({ "jsonrpc": "2.0", "id": request["id"], "error": error })
        }
        Some(RelayFault::Vanish) => result(json!(alloy_primitives::B256::repeat_byte(7))),
        Some(RelayFault::Change(change)) => {
            let mut answer = passed_on(request)?;
            change(&mut answer["result"]);
            answer
        }
        Some(RelayFault::Behind(blocks)) => behind(upstream, request, blocks, passed_on)?,
        _ => passed_on(request)?,
    })
}

/// The response of an L1 that lacks the newest blocks.
fn behind(
    upstream: &str,
    request: &Value,
    blocks: u64,
    passed_on: impl Fn(&Value) -> std::io::Result<Value>,
) -> std::io::Result<Value> {
    let head = call(upstream, "eth_blockNumber", json!([])).map_or(0, |head| number(&head));
    let head = head.saturating_sub(blocks);
    let mut request = request.clone();
    for param in request["params"].as_array_mut().into_iter().flatten() {
        if param == "latest" {
            *param = json!(format!("{head:#x}"));
        }
    }
    let mut answer = passed_on(&request)?;
    match request["method"].as_str() {
        Some("eth_blockNumber") => answer["result"] = json!(format!("{head:#x}")),
        Some("eth_getTransactionReceipt") => {
            let block = &answer["result"]["blockNumber"];
            if block.is_string() && number(block) > head {
                answer["result"] = Value::Null;
            }
        }
        _ => {}
    }
    Ok(answer)
}
