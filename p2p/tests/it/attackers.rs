//! Peers that attack a node. Each attacks until the node disconnects it; [`again_and_again`] then
//! repeats the attack under a new peer id.

use crate::net::*;
use alloy_primitives::Bytes;
use futures::{AsyncReadExt, AsyncWriteExt, FutureExt, StreamExt, future::LocalBoxFuture};
use libp2p::{
    PeerId, Stream, Transport,
    core::{
        Endpoint,
        muxing::{StreamMuxerBox, StreamMuxerExt},
        transport::{Boxed, DialOpts, PortUse},
        upgrade::Version,
    },
    noise, quic, tcp, yamux,
};
use starling_p2p::{Config, Keypair, LedgerChange};
use starling_proto::{
    gossip,
    payload::Payload,
    reqresp, sign,
    wire::{self, ChunkBuilder, LENGTH, RequestBody, ResponseBody},
};
use std::{
    future::poll_fn,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(60);
/// Pause between two attacks of one attacker.
const BREATH: Duration = Duration::from_millis(50);
/// Pause between two blocks. It is no divisor of the gossip heartbeat, so blocks do not coincide
/// with heartbeats.
const PAUSE: Duration = Duration::from_millis(61);

/// A kind of attack, which lasts until the test ends it.
pub struct Attack {
    pub name: &'static str,
    /// The reason for which the ledger charges the attackers.
    pub charge: &'static str,
    /// Number of attackers at the same time.
    attackers: usize,
    /// Number of blocks that the victim must fetch below each gossiped block; zero if the attack
    /// does not concern requests.
    gap: usize,
    begin: Begin,
}

/// Starts an attack on a node that has the given blocks.
type Begin = fn(Arc<Node>, Vec<Arc<Payload>>) -> LocalBoxFuture<'static, ()>;

const fn attack(name: &'static str, charge: &'static str, begin: Begin) -> Attack {
    Attack {
        name,
        charge,
        attackers: 1,
        gap: 0,
        begin,
    }
}

pub const ATTACKS: [Attack; 10] = [
    attack("garbage", "too_large", |node, _| {
        Box::pin(async move { again_and_again(&node, flood_garbage).await })
    }),
    Attack {
        attackers: 2,
        ..attack("bombs", "bomb", |node, _| {
            Box::pin(async move {
                again_and_again(&node, async |raw: &mut Raw, node: &Node| {
                    throw_bombs(raw, node, LARGEST).await
                })
                .await
            })
        })
    },
    Attack {
        attackers: 2,
        ..attack("smaller bombs", "bomb", |node, _| {
            Box::pin(async move {
                again_and_again(&node, async |raw: &mut Raw, node: &Node| {
                    throw_bombs(raw, node, SMALLER).await
                })
                .await
            })
        })
    },
    attack("streams", "stream_flood", |node, _| {
        Box::pin(async move {
            loop {
                open_streams(over_tcp(&Keypair::generate_secp256k1()), &node).await;
                tokio::time::sleep(BREATH).await;
            }
        })
    }),
    attack("half frames", "half_frame", |node, _| {
        Box::pin(async move { again_and_again(&node, send_halves).await })
    }),
    attack("stalled readers", "stalled_stream", |node, _| {
        Box::pin(async move { again_and_again(&node, stall).await })
    }),
    attack("false heads", "false_head", |node, _| {
        Box::pin(async move {
            loop {
                let fake = Fake::connected_to(&node, &[], future).await;
                while node.network.peers().iter().any(|peer| peer.id == fake.id) {
                    tokio::time::sleep(BREATH).await;
                }
            }
        })
    }),
    Attack {
        gap: 3,
        ..attack("another branch", "wrong_block", |node, blocks| {
            Box::pin(async move {
                again_and_again(&node, async |raw: &mut Raw, node: &Node| {
                    serve_another_branch(raw, node, &blocks).await
                })
                .await
            })
        })
    },
    attack("old blocks", "replay", |node, blocks| {
        // Blocks older than a minute, and younger ones.
        let old: Vec<_> = blocks
            .iter()
            .take(3)
            .chain(blocks.iter().rev().take(3))
            .cloned()
            .collect();
        Box::pin(async move {
            again_and_again(&node, async |raw: &mut Raw, node: &Node| {
                replay(raw, node, &old).await
            })
            .await
        })
    }),
    attack("rivals", "too_many_blocks", |node, blocks| {
        Box::pin(async move {
            again_and_again(&node, async |raw: &mut Raw, node: &Node| {
                send_rivals(raw, node, &blocks[0]).await
            })
            .await
        })
    }),
];

/// A victim, a publisher whose blocks the victim receives, and the newest of those blocks.
pub struct Scene {
    pub victim: Arc<Node>,
    pub publisher: Node,
    /// A node that serves the blocks that the victim must fetch; `None` if there are none.
    server: Option<Node>,
    newest: Arc<Payload>,
    gap: usize,
}

impl Scene {
    pub async fn new(attack: &Attack, before: &[Arc<Payload>]) -> Self {
        let victim = Arc::new(Node::start_with(config(), before).await);
        let beside = || with_static(&[&victim.address]);
        // If the victim must fetch blocks, the publisher serves none: as the deliverer of the tip,
        // it would be the first to get the requests.
        let publisher = Node::start_with(
            Config {
                sync_req_resp: attack.gap == 0,
                ..beside()
            },
            before,
        )
        .await;
        let server = if attack.gap > 0 {
            Some(Node::start_with(beside(), before).await)
        } else {
            None
        };
        victim.meshed(1 + usize::from(server.is_some())).await;
        publisher.meshed(1).await;
        Self {
            victim,
            publisher,
            server,
            newest: before[before.len() - 1].clone(),
            gap: attack.gap,
        }
    }

    /// Publishes the next block, with `bytes` incompressible bytes. Returns the time until the
    /// victim's chain has the block.
    pub async fn block(&mut self, bytes: usize) -> Duration {
        let nodes = || std::iter::once(&self.publisher).chain(&self.server);
        for _ in 0..self.gap {
            let unheard = child(self.newest.id(), vec![1; 100]);
            nodes().for_each(|node| node.chain.add(&unheard));
            self.newest = unheard;
        }
        let mut noise = vec![0; bytes];
        rand::RngCore::fill_bytes(&mut rand::rng(), &mut noise);
        let block = child(self.newest.id(), noise);
        self.newest = block.clone();
        let sent = Instant::now();
        self.publisher.publish(&block).await;
        eventually(LONG, || self.victim.chain.has(&block)).await;
        let came = self.victim.chain.came.lock()[&block.hash];
        // Small gaps are filled by number, and a peer serves four requests a second.
        tokio::time::sleep(if self.gap > 0 { 20 * PAUSE } else { PAUSE }).await;
        came.saturating_duration_since(sent)
    }

    /// The reasons for which peers were charged or banned.
    pub async fn charges(&self) -> Vec<&'static str> {
        let mut reasons: Vec<&str> = Vec::new();
        for entry in self.victim.network.ledger(None, 1000).await.unwrap() {
            let counts = matches!(entry.change, LedgerChange::Score(change) if change <= 0.0)
                || entry.reason == "score";
            if counts && !reasons.contains(&entry.reason) {
                reasons.push(entry.reason);
            }
        }
        reasons
    }

    pub async fn end(self) {
        self.publisher.stop().await;
        if let Some(server) = self.server {
            server.stop().await;
        }
        if let Some(victim) = Arc::into_inner(self.victim) {
            victim.stop().await;
        }
    }
}

