use super::*;
use crate::gossip::topics::{self, HEAVY, LIGHT, Mesh, Topics, gossip_config};
use futures::StreamExt;
use libp2p::{
    Swarm, SwarmBuilder,
    core::UpgradeInfo,
    gossipsub::{self, IdentTopic, MessageAuthenticity},
    noise,
    swarm::SwarmEvent,
    tcp, yamux,
};
use starling_proto::gossip::{self as wire, Decompressed, PayloadFlag};
use std::time::Duration;

const CHAIN: u64 = 901;
const LONG: Duration = Duration::from_secs(60);

fn topic() -> IdentTopic {
    IdentTopic::new(wire::topic(
        CHAIN,
        starling_proto::payload::PayloadVersion::V4,
    ))
}

fn router() -> Router {
    let (timings, snappy, filter) = (
        SharedTimings::default(),
        Snappy::default(),
        Topics::new(CHAIN).filter(),
    );
    let config = gossip_config(Mesh::default(), &timings).unwrap();
    let anonymous = MessageAuthenticity::Anonymous;
    let mut gossip = Gossipsub::new_with_subscription_filter_and_transform(
        anonymous,
        config,
        filter,
        snappy.clone(),
    )
    .unwrap();
    gossip.subscribe(&topic()).unwrap();
    Router::new(gossip, snappy, timings, SharedGateRules::default())
}

fn swarm() -> Swarm<Router> {
    let tcp = SwarmBuilder::with_new_identity().with_tokio().with_tcp(
        tcp::Config::default(),
        noise::Config::new,
        yamux::Config::default,
    );
    let idle = |config: libp2p::swarm::Config| config.with_idle_connection_timeout(LONG);
    tcp.unwrap()
        .with_behaviour(|_| router())
        .unwrap()
        .with_swarm_config(idle)
        .build()
}

fn publish(swarm: &mut Swarm<Router>, bytes: Vec<u8>) {
    let tagged = Decompressed {
        flag: PayloadFlag::Decompressed,
        bytes,
    }
    .into_tagged();
    let topic = topic().hash();
    swarm
        .behaviour_mut()
        .publish(topic.clone(), topics::seal(topic.as_str(), tagged, 1))
        .unwrap();
}

fn is_subscribed(event: &SwarmEvent<RouterEvent>) -> bool {
    matches!(
        event,
        SwarmEvent::Behaviour(RouterEvent::Gossip {
            event: gossipsub::Event::Subscribed { .. },
            ..
        })
    )
}

/// The bytes of the message in an event, and the message's permit.
fn message_in(event: SwarmEvent<RouterEvent>) -> Option<(Vec<u8>, Option<OwnedSemaphorePermit>)> {
    match event {
        SwarmEvent::Behaviour(RouterEvent::Gossip {
            event: gossipsub::Event::Message { message, .. },
            permit,
        }) => Some((
            Decompressed::untag(topics::MessageParts::of(&message.data).tagged)
                .1
                .to_vec(),
            permit,
        )),
        _ => None,
    }
}

async fn listen(node: &mut Swarm<Router>) -> Multiaddr {
    node.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap())
        .unwrap();
    loop {
        if let SwarmEvent::NewListenAddr { address, .. } = node.select_next_some().await {
            return address;
        }
    }
}

/// Three peers send to a node whose permits for huge messages of untrusted peers are taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_huge_message_waits_for_a_permit_and_smaller_ones_and_those_of_static_peers_do_not() {
    let (mut node, mut huge, mut small, mut trusted) = (swarm(), swarm(), swarm(), swarm());
    let address = listen(&mut node).await;
    huge.dial(address.clone()).unwrap();
    small.dial(address.clone()).unwrap();
    let huge_permits = node.behaviour().permits.untrusted.huge.clone();
    let mut permits = huge_permits.try_acquire_many_owned(PERMITS as u32).ok();
    assert!(permits.is_some());
    let (large, of_trusted) = (vec![7; HEAVY + 1], vec![8; HEAVY + 1]);
    // Every third message is heavy.
    let small_one = |i: u8| vec![i; if i.is_multiple_of(3) { LIGHT + 1 } else { 1 }];
    let mut came = Vec::new();
    let exchange = async {
        loop {
            tokio::select! {
                event = huge.select_next_some() => if is_subscribed(&event) {
                    publish(&mut huge, large.clone());
                    // A light message behind a huge one on the same connection.
                    publish(&mut huge, vec![0]);
                },
                event = small.select_next_some() => if is_subscribed(&event) {
                    publish(&mut small, small_one(1));
                },
                event = trusted.select_next_some() => if is_subscribed(&event) {
                    // The peer becomes trusted while it is connected.
                    node.behaviour().rules.lock().trusted_peers.insert(*trusted.local_peer_id());
                    publish(&mut trusted, of_trusted.clone());
                },
                event = node.select_next_some() => {
                    let Some((bytes, _permit)) = message_in(event) else { continue };
                    came.push(bytes.clone());
                    match bytes[0] {
                        0 => break,
                        7 if bytes == large => {}
                        8 if bytes == of_trusted => drop(permits.take()),
                        30 => trusted.dial(address.clone()).unwrap(),
                        i => publish(&mut small, small_one(i + 1)),
                    }
                }
            }
        }
    };
    tokio::time::timeout(LONG, exchange)
        .await
        .expect("everything comes");
    let expected: Vec<Vec<u8>> = (1..=30)
        .map(small_one)
        .chain([of_trusted, large, vec![0]])
        .collect();
    let sizes: Vec<usize> = came.iter().map(Vec::len).collect();
    assert!(came == expected, "{sizes:?}");
}

