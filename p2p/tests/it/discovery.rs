//! Discovery between real nodes on loopback.

use crate::net::*;
use parking_lot::Mutex;
use starling_p2p::{
    Bootnode, Config, DiscoveryConfig, DiscoveryReport, Keypair, PeerId, PeerLimits,
};
use starling_proto::enr::OpStack;
use starling_testkit::free_port;
use std::{collections::BTreeSet, net::UdpSocket, sync::Arc, time::Duration};

/// Time limit of a test. Walks are five seconds apart, and this machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);

/// Configuration of a node that knows only these bootnodes.
fn seeking(bootnodes: &[&str]) -> Config {
    let bootnodes = bootnodes.iter().map(|text| text.parse().unwrap()).collect();
    Config {
        discovery: Some(DiscoveryConfig {
            bootnodes,
            ..Default::default()
        }),
        ..config()
    }
}

fn with(config: Config, change: impl FnOnce(&mut DiscoveryConfig)) -> Config {
    let mut discovery = config.discovery.unwrap();
    change(&mut discovery);
    Config {
        discovery: Some(discovery),
        ..config
    }
}

async fn report(node: &Node) -> DiscoveryReport {
    node.network.discovery().await.expect("discovery runs")
}

async fn record(node: &Node) -> String {
    report(node).await.enr
}