/// An attack in progress.
pub struct Attacking {
    stop: CancellationToken,
    threads: Vec<std::thread::JoinHandle<bool>>,
}

impl Attack {
    /// Starts the attackers, each in a thread of its own.
    pub fn begin(&self, node: &Arc<Node>, blocks: &[Arc<Payload>]) -> Attacking {
        let stop = CancellationToken::new();
        let one = |_| {
            let (begin, node, blocks, stop) =
                (self.begin, node.clone(), blocks.to_vec(), stop.clone());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    tokio::select! {
                        () = stop.cancelled() => true,
                        () = begin(node, blocks) => false,
                    }
                })
            })
        };
        let threads = (0..self.attackers).map(one).collect();
        Attacking { stop, threads }
    }
}

impl Attacking {
    /// Ends the attack. Fails if the attack has ended by itself.
    pub fn end(self) {
        self.stop.cancel();
        self.threads
            .into_iter()
            .for_each(|thread| assert!(thread.join().unwrap(), "the attack came to an end"));
    }
}

/// Repeats an attack, each time under a new peer id.
pub async fn again_and_again(node: &Node, attack: impl AsyncFn(&mut Raw, &Node)) {
    loop {
        let mut raw = Raw::connected_to(node, false).await;
        attack(&mut raw, node).await;
        drop(raw);
        tokio::time::sleep(BREATH).await;
    }
}

