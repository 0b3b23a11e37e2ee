//! The swarm over JSON-RPC, between two real swarms.

use super::{
    Server,
    chain::{CHAIN_ID, Chain},
};
use crate::rpc::{HttpEndpoint, RollupEndpoint, RpcConfig, RpcContext, RpcServer, TxRoute};
use libp2p::identity::Keypair;
use serde_json::{Value, json};
use starling_p2p::{Blocks, ChainGenesis, Config, DiscoveryConfig, Network, Service};
use starling_proto::{fork::Fork, payload::Payload};
use std::sync::Arc;
use tokio_util::sync::{CancellationToken, DropGuard};

struct Nothing;

impl Blocks for Nothing {
    fn knows(&self, _: alloy_primitives::B256) -> bool {
        false
    }
    fn block(&self, _: u64) -> Option<Payload> {
        None
    }
}

/// A running swarm on the chain of the tests, its address, and the guard that stops it.
async fn swarm() -> (Network, String, DropGuard) {
    swarm_with(None).await
}

async fn swarm_with(discovery: Option<DiscoveryConfig>) -> (Network, String, DropGuard) {
    let genesis = ChainGenesis {
        id: Default::default(),
        time: 0,
        block_time: 2,
    };
    let forks = starling_proto::fork::ForkSchedule::from_genesis(Fork::Ecotone);
    let config = Config {
        listen_ip: [127, 0, 0, 1].into(),
        listen_tcp: 0,
        discovery,
        ..Config::new(Keypair::generate_secp256k1(), CHAIN_ID, forks, genesis)
    };
    let (service, network, events) = Service::new(config, Arc::new(Nothing)).unwrap();
    let token = CancellationToken::new();
    let running = token.clone();
    tokio::spawn(async move {
        let _events = events;
        service.run(running).await;
    });
    let mut addresses = network.listen_addrs();
    let address = addresses.wait_for(|all| !all.is_empty()).await.unwrap()[0].to_string();
    (network, address, token.drop_guard())
}

/// A chain whose node runs a swarm, and a second swarm that the node can dial.
struct SwarmPair {
    chain: Chain,
    network: Network,
    /// Listen address of the node's swarm.
    address: String,
    other: Network,
    other_address: String,
    _running: [DropGuard; 2],
}

impl SwarmPair {
    async fn new() -> Self {
        let (network, address, running) = swarm().await;
        let (other, other_address, other_running) = swarm().await;
        let swarm = network.clone();
        Self {
            chain: Chain::new(Fork::Ecotone).with(|context| context.network = Some(swarm)),
            network,
            address,
            other,
            other_address,
            _running: [running, other_running],
        }
    }

    /// Peer id of the second swarm.
    fn other_id(&self) -> String {
        self.other.local_peer_id().to_string()
    }

    async fn result(&self, method: &str, params: Value) -> Value {
        self.chain.result(method, params).await
    }

    /// Dials the second swarm from the node.
    async fn connect(&self) {
        let params = json!([self.other_address]);
        assert_eq!(self.result("opp2p_connectPeer", params).await, Value::Null);
    }

    /// Blocks and unblocks with op-node's responses, and checks the list of blocked entries after
    /// each.
    async fn block_and_unblock(&self, noun: &str, block: Value, unblock: Value, listed: Value) {
        let list = format!("opp2p_listBlocked{noun}s");
        for (method, param, expected) in [
            (format!("opp2p_block{noun}"), block, json!([listed])),
            (format!("opp2p_unblock{noun}"), unblock, json!([])),
        ] {
            assert_eq!(self.result(&method, json!([param])).await, Value::Null);
            assert_eq!(self.result(&list, json!([])).await, expected, "{method}");
        }
    }
}

