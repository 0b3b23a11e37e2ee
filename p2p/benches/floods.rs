//! How much later a valid block is accepted while somebody attacks: from `publish` to the chain of the publisher's neighbour, which is
//! the victim. One line an attack, without it and with it, in one run.
//!
//! The attackers are those of the tests. Each has a thread of this process and comes back under another name whenever it is hung up on,
//! so a line holds what the attackers compute, too: on a machine of few cores more than the victim's share.
//!
//! Sizes: `STARLING_BENCH_BLOCKS` (24) of each half of a line; `STARLING_BENCH_ONLY` names one attack.

// Of what the tests share this uses a part.
#[allow(dead_code)]
#[path = "../tests/it/attackers.rs"]
mod attackers;
#[allow(dead_code)]
#[path = "../tests/it/net.rs"]
mod net;

use attackers::*;
use net::*;
use starling_proto::payload::Payload;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A block may come so much later.
const BAR: Duration = Duration::from_millis(50);
/// Bytes of a block, which cannot be packed.
const BYTES: usize = 100_000;
/// What the victim has before, to be asked for.
const BEFORE: u64 = 100;
/// Between two blocks. No divisor of the gossip heartbeat.
const PAUSE: Duration = Duration::from_millis(71);
/// An attack goes on for so long before blocks are measured.
const RUN_UP: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(60);

fn main() {
    let only = std::env::var("STARLING_BENCH_ONLY").ok();
    let blocks = std::env::var("STARLING_BENCH_BLOCKS").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    // Made before anything is measured.
    bomb();
    println!("a block of {BYTES} bytes, publish to accepted: {blocks} without and {blocks} with each attack; ms");
    println!("{:<16} {:^23}   {:^23}   later by (bar {} ms)", "", "quiet", "attacked", BAR.as_millis());
    let columns = ["p50", "p99", "max"].map(|name| format!("{name:>7}")).join(" ");
    println!("{:<16} {columns}   {columns}   {columns}", "");
    for attack in ATTACKS.iter().filter(|attack| only.as_deref().is_none_or(|only| only == attack.name)) {
        runtime.block_on(measure(attack, blocks));
    }
}

async fn measure(attack: &Attack, count: usize) {
    let before = heavy_chain(BEFORE, 10_000);
    let victim = Arc::new(Node::start_with(config(), &before).await);
    let publisher = Node::start_with(with_static(&[&victim.address]), &before).await;
    publisher.meshed().await;
    let mut parent = before[before.len() - 1].clone();
    // Caches are cold.
    blocks(&publisher, &victim, &mut parent, 3, attack.gap).await;
    let quiet = blocks(&publisher, &victim, &mut parent, count, attack.gap).await;

    let attacking = attack.begin(&victim, &before);
    tokio::time::sleep(RUN_UP).await;
    let attacked = blocks(&publisher, &victim, &mut parent, count, attack.gap).await;
    attacking.end();
    let named = named(&victim).await;
    publisher.stop().await;
    if let Some(victim) = Arc::into_inner(victim) {
        victim.stop().await;
    }
    let figures = |times: [f64; 3]| times.map(|time| format!("{time:>7.2}")).join(" ");
    let later = std::array::from_fn(|i| attacked[i] - quiet[i]);
    println!("{:<16} {}   {}   {}   {named}", attack.name, figures(quiet), figures(attacked), figures(later));
}

/// Publishes so many blocks, each after `gap` that are not; the median, the 99th percentile and the largest of the times, in ms.
async fn blocks(publisher: &Node, victim: &Node, parent: &mut Arc<Payload>, count: usize, gap: usize) -> [f64; 3] {
    let mut times = Vec::new();
    for _ in 0..count {
        tokio::time::sleep(PAUSE).await;
        publisher.extend(parent, gap, BYTES);
        let sent = Instant::now();
        publisher.publish(parent).await;
        eventually(LONG, || victim.chain.has(parent)).await;
        times.push(victim.chain.came.lock()[&parent.hash].saturating_duration_since(sent).as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    [50, 99, 100].map(|percent: usize| times[(count * percent).div_ceil(100).max(1) - 1])
}

/// What the attackers are charged with.
async fn named(victim: &Node) -> String {
    let mut reasons: Vec<&str> = Vec::new();
    for entry in victim.network.ledger(None, 1000).await.expect("it runs") {
        let counts = matches!(entry.change, starling_p2p::Change::Score(change) if change <= 0.0);
        if (counts || entry.reason == "score") && !reasons.contains(&entry.reason) {
            reasons.push(entry.reason);
        }
    }
    reasons.join(", ")
}