fn is_let_alone(raw: &Raw, node: &Node) -> bool {
    raw.0.is_connected(&node.network.local_peer_id())
}

async fn pause(raw: &mut Raw, time: Duration) {
    let until = Instant::now() + time;
    raw.drive(eventually(LONG, || Instant::now() >= until))
        .await;
}

/// Bytes that are not valid snappy, different for each `i`.
pub fn garbage(i: u32) -> Vec<u8> {
    [&[255, 255, 255, 7][..], &i.to_le_bytes(), &[1; 1000]].concat()
}

/// Sends about a thousand messages of garbage a second.
pub async fn flood_garbage(raw: &mut Raw, node: &Node) {
    for i in 0u32.. {
        if !is_let_alone(raw, node) {
            return;
        }
        let _ = raw.0.behaviour_mut().gossip.publish(v4_topic(), garbage(i));
        if i % 5 == 0 {
            pause(raw, Duration::from_millis(5)).await;
        }
    }
}

/// Placeholder for the number of a bomb: it marks the position of that number in the packed bytes.
const NUMBER: [u8; 8] = [1, 3, 5, 7, 11, 13, 17, 19];

/// Unpacked size of the largest message, which is packed into half a MiB, and of a message that
/// waits for the same permits as blocks above 512 KiB.
pub const LARGEST: usize = gossip::MAX_MESSAGE_LEN;
pub const SMALLER: usize = 2 << 20;

/// A message of zeros, different for each call. It begins with a signature from which some signer
/// can be recovered.
pub fn bomb(bytes: usize) -> Vec<u8> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    static BOMBS: LazyLock<[(Vec<u8>, usize); 2]> = LazyLock::new(|| {
        let signature = sign::sign(
            &sign::secret_from_hex(STRANGER).unwrap(),
            CHAIN,
            b"anything",
        );
        [LARGEST, SMALLER].map(|bytes| {
            let zeros = vec![0; bytes - signature.len() - NUMBER.len()];
            let packed = snap::raw::Encoder::new()
                .compress_vec(&[&signature[..], &NUMBER, &zeros].concat())
                .unwrap();
            let place = packed
                .windows(NUMBER.len())
                .position(|part| part == NUMBER)
                .unwrap();
            (packed, place)
        })
    });
    let (mut bomb, place) = BOMBS[usize::from(bytes == SMALLER)].clone();
    bomb[place..place + NUMBER.len()]
        .copy_from_slice(&MADE.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    bomb
}

/// Sends a frame while the swarm runs. Returns `false` if the stream has ended.
async fn send(raw: &mut Raw, stream: &mut Stream, frame: &[u8]) -> bool {
    let sent = async {
        stream
            .write_all(frame)
            .await
            .and(stream.flush().await)
            .is_ok()
    };
    raw.drive(sent).await
}

/// Sends bombs as fast as the node reads them, until the node disconnects.
pub async fn throw_bombs(raw: &mut Raw, node: &Node, bytes: usize) {
    let mut stream = raw.open(node, GOSSIP).await;
    while is_let_alone(raw, node) {
        let bomb = frame(&[bomb(bytes)]);
        if !send(raw, &mut stream, &bomb).await {
            return;
        }
    }
}

/// A transport whose connections carry none of our protocols.
pub type Carrier = Boxed<(PeerId, StreamMuxerBox)>;

pub fn over_tcp(identity: &Keypair) -> Carrier {
    let tcp = tcp::tokio::Transport::new(tcp::Config::default()).upgrade(Version::V1Lazy);
    let tcp = tcp
        .authenticate(noise::Config::new(identity).unwrap())
        .multiplex(yamux::Config::default());
    tcp.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
        .boxed()
}

pub fn over_quic(identity: &Keypair) -> Carrier {
    let quic = quic::tokio::Transport::new(quic::Config::new(identity));
    quic.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
        .boxed()
}

