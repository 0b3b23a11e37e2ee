//! WebSocket sessions, with jsonrpsee's socket library as the client.

use super::*;
use soketto::{
    Incoming, Receiver, Sender,
    connection::CloseReason,
    handshake::{Client, ServerResponse},
};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

pub(super) struct Socket {
    sender: Sender<Compat<TcpStream>>,
    receiver: Receiver<Compat<TcpStream>>,
}

pub(super) async fn connect(addr: SocketAddr, origin: Option<&str>) -> Result<Socket, u16> {
    let socket = TcpStream::connect(addr).await.unwrap();
    let headers: Vec<_> = origin
        .iter()
        .map(|o| soketto::handshake::client::Header {
            name: "origin",
            value: o.as_bytes(),
        })
        .collect();
    let mut client = Client::new(socket.compat(), "localhost", "/");
    client.set_headers(&headers);
    match client.handshake().await.unwrap() {
        ServerResponse::Accepted { .. } => {
            let mut builder = client.into_builder();
            builder.set_max_message_size(64 << 20);
            builder.set_max_frame_size(64 << 20);
            let (sender, receiver) = builder.finish();
            Ok(Socket { sender, receiver })
        }
        ServerResponse::Rejected { status_code } => Err(status_code),
        ServerResponse::Redirect { status_code, .. } => Err(status_code),
    }
}

impl Socket {
    async fn open(server: &Server) -> Self {
        connect(server.addrs.ws.unwrap(), None).await.unwrap()
    }

    async fn send(&mut self, text: &str) {
        self.sender.send_text(text).await.unwrap();
        self.sender.flush().await.unwrap();
    }

    /// The next message; `None` if the server has closed the connection.
    async fn next(&mut self) -> Option<String> {
        let mut message = Vec::new();
        let received = tokio::time::timeout(
            Duration::from_secs(10),
            self.receiver.receive_data(&mut message),
        )
        .await;
        received.expect("a message in time").ok()?;
        Some(String::from_utf8(message).unwrap())
    }

    pub(super) async fn ask(&mut self, text: &str) -> String {
        self.send(text).await;
        self.next().await.unwrap()
    }

    async fn subscribe(&mut self, kind: &str) {
        let response = self
            .ask(&format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"toy_subscribe","params":["{kind}"]}}"#
            ))
            .await;
        assert!(response.contains(r#""result":"0x"#), "{response}");
    }

    /// The server's close frame, which comes after all messages.
    async fn close_reason(&mut self) -> CloseReason {
        let closed = async {
            loop {
                let mut message = Vec::new();
                if let Incoming::Closed(reason) = self.receiver.receive(&mut message).await.unwrap()
                {
                    return reason;
                }
            }
        };
        let closed = tokio::time::timeout(Duration::from_secs(10), closed).await;
        closed.expect("a close frame in time")
    }
}

#[tokio::test]
async fn requests_and_batches_are_answered() {
    let server = Server::plain().await;
    let mut socket = Socket::open(&server).await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"toy_echo","params":["hi"]}"#;
    assert_eq!(
        socket.ask(call).await,
        r#"{"jsonrpc":"2.0","id":1,"result":"hi"}"#
    );
    assert_eq!(
        socket.ask(&format!("[{call}]")).await,
        r#"[{"jsonrpc":"2.0","id":1,"result":"hi"}]"#
    );
    let response = socket.ask("{").await;
    assert_eq!(
        response,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}"#
    );
    // A slow call does not delay the next one.
    socket
        .send(r#"{"jsonrpc":"2.0","id":2,"method":"toy_sleep"}"#)
        .await;
    assert_eq!(
        socket.ask(call).await,
        r#"{"jsonrpc":"2.0","id":1,"result":"hi"}"#
    );
}

