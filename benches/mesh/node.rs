//! A swarm without a chain, which accepts every block as valid, and a source of blocks for it.

use crate::support::{self, process};
use alloy_consensus::Header;
use alloy_primitives::{B256, Bytes, b256};
use alloy_trie::root::ordered_trie_root_encoded;
use metrics_exporter_prometheus::PrometheusBuilder;
use parking_lot::Mutex;
use rand::RngCore;
use starling_p2p::{
    Blocks, ChainGenesis, ChainHeads, Config, Keypair, Multiaddr, Network, Policy, Scoring,
    Service, Settled,
};
use starling_proto::{
    fork::{Fork, ForkSchedule},
    payload::{BlockId, Payload, PayloadVersion},
    sign,
};
use std::{
    collections::HashSet,
    io::{BufRead, stdin},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

pub const CHAIN: u64 = 901;
pub const VERSION: PayloadVersion = PayloadVersion::V4;
/// Bytes of one transaction, about the size of a token transfer.
const TRANSACTION: usize = 160;
/// Bytes of a payload without its transactions.
const FIXED: usize = 600;
pub const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A genesis block that is an hour old, so that the timestamps of many blocks are in the past.
fn genesis() -> ChainGenesis {
    ChainGenesis {
        id: BlockId {
            hash: B256::repeat_byte(9),
            number: 0,
        },
        time: support::unix_now() - 3600,
        block_time: 1,
    }
}

pub fn forks() -> ForkSchedule {
    ForkSchedule::from_genesis(Fork::Jovian)
}

/// Makes a chain of blocks with current timestamps, whose transactions are noise.
pub struct Source {
    parent: BlockId,
    bytes: usize,
}

impl Source {
    /// `bytes`: approximate number of signed bytes of each block.
    pub fn new(bytes: usize) -> Self {
        Self {
            parent: genesis().id,
            bytes,
        }
    }

    pub fn next(&mut self) -> Arc<Payload> {
        let block = self.block(support::unix_now());
        self.parent = block.id();
        Arc::new(block)
    }

    /// A block with this timestamp (Unix seconds) on top of the newest block.
    pub fn block(&self, timestamp: u64) -> Payload {
        let count = self.bytes.saturating_sub(FIXED) / (TRANSACTION + 4);
        let transactions: Vec<Bytes> = (0..count).map(|_| noise(TRANSACTION).into()).collect();
        let header = Header {
            parent_hash: self.parent.hash,
            number: self.parent.number + 1,
            timestamp,
            transactions_root: ordered_trie_root_encoded(&transactions),
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
        Payload::sealed(header, transactions)
    }
}

pub fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    rand::rng().fill_bytes(&mut noise);
    noise
}

pub fn signed(block: &Payload) -> [u8; 65] {
    sign::sign(&support::sequencer(), CHAIN, &block.to_wire(VERSION))
}

/// The hashes of the blocks that a node has received.
#[derive(Default)]
struct Known(Mutex<HashSet<B256>>);

impl Blocks for Known {
    fn knows(&self, hash: B256) -> bool {
        hash == genesis().id.hash || self.0.lock().contains(&hash)
    }

    fn block(&self, _: u64) -> Option<Payload> {
        None
    }
}

/// A block that a node's swarm accepted and would pass to the chain.
pub struct Arrival {
    pub node: usize,
    pub hash: B256,
    pub at: Instant,
}

/// A running swarm.
pub struct Node {
    pub network: Network,
    pub address: Multiaddr,
    known: Arc<Known>,
    token: CancellationToken,
    tasks: JoinSet<()>,
}

pub fn config(static_peers: Vec<Multiaddr>) -> Config {
    Config {
        listen_ip: [127, 0, 0, 1].into(),
        listen_tcp: 0,
        static_peers,
        unsafe_block_signer: Some(sign::address(&support::sequencer())),
        ..Config::new(Keypair::generate_secp256k1(), CHAIN, forks(), genesis())
    }
}

impl Node {
    /// `index` identifies the node in the arrivals that it reports.
    pub async fn start(config: Config, index: usize, arrivals: mpsc::Sender<Arrival>) -> Self {
        let known = Arc::new(Known::default());
        let (service, network, mut events) =
            Service::new(config, known.clone()).expect("the swarm starts");
        let token = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(service.run(token.clone()));
        let (follower, followed) = (network.clone(), known.clone());
        tasks.spawn(async move {
            while let Some(event) = events.recv().await {
                let head = event.payload.id();
                let _ = arrivals
                    .send(Arrival {
                        node: index,
                        hash: head.hash,
                        at: Instant::now(),
                    })
                    .await;
                followed.0.lock().insert(head.hash);
                follower.settled(head.hash, Settled::Ok).await;
                follower
                    .heads(ChainHeads {
                        head,
                        safe: genesis().id,
                    })
                    .await;
            }
        });
        let address = network
            .listen_addrs()
            .wait_for(|all| !all.is_empty())
            .await
            .expect("the swarm runs")[0]
            .clone();
        Self {
            network,
            address,
            known,
            token,
            tasks,
        }
    }

    pub async fn publish(&self, block: &Arc<Payload>, signature: [u8; 65]) {
        self.known.0.lock().insert(block.hash);
        self.network.publish(block.clone(), signature).await;
    }

    /// Waits until the node's mesh of the newest topic has at least `least` peers.
    pub async fn meshed(&self, least: usize) {
        let begun = Instant::now();
        let topic = starling_proto::gossip::topic(CHAIN, VERSION);
        loop {
            let report = self.network.report().await.expect("the swarm runs");
            if report
                .mesh
                .iter()
                .any(|mesh| mesh.topic == topic && mesh.mesh.len() >= least)
            {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "no mesh of {least} peers");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    pub async fn stop(self) {
        self.token.cancel();
        self.tasks.join_all().await;
    }
}

/// The measured node, in a separate process. Prints its address. Then it replies to each input line
/// with its processor time in seconds, its resident bytes now and before the swarm began, its
/// number of peers, and the verdicts that it has reached on messages.
pub async fn subject(scoring: &str, peers: &[&str]) {
    let metrics = PrometheusBuilder::new()
        .install_recorder()
        .expect("the first recorder");
    let (before, _) = process::resident();
    let scoring = if scoring == "none" {
        Scoring::None
    } else {
        Scoring::Light
    };
    let peers = peers
        .iter()
        .map(|peer| peer.parse().expect("an address"))
        .collect();
    let config = Config {
        policy: Policy {
            scoring,
            ..Policy::default()
        },
        ..config(peers)
    };
    let (arrivals, mut arrived) = mpsc::channel(64);
    let node = Node::start(config, 0, arrivals).await;
    let drain = tokio::spawn(async move { while arrived.recv().await.is_some() {} });
    println!("{}", node.address);
    let network = node.network.clone();
    let answering = tokio::task::spawn_blocking(move || {
        for _ in stdin().lock().lines() {
            let (now, _) = process::resident();
            let spent = process::processor().as_secs_f64();
            println!(
                "{spent} {now} {before} {} {}",
                network.peer_count(),
                verdicts(&metrics.render())
            );
        }
    });
    answering.await.expect("it answers until it need not");
    node.stop().await;
    let _ = drain.await;
}

/// The counts of gossip verdicts, each as `verdict=count`.
fn verdicts(metrics: &str) -> String {
    let lines = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("starling_p2p_gossip_total{verdict=\""));
    lines
        .map(|line| line.replace("\"} ", "="))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Measurements reported by a subject.
pub struct Answer {
    pub processor: f64,
    pub resident: f64,
    pub before: f64,
    pub peers: usize,
    pub verdicts: Vec<(String, u64)>,
}

/// Requests the measurements of a subject.
pub fn ask(subject: &mut support::part::Part) -> Answer {
    subject.say("");
    let line = subject.line();
    let mut words = line.split_whitespace();
    let mut figure = || {
        words
            .next()
            .and_then(|word| word.parse::<f64>().ok())
            .expect("a figure")
    };
    let (processor, resident, before, peers) = (figure(), figure(), figure(), figure() as usize);
    let verdicts = words.filter_map(|word| word.split_once('='));
    let verdicts = verdicts
        .map(|(name, count)| (name.to_owned(), count.parse().expect("a count")))
        .collect();
    Answer {
        processor,
        resident,
        before,
        peers,
        verdicts,
    }
}