/// Fields of a peer in the responses of `opp2p_self` and `opp2p_peers`.
const PEER_FIELDS: [&str; 14] = [
    "peerID",
    "nodeID",
    "userAgent",
    "protocolVersion",
    "ENR",
    "addresses",
    "protocols",
    "connectedness",
    "direction",
    "protected",
    "chainID",
    "latency",
    "gossipBlocks",
    "scores",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_own_peer_has_the_fields_of_op_node() {
    let pair = SwarmPair::new().await;
    let ours = pair.result("opp2p_self", json!([])).await;
    assert_eq!(
        (&ours["peerID"], &ours["addresses"][0]),
        (
            &json!(pair.network.local_peer_id().to_string()),
            &json!(pair.address)
        )
    );
    assert_eq!(
        (&ours["chainID"], &ours["gossipBlocks"], &ours["ENR"]),
        (&json!(CHAIN_ID), &json!(true), &json!(""))
    );
    assert_eq!(ours["nodeID"].as_str().map(str::len), Some(64));
    assert_eq!(
        ours.as_object().map(|object| object.len()),
        Some(PEER_FIELDS.len())
    );
    assert!(PEER_FIELDS.iter().all(|key| ours.get(key).is_some()));
    let zero = json!({
        "gossip": {
            "total": 0.0,
            "blocks": {
                "timeInMesh": 0.0, "firstMessageDeliveries": 0.0, "meshMessageDeliveries": 0.0, "invalidMessageDeliveries": 0.0
            },
            "IPColocationFactor": 0.0,
            "behavioralPenalty": 0.0
        },
        "reqResp": { "validResponses": 0.0, "errorResponses": 0.0, "rejectedPayloads": 0.0 }
    });
    assert_eq!(ours["scores"], zero);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connected_peer_is_listed_and_counted() {
    let pair = SwarmPair::new().await;
    pair.connect().await;
    let dump = pair.result("opp2p_peers", json!([true])).await;
    assert_eq!(
        (
            &dump["totalConnected"],
            &dump["bannedPeers"],
            &dump["bannedIPS"],
            &dump["bannedSubnets"]
        ),
        (&json!(1), &json!([]), &json!([]), &json!([]))
    );
    let peer = &dump["peers"][&pair.other_id()];
    assert_eq!(
        (
            &peer["connectedness"],
            &peer["direction"],
            &peer["protected"]
        ),
        (&json!(1), &json!(2), &json!(false))
    );
    assert!(
        peer["protocols"]
            .as_array()
            .is_some_and(|all| all.contains(&json!("/ipfs/ping/1.0.0"))),
        "{peer}"
    );
    let stats = pair.result("opp2p_peerStats", json!([])).await;
    assert_eq!(
        (&stats["connected"], &stats["table"], &stats["banned"]),
        (&json!(1), &json!(0), &json!(0))
    );
    for counter in [
        "blocksTopic",
        "blocksTopicV2",
        "blocksTopicV3",
        "blocksTopicV4",
        "known",
    ] {
        assert!(stats[counter].is_u64(), "{counter}: {stats}");
    }
    assert_eq!(
        pair.chain.error("opp2p_discoveryTable", json!([])).await,
        (-32000, "discovery disabled".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_addresses_and_subnets_are_blocked_and_unblocked() {
    let pair = SwarmPair::new().await;
    pair.connect().await;
    // Both forms name the same subnet, and the list shows op-node's form.
    let short = json!("123.0.0.0/8");
    let subnet = json!({ "IP": "123.0.0.0", "Mask": "/wAAAA==" });
    for (block, unblock) in [(&short, &subnet), (&subnet, &short)] {
        pair.block_and_unblock("Subnet", block.clone(), unblock.clone(), subnet.clone())
            .await;
    }
    for (noun, value) in [
        ("Peer", json!(pair.other_id())),
        ("Addr", json!("10.1.2.3")),
    ] {
        pair.block_and_unblock(noun, value.clone(), value.clone(), value)
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_protected_peer_is_shown_as_such_and_disconnecting_ends_a_block() {
    let pair = SwarmPair::new().await;
    pair.connect().await;
    let id = pair.other_id();
    pair.result("opp2p_protectPeer", json!([id])).await;
    assert_eq!(
        pair.result("opp2p_peers", json!([true])).await["peers"][&id]["protected"],
        json!(true)
    );
    pair.result("opp2p_unprotectPeer", json!([id])).await;
    pair.result("opp2p_blockPeer", json!([id])).await;
    assert_eq!(
        pair.result("opp2p_disconnectPeer", json!([id])).await,
        Value::Null
    );
    assert_eq!(
        pair.result("opp2p_listBlockedPeers", json!([])).await,
        json!([]),
        "disconnecting ends a block"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_peers_addresses_and_subnets_are_refused() {
    let pair = SwarmPair::new().await;
    for (method, param) in [
        ("opp2p_blockPeer", json!("nobody")),
        ("opp2p_unblockPeer", json!("")),
        ("opp2p_blockAddr", json!("10.0.0.0/8")),
        (
            "opp2p_blockSubnet",
            json!({ "IP": "10.0.0.0", "Mask": "/w==" }),
        ),
        ("opp2p_blockSubnet", json!("10.0.0.0")),
        ("opp2p_disconnectPeer", json!(7)),
    ] {
        assert_eq!(
            pair.chain.error(method, json!([param])).await,
            (-32000, "invalid request".into()),
            "{method}"
        );
    }
    for address in ["nonsense", "/ip4/127.0.0.1/tcp/1"] {
        let (code, text) = pair
            .chain
            .error("opp2p_connectPeer", json!([address]))
            .await;
        assert!(
            code == -32000 && text.starts_with("bad peer address: "),
            "{text}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_gives_the_reasons_for_connections_and_blocks() {
    let pair = SwarmPair::new().await;
    pair.connect().await;
    let id = pair.other_id();
    pair.result("opp2p_blockPeer", json!([id])).await;
    let ledger = pair.result("starling_p2pLedger", json!([id])).await;
    let changes: Vec<(&Value, &Value)> = ledger
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|entry| (&entry["change"], &entry["reason"]))
        .collect();
    assert_eq!(changes[0], (&json!("connected"), &json!("we_dialled")));
    assert!(
        changes.contains(&(&json!("blocked"), &json!("operator"))),
        "{changes:?}"
    );
    let last = pair.result("starling_p2pLedger", json!([null, 1])).await;
    assert_eq!(last.as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swarm_without_blocks_reports_four_topics_and_nothing_missing() {
    let pair = SwarmPair::new().await;
    pair.connect().await;
    let mesh = pair.result("starling_p2pMesh", json!([])).await;
    assert_eq!(mesh.as_array().map(Vec::len), Some(4));
    assert_eq!(
        pair.result("starling_p2pSync", json!([])).await["missing"],
        json!(0)
    );
    for method in ["starling_p2pBans", "starling_p2pBlocks"] {
        assert_eq!(pair.result(method, json!([])).await, json!([]), "{method}");
    }
}

#[tokio::test]
async fn without_a_swarm_there_is_nothing_to_tell() {
    let chain = Chain::new(Fork::Ecotone);
    for method in ["opp2p_self", "opp2p_peerStats", "opp2p_listBlockedPeers"] {
        assert_eq!(
            chain.error(method, json!([])).await,
            (-32000, "p2p is disabled".into())
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_served_where_it_is_asked_for_and_nowhere_else() {
    let (network, _, _running) = swarm().await;
    let mut context = RpcContext::new(
        Chain::new(Fork::Ecotone).context.chain.clone(),
        TxRoute::Pool,
    );
    context.network = Some(network);
    let end = |api: &str| {
        let vhosts = vec!["localhost".to_owned()];
        Some(HttpEndpoint {
            addr: ([127, 0, 0, 1], 0).into(),
            api: vec![api.to_owned()],
            vhosts,
            cors: vec![],
            prefix: String::new(),
        })
    };
    let config = RpcConfig {
        http: end("eth"),
        rollup: end("opp2p").map(|http| RollupEndpoint {
            http,
            required: true,
        }),
        ..Default::default()
    };
    let (server, addrs) = RpcServer::bind(config, context).await.unwrap();
    let token = CancellationToken::new();
    let running = tokio::spawn(server.run(token.clone()));
    let mut server = Server {
        addrs,
        running,
        _guard: token.clone().drop_guard(),
        token,
    };
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"opp2p_self"}"#;
    assert!(
        server.post(call).await.contains("-32601"),
        "a proxy may stand before an address of this machine"
    );
    server.addrs.http = server.addrs.rollup;
    assert!(server.post(call).await.contains("peerID"));
    assert!(
        server
            .post(r#"{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"}"#)
            .await
            .contains("-32601")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn records_and_the_table_of_discovery_are_shown() {
    let (boot, _, _boot_running) = swarm_with(Some(DiscoveryConfig::default())).await;
    let record = boot.discovery().await.unwrap().enr;
    let bootnodes = vec![record.parse().unwrap()];
    let (network, _, _running) = swarm_with(Some(DiscoveryConfig {
        bootnodes,
        ..Default::default()
    }))
    .await;
    let swarm = network.clone();
    let chain = Chain::new(Fork::Ecotone).with(|context| context.network = Some(swarm));

    let own = chain.result("opp2p_self", json!([])).await;
    assert!(
        own["ENR"]
            .as_str()
            .is_some_and(|record| record.starts_with("enr:")),
        "{own}"
    );
    assert_eq!(
        chain.result("opp2p_discoveryTable", json!([])).await,
        json!([record])
    );
    assert_eq!(
        chain.result("opp2p_peerStats", json!([])).await["table"],
        json!(1)
    );
    let report = chain.result("starling_p2pDiscovery", json!([])).await;
    assert_eq!(
        (
            &report["enr"],
            &report["table"],
            report["udp"].as_u64() > Some(0)
        ),
        (&own["ENR"], &json!([record]), true)
    );
    // A peer that discovery has found is shown with its node record.
    let id = boot.local_peer_id().to_string();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        let peers = chain.result("opp2p_peers", json!([true])).await;
        if peers["peers"][&id]["ENR"] == json!(record) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{peers}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
