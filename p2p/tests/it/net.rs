//! Helpers of the tests: a chain of signed blocks, a node whose chain executes the payloads it
//! gets, and a peer that sends any bytes ([`Raw`]).

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, b256};
use futures::{AsyncWriteExt, StreamExt};
use libp2p::{
    Multiaddr, StreamProtocol, Swarm, SwarmBuilder, gossipsub, identify,
    multiaddr::Protocol,
    noise,
    swarm::{NetworkBehaviour, SwarmEvent, dial_opts::DialOpts},
    tcp, yamux,
};
use libp2p_stream::IncomingStreams;
use parking_lot::Mutex;
use starling_p2p::{
    Blocks, ChainGenesis, ChainHeads, Config, Event, Keypair, LedgerChange, Network, PeerId,
    Policy, Scoring, Service, Settled,
};
use starling_proto::{
    fork::{Fork, ForkSchedule},
    gossip,
    payload::{BlockId, Payload, PayloadVersion},
    reqresp, sign,
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longest wait for an event before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const CHAIN: u64 = 901;
const KEY: &str = "00000000000000000000000000000000000000000000000000000000000000aa";
pub const GOSSIP: &str = "/meshsub/1.1.0";
pub const STRANGER: &str = "00000000000000000000000000000000000000000000000000000000000000bb";

pub fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// A genesis so old that block 1010 would have the present time as its timestamp.
pub fn genesis() -> ChainGenesis {
    static TIME: LazyLock<u64> = LazyLock::new(|| unix_now() - 2000);
    ChainGenesis {
        id: BlockId {
            hash: B256::repeat_byte(9),
            number: 10,
        },
        time: *TIME,
        block_time: 2,
    }
}

pub fn forks() -> ForkSchedule {
    ForkSchedule::from_genesis(Fork::Jovian)
}

/// The first `count` blocks, the last of which has the present time. `data` is the only transaction
/// of the last block.
pub fn chain(count: u64, data: Vec<u8>) -> Vec<Arc<Payload>> {
    chain_of(count, |number| {
        if number == count && !data.is_empty() {
            vec![Bytes::from(data.clone())]
        } else {
            Vec::new()
        }
    })
}

/// Blocks like those of [`chain`], each with a transaction of `bytes` incompressible bytes.
pub fn heavy_chain(count: u64, bytes: usize) -> Vec<Arc<Payload>> {
    let mut noise = 1u64;
    let mut byte = || {
        noise = noise
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (noise >> 56) as u8
    };
    chain_of(count, |_| vec![(0..bytes).map(|_| byte()).collect()])
}

/// Builds `count` blocks; `transactions` is called with the index of each, from 1 on.
fn chain_of(count: u64, mut transactions: impl FnMut(u64) -> Vec<Bytes>) -> Vec<Arc<Payload>> {
    let mut parent = genesis().id;
    let mut blocks = Vec::new();
    let first = unix_now() - count;
    for i in 1..=count {
        let block = block_upon(parent, first + i, transactions(i));
        parent = block.id();
        blocks.push(block);
    }
    blocks
}

/// A child of `parent` with the present time and one transaction.
pub fn child(parent: BlockId, data: Vec<u8>) -> Arc<Payload> {
    block_upon(parent, unix_now(), vec![data.into()])
}

fn block_upon(parent: BlockId, timestamp: u64, transactions: Vec<Bytes>) -> Arc<Payload> {
    let header = Header {
        parent_hash: parent.hash,
        number: parent.number + 1,
        timestamp,
        transactions_root: alloy_trie::root::ordered_trie_root_encoded(&transactions),
        base_fee_per_gas: Some(7),
        withdrawals_root: Some(B256::repeat_byte(3)),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: Some(B256::repeat_byte(4)),
        requests_hash: Some(b256!(
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        )),
        ..Default::default()
    };
    Arc::new(Payload::sealed(header, transactions))
}

pub fn signer() -> Address {
    sign::address(&sign::secret_from_hex(KEY).unwrap())
}

pub fn sign_block(block: &Payload) -> [u8; 65] {
    sign::sign(
        &sign::secret_from_hex(KEY).unwrap(),
        CHAIN,
        &block.to_wire(PayloadVersion::V4),
    )
}

pub fn sign_as_stranger(block: &Payload) -> [u8; 65] {
    sign::sign(
        &sign::secret_from_hex(STRANGER).unwrap(),
        CHAIN,
        &block.to_wire(PayloadVersion::V4),
    )
}

/// The message in which gossip carries the block.
pub fn message(block: &Payload) -> Vec<u8> {
    gossip::encode_message(&sign_block(block), &block.to_wire(PayloadVersion::V4)).unwrap()
}

/// The chain of a test node: it keeps every payload it gets, and finds all of them valid.
#[derive(Default)]
pub struct TestChain {
    pub blocks: Mutex<BTreeMap<u64, Arc<Payload>>>,
    pub hashes: Mutex<HashMap<B256, u64>>,
    /// The time at which each block arrived.
    pub came: Mutex<HashMap<B256, Instant>>,
    pub events: Mutex<Vec<Event>>,
    /// The lowest block that is still kept.
    pub oldest: AtomicU64,
    pub finalized: Mutex<Option<BlockId>>,
    /// Number of bytes of transactions that were read for peers.
    pub read: AtomicUsize,
}

impl TestChain {
    pub fn add(&self, block: &Arc<Payload>) {
        self.came.lock().insert(block.hash, Instant::now());
        self.hashes.lock().insert(block.hash, block.number());
        self.blocks.lock().insert(block.number(), block.clone());
    }

    pub fn has(&self, block: &Payload) -> bool {
        self.hashes.lock().contains_key(&block.hash)
    }
}

impl Blocks for TestChain {
    fn knows(&self, hash: B256) -> bool {
        hash == genesis().id.hash || self.hashes.lock().contains_key(&hash)
    }

    fn block(&self, number: u64) -> Option<Payload> {
        let block = self
            .blocks
            .lock()
            .get(&number)
            .filter(|_| number >= self.oldest())
            .cloned()?;
        self.read.fetch_add(block.weight(), Ordering::Relaxed);
        Some((*block).clone())
    }

    fn hash(&self, number: u64) -> Option<B256> {
        self.blocks.lock().get(&number).map(|block| block.hash)
    }

    fn oldest(&self) -> u64 {
        self.oldest.load(Ordering::Relaxed)
    }

    fn finalized(&self) -> Option<BlockId> {
        *self.finalized.lock()
    }
}

/// A running node.
pub struct Node {
    pub network: Network,
    pub chain: Arc<TestChain>,
    pub address: Multiaddr,
    token: CancellationToken,
    tasks: [JoinHandle<()>; 2],
}

pub fn config() -> Config {
    Config {
        listen_ip: [127, 0, 0, 1].into(),
        listen_tcp: 0,
        unsafe_block_signer: Some(signer()),
        ..Config::new(Keypair::generate_secp256k1(), CHAIN, forks(), genesis())
    }
}

pub fn with_static(peers: &[&Multiaddr]) -> Config {
    Config {
        static_peers: peers.iter().map(|peer| (*peer).clone()).collect(),
        ..config()
    }
}

/// A configuration under which the node bans no peer, for tests of what a peer can do before a ban.
pub fn unscored(config: Config) -> Config {
    Config {
        policy: Policy {
            scoring: Scoring::None,
            ..Policy::default()
        },
        ..config
    }
}

impl Node {
    pub async fn start(config: Config) -> Self {
        Self::start_with(config, &[]).await
    }

    /// A node that has these blocks from the start.
    pub async fn start_with(config: Config, blocks: &[Arc<Payload>]) -> Self {
        let chain = Arc::new(TestChain::default());
        blocks.iter().for_each(|block| chain.add(block));
        let (service, network, mut events) = Service::new(config, chain.clone()).unwrap();
        let token = CancellationToken::new();
        let swarm = tokio::spawn(service.run(token.clone()));
        let (follower, followed) = (network.clone(), chain.clone());
        let follower = tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                let payload = event.payload.clone();
                assert!(followed.knows(payload.parent_hash()), "parents come first");
                followed.add(&payload);
                followed.events.lock().push(event);
                follower.settled(payload.hash, Settled::Ok).await;
                // A rival of an older block does not become the head.
                let head = followed
                    .blocks
                    .lock()
                    .values()
                    .last()
                    .map_or(payload.id(), |block| block.id());
                follower
                    .heads(ChainHeads {
                        head,
                        safe: genesis().id,
                    })
                    .await;
            }
        });
        let mut addresses = network.listen_addrs();
        let address = addresses.wait_for(|all| !all.is_empty()).await.unwrap()[0].clone();
        if let Some(head) = blocks.last() {
            network
                .heads(ChainHeads {
                    head: head.id(),
                    safe: genesis().id,
                })
                .await;
        }
        Self {
            network,
            chain,
            address,
            token,
            tasks: [swarm, follower],
        }
    }

    /// The TCP port that the node listens on.
    pub fn tcp_port(&self) -> u16 {
        let port = |part| match part {
            Protocol::Tcp(port) => Some(port),
            _ => None,
        };
        self.address.iter().find_map(port).unwrap()
    }

    pub async fn publish(&self, block: &Arc<Payload>) {
        self.chain.add(block);
        self.network.publish(block.clone(), sign_block(block)).await;
    }

    /// Waits until at least `least` peers are in the node's mesh.
    pub async fn meshed(&self, least: usize) {
        let (begun, topic) = (Instant::now(), v4_topic().to_string());
        while !self
            .network
            .report()
            .await
            .unwrap()
            .mesh
            .iter()
            .any(|mesh| mesh.topic == topic && mesh.mesh.len() >= least)
        {
            assert!(begun.elapsed() < PATIENCE, "no mesh");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn peers(&self, count: usize) {
        eventually(PATIENCE, || self.network.peer_count() == count).await;
    }

    /// The ledger's entries about a peer, oldest first, without scores.
    pub async fn verdicts(&self, peer: PeerId) -> Vec<(&'static str, LedgerChange)> {
        let entries = self.network.ledger(Some(peer), 100).await.unwrap();
        let lines = entries
            .into_iter()
            .rev()
            .map(|entry| (entry.reason, entry.change));
        lines
            .filter(|(_, change)| !matches!(change, LedgerChange::Score(_)))
            .collect()
    }

    /// The number of times that the ledger has this reason for the peer.
    pub async fn times(&self, peer: PeerId, reason: &str) -> u32 {
        let entries = self.network.ledger(Some(peer), 100).await.unwrap();
        entries
            .iter()
            .filter(|entry| entry.reason == reason)
            .map(|entry| entry.times)
            .sum()
    }

    /// Waits until the ledger has this reason for the peer `times` times; returns the time that
    /// took.
    pub async fn noted(&self, peer: PeerId, reason: &str, times: u32) -> Duration {
        let start = Instant::now();
        while self.times(peer, reason).await < times {
            assert!(
                start.elapsed() < PATIENCE,
                "not {times} times {reason}: {:?}",
                self.debts(peer).await
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        start.elapsed()
    }

    /// Sets the block signer; returns when the new signer is in force.
    pub async fn set_signer(&self, signer: Address) {
        self.network.set_signer(signer).await;
        // Commands are handled in order, so the signer is set when this report arrives.
        self.network.report().await.unwrap();
    }

    /// Waits until the peer is charged for this reason; returns the change of the peer's score.
    pub async fn charged(&self, peer: PeerId, reason: &str) -> f64 {
        let start = Instant::now();
        loop {
            let debts = self.debts(peer).await;
            if let Some((_, change)) = debts.iter().find(|(other, _)| *other == reason) {
                return *change;
            }
            assert!(start.elapsed() < PATIENCE, "not {reason}: {debts:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Whether the ledger has a ban of the peer.
    pub async fn has_banned(&self, peer: PeerId) -> bool {
        let verdicts = self.verdicts(peer).await;
        verdicts
            .iter()
            .any(|(_, change)| matches!(change, LedgerChange::Banned { .. }))
    }

    /// The charges of a peer in the ledger: each reason with the change of the score.
    pub async fn debts(&self, peer: PeerId) -> Vec<(&'static str, f64)> {
        let entries = self.network.ledger(Some(peer), 100).await.unwrap();
        let lines = entries
            .into_iter()
            .rev()
            .filter_map(|entry| match entry.change {
                LedgerChange::Score(change) => Some((entry.reason, change)),
                _ => None,
            });
        lines.collect()
    }

    pub async fn receives(&self, block: &Payload) {
        eventually(Duration::from_secs(15), || self.chain.has(block)).await;
    }

    pub async fn stop(self) {
        self.token.cancel();
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

/// Waits until the condition is true; returns the time that took.
#[track_caller]
pub fn eventually(
    limit: Duration,
    mut condition: impl FnMut() -> bool,
) -> impl Future<Output = Duration> {
    let caller = std::panic::Location::caller();
    async move {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < limit, "not within {limit:?}, at {caller}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        start.elapsed()
    }
}

/// A peer that runs other code than ours, and sends any bytes that a test gives it.
#[derive(NetworkBehaviour)]
pub struct RawBehaviour {
    pub gossip: gossipsub::Behaviour,
    pub streams: libp2p_stream::Behaviour,
    pub identify: identify::Behaviour,
}

pub struct Raw(pub Swarm<RawBehaviour>);

impl Raw {
    pub async fn connected_to(node: &Node, signed: bool) -> Self {
        let mut raw = Self::new(signed);
        raw.reconnect(node).await;
        raw
    }

    pub fn id(&self) -> PeerId {
        *self.0.local_peer_id()
    }

    pub fn new(signed: bool) -> Self {
        let swarm = SwarmBuilder::with_existing_identity(Keypair::generate_secp256k1())
            .with_tokio()
            .with_tcp(
                tcp::Config::new().nodelay(true),
                noise::Config::new,
                yamux::Config::default,
            )
            .unwrap()
            .with_quic()
            .with_behaviour(|key| {
                let config = gossipsub::ConfigBuilder::default()
                    .max_transmit_size(64 << 20)
                    .validation_mode(gossipsub::ValidationMode::None)
                    .message_id_fn(|message| gossipsub::MessageId::new(&message.data))
                    .build()
                    .unwrap();
                let author = if signed {
                    gossipsub::MessageAuthenticity::Signed(key.clone())
                } else {
                    gossipsub::MessageAuthenticity::Anonymous
                };
                let gossip = gossipsub::Behaviour::new(author, config).unwrap();
                let identify =
                    identify::Behaviour::new(identify::Config::new(String::new(), key.public()));
                Ok(RawBehaviour {
                    gossip,
                    streams: libp2p_stream::Behaviour::new(),
                    identify,
                })
            })
            .unwrap()
            .with_swarm_config(|config| {
                config.with_idle_connection_timeout(Duration::from_secs(60))
            })
            .build();
        Self(swarm)
    }

    /// Dials the node. Returns whether the connection is admitted and lasts until the node has
    /// announced its topics.
    pub async fn is_let_in(&mut self, node: &Node) -> bool {
        let options = DialOpts::from(node.address.clone());
        // Events of earlier connections may still arrive: compare the connection's id.
        let id = options.connection_id();
        self.0.dial(options).unwrap();
        let (mut connected, mut let_in) = (false, false);
        self.until(|event| match event {
            SwarmEvent::ConnectionEstablished { connection_id, .. } => {
                connected |= *connection_id == id;
                false
            }
            SwarmEvent::Behaviour(RawBehaviourEvent::Gossip(gossipsub::Event::Subscribed {
                ..
            })) => {
                let_in |= connected;
                let_in
            }
            SwarmEvent::ConnectionClosed { connection_id, .. }
            | SwarmEvent::OutgoingConnectionError { connection_id, .. } => *connection_id == id,
            _ => false,
        })
        .await;
        let_in
    }

    /// Waits until the node has no connection to this peer.
    pub async fn gone_from(&mut self, node: &Node) {
        let id = self.id();
        let network = node.network.clone();
        self.drive(eventually(PATIENCE, || {
            network.peers().iter().all(|peer| peer.id != id)
        }))
        .await;
    }

    /// Dials the node and waits until the node has announced its topics.
    pub async fn reconnect(&mut self, node: &Node) {
        self.0.dial(node.address.clone()).unwrap();
        self.until(|event| {
            matches!(event, SwarmEvent::Behaviour(RawBehaviourEvent::Gossip(gossipsub::Event::Subscribed { topic, .. }))
                if *topic == v4_topic())
        })
        .await;
    }

    pub fn publish(&mut self, data: Vec<u8>) {
        self.0
            .behaviour_mut()
            .gossip
            .publish(v4_topic(), data)
            .unwrap();
    }

    /// Opens a gossip stream and sends these bytes on it. The stream stays open until the returned
    /// value is dropped.
    pub async fn send_frame(&mut self, node: &Node, bytes: Vec<u8>) -> libp2p::Stream {
        self.try_send(node, GOSSIP, &bytes).await.unwrap()
    }

    pub async fn open(&mut self, node: &Node, protocol: &str) -> libp2p::Stream {
        self.try_send(node, protocol, &[]).await.unwrap()
    }

    /// Opens a stream and sends these bytes on it; `None` if the node refuses the stream.
    pub async fn try_send(
        &mut self,
        node: &Node,
        protocol: &str,
        bytes: &[u8],
    ) -> Option<libp2p::Stream> {
        let (mut control, peer) = (
            self.0.behaviour().streams.new_control(),
            node.network.local_peer_id(),
        );
        let protocol = StreamProtocol::try_from_owned(protocol.to_owned()).unwrap();
        let sent = async move {
            let mut stream = control.open_stream(peer, protocol).await.ok()?;
            stream.write_all(bytes).await.ok()?;
            stream.flush().await.ok()?;
            Some(stream)
        };
        self.drive(sent).await
    }

    pub async fn until(&mut self, mut seen: impl FnMut(&SwarmEvent<RawBehaviourEvent>) -> bool) {
        let wait = async { while !seen(&self.0.select_next_some().await) {} };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .expect("the raw peer's event came");
    }

    /// Runs the raw peer's swarm until the future is ready.
    pub async fn drive<T>(&mut self, until: impl Future<Output = T>) -> T {
        tokio::pin!(until);
        loop {
            tokio::select! {
                ready = &mut until => return ready,
                _ = self.0.select_next_some() => {}
            }
        }
    }

    /// Publishes a block and waits until the node's chain has the block.
    pub async fn delivers(&mut self, node: &Node, block: &Payload) {
        self.publish(message(block));
        self.drive(eventually(PATIENCE, || node.chain.has(block)))
            .await;
    }

    /// The streams of this protocol that the node opens to the raw peer.
    pub fn accept(&self, protocol: &str) -> IncomingStreams {
        let protocol = StreamProtocol::try_from_owned(protocol.to_owned()).unwrap();
        let mut control = self.0.behaviour().streams.new_control();
        control.accept(protocol).unwrap()
    }

    /// The streams for `payload_by_number` that the node opens to the raw peer.
    pub fn accept_numbers(&self) -> IncomingStreams {
        self.accept(&reqresp::protocol_ids(CHAIN)[0])
    }
}

/// A gossip frame with these messages, on the topic of V4.
pub fn frame(messages: &[Vec<u8>]) -> Vec<u8> {
    frame_on(&gossip::topic(CHAIN, PayloadVersion::V4), messages)
}

/// A gossip frame with these messages, on this topic.
pub fn frame_on(topic: &str, messages: &[Vec<u8>]) -> Vec<u8> {
    let field = |tag: u8, bytes: &[u8]| [&[tag][..], &with_length(bytes)].concat();
    let message = |data: &Vec<u8>| {
        field(
            0x12,
            &[field(0x12, data), field(0x22, topic.as_bytes())].concat(),
        )
    };
    with_length(&messages.iter().flat_map(message).collect::<Vec<u8>>())
}

fn with_length(bytes: &[u8]) -> Vec<u8> {
    let (mut length, mut out) = (bytes.len(), Vec::new());
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
    out
}

pub fn v4_topic() -> gossipsub::TopicHash {
    gossipsub::TopicHash::from_raw(gossip::topic(CHAIN, PayloadVersion::V4))
}
