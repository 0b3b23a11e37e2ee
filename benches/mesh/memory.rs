//! The memory of a swarm with many peers and full blocks: resident memory under load, minus
//! resident memory of the same process before the swarm was started.

use crate::{
    node::{Node, Source, ask, config, signed},
    support::part::Part,
};
use std::time::{Duration, Instant};
use tokio::{sync::mpsc, time::interval};

const BLOCK_TIME: Duration = Duration::from_secs(1);
/// Connections of each peer to other peers, so that blocks reach the node from many peers.
const NEIGHBOURS: usize = 4;
const BAR: f64 = 60.0;

pub async fn run(peers: usize, bytes: usize, time: Duration) {
    let (arrivals, mut arrived) = mpsc::channel(1024);
    tokio::spawn(async move { while arrived.recv().await.is_some() {} });
    let mut subject = Part::start("subject", &["light"]);
    let address: starling_p2p::Multiaddr = subject.line().parse().expect("an address");
    let alone = ask(&mut subject);
    let mut all: Vec<Node> = Vec::new();
    for index in 0..peers {
        let known = all
            .iter()
            .rev()
            .take(NEIGHBOURS)
            .map(|node| node.address.clone());
        let known = known.chain([address.clone()]).collect();
        all.push(Node::start(config(known), index, arrivals.clone()).await);
    }
    for node in &all {
        node.meshed(NEIGHBOURS).await;
    }
    let connected = ask(&mut subject);
    assert_eq!(connected.peers, peers, "all are connected");
    let (mut source, mut highest) = (Source::new(bytes), 0.0f64);
    let (mut ticks, begun) = (interval(BLOCK_TIME), Instant::now());
    while begun.elapsed() < time {
        ticks.tick().await;
        let block = source.next();
        all[0].publish(&block, signed(&block)).await;
        highest = highest.max(ask(&mut subject).resident);
    }
    let end = ask(&mut subject);
    for node in all {
        node.stop().await;
    }
    let mb = |bytes: f64| bytes / f64::from(1 << 20);
    println!(
        "{peers} peers, blocks of {bytes} bytes, one a second for {} seconds; {:?}",
        time.as_secs(),
        end.verdicts
    );
    println!(
        "  resident without swarm {:.1} MB, with one that has no peers {:.1} MB, with peers {:.1} MB, at the end {:.1} MB, at most {:.1} MB",
        mb(end.before),
        mb(alone.resident),
        mb(connected.resident),
        mb(end.resident),
        mb(highest)
    );
    println!(
        "the swarm takes {:.1} MB at the end, {:.1} MB at most (bar {BAR:.0} MB)\n",
        mb(end.resident - end.before),
        mb(highest - end.before)
    );
}
