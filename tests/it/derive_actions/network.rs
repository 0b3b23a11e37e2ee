//! L1 reorgs with a sequencer and two replicas in one swarm: all nodes agree on the safe chain, and
//! each node's heads are always in order on one branch.

use super::{
    l1::{CoreL1, L1Call},
    world::{ActionFiles, ActionPlan, BATCHER, OWNER, USER, account, channel},
};
use crate::{
    derive::verifier::{DEADLINE, Verifier},
    net::{ask, call, number, wait},
};
use alloy_primitives::{Address, Bytes, TxKind, U256, hex};
use serde_json::{Value, json};
use starling::{clock, devnet::genesis::L2_CHAIN_ID};
use starling_proto::{batch::SingularBatch, config::RollupConfig, frame, l1info::L1BlockInfo};
use starling_testkit::free_port;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Seconds between L1 blocks, and also between L2 blocks.
pub const PERIOD: u64 = 2;
/// Age of the L1 and L2 genesis at the start, in seconds.
const AGE: u64 = 200;
/// L1 blocks at the start: more than the deepest reorg.
pub const L1_BLOCKS: u64 = 80;

pub struct ReorgNetwork {
    pub l1: CoreL1,
    pub rollup: RollupConfig,
    pub sequencer: Verifier,
    pub replicas: [Verifier; 2],
    /// Options with which every node reads L1.
    links: Vec<String>,
    channels: u8,
    /// Transactions that were sent, by their hash.
    sent: HashMap<String, Bytes>,
    pub folder: tempfile::TempDir,
}

impl ReorgNetwork {
    /// `age` is the age of L1 and L2 in seconds; with [`AGE`], L1 has room for blocks that a test
    /// mines ahead of their time. `window` is the sequencing window in L1 blocks. `links` makes the
    /// options with which nodes read L1.
    pub fn start(age: u64, window: u64, links: impl FnOnce(&CoreL1) -> Vec<String>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = ActionFiles::new(&ActionPlan {
            start: clock::unix_now() - age,
            l1_period: PERIOD,
            l2_period: PERIOD,
            window,
            ..ActionPlan::default()
        });
        files.write(folder.path());
        let key = folder.path().join("sequencer.key");
        std::fs::write(&key, hex::encode(account(OWNER).key)).expect("a file");
        let mut l1 = CoreL1::start(&files.l1_genesis.to_string(), PERIOD);
        l1.mine_to(L1_BLOCKS);
        let links = links(&l1);
        let swarm = |options: &[String]| {
            let shared = [
                "--p2p.no-discovery".into(),
                "--p2p.listen.ip=127.0.0.1".into(),
                format!("--p2p.listen.tcp={}", free_port()),
                "--http.api=eth,net,opp2p".into(),
            ];
            let options = [&shared[..], &links[..], options].concat();
            Verifier::in_swarm(folder.path(), &l1.url, &options)
        };
        let sequencer = swarm(&[
            "--sequencer.enabled".into(),
            "--sequencer.l1-confs=0".into(),
            format!("--p2p.sequencer.key.path={}", key.display()),
        ]);
        let address = wait("the sequencer's address", DEADLINE, || {
            let itself = call(&sequencer.http, "opp2p_self", json!([])).ok()?;
            // The P2P address appears some time after the RPC responds.
            itself["addresses"][0].as_str().map(str::to_owned)
        });
        let replicas = [(), ()].map(|()| swarm(&[format!("--p2p.static={address}")]));
        Self {
            l1,
            rollup: files.rollup,
            sequencer,
            replicas,
            links,
            channels: 0,
            sent: HashMap::new(),
            folder,
        }
    }

    fn nodes(&self) -> [&Verifier; 3] {
        [&self.sequencer, &self.replicas[0], &self.replicas[1]]
    }

    /// Sends a transfer to the sequencer's RPC.
    fn transfer(&mut self) {
        let user = account(USER);
        let nonce = self.sent.len() as u64;
        let to = TxKind::Call(Address::repeat_byte(0x70));
        let raw = user.sign(L2_CHAIN_ID, nonce, to, U256::ONE, Bytes::new(), 21_000);
        let hash = ask(&self.sequencer.http, "eth_sendRawTransaction", json!([raw]));
        let hash = hash.as_str().expect("a hash").to_owned();
        self.sent.insert(hash, raw);
    }

