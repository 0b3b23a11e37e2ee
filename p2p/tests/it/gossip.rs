//! Blocks reach all nodes of a swarm, and gaps are filled.

use crate::net::*;
use starling_p2p::{Config, Provenance};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_block_crosses_two_hops() {
    let blocks = chain(2, vec![]);
    let sequencer = Node::start(config()).await;
    let middle = Node::start(with_static(&[&sequencer.address])).await;
    let far = Node::start(with_static(&[&middle.address])).await;
    middle.peers(2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    for block in &blocks {
        let start = Instant::now();
        sequencer.publish(block).await;
        far.receives(block).await;
        println!("two hops in {:?}", start.elapsed());
    }
    let events = far.chain.events.lock();
    assert_eq!(events[0].provenance, Provenance::Signed(signer()));
    assert_eq!(events[0].blame, Some(middle.network.local_peer_id()));
    assert!(
        sequencer.chain.events.lock().is_empty(),
        "a node is not handed its own blocks"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_nobody_heard_is_sent_to_the_next_subscriber() {
    let blocks = chain(3, vec![]);
    let sequencer = Node::start(config()).await;
    for block in &blocks {
        sequencer.publish(block).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let replica = Node::start(with_static(&[&sequencer.address])).await;
    replica.receives(&blocks[2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_node_fills_a_gap_of_300_blocks() {
    let blocks = chain(301, vec![]);
    let sequencer = Node::start_with(config(), &blocks[..300]).await;
    let replica = Node::start(with_static(&[&sequencer.address])).await;
    sequencer.peers(1).await;
    sequencer.publish(&blocks[300]).await;
    let elapsed = eventually(Duration::from_secs(10), || replica.chain.has(&blocks[300])).await;
    println!("300 blocks in {elapsed:?}");
    let events = replica.chain.events.lock();
    assert_eq!(events.len(), 301);
    assert!(
        events[..300]
            .iter()
            .all(|event| matches!(event.provenance, Provenance::Linked { .. }))
    );
    assert_eq!(events[300].provenance, Provenance::Signed(signer()));
}

#[tokio::test(flavor = "multi_thread")]
async fn large_blocks_pass_by_gossip_and_by_number() {
    // Incompressible bytes: more than a client reads without a permit.
    let mut random = vec![0; 2 << 20];
    rand::RngCore::fill_bytes(&mut rand::rng(), &mut random);
    let large = chain(1, random);
    let mut next = (*chain(2, vec![])[1]).clone();
    next.header.parent_hash = large[0].hash;
    let next = std::sync::Arc::new(starling_proto::payload::Payload::sealed(
        next.header,
        vec![],
    ));

    let sequencer = Node::start(config()).await;
    let early = Node::start(with_static(&[&sequencer.address])).await;
    early.peers(1).await;
    sequencer.publish(&large[0]).await;
    early.receives(&large[0]).await;
    let late = Node::start(with_static(&[&sequencer.address])).await;
    late.peers(1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    sequencer.publish(&next).await;
    late.receives(&next).await;
    assert!(late.chain.has(&large[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_requests_a_gap_stays_and_blocks_in_order_pass() {
    let blocks = chain(4, vec![]);
    let sequencer = Node::start_with(config(), &blocks[..2]).await;
    let replica = Node::start_with(
        Config {
            sync_req_resp: false,
            ..with_static(&[&sequencer.address])
        },
        &blocks[..1],
    )
    .await;
    sequencer.peers(1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    sequencer.publish(&blocks[2]).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!replica.chain.has(&blocks[2]));
    sequencer.publish(&blocks[1]).await;
    replica.receives(&blocks[2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_signer_is_obeyed() {
    let blocks = chain(2, vec![]);
    let sequencer = Node::start(config()).await;
    let replica = Node::start(Config {
        unsafe_block_signer: None,
        ..with_static(&[&sequencer.address])
    })
    .await;
    sequencer.peers(1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    sequencer.publish(&blocks[0]).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        !replica.chain.has(&blocks[0]),
        "without a signer every block is ignored"
    );
    replica.set_signer(signer()).await;
    sequencer.publish(&blocks[1]).await;
    replica.receives(&blocks[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_block_that_passes_is_as_old_as_told() {
    let blocks = chain(30, vec![]);
    let lenient = Node::start(config()).await;
    let strict = Node::start(Config {
        gossip_threshold: Duration::from_secs(1),
        ..config()
    })
    .await;
    let mut raw = Raw::connected_to(&lenient, false).await;
    raw.publish(message(&blocks[0]));
    raw.drive(eventually(Duration::from_secs(60), || {
        lenient.chain.has(&blocks[0])
    }))
    .await;

    let mut raw = Raw::connected_to(&strict, false).await;
    raw.publish(message(&blocks[0]));
    let id = raw.id();
    raw.drive(strict.noted(id, "too_old", 1)).await;
    assert!(!strict.chain.has(&blocks[0]));
}
