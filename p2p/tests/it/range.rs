//! Range sync between real swarms: thousands of blocks from several peers, some of which send false
//! ones.

use crate::{attackers::*, net::*};
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::{Stream, StreamProtocol};
use starling_p2p::{ChainGenesis, Config, LedgerChange, Network, PeerId};
use starling_proto::{
    payload::{BlockId, Payload},
    wire::{self, LENGTH, RequestBody, ResponseBody},
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(120);

/// A configuration whose genesis is old enough for a million seconds of blocks.
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

/// Waits until `peers` peers have sent a status.
async fn greeted(network: &Network, peers: u64) {
    for _ in 0..6000 {
        if network.report().await.unwrap().sync.peers == peers {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:#?}", network.report().await.unwrap());
}

async fn ask(node: &Node, raw: &mut Raw, request: Vec<u8>) -> Vec<ResponseBody> {
    ask_at_once(node, raw, vec![request]).await.remove(0)
}

/// Sends all requests at once and returns their responses.
async fn ask_at_once(node: &Node, raw: &mut Raw, requests: Vec<Vec<u8>>) -> Vec<Vec<ResponseBody>> {
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

fn request(ask: RequestBody) -> Vec<u8> {
    wire::frame(&wire::Request { body: Some(ask) })
}

fn status_request() -> Vec<u8> {
    request(RequestBody::Status(wire::StatusRequest {}))
}

/// A request for the headers of `from` and of the blocks below `from`.
fn headers_request(from: BlockId, count: u32) -> Vec<u8> {
    request(RequestBody::Headers(wire::HeadersRequest {
        number: from.number,
        hash: from.hash.to_vec(),
        count,
    }))
}

/// A request for the blocks from `first` up to `last`.
fn bodies_request(first: u64, last: BlockId, max_bytes: u32) -> Vec<u8> {
    request(RequestBody::Bodies(wire::BodiesRequest {
        first,
        last: last.number,
        last_hash: last.hash.to_vec(),
        max_bytes,
    }))
}

/// A request for all of these blocks, with the largest allowed byte limit.
fn window_request(window: &[Arc<Payload>]) -> Vec<u8> {
    let last = window[window.len() - 1].id();
    bodies_request(window[0].number(), last, 8 << 20)
}

/// The number of blocks in a response.
fn block_count(answers: &[ResponseBody]) -> u32 {
    let counts = answers.iter().map(|answer| match answer {
        ResponseBody::Bodies(chunk) => chunk.count,
        _ => 0,
    });
    counts.sum()
}

/// Serves each window with other transactions in its first block, but with that block's true
/// header.
fn wrong_transactions(blocks: &[Arc<Payload>], ask: RequestBody) -> Vec<ResponseBody> {
    match ask {
        RequestBody::Bodies(ask) => {
            let mut items = true_bodies(blocks, &ask);
            let mut forged = (*blocks[(ask.first - 11) as usize]).clone();
            forged.transactions = vec![vec![1; 100].into()];
            items[0] = wire::encode_block(&forged).concat().into();
            vec![ResponseBody::Bodies(chunk(items))]
        }
        ask => truth(blocks, ask),
    }
}

fn wrong_header(blocks: &[Arc<Payload>], ask: RequestBody) -> Vec<ResponseBody> {
    match ask {
        RequestBody::Headers(ask) => {
            let mut items = true_headers(blocks, &ask);
            items.rotate_left(1);
            vec![ResponseBody::Headers(chunk(items))]
        }
        ask => truth(blocks, ask),
    }
}

/// Starts a replica that must catch up from two honest peers and one that responds with `server`.
/// Waits until the replica has every block.
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

fn silence(blocks: &[Arc<Payload>], ask: RequestBody) -> Vec<ResponseBody> {
    match ask {
        RequestBody::Status(_) => truth(blocks, ask),
        _ => vec![],
    }
}

fn refusal(blocks: &[Arc<Payload>], ask: RequestBody) -> Vec<ResponseBody> {
    match ask {
        RequestBody::Status(_) => truth(blocks, ask),
        _ => vec![ResponseBody::Refusal(wire::RangeRefusal::NotFound as u32)],
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
    node.charged(fake.id, "false_head").await;
}

/// A node with 200 blocks, and a raw peer to send requests to the node.
async fn node_with_200_blocks() -> (Node, Raw, Vec<Arc<Payload>>) {
    let blocks = chain(200, vec![7; 300]);
    let node = Node::start_with(long_config(), &blocks).await;
    let raw = Raw::connected_to(&node, false).await;
    (node, raw, blocks)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_names_the_head_and_the_lowest_block_that_is_served() {
    let (node, mut raw, blocks) = node_with_200_blocks().await;
    let answers = ask(&node, &mut raw, status_request()).await;
    let [ResponseBody::Status(said)] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!(
        (said.head.clone(), said.chain_id, said.oldest),
        (Some(blocks[199].id().into()), CHAIN, 11)
    );
    assert_eq!(said.finalized, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_lead_down_to_the_first_block() {
    let (node, mut raw, blocks) = node_with_200_blocks().await;
    let request = headers_request(blocks[199].id(), 4096);
    let ResponseBody::Headers(chunk) = &ask(&node, &mut raw, request).await[0] else {
        panic!("headers")
    };
    let items = chunk.items().unwrap();
    let hashes = items
        .iter()
        .map(|item| wire::decode_header(item).unwrap().0);
    assert!(hashes.eq(blocks.iter().rev().map(|block| block.hash)));
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_come_whole_as_many_as_the_bytes_hold_and_one_at_least() {
    let (node, mut raw, blocks) = node_with_200_blocks().await;
    let last = blocks[199].id();
    let ten = bodies_request(201, last, 1 << 20);
    let ResponseBody::Bodies(chunk) = &ask(&node, &mut raw, ten).await[0] else {
        panic!("blocks")
    };
    let items = chunk.items().unwrap();
    let read = items.iter().map(|item| wire::decode_block(item).unwrap());
    assert!(read.eq(blocks[190..].iter().map(|block| (**block).clone())));
    let answers = ask(&node, &mut raw, bodies_request(11, last, 1)).await;
    assert_eq!((answers.len(), block_count(&answers)), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_cannot_be_answered_are_refused_with_the_reason() {
    use wire::RangeRefusal::{Invalid, NotFound};
    let (node, mut raw, blocks) = node_with_200_blocks().await;
    let last = blocks[199].id();
    let unknown = BlockId {
        hash: [1; 32].into(),
        ..last
    };
    let without_hash = request(RequestBody::Headers(wire::HeadersRequest {
        number: 0,
        hash: vec![],
        count: 1,
    }));
    let refusals = [
        (headers_request(unknown, 1), NotFound),
        (headers_request(last, 0), Invalid),
        (headers_request(last, 4097), Invalid),
        (bodies_request(last.number + 1, last, 1), Invalid),
        (bodies_request(0, last, 1), NotFound),
        (without_hash, Invalid),
        (vec![1, 0, 0, 0, 0xff], Invalid),
    ];
    for (index, (asked, refusal)) in refusals.into_iter().enumerate() {
        assert_eq!(
            ask(&node, &mut raw, asked).await,
            [ResponseBody::Refusal(refusal as u32)],
            "request {index}"
        );
    }
    let endless = vec![0xff, 0xff, 0xff, 0xff];
    assert!(
        ask(&node, &mut raw, endless).await.is_empty(),
        "a frame of 4 GB"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_carries_any_number_of_windows_and_those_that_come_at_once_too() {
    let blocks = chain(6_000, vec![]);
    let node = Node::start_with(long_config(), &blocks).await;
    let mut raw = Raw::connected_to(&node, false).await;
    for windows in blocks.chunks(400) {
        let requests = windows.chunks(100).map(window_request).collect();
        let answers = ask_at_once(&node, &mut raw, requests).await;
        let counts: Vec<u32> = answers.iter().map(|answers| block_count(answers)).collect();
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
    let ResponseBody::Status(said) = &ask(&pruned, &mut raw, status_request()).await[0] else {
        panic!("a status")
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

/// Largest number of bytes read from the chain for a stream whose peer does not read: one chunk
/// being written, and one made ahead.
const UNREAD: usize = 2 << 20;

/// A peer with streams that it neither reads nor finishes. Its swarm runs until this value is
/// dropped.
struct IdlePeer {
    id: PeerId,
    _streams: Vec<Stream>,
    drive: JoinHandle<()>,
}

impl IdlePeer {
    /// Connects to the node, opens four streams and sends these bytes on each.
    async fn connected_to(node: &Node, sent: &[u8]) -> Self {
        let mut raw = Raw::connected_to(node, false).await;
        let mut control = raw.0.behaviour().streams.new_control();
        let (id, peer) = (raw.id(), node.network.local_peer_id());
        let drive = tokio::spawn(async move {
            loop {
                raw.0.select_next_some().await;
            }
        });
        let mut streams = Vec::new();
        for _ in 0..4 {
            let mut stream = control.open_stream(peer, protocol()).await.unwrap();
            stream.write_all(sent).await.unwrap();
            stream.flush().await.unwrap();
            streams.push(stream);
        }
        Self {
            id,
            _streams: streams,
            drive,
        }
    }
}

impl Drop for IdlePeer {
    fn drop(&mut self) {
        self.drive.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_do_not_read_or_send_half_a_request_delay_no_other_peer_and_are_charged() {
    let blocks = heavy_chain(300, 100_000);
    let node = Node::start_with(unscored(long_config()), &blocks).await;
    let everything = window_request(&blocks);
    let half = &everything[..everything.len() / 2];
    let idle = [
        IdlePeer::connected_to(&node, &everything).await,
        IdlePeer::connected_to(&node, half).await,
    ];
    let read = || node.chain.read.load(Ordering::Relaxed);
    eventually(LONG, || read() > 4 * 300_000).await;

    // Meanwhile the node serves a third peer all blocks that it requests.
    let mut raw = Raw::connected_to(&node, false).await;
    for window in blocks.chunks(50) {
        let answers = ask(&node, &mut raw, window_request(window)).await;
        assert_eq!(block_count(&answers), 50);
    }
    let wanted: usize = blocks.iter().map(|block| block.weight()).sum();
    assert!(
        read() < wanted + 4 * UNREAD,
        "{} bytes were read, {wanted} of them for the peer that reads",
        read()
    );
    for peer in &idle {
        node.charged(peer.id, "stalled_stream").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_read_large_chunks_takes_no_permits_of_others() {
    let blocks = heavy_chain(12, 700_000);
    let node = Node::start_with(long_config(), &blocks).await;
    let everything = window_request(&blocks);
    let mut idle = Raw::connected_to(&node, false).await;
    let mut held = Vec::new();
    for _ in 0..6 {
        let protocol = wire::protocol_id(CHAIN);
        held.extend(idle.try_send(&node, &protocol, &everything).await);
    }
    let read = || node.chain.read.load(Ordering::Relaxed);
    idle.drive(eventually(LONG, || read() >= 6 * 700_000)).await;
    let mut raw = Raw::connected_to(&node, false).await;
    let count = block_count(&ask(&node, &mut raw, everything).await);
    assert_eq!(held.len(), 6);
    // If the machine pauses for a while, this peer is late too, and is then charged.
    assert!(
        count == 12 || !node.debts(raw.id()).await.is_empty(),
        "{count} blocks came"
    );
    let id = idle.id();
    idle.drive(node.noted(id, "stalled_stream", 1)).await;
}
