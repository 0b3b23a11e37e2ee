//! L1 reorgs under a batcher with open channels and transactions in flight. Every block becomes
//! safe again, and sequencer, replicas and a fresh node agree on one chain.
//! `STARLING_POSTING_REORGS` is the number of reorgs (4), each up to 64 blocks deep.

use super::{
    load::large,
    process::{BATCHER, BatcherLinks, BatcherProcess},
};
use crate::{
    campaign::size,
    derive_actions::{
        network::{L1_BLOCKS, PERIOD, ReorgNetwork},
        world::{USER, account},
    },
    net::{call, number},
};
use serde_json::{Value, json};
use starling::{clock, devnet::genesis::L2_CHAIN_ID};
use std::{
    cell::Cell,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(300);
/// Depths of the first reorgs; the depths of further reorgs are spread over 1 to 64.
const DEPTHS: [u64; 4] = [1, 5, 20, 64];
const DEEPEST: u64 = 64;
/// The sequencing window in L1 blocks, longer than the chain's age and the time that a slow machine
/// needs.
const WINDOW: u64 = 10_000;
/// Size in bytes of each transaction that the load sends.
const LARGE: usize = 1_500;

/// Options for calldata, where frames are posted while their channel is still open.
const CALLDATA: [&str; 7] = [
    "--data-availability-type=calldata",
    "--max-l1-tx-size-bytes=3000",
    "--target-num-frames=30",
    "--max-channel-duration=10",
    "--max-pending-tx=10",
    "--num-confirmations=2",
    "--resubmission-timeout=20s",
];
const BLOBS: [&str; 7] = [
    "--data-availability-type=blobs",
    "--batch-type=1",
    "--target-num-frames=2",
    "--max-channel-duration=6",
    "--max-pending-tx=10",
    "--num-confirmations=1",
    "--resubmission-timeout=20s",
];

/// A network with a batcher, whose L1 includes pool transactions in a block every period.
struct PostedNetwork {
    /// Dropped before `network`, whose folder contains the batcher's log.
    batcher: BatcherProcess,
    network: ReorgNetwork,
    /// Whether block production of L1 is paused.
    is_held: Cell<bool>,
    has_blobs: bool,
}

impl PostedNetwork {
    fn start(options: &[&str]) -> Self {
        // L1 must be as recent as L2. The batcher closes channels by the distance of a block's L1
        // origin from L1's head, and with a future head this distance would never shrink.
        let age = L1_BLOCKS * PERIOD;
        let network =
            ReorgNetwork::start(age, WINDOW, |l1| vec![format!("--l1.beacon={}", l1.beacon)]);
        network.l1.maintain_pool();
        let links = BatcherLinks {
            l1: network.l1.url.clone(),
            l2: network.sequencer.http.clone(),
            rollup: network.sequencer.rpc.clone(),
            key: account(BATCHER).key_hex(),
            dir: network.folder.path().into(),
        };
        let batcher = BatcherProcess::start(&links, "batcher", options);
        Self {
            batcher,
            network,
            is_held: Cell::new(false),
            has_blobs: options.contains(&"--data-availability-type=blobs"),
        }
    }

    /// Mines the L1 blocks that are due, and sends a transaction to L2.
    fn pump(&mut self) {
        let l1 = &mut self.network.l1;
        while !self.is_held.get() && l1.head().block.time + PERIOD <= clock::unix_now() {
            l1.mine_pool();
        }
        let (user, url) = (account(USER), &self.network.sequencer.http);
        let params = json!([user.address, "pending"]);
        if let Ok(nonce) = call(url, "eth_getTransactionCount", params) {
            let raw = large(&user, L2_CHAIN_ID, number(&nonce), LARGE);
            // Errors are ignored: the pool may be full of transactions of abandoned blocks.
            let _ = call(url, "eth_sendRawTransaction", json!([raw]));
        }
    }

    fn wait<T>(&mut self, what: &str, mut probe: impl FnMut(&Self) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            // Probe before L1 includes what has entered its pool during the pause: on a slow machine
            // an L1 block is due each time.
            if let Some(found) = probe(self) {
                return found;
            }
            self.pump();
            assert!(started.elapsed() < PATIENCE, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    fn status(&self) -> Option<Value> {
        self.network.sequencer.status()
    }

    /// Waits until the current unsafe head is safe.
    fn moves_on(&mut self) {
        let target = self.status().expect("a status")["unsafe_l2"]["number"].clone();
        let target = target.as_u64().expect("a number");
        self.wait(&format!("block {target} to be safe"), |net| {
            (net.network.sequencer.safe()? >= target).then_some(())
        });
    }

    /// Lets L1 miss slots until L2's L1 origin is near L1's head. An L2 block can only move to the
    /// next L1 block, and both chains have the same period, so L2 cannot catch up with an L1 that
    /// has mined several blocks at once. With a lag of `--max-channel-duration`, each channel would
    /// be closed with its first block.
    fn close_origin_lag(&mut self) {
        let status = self.status().expect("a status");
        let origin = status["unsafe_l2"]["l1origin"]["number"].as_u64();
        let height = self.network.l1.height();
        let lag = height.saturating_sub(origin.expect("an origin"));
        self.network.l1.miss_slots(lag.saturating_sub(1));
    }

    /// Waits until a transaction of the batcher is in the pool and a channel is open. With blobs,
    /// L1 is paused once a transaction is in the pool, so that it stays there until the next
    /// channel opens.
    fn is_posting(&mut self) {
        self.close_origin_lag();
        self.wait("a channel and a transaction under way", |net| {
            let count = |tag: &str| {
                let params = json!([account(BATCHER).address, tag]);
                Some(number(
                    &call(&net.network.l1.url, "eth_getTransactionCount", params).ok()?,
                ))
            };
            let is_in_pool = count("pending")? > count("latest")?;
            // Do not pause L1 with calldata: frames are posted while their channel is open, and
            // would fill the pool.
            net.is_held.set(is_in_pool && net.has_blobs);
            (is_in_pool && net.batcher.is_in_a_channel()).then_some(())
        });
        self.is_held.set(false);
    }

    /// Replaces the last `depth` L1 blocks by empty ones, and adds one with the transactions in the
    /// pool.
    fn reorganise(&mut self, depth: u64) {
        let l1 = &mut self.network.l1;
        let height = l1.height();
        l1.rewind(height - depth);
        l1.mine_to(height);
        l1.mine_pool();
    }
}

fn survives_reorgs(options: &[&str]) {
    let mut net = PostedNetwork::start(options);
    net.moves_on();
    let count = size("STARLING_POSTING_REORGS", DEPTHS.len()) as u64;
    for round in 0..count {
        let spread = 1 + (round * 37) % DEEPEST;
        let depth = DEPTHS.get(round as usize).copied().unwrap_or(spread);
        net.is_posting();
        let started = Instant::now();
        net.reorganise(depth);
        net.moves_on();
        let safe = net.network.settle();
        println!("depth {depth}: {:?}", started.elapsed());
        if round % 8 == 3 || round + 1 == count {
            net.network.check_against_a_fresh_derivation(&safe);
        }
    }
    let log = net.batcher.log();
    let (reorgs, lost) = (
        log.matches("Found L2 reorg").count(),
        log.matches("did not make expected progress").count(),
    );
    println!("{count} reorgs: {reorgs} of L2 seen, {lost} lost channels");
}

#[test]
fn l1_reorgs_under_a_batcher_with_calldata_in_flight_leave_every_block_safe() {
    survives_reorgs(&CALLDATA);
}

#[test]
fn l1_reorgs_under_a_batcher_with_blobs_in_flight_leave_every_block_safe() {
    survives_reorgs(&BLOBS);
}