    /// The singular batch of the sequencer's block at height `at`.
    fn batch(&self, at: u64) -> Option<SingularBatch> {
        let params = json!([format!("{at:#x}"), true]);
        let block = call(&self.sequencer.http, "eth_getBlockByNumber", params).ok()?;
        let transactions = block["transactions"].as_array()?;
        let input: Bytes = serde_json::from_value(transactions[0]["input"].clone()).ok()?;
        let info = L1BlockInfo::decode(&input).expect("L1 attributes");
        let user = transactions.iter().filter(|tx| tx["type"] != "0x7e");
        let raw = user.map(|tx| self.sent[tx["hash"].as_str().expect("a hash")].clone());
        Some(SingularBatch {
            parent_hash: serde_json::from_value(block["parentHash"].clone()).ok()?,
            epoch_number: info.number,
            epoch_hash: info.hash,
            timestamp: number(&block["timestamp"]),
            transactions: raw.collect(),
        })
    }

    /// Mines an L1 block with a batch of the sequencer's unsafe blocks.
    fn post(&mut self) {
        let status = self.sequencer.status().expect("an answer");
        let [safe, head] =
            ["safe_l2", "unsafe_l2"].map(|head| status[head]["number"].as_u64().expect("a number"));
        let height = self.l1.height();
        let batches = (safe + 1..=head).map_while(|at| self.batch(at));
        let batches = batches.take_while(|batch| batch.epoch_number <= height);
        let batches: Vec<_> = batches.map(|batch| batch.encode()).collect();
        self.channels += 1;
        let item = frame::encode(&channel(self.channels, &batches));
        self.l1.mine(&[L1Call {
            from: account(BATCHER),
            to: self.rollup.batch_inbox_address,
            value: 0,
            input: item.into(),
            blobs: vec![],
        }]);
    }

    /// Waits until the L1 origin of the sequencer's head is the newest L1 block.
    fn sequenced(&self) {
        let height = self.l1.height();
        let hash = self.l1.head_hash();
        wait("blocks of the newest L1 origin", DEADLINE, || {
            let origin = self.sequencer.status()?["unsafe_l2"]["l1origin"].take();
            (origin["number"].as_u64()? == height && origin["hash"] == hash).then_some(())
        });
    }

    /// Waits until every node has derived all of L1, and checks that the nodes have the same safe
    /// head.
    pub fn settle(&mut self) -> Value {
        let head = self.l1.head_hash();
        let safe = self.sequencer.wait_until_derived(&head)["safe_l2"].take();
        for replica in &mut self.replicas {
            let status = replica.wait_until_derived(&head);
            assert_eq!(status["safe_l2"], safe);
        }
        safe
    }

    /// Reorganises L1 by `depth` blocks, posts the unsafe blocks again, and waits for a common safe
    /// head.
    fn reorganise(&mut self, depth: u64) -> Value {
        let height = self.l1.height();
        self.l1.rewind(height - depth);
        self.l1.mine_to(height + 1);
        self.sequenced();
        self.transfer();
        self.post();
        let safe = self.settle();
        self.check_against_a_fresh_derivation(&safe);
        safe
    }

    /// Waits until every node has a finalized block, and its block tags equal the reported heads.
    fn finalized(&self) {
        for node in self.nodes() {
            wait("a final block, and the tags", DEADLINE, || {
                let status = node.status()?;
                let tag = |tag: &str| {
                    let block = call(&node.http, "eth_getBlockByNumber", json!([tag, false]));
                    Some(block.ok()?["hash"].take())
                };
                let is_final = status["finalized_l2"]["number"].as_u64()? > 0
                    && tag("finalized")? == status["finalized_l2"]["hash"]
                    && tag("safe")? == status["safe_l2"]["hash"];
                is_final.then_some(())
            });
        }
    }

    /// Derives the chain with a new node that has seen only the current L1, and compares the safe
    /// head at each L1 block with every node's.
    pub fn check_against_a_fresh_derivation(&self, safe: &Value) {
        let mut fresh = Verifier::start(self.folder.path(), &self.l1.url, &self.links);
        let status = fresh.wait_until_derived(&self.l1.head_hash());
        assert_eq!(status["safe_l2"], *safe);
        for at in 0..=self.l1.height() {
            let entry = |node: &Verifier| {
                let at = json!([format!("{at:#x}")]);
                call(&node.rpc, "optimism_safeHeadAtL1Block", at)
                    .map_err(|error| error["code"].clone())
            };
            let expected = entry(&fresh);
            for node in self.nodes() {
                assert_eq!(entry(node), expected, "L1 block {at}");
            }
        }
    }
}

