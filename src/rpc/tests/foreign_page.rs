//! A sequencer under attack: by a web page in its operator's browser, and by a stranger who reaches
//! the port of the rollup node's RPC.

use super::{
    Server, admin_geth::attributes, chain::Chain, read_all, websocket::connect as connect_ws,
};
use crate::{
    rollup::sequencer::{SequencerConfig, tests::World},
    rpc::{
        HttpEndpoint, RollupEndpoint, RpcConfig, RpcContext, RpcServer, TxRoute, WsEndpoint,
        connections::Connections, http_site, rollup_site, server::Site,
    },
};
use futures::FutureExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use starling_proto::{fork::Fork, payload::Payload};
use starling_testkit::free_port;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tokio_util::sync::CancellationToken;

const PAGE: Option<&str> = Some("https://attacker.example");
const STRANGER: Option<&str> = None;

/// The server of a sequencer, and the blocks that its callers commit.
struct Target {
    server: Server,
    chain: Chain,
    committed: Arc<Mutex<Vec<Arc<Payload>>>>,
    _world: World,
}

fn any() -> Vec<String> {
    vec!["*".to_owned()]
}

fn endpoint(api: &[&str]) -> HttpEndpoint {
    HttpEndpoint {
        addr: ([127, 0, 0, 1], 0).into(),
        api: api.iter().map(|name| (*name).to_owned()).collect(),
        vhosts: any(),
        cors: any(),
        prefix: String::new(),
    }
}

impl Target {
    /// A sequencer with `--rpc.enable-admin`, whose HTTP and WebSocket ports serve `api` to pages of
    /// all origins.
    async fn serving(api: &[&str]) -> Self {
        let world = World::new(10, 2).await;
        let (sequenced, _threads) = world.open();
        let (_, handle) = world.sequencer(&sequenced, SequencerConfig::default());
        let mut chain = Chain::new(Fork::Ecotone);
        chain.add(&[]);
        let committed = Arc::new(Mutex::new(Vec::new()));
        let kept = committed.clone();
        let mut context = RpcContext::new(chain.context.chain.clone(), TxRoute::Pool);
        context.sequencer = Some(handle);
        context.commit = Some(Arc::new(move |block| {
            kept.lock().push(block);
            async { Ok(()) }.boxed()
        }));
        let http = endpoint(api);
        let config = RpcConfig {
            ws: Some(WsEndpoint {
                api: http.api.clone(),
                origins: any(),
                addr: http.addr,
                prefix: String::new(),
            }),
            named: http.api.clone(),
            http: Some(http),
            rollup: Some(RollupEndpoint {
                http: endpoint(&["optimism", "opp2p", "health", "admin"]),
                required: true,
            }),
            ..RpcConfig::default()
        };
        let (server, addrs) = RpcServer::bind(config, context).await.unwrap();
        let token = CancellationToken::new();
        let server = Server {
            addrs,
            running: tokio::spawn(server.run(token.clone())),
            _guard: token.clone().drop_guard(),
            token,
        };
        Self {
            server,
            chain,
            committed,
            _world: world,
        }
    }

    fn rollup(&self) -> SocketAddr {
        self.server.addrs.rollup.unwrap()
    }

    fn http(&self) -> SocketAddr {
        self.server.addrs.http.unwrap()
    }

    fn forged_block(&self) -> Value {
        json!([attributes(&self.chain), []])
    }
}

fn request(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
}

/// The response to a body that a page of `origin` sends.
async fn post(addr: SocketAddr, origin: Option<&str>, body: &str) -> Value {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    let origin = origin.map_or(String::new(), |origin| format!("origin: {origin}\r\n"));
    let head = format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\n{origin}content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let request = format!("{head}{body}");
    socket.write_all(request.as_bytes()).await.unwrap();
    let response = read_all(&mut socket, Duration::from_secs(10)).await;
    let (_, body) = response.split_once("\r\n\r\n").expect("a response");
    serde_json::from_str(body).expect("JSON")
}

/// Code and message of the error of a call.
async fn refusal(
    addr: SocketAddr,
    origin: Option<&str>,
    method: &str,
    params: &Value,
) -> (i64, String) {
    let response = post(addr, origin, &request(method, params)).await;
    let error = &response["error"];
    let message = error["message"]
        .as_str()
        .unwrap_or_else(|| panic!("{method}: {response}"));
    (error["code"].as_i64().unwrap(), message.to_owned())
}

