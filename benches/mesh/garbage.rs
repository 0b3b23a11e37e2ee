//! Cost of a thousand garbage messages a second for the node that receives them, and the delay of
//! blocks that this node relays meanwhile. The delay is counted from the publisher to the last
//! observer; publisher and observers make up the node's mesh.

use crate::{
    hostile::{self, KINDS},
    node::{Arrival, Node, PATIENCE, Source, ask, config, signed},
    support::{Times, ms, part::Part, print_times},
};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const A_SECOND: u32 = 1000;
/// Number of the measured node's peers, which fill its mesh.
const NEIGHBOURS: usize = 8;
/// Pause between two blocks.
const PAUSE: Duration = Duration::from_millis(231);
/// Bar: highest processor time that garbage costs, as a share of one core.
const BAR: f64 = 0.2;
/// Bar: longest additional delay of a block, compared with the median without garbage.
const DELAY: Duration = Duration::from_millis(50);
/// Duration of the baseline, in which the measured node receives no garbage.
const QUIET: Duration = Duration::from_secs(10);

pub async fn run(bytes: usize, time: Duration) {
    for (scoring, what) in [
        ("none", "nobody is banned"),
        (
            "light",
            "the peer is banned and comes back ten times a second",
        ),
    ] {
        println!(
            "{A_SECOND} messages of garbage a second, about {bytes} bytes each, {} kinds; {what}",
            KINDS.len()
        );
        measure(scoring, bytes, time).await;
    }
}

async fn measure(scoring: &str, bytes: usize, time: Duration) {
    let mut victim = Part::start("subject", &[scoring]);
    let address: starling_p2p::Multiaddr = victim.line().parse().expect("an address");
    let (arrivals, mut arrived) = mpsc::channel(16);
    let publisher = Node::start(config(vec![address.clone()]), 0, arrivals.clone()).await;
    let mut observers = Vec::new();
    for index in 1..NEIGHBOURS {
        observers.push(Node::start(config(vec![address.clone()]), index, arrivals.clone()).await);
    }
    for node in observers.iter().chain([&publisher]) {
        node.meshed(1).await;
    }
    let mut source = Source::new(bytes);

    let before = ask(&mut victim);
    let quiet = blocks(&publisher, &mut arrived, &mut source, QUIET).await;
    let begin = ask(&mut victim);
    let idle = (begin.processor - before.processor) / QUIET.as_secs_f64();
    let begun = Instant::now();
    let flooding = tokio::spawn(hostile::flood(address, bytes, A_SECOND, time));
    let meanwhile = blocks(&publisher, &mut arrived, &mut source, time).await;
    let flood = flooding.await.expect("it floods");
    let seconds = begun.elapsed().as_secs_f64();
    let end = ask(&mut victim);
    let spent = (end.processor - begin.processor) / seconds - idle;
    publisher.stop().await;
    for observer in observers {
        observer.stop().await;
    }

    print_times("a block through the node, quiet", &quiet);
    print_times("a block through the node, meanwhile", &meanwhile);
    println!(
        "  {} messages sent, hung up on after {:?}, {} redials",
        flood.sent, flood.banned_after, flood.redials
    );
    println!("  verdicts {:?}", end.verdicts);
    let later = ms(meanwhile.percentile(100)) - ms(quiet.percentile(50));
    println!(
        "{:.1} % of a core (bar {:.0} %), besides {:.1} % without garbage; the latest block {later:.1} ms later than the quiet median (bar {:.0} ms)\n",
        spent * 100.0,
        BAR * 100.0,
        idle * 100.0,
        ms(DELAY)
    );
}

/// Publishes blocks for `time`, and returns each block's delay until the last observer has it.
async fn blocks(
    publisher: &Node,
    arrived: &mut mpsc::Receiver<Arrival>,
    source: &mut Source,
    time: Duration,
) -> Times {
    let (mut times, begun) = (Times::default(), Instant::now());
    while begun.elapsed() < time {
        tokio::time::sleep(PAUSE).await;
        let block = source.next();
        let signature = signed(&block);
        let sent = Instant::now();
        publisher.publish(&block, signature).await;
        let mut last = Duration::ZERO;
        for _ in 1..NEIGHBOURS {
            let arrival = tokio::time::timeout(PATIENCE, arrived.recv())
                .await
                .expect("it arrives")
                .expect("observers");
            assert_eq!(arrival.hash, block.hash);
            last = last.max(arrival.at.saturating_duration_since(sent));
        }
        times.push(last);
    }
    times
}
