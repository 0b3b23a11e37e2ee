//! Random `kill -9` of batcher, proposer, sequencer and L1 on a network under load. Every block
//! becomes safe, a killed batcher repeats at most its open channel, and no output is proposed
//! twice. `STARLING_POSTING_KILLS` is the number of kills (6), `STARLING_SEED` repeats a run.

use super::{
    inbox::{InboxReader, PostedChannel},
    load::LoadThread,
};
use crate::{
    campaign::{seed, size},
    net::{Devnet, Node, Running, ask, call, head, wait},
};
use alloy_primitives::{U256, keccak256};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(300);
/// Index of the account of the network's proposer.
const PROPOSER: usize = 8;
/// Size in bytes of each transaction that the load sends.
const LARGE: usize = 6_000;

/// Options of the batcher: channels of a few seconds, several transactions in flight.
const OPTIONS: [&str; 9] = [
    "--check-recent-txs-depth=128",
    "--max-channel-duration=4",
    "--target-num-frames=3",
    "--batch-type=1",
    "--max-pending-tx=4",
    "--poll-interval=500ms",
    "--sub-safety-margin=4",
    "--num-confirmations=1",
    "--txmgr.receipt-query-interval=250ms",
];

/// A process of the network that is killed and restarted.
struct Victim {
    node: Node,
    /// Options that replace those of the network.
    options: Vec<String>,
    /// The restarted process; `None` until the first restart.
    running: Option<Running>,
    log: PathBuf,
}

impl Victim {
    fn new(net: &Devnet, role: &str, options: &[&str]) -> Self {
        let node = net.role(role).remove(0);
        Self {
            log: net.dir.join(format!("{}-again.log", node.name)),
            node,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            running: None,
        }
    }

    fn kill(&mut self) {
        match self.running.take() {
            Some(mut running) => running.kill9(),
            None => self.node.kill9(),
        }
    }

    fn restart(&mut self) {
        self.running = Some(self.node.restart_with(&self.log, &self.options));
    }

    /// Fails if the process has ended without a kill.
    fn must_run(&mut self) {
        let ended = self
            .running
            .as_mut()
            .and_then(|running| running.child.try_wait().expect("a child"));
        if let Some(status) = ended {
            let log = super::process::read_log(&self.log);
            panic!("{} ended with {status}: {log}", self.node.name);
        }
    }
}

fn safe(net: &Devnet) -> Option<u64> {
    let rpc = net.replicas()[0].rpc.clone()?;
    let status = call(&rpc, "optimism_syncStatus", json!([])).ok()?;
    status["local_safe_l2"]["number"].as_u64()
}

/// Waits until the replica has derived the block that is the unsafe head now.
fn moves_on(net: &Devnet, victims: &mut [Victim]) {
    let sequencer = net.sequencer().http;
    let target = wait("the sequencer", PATIENCE, || head(&sequencer));
    wait(&format!("block {target} to be safe"), PATIENCE, || {
        victims.iter_mut().for_each(Victim::must_run);
        (safe(net)? >= target).then_some(())
    });
}

/// Checks that every transaction of the proposer succeeds and proposes another block. Returns their
/// number.
fn assert_no_output_is_proposed_twice(net: &Devnet) -> usize {
    let l1 = net.l1().http;
    let proposer = json!(net.accounts[PROPOSER].address);
    let mut proposed = BTreeSet::new();
    // Fix the last L1 block first, since the proposer continues while the blocks are read.
    let newest = head(&l1).expect("a head");
    let expected = outputs(net, newest);
    for at in 1..=newest {
        let params = json!([format!("{at:#x}"), true]);
        let block = ask(&l1, "eth_getBlockByNumber", params);
        for tx in block["transactions"].as_array().expect("a list") {
            if tx["from"] != proposer {
                continue;
            }
            let receipt = ask(&l1, "eth_getTransactionReceipt", json!([tx["hash"]]));
            assert_eq!(receipt["status"], "0x1", "a proposal fails: {tx}");
            // Arguments of proposeL2Output(bytes32 outputRoot, uint256 l2BlockNumber, ...)
            let input: alloy_primitives::Bytes =
                serde_json::from_value(tx["input"].clone()).expect("bytes");
            let block = U256::from_be_slice(&input[36..68]);
            assert!(proposed.insert(block), "block {block} is proposed twice");
        }
    }
    assert_eq!(proposed.len() as u64, expected);
    proposed.len()
}

/// Number of outputs in the oracle at an L1 block.
fn outputs(net: &Devnet, l1_block: u64) -> u64 {
    let oracle = net.contract("output_oracle").expect("an oracle");
    let data = alloy_primitives::Bytes::copy_from_slice(&keccak256("nextOutputIndex()")[..4]);
    let request = json!([{ "to": oracle, "data": data }, format!("{l1_block:#x}")]);
    let answer: U256 =
        serde_json::from_value(ask(&net.l1().http, "eth_call", request)).expect("a number");
    answer.to()
}

