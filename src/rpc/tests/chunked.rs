//! Traces that are sent over HTTP while they are being made.

use super::{
    POST, Server, Setup,
    debug::{COUNTDOWN, LOOP, call_with, chain},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::{io::AsyncWriteExt, net::TcpSocket, time::sleep};

#[tokio::test]
async fn over_http_a_large_trace_comes_in_parts() {
    let mut chain = chain(|context| context.bounds.trace_bytes = 1 << 20).await;
    let api = std::mem::take(&mut chain.api);
    let server = Server::of(api, Setup::default()).await;
    // Some 50,000 lines, which exceed the limit on traces in memory.
    let mut params = call_with(COUNTDOWN, json!({ "timeout": "1m" }));
    params[0]["gas"] = json!("0x1e8480");
    params[0]["input"] = json!(format!("0x{:064x}", 10_000));
    let request =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "debug_traceCall", "params": params });
    let (status, response) = server.http(POST, &request.to_string()).await;
    assert_eq!(status, 200);
    let (headers, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(
        headers
            .to_lowercase()
            .contains("transfer-encoding: chunked"),
        "{headers}"
    );
    let response: Value = serde_json::from_str(&joined(body)).unwrap();
    let logs = response["result"]["structLogs"].as_array().unwrap();
    assert!(logs.len() > 50_000, "{}", logs.len());
    assert_eq!(response["result"]["failed"], false);
    assert_eq!(response["id"], 1);
}

/// Joins the chunks of an HTTP body, without their lengths.
fn joined(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        whole.push_str(&rest[..length]);
        body = rest[length..].strip_prefix("\r\n").unwrap();
        if length == 0 {
            break;
        }
    }
    whole
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_whose_reader_takes_nothing_ends() {
    let timeout = Duration::from_millis(300);
    let mut chain = chain(|context| context.bounds.reader_timeout = timeout).await;
    let api = std::mem::take(&mut chain.api);
    let server = Server::of(api, Setup::default()).await;
    let mut params = call_with(LOOP, json!({ "timeout": "2m" }));
    params[0]["gas"] = json!("0xffffffffffff");
    let request =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "debug_traceCall", "params": params });
    let request = request.to_string();
    let length = request.len();
    let socket = TcpSocket::new_v4().unwrap();
    // A small receive buffer, so that only a small part of the trace is in the system's buffers.
    socket.set_recv_buffer_size(4096).unwrap();
    let mut socket = socket.connect(server.addrs.http.unwrap()).await.unwrap();
    let request = format!("{POST}\r\ncontent-length: {length}\r\n\r\n{request}");
    socket.write_all(request.as_bytes()).await.unwrap();
    let started = || chain.context.bounds.heavy.started_traces();
    for wanted in [1, 0] {
        let begun = Instant::now();
        while started() != wanted {
            assert!(begun.elapsed() < Duration::from_secs(60), "{wanted}");
            sleep(Duration::from_millis(10)).await;
        }
    }
}