#[tokio::test]
async fn the_answer_to_a_subscription_comes_before_its_events() {
    let server = Server::plain().await;
    let mut socket = Socket::open(&server).await;
    let response = socket
        .ask(r#"{"jsonrpc":"2.0","id":1,"method":"toy_subscribe","params":["count"]}"#)
        .await;
    let id = response
        .strip_prefix(r#"{"jsonrpc":"2.0","id":1,"result":"0x"#)
        .unwrap()
        .strip_suffix("\"}")
        .unwrap();
    assert!(
        !id.starts_with('0') && id.len() <= 32 && id.bytes().all(|digit| digit.is_ascii_hexdigit()),
        "{id}"
    );
    for n in 0..3 {
        let event = format!(
            r#"{{"jsonrpc":"2.0","method":"toy_subscription","params":{{"subscription":"0x{id}","result":{n}}}}}"#
        );
        assert_eq!(socket.next().await.unwrap(), event);
    }
    let cancel =
        format!(r#"{{"jsonrpc":"2.0","id":2,"method":"toy_unsubscribe","params":["0x{id}"]}}"#);
    assert_eq!(
        socket.ask(&cancel).await,
        r#"{"jsonrpc":"2.0","id":2,"result":true}"#
    );
    let unknown =
        r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"subscription not found"}}"#;
    assert_eq!(socket.ask(&cancel).await, unknown);
}

#[tokio::test]
async fn unknown_subscriptions_are_refused() {
    let server = Server::plain().await;
    let mut socket = Socket::open(&server).await;
    for (method, params, code, message) in [
        (
            "toy_subscribe",
            r#"["tides"]"#,
            -32601,
            r#"no \"tides\" subscription in toy namespace"#,
        ),
        (
            "toy_subscribe",
            "[]",
            -32602,
            "expected subscription name as first argument",
        ),
        (
            "sea_subscribe",
            r#"["tides"]"#,
            -32601,
            "the method sea_subscribe does not exist/is not available",
        ),
        (
            "sea_unsubscribe",
            r#"["0x1"]"#,
            -32601,
            "the method sea_unsubscribe does not exist/is not available",
        ),
    ] {
        let response = socket
            .ask(&format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#
            ))
            .await;
        assert_eq!(
            response,
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"{message}"}}}}"#
            )
        );
    }
}

