//! Gossip over loopback: the time from the sequencer's `publish` until the block is the head of a
//! replica's chain. Two swarms with their chains run in one process. The import of the same block
//! alone, and its bytes over a bare TCP connection, are timed for comparison.
//!
//! Sizes: `STARLING_BENCH_BLOCKS` (300), `STARLING_BENCH_TRANSFERS` per block (100),
//! `STARLING_BENCH_ACCOUNTS` (10000).

mod support;

use starling::chain::Chain;
use starling_p2p::{ChainGenesis, Multiaddr, Network, Provenance};
use starling_proto::{payload::Payload, sign};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};
use support::{
    Ground, Times, ms, print_times, size,
    swarm::{self, ChainSwarm},
};
use tokio_util::sync::CancellationToken;

/// Pause between two blocks, so that each finds idle nodes. It is no divisor of the gossip
/// heartbeat.
const PAUSE: Duration = Duration::from_millis(37);
/// Bar: p99 of the delay by gossip minus p99 of the import alone.
const BAR: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(20);

/// Times of the same blocks, measured in several ways.
#[derive(Default)]
struct Measured {
    /// Time from `publish` until the block is the replica's head.
    gossip: Times,
    /// Time of the import without gossip.
    import: Times,
    /// Time by gossip minus time of the import alone, for each block.
    later: Times,
    /// Time of the block's bytes over a bare TCP connection.
    bare: Times,
    /// Encoded size of all blocks together.
    bytes: usize,
}

fn main() {
    let [blocks, transfers, accounts] = [("BLOCKS", 300), ("TRANSFERS", 100), ("ACCOUNTS", 10_000)]
        .map(|(name, default)| size(&format!("STARLING_BENCH_{name}"), default));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut ground = Ground::new(support::unix_now() - blocks as u64 - 10, accounts);
    let [sequencer, replica, alone] =
        ["sequencer", "replica", "alone"].map(|name| ground.open(&folder.path().join(name)));
    let chains = [&sequencer.0, &replica.0, &alone.0];
    let measured = runtime.block_on(measure(&mut ground, chains, blocks, transfers));
    for (chain, threads) in [sequencer, replica, alone] {
        drop(chain);
        threads.stop().expect("the chain is stored");
    }
    println!(
        "gossip of {blocks} blocks of {transfers} transfers over loopback, {} bytes each",
        measured.bytes / blocks.max(1)
    );
    measured.print();
}

/// Builds blocks on the sequencer's chain. Each is gossiped to the replica, and then imported alone
/// into a third chain.
async fn measure(
    ground: &mut Ground,
    [sequencer, replica, alone]: [&Chain; 3],
    blocks: usize,
    transfers: usize,
) -> Measured {
    let token = CancellationToken::new();
    let first = start(ground, sequencer, vec![], &token);
    let second = start(ground, replica, vec![first.address().await], &token);
    connected(&[&first.network, &second.network]).await;

    let (mut measured, mut wire) = (Measured::default(), Wire::new());
    for _ in 0..blocks {
        let block = ground.extend(sequencer, transfers).await;
        let encoded = block.to_wire(ground.rollup.forks.payload_version(block.timestamp()));
        let signature = sign::sign(&support::sequencer(), ground.rollup.l2_chain_id, &encoded);
        measured.bytes += encoded.len();
        tokio::time::sleep(PAUSE).await;
        let by_gossip = publish(&first.network, replica, &block, signature).await;
        tokio::time::sleep(PAUSE).await;
        let by_hand = import(alone, &block).await;
        measured.gossip.push(by_gossip);
        measured.import.push(by_hand);
        measured.later.push(by_gossip.saturating_sub(by_hand));
        measured.bare.push(wire.send(&encoded));
    }
    token.cancel();
    first.ended().await;
    second.ended().await;
    measured
}

fn start(
    ground: &Ground,
    chain: &Chain,
    static_peers: Vec<Multiaddr>,
    token: &CancellationToken,
) -> ChainSwarm {
    let rollup = &ground.rollup;
    let genesis = ChainGenesis {
        id: rollup.genesis.l2,
        time: rollup.genesis.l2_time,
        block_time: rollup.block_time,
    };
    let config = swarm::config(rollup, genesis, static_peers);
    ChainSwarm::start(chain, genesis.id, config, token)
}

/// Time in which a chain without a swarm imports the block.
async fn import(chain: &Chain, block: &Arc<Payload>) -> Duration {
    let tip = block.number();
    let begun = Instant::now();
    chain
        .follow(block.clone(), Provenance::Linked { tip })
        .await
        .expect("the chain runs");
    let took = begun.elapsed();
    assert_eq!(chain.view().head(), block.id());
    took
}

impl Measured {
    fn print(&self) {
        let (gossip, import) = (&self.gossip, &self.import);
        print_times("publish to head on the replica", gossip);
        print_times("import alone", import);
        print_times("difference, block by block", &self.later);
        print_times("the same bytes over bare TCP", &self.bare);
        let least = import.percentile(50) + self.bare.percentile(50);
        println!(
            "\nratio of the median to import alone and bare TCP: {:.2}",
            gossip.percentile(50).as_secs_f64() / least.as_secs_f64()
        );
        let above = ms(gossip.percentile(99)) - ms(import.percentile(99));
        let strict = ms(gossip.percentile(99)) - ms(import.percentile(50));
        println!(
            "p99 above the p99 of import: {above:.2} ms; above its median: {strict:.2} ms; the bar is {:.0} ms",
            ms(BAR)
        );
    }
}

/// Gossips a block and waits until it is the head of the replica's chain.
async fn publish(
    network: &Network,
    replica: &Chain,
    block: &Arc<Payload>,
    signature: [u8; 65],
) -> Duration {
    let mut heads = replica.heads();
    let begun = Instant::now();
    network.publish(block.clone(), signature).await;
    let arrived = heads.wait_for(|heads| heads.head.hash == block.hash);
    tokio::time::timeout(PATIENCE, arrived)
        .await
        .expect("the block arrives")
        .expect("the replica runs");
    begun.elapsed()
}

/// Waits until both swarms are connected and have announced their topics.
async fn connected(networks: &[&Network]) {
    let begun = Instant::now();
    while networks.iter().any(|network| network.peer_count() == 0) {
        assert!(begun.elapsed() < PATIENCE, "the swarms do not connect");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The mesh is built within two heartbeats.
    tokio::time::sleep(Duration::from_secs(2)).await;
}

/// A bare TCP connection over loopback. The receiver acknowledges each message.
struct Wire {
    near: TcpStream,
}

impl Wire {
    fn new() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let near =
            TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (mut far, _) = listener.accept().expect("a connection");
        for end in [&near, &far] {
            end.set_nodelay(true).expect("an option of TCP");
        }
        std::thread::spawn(move || {
            let mut length = [0; 8];
            while far.read_exact(&mut length).is_ok() {
                let mut bytes = vec![0; u64::from_be_bytes(length) as usize];
                if far.read_exact(&mut bytes).is_err() || far.write_all(&[1]).is_err() {
                    return;
                }
            }
        });
        Self { near }
    }

    /// Sends a message. Returns the time until it is acknowledged.
    fn send(&mut self, bytes: &[u8]) -> Duration {
        let message = [&(bytes.len() as u64).to_be_bytes()[..], bytes].concat();
        let begun = Instant::now();
        self.near.write_all(&message).expect("the far end reads");
        self.near.read_exact(&mut [0]).expect("the far end answers");
        begun.elapsed()
    }
}
