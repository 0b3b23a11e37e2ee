//! geth's methods of the `admin` namespace, and the `testing` namespace.

use super::{
    Server,
    chain::{Chain, RICH, ask_of},
    send::transfer,
};
use crate::{
    chain::tests::{datadir, open},
    rpc::{
        HttpEndpoint, NAMESPACES, RpcConfig, RpcContext, RpcServer, TxRoute, WsEndpoint,
        api::Api,
        engine_backend::{EngineBackend, EngineContext},
        node_files::{ExportJob, NodeFiles},
    },
};
use alloy_primitives::B256;
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use starling_proto::fork::Fork;
use starling_testkit::free_port;
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

async fn server() -> Server {
    server_at(([127, 0, 0, 1], 0).into(), None).await
}

async fn server_at(addr: SocketAddr, ws: Option<WsEndpoint>) -> Server {
    let chain = Chain::new(Fork::Ecotone).context.chain.clone();
    let context = RpcContext::new(chain, TxRoute::Pool);
    let http = HttpEndpoint {
        addr,
        api: vec!["admin".to_owned()],
        ..HttpEndpoint::default()
    };
    let config = RpcConfig {
        http: Some(http),
        ws,
        ..RpcConfig::default()
    };
    let (server, addrs) = RpcServer::bind(config, context).await.unwrap();
    let token = CancellationToken::new();
    Server {
        addrs,
        running: tokio::spawn(server.run(token.clone())),
        _guard: token.clone().drop_guard(),
        token,
    }
}

async fn ask(server: &Server, method: &str, params: Value) -> Value {
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    serde_json::from_str(&server.post(&call.to_string()).await).unwrap()
}