/// A peer whose heavy message waits for a permit still sends and receives.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_waits_for_a_permit_receives_messages_meanwhile() {
    let (mut node, mut heavy) = (swarm(), swarm());
    let address = listen(&mut node).await;
    heavy.dial(address).unwrap();
    let _permits = node
        .behaviour()
        .permits
        .untrusted
        .heavy
        .clone()
        .acquire_many_owned(PERMITS as u32)
        .await
        .unwrap();
    let exchange = async {
        loop {
            tokio::select! {
                event = heavy.select_next_some() => {
                    if is_subscribed(&event) {
                        publish(&mut heavy, vec![7; LIGHT + 1]);
                    } else if let Some((bytes, _)) = message_in(event) {
                        // Each reply waits behind the heavy message.
                        publish(&mut heavy, vec![1, bytes[1]]);
                        match bytes[1] {
                            30 => break,
                            i => publish(&mut node, vec![0, i + 1]),
                        }
                    }
                }
                event = node.select_next_some() => {
                    if is_subscribed(&event) {
                        publish(&mut node, vec![0, 1]);
                    }
                    assert!(message_in(event).is_none(), "in their order");
                }
            }
        }
    };
    tokio::time::timeout(LONG, exchange)
        .await
        .expect("it receives everything");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_held_until_the_message_has_been_checked_and_a_copy_takes_none() {
    let (mut node, mut one, mut other) = (swarm(), swarm(), swarm());
    let address = listen(&mut node).await;
    one.dial(address.clone()).unwrap();
    let large = |i: u8| vec![i; LIGHT + 1];
    let mut held = None;
    let mut came = Vec::new();
    let exchange = async {
        while came != [1, 0, 2] {
            tokio::select! {
                event = one.select_next_some() => if is_subscribed(&event) {
                    publish(&mut one, large(1));
                },
                event = other.select_next_some() => if is_subscribed(&event) {
                    publish(&mut other, vec![0]);
                },
                event = node.select_next_some() => {
                    let Some((bytes, permit)) = message_in(event) else { continue };
                    assert_eq!(permit.is_some(), bytes.len() > LIGHT);
                    came.push(bytes[0]);
                    match bytes[0] {
                        1 => {
                            held = permit;
                            other.dial(address.clone()).unwrap();
                        }
                        0 => {
                            assert_eq!(node.behaviour().permits.untrusted.heavy.available_permits(), 0);
                            drop(held.take().unwrap());
                            // A copy of the first message, and a new message behind it.
                            publish(&mut other, large(1));
                            publish(&mut other, large(2));
                        }
                        _ => {}
                    }
                }
            }
        }
    };
    tokio::time::timeout(LONG, exchange)
        .await
        .expect("everything comes");
}

#[tokio::test]
async fn parts_that_were_read_are_reported_though_their_sender_disconnected() {
    let mut router = router();
    let (peer, address) = (PeerId::random(), "/ip4/127.0.0.1/tcp/1".parse().unwrap());
    let connection = ConnectionId::new_unchecked(1);
    let mut handler = router
        .handle_established_inbound_connection(connection, peer, &address, &address)
        .unwrap();
    let kind = handler
        .listen_protocol()
        .upgrade()
        .as_ref()
        .left()
        .unwrap()
        .protocol_info()[0]
        .kind;
    let part = move || Part::of(GossipsubReport::PeerKind(kind));
    handler.unpacking = Some(async move { Some(HandlerReport::new(part(), None)) }.boxed());
    handler.parts = [part(), part()].into();
    let mut reported = 0;
    while std::future::poll_fn(|cx| handler.poll_close(cx))
        .await
        .is_some()
    {
        reported += 1;
    }
    assert_eq!(reported, 3);
}