/// Waits until the node's discovery report satisfies `wanted`.
async fn reported(node: &Node, wanted: impl Fn(&DiscoveryReport) -> bool) -> DiscoveryReport {
    let start = std::time::Instant::now();
    loop {
        let report = report(node).await;
        if wanted(&report) {
            return report;
        }
        assert!(start.elapsed() < LIMIT, "still {report:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn meet(node: &Node, peer: PeerId) {
    eventually(LIMIT, || {
        node.network.peers().iter().any(|other| other.id == peer)
    })
    .await;
}

fn knows(node: &Node, peer: PeerId) -> bool {
    node.network.peers().iter().any(|other| other.id == peer)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_find_each_other_through_a_third() {
    let third = Node::start(seeking(&[])).await;
    let boot = record(&third).await;
    let one = Node::start(seeking(&[&boot])).await;
    let two = Node::start(seeking(&[&boot])).await;
    meet(&one, two.network.local_peer_id()).await;
    meet(&two, one.network.local_peer_id()).await;

    let blocks = chain(1, vec![]);
    one.publish(&blocks[0]).await;
    two.receives(&blocks[0]).await;
    let known = one.network.report().await.unwrap();
    let peer = known
        .peers
        .iter()
        .find(|peer| peer.id == third.network.local_peer_id());
    assert_eq!(
        peer.and_then(|peer| peer.record.clone()),
        Some(boot),
        "shown with its record"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_chain_is_never_dialled() {
    let foreign = Node::start(Config {
        chain_id: CHAIN + 1,
        ..seeking(&[])
    })
    .await;
    let boot = record(&foreign).await;
    let one = Node::start(seeking(&[&boot])).await;
    let two = Node::start(seeking(&[&boot])).await;
    // The foreign node serves discovery, so nodes of one chain find each other through it.
    meet(&one, two.network.local_peer_id()).await;
    meet(&two, one.network.local_peer_id()).await;
    for node in [&one, &two] {
        let report = reported(node, |report| report.refused.contains_key("other_chain")).await;
        assert!(
            report.known <= 1,
            "no more than the other of our chain: {report:?}"
        );
        assert!(!knows(node, foreign.network.local_peer_id()));
        let entries = node
            .network
            .ledger(Some(foreign.network.local_peer_id()), 10)
            .await
            .unwrap();
        assert!(entries.is_empty(), "it was never connected: {entries:?}");
    }
    assert_eq!(foreign.network.peer_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enode_is_asked_for_its_record() {
    let boot = Node::start(seeking(&[])).await;
    let report = report(&boot).await;
    let Bootnode::Enr(_) = report.enr.parse().unwrap() else {
        panic!("a record")
    };
    let key = boot.network.local_peer_id().to_bytes();
    let key = libp2p::identity::PublicKey::try_decode_protobuf(&key[2..])
        .unwrap()
        .try_into_secp256k1()
        .unwrap();
    let key = hex::encode(&key.to_bytes_uncompressed()[1..]);
    // The host may also be a name, which is looked up.
    for host in ["127.0.0.1", "localhost"] {
        let enode = format!("enode://{key}@{host}:0?discport={}", report.udp);
        let node = Node::start(seeking(&[&enode])).await;
        meet(&node, boot.network.local_peer_id()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_found_is_found_again_after_a_restart_without_bootnodes() {
    let folder = tempfile::tempdir().unwrap();
    let other = Node::start(seeking(&[])).await;
    let peer = other.network.local_peer_id();
    let boot = record(&other).await;
    let identity = Keypair::generate_secp256k1();
    let stored = |bootnodes: &[&str]| {
        let path = folder.path().join("discovery");
        with(
            Config {
                identity: identity.clone(),
                ..seeking(bootnodes)
            },
            |config| config.store = Some(path),
        )
    };
    let node = Node::start(stored(&[&boot])).await;
    meet(&node, peer).await;
    let first = record(&node).await;
    node.stop().await;

    let node = Node::start(stored(&[])).await;
    meet(&node, peer).await;
    let second = record(&node).await;
    let seq = |record: &str| match record.parse().unwrap() {
        Bootnode::Enr(record) => record.seq(),
        Bootnode::Enode(_) => 0,
    };
    assert!(
        seq(&second) > seq(&first),
        "a restarted node's record is newer"
    );
    node.stop().await;

    // A store in memory keeps no records.
    let node = Node::start(with(stored(&[]), |config| config.store = None)).await;
    assert_eq!(report(&node).await.known, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_outside_of_netrestrict_is_found_or_asked() {
    let boot = Node::start(seeking(&[])).await;
    let boot = record(&boot).await;
    let inside = Config {
        restrict: vec!["127.0.0.0/8".parse().unwrap()],
        ..seeking(&[&boot])
    };
    let outside = Config {
        restrict: vec!["10.0.0.0/8".parse().unwrap()],
        ..seeking(&[&boot])
    };
    let inside = Node::start(inside).await;
    let outside = Node::start(outside).await;
    eventually(LIMIT, || inside.network.peer_count() == 1).await;
    let report = report(&outside).await;
    assert_eq!(
        (
            report.table.len(),
            report.known,
            outside.network.peer_count()
        ),
        (0, 0, 0),
        "{report:?}"
    );
}

/// A node of our chain at another address. It notes the port from which each packet comes, and
/// never replies.
async fn outsider() -> (String, Arc<Mutex<BTreeSet<u16>>>) {
    let socket = tokio::net::UdpSocket::bind("127.0.0.2:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let key = enr::CombinedKey::generate_secp256k1();
    let entry = OpStack::new(CHAIN).to_rlp();
    let record = discv5::Enr::builder()
        .ip4([127, 0, 0, 2].into())
        .udp4(port)
        .tcp4(port)
        .add_value_rlp(starling_proto::enr::KEY, entry.into())
        .build(&key)
        .unwrap();
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let ports = seen.clone();
    tokio::spawn(async move {
        let mut bytes = [0; 2000];
        while let Ok((_, from)) = socket.recv_from(&mut bytes).await {
            ports.lock().insert(from.port());
        }
    });
    (record.to_base64(), seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn walks_stay_within_netrestrict_and_find_who_is_there() {
    let (record_outside, seen) = outsider().await;
    let boot = Node::start(seeking(&[&record_outside])).await;
    let text = record(&boot).await;
    let walker = Node::start(seeking(&[&text])).await;
    let restricted = || Config {
        restrict: vec!["127.0.0.1/32".parse().unwrap()],
        peer_limits: PeerLimits {
            lo: 30,
            ..PeerLimits::default()
        },
        ..seeking(&[&text])
    };
    let (one, two) = (
        Node::start(restricted()).await,
        Node::start(restricted()).await,
    );
    let port = report(&one).await.udp;
    // The nodes have heard of the outsider, and still find each other.
    meet(&one, two.network.local_peer_id()).await;
    reported(&one, |report| {
        report
            .refused
            .get("netrestrict")
            .is_some_and(|times| *times > 2)
    })
    .await;
    // Nodes without the restriction send queries to the outsider.
    let asked = [report(&boot).await.udp, report(&walker).await.udp];
    eventually(LIMIT, || {
        asked.iter().all(|port| seen.lock().contains(port))
    })
    .await;
    assert!(
        !seen.lock().contains(&port),
        "a packet left the allowed network"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn enough_peers_are_enough() {
    let boot = Node::start(seeking(&[])).await;
    let text = record(&boot).await;
    let few = PeerLimits {
        lo: 1,
        hi: 30,
        ..PeerLimits::default()
    };
    let node = Node::start(Config {
        peer_limits: few,
        ..seeking(&[&text])
    })
    .await;
    meet(&node, boot.network.local_peer_id()).await;
    let others = [
        Node::start(seeking(&[])).await,
        Node::start(seeking(&[])).await,
    ];
    // The other nodes know no peer, so only this node could dial. It learns of them and does not
    // dial.
    for other in &others {
        let text = record(other).await;
        let introduced = Node::start(seeking(&[&text, &record(&node).await])).await;
        meet(&introduced, other.network.local_peer_id()).await;
        reported(&node, |report| report.known >= 2).await;
    }
    assert!(
        others
            .iter()
            .all(|other| !knows(&node, other.network.local_peer_id()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_and_addresses_are_advertised_as_told() {
    let node = Node::start(seeking(&[])).await;
    let parsed = |text: &str| match text.parse().unwrap() {
        Bootnode::Enr(record) => record,
        Bootnode::Enode(_) => panic!("a record"),
    };
    let plain = report(&node).await;
    let (own, tcp) = (parsed(&plain.enr), node.tcp_port());
    assert_eq!(
        (own.ip4(), own.tcp4(), own.udp4()),
        (Some([127, 0, 0, 1].into()), Some(tcp), Some(plain.udp))
    );
    assert_eq!(plain.udp, tcp, "UDP on the port of TCP");

    let free = free_port();
    let told = with(seeking(&[]), |config| {
        (
            config.advertise_tcp,
            config.advertise_udp,
            config.listen_udp,
        ) = (7, 8, free);
        config.advertise_ip = Some("192.0.2.7".into());
    });
    let node = Node::start(told).await;
    let told = report(&node).await;
    let own = parsed(&told.enr);
    assert_eq!(
        (own.ip4(), own.tcp4(), own.udp4()),
        (Some([192, 0, 2, 7].into()), Some(7), Some(8))
    );
    assert_eq!(told.udp, free);

    let named = with(seeking(&[]), |config| {
        config.advertise_ip = Some("localhost".into())
    });
    let named = Node::start(named).await;
    assert_eq!(
        parsed(&record(&named).await).ip4(),
        Some([127, 0, 0, 1].into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_discovery_there_is_no_udp_socket() {
    let quiet = Node::start(config()).await;
    assert!(quiet.network.discovery().await.is_none());
    let port = quiet.tcp_port();
    assert!(!udp_ports().contains(&port), "nothing listens on {port}");
    let seeking = Node::start(seeking(&[])).await;
    let port = report(&seeking).await.udp;
    assert!(udp_ports().contains(&port), "discovery listens on {port}");
}

/// The UDP ports over IPv4 that this process's network namespace has open, from the kernel's list.
fn udp_ports() -> Vec<u16> {
    let table = std::fs::read_to_string("/proc/self/net/udp").unwrap();
    let port = |line: &str| {
        u16::from_str_radix(line.split_whitespace().nth(1)?.split_once(':')?.1, 16).ok()
    };
    table.lines().skip(1).filter_map(port).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_meet_over_ipv6() {
    if starling_testkit::optional(UdpSocket::bind("[::1]:0").ok(), "IPv6 on this machine").is_none()
    {
        return;
    }
    let v6 = |bootnodes: &[&str]| Config {
        listen_ip: "::1".parse().unwrap(),
        ..seeking(bootnodes)
    };
    let one = Node::start(v6(&[])).await;
    let two = Node::start(v6(&[&record(&one).await])).await;
    meet(&two, one.network.local_peer_id()).await;
    assert!(
        two.network.peers()[0]
            .address
            .to_string()
            .starts_with("/ip6/::1/tcp/")
    );
}

#[tokio::test]
async fn a_udp_port_in_use_is_one_sentence() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let config = with(seeking(&[]), |config| config.listen_udp = port);
    let Err(error) = starling_p2p::Service::new(config, std::sync::Arc::new(TestChain::default()))
    else {
        panic!("two sockets on one port");
    };
    let text = error.to_string();
    assert!(
        text.contains("--p2p.listen.udp")
            && text.contains(&port.to_string())
            && !text.contains('\n'),
        "{text}"
    );
}
