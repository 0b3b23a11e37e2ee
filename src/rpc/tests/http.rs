//! The HTTP rules that apply before JSON-RPC.

use super::*;
use crate::rpc::{HttpEndpoint, RollupEndpoint, RpcConfig, RpcContext, TxRoute};
use starling_proto::fork::Fork;

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"toy_echo","params":["hi"]}"#;

/// Head and body of a request; status of the response and a part of its body.
type Exchange = (&'static str, &'static str, u16, &'static str);

async fn check_exchanges<const N: usize>(exchanges: [Exchange; N]) {
    let server = Server::plain().await;
    for (head, body, status, text) in exchanges {
        let (got, response) = server.http(head, body).await;
        assert_eq!(got, status, "{head}: {response}");
        assert!(response.contains(text), "{head}: {response}");
    }
}

#[tokio::test]
async fn an_empty_get_is_answered_with_nothing() {
    let server = Server::plain().await;
    let (status, response) = server.http("GET / HTTP/1.1\r\nhost: localhost", "").await;
    assert_eq!(
        (status, response.split_once("\r\n\r\n").unwrap().1),
        (200, "")
    );
}

#[tokio::test]
async fn other_methods_and_paths_are_refused() {
    let refused = "method not allowed";
    check_exchanges([
        ("GET /?x=1 HTTP/1.1\r\nhost: localhost", "", 405, refused),
        ("GET / HTTP/1.1\r\nhost: localhost", "x", 405, refused),
        ("PUT / HTTP/1.1\r\nhost: localhost", CALL, 405, refused),
        ("DELETE / HTTP/1.1\r\nhost: localhost", "", 405, refused),
        ("OPTIONS / HTTP/1.1\r\nhost: localhost", "", 200, ""),
        (
            "POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json",
            CALL,
            404,
            "",
        ),
    ])
    .await;
}

#[tokio::test]
async fn calls_need_a_content_type_of_json() {
    check_exchanges([
        (
            "POST / HTTP/1.1\r\nhost: localhost",
            CALL,
            415,
            "invalid content type, only application/json is supported",
        ),
        (
            "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain",
            CALL,
            415,
            "invalid content type",
        ),
        (
            "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json; charset=utf-8",
            CALL,
            200,
            "\"hi\"",
        ),
        (
            "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json-rpc",
            CALL,
            200,
            "\"hi\"",
        ),
        (
            "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/jsonrequest",
            CALL,
            200,
            "\"hi\"",
        ),
    ])
    .await;
}

#[tokio::test]
async fn bodies_are_bounded() {
    let server = Server::plain().await;
    let request = format!("{POST}\r\ncontent-length: 5242881\r\n\r\n");
    let response = server
        .raw(request.as_bytes(), Duration::from_millis(500))
        .await;
    assert!(
        response.starts_with("HTTP/1.1 413")
            && response.contains("content length too large (5242881>5242880)"),
        "{response}"
    );
    // A body of exactly the maximum size is read, whatever its content.
    let (status, response) = server.http(POST, &" ".repeat(5_242_880)).await;
    assert_eq!(status, 200, "{response}");
    // Without a length header, the bytes are counted as they arrive.
    let limits = ServerLimits {
        body: 1000,
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let chunk = format!("200\r\n{}\r\n", " ".repeat(0x200));
    let request = format!(
        "{POST}\r\ntransfer-encoding: chunked\r\n\r\n{}0\r\n\r\n",
        chunk.repeat(3)
    );
    let response = server
        .raw(request.as_bytes(), Duration::from_millis(500))
        .await;
    assert!(response.starts_with("HTTP/1.1 413"), "{response}");
}

#[tokio::test]
async fn hosts_that_are_not_named_are_refused() {
    let server = Server::plain().await;
    let post =
        |host: &str| format!("POST / HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json");
    for (host, expected) in [
        ("localhost:8545", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:8545", 200),
        ("[::1]:8545", 200),
        ("10.1.2.3", 200),
        ("rebound.example", 403),
        ("localhost.example:8545", 403),
    ] {
        let (status, response) = server.http(&post(host), CALL).await;
        assert_eq!(status, expected, "{host}");
        assert_eq!(
            status == 403,
            response.contains("invalid host specified"),
            "{host}"
        );
    }
    let server = Server::start(Setup {
        vhosts: vec!["*".into()],
        ..Setup::default()
    })
    .await;
    assert_eq!(server.http(&post("rebound.example"), CALL).await.0, 200);
}

#[tokio::test]
async fn browsers_need_leave_by_origin() {
    let server = Server::start(Setup {
        cors: vec!["https://app.example".into()],
        ..Setup::default()
    })
    .await;
    let preflight = |origin: &str| {
        format!(
            "OPTIONS / HTTP/1.1\r\nhost: localhost\r\norigin: {origin}\r\naccess-control-request-method: POST\r\naccess-control-request-headers: content-type"
        )
    };
    let (status, response) = server.http(&preflight("https://app.example"), "").await;
    assert_eq!(status, 204);
    for header in [
        "access-control-allow-origin: https://app.example",
        "access-control-allow-methods: POST, GET",
        "access-control-allow-headers: content-type",
        "access-control-max-age: 600",
    ] {
        assert!(
            response.contains(header),
            "{header} is missing in {response}"
        );
    }
    let (_, response) = server.http(&preflight("https://evil.example"), "").await;
    assert!(
        !response.contains("access-control-allow-origin"),
        "{response}"
    );
    let (_, response) = server
        .http(&format!("{POST}\r\norigin: https://app.example"), CALL)
        .await;
    assert!(
        response.contains("access-control-allow-origin: https://app.example")
            && response.contains("\"hi\""),
        "{response}"
    );
    let closed = Server::plain().await;
    let (_, response) = closed
        .http(&format!("{POST}\r\norigin: https://app.example"), CALL)
        .await;
    assert!(!response.contains("access-control"), "{response}");
}

#[tokio::test]
async fn clients_that_do_not_send_are_dropped() {
    let limits = ServerLimits {
        read: Duration::from_millis(200),
        idle: Duration::from_millis(400),
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let patience = Duration::from_secs(60);
    let began = std::time::Instant::now();
    assert_eq!(server.raw(b"POST / HT", patience).await, "");
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "half a head is waited for"
    );
    let request = format!("{POST}\r\ncontent-length: 10\r\n\r\n{{");
    let response = server.raw(request.as_bytes(), patience).await;
    assert!(response.starts_with("HTTP/1.1 408"), "{response}");
    // An idle connection is closed after its response.
    let request = format!("{POST}\r\ncontent-length: {}\r\n\r\n{CALL}", CALL.len());
    let began = std::time::Instant::now();
    let response = server.raw(request.as_bytes(), patience).await;
    assert!(
        response.contains("\"hi\"") && began.elapsed() < Duration::from_secs(20),
        "{response}"
    );
}

/// A socket on which a response of `bytes` bytes has been requested.
async fn request_big(server: &Server, bytes: usize) -> TcpStream {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"toy_big","params":[{bytes}]}}"#);
    let request = format!("{POST}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut socket = TcpStream::connect(server.addrs.http.unwrap())
        .await
        .unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

#[tokio::test]
async fn a_reader_that_does_not_read_is_dropped() {
    let limits = ServerLimits {
        write: Duration::from_millis(300),
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let mut socket = request_big(&server, 20_000_000).await;
    // The write timeout begins with the response.
    socket.readable().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let response = read_all(&mut socket, Duration::from_secs(5)).await;
    assert!(
        response.starts_with("HTTP/1.1 200") && response.len() < 20_000_000,
        "{} bytes came",
        response.len()
    );
}

#[tokio::test]
async fn a_connection_at_the_limit_waits_while_all_are_busy() {
    let limits = ServerLimits {
        connections: 1,
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let mut first = TcpStream::connect(server.addrs.http.unwrap())
        .await
        .unwrap();
    let sleep = r#"{"jsonrpc":"2.0","id":1,"method":"toy_sleep"}"#;
    first
        .write_all(format!("{POST}\r\ncontent-length: {}\r\n\r\n{sleep}", sleep.len()).as_bytes())
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let request = format!(
        "{POST}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{CALL}",
        CALL.len()
    );
    let mut second = TcpStream::connect(server.addrs.http.unwrap())
        .await
        .unwrap();
    second.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(read_all(&mut second, Duration::from_millis(300)).await, "");
    drop(first);
    assert!(
        read_all(&mut second, Duration::from_secs(5))
            .await
            .contains("\"hi\"")
    );
}

/// Opens a connection and makes one call on it.
async fn keep_alive(server: &Server) -> TcpStream {
    let mut socket = TcpStream::connect(server.addrs.http.unwrap())
        .await
        .unwrap();
    assert!(asks(&mut socket).await);
    socket
}

/// Makes a call on this connection. Returns whether there is a response.
async fn asks(socket: &mut TcpStream) -> bool {
    let request = format!("{POST}\r\ncontent-length: {}\r\n\r\n{CALL}", CALL.len());
    let (mut response, mut part) = (String::new(), [0; 1024]);
    if socket.write_all(request.as_bytes()).await.is_err() {
        return false;
    }
    while !response.contains("\"hi\"") {
        match tokio::time::timeout(Duration::from_secs(20), socket.read(&mut part)).await {
            Ok(Ok(read)) if read > 0 => response.push_str(&String::from_utf8_lossy(&part[..read])),
            _ => return false,
        }
    }
    true
}

#[tokio::test]
async fn idle_connections_make_room_for_new_clients_oldest_first() {
    let limits = ServerLimits {
        connections: 8,
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    // Half of the clients never send a request; the others wait before their next request.
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(
            TcpStream::connect(server.addrs.http.unwrap())
                .await
                .unwrap(),
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(keep_alive(&server).await);
    }
    // Four new clients close the four oldest connections. The next new client closes the first
    // connection that has served a request.
    let mut new = Vec::new();
    for _ in 0..4 {
        new.push(keep_alive(&server).await);
    }
    for mut socket in silent {
        assert_eq!(read_all(&mut socket, Duration::from_secs(20)).await, "");
    }
    assert!(asks(&mut idle[1]).await, "it is not among the oldest");
    new.push(keep_alive(&server).await);
    assert!(!asks(&mut idle[0]).await, "it was the oldest");
    assert!(asks(&mut idle[1]).await && asks(&mut new[0]).await);
}

#[tokio::test]
async fn more_idle_connections_than_the_limit_lock_nobody_out() {
    let limits = ServerLimits {
        connections: 64,
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(keep_alive(&server).await);
    }
    assert!(server.post(CALL).await.contains("\"hi\""));
}

#[tokio::test]
async fn a_port_in_use_is_one_sentence() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = taken.local_addr().unwrap();
    let http = Http {
        api: Arc::new(toys()),
        vhosts: vec![],
        cors: vec![],
        prefix: String::new(),
    };
    let error = RpcServer::bind_sites(
        Some((addr, http)),
        None,
        ServerLimits::default(),
        &Connections::new(1),
        &None,
    )
    .await
    .err()
    .unwrap();
    let sentence = format!(
        "{addr} is in use by another program: stop it, or choose another port with --http.port"
    );
    assert_eq!(error.to_string(), sentence);
}

#[tokio::test]
async fn a_taken_port_of_the_rollup_nodes_rpc_matters_only_if_it_was_given() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let bind = async |addr, required| {
        let http = HttpEndpoint {
            addr,
            api: vec!["health".to_owned()],
            vhosts: vec![],
            cors: vec![],
            prefix: String::new(),
        };
        let config = RpcConfig {
            rollup: Some(RollupEndpoint { http, required }),
            ..Default::default()
        };
        let chain = chain::Chain::new(Fork::Ecotone).context.chain.clone();
        RpcServer::bind(config, RpcContext::new(chain, TxRoute::Pool)).await
    };
    let addr = taken.local_addr().unwrap();
    let (_, bound) = bind(addr, false)
        .await
        .expect("the node goes on without it");
    assert_eq!(bound.rollup, None);
    let error = bind(addr, true).await.err().expect("an error");
    assert_eq!(
        error.to_string(),
        format!(
            "{addr} is in use by another program: stop it, or choose another port with --rpc.port"
        )
    );
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    assert!(bind(free, false).await.unwrap().1.rollup.is_some());
    let foreign = SocketAddr::from(([192, 0, 2, 1], 0));
    assert!(
        bind(foreign, false).await.is_err(),
        "not an address of this machine"
    );
}

#[tokio::test]
async fn the_server_stops_when_told() {
    let mut server = Server::plain().await;
    // An idle connection does not delay the end of the server.
    let mut idle = TcpStream::connect(server.addrs.http.unwrap())
        .await
        .unwrap();
    let request = format!("{POST}\r\ncontent-length: {}\r\n\r\n{CALL}", CALL.len());
    idle.write_all(request.as_bytes()).await.unwrap();
    let mut byte = [0];
    idle.read_exact(&mut byte).await.unwrap();
    server.token.cancel();
    tokio::time::timeout(Duration::from_secs(5), &mut server.running)
        .await
        .unwrap()
        .unwrap();
    assert!(
        TcpStream::connect(server.addrs.http.unwrap())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn bodies_that_are_only_announced_take_nothing() {
    let limits = ServerLimits {
        body_memory: 1 << 20,
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        let mut socket = TcpStream::connect(server.addrs.http.unwrap())
            .await
            .unwrap();
        let head = format!("{POST}\r\nexpect: 100-continue\r\ncontent-length: 5242880\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        // The server sends 100 Continue when it waits for the body.
        let mut go_on = [0; 25];
        socket.read_exact(&mut go_on).await.unwrap();
        silent.push(socket);
    }
    assert_eq!(
        server
            .http(POST, &format!("{CALL}{}", " ".repeat(900_000)))
            .await
            .0,
        200
    );
}

#[tokio::test]
async fn a_reader_that_takes_a_little_now_and_then_is_dropped() {
    let limits = ServerLimits {
        write: Duration::from_millis(1500),
        ..ServerLimits::default()
    };
    let server = Server::start(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    let mut socket = request_big(&server, 50_000_000).await;
    let (mut part, mut length) = (vec![0; 200_000], 0);
    loop {
        match socket.read(&mut part).await {
            Ok(0) | Err(_) => break,
            Ok(read) => length += read,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(length < 50_000_000, "all of it came");
}

/// A node that serves nothing still relays blocks, so the server must not end.
#[tokio::test]
async fn a_server_without_endpoints_waits_for_its_end() {
    let token = tokio_util::sync::CancellationToken::new();
    let server = RpcServer {
        listeners: vec![],
        ipc: None,
        control: None,
    };
    let mut run = std::pin::pin!(server.run(token.clone()));
    assert!(futures::poll!(&mut run).is_pending());
    token.cancel();
    run.await;
}
