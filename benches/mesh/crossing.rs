//! Time in which a block crosses a mesh, from the publisher's `publish` to acceptance by the last
//! node.

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

/// Pause between two blocks, so that each finds idle nodes. It is no divisor of the gossip
/// heartbeat.
const PAUSE: Duration = Duration::from_millis(137);
/// Duration of the baseline, in which the nodes receive no blocks.
const IDLE: Duration = Duration::from_secs(5);
/// Number of first blocks that are not counted, because caches are cold.
const WARM: usize = 10;
/// Mesh peers that each node must have before the measurement; a full mesh has more.
const MESHED: usize = 5;
/// Bar: p99 of the crossing time of small blocks.
const BAR: Duration = Duration::from_millis(30);
/// Bar: p99 of large blocks, as a multiple of the time that all nodes need to check the block.
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
        // The publisher rotates, since a node's position in the mesh is random.
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

/// Starts nodes that report the arrival of blocks, and connects them to a mesh.
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

/// Processor time of this process without blocks, as a share of one core.
async fn idle_load() -> f64 {
    let (begun, spent) = (Instant::now(), process::processor());
    tokio::time::sleep(IDLE).await;
    (process::processor() - spent).as_secs_f64() / begun.elapsed().as_secs_f64()
}

/// Publishes a block, and returns the time until each of the other nodes had received it.
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

/// Stops the nodes, and returns the mean number of copies of a block that a node received.
async fn stop(mesh: Vec<Node>) -> f64 {
    let mut copies = Vec::new();
    for node in mesh {
        let report = node.network.report().await.expect("the swarm runs");
        copies.extend(report.blocks.iter().map(|block| block.copies as f64));
        node.stop().await;
    }
    copies.iter().sum::<f64>() / copies.len().max(1) as f64
}
