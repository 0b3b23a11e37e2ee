//! Endpoints that send complete, malformed, partial or no responses, over each transport.

use super::*;
use crate::rollup::{
    http::fake::{Canned, CannedServer},
    l1::{L1BlockAt, L1Client, L1Error, L1Tag, fake},
};
use alloy_primitives::B256;

fn config(url: impl Into<String>) -> L1Config {
    L1Config {
        timeout: Duration::from_millis(500),
        ..L1Config::new(url)
    }
}

async fn chain_id_of(answer: fn(&str) -> Canned) -> Result<u64, L1Error> {
    let server = CannedServer::start(answer).await;
    let chain_id = L1Client::new(&config(server.url()))
        .unwrap()
        .chain_id()
        .await;
    if let Err(error) = &chain_id {
        let named = format!("L1 at http://127.0.0.1:{}: eth_chainId: ", server.port);
        assert!(error.to_string().starts_with(&named), "{error}");
    }
    chain_id
}

#[tokio::test]
async fn bad_answers_are_named() {
    let cause = async |answer| chain_id_of(answer).await.unwrap_err().cause.to_string();
    assert_eq!(
        cause(|_| Canned::html()).await,
        "malformed response: a web page where JSON was expected"
    );
    assert_eq!(
        cause(|_| Canned::ok("")).await,
        "malformed response: an empty response"
    );
    let silence = cause(|_| Canned::Silence).await;
    assert!(silence.starts_with("no response within "), "{silence}");
    let half = cause(|_| Canned::Half(br#"{"id":0,"result":"0x384"}"#.to_vec())).await;
    assert!(
        half.contains("body") || half.contains("connection"),
        "{half}"
    );
    let cut = cause(|_| Canned::ok(r#"{"id":0,"result":"0x3"#)).await;
    assert!(cut.starts_with("malformed response: EOF"), "{cut}");
    assert_eq!(
        cause(|_| Canned::status(404, "nothing here")).await,
        "HTTP status 404"
    );
    // The cause is the endpoint's error message, if it sends one.
    const REFUSAL: &str = r#"{"id":0,"error":{"code":-32000,"message":"no key"}}"#;
    assert_eq!(
        cause(|_| Canned::status(401, REFUSAL)).await,
        "error -32000: no key"
    );
    // For a status that demands a cool-down, the cause is the status and not the message.
    assert_eq!(
        cause(|_| Canned::status(503, REFUSAL)).await,
        "HTTP status 503"
    );
    let null = cause(|_| Canned::ok(r#"{"id":0,"result":null}"#)).await;
    assert!(
        null.starts_with("malformed response: invalid type: null"),
        "{null}"
    );
    let good = chain_id_of(|_| Canned::ok(r#"{"id":0,"result":"0x384"}"#)).await;
    assert_eq!(good.unwrap(), 900);
}

#[test]
fn a_batch_is_matched_by_id_and_must_be_whole() {
    let read = |body: &str| {
        let answers = read_body(body.as_bytes(), 3)?;
        let text =
            |answer: L1Response| answer.map_or_else(|e| e.to_string(), |v| v.get().to_owned());
        Ok(answers.into_iter().map(text).collect::<Vec<_>>())
    };
    let shuffled = r#"[{"id":2,"result":"c"},{"id":0,"result":"a"},{"id":1,"error":{"code":-5,"message":"b"}}]"#;
    assert_eq!(read(shuffled).unwrap(), ["\"a\"", "error -5: b", "\"c\""]);
    let short = read(r#"[{"id":2,"result":"c"},{"id":7,"result":"a"},{"id":"0"}]"#);
    assert_eq!(
        short,
        Err(RpcCause::Malformed("1 responses to a batch of 3".into()))
    );
    let refused = read(r#"{"id":null,"error":{"code":-32600,"message":"batch too large"}}"#);
    assert_eq!(
        refused,
        Err(RpcCause::Refused {
            code: -32600,
            message: "batch too large".into()
        })
    );
    let long = "x".repeat(10_000);
    let refused = read_body(
        format!(r#"{{"error":{{"message":"{long}"}}}}"#).as_bytes(),
        2,
    );
    assert!(
        matches!(refused, Err(RpcCause::Refused { message, .. }) if message.len() == MAX_MESSAGE)
    );
}

#[tokio::test]
async fn a_busy_endpoint_gets_the_rest_it_asks_for() {
    let server = CannedServer::start(|_| Canned::Reply {
        status: 429,
        headers: vec!["retry-after: 30".into()],
        body: vec![],
    })
    .await;
    let client = L1Client::new(&config(server.url())).unwrap();
    let first = client.chain_id().await.unwrap_err().cause;
    let rest = Some(Duration::from_secs(30));
    assert_eq!(
        first,
        RpcCause::Status {
            code: 429,
            retry_after: rest
        }
    );
    for _ in 0..3 {
        let next = client.chain_id().await.unwrap_err().cause;
        assert!(
            matches!(next, RpcCause::CoolingDown(rest) if rest.as_secs() > 20),
            "{next}"
        );
    }
    assert_eq!(server.count(), 1, "not asked again");
}

#[tokio::test]
async fn a_short_rest_is_waited_out() {
    let server = CannedServer::start(|_| Canned::status(503, "busy")).await;
    let config = L1Config {
        timeout: Duration::from_secs(5),
        ..config(server.url())
    };
    let client = L1Client::new(&config).unwrap();
    client.chain_id().await.unwrap_err();
    let begin = std::time::Instant::now();
    let again = client.chain_id().await.unwrap_err().cause;
    assert!(
        matches!(again, RpcCause::Status { code: 503, .. }),
        "{again}"
    );
    assert!(
        begin.elapsed() > Duration::from_millis(700),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(server.count(), 2);
}

#[tokio::test]
async fn the_next_endpoint_takes_over_and_stays() {
    let bad = CannedServer::start(|_| Canned::html()).await;
    let good = CannedServer::start(|_| Canned::ok(r#"{"id":0,"result":"0x384"}"#)).await;
    let client = L1Client::new(&config(format!("{}, {}", bad.url(), good.url()))).unwrap();
    assert_eq!(client.endpoint(), bad.url());
    for _ in 0..3 {
        assert_eq!(client.chain_id().await.unwrap(), 900);
    }
    assert_eq!(client.endpoint(), good.url());
    assert_eq!((bad.count(), good.count()), (1, 3));
    assert!(L1Client::new(&config(" , ")).is_err());
    assert!(L1Client::new(&config("http://127.0.0.1:1,localhost")).is_err());
}

#[tokio::test]
async fn calls_are_held_to_the_rate() {
    let server = CannedServer::start(|_| Canned::ok(r#"{"id":0,"result":"0x384"}"#)).await;
    let client = L1Client::new(&L1Config {
        rate_limit: 20.0,
        max_batch: 2,
        ..config(server.url())
    })
    .unwrap();
    let begin = std::time::Instant::now();
    for _ in 0..8 {
        client.chain_id().await.unwrap();
    }
    // Two requests go out at once, the other six at 20 per second.
    assert!(
        begin.elapsed() >= Duration::from_millis(290),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn a_websocket_answers_calls_and_batches_and_is_made_again() {
    let l1 = fake::FakeL1::start().await;
    let headers = fake::chain(5, 100, 3, 1);
    l1.set(&headers);
    let url = format!("ws://user:secret@127.0.0.1:{}/key", l1.port);
    let client = L1Client::new(&config(url)).unwrap();
    assert_eq!(client.endpoint(), format!("ws://127.0.0.1:{}", l1.port));
    let head = client.block(L1Tag::Latest).await.unwrap();
    assert_eq!(head, Some(fake::block(&headers[2])));
    assert_eq!(
        client.block_at(L1BlockAt::Hash(B256::ZERO)).await.unwrap(),
        None
    );

    let transport = Transport::new(&l1.url().replace("http", "ws"), &config("")).unwrap();
    let call = |number: &str| RpcCall {
        method: "eth_getBlockByNumber",
        params: json!([number, false]),
    };
    let answers = transport
        .send(&[call("0x6"), call("0x63"), call("0x5")], 1 << 20)
        .await
        .unwrap();
    let numbers: Vec<Value> = answers
        .into_iter()
        .map(|answer| {
            serde_json::from_str::<Value>(answer.unwrap().get()).unwrap()["number"].clone()
        })
        .collect();
    assert_eq!(numbers, [json!("0x6"), Value::Null, json!("0x5")]);
    let Transport::Socket(socket) = &transport else {
        panic!("a socket");
    };
    *socket.client.lock().await = None;
    assert_eq!(
        transport.send(&[call("0x6")], 1 << 20).await.unwrap().len(),
        1
    );

    let gone = L1Client::new(&config("ws://127.0.0.1:1")).unwrap();
    let error = gone.chain_id().await.unwrap_err();
    assert!(
        matches!(&error.cause, RpcCause::Transport(text) if text.contains("refused")),
        "{error}"
    );
}

/// The server accepts the connection and sends nothing.
#[tokio::test]
async fn a_websocket_without_a_handshake_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let client = L1Client::new(&config(url)).unwrap();
    let call = tokio::time::timeout(Duration::from_secs(10), client.chain_id());
    let error = call.await.unwrap().unwrap_err();
    assert!(matches!(error.cause, RpcCause::Transport(_)), "{error}");
}

/// The server closes each connection after one response.
#[tokio::test]
async fn a_lost_connection_is_made_again() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("geth.ipc");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let server = async {
        let mut request = vec![0; 4096];
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let count = stream.read(&mut request).await.unwrap();
            let Ok(request) = serde_json::from_slice::<Value>(&request[..count]) else {
                continue;
            };
            let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": "0x384" });
            let text = answer.to_string();
            let _ = stream.write_all(text.as_bytes()).await;
        }
    };
    let client = L1Client::new(&config(path.display().to_string())).unwrap();
    let calls = async {
        for _ in 0..3 {
            // A call may fail because the connection has just been closed.
            while client.chain_id().await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    tokio::select! {
        called = tokio::time::timeout(Duration::from_secs(20), calls) => called.unwrap(),
        () = server => {}
    }
}

#[tokio::test]
async fn a_unix_socket_answers_calls() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("geth.ipc");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        loop {
            let count = stream.read(&mut request).await.unwrap();
            let request: Value = serde_json::from_slice(&request[..count]).unwrap();
            let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": "0x384" });
            // Send the response in two pieces, without a line break.
            let text = answer.to_string();
            stream.write_all(&text.as_bytes()[..9]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            stream.write_all(&text.as_bytes()[9..]).await.unwrap();
        }
    };
    let client = L1Client::new(&config(path.display().to_string())).unwrap();
    let calls = async {
        for _ in 0..3 {
            assert_eq!(client.chain_id().await.unwrap(), 900);
        }
    };
    tokio::select! {
        () = calls => {}
        () = server => {}
    }
    assert_eq!(client.endpoint(), path.display().to_string());
}