#[tokio::test]
async fn servers_are_started_and_stopped() {
    let mut server = server().await;
    let own = server.addrs.http.unwrap();
    let error = ask(&server, "admin_startHTTP", json!([])).await;
    assert_eq!(
        error["error"]["message"],
        format!("HTTP server already running on {own}")
    );
    let ws = free_port();
    let started = ask(
        &server,
        "admin_startWS",
        json!(["127.0.0.1", ws, "*", "eth"]),
    )
    .await;
    assert_eq!(started["result"], true, "{started}");
    assert!(
        tokio::net::TcpStream::connect(("127.0.0.1", ws))
            .await
            .is_ok()
    );
    let again = ask(&server, "admin_startWS", json!([])).await;
    assert!(
        again["error"]["message"]
            .as_str()
            .unwrap()
            .contains("already running")
    );
    assert_eq!(
        ask(&server, "admin_stopWS", json!([])).await["result"],
        true
    );
    let began = std::time::Instant::now();
    while tokio::net::TcpStream::connect(("127.0.0.1", ws))
        .await
        .is_ok()
    {
        assert!(began.elapsed().as_secs() < 10, "it still listens");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let restarted = ask(&server, "admin_startWS", json!([null, ws])).await;
    assert_eq!(restarted["result"], true, "{restarted}");
    for params in [json!(["nowhere.invalid"]), json!(["127.0.0.1", 65_536])] {
        ask(&server, "admin_stopWS", json!([])).await;
        let refused = ask(&server, "admin_startWS", params).await;
        assert!(refused["error"].is_object(), "{refused}");
    }
    // The response arrives although the call stops its own server.
    assert_eq!(
        ask(&server, "admin_stopHTTP", json!([])).await["result"],
        true
    );
    let began = std::time::Instant::now();
    while tokio::net::TcpStream::connect(own).await.is_ok() {
        assert!(began.elapsed().as_secs() < 10, "it still listens");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    server.token.cancel();
    (&mut server.running).await.unwrap();
}

/// Performs a WebSocket handshake. Returns its status line and the connection.
async fn handshake(port: u16) -> (String, TcpStream) {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = "GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
        sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut response = vec![0; 1024];
    let count = socket.read(&mut response).await.unwrap();
    let response = String::from_utf8_lossy(&response[..count]).into_owned();
    (response[9..12].to_owned(), socket)
}

#[tokio::test]
async fn where_http_and_websocket_share_a_port_only_websocket_is_stopped() {
    let port = free_port();
    let addr = ([127, 0, 0, 1], port).into();
    let endpoint = WsEndpoint {
        addr,
        ..WsEndpoint::default()
    };
    let server = server_at(addr, Some(endpoint)).await;
    let (status, mut open) = handshake(port).await;
    assert_eq!(status, "101");
    assert_eq!(
        ask(&server, "admin_stopWS", json!([])).await["result"],
        true
    );
    // The server sends the close frame and closes the connection.
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(10), open.read_to_end(&mut rest));
    closed.await.unwrap().unwrap();
    assert_eq!(handshake(port).await.0, "200", "as any other GET");
    let again = ask(&server, "admin_startWS", json!([null, port])).await;
    assert_eq!(again["result"], true, "{again}");
    assert_eq!(handshake(port).await.0, "101");
    let running = ask(&server, "admin_startWS", json!([])).await;
    let text = format!("WebSocket server already running on {addr}");
    assert_eq!(running["error"]["message"], text);
    assert_eq!(
        ask(&server, "admin_stopHTTP", json!([])).await["result"],
        true
    );
    let began = std::time::Instant::now();
    while TcpStream::connect(addr).await.is_ok() {
        assert!(began.elapsed().as_secs() < 10, "it still listens");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn exports_go_to_a_new_file_in_their_folder_and_one_runs_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = Arc::new(Mutex::new(Vec::<ExportJob>::new()));
    let kept = jobs.clone();
    let files = NodeFiles {
        datadir: dir.path().to_owned(),
        export: Arc::new(move |job| {
            kept.lock().push(job);
            async { Ok(()) }.boxed()
        }),
        import: Arc::new(|job| {
            async move { Err(format!("{} is torn", job.path.display())) }.boxed()
        }),
        running: Arc::new(Semaphore::new(1)),
    };
    let mut chain = Chain::new(Fork::Ecotone).with(|context| context.files = Some(files));
    chain.add(&[]);
    chain.serve(&["admin"]);
    assert_eq!(
        chain.result("admin_datadir", json!([])).await,
        json!(dir.path())
    );
    assert_eq!(
        chain.result("admin_exportChain", json!(["a.rlp", 0])).await,
        true
    );
    let busy = chain.error("admin_exportChain", json!(["b.rlp"])).await;
    assert!(
        busy.1.contains("another export or import runs"),
        "{}",
        busy.1
    );
    let job = jobs.lock().pop().unwrap();
    assert_eq!(job.path, dir.path().join("traces/a.rlp"));
    assert_eq!(
        job.range.map(|range| (range.first, range.last)),
        Some((0, 1))
    );
    drop(job);
    chain
        .fails(
            "admin_exportChain",
            json!(["b", null, 5]),
            "last cannot be specified without first",
        )
        .await;
    chain
        .fails(
            "admin_exportChain",
            json!(["/etc/passwd"]),
            "/etc/passwd is outside",
        )
        .await;
    chain
        .fails("admin_importChain", json!(["/x"]), "/x is torn")
        .await;
}

#[tokio::test]
async fn peers_need_a_swarm_and_multiaddrs() {
    let mut chain = Chain::new(Fork::Ecotone);
    chain.serve(&["admin"]);
    chain
        .fails("admin_peers", json!([]), "p2p is disabled")
        .await;
    let enode = "enode://aa@192.0.2.1:30303";
    chain.fails("admin_addPeer", json!([enode]), enode).await;
}

/// Attributes of the next block, whose L1 attributes are those of the last block.
pub(super) fn attributes(chain: &Chain) -> Value {
    let parent = chain.blocks.last().unwrap();
    json!({
        "timestamp": format!("{:#x}", parent.payload.timestamp() + 2),
        "prevRandao": B256::ZERO,
        "suggestedFeeRecipient": RICH,
        "withdrawals": [],
        "parentBeaconBlockRoot": B256::ZERO,
        "transactions": [parent.payload.transactions[0]],
        "gasLimit": "0x1c9c380",
    })
}

#[tokio::test]
async fn blocks_are_built_on_request_and_change_nothing_unless_committed() {
    let committed = Arc::new(Mutex::new(Vec::new()));
    let kept = committed.clone();
    let mut chain = Chain::new(Fork::Ecotone).with(|context| {
        context.commit = Some(Arc::new(move |payload| {
            kept.lock().push(payload);
            async { Ok(()) }.boxed()
        }));
    });
    chain.add(&[]);
    chain.serve(&["testing", "eth"]);
    let head = chain.head().hash;
    let raw = transfer(0, 21_000);
    let build = |transactions: Value| json!([head, attributes(&chain), transactions]);
    let empty = chain.result("testing_buildBlockV1", build(json!([]))).await;
    let payload = &empty["executionPayload"];
    assert_eq!(payload["parentHash"], json!(head));
    assert_eq!(payload["transactions"].as_array().unwrap().len(), 1);
    let full = chain
        .result("testing_buildBlockV1", build(json!([raw])))
        .await;
    assert_eq!(full["executionPayload"]["transactions"][1], json!(raw));
    assert_ne!(full["blockValue"], "0x0");
    let (code, message) = chain
        .error("testing_buildBlockV1", build(json!([transfer(7, 21_000)])))
        .await;
    assert!(
        code == -32000 && message.contains("transaction 0 cannot be in the block"),
        "{message}"
    );
    chain.result("eth_sendRawTransaction", json!([raw])).await;
    let pooled = chain
        .result("testing_buildBlockV1", build(Value::Null))
        .await;
    assert_eq!(
        pooled["executionPayload"]["blockHash"],
        full["executionPayload"]["blockHash"]
    );
    chain
        .fails(
            "testing_buildBlockV1",
            json!([B256::ZERO, attributes(&chain), []]),
            "parentHash is not current head",
        )
        .await;
    assert_eq!(chain.head().hash, head);
    let hash = chain
        .result("testing_commitBlockV1", json!([attributes(&chain), [raw]]))
        .await;
    assert_eq!(hash, full["executionPayload"]["blockHash"]);
    assert_eq!(committed.lock()[0].transactions[1], raw);
    let params = build(json!([raw]));
    let mut late = chain.with(|context| context.bounds.timeout = Duration::ZERO);
    late.serve(&["testing"]);
    late.fails("testing_buildBlockV1", params, "execution aborted")
        .await;
}

#[tokio::test]
async fn no_block_is_committed_while_a_rollup_node_drives_the_chain() {
    let dir = datadir();
    let (driven, _threads) = open(dir.path());
    let mut context = RpcContext::new((&driven).into(), TxRoute::Pool);
    context.engine = Some(EngineContext {
        engine: Arc::new(EngineBackend::new(driven.clone(), None)),
        halt: None,
    });
    let names = ["testing".to_owned()];
    let api = Api::new(&names, &NAMESPACES, &Arc::new(context), "");
    let refused = async || {
        let response = ask_of(&api, "testing_commitBlockV1", json!([])).await;
        response["error"]["message"].as_str().unwrap().to_owned()
    };
    let before = refused().await;
    assert!(before.contains("cannot make a block the head"), "{before}");
    driven.update_head_owner(|owner| owner.on_forkchoice(Instant::now()));
    let after = refused().await;
    assert!(after.contains("a rollup node decides the head"), "{after}");
}
