//! Range sync with real swarms: thousands of blocks from several peers, some of which lie.

use crate::net::*;
use alloy_primitives::Bytes;
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::{PeerId, Stream, StreamProtocol};
use starling_p2p::{Change, Config, Genesis, Network};
use starling_proto::{
    payload::Payload,
    wire::{self, Answer, Ask, ChunkBuilder, LENGTH},
};
use std::{sync::Arc, time::Duration};
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(120);

/// Of a chain old enough for all these blocks.
fn long_config() -> Config {
    Config { genesis: Genesis { time: unix_now() - 1_000_000, ..genesis() }, ..config() }
}

fn following(peers: &[&Node]) -> Config {
    Config { static_peers: peers.iter().map(|node| node.address.clone()).collect(), ..long_config() }
}

/// Until so many peers have said what they have.
async fn greeted(network: &Network, peers: u64) {
    for _ in 0..6000 {
        if network.report().await.unwrap().sync.peers == peers {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", network.report().await.unwrap().sync);
}

async fn ask(node: &Node, raw: &mut Raw, request: Vec<u8>) -> Vec<Answer> {
    let mut control = raw.0.behaviour().streams.new_control();
    let peer = node.network.local_peer_id();
    let exchange = async move {
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
    };
    tokio::pin!(exchange);
    loop {
        tokio::select! {
            answers = &mut exchange => return answers,
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

/// A peer of our kind that answers what it likes.
type Server = fn(&[Arc<Payload>], Ask) -> Vec<Answer>;

struct Fake {
    id: PeerId,
    tasks: [JoinHandle<()>; 2],
}

impl Fake {
    async fn connected_to(node: &Node, blocks: &[Arc<Payload>], server: Server) -> Self {
        let mut raw = Raw::new(false);
        let mut incoming = raw.0.behaviour().streams.new_control().accept(protocol()).unwrap();
        raw.reconnect(node).await;
        let (id, blocks) = (raw.id(), blocks.to_vec());
        let drive = tokio::spawn(async move {
            loop {
                raw.0.select_next_some().await;
            }
        });
        let serve = tokio::spawn(async move {
            while let Some((_, stream)) = incoming.next().await {
                let blocks = blocks.clone();
                tokio::spawn(async move { answer(stream, &blocks, server).await });
            }
        });
        Self { id, tasks: [drive, serve] }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn answer(mut stream: Stream, blocks: &[Arc<Payload>], server: Server) -> Option<()> {
    let mut length = [0; LENGTH];
    stream.read_exact(&mut length).await.ok()?;
    let mut request = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut request).await.ok()?;
    let answers = server(blocks, wire::decode_request(&request).ok()?);
    if answers.is_empty() {
        // Silence, on an open stream.
        std::future::pending::<()>().await;
    }
    for answer in answers {
        stream.write_all(&wire::frame(&wire::Response { answer: Some(answer) })).await.ok()?;
    }
    stream.close().await.ok()
}

fn status(blocks: &[Arc<Payload>]) -> wire::Status {
    wire::Status {
        chain_id: CHAIN,
        genesis_hash: genesis().id.hash.to_vec(),
        head: blocks.last().map(|block| block.id().into()),
        ..Default::default()
    }
}

fn chunk(items: impl IntoIterator<Item = Bytes>) -> wire::Chunk {
    let mut chunk = ChunkBuilder::default();
    items.into_iter().for_each(|item| chunk.push(&[&item]));
    chunk.finish().unwrap()
}

fn true_bodies(blocks: &[Arc<Payload>], ask: &wire::BodiesRequest) -> Vec<Bytes> {
    let range = (ask.first - 11) as usize..=(ask.last - 11) as usize;
    blocks[range].iter().map(|block| wire::encode_block(block).concat().into()).collect()
}

fn true_headers(blocks: &[Arc<Payload>], ask: &wire::HeadersRequest) -> Vec<Bytes> {
    let upper = &blocks[..=(ask.number - 11) as usize];
    upper.iter().rev().take(ask.count as usize).map(|block| wire::encode_block(block)[0].clone().into()).collect()
}

/// Everything true, but for what `lie` says.
fn truth(blocks: &[Arc<Payload>], ask: Ask) -> Vec<Answer> {
    match ask {
        Ask::Status(_) => vec![Answer::Status(status(blocks))],
        Ask::Headers(ask) => vec![Answer::Headers(chunk(true_headers(blocks, &ask)))],
        Ask::Bodies(ask) => vec![Answer::Bodies(chunk(true_bodies(blocks, &ask)))],
    }
}

/// A block of the window is one that it made up.
fn wrong_body(blocks: &[Arc<Payload>], ask: Ask) -> Vec<Answer> {
    match ask {
        Ask::Bodies(ask) => {
            let mut items = true_bodies(blocks, &ask);
            let mut made_up = (*blocks[5]).clone();
            made_up.header.gas_used += 1;
            items[3] = wire::encode_block(&made_up).concat().into();
            vec![Answer::Bodies(chunk(items))]
        }
        ask => truth(blocks, ask),
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn a_long_gap_is_filled_from_three_peers_and_each_kind_of_lie_is_a_ban_with_its_evidence() {
    count_metrics();
    let blocks = chain(3_000, vec![1; 500]);
    let first = Node::start_with(long_config(), &blocks[..2_999]).await;
    let second = Node::start_with(long_config(), &blocks).await;
    for lie in [wrong_body as Server, wrong_transactions, wrong_header] {
        let late = Node::start(following(&[&first, &second])).await;
        let liar = Fake::connected_to(&late, &blocks, lie).await;
        greeted(&late.network, 3).await;
        // The first question goes to any of the three: until the liar has been asked, the late node starts over.
        first.network.publish(blocks[2_999].clone(), sign_block(&blocks[2_999])).await;
        eventually(LONG, || late.chain.has(&blocks[2_999])).await;
        assert_eq!(late.chain.blocks.lock().len(), 3_000);
        let debts = late.network.ledger(Some(liar.id), 100).await.unwrap();
        println!("{debts:?}");
        if let Some(line) = debts.iter().find(|line| line.reason == "false_block") {
            assert!(line.evidence.starts_with("asked for "), "{line:?}");
            assert!(debts.iter().any(|line| matches!(line.change, Change::Banned { .. })));
        }
        late.stop().await;
    }
}