/// The port of the rollup node's RPC has none of the methods that control the execution core, and
/// refuses to pages what it has.
async fn attack_rollup_port(target: &Target) {
    let port = free_port();
    let open = json!(["127.0.0.1", port, "*", "eth,testing", "*"]);
    for (method, params) in [
        ("admin_stopHTTP", &json!([])),
        ("admin_startHTTP", &open),
        ("admin_importChain", &json!(["/tmp/chain.rlp"])),
        ("admin_peers", &json!([])),
        ("testing_commitBlockV1", &target.forged_block()),
    ] {
        let (code, message) = refusal(target.rollup(), STRANGER, method, params).await;
        assert_eq!(code, -32601, "{method}: {message}");
        refusal(target.rollup(), PAGE, method, params).await;
        assert!(refusal(target.http(), PAGE, method, params).await.0 == -32601);
    }
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    for method in ["admin_stopSequencer", "opp2p_blockAddr"] {
        let (_, message) = refusal(target.rollup(), PAGE, method, &json!([])).await;
        assert!(message.contains("not available to web pages"), "{message}");
    }
    let call = request("optimism_version", &json!([]));
    let version = post(target.rollup(), PAGE, &call).await;
    assert!(
        version["result"].is_string(),
        "op-node answers pages: {version}"
    );
}

/// Where the command line names `admin`, pages are refused, and a program can start no server with
/// further namespaces.
async fn attack_named_admin() {
    let target = Target::serving(&["admin", "eth"]).await;
    let call = request("admin_stopHTTP", &json!([]));
    let batch = post(target.http(), PAGE, &format!("[{call}]")).await;
    assert!(batch[0]["error"].is_object(), "{batch}");
    let mut socket = connect_ws(target.server.addrs.ws.unwrap(), PAGE)
        .await
        .ok()
        .unwrap();
    let answer = socket.ask(&call).await;
    assert!(answer.contains("not available to web pages"), "{answer}");
    let stop = request("admin_stopWS", &json!([]));
    assert_eq!(post(target.http(), STRANGER, &stop).await["result"], true);
    let open = |api| json!(["127.0.0.1", free_port(), "*", api]);
    let params = open("eth,testing");
    let refused = refusal(target.http(), STRANGER, "admin_startWS", &params);
    let (_, message) = refused.await;
    assert!(
        message.contains("the namespace testing is not offered"),
        "{message}"
    );
    let start = request("admin_startWS", &open("eth,admin"));
    let started = post(target.http(), STRANGER, &start).await;
    assert_eq!(started["result"], true, "{started}");
}

/// Where the command line names `testing`, nobody commits a block that the sequencer would build on.
async fn attack_named_testing() {
    let target = Target::serving(&["testing"]).await;
    for (origin, reason) in [
        (PAGE, "not available to web pages"),
        (STRANGER, "this node's sequencer decides the head"),
    ] {
        let block = target.forged_block();
        let (_, message) = refusal(target.http(), origin, "testing_commitBlockV1", &block).await;
        assert!(message.contains(reason), "{message}");
    }
    assert!(target.committed.lock().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_foreign_page_nor_a_stranger_takes_over_a_sequencer() {
    let target = Target::serving(&["eth"]).await;
    attack_rollup_port(&target).await;
    assert!(target.committed.lock().is_empty());
    attack_named_admin().await;
    attack_named_testing().await;
}

#[test]
fn an_address_that_is_not_loopback_is_reported_with_what_its_callers_can_do() {
    let chain = Chain::new(Fork::Ecotone);
    let powers = |addr: &str, end: HttpEndpoint| {
        let context = &chain.context;
        let http = if end.api.iter().any(|name| name == "optimism") {
            rollup_site(end, &context.rollup_node().into())
        } else {
            http_site(end, context, "--http.api")
        };
        let site = Site::new(Some(http), None, Default::default(), Connections::new(1));
        site.exposure(format!("{addr}:9545").parse().unwrap())
    };
    let enabled = || endpoint(&["optimism", "opp2p", "health", "admin"]);
    for here in ["127.0.0.1", "127.1.2.3", "[::1]", "[::ffff:127.0.0.1]"] {
        assert_eq!(powers(here, enabled()), None, "{here}");
    }
    assert_eq!(
        powers("0.0.0.0", endpoint(&["optimism", "opp2p", "health"])),
        None
    );
    assert_eq!(powers("0.0.0.0", endpoint(&["eth", "net"])), None);
    let of_rollup = "replace the signer whose blocks are followed, stop and start the sequencer, reset derivation";
    assert_eq!(powers("0.0.0.0", enabled()).as_deref(), Some(of_rollup));
    let of_core = powers("[::]", endpoint(&["admin", "testing"])).unwrap();
    for power in ["open and close RPC servers", "append blocks of any content"] {
        assert!(of_core.contains(power), "{of_core}");
    }
}