/// A channel that is incomplete, or that repeats blocks of an earlier channel.
struct RepeatedChannel<'a> {
    channel: &'a PostedChannel,
    /// Wasted bytes: all bytes of an incomplete channel; otherwise the channel's bytes in
    /// proportion to its repeated blocks.
    bytes: usize,
}

/// Channels with wasted bytes: those that lack a frame, and those that repeat blocks of an earlier
/// channel.
fn repeated(channels: &[PostedChannel]) -> Vec<RepeatedChannel<'_>> {
    let mut newest = 0;
    let cost = |channel: &PostedChannel| {
        let blocks = &channel.blocks;
        let known = blocks.iter().filter(|block| **block <= newest).count();
        newest = newest.max(blocks.last().copied().unwrap_or_default());
        match blocks.len() {
            0 => channel.bytes,
            all => channel.bytes * known / all,
        }
    };
    let costs: Vec<usize> = channels.iter().map(cost).collect();
    let all = channels.iter().zip(costs);
    all.filter(|(_, bytes)| *bytes > 0)
        .map(|(channel, bytes)| RepeatedChannel { channel, bytes })
        .collect()
}

/// Checks the cost of kills and prints the figures. Every block up to `last` must be on L1. Each
/// kill of the batcher may waste at most one channel. The wasted bytes per kill are at most the
/// size of the largest channel without repetition, plus a tenth, since a channel may compress worse
/// or close a little later.
fn assert_a_kill_costs_a_channel(net: &Devnet, last: u64, kills: usize) {
    let inbox = InboxReader::of(net);
    let transactions = inbox.transactions(0);
    let channels = inbox.channels(&transactions);
    let posted: BTreeSet<u64> = channels
        .iter()
        .flat_map(|channel| channel.blocks.iter().copied())
        .collect();
    assert!((1..=last).all(|block| posted.contains(&block)));
    let repeated = repeated(&channels);
    let all: usize = channels.iter().map(|channel| channel.bytes).sum();
    let again: usize = repeated.iter().map(|one| one.bytes).sum();
    let is_repeated = |id| repeated.iter().any(|one| one.channel.id == id);
    let once = channels.iter().filter(|channel| !is_repeated(channel.id));
    let open = once.map(|channel| channel.bytes).max().unwrap_or_default();
    println!(
        "{} channels, {all} bytes, at most {open} each; {} repeated, {again} bytes",
        channels.len(),
        repeated.len()
    );
    let shown: Vec<_> = repeated
        .iter()
        .map(|one| (one.channel.l1_blocks, one.channel.blocks.first(), one.bytes))
        .collect();
    assert!(repeated.len() <= kills, "{kills} kills: {shown:?}");
    assert!(
        again <= kills * (open + open / 10),
        "{kills} kills, channels of {open} bytes: {shown:?}"
    );
}

#[test]
fn killed_at_random_under_load_every_block_becomes_safe_and_nothing_is_posted_twice() {
    let mut rng = StdRng::seed_from_u64(seed());
    let kills = size("STARLING_POSTING_KILLS", 6);
    let net = Devnet::start_whole(&["--replicas=1", "--l1.block-time=1", "--l2.block-time=1"]);
    let mut victims = [
        Victim::new(&net, "batcher", &OPTIONS),
        Victim::new(&net, "proposer", &["--poll-interval=500ms"]),
        Victim::new(&net, "sequencer", &[]),
        Victim::new(&net, "l1", &[]),
    ];
    for victim in &mut victims[..2] {
        victim.kill();
        victim.restart();
    }
    let load = LoadThread::start(&net, 1, LARGE, Duration::from_millis(300));
    let mut killed = BTreeMap::<String, usize>::new();
    let mut longest = Duration::ZERO;
    for kill in 0..kills {
        // The first kills hit each process once, so that even a short run kills all of them.
        let at = if kill < victims.len() {
            kill
        } else {
            rng.random_range(0..victims.len())
        };
        std::thread::sleep(Duration::from_millis(rng.random_range(500..6_000)));
        let victim = &mut victims[at];
        *killed.entry(victim.node.role.clone()).or_default() += 1;
        victim.kill();
        std::thread::sleep(Duration::from_millis(rng.random_range(0..2_000)));
        victim.restart();
        let started = Instant::now();
        moves_on(&net, &mut victims);
        longest = longest.max(started.elapsed());
    }
    let sent = load.sent();
    drop(load);
    moves_on(&net, &mut victims);
    let last = safe(&net).expect("a safe head");
    let now = || outputs(&net, head(&net.l1().http).expect("a head"));
    let before = now();
    wait("another output", PATIENCE, || {
        (now() > before).then_some(())
    });
    let proposed = assert_no_output_is_proposed_twice(&net);
    println!(
        "{killed:?}: {last} blocks safe, {sent} transactions, {proposed} outputs, longest wait {longest:?}"
    );
    // The batcher's restart with other options counts as a kill.
    assert_a_kill_costs_a_channel(&net, last, killed["batcher"] + 1);
}
