//! Processor time of batcher and proposer in a node's process: a sequencer of empty blocks with the
//! two, beside the same one without.

use super::{
    judge,
    net::{Devnet, Running, call, head, wait},
    process::BATCHER,
    support::{process::processor_of, size},
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Bar: share of a core.
const BAR: f64 = 0.03;
/// The account of the proposer.
const PROPOSER: usize = 8;
const PATIENCE: Duration = Duration::from_secs(120);
/// Time from the start until everything is warm.
const WARM_UP: Duration = Duration::from_secs(20);

/// Options of the two, at their defaults but for keys and contract.
fn options(net: &Devnet) -> Vec<String> {
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

/// Share of a core that a process takes in this time.
fn share(process: &Running, time: Duration) -> f64 {
    let pid = process.child.id().to_string();
    let (begun, before) = (Instant::now(), processor_of(&pid));
    std::thread::sleep(time);
    (processor_of(&pid) - before).as_secs_f64() / begun.elapsed().as_secs_f64()
}

pub fn run() -> bool {
    let time = Duration::from_secs(size("STARLING_BENCH_SECONDS", 300) as u64);
    let net = Devnet::start(&["--replicas=0"]);
    let sequencer = net.sequencer();
    sequencer.kill9();
    let mut shares = Vec::new();
    for options in [vec![], options(&net)] {
        let log = net.dir.join(format!("node-{}.log", options.len()));
        let process = sequencer.restart_with(&log, &options);
        wait("the node", PATIENCE, || head(&sequencer.http));
        if !options.is_empty() {
            let rpc = sequencer.rpc.clone().expect("an RPC");
            wait("a safe block", PATIENCE, || {
                let status = call(&rpc, "optimism_syncStatus", json!([])).ok()?;
                (status["safe_l2"]["number"].as_u64()? > 0).then_some(())
            });
        }
        std::thread::sleep(WARM_UP);
        shares.push(share(&process, time));
    }
    let both = shares[1] - shares[0];
    judge(
        &format!(
            "{:.2} % of a core with both, {:.2} % without: {:.2} % (bar {:.0} %)",
            100.0 * shares[1],
            100.0 * shares[0],
            100.0 * both,
            100.0 * BAR
        ),
        both <= BAR,
    )
}
