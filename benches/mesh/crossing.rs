//! A block crosses a mesh: from the publisher's `publish` to the last node's chain.

use crate::{
    node::{Arrival, Node, PATIENCE, Source, config, signed},
    parts,
    support::{Times, ms, print_times, process},
};
use starling_proto::payload::Payload;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// Pause between two blocks, so that each finds idle nodes. No divisor of the gossip heartbeat.
const PAUSE: Duration = Duration::from_millis(137);
/// Duration of the baseline: the nodes without blocks.
const IDLE: Duration = Duration::from_secs(5);
/// Blocks that are not counted: the first find cold caches.
const WARM: usize = 10;
/// Peers in the mesh of each node; a full mesh has more.
const MESHED: usize = 5;
/// Bar: the 99th percentile of small blocks.
const BAR: Duration = Duration::from_millis(30);
/// Bar: large blocks, as a multiple of the time of all nodes' checks.
const CHECKS: f64 = 2.0;

pub async fn run(nodes: usize, blocks: usize, bytes: usize) {
    let check = parts::check_time(bytes);
    let (arrivals, mut arrived) = mpsc::channel(nodes * 4);
    let mesh = mesh_of(nodes, arrivals).await;
    let idle = idle_load().await;

    let mut source = Source::new(bytes);
    let (mut first, mut last) = (Times::default(), Times::default());
    let (mut begun, mut spent) = (Instant::now(), process::processor());
    for round in 0..WARM + blocks {
        if round == WARM {
            (begun, spent) = (Instant::now(), process::processor());
        }
        tokio::time::sleep(PAUSE).await;
        // Another publisher each time: its place in the mesh is chance.
        let times = cross(&mesh, round % nodes, &source.next(), &mut arrived).await;
        if round >= WARM {
            first.push(times.iter().min().copied().unwrap_or_default());
            last.push(times.iter().max().copied().unwrap_or_default());
        }
    }
    let wall = begun.elapsed().as_secs_f64();
    let spent = (process::processor() - spent).as_secs_f64() - idle * wall;
    let copies = stop(mesh).await;

    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let each = spent / blocks as f64;
    println!("{blocks} blocks of {bytes} bytes through a mesh of {nodes} nodes on {cores} cores");
    print_times("publish to accepted on the first node", &first);
    print_times("publish to accepted on the last node", &last);
    println!(
        "  processor time {:.2} ms a block and node, of which its check {:.2} ms; all nodes' on all cores {:.2} ms a block; idle {:.0} % of a core",
        each * 1e3 / nodes as f64,
        ms(check),
        each * 1e3 / cores as f64,
        idle * 100.0
    );
    println!("  {copies:.1} copies of a block come to a node");
    let checks = nodes as f64 / cores as f64 * ms(check);
    println!(
        "p99 {:.2} ms; the bar of a small block is {:.0} ms, that of a large one {:.2} ms ({CHECKS} x the checks of all nodes)\n",
        ms(last.percentile(99)),
        ms(BAR),
        CHECKS * checks
    );
}

/// Nodes that report the arrival of blocks, each in the meshes of others.
async fn mesh_of(nodes: usize, arrivals: mpsc::Sender<Arrival>) -> Vec<Node> {
    let mut mesh: Vec<Node> = Vec::new();
    for index in 0..nodes {
        let peers = mesh.iter().map(|node| node.address.clone()).collect();
        mesh.push(Node::start(config(peers), index, arrivals.clone()).await);
    }
    for node in &mesh {
        node.meshed(MESHED.min(nodes - 1)).await;
    }
    mesh
}

/// Cores that this process uses without blocks.
async fn idle_load() -> f64 {
    let (begun, spent) = (Instant::now(), process::processor());
    tokio::time::sleep(IDLE).await;
    (process::processor() - spent).as_secs_f64() / begun.elapsed().as_secs_f64()
}

/// Publishes a block, and gives the times until the other nodes had it.
async fn cross(
    mesh: &[Node],
    publisher: usize,
    block: &Arc<Payload>,
    arrived: &mut mpsc::Receiver<Arrival>,
) -> Vec<Duration> {
    let signature = signed(block);
    let sent = Instant::now();
    mesh[publisher].publish(block, signature).await;
    let mut times = Vec::new();
    while times.len() < mesh.len() - 1 {
        let Arrival { node, hash, at } = tokio::time::timeout(PATIENCE, arrived.recv())
            .await
            .expect("it arrives")
            .expect("nodes");
        assert!(node != publisher && hash == block.hash);
        times.push(at.saturating_duration_since(sent));
    }
    times
}

/// Stops the nodes, and gives the mean number of copies of a block that came to one.
async fn stop(mesh: Vec<Node>) -> f64 {
    let mut copies = Vec::new();
    for node in mesh {
        let report = node.network.report().await.expect("the swarm runs");
        copies.extend(report.blocks.iter().map(|block| block.copies as f64));
        node.stop().await;
    }
    copies.iter().sum::<f64>() / copies.len().max(1) as f64
}
