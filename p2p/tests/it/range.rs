//! Range sync with real swarms: thousands of blocks from several peers, some of which lie.

use crate::{attackers::*, net::*};
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::StreamProtocol;
use starling_p2p::{ChainGenesis, Config, LedgerChange, Network};
use starling_proto::{
    payload::Payload,
    wire::{self, Answer, Ask, LENGTH},
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

const LONG: Duration = Duration::from_secs(120);

/// Of a chain old enough for all these blocks.
fn long_config() -> Config {
    Config {
        genesis: ChainGenesis {
            time: unix_now() - 1_000_000,
            ..genesis()
        },
        ..config()
    }
}

fn following(peers: &[&Node]) -> Config {
    Config {
        static_peers: peers.iter().map(|node| node.address.clone()).collect(),
        ..long_config()
    }
}

/// Until so many peers have said what they have.
async fn greeted(network: &Network, peers: u64) {
    for _ in 0..6000 {
        if network.report().await.unwrap().sync.peers == peers {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:#?}", network.report().await.unwrap());
}

async fn ask(node: &Node, raw: &mut Raw, request: Vec<u8>) -> Vec<Answer> {
    ask_at_once(node, raw, vec![request]).await.remove(0)
}

/// The answers to requests that are on their way together.
async fn ask_at_once(node: &Node, raw: &mut Raw, requests: Vec<Vec<u8>>) -> Vec<Vec<Answer>> {
    let control = raw.0.behaviour().streams.new_control();
    let peer = node.network.local_peer_id();
    let exchange = |request: Vec<u8>| {
        let mut control = control.clone();
        async move {
            let mut stream = control.open_stream(peer, protocol()).await.unwrap();
            stream.write_all(&request).await.unwrap();
            stream.close().await.unwrap();
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes).await;
            let (mut rest, mut answers) = (&bytes[..], Vec::new());
            while let Some((length, tail)) = rest.split_first_chunk::<LENGTH>() {
                let (message, tail) = tail.split_at(u32::from_le_bytes(*length) as usize);
                answers.push(wire::decode_response(message.to_vec()).unwrap());
                rest = tail;
            }
            answers
        }
    };
    let mut exchanges = futures::future::join_all(requests.into_iter().map(exchange));
    loop {
        tokio::select! {
            answers = &mut exchanges => return answers,
            _ = raw.0.select_next_some() => {}
        }
    }
}

fn protocol() -> StreamProtocol {
    StreamProtocol::try_from_owned(wire::protocol_id(CHAIN)).unwrap()
}

fn request(ask: Ask) -> Vec<u8> {
    wire::frame(&wire::Request { ask: Some(ask) })
}

/// The header of the block that was asked for, with transactions of its own.
fn wrong_transactions(blocks: &[Arc<Payload>], ask: Ask) -> Vec<Answer> {
    match ask {
        Ask::Bodies(ask) => {
            let mut items = true_bodies(blocks, &ask);
            let mut forged = (*blocks[(ask.first - 11) as usize]).clone();
            forged.transactions = vec![vec![1; 100].into()];
            items[0] = wire::encode_block(&forged).concat().into();
            vec![Answer::Bodies(chunk(items))]
        }
        ask => truth(blocks, ask),
    }
}

fn wrong_header(blocks: &[Arc<Payload>], ask: Ask) -> Vec<Answer> {
    match ask {
        Ask::Headers(ask) => {
            let mut items = true_headers(blocks, &ask);
            items.rotate_left(1);
            vec![Answer::Headers(chunk(items))]
        }
        ask => truth(blocks, ask),
    }
}

/// A replica that starts late, beside two honest peers and one that answers with `server`, gets
/// every block.
async fn late_beside(server: Server) -> (Node, Fake) {
    let blocks = chain(3_000, vec![1; 500]);
    let (tip, rest) = blocks.split_last().unwrap();
    let first = Node::start_with(long_config(), rest).await;
    let second = Node::start_with(long_config(), rest).await;
    let late = Node::start(following(&[&first, &second])).await;
    late.peers(2).await;
    let fake = Fake::connected_to(&late, &blocks, server).await;
    greeted(&late.network, 3).await;
    first.publish(tip).await;
    eventually(LONG, || late.chain.has(tip)).await;
    assert!(blocks.iter().all(|block| late.chain.has(block)));
    (late, fake)
}

async fn is_banned_for_a_lie(server: Server, evidence: &str) {
    let (late, liar) = late_beside(server).await;
    let ledger = late.network.ledger(Some(liar.id), 100).await.unwrap();
    let line = ledger
        .iter()
        .find(|line| line.reason == "false_block")
        .expect("it is named");
    assert!(line.evidence.contains(evidence), "{line:?}");
    assert!(
        ledger
            .iter()
            .any(|line| matches!(line.change, LedgerChange::Banned { .. })),
        "{ledger:?}"
    );
    for honest in late.network.peers() {
        assert_eq!(
            late.network
                .ledger(Some(honest.id), 100)
                .await
                .unwrap()
                .iter()
                .map(|l| l.score)
                .sum::<f64>()
                .min(0.0),
            0.0
        );
    }
    late.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_peers_that_serves_wrong_blocks_is_banned_and_the_others_finish() {
    is_banned_for_a_lie(wrong_body, "it sent 16 (").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_are_not_the_headers_are_a_ban() {
    is_banned_for_a_lie(
        wrong_transactions,
        "the transactions are not those of block",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_is_not_the_one_named_is_a_ban() {
    is_banned_for_a_lie(wrong_header, "asked for header ").await;
}

fn silence(blocks: &[Arc<Payload>], ask: Ask) -> Vec<Answer> {
    match ask {
        Ask::Status(_) => truth(blocks, ask),
        _ => vec![],
    }
}

fn refusal(blocks: &[Arc<Payload>], ask: Ask) -> Vec<Answer> {
    match ask {
        Ask::Status(_) => truth(blocks, ask),
        _ => vec![Answer::Refusal(wire::RangeRefusal::NotFound as u32)],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_has_not_what_it_says_is_named_and_not_banned() {
    let (late, fake) = late_beside(refusal).await;
    assert!(
        late.network
            .ledger(Some(fake.id), 9)
            .await
            .unwrap()
            .iter()
            .any(|line| line.reason == "false_status")
    );
    assert!(late.network.peers().iter().any(|peer| peer.id == fake.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_peer_loses_its_share() {
    let (late, fake) = late_beside(silence).await;
    assert!(
        late.network.peers().iter().any(|peer| peer.id == fake.id),
        "slow is no lie"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_time_does_not_allow_is_named() {
    let node = Node::start(long_config()).await;
    let fake = Fake::connected_to(&node, &[], future).await;
    loop {
        if node
            .debts(fake.id)
            .await
            .iter()
            .any(|(reason, _)| *reason == "false_head")
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_bounded_and_true() {
    let blocks = chain(200, vec![7; 300]);
    let node = Node::start_with(long_config(), &blocks).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let last = blocks[199].id();
    let headers = |count| {
        request(Ask::Headers(wire::HeadersRequest {
            number: last.number,
            hash: last.hash.to_vec(),
            count,
        }))
    };
    let bodies = |first, max_bytes| {
        request(Ask::Bodies(wire::BodiesRequest {
            first,
            last: last.number,
            last_hash: last.hash.to_vec(),
            max_bytes,
        }))
    };
    let Answer::Status(said) = &ask(
        &node,
        &mut raw,
        request(Ask::Status(wire::StatusRequest {})),
    )
    .await[0] else {
        panic!()
    };
    assert_eq!(
        (said.head.clone(), said.chain_id, said.oldest),
        (Some(last.into()), CHAIN, 11)
    );
    assert_eq!(said.finalized, None);
    let Answer::Headers(chunk) = &ask(&node, &mut raw, headers(4096)).await[0] else {
        panic!("headers")
    };
    let hashes: Vec<_> = chunk
        .items()
        .unwrap()
        .iter()
        .map(|item| wire::decode_header(item).unwrap().0)
        .collect();
    assert_eq!(
        hashes,
        blocks
            .iter()
            .rev()
            .map(|block| block.hash)
            .collect::<Vec<_>>(),
        "down to the first block"
    );
    let Answer::Bodies(chunk) = &ask(&node, &mut raw, bodies(201, 1 << 20)).await[0] else {
        panic!("blocks")
    };
    let read: Vec<Payload> = chunk
        .items()
        .unwrap()
        .iter()
        .map(|item| wire::decode_block(item).unwrap())
        .collect();
    assert!(read.iter().eq(blocks[190..].iter().map(|block| &**block)));
    let answers = ask(&node, &mut raw, bodies(11, 1)).await;
    let Answer::Bodies(chunk) = &answers[0] else {
        panic!("blocks")
    };
    assert_eq!(
        (answers.len(), chunk.count),
        (1, 1),
        "as many as the bytes hold, one at least"
    );
    let other = wire::HeadersRequest {
        number: last.number,
        hash: vec![1; 32],
        count: 1,
    };
    let refusals = [
        (request(Ask::Headers(other)), wire::RangeRefusal::NotFound),
        (headers(0), wire::RangeRefusal::Invalid),
        (headers(4097), wire::RangeRefusal::Invalid),
        (bodies(last.number + 1, 1), wire::RangeRefusal::Invalid),
        (bodies(0, 1), wire::RangeRefusal::NotFound),
        (
            request(Ask::Headers(wire::HeadersRequest {
                number: 0,
                hash: vec![],
                count: 1,
            })),
            wire::RangeRefusal::Invalid,
        ),
        (vec![1, 0, 0, 0, 0xff], wire::RangeRefusal::Invalid),
    ];
    for (index, (asked, refusal)) in refusals.into_iter().enumerate() {
        assert_eq!(
            ask(&node, &mut raw, asked).await,
            [Answer::Refusal(refusal as u32)],
            "request {index}"
        );
    }
    assert!(
        ask(&node, &mut raw, vec![0xff, 0xff, 0xff, 0xff])
            .await
            .is_empty(),
        "a frame of 4 GB"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_carries_any_number_of_windows_and_those_that_come_at_once_too() {
    let blocks = chain(6_000, vec![]);
    let node = Node::start_with(long_config(), &blocks).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let bodies = |window: &[Arc<Payload>]| {
        let (first, last) = (window[0].number(), window[window.len() - 1].id());
        request(Ask::Bodies(wire::BodiesRequest {
            first,
            last: last.number,
            last_hash: last.hash.to_vec(),
            max_bytes: 8 << 20,
        }))
    };
    for windows in blocks.chunks(400) {
        let answers = ask_at_once(&node, &mut raw, windows.chunks(100).map(bodies).collect()).await;
        let count = |answer: &Answer| {
            if let Answer::Bodies(chunk) = answer {
                chunk.count
            } else {
                0
            }
        };
        let counts: Vec<u32> = answers
            .iter()
            .map(|answers| answers.iter().map(count).sum())
            .collect();
        assert_eq!(
            counts,
            [100; 4],
            "from block {}: {:?}",
            windows[0].number(),
            node.verdicts(raw.id()).await
        );
    }
    assert_eq!(node.network.peer_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_promises_what_it_keeps_and_is_asked_for_nothing_else() {
    let blocks = chain(1_500, vec![]);
    let (tip, rest) = blocks.split_last().unwrap();
    let whole = Node::start_with(long_config(), rest).await;
    let pruned = Node::start_with(long_config(), rest).await;
    let finalized = blocks[1_200].id();
    *pruned.chain.finalized.lock() = Some(finalized);
    pruned.chain.oldest.store(1_000, Ordering::Relaxed);

    let mut raw = Raw::connected_to(&pruned, false).await;
    let Answer::Status(said) = &ask(
        &pruned,
        &mut raw,
        request(Ask::Status(wire::StatusRequest {})),
    )
    .await[0] else {
        panic!()
    };
    assert_eq!(
        (said.oldest, said.finalized.clone()),
        (1_000, Some(finalized.into()))
    );
    drop(raw);

    let late = Node::start(following(&[&whole, &pruned])).await;
    greeted(&late.network, 2).await;
    whole.publish(tip).await;
    eventually(LONG, || late.chain.has(tip)).await;
    for server in [&whole, &pruned] {
        let debts = late.debts(server.network.local_peer_id()).await;
        assert!(debts.iter().all(|(_, change)| *change > 0.0), "{debts:?}");
    }
}

/// How many bytes of a chunk a peer's stream takes when it is not read, and what is made ahead of
/// it.
const UNREAD: usize = 2 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_do_not_read_or_send_half_a_request_hold_up_nobody_and_are_named() {
    let blocks = heavy_chain(300, 100_000);
    let node = Node::start_with(unscored(long_config()), &blocks).await;
    let last = blocks[299].id();
    let everything = wire::BodiesRequest {
        first: 11,
        last: last.number,
        last_hash: last.hash.to_vec(),
        max_bytes: 8 << 20,
    };
    let everything = request(Ask::Bodies(everything));

    // One has a request open that it never reads, as often as it may; the other sends half of one.
    let mut idle = Vec::new();
    for half in [false, true] {
        let mut raw = Raw::connected_to(&node, false).await;
        let (control, peer) = (
            raw.0.behaviour().streams.new_control(),
            node.network.local_peer_id(),
        );
        let id = raw.id();
        let drive = tokio::spawn(async move {
            loop {
                raw.0.select_next_some().await;
            }
        });
        let mut streams = Vec::new();
        for _ in 0..4 {
            let mut stream = control.clone().open_stream(peer, protocol()).await.unwrap();
            let sent = if half {
                &everything[..everything.len() / 2]
            } else {
                &everything
            };
            stream.write_all(sent).await.unwrap();
            stream.flush().await.unwrap();
            streams.push(stream);
        }
        idle.push((id, streams, drive));
    }
    let read = || node.chain.read.load(Ordering::Relaxed);
    eventually(LONG, || read() > 4 * 300_000).await;

    // Meanwhile a third one is served all that it asks for.
    let mut raw = Raw::connected_to(&node, false).await;
    for window in blocks.chunks(50) {
        let (first, last) = (window[0].number(), window[49].id());
        let window = wire::BodiesRequest {
            first,
            last: last.number,
            last_hash: last.hash.to_vec(),
            max_bytes: 8 << 20,
        };
        let answers = ask(&node, &mut raw, request(Ask::Bodies(window))).await;
        let count: u32 = answers
            .iter()
            .map(|answer| {
                if let Answer::Bodies(chunk) = answer {
                    chunk.count
                } else {
                    0
                }
            })
            .sum();
        assert_eq!(count, 50);
    }
    let wanted: usize = blocks.iter().map(|block| block.weight()).sum();
    assert!(
        read() < wanted + 4 * UNREAD,
        "{} bytes were read, and {wanted} of them for who reads",
        read()
    );

    for (id, _streams, drive) in idle {
        let start = Instant::now();
        while !node
            .debts(id)
            .await
            .iter()
            .any(|(reason, _)| *reason == "stalled_stream")
        {
            assert!(start.elapsed() < LONG, "{:?}", node.debts(id).await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        drive.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_large_chunks_takes_no_places_of_others() {
    let blocks = heavy_chain(12, 700_000);
    let node = Node::start_with(long_config(), &blocks).await;
    let last = blocks[11].id();
    let everything = wire::BodiesRequest {
        first: 11,
        last: last.number,
        last_hash: last.hash.to_vec(),
        max_bytes: 8 << 20,
    };
    let everything = request(Ask::Bodies(everything));
    let mut idle = Raw::connected_to(&node, false).await;
    let mut held = Vec::new();
    for _ in 0..6 {
        held.extend(
            idle.try_send(&node, &wire::protocol_id(CHAIN), &everything)
                .await,
        );
    }
    let chain = node.chain.clone();
    idle.drive(eventually(LONG, || {
        chain.read.load(Ordering::Relaxed) >= 6 * 700_000
    }))
    .await;
    let mut raw = Raw::connected_to(&node, false).await;
    let answers = ask(&node, &mut raw, everything).await;
    let count: u32 = answers
        .iter()
        .map(|answer| {
            if let Answer::Bodies(chunk) = answer {
                chunk.count
            } else {
                0
            }
        })
        .sum();
    // On a machine that stands still for a while it may be late itself.
    assert_eq!(held.len(), 6);
    assert!(
        count == 12 || !node.debts(raw.id()).await.is_empty(),
        "{count} blocks came"
    );
    let id = idle.id();
    idle.drive(node.noted(id, "stalled_stream", 1)).await;
}
