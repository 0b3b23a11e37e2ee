//! Tests of `payload_by_number` with a foreign client, and with a foreign server.

use crate::net::*;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::StreamProtocol;
use starling_proto::reqresp;
use std::time::{Duration, Instant};

/// The node's response to a request by number under one spelling of the protocol id.
async fn answer(node: &Node, raw: &mut Raw, protocol: &str, request: &[u8]) -> Vec<u8> {
    let mut control = raw.0.behaviour().streams.new_control();
    let peer = node.network.local_peer_id();
    let protocol = StreamProtocol::try_from_owned(protocol.to_owned()).unwrap();
    let exchange = async move {
        let mut stream = control.open_stream(peer, protocol).await.unwrap();
        stream.write_all(request).await.unwrap();
        stream.close().await.unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        bytes
    };
    let answered = tokio::time::timeout(Duration::from_secs(20), exchange);
    raw.drive(answered).await.expect("an answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_those_of_the_protocol_under_both_spellings() {
    let blocks = chain(5, vec![1, 2, 3]);
    let node = Node::start_with(config(), &blocks).await;
    let mut raw = Raw::connected_to(&node, false).await;
    for protocol in &reqresp::protocol_ids(CHAIN) {
        for block in [&blocks[0], &blocks[4]] {
            let request = reqresp::encode_request(block.number());
            let bytes = answer(&node, &mut raw, protocol, &request).await;
            let payload = reqresp::decode_response(&bytes)
                .unwrap()
                .into_payload()
                .unwrap();
            assert_eq!(payload, **block);
        }
        for (number, code, reason) in [
            (900, 1, "not there"),
            (5_000, 2, "in the future"),
            (9, 2, "before genesis"),
            (u64::MAX, 2, "never"),
        ] {
            let request = reqresp::encode_request(number);
            let bytes = answer(&node, &mut raw, protocol, &request).await;
            assert_eq!(bytes, [code], "block {number}: {reason}");
        }
        assert!(
            answer(&node, &mut raw, protocol, &[1, 2, 3])
                .await
                .is_empty(),
            "half a request has no answer"
        );
    }
}

/// The peer sends invalid responses of every kind, among them blocks that were not requested, and
/// leaves some streams open without a response.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_serves_nonsense_is_left_for_another() {
    // A gap that is short enough to be filled by number.
    let blocks = chain(12, vec![]);
    let honest = Node::start_with(config(), &blocks[..11]).await;
    let node = Node::start(with_static(&[&honest.address])).await;
    node.peers(1).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let mut incoming = raw.accept_numbers();
    let wrong = reqresp::encode_response(&blocks[0], &forks()).unwrap();
    let server = tokio::spawn(async move {
        let (mut turn, mut open) = (0, Vec::new());
        while let Some((_, mut stream)) = incoming.next().await {
            turn += 1;
            let answer: &[u8] = match turn % 5 {
                0 => continue,
                1 => &[0, 1, 0, 0, 0, 1, 2, 3],
                2 => &wrong,
                3 => {
                    open.push(stream);
                    continue;
                }
                _ => &[0; 3000],
            };
            let _ = stream.write_all(answer).await;
            let _ = stream.close().await;
        }
    });
    // The peer that delivers the tip gets the first request.
    raw.publish(message(&blocks[11]));
    let (chain, start) = (node.chain.clone(), Instant::now());
    raw.drive(eventually(Duration::from_secs(60), || {
        chain.has(&blocks[11])
    }))
    .await;
    println!("past a peer that serves nonsense in {:?}", start.elapsed());
    let id = raw.id();
    raw.drive(node.noted(id, "malformed_response", 1)).await;
    server.abort();
}