/// Opens streams that never negotiate a protocol, on a connection without any other stream, until
/// the node disconnects.
pub async fn open_streams(mut carrier: Carrier, node: &Node) {
    let address = node
        .address
        .iter()
        .filter(|part| !matches!(part, libp2p::multiaddr::Protocol::P2p(_)))
        .collect();
    let dialled = carrier
        .dial(
            address,
            DialOpts {
                role: Endpoint::Dialer,
                port_use: PortUse::New,
            },
        )
        .unwrap();
    // The node may still be closing an earlier connection.
    let Ok((_, mut muxer)) = dialled.await else {
        return;
    };
    let mut held = Vec::new();
    loop {
        let opened = poll_fn(|cx| {
            while let Poll::Ready(event) = muxer.poll_unpin(cx) {
                if event.is_err() {
                    return Poll::Ready(None);
                }
            }
            muxer.poll_outbound_unpin(cx).map(Result::ok)
        });
        let Some(mut stream) = opened.await else {
            return;
        };
        let mut written = stream.write_all(&[0x13]);
        let said = poll_fn(|cx| {
            // Datagrams are sent and received only while their connection is polled.
            let closed = matches!(muxer.poll_unpin(cx), Poll::Ready(Err(_)));
            if closed {
                Poll::Ready(false)
            } else {
                written.poll_unpin(cx).map(|said| said.is_ok())
            }
        });
        if !said.await {
            return;
        }
        held.push(stream);
    }
}

/// Opens gossip streams that announce a frame of 8 MiB and send only a small part of it.
pub async fn send_halves(raw: &mut Raw, node: &Node) {
    let half = [&[0x80, 0x80, 0x80, 0x04][..], &[1; 100_000]].concat();
    let mut held = Vec::new();
    while is_let_alone(raw, node) && held.len() < 40 {
        let Some(stream) = raw.try_send(node, GOSSIP, &half).await else {
            return;
        };
        held.push(stream);
    }
    while is_let_alone(raw, node) {
        pause(raw, Duration::from_millis(10)).await;
    }
}

/// Requests all blocks of the node on as many streams as are allowed, and reads no response.
pub async fn stall(raw: &mut Raw, node: &Node) {
    let Some(last) = node
        .chain
        .blocks
        .lock()
        .values()
        .last()
        .map(|block| block.id())
    else {
        return;
    };
    let ask = wire::BodiesRequest {
        first: 11,
        last: last.number,
        last_hash: last.hash.to_vec(),
        max_bytes: 8 << 20,
    };
    let asked = wire::frame(&wire::Request {
        body: Some(RequestBody::Bodies(ask)),
    });
    let mut held = Vec::new();
    while held.len() < 4 {
        let Some(stream) = raw.try_send(node, &wire::protocol_id(CHAIN), &asked).await else {
            return;
        };
        held.push(stream);
    }
    while is_let_alone(raw, node) {
        pause(raw, Duration::from_millis(10)).await;
    }
}

/// Sends the same blocks repeatedly, until the node disconnects.
pub async fn replay(raw: &mut Raw, node: &Node, blocks: &[Arc<Payload>]) {
    let again = frame(
        &blocks
            .iter()
            .map(|block| message(block))
            .cycle()
            .take(40)
            .collect::<Vec<_>>(),
    );
    let mut stream = raw.open(node, GOSSIP).await;
    while is_let_alone(raw, node) {
        if !send(raw, &mut stream, &again).await {
            return;
        }
        pause(raw, Duration::from_millis(10)).await;
    }
}

/// Sends new valid children of `parent`, one after the other, until the node disconnects.
pub async fn send_rivals(raw: &mut Raw, node: &Node, parent: &Payload) {
    while is_let_alone(raw, node) {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let data = MADE.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let _ = raw
            .0
            .behaviour_mut()
            .gossip
            .publish(v4_topic(), message(&child(parent.id(), data.to_vec())));
        pause(raw, Duration::from_millis(10)).await;
    }
}

/// A peer that responds to `payload_by_number` with blocks of another branch. The node sends it no
/// further requests, so the peer disconnects soon after its responses.
pub async fn serve_another_branch(raw: &mut Raw, node: &Node, blocks: &[Arc<Payload>]) {
    let mut incoming = raw.accept_numbers();
    let mut leave = Box::pin(tokio::time::sleep(LONG));
    while is_let_alone(raw, node) {
        tokio::select! {
            Some((_, mut stream)) = incoming.next() => {
                let blocks = blocks.to_vec();
                tokio::spawn(async move { answer_with_another(&mut stream, &blocks).await });
                leave = Box::pin(tokio::time::sleep(4 * BREATH));
            }
            _ = raw.0.select_next_some() => {}
            () = &mut leave => return,
        }
    }
}

