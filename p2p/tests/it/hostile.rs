//! Peers that send garbage, bombs, floods and wrong responses.

use crate::{attackers::*, counters::*, net::*};
use futures::{AsyncWriteExt, StreamExt};
use libp2p::{StreamProtocol, swarm::SwarmEvent};
use starling_p2p::{Config, Keypair};
use starling_proto::{
    gossip as wire,
    payload::{Payload, PayloadVersion},
    reqresp,
};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

#[tokio::test(flavor = "multi_thread")]
async fn bad_messages_are_rejected_for_their_reason_and_kill_nothing() {
    let blocks = chain(1, vec![]);
    let block = &blocks[0];
    let node = Node::start(unscored(config())).await;
    let mut raw = Raw::connected_to(&node, false).await;

    let v4 = block.to_wire(PayloadVersion::V4);
    let mut flipped = block.to_wire(PayloadVersion::V4);
    flipped[40] ^= 1;
    let mut other = (**block).clone();
    other.header.gas_used = 1;
    let mut old = (**block).clone();
    old.header.timestamp -= 100;
    old.hash = old.header.hash_slow();
    let mut wrong_fork = (**block).clone();
    wrong_fork.header.excess_blob_gas = Some(5);
    wrong_fork.hash = wrong_fork.header.hash_slow();
    let compress = |bytes: &[u8]| snap::raw::Encoder::new().compress_vec(bytes).unwrap();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("snappy_header", vec![0xff; 40]),
        ("too_large", vec![0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2]),
        ("snappy", vec![100, 0xff, 3]),
        ("too_small", compress(&[7; 60])),
        ("signature", wire::encode_message(&[0xff; 65], &v4).unwrap()),
        (
            "wrong_signer",
            wire::encode_message(&sign_as_stranger(block), &v4).unwrap(),
        ),
        (
            "wrong_signer",
            wire::encode_message(&sign_block(block), &flipped).unwrap(),
        ),
        ("block_hash", message(&other)),
        ("excess_blob_gas", message(&wrong_fork)),
    ];
    for (row, data) in cases {
        let before = node.times(raw.id(), row).await;
        raw.publish(data);
        let id = raw.id();
        raw.drive(node.noted(id, row, before + 1)).await;
    }
    // A block outside the clock window is rejected, but without an offence.
    raw.publish(message(&old));
    let id = raw.id();
    raw.drive(node.noted(id, "too_old", 1)).await;
    assert!(node.chain.events.lock().is_empty());

    raw.delivers(&node, block).await;

    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_larger_than_any_message_ends_the_connection_of_its_sender_alone() {
    let blocks = chain(2, vec![]);
    let node = Node::start(config()).await;
    let mut honest = Raw::connected_to(&node, false).await;
    let mut raw = Raw::connected_to(&node, false).await;
    node.peers(2).await;
    raw.publish(vec![1; 11 << 20]);
    raw.until(|event| matches!(event, SwarmEvent::ConnectionClosed { .. }))
        .await;
    // The other peer stays connected.
    node.peers(1).await;
    assert!(
        node.debts(raw.id())
            .await
            .iter()
            .any(|(reason, _)| *reason == "framing")
    );

    // The sender may reconnect, and its blocks are accepted again.
    raw.reconnect(&node).await;
    raw.delivers(&node, &blocks[0]).await;
    honest.delivers(&node, &blocks[1]).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_with_a_source_are_refused() {
    let blocks = chain(1, vec![]);
    let node = Node::start(config()).await;
    let mut named = Raw::connected_to(&node, true).await;
    named.publish(message(&blocks[0]));
    let (chain, id) = (node.chain.clone(), named.id());
    named.drive(node.noted(id, "stray", 1)).await;
    assert_eq!(node.debts(id).await, [("stray", -20.0)]);
    assert!(!chain.has(&blocks[0]), "strict no-sign");
    let mut anonymous = Raw::connected_to(&node, false).await;
    anonymous.delivers(&node, &blocks[0]).await;
    assert!(node.debts(anonymous.id()).await.is_empty());
}

/// Messages on topics that the node has not subscribed to are removed without being unpacked.
#[tokio::test(flavor = "multi_thread")]
async fn messages_on_topics_of_others_are_an_offence_and_are_not_unpacked() {
    let blocks = chain(1, vec![]);
    let node = Node::start(config()).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let bombs: Vec<Vec<u8>> = (0..3).map(|_| bomb(LARGEST)).collect();
    let _stream = raw
        .send_frame(&node, frame_on("/optimism/1/3/blocks", &bombs))
        .await;
    let id = raw.id();
    raw.drive(node.noted(id, "stray", 1)).await;
    assert_eq!(node.debts(id).await, [("stray", -60.0)]);
    // A frame with many such messages leads to a ban.
    let _other = raw
        .send_frame(&node, frame_on("x", &vec![vec![0]; 100]))
        .await;
    raw.gone_from(&node).await;
    assert!(node.has_banned(id).await);
    let mut honest = Raw::connected_to(&node, false).await;
    honest.delivers(&node, &blocks[0]).await;
}

/// The first copy is refused after its check, and the message is remembered as a bomb. A peer that
/// sends another copy later is charged too, because no honest node relays a bomb.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_bomb_is_one() {
    let node = Node::start(config()).await;
    let (mut first, mut second) = (
        Raw::connected_to(&node, false).await,
        Raw::connected_to(&node, false).await,
    );
    let bomb = frame(&[bomb(LARGEST)]);
    for raw in [&mut first, &mut second] {
        let _stream = raw.send_frame(&node, bomb.clone()).await;
        let id = raw.id();
        raw.drive(node.noted(id, "bomb", 1)).await;
    }
    assert_eq!(node.debts(second.id()).await, [("bomb", -80.0)]);
}

