//! Tests of static peers, ports and identities.

use crate::{
    counters::{count_metrics, counter},
    net::*,
};
use libp2p::{
    multiaddr::Protocol,
    swarm::{SwarmEvent, dial_opts::DialOpts},
};
use parking_lot::Mutex;
use starling_p2p::{Config, LedgerChange, Service, StartError};
use starling_testkit::free_port;
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::net::UdpSocket;

#[tokio::test(flavor = "multi_thread")]
async fn a_static_peer_is_found_again_after_its_restart() {
    let blocks = chain(2, vec![]);
    let keypair = config().identity;
    let sequencer = Node::start(Config {
        identity: keypair.clone(),
        ..config()
    })
    .await;
    let address = sequencer.address.clone();
    let port = sequencer.tcp_port();
    let replica = Node::start(with_static(&[&address])).await;
    replica.peers(1).await;
    assert!(replica.network.peers()[0].protected);
    sequencer.publish(&blocks[0]).await;
    replica.receives(&blocks[0]).await;
    sequencer.stop().await;
    replica.peers(0).await;
    tokio::time::sleep(Duration::from_secs(3)).await;

    let again = Node::start_with(
        Config {
            identity: keypair,
            listen_tcp: port,
            ..config()
        },
        &blocks[..1],
    )
    .await;
    let waited = eventually(Duration::from_secs(3), || again.network.peer_count() == 1).await;
    println!("found again after {waited:?}");
    again.publish(&blocks[1]).await;
    replica.receives(&blocks[1]).await;
}

/// Two nodes with one key file cannot connect: each names the other one.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_with_our_own_key_is_noticed_on_both_sides() {
    count_metrics();
    let met = || counter("starling_p2p_own_peer_ids_total", "");
    let keypair = config().identity;
    let node = Node::start(Config {
        identity: keypair.clone(),
        ..config()
    })
    .await;
    // A node skips static peers with its own id, so the twin expects another peer there.
    let mut address = node.address.clone();
    address.pop();
    let address = address.with(Protocol::P2p(config().identity.public().to_peer_id()));
    let before = met();
    let twin = Node::start(Config {
        identity: keypair,
        ..with_static(&[&address])
    })
    .await;
    eventually(PATIENCE, || met() >= before + 2).await;
    assert_eq!(
        (node.network.peer_count(), twin.network.peer_count()),
        (0, 0)
    );
}

/// The node that both connect to sees what neither of them can see.
#[tokio::test(flavor = "multi_thread")]
async fn two_peers_with_one_key_are_noticed_by_a_third() {
    count_metrics();
    let met = || counter("starling_p2p_shared_peer_ids_total", "");
    let (node, identity) = (Node::start(config()).await, config().identity);
    let twin = || Config {
        identity: identity.clone(),
        ..with_static(&[&node.address])
    };
    let _twins = (Node::start(twin()).await, Node::start(twin()).await);
    eventually(PATIENCE, || met() > 0).await;
}