/// Responds to one `payload_by_number` request with a block of that number that is valid by itself
/// but not on the chain.
pub async fn answer_with_another(stream: &mut Stream, blocks: &[Arc<Payload>]) {
    let mut request = [0; 8];
    let _ = stream.read_exact(&mut request).await;
    let number = u64::from_le_bytes(request);
    let Some(other) = blocks
        .iter()
        .find(|block| block.number() == number)
        .or(blocks.last())
    else {
        return;
    };
    let mut other = (**other).clone();
    (other.header.number, other.header.gas_used) = (number, other.header.gas_used + 1);
    let other = Payload::sealed(other.header, other.transactions);
    let _ = stream
        .write_all(&reqresp::encode_response(&other, &forks()).unwrap())
        .await;
    let _ = stream.close().await;
}

/// Makes the responses of a peer that serves ranges, from the chain's blocks.
pub type Server = fn(&[Arc<Payload>], RequestBody) -> Vec<ResponseBody>;

pub struct Fake {
    pub id: PeerId,
    tasks: [JoinHandle<()>; 2],
}

impl Fake {
    pub async fn connected_to(node: &Node, blocks: &[Arc<Payload>], server: Server) -> Self {
        // Among equal peers, the peer with the lowest id gets the first request.
        let others = node.network.peers();
        let mut raw = Raw::new(false);
        while others.iter().any(|peer| peer.id < raw.id()) {
            raw = Raw::new(false);
        }
        let mut incoming = raw.accept(&wire::protocol_id(CHAIN));
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
        Self {
            id,
            tasks: [drive, serve],
        }
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
        // Send nothing more, but keep the stream open.
        std::future::pending::<()>().await;
    }
    for answer in answers {
        stream
            .write_all(&wire::frame(&wire::Response { body: Some(answer) }))
            .await
            .ok()?;
    }
    stream.close().await.ok()
}

pub fn status(blocks: &[Arc<Payload>]) -> wire::Status {
    wire::Status {
        chain_id: CHAIN,
        genesis_hash: genesis().id.hash.to_vec(),
        head: blocks.last().map(|block| block.id().into()),
        ..Default::default()
    }
}

pub fn chunk(items: impl IntoIterator<Item = Bytes>) -> wire::Chunk {
    let mut chunk = ChunkBuilder::default();
    items.into_iter().for_each(|item| chunk.push(&[&item]));
    chunk.finish().unwrap()
}

pub fn true_bodies(blocks: &[Arc<Payload>], ask: &wire::BodiesRequest) -> Vec<Bytes> {
    let range = (ask.first - 11) as usize..=(ask.last - 11) as usize;
    blocks[range]
        .iter()
        .map(|block| wire::encode_block(block).concat().into())
        .collect()
}

pub fn true_headers(blocks: &[Arc<Payload>], ask: &wire::HeadersRequest) -> Vec<Bytes> {
    let upper = &blocks[..=(ask.number - 11) as usize];
    upper
        .iter()
        .rev()
        .take(ask.count as usize)
        .map(|block| wire::encode_block(block)[0].clone().into())
        .collect()
}

/// The true responses to a range request.
pub fn truth(blocks: &[Arc<Payload>], ask: RequestBody) -> Vec<ResponseBody> {
    match ask {
        RequestBody::Status(_) => vec![ResponseBody::Status(status(blocks))],
        RequestBody::Headers(ask) => vec![ResponseBody::Headers(chunk(true_headers(blocks, &ask)))],
        RequestBody::Bodies(ask) => vec![ResponseBody::Bodies(chunk(true_bodies(blocks, &ask)))],
    }
}

/// The true responses, except that one block of each window is invented.
pub fn wrong_body(blocks: &[Arc<Payload>], ask: RequestBody) -> Vec<ResponseBody> {
    match ask {
        RequestBody::Bodies(ask) => {
            let mut items = true_bodies(blocks, &ask);
            let mut made_up = (*blocks[5]).clone();
            made_up.header.gas_used += 1;
            items[3] = wire::encode_block(&made_up).concat().into();
            vec![ResponseBody::Bodies(chunk(items))]
        }
        ask => truth(blocks, ask),
    }
}

/// The true responses for an empty chain, except for a status with a head that cannot exist yet.
pub fn future(_: &[Arc<Payload>], ask: RequestBody) -> Vec<ResponseBody> {
    let head = wire::Block {
        number: u64::MAX,
        hash: vec![1; 32],
    };
    truth(&[], ask)
        .into_iter()
        .map(|answer| match answer {
            ResponseBody::Status(status) => ResponseBody::Status(wire::Status {
                head: Some(head.clone()),
                ..status
            }),
            answer => answer,
        })
        .collect()
}
