//! `payload_by_number` as a foreign client, and as a foreign server.

use crate::net::*;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::StreamProtocol;
use starling_proto::reqresp;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_those_of_the_protocol_under_both_spellings() {
    let blocks = chain(5, vec![1, 2, 3]);
    let node = Node::start_with(config(), &blocks).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let mut control = raw.0.behaviour().streams.new_control();
    let peer = node.network.local_peer_id();
    let client = tokio::spawn(async move {
        let mut ask = async |protocol: usize, request: Vec<u8>| {
            let protocol =
                StreamProtocol::try_from_owned(reqresp::protocol_ids(CHAIN)[protocol].clone())
                    .unwrap();
            let mut stream = control.open_stream(peer, protocol).await.unwrap();
            stream.write_all(&request).await.unwrap();
            stream.close().await.unwrap();
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes).await;
            bytes
        };
        for protocol in [0, 1] {
            for block in [&blocks[0], &blocks[4]] {
                let bytes = ask(protocol, reqresp::encode_request(block.number()).to_vec()).await;
                let payload = reqresp::decode_response(&bytes)
                    .unwrap()
                    .into_payload()
                    .unwrap();
                assert_eq!(payload, **block);
            }
            assert_eq!(
                ask(protocol, reqresp::encode_request(900).to_vec()).await,
                [1],
                "not there"
            );
            assert_eq!(
                ask(protocol, reqresp::encode_request(5_000).to_vec()).await,
                [2],
                "in the future"
            );
            assert_eq!(
                ask(protocol, reqresp::encode_request(9).to_vec()).await,
                [2],
                "before genesis"
            );
            assert_eq!(
                ask(protocol, reqresp::encode_request(u64::MAX).to_vec()).await,
                [2]
            );
            assert!(
                ask(protocol, vec![1, 2, 3]).await.is_empty(),
                "half a request has no answer"
            );
        }
    });
    let drive = async {
        loop {
            raw.0.select_next_some().await;
        }
    };
    tokio::select! {
        done = client => done.unwrap(),
        () = drive => {}
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("no answer"),
    }
}

/// Serves nonsense of every kind in turn, also blocks that are not the ones asked for; some streams
/// stay open without an answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_serves_nonsense_is_left_for_another() {
    // A gap that is filled by number, whoever has the blocks.
    let blocks = chain(12, vec![]);
    let honest = Node::start_with(config(), &blocks[..11]).await;
    let node = Node::start(with_static(&[&honest.address])).await;
    node.peers(1).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let protocol = StreamProtocol::try_from_owned(reqresp::protocol_ids(CHAIN)[0].clone()).unwrap();
    let mut incoming = raw
        .0
        .behaviour()
        .streams
        .new_control()
        .accept(protocol)
        .unwrap();
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
    // The tip comes from the peer that lies: it is asked first.
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
