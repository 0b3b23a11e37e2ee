//! Time from the table that `starling devnet` prints to the network's first safe block.

use super::{
    judge,
    net::{Devnet, call, wait},
    support::size,
};
use serde_json::json;
use std::time::{Duration, Instant};

/// Default of seconds between L1 blocks.
const L1_BLOCK_TIME: u64 = 6;
/// Bar: two L1 blocks plus three seconds.
const BAR: Duration = Duration::from_secs(2 * L1_BLOCK_TIME + 3);

pub fn run() -> bool {
    let rounds = size("STARLING_BENCH_NETWORKS", 3);
    let times = (0..rounds).map(|_| {
        let net = Devnet::start_whole(&[]);
        let begun = Instant::now();
        let rpc = net.sequencer().rpc.expect("an RPC");
        wait("a safe block", Duration::from_secs(120), || {
            let status = call(&rpc, "optimism_syncStatus", json!([])).ok()?;
            (status["safe_l2"]["number"].as_u64()? > 0).then_some(())
        });
        begun.elapsed()
    });
    let times: Vec<Duration> = times.collect();
    let longest = times.iter().max().copied().unwrap_or_default();
    judge(
        &format!("first safe block after {times:.1?} (bar {BAR:?})"),
        longest <= BAR,
    )
}
