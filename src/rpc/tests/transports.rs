//! The local socket, prefixes of HTTP paths, and compression.

use super::{POST, Server, Setup, toys};
use crate::rpc::{ipc::IpcListener, limits::ServerLimits};
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::{io::Read, os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// A local socket that serves test methods.
struct Local {
    _dir: tempfile::TempDir,
    path: PathBuf,
    token: CancellationToken,
    running: JoinHandle<()>,
}

impl Local {
    fn start(limits: ServerLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("geth.ipc");
        let listener = IpcListener::bind(&path, Arc::new(toys()), limits).unwrap();
        let token = CancellationToken::new();
        Self {
            _dir: dir,
            path,
            running: tokio::spawn(listener.run(token.clone())),
            token,
        }
    }

    async fn connect(&self) -> BufReader<UnixStream> {
        BufReader::new(UnixStream::connect(&self.path).await.unwrap())
    }
}

async fn line(socket: &mut BufReader<UnixStream>) -> Value {
    let mut line = String::new();
    socket.read_line(&mut line).await.unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

fn echo(id: u64, text: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": "toy_echo", "params": [text] }).to_string()
}

#[tokio::test]
async fn a_local_socket_answers_requests_batches_and_nonsense() {
    let local = Local::start(ServerLimits::default());
    let mode = std::fs::metadata(&local.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut socket = local.connect().await;
    // The stream is cut at arbitrary bytes, and has no white space between the values.
    let batch = format!("[{},{}]", echo(2, "b"), echo(3, "c"));
    let stream = format!("{}{batch}", echo(1, "a}{"));
    for bytes in stream.as_bytes().chunks(7) {
        socket.write_all(bytes).await.unwrap();
        socket.flush().await.unwrap();
    }
    let mut responses = [line(&mut socket).await, line(&mut socket).await];
    responses.sort_by_key(Value::is_array);
    assert_eq!(responses[0]["result"], "a}{");
    assert_eq!(responses[1][1]["result"], "c");
    socket.write_all(b"nonsense\n").await.unwrap();
    assert_eq!(line(&mut socket).await["error"]["code"], -32700);
    socket
        .write_all(
            b"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"toy_subscribe\",\"params\":[\"count\"]}",
        )
        .await
        .unwrap();
    let id = line(&mut socket).await["result"].clone();
    for number in 0..3 {
        let event = line(&mut socket).await;
        assert_eq!(
            event["params"],
            json!({ "subscription": id, "result": number })
        );
    }
}

#[tokio::test]
async fn a_value_without_end_ends_its_connection_and_no_other() {
    let local = Local::start(ServerLimits {
        ws_message: 1 << 16,
        ..ServerLimits::default()
    });
    let (mut other, mut endless) = (local.connect().await, local.connect().await);
    let _ = endless.write_all(&vec![b'['; 1 << 20]).await;
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(10), endless.read_to_end(&mut rest));
    let _ = closed.await.expect("the connection was closed");
    other
        .write_all(echo(1, "still here").as_bytes())
        .await
        .unwrap();
    assert_eq!(line(&mut other).await["result"], "still here");
}

#[tokio::test]
async fn incomplete_values_that_wait_for_memory_end_their_connections_in_time() {
    let local = Local::start(ServerLimits {
        body_memory: 256 << 10,
        read: Duration::from_secs(1),
        ..ServerLimits::default()
    });
    // Both values have memory for a first part, and no memory is left for a second part of either.
    let (mut first, mut second) = (local.connect().await, local.connect().await);
    let part = "[".repeat(120 << 10);
    let both = async {
        for _ in 0..2 {
            let (one, other) = (
                first.write_all(part.as_bytes()),
                second.write_all(part.as_bytes()),
            );
            let _ = tokio::join!(one, other);
        }
        let (mut one, mut other) = (Vec::new(), Vec::new());
        let _ = tokio::join!(first.read_to_end(&mut one), second.read_to_end(&mut other));
    };
    let closed = tokio::time::timeout(Duration::from_secs(20), both).await;
    closed.expect("the connections were closed");
    let mut other = local.connect().await;
    let text = "y".repeat(120 << 10);
    other.write_all(echo(1, &text).as_bytes()).await.unwrap();
    assert_eq!(line(&mut other).await["result"], text);
}

#[tokio::test]
async fn a_socket_replaces_a_stale_file_and_not_one_that_is_served() {
    let local = Local::start(ServerLimits::default());
    let bind = || IpcListener::bind(&local.path, Arc::new(toys()), ServerLimits::default());
    let error = bind().err().unwrap().to_string();
    assert!(error.contains("another process serves"), "{error}");
    local.token.cancel();
    local.running.await.unwrap();
    assert!(!local.path.exists(), "the file is removed with its server");
    std::fs::write(&local.path, "left behind").unwrap();
    assert!(IpcListener::bind(&local.path, Arc::new(toys()), ServerLimits::default()).is_ok());
    let long = local.path.with_file_name("x".repeat(120));
    let error = IpcListener::bind(&long, Arc::new(toys()), ServerLimits::default());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("--ipcpath"), "{error}");
}

#[tokio::test]
async fn paths_below_the_prefix_are_served() {
    let server = Server::start(Setup {
        prefix: "/rpc".into(),
        ..Setup::default()
    })
    .await;
    let body = echo(1, "x");
    for (path, status) in [
        ("/rpc", 200),
        ("/rpc/more", 200),
        ("/", 404),
        ("/other", 404),
    ] {
        let head = POST.replacen(" / ", &format!(" {path} "), 1);
        assert_eq!(server.http(&head, &body).await.0, status, "{path}");
    }
    let socket = tokio::net::TcpStream::connect(server.addrs.ws.unwrap())
        .await
        .unwrap();
    drop(socket);
}

#[tokio::test]
async fn answers_are_compressed_for_those_who_ask() {
    let server = Server::plain().await;
    let request = |headers: &str, size: usize| {
        let body =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "toy_big", "params": [size] }).to_string();
        format!(
            "{POST}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let ask = async |headers: &str, size: usize| {
        let mut socket = tokio::net::TcpStream::connect(server.addrs.http.unwrap())
            .await
            .unwrap();
        socket
            .write_all(request(headers, size).as_bytes())
            .await
            .unwrap();
        let mut response = Vec::new();
        socket.read_to_end(&mut response).await.unwrap();
        let end = response
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap();
        let body = response.split_off(end + 4);
        (String::from_utf8(response).unwrap().to_lowercase(), body)
    };
    let (head, body) = ask("accept-encoding: deflate, gzip\r\n", 100_000).await;
    assert!(head.contains("content-encoding: gzip") && head.contains("vary: accept-encoding"));
    assert!(body.len() < 10_000, "{}", body.len());
    let mut text = String::new();
    GzDecoder::new(body.as_slice())
        .read_to_string(&mut text)
        .unwrap();
    let response: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(response["result"].as_str().unwrap().len(), 100_000);
    for (headers, size) in [
        ("", 100_000),
        ("accept-encoding: gzip\r\n", 10),
        ("accept-encoding: gzip;q=0\r\n", 100_000),
    ] {
        let (head, body) = ask(headers, size).await;
        assert!(!head.contains("content-encoding"), "{headers}");
        assert!(body.len() >= size);
    }
}