/// Requests the status of all nodes continually, until its findings are collected.
struct StatusWatch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(usize, Vec<String>)>,
}

impl StatusWatch {
    fn start(nodes: &[&Verifier]) -> Self {
        let urls: Vec<_> = nodes
            .iter()
            .map(|node| (node.rpc.clone(), node.http.clone()))
            .collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut answers, mut findings) = (0, vec![]);
            while !stopped.load(Ordering::Relaxed) {
                for (rpc, http) in &urls {
                    answers += usize::from(look(rpc, http, &mut findings).is_some());
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            (answers, findings)
        });
        Self { stop, thread }
    }

    /// Stops. Returns the number of checked responses, and the faults found in them.
    fn finish(self) -> (usize, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}

/// Checks one node: finalized, safe and unsafe head are in order and on one branch, in the status
/// and by their block tags. `None` if the node does not respond or has no safe head yet.
fn look(rpc: &str, http: &str, findings: &mut Vec<String>) -> Option<()> {
    const HEADS: [&str; 3] = ["finalized_l2", "safe_l2", "unsafe_l2"];
    let block = |at: Value| call(http, "eth_getBlockByNumber", json!([at, false]));
    let status = call(rpc, "optimism_syncStatus", json!([])).ok()?;
    if status["safe_l2"]["timestamp"] == 0 {
        return None;
    }
    let numbers = HEADS.map(|head| status[head]["number"].as_u64().expect("a number"));
    if !numbers.is_sorted() {
        findings.push(format!("heads out of order: {status}"));
    }
    let found = numbers.map(|number| block(json!(format!("{number:#x}"))));
    let after = call(rpc, "optimism_syncStatus", json!([])).ok()?;
    // A reorg between the two requests may have removed the blocks of the first status.
    if HEADS.iter().any(|head| after[head] != status[head]) {
        return Some(());
    }
    for (head, found) in HEADS.into_iter().zip(found) {
        if found.as_ref().map(|block| &block["hash"]) != Ok(&status[head]["hash"]) {
            findings.push(format!("{head} is not canonical: {found:?}, {status}"));
        }
    }
    check_tags(block, findings);
    Some(())
}

/// Checks that the blocks of the tags are in order and canonical, unless a tag moves meanwhile. At
/// first the blocks of `finalized` and `safe` are null.
fn check_tags(block: impl Fn(Value) -> Result<Value, Value>, findings: &mut Vec<String>) {
    const TAGS: [&str; 3] = ["finalized", "safe", "latest"];
    let read = || TAGS.map(|tag| block(json!(tag)).unwrap_or_default());
    let tagged = read();
    let canonical = tagged.each_ref();
    let canonical = canonical.map(|tagged| block(tagged["number"].clone()).unwrap_or_default());
    if tagged != read() {
        return;
    }
    let known = tagged.iter().filter(|block| block.is_object());
    if !known.map(|block| number(&block["number"])).is_sorted() {
        findings.push(format!("tags out of order: {tagged:?}"));
    }
    for (tagged, canonical) in tagged.iter().zip(canonical) {
        if tagged.is_object() && tagged["hash"] != canonical["hash"] {
            findings.push(format!("a tag is not canonical: {tagged}, {canonical}"));
        }
    }
}

#[test]
fn l1_reorgs_of_1_to_64_blocks_leave_one_safe_chain_on_every_node() {
    let mut network = ReorgNetwork::start(AGE, 100, |_| vec![]);
    network.sequenced();
    network.transfer();
    let watch = StatusWatch::start(&network.nodes());
    network.post();
    let mut safe = network.settle();
    for depth in [1, 5, 20, 64] {
        let after = network.reorganise(depth);
        assert!(after["number"].as_u64() > Some(0));
        assert_ne!(after, safe);
        safe = after;
    }
    // From here on blocks are finalized, and the next reorg ends above the finalized block.
    network.l1.finalized_depth = 2;
    network.l1.mine_to(network.l1.height() + 4);
    network.sequenced();
    network.settle();
    network.finalized();
    let after = network.reorganise(1);
    assert_ne!(after, safe);
    network.finalized();
    let (answers, findings) = watch.finish();
    assert!(answers > 100, "{answers} answers were checked");
    assert_eq!(findings, [""; 0]);
}
