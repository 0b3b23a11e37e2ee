//! Changes of the block signer while nodes run, when each node learns of the change at another
//! time.

use crate::{counters::*, net::*};
use alloy_primitives::Address;
use futures::FutureExt;
use starling_p2p::{Config, PeerId};
use starling_proto::{payload::Payload, payload::PayloadVersion, sign};
use std::{sync::Arc, time::Duration};

const NEW: &str = "00000000000000000000000000000000000000000000000000000000000000cc";

fn new_signer() -> Address {
    sign::address(&sign::secret_from_hex(NEW).unwrap())
}

async fn publish_as_new(node: &Node, block: &Arc<Payload>) {
    let signature = sign::sign(
        &sign::secret_from_hex(NEW).unwrap(),
        CHAIN,
        &block.to_wire(PayloadVersion::V4),
    );
    node.chain.add(block);
    node.network.publish(block.clone(), signature).await;
}

fn message_as_new(block: &Payload) -> Vec<u8> {
    let wire = block.to_wire(PayloadVersion::V4);
    starling_proto::gossip::encode_message(
        &sign::sign(&sign::secret_from_hex(NEW).unwrap(), CHAIN, &wire),
        &wire,
    )
    .unwrap()
}

/// Waits for an unknown signer. The command has been sent when this function returns, before any
/// later command.
fn ask(node: &Node) -> impl Future<Output = Option<Address>> {
    let network = node.network.clone();
    let mut asked = Box::pin(async move { network.unknown_signer().await });
    assert!(asked.as_mut().now_or_never().is_none());
    asked
}

/// All charges that these nodes have made against each other.
async fn debts(nodes: &[&Node]) -> Vec<(&'static str, f64)> {
    let mut debts = Vec::new();
    for node in nodes {
        for other in nodes {
            let id: PeerId = other.network.local_peer_id();
            debts.extend(
                node.debts(id)
                    .await
                    .into_iter()
                    .filter(|(_, change)| *change < 0.0),
            );
        }
    }
    debts
}

/// Four nodes in a row. The last one reads the change late, after blocks of the new signer have
/// reached it.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_under_way_loses_no_block_and_charges_nobody() {
    let blocks = chain(5, vec![]);
    let sequencer = Node::start(config()).await;
    let near = Node::start(with_static(&[&sequencer.address])).await;
    let far = Node::start(with_static(&[&near.address])).await;
    let late = Node::start(with_static(&[&far.address])).await;
    near.peers(2).await;
    far.peers(2).await;
    let all = [&sequencer, &near, &far, &late];
    let asked = ask(&late);

    sequencer.publish(&blocks[0]).await;
    late.receives(&blocks[0]).await;
    for node in &all[..3] {
        node.set_signer(new_signer()).await;
    }
    // A block of the old signer that is still in flight is accepted by nodes that know of the
    // change and by those that do not.
    sequencer.publish(&blocks[1]).await;
    late.receives(&blocks[1]).await;

    publish_as_new(&sequencer, &blocks[2]).await;
    far.receives(&blocks[2]).await;
    assert_eq!(
        tokio::time::timeout(Duration::from_secs(60), asked)
            .await
            .unwrap(),
        Some(new_signer())
    );
    publish_as_new(&sequencer, &blocks[3]).await;
    far.receives(&blocks[3]).await;
    late.set_signer(new_signer()).await;
    // The blocks that `late` refused are fetched as ancestors of the next one.
    publish_as_new(&sequencer, &blocks[4]).await;
    late.receives(&blocks[4]).await;
    assert!(blocks.iter().all(|block| late.chain.has(block)));
    assert_eq!(debts(&all).await, []);
}

/// A peer that does not know the new signer passes on blocks that the old signer signed.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_old_signer_left_under_way_is_held_against_nobody() {
    // The second block unpacks to more than usual, which the old signer is responsible for.
    let blocks = chain(2, vec![0; 6 << 20]);
    let node = Node::start(config()).await;
    let mut raw = Raw::connected_to(&node, false).await;
    node.set_signer(new_signer()).await;
    raw.publish(message_as_new(&blocks[0]));
    raw.drive(eventually(Duration::from_secs(60), || {
        node.chain.has(&blocks[0])
    }))
    .await;

    // The first block of the new signer ends the grace time of the old one.
    count_metrics();
    let rejected = counter("starling_p2p_gossip_total", "retired_signer");
    raw.publish(message(&blocks[1]));
    raw.drive(eventually(Duration::from_secs(60), || {
        counter("starling_p2p_gossip_total", "retired_signer") > rejected
    }))
    .await;
    assert_eq!(node.debts(raw.id()).await, []);
    assert!(!node.chain.has(&blocks[1]));
}

