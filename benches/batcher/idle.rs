//! Processor time of batcher and proposer in a node's process. Two sequencers of empty blocks run
//! at the same time, each on its own network: one with batcher and proposer, one without.

use super::{
    judge,
    net::{Devnet, Running, call, head, wait},
    process::BATCHER,
    support::{process::processor_of, size},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Bar: highest processor time of batcher and proposer, as a share of a core.
const BAR: f64 = 0.03;
/// Index of the proposer's account.
const PROPOSER: usize = 8;
const PATIENCE: Duration = Duration::from_secs(120);
/// Time from the start until caches are filled and the measurement begins.
const WARM_UP: Duration = Duration::from_secs(20);

/// A network whose sequencer was restarted with more options.
struct IdleNode {
    /// Dropped before `net`, whose folder has the process's data.
    process: Running,
    net: Devnet,
}

impl IdleNode {
    fn start(options: impl Fn(&Devnet) -> Vec<String>) -> Self {
        let net = Devnet::start(&["--replicas=0"]);
        let sequencer = net.sequencer();
        sequencer.kill9();
        let process = sequencer.restart_with(&net.dir.join("again.log"), &options(&net));
        wait("the node", PATIENCE, || head(&sequencer.http));
        Self { process, net }
    }

    fn processor(&self) -> Duration {
        processor_of(&self.process.child.id().to_string())
    }
}

/// Options of batcher and proposer: the defaults, except for keys, contract, blobs, and a channel
/// in every second L1 block.
fn both(net: &Devnet) -> Vec<String> {
    let text = std::fs::read_to_string(net.dir.join("devnet.json")).expect("a file");
    let description: Value = serde_json::from_str(&text).expect("JSON");
    let oracle = &description["contracts"]["output_oracle"];
    let oracle = oracle.as_str().expect("an oracle");
    vec![
        "--batcher.enabled".into(),
        "--batcher.data-availability-type=blobs".into(),
        "--batcher.max-channel-duration=2".into(),
        format!("--batcher.private-key={}", net.accounts[BATCHER].key_hex()),
        "--proposer.enabled".into(),
        format!("--proposer.l2oo-address={oracle}"),
        format!(
            "--proposer.private-key={}",
            net.accounts[PROPOSER].key_hex()
        ),
    ]
}

pub fn run() -> bool {
    let time = Duration::from_secs(size("STARLING_BENCH_IDLE_SECONDS", 60) as u64);
    let nodes = [IdleNode::start(|_| vec![]), IdleNode::start(both)];
    let rpc = nodes[1].net.sequencer().rpc.expect("an RPC");
    wait("a safe block", PATIENCE, || {
        let status = call(&rpc, "optimism_syncStatus", json!([])).ok()?;
        (status["safe_l2"]["number"].as_u64()? > 0).then_some(())
    });
    std::thread::sleep(WARM_UP);
    let begun = Instant::now();
    let before = nodes.each_ref().map(IdleNode::processor);
    std::thread::sleep(time);
    let elapsed = begun.elapsed().as_secs_f64();
    let after = nodes.each_ref().map(IdleNode::processor);
    let share = |at: usize| (after[at] - before[at]).as_secs_f64() / elapsed;
    let [without, with] = [share(0), share(1)];
    judge(
        &format!(
            "{:.2} % of a core with both, {:.2} % without: {:.2} % (bar {:.0} %)",
            100.0 * with,
            100.0 * without,
            100.0 * (with - without),
            100.0 * BAR
        ),
        with - without <= BAR,
    )
}