/// While no block can be accepted, large messages are neither unpacked nor remembered.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_signer_what_is_heavy_is_passed_over_and_heard_later() {
    let block = &heavy_chain(1, 2 << 20)[0];
    let node = Node::start(Config {
        unsafe_block_signer: None,
        ..config()
    })
    .await;
    let mut raw = Raw::connected_to(&node, false).await;
    let both = [frame(&[message(block)]), frame_on("x", &[vec![0]])].concat();
    let _stream = raw.send_frame(&node, both).await;
    let id = raw.id();
    raw.drive(node.noted(id, "stray", 1)).await;
    assert_eq!(node.debts(id).await, [("stray", -20.0)]);
    node.set_signer(signer()).await;
    let mut other = Raw::connected_to(&node, false).await;
    other.delivers(&node, block).await;
}

/// Opens more requests than a peer may have open, and never finishes them. Runs until it is
/// aborted.
fn hold_streams(raw: &Raw, node: &Node) -> tokio::task::JoinHandle<()> {
    let (control, peer) = (
        raw.0.behaviour().streams.new_control(),
        node.network.local_peer_id(),
    );
    tokio::spawn(async move {
        let mut held = VecDeque::new();
        loop {
            let protocol = StreamProtocol::try_from_owned(
                reqresp::protocol_ids(CHAIN)[held.len() % 2].clone(),
            )
            .unwrap();
            match control.clone().open_stream(peer, protocol).await {
                Ok(mut stream) => {
                    // Send four of the request's eight bytes.
                    let _ = stream.write_all(&[1; 4]).await;
                    held.push_back(stream);
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
            if held.len() > 120 {
                held.pop_front();
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_floods_everything_stops_neither_blocks_nor_requests() {
    let blocks = chain(40, vec![]);
    let node = Node::start_with(unscored(config()), &blocks[..38]).await;
    let mut flooder = Raw::connected_to(&node, false).await;
    let (streams, id) = (hold_streams(&flooder, &node), flooder.id());
    let flood = tokio::spawn(async move {
        for i in 0u32.. {
            // Messages that decompress to the largest size, and messages that do not decompress.
            let data = match i % 50 {
                0 => snap::raw::Encoder::new()
                    .compress_vec(&[&i.to_le_bytes()[..], &vec![0; 9 << 20]].concat())
                    .unwrap(),
                _ => garbage(i),
            };
            let _ = flooder.0.behaviour_mut().gossip.publish(v4_topic(), data);
            if i % 10 == 0 {
                let pause = Instant::now() + Duration::from_millis(5);
                flooder
                    .drive(eventually(Duration::from_secs(60), || {
                        Instant::now() > pause
                    }))
                    .await;
            }
        }
    });
    node.noted(id, "excess_streams", 100).await;
    node.noted(id, "too_large", 10).await;

    // During the flood the node still serves blocks and receives one.
    let replica = Node::start(with_static(&[&node.address])).await;
    replica.peers(1).await;
    let mut honest = Raw::connected_to(&node, false).await;
    let (at_node, at_replica) = (node.chain.clone(), replica.chain.clone());
    honest.publish(message(&blocks[38]));
    honest
        .drive(eventually(Duration::from_secs(60), || {
            at_node.has(&blocks[38])
        }))
        .await;
    honest.publish(message(&blocks[39]));
    honest
        .drive(eventually(Duration::from_secs(60), || {
            at_replica.has(&blocks[39])
        }))
        .await;
    assert!(blocks.iter().all(|block| at_replica.has(block)));
    streams.abort();
    flood.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_garbage_does_not_stop_a_block() {
    let blocks = chain(1, vec![]);
    let node = Arc::new(Node::start(unscored(config())).await);
    let mut flooder = Raw::connected_to(&node, false).await;
    let flooded = node.clone();
    let flood = tokio::spawn(async move { flood_garbage(&mut flooder, &flooded).await });
    let mut honest = Raw::connected_to(&node, false).await;
    honest.publish(message(&blocks[0]));
    let (chain, block) = (node.chain.clone(), Arc::clone(&blocks[0]));
    honest
        .drive(eventually(Duration::from_secs(60), || chain.has(&block)))
        .await;
    assert!(!flood.is_finished());
    flood.abort();
}

/// Opens streams that never negotiate a protocol, on a connection without any other stream.
#[tokio::test(flavor = "multi_thread")]
async fn streams_without_end_close_the_connection_and_are_named() {
    let node = Node::start(unscored(config())).await;
    let identity = Keypair::generate_secp256k1();
    tokio::time::timeout(
        Duration::from_secs(60),
        open_streams(over_tcp(&identity), &node),
    )
    .await
    .expect("it hangs up");
    let id = identity.public().to_peer_id();
    node.charged(id, "stream_flood").await;
    node.peers(0).await;
}

/// `benches/floods.rs` measures the delay of each block.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_attacks_is_named_and_blocks_pass() {
    let before = heavy_chain(100, 10_000);
    for attack in &ATTACKS {
        let mut scene = Scene::new(attack, &before).await;
        let attacking = attack.begin(&scene.victim, &before);
        let begun = Instant::now();
        for blocks in 1.. {
            scene.block(10_000).await;
            if blocks >= 5 && scene.charges().await.contains(&attack.charge) {
                break;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "{} is not named {}",
                attack.name,
                attack.charge
            );
        }
        attacking.end();
        let honest = scene
            .victim
            .debts(scene.publisher.network.local_peer_id())
            .await;
        assert!(
            honest.iter().all(|(_, change)| *change > 0.0),
            "{}: the publisher is charged, {honest:?}",
            attack.name
        );
        scene.end().await;
    }
}

/// Makes the response of a peer from the chain's blocks.
type Answer = fn(&[Arc<Payload>]) -> Vec<u8>;

/// Names and responses of peers, and whether each response is an offence.
const ANSWERS: [(&str, Answer, bool); 7] = [
    // The tip arrives by gossip and is never requested, so it is the wrong block for each request.
    (
        "another block",
        |blocks| reqresp::encode_response(&blocks[11], &forks()).unwrap(),
        true,
    ),
    (
        "more than any block has",
        |_| [vec![0, 1, 0, 0, 0], vec![0; 11 << 20]].concat(),
        true,
    ),
    ("garbage", |_| vec![0; 100], true),
    ("an unknown version", |_| vec![0, 9, 0, 0, 0, 1, 2, 3], true),
    ("nothing", |_| vec![], false),
    ("not found", |_| vec![1], false),
    ("some error", |_| vec![200], false),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_answers_requests_wrongly_does_not_keep_a_gap_open() {
    count_metrics();
    // A gap that is short enough to be filled by number.
    let blocks = chain(12, vec![]);
    let honest = Node::start_with(config(), &blocks[..11]).await;
    for (name, answer, offence) in ANSWERS {
        let node = Node::start_with(with_static(&[&honest.address]), &blocks[..1]).await;
        node.peers(1).await;
        let mut raw = Raw::connected_to(&node, false).await;
        let mut incoming = raw.accept_numbers();
        let bytes = answer(&blocks);
        let serving = tokio::spawn(async move {
            while let Some((_, mut stream)) = incoming.next().await {
                let _ = stream.write_all(&bytes).await;
                let _ = stream.close().await;
            }
        });
        let asked = counter("op_node_default_p2p_req_total", "client");
        // The peer that delivers the tip gets the first request.
        raw.delivers(&node, &blocks[11]).await;
        assert!(
            blocks[1..].iter().all(|block| node.chain.has(block)),
            "{name}"
        );
        assert!(
            counter("op_node_default_p2p_req_total", "client") > asked,
            "{name}"
        );
        if offence {
            let id = raw.id();
            raw.drive(node.noted(id, "malformed_response", 1)).await;
        }
        serving.abort();
        node.stop().await;
    }
}
