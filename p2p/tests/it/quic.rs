//! Tests of gossip, sync, the gate and bans over QUIC.

use crate::{attackers::*, net::*};
use libp2p::{Multiaddr, multiaddr::Protocol};
use starling_p2p::{Config, DiscoveryConfig, Keypair, Service, StartError, Subject};
use std::{
    net::{IpAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

const LONG: Duration = Duration::from_secs(60);

fn listening() -> Config {
    Config {
        listen_quic: Some(0),
        ..config()
    }
}

fn is_quic(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::QuicV1)
}

/// Starts a node whose `address` is its QUIC address.
async fn start(config: Config) -> Node {
    over_datagrams(Node::start(config).await).await
}

async fn over_datagrams(mut node: Node) -> Node {
    let mut addresses = node.network.listen_addrs();
    let all = tokio::time::timeout(LONG, addresses.wait_for(|all| all.iter().any(is_quic)))
        .await
        .expect("it listens")
        .unwrap();
    node.address = all.iter().find(|address| is_quic(address)).unwrap().clone();
    node
}

/// The node's address with a DNS name instead of the IP address.
fn named(node: &Node) -> Multiaddr {
    let parts = node.address.iter().map(|part| match part {
        Protocol::Ip4(_) => Protocol::Dns4("localhost".into()),
        part => part,
    });
    parts.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_pass_and_gaps_are_filled_over_quic() {
    let blocks = chain(300, vec![]);
    let server = over_datagrams(Node::start_with(listening(), &blocks[..298]).await).await;
    // A node that does not listen on QUIC still dials QUIC addresses.
    let by_number = Node::start_with(with_static(&[&server.address]), &blocks[..280]).await;
    let by_range = Node::start_with(with_static(&[&named(&server)]), &blocks[..1]).await;
    server.meshed(2).await;
    for replica in [&by_number, &by_range] {
        replica.peers(1).await;
        assert!(
            replica
                .network
                .peers()
                .iter()
                .all(|peer| is_quic(&peer.address))
        );
        assert!(
            !replica.network.listen_addrs().borrow().iter().any(is_quic),
            "only if it is told to"
        );
    }
    for block in &blocks[298..] {
        server.publish(block).await;
        for replica in [&by_number, &by_range] {
            eventually(LONG, || replica.chain.has(block)).await;
            assert!(blocks[..298].iter().all(|block| replica.chain.has(block)));
        }
    }
    for node in [by_number, by_range, server] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_with_addresses_of_both_kinds_has_one_connection() {
    let other = Node::start(listening()).await;
    let tcp = other.address.clone();
    let other = over_datagrams(other).await;
    let node = Node::start(with_static(&[&tcp, &other.address])).await;
    // Wait for both sides: a side that has not yet seen the connection would dial once more.
    node.peers(1).await;
    other.peers(1).await;
    let (of_node, of_other) = (node.network.clone(), other.network.clone());
    eventually(LONG, || {
        [&of_node, &of_other]
            .iter()
            .all(|network| network.peers().iter().all(|peer| peer.connections == 1))
    })
    .await;
    node.network.connect(&other.address).await.unwrap();
    node.network.connect(&tcp).await.unwrap();
    assert_eq!(
        (of_node.peer_count(), of_node.peers()[0].connections),
        (1, 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_over_tcp_is_refused_over_quic() {
    let (node, other) = (start(listening()).await, start(listening()).await);
    let id = other.network.local_peer_id();
    let loopback = IpAddr::from([127, 0, 0, 1]);
    for subject in [
        Subject::Peer(id),
        Subject::Address(loopback),
        Subject::Subnet("127.0.0.0/8".parse().unwrap()),
    ] {
        node.network.block(subject, true).await.unwrap();
        assert!(
            other.network.connect(&node.address).await.is_err(),
            "in: {subject:?}"
        );
        for address in [&other.address, &named(&other)] {
            assert!(
                node.network.connect(address).await.is_err(),
                "out: {subject:?}, {address}"
            );
        }
        node.network.block(subject, false).await.unwrap();
    }
    node.network.connect(&other.address).await.unwrap();
    // Each side sees the connection at a time of its own.
    other.peers(1).await;
    assert_eq!(node.network.peer_count(), 1);

    let restricted = start(Config {
        restrict: vec!["10.0.0.0/8".parse().unwrap()],
        ..listening()
    })
    .await;
    assert!(other.network.connect(&restricted.address).await.is_err());
    for address in [&other.address, &named(&other)] {
        assert!(
            restricted.network.connect(address).await.is_err(),
            "{address}"
        );
    }
    assert_eq!(restricted.network.peer_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_misbehaves_over_quic_is_named_and_banned() {
    let node = start(listening()).await;
    let identity = Keypair::generate_secp256k1();
    tokio::time::timeout(LONG, open_streams(over_quic(&identity), &node))
        .await
        .expect("it hangs up");
    node.charged(identity.public().to_peer_id(), "stream_flood")
        .await;

    let mut halves = Raw::connected_to(&node, false).await;
    let sent = tokio::time::timeout(LONG, send_halves(&mut halves, &node));
    sent.await.expect("it hangs up");
    node.charged(halves.id(), "half_frame").await;

    let mut flooder = Raw::connected_to(&node, false).await;
    tokio::time::timeout(LONG, flood_garbage(&mut flooder, &node))
        .await
        .expect("it hangs up");
    assert!(node.has_banned(flooder.id()).await);
    assert!(!flooder.is_let_in(&node).await);
    assert!(Raw::new(false).is_let_in(&node).await);
}

#[tokio::test]
async fn a_port_that_is_taken_is_told() {
    let refused = |config| {
        Service::new(config, Arc::new(TestChain::default()))
            .map(drop)
            .unwrap_err()
    };
    let taken = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = refused(Config {
        listen_quic: Some(port),
        ..config()
    });
    assert!(
        matches!(&error, StartError::Quic { .. })
            && error.to_string().contains("--p2p.listen.quic"),
        "{error}"
    );
    drop(taken);
    let discovery = |listen_udp| {
        Some(DiscoveryConfig {
            listen_udp,
            ..Default::default()
        })
    };
    for (listen_tcp, discovery) in [(0, discovery(port)), (port, discovery(0))] {
        let error = refused(Config {
            listen_quic: Some(port),
            listen_tcp,
            discovery,
            ..config()
        });
        assert!(
            matches!(error, StartError::SharedPort(shared) if shared == port),
            "{error}"
        );
    }
}