/// A name server that responds to every query for an IPv4 address with `told` and a TTL of an hour.
async fn name_server(told: Arc<Mutex<Ipv4Addr>>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut bytes = [0; 512];
        loop {
            let (length, from) = socket.recv_from(&mut bytes).await.unwrap();
            // The name ends with an empty label; its type and class follow.
            let end = 12
                + bytes[12..length]
                    .iter()
                    .position(|byte| *byte == 0)
                    .unwrap()
                + 5;
            let is_v4 = bytes[end - 4..end - 2] == [0, 1];
            let mut answer = [
                &bytes[..2],
                &[0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0],
                &bytes[12..end],
            ]
            .concat();
            if is_v4 {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 14, 16, 0, 4]);
                answer.extend(told.lock().octets());
            }
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_peer_given_by_name_is_found_where_the_name_leads_now() {
    let (here, there) = (Ipv4Addr::new(127, 0, 0, 3), Ipv4Addr::new(127, 0, 0, 4));
    let told = Arc::new(Mutex::new(here));
    let servers = name_server(told.clone()).await;
    let keypair = config().identity;
    let first = Node::start(Config {
        identity: keypair.clone(),
        listen_ip: here.into(),
        ..config()
    })
    .await;
    let port = first.tcp_port();
    let name = format!(
        "/dns4/peer.example.org/tcp/{port}/p2p/{}",
        first.network.local_peer_id()
    )
    .parse()
    .unwrap();
    let replica = Node::start(Config {
        name_server: Some(servers),
        ..with_static(&[&name])
    })
    .await;
    replica.peers(1).await;
    first.stop().await;
    *told.lock() = there;
    let second = Node::start(Config {
        identity: keypair,
        listen_ip: there.into(),
        listen_tcp: port,
        ..config()
    })
    .await;
    second.peers(1).await;
    assert_eq!(
        second.network.peers()[0].id,
        replica.network.local_peer_id()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_that_dial_each_other_end_with_one_connection() {
    let blocks = chain(1, vec![]);
    let (one, two) = (config(), config());
    let peer = |config: &Config, port: u16| {
        format!(
            "/ip4/127.0.0.1/tcp/{port}/p2p/{}",
            config.identity.public().to_peer_id()
        )
        .parse()
        .unwrap()
    };
    let (port_one, port_two) = (free_port(), free_port());
    let (to_one, to_two) = (peer(&one, port_one), peer(&two, port_two));
    let one = Config {
        listen_tcp: port_one,
        static_peers: vec![to_two],
        ..one
    };
    let two = Config {
        listen_tcp: port_two,
        static_peers: vec![to_one],
        ..two
    };
    let (one, two) = tokio::join!(Node::start(one), Node::start(two));
    one.peers(1).await;
    two.peers(1).await;
    // Wait longer than the grace time of a surplus connection, since the second handshake may end
    // late.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for (node, other) in [(&one, &two), (&two, &one)] {
        let connections = || {
            node.network
                .peers()
                .iter()
                .map(|peer| peer.connections)
                .collect::<Vec<_>>()
        };
        eventually(Duration::from_secs(60), || connections() == [1]).await;
        let verdicts = node.verdicts(other.network.local_peer_id()).await;
        assert!(
            verdicts
                .iter()
                .all(|(_, change)| *change != LedgerChange::Disconnected),
            "one stayed all the time: {verdicts:?}"
        );
    }
    // A message that is sent on the surplus connection while it closes may be lost.
    one.publish(&blocks[0]).await;
    two.receives(&blocks[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_comes_again_from_elsewhere_is_known_by_where_it_is_now() {
    let node = Node::start(config()).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let before = node.network.peers()[0].address.clone();
    // The raw peer dials from the port that it listens on.
    raw.0
        .listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap())
        .unwrap();
    let mut now = None;
    raw.until(|event| {
        if let SwarmEvent::NewListenAddr { address, .. } = event {
            now = Some(address.clone());
        }
        now.is_some()
    })
    .await;
    raw.0.dial(DialOpts::from(node.address.clone())).unwrap();
    let seen = || {
        node.network
            .peers()
            .iter()
            .map(|peer| (peer.address.clone(), peer.connections))
            .collect::<Vec<_>>()
    };
    raw.drive(eventually(Duration::from_secs(60), || {
        seen().iter().any(|(_, connections)| *connections == 2)
    }))
    .await;
    assert_eq!(seen(), [(before, 2)]);
    // The older connection is closed.
    raw.drive(eventually(Duration::from_secs(60), || {
        seen() == [(now.clone().unwrap(), 1)]
    }))
    .await;
}

#[tokio::test]
async fn a_port_in_use_is_one_sentence() {
    let port = free_port();
    let first = Service::new(
        Config {
            listen_tcp: port,
            ..config()
        },
        Arc::new(TestChain::default()),
    );
    assert!(first.is_ok());
    let Err(error) = Service::new(
        Config {
            listen_tcp: port,
            ..config()
        },
        Arc::new(TestChain::default()),
    ) else {
        panic!("two nodes on one port");
    };
    assert!(matches!(error, StartError::PortInUse(_)));
    let text = error.to_string();
    assert!(
        text.contains(&port.to_string())
            && text.contains("--p2p.listen.tcp")
            && !text.contains('\n'),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_swarm_listens_where_it_is_told_and_nowhere_else() {
    // A listener on every address would conflict with this one.
    let neighbour = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = neighbour.local_addr().unwrap().port();
    let told = Node::start(Config {
        listen_ip: [127, 0, 0, 2].into(),
        listen_tcp: port,
        ..config()
    })
    .await;
    assert!(
        told.address
            .to_string()
            .starts_with(&format!("/ip4/127.0.0.2/tcp/{port}/p2p/")),
        "{}",
        told.address
    );
    assert_eq!(told.network.listen_addrs().borrow().len(), 1);
    let other = Node::start(Config {
        listen_ip: [127, 0, 0, 3].into(),
        ..with_static(&[&told.address])
    })
    .await;
    assert!(
        other.address.to_string().starts_with("/ip4/127.0.0.3/tcp/"),
        "{}",
        other.address
    );
    told.peers(1).await;
}

#[tokio::test]
async fn a_foreign_address_and_a_bad_mesh_are_errors() {
    let foreign = Config {
        listen_ip: [203, 0, 113, 1].into(),
        listen_tcp: 9222,
        ..config()
    };
    let result = Service::new(foreign, Arc::new(TestChain::default()));
    assert!(matches!(result.map(|_| ()), Err(StartError::Listen { .. })));
    let mut mesh = config();
    mesh.mesh.lo = 20;
    let result = Service::new(mesh, Arc::new(TestChain::default()));
    assert!(matches!(result.map(|_| ()), Err(StartError::Mesh(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_swarm_ends_with_its_token() {
    let node = Node::start(config()).await;
    let network = node.network.clone();
    node.stop().await;
    // A handle without a swarm does nothing and does not hang.
    tokio::time::timeout(Duration::from_secs(60), network.heads(Default::default()))
        .await
        .unwrap();
}