#[tokio::test]
async fn a_subscription_that_cannot_go_on_ends_the_connection() {
    let server = Server::plain().await;
    let mut socket = Socket::open(&server).await;
    socket
        .ask(r#"{"jsonrpc":"2.0","id":1,"method":"toy_subscribe","params":["brief"]}"#)
        .await;
    assert!(socket.next().await.unwrap().contains("\"result\":7"));
    assert_eq!(socket.next().await, None);
}

#[tokio::test]
async fn the_close_frame_says_why_a_subscription_ended() {
    let server = Server::plain().await;
    for (kind, code, reason) in [
        ("brief", 1000, ""),
        (
            "slow",
            1008,
            "the subscriber reads too slowly: it is 9 blocks behind",
        ),
        ("broken", 1011, "é".repeat(61).as_str()),
        (
            "crowded",
            1013,
            "too many events wait for their readers: subscribe again later",
        ),
    ] {
        let mut socket = Socket::open(&server).await;
        socket.subscribe(kind).await;
        assert!(socket.next().await.unwrap().contains("\"result\":7"));
        let close = socket.close_reason().await;
        assert_eq!((close.code, close.descr.as_deref()), (code, Some(reason)));
    }
}

#[tokio::test]
async fn origins_are_checked() {
    let server = Server::plain().await;
    let addr = server.addrs.ws.unwrap();
    assert!(connect(addr, Some("http://localhost")).await.is_ok());
    assert!(connect(addr, Some("http://localhost:3000")).await.is_ok());
    assert_eq!(
        connect(addr, Some("https://evil.example")).await.err(),
        Some(403)
    );
    let origins = vec!["https://app.example".into(), "other.example:81".into()];
    let server = Server::start(Setup {
        origins,
        ..Setup::default()
    })
    .await;
    let addr = server.addrs.ws.unwrap();
    for (origin, allowed) in [
        ("https://app.example", true),
        ("https://app.example:8443", true),
        ("http://app.example", false),
        ("http://other.example:81", true),
        ("http://other.example:82", false),
        ("http://localhost", false),
    ] {
        assert_eq!(
            connect(addr, Some(origin)).await.is_ok(),
            allowed,
            "{origin}"
        );
    }
}

#[tokio::test]
async fn messages_and_connections_are_bounded() {
    let limits = ServerLimits {
        ws_message: 1000,
        ws_connections: 1,
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let mut socket = Socket::open(&server).await;
    assert_eq!(
        connect(server.addrs.ws.unwrap(), None).await.err(),
        Some(503)
    );
    socket.send(&" ".repeat(1001)).await;
    assert_eq!(socket.next().await, None);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(
        connect(server.addrs.ws.unwrap(), None).await.is_ok(),
        "the place is free again"
    );
}

#[tokio::test]
async fn a_refused_websocket_gives_its_connection_back_at_once() {
    let limits = ServerLimits {
        ws_connections: 1,
        connections: 4,
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let mut living = Socket::open(&server).await;
    // A client may keep its socket open after a refused handshake, so the server closes the
    // connection.
    let handshake = "GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
        sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";
    for _ in 0..8 {
        let mut socket = TcpStream::connect(server.addrs.ws.unwrap()).await.unwrap();
        socket.write_all(handshake.as_bytes()).await.unwrap();
        let mut response = String::new();
        let read = tokio::time::timeout(
            Duration::from_secs(30),
            socket.read_to_string(&mut response),
        )
        .await;
        assert!(
            read.is_ok_and(|read| read.is_ok()),
            "the connection is kept open"
        );
        assert!(
            response.starts_with("HTTP/1.1 503") && response.contains("connection: close"),
            "{response}"
        );
    }
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"toy_echo","params":["hi"]}"#;
    assert_eq!(
        living.ask(call).await,
        r#"{"jsonrpc":"2.0","id":1,"result":"hi"}"#
    );
}

#[tokio::test]
async fn subscriptions_of_a_connection_are_bounded() {
    let server = Server::plain().await;
    let mut socket = Socket::open(&server).await;
    let subscribe = r#"{"jsonrpc":"2.0","id":1,"method":"toy_subscribe","params":["never"]}"#;
    let begun = socket
        .ask(&format!("[{}]", vec![subscribe; 100].join(",")))
        .await;
    assert_eq!(begun.matches(r#""result":"0x"#).count(), 100);
    let refused = r#"{"code":-32000,"message":"too many subscriptions on this connection"}"#;
    assert_eq!(
        socket.ask(subscribe).await,
        format!(r#"{{"jsonrpc":"2.0","id":1,"error":{refused}}}"#)
    );
    // Other connections are not affected. This connection can subscribe again when one of its
    // subscriptions has ended.
    let mut other = Socket::open(&server).await;
    assert!(other.ask(subscribe).await.contains(r#""result":"0x"#));
    let id = begun
        .split(r#""result":""#)
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let end = format!(r#"{{"jsonrpc":"2.0","id":2,"method":"toy_unsubscribe","params":["{id}"]}}"#);
    assert_eq!(
        socket.ask(&end).await,
        r#"{"jsonrpc":"2.0","id":2,"result":true}"#
    );
    assert!(socket.ask(subscribe).await.contains(r#""result":"0x"#));
}

#[tokio::test]
async fn large_messages_wait_for_each_other() {
    // With so little memory, a large message takes all of it at once. The next one is exempt.
    let limits = ServerLimits {
        body_memory: 4 << 10,
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    // These requests never end. One holds all memory for requests, the other the exemption.
    let sleep = r#"{"jsonrpc":"2.0","id":1,"method":"toy_sleep"}"#;
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut socket = Socket::open(&server).await;
        socket
            .send(&format!("{sleep}{}", " ".repeat(64 << 10)))
            .await;
        slow.push(socket);
    }
    let mut quick = Socket::open(&server).await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"toy_echo","params":["hi"]}"#;
    let large = format!("{call}{}", " ".repeat(64 << 10));
    // The slow messages may not have been read yet. In that case the quick one gets a response
    // first, and the loop repeats.
    for _ in 0..1000 {
        let mut asking = std::pin::pin!(quick.ask(&large));
        let waits = tokio::time::timeout(Duration::from_millis(300), &mut asking)
            .await
            .is_err();
        if waits {
            // Small messages do not wait.
            assert_eq!(
                Socket::open(&server).await.ask(call).await,
                r#"{"jsonrpc":"2.0","id":1,"result":"hi"}"#
            );
            slow.pop();
            assert_eq!(asking.await, r#"{"jsonrpc":"2.0","id":1,"result":"hi"}"#);
            return;
        }
    }
    panic!("nothing waits");
}

#[tokio::test]
async fn a_silent_connection_is_pinged_then_closed() {
    let limits = ServerLimits {
        ws_ping: Duration::from_millis(200),
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits: limits.clone(),
        ..Setup::default()
    })
    .await;
    // soketto responds to pings while it receives, so this connection stays open.
    let mut living = Socket::open(&server).await;
    let mut message = Vec::new();
    let quiet = tokio::time::timeout(
        Duration::from_millis(1200),
        living.receiver.receive(&mut message),
    )
    .await;
    assert!(
        !matches!(quiet, Ok(Ok(Incoming::Closed(_)) | Err(_))),
        "a connection that responses was closed"
    );
    // This client sends nothing, not even a pong.
    let mut silent = TcpStream::connect(server.addrs.ws.unwrap()).await.unwrap();
    let handshake = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    silent.write_all(handshake.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    let closed =
        tokio::time::timeout(Duration::from_secs(3), silent.read_to_end(&mut received)).await;
    assert!(closed.is_ok(), "a dead connection is kept");
    assert!(
        received.windows(2).any(|frame| frame == [0x89, 0]),
        "no ping came"
    );
}

#[tokio::test]
async fn a_slow_reader_is_dropped() {
    let limits = ServerLimits {
        ws_write: Duration::from_millis(300),
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let mut socket = Socket::open(&server).await;
    socket
        .send(r#"{"jsonrpc":"2.0","id":1,"method":"toy_subscribe","params":["flood"]}"#)
        .await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let mut messages = 0;
    while socket.next().await.is_some() {
        messages += 1;
    }
    assert!(messages < 1000, "{messages} messages were kept for it");
}

#[tokio::test]
async fn a_slow_reader_that_reads_again_finds_the_close_frame_behind_whole_messages() {
    let limits = ServerLimits {
        ws_write: Duration::from_secs(8),
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let mut socket = Socket::open(&server).await;
    socket.subscribe("flood").await;
    // The write of a message stalls. It would fail after 16 s.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let close = socket.close_reason().await;
    let reason = close.descr.unwrap();
    assert_eq!(close.code, 1008, "{reason}");
    assert!(reason.contains("messages behind"), "{reason}");
}

#[tokio::test]
async fn one_port_can_serve_both() {
    let probe = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = probe.local_addr().unwrap();
    drop(probe);
    let api = Arc::new(toys());
    let http = Http {
        api: api.clone(),
        vhosts: vec!["localhost".into()],
        cors: vec![],
        prefix: String::new(),
    };
    let ws = Ws {
        api,
        origins: vec![],
        prefix: String::new(),
    };
    let connections = Connections::new(4);
    let (server, addrs) = RpcServer::bind_sites(
        Some((addr, http)),
        Some((addr, ws)),
        ServerLimits::default(),
        &connections,
        &None,
    )
    .await
    .unwrap();
    assert_eq!(
        addrs,
        BoundAddrs {
            http: Some(addr),
            ws: Some(addr),
            ..Default::default()
        }
    );
    let token = CancellationToken::new();
    let running = tokio::spawn(server.run(token.clone()));
    let server = Server {
        addrs,
        running,
        _guard: token.clone().drop_guard(),
        token,
    };
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"toy_echo","params":["hi"]}"#;
    let response = r#"{"jsonrpc":"2.0","id":1,"result":"hi"}"#;
    assert_eq!(server.post(call).await, response);
    assert_eq!(Socket::open(&server).await.ask(call).await, response);
}

#[tokio::test]
async fn a_port_for_one_does_not_serve_the_other() {
    let server = Server::plain().await;
    assert_eq!(
        connect(server.addrs.http.unwrap(), None).await.err(),
        Some(200)
    );
    let mut socket = TcpStream::connect(server.addrs.ws.unwrap()).await.unwrap();
    let request = format!("{POST}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}");
    socket.write_all(request.as_bytes()).await.unwrap();
    assert!(
        read_all(&mut socket, Duration::from_secs(5))
            .await
            .starts_with("HTTP/1.1 404")
    );
}

#[tokio::test]
async fn sessions_end_with_the_server() {
    let mut server = Server::plain().await;
    let mut socket = Socket::open(&server).await;
    server.token.cancel();
    assert_eq!(socket.next().await, None);
    tokio::time::timeout(Duration::from_secs(5), &mut server.running)
        .await
        .unwrap()
        .unwrap();
}