/// Offences for blocks of an unknown signer are held until L1 names the signer.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_in_doubt_is_judged_by_the_answer() {
    // Charges for a block of usual size, and for a block that unpacks to 5 MiB more than usual.
    let (usual, large) = (
        vec![("wrong_signer", -2.0)],
        vec![("wrong_signer", -2.0), ("bomb", -50.0)],
    );
    for (data, named, debts) in [
        (vec![], signer(), usual),
        (vec![0; 7 << 20], signer(), large),
        (vec![0; 7 << 20], new_signer(), vec![]),
    ] {
        let block = &chain(1, data)[0];
        let node = Node::start(config()).await;
        let mut raw = Raw::connected_to(&node, false).await;
        let asked = ask(&node);
        raw.publish(message_as_new(block));
        let asked = async {
            let start = std::time::Instant::now();
            assert_eq!(asked.await, Some(new_signer()));
            start.elapsed()
        };
        tokio::time::timeout(Duration::from_secs(60), raw.drive(asked))
            .await
            .unwrap();
        assert_eq!(node.debts(raw.id()).await, []);
        node.set_signer(named).await;
        assert_eq!(node.debts(raw.id()).await, debts);
    }
}

/// A peer is charged for a bomb under the old signer. Under the new signer another peer may send
/// the same message in good faith.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_what_the_new_signer_signed_is_held_against_nobody() {
    let block = &chain(1, vec![0; 7 << 20])[0];
    let node = Node::start(config()).await;
    let mut early = Raw::connected_to(&node, false).await;
    early.publish(message_as_new(block));
    let id = early.id();
    early.drive(node.noted(id, "bomb", 1)).await;
    node.set_signer(new_signer()).await;
    let mut late = Raw::connected_to(&node, false).await;
    let both = [frame(&[message_as_new(block)]), frame_on("x", &[vec![0]])].concat();
    let _stream = late.send_frame(&node, both).await;
    let id = late.id();
    late.drive(node.noted(id, "stray", 1)).await;
    assert_eq!(
        node.debts(id).await,
        [("stray", -20.0)],
        "what came last is noted last"
    );
}

/// Without a signer, blocks are ignored: they are neither accepted nor an offence.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_signer_blocks_are_ignored_until_one_is_named() {
    let blocks = chain(2, vec![]);
    let sequencer = Node::start(config()).await;
    let node = Node::start(Config {
        unsafe_block_signer: None,
        ..with_static(&[&sequencer.address])
    })
    .await;
    sequencer.peers(1).await;
    count_metrics();
    let ignored = counter("starling_p2p_gossip_total", "no_signer");
    sequencer.publish(&blocks[0]).await;
    eventually(Duration::from_secs(60), || {
        counter("starling_p2p_gossip_total", "no_signer") > ignored
    })
    .await;
    assert_eq!(debts(&[&sequencer, &node]).await, []);
    node.set_signer(signer()).await;
    sequencer.publish(&blocks[1]).await;
    node.receives(&blocks[1]).await;
    assert!(node.chain.has(&blocks[0]), "fetched below it");
    assert_eq!(debts(&[&sequencer, &node]).await, []);
}

/// The own-key watch reports blocks that other nodes send and that are signed with a given key.
#[tokio::test(flavor = "multi_thread")]
async fn a_witness_is_told_of_the_blocks_of_one_signer() {
    let blocks = chain(2, vec![]);
    let node = Node::start(config()).await;
    let mut witnessed = node.network.blocks_signed_by(signer()).await;
    let other = Node::start(with_static(&[&node.address])).await;
    node.peers(1).await;
    node.publish(&blocks[0]).await;
    other.receives(&blocks[0]).await;
    other.publish(&blocks[1]).await;
    let told = tokio::time::timeout(Duration::from_secs(60), witnessed.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        told.hash, blocks[1].hash,
        "its own block, which the other passed on, is not told"
    );
}
