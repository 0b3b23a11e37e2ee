//! Gossip over loopback: from the sequencer's `publish` to the head of a replica's chain, with two
//! swarms and their chains in one process, beside the time that the import of the same block takes
//! alone and the time its bytes take over a bare TCP connection.
//!
//! Sizes: `STARLING_BENCH_BLOCKS` (300), `STARLING_BENCH_TRANSFERS` per block (100),
//! `STARLING_BENCH_ACCOUNTS` (10000).

mod support;

use starling::{chain::Chain, follow, rollup::engine::Engine};
use starling_p2p::{ChainGenesis, Config, Keypair, Multiaddr, Network, Provenance, Service};
use starling_proto::{payload::Payload, sign};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};
use support::{Ground, Times, ms, print_times, size};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Pause between two blocks, so that each finds idle nodes. No divisor of the gossip heartbeat.
const PAUSE: Duration = Duration::from_millis(37);
/// Bar: delay from the import alone to the head by gossip, between the 99th percentiles.
const BAR: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(20);

/// A chain and the swarm that feeds it.
struct Node {
    network: Network,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Node {
    fn start(
        chain: &Chain,
        ground: &Ground,
        static_peers: Vec<Multiaddr>,
        token: &CancellationToken,
    ) -> Self {
        let rollup = &ground.rollup;
        let genesis = ChainGenesis {
            id: rollup.genesis.l2,
            time: rollup.genesis.l2_time,
            block_time: rollup.block_time,
        };
        let config = Config {
            listen_ip: [127, 0, 0, 1].into(),
            listen_tcp: 0,
            static_peers,
            unsafe_block_signer: Some(sign::address(&support::sequencer())),
            // The blocks have timestamps of the past, so that none has to wait for its time.
            gossip_threshold: Duration::from_secs(1 << 30),
            ..Config::new(
                Keypair::generate_secp256k1(),
                rollup.l2_chain_id,
                rollup.forks.clone(),
                genesis,
            )
        };
        let (service, network, events) =
            Service::new(config, Arc::new(chain.clone())).expect("the swarm starts");
        let mut tasks = JoinSet::new();
        let running = token.clone();
        tasks.spawn(async move {
            service.run(running).await;
            Ok(())
        });
        tasks.spawn(follow::run(
            Engine::Local(chain.clone()),
            None,
            network.clone(),
            events,
            token.clone(),
        ));
        tasks.spawn(follow::report_heads(
            Engine::Local(chain.clone()),
            network.clone(),
            rollup.genesis.l2,
            token.clone(),
        ));
        Self { network, tasks }
    }
}

fn main() {
    let [blocks, transfers, accounts] = [("BLOCKS", 300), ("TRANSFERS", 100), ("ACCOUNTS", 10_000)]
        .map(|(name, default)| size(&format!("STARLING_BENCH_{name}"), default));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut ground = Ground::new(support::unix_now() - blocks as u64 - 10, accounts);
    let [sequencer, replica, alone] =
        ["sequencer", "replica", "alone"].map(|name| ground.open(&folder.path().join(name)));

    let (mut gossip, mut import, mut later, mut bare) = (
        Times::default(),
        Times::default(),
        Times::default(),
        Times::default(),
    );
    let token = CancellationToken::new();
    let bytes = runtime.block_on(async {
        let first = Node::start(&sequencer.0, &ground, vec![], &token);
        let address = first
            .network
            .listen_addrs()
            .wait_for(|all| !all.is_empty())
            .await
            .expect("the swarm runs")[0]
            .clone();
        let second = Node::start(&replica.0, &ground, vec![address], &token);
        connected(&[&first.network, &second.network]).await;

        let mut wire = Wire::new();
        let mut bytes = 0;
        for _ in 0..blocks {
            let block = ground.extend(&sequencer.0, transfers).await;
            let encoded = block.to_wire(ground.rollup.forks.payload_version(block.timestamp()));
            let signature = sign::sign(&support::sequencer(), ground.rollup.l2_chain_id, &encoded);
            bytes += encoded.len();
            tokio::time::sleep(PAUSE).await;

            let by_gossip = publish(&first.network, &replica.0, &block, signature).await;
            tokio::time::sleep(PAUSE).await;
            let begun = Instant::now();
            alone
                .0
                .follow(
                    block.clone(),
                    Provenance::Linked {
                        tip: block.number(),
                    },
                )
                .await
                .expect("the chain runs");
            let by_hand = begun.elapsed();
            assert_eq!(alone.0.view().head(), block.id());
            gossip.push(by_gossip);
            import.push(by_hand);
            later.push(by_gossip.saturating_sub(by_hand));
            bare.push(wire.send(&encoded));
        }
        token.cancel();
        for mut node in [first, second] {
            while let Some(ended) = node.tasks.join_next().await {
                ended.expect("no task panics").expect("no task fails");
            }
        }
        bytes
    });
    for (chain, threads) in [sequencer, replica, alone] {
        drop(chain);
        threads.stop().expect("the chain is stored");
    }

    println!(
        "gossip of {blocks} blocks of {transfers} transfers over loopback, {} bytes each",
        bytes / blocks.max(1)
    );
    print_times("publish to head on the replica", &gossip);
    print_times("import alone", &import);
    print_times("difference, block by block", &later);
    print_times("the same bytes over bare TCP", &bare);
    let least = import.percentile(50) + bare.percentile(50);
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

/// A bare TCP connection over loopback, whose far end acknowledges each message.
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

    /// Time of a message and its acknowledgement.
    fn send(&mut self, bytes: &[u8]) -> Duration {
        let message = [&(bytes.len() as u64).to_be_bytes()[..], bytes].concat();
        let begun = Instant::now();
        self.near.write_all(&message).expect("the far end reads");
        self.near.read_exact(&mut [0]).expect("the far end answers");
        begun.elapsed()
    }
}
