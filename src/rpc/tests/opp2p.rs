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

/// A running swarm of the tests' chain, its address, and what stops it.
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

#[tokio::test(flavor = "multi_thread")]
async fn all_seventeen_methods_answer_in_op_nodes_shapes() {
    let (network, address, _running) = swarm().await;
    let (other, other_address, _other_running) = swarm().await;
    let swarm = network.clone();
    let chain = Chain::new(Fork::Ecotone).with(|context| context.network = Some(swarm));
    let id = other.local_peer_id().to_string();

    let ours = chain.result("opp2p_self", json!([])).await;
    assert_eq!(
        (&ours["peerID"], &ours["addresses"][0]),
        (&json!(network.local_peer_id().to_string()), &json!(address))
    );
    assert_eq!(
        (&ours["chainID"], &ours["gossipBlocks"], &ours["ENR"]),
        (&json!(CHAIN_ID), &json!(true), &json!(""))
    );
    assert_eq!(ours["nodeID"].as_str().map(str::len), Some(64));
    let keys = [
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
    assert_eq!(
        ours.as_object().map(|object| object.len()),
        Some(keys.len())
    );
    assert!(keys.iter().all(|key| ours.get(key).is_some()));
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

    assert_eq!(
        chain
            .result("opp2p_connectPeer", json!([other_address]))
            .await,
        Value::Null
    );
    let dump = chain.result("opp2p_peers", json!([true])).await;
    assert_eq!(
        (
            &dump["totalConnected"],
            &dump["bannedPeers"],
            &dump["bannedIPS"],
            &dump["bannedSubnets"]
        ),
        (&json!(1), &json!([]), &json!([]), &json!([]))
    );
    let peer = &dump["peers"][&id];
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
    let stats = chain.result("opp2p_peerStats", json!([])).await;
    assert_eq!(
        (&stats["connected"], &stats["table"], &stats["banned"]),
        (&json!(1), &json!(0), &json!(0))
    );
    assert!(
        [
            "blocksTopic",
            "blocksTopicV2",
            "blocksTopicV3",
            "blocksTopicV4",
            "known"
        ]
        .iter()
        .all(|key| stats[key].is_u64())
    );
    assert_eq!(
        chain.error("opp2p_discoveryTable", json!([])).await,
        (-32000, "discovery disabled".into())
    );

    // Both forms of a subnet are the same subnet, and the answer is op-node's.
    let subnet = json!({ "IP": "123.0.0.0", "Mask": "/wAAAA==" });
    for (block, unblock) in [
        (json!("123.0.0.0/8"), subnet.clone()),
        (subnet.clone(), json!("123.0.0.0/8")),
    ] {
        assert_eq!(
            chain.result("opp2p_blockSubnet", json!([block])).await,
            Value::Null
        );
        assert_eq!(
            chain.result("opp2p_listBlockedSubnets", json!([])).await,
            json!([subnet])
        );
        assert_eq!(
            chain.result("opp2p_unblockSubnet", json!([unblock])).await,
            Value::Null
        );
        assert_eq!(
            chain.result("opp2p_listBlockedSubnets", json!([])).await,
            json!([])
        );
    }
    for (noun, list, value) in [
        ("Peer", "Peers", json!(id)),
        ("Addr", "Addrs", json!("10.1.2.3")),
    ] {
        assert_eq!(
            chain
                .result(&format!("opp2p_block{noun}"), json!([value]))
                .await,
            Value::Null
        );
        assert_eq!(
            chain
                .result(&format!("opp2p_listBlocked{list}"), json!([]))
                .await,
            json!([value])
        );
        assert_eq!(
            chain
                .result(&format!("opp2p_unblock{noun}"), json!([value]))
                .await,
            Value::Null
        );
        assert_eq!(
            chain
                .result(&format!("opp2p_listBlocked{list}"), json!([]))
                .await,
            json!([])
        );
    }
    chain.result("opp2p_protectPeer", json!([id])).await;
    assert_eq!(
        chain.result("opp2p_peers", json!([true])).await["peers"][&id]["protected"],
        json!(true)
    );
    chain.result("opp2p_unprotectPeer", json!([id])).await;
    chain.result("opp2p_blockPeer", json!([id])).await;
    assert_eq!(
        chain.result("opp2p_disconnectPeer", json!([id])).await,
        Value::Null
    );
    assert_eq!(
        chain.result("opp2p_listBlockedPeers", json!([])).await,
        json!([]),
        "disconnecting ends a block"
    );

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
            chain.error(method, json!([param])).await,
            (-32000, "invalid request".into()),
            "{method}"
        );
    }
    let (code, text) = chain.error("opp2p_connectPeer", json!(["nonsense"])).await;
    assert!(
        code == -32000 && text.starts_with("bad peer address: "),
        "{text}"
    );
    let (_, text) = chain
        .error("opp2p_connectPeer", json!(["/ip4/127.0.0.1/tcp/1"]))
        .await;
    assert!(text.starts_with("bad peer address: "), "{text}");

    // Ours: why all this happened.
    let ledger = chain.result("starling_p2pLedger", json!([id])).await;
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
    assert_eq!(
        chain
            .result("starling_p2pLedger", json!([null, 1]))
            .await
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    assert_eq!(
        chain
            .result("starling_p2pMesh", json!([]))
            .await
            .as_array()
            .map(Vec::len),
        Some(4)
    );
    assert_eq!(
        chain.result("starling_p2pSync", json!([])).await["missing"],
        json!(0)
    );
    assert_eq!(chain.result("starling_p2pBans", json!([])).await, json!([]));
    assert_eq!(
        chain.result("starling_p2pBlocks", json!([])).await,
        json!([])
    );
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
    // A peer that discovery found is shown with the record it was found by.
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
