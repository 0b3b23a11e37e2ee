//! anvil as an independent L1 with blobs and reorgs, read through a beacon node that fails on
//! command.

use super::{
    author::Author,
    beacon::{BeaconFault, StandInBeacon},
    l1::{L1Chain, L1Entry, MAX_FEE, signed},
    world::{ActionFiles, ActionPlan, BATCHER, START, USER, account, cut_channel},
};
use crate::{
    anvil,
    derive::verifier::Verifier,
    net::{Account, RunningGroup, ask, call, wait},
};
use alloy_consensus::{TxEip1559, TxEip4844, TxEip4844WithSidecar};
use alloy_eips::{
    eip2718::Encodable2718,
    eip4844::{Blob, BlobTransactionSidecar},
};
use alloy_primitives::{Address, Bytes, FixedBytes};
use serde_json::{Value, json};
use starling::devnet::genesis::L1_CHAIN_ID;
use starling_proto::{
    blob,
    l1_config::L1ChainConfig,
    payload::{BlockId, Payload},
};
use starling_testkit::free_port;
use std::{process::Command, sync::Arc, time::Duration};

/// Seconds between L1 blocks, equal to the slot time, so that a block's number is its slot.
const PERIOD: u64 = 12;

struct AnvilL1 {
    _process: RunningGroup,
    url: String,
    chain: L1Chain,
    nonce: u64,
    batcher: Account,
    inbox: Address,
}

impl AnvilL1 {
    /// `None`, recorded as a skip, where anvil is not installed.
    fn start() -> Option<Self> {
        let program = anvil::program()?;
        let port = free_port();
        let mut command = Command::new(program);
        command
            .arg(format!("--port={port}"))
            .arg(format!("--chain-id={L1_CHAIN_ID}"))
            .arg(format!("--timestamp={START}"))
            .args(["--hardfork=prague", "--no-mining", "--silent"]);
        let process = RunningGroup::spawn(&mut command);
        let url = format!("http://127.0.0.1:{port}");
        wait("anvil", Duration::from_secs(60), || {
            call(&url, "eth_chainId", json!([])).ok()
        });
        ask(&url, "anvil_setBlockTimestampInterval", json!([PERIOD]));
        let chain = vec![L1Entry::read_at(&url, 0).into()];
        Some(Self {
            _process: process,
            url,
            chain,
            nonce: 0,
            batcher: account(BATCHER),
            inbox: Address::ZERO,
        })
    }

    fn height(&self) -> u64 {
        self.chain.len() as u64 - 1
    }

    fn head_hash(&self) -> Value {
        json!(self.chain.last().expect("a genesis").block.hash)
    }

    /// Mines a block with these transactions, in this order.
    fn mine(&mut self, raw: &[Bytes]) {
        for raw in raw {
            ask(&self.url, "eth_sendRawTransaction", json!([raw]));
        }
        ask(&self.url, "anvil_mine", json!(["0x1"]));
        let entry = L1Entry::read_at(&self.url, self.height() + 1);
        assert_eq!(entry.receipts.len(), raw.len());
        assert!(entry.receipts.iter().all(|(success, _)| *success));
        self.chain.push(entry.into());
    }

    fn mine_to(&mut self, number: u64) {
        while self.height() < number {
            self.mine(&[]);
        }
    }

    /// Replaces the last `depth` blocks by empty blocks.
    fn reorganise(&mut self, depth: u64) {
        ask(&self.url, "anvil_reorg", json!([depth, []]));
        ask(&self.url, "anvil_dropAllTransactions", json!([]));
        let height = self.height();
        self.chain.truncate((height + 1 - depth) as usize);
        for number in height + 1 - depth..=height {
            let entry = L1Entry::read_at(&self.url, number);
            assert!(entry.receipts.is_empty(), "a transaction is left");
            self.chain.push(entry.into());
        }
        let sent = json!([self.batcher.address, "latest"]);
        let nonce = ask(&self.url, "eth_getTransactionCount", sent);
        self.nonce = crate::net::number(&nonce);
    }

    fn next_nonce(&mut self) -> u64 {
        self.nonce += 1;
        self.nonce - 1
    }

    /// A transaction that carries a data item as calldata.
    fn calldata(&mut self, item: Vec<u8>) -> Bytes {
        let tx = TxEip1559 {
            chain_id: L1_CHAIN_ID,
            nonce: self.next_nonce(),
            gas_limit: 100_000 + 40 * item.len() as u64,
            max_fee_per_gas: MAX_FEE,
            max_priority_fee_per_gas: 1_000_000_000,
            to: self.inbox.into(),
            input: item.into(),
            ..Default::default()
        };
        signed(&self.batcher, tx).encoded_2718().into()
    }

    /// A transaction that carries each data item in a blob, with its blobs.
    fn blobs(&mut self, items: &[Vec<u8>]) -> Bytes {
        let kzg = c_kzg::ethereum_kzg_settings(8);
        let mut sidecar = BlobTransactionSidecar::default();
        for item in items {
            let bytes = blob::encode(item).expect("room in a blob");
            let blob = c_kzg::Blob::from_bytes(&bytes).expect("a blob");
            let commitment = kzg.blob_to_kzg_commitment(&blob).expect("a commitment");
            let commitment = commitment.to_bytes();
            let proof = kzg.compute_blob_kzg_proof(&blob, &commitment);
            let proof = proof.expect("a proof").to_bytes();
            sidecar.blobs.push(Blob::from_slice(&bytes));
            let commitment = FixedBytes::from_slice(commitment.as_slice());
            sidecar.commitments.push(commitment);
            sidecar
                .proofs
                .push(FixedBytes::from_slice(proof.as_slice()));
        }
        let tx = TxEip4844 {
            chain_id: L1_CHAIN_ID,
            nonce: self.next_nonce(),
            gas_limit: 100_000,
            max_fee_per_gas: MAX_FEE,
            max_priority_fee_per_gas: 1_000_000_000,
            to: self.inbox,
            blob_versioned_hashes: sidecar.versioned_hashes().collect(),
            max_fee_per_blob_gas: MAX_FEE,
            ..Default::default()
        };
        let tx = TxEip4844WithSidecar { tx, sidecar };
        signed(&self.batcher, tx).encoded_2718().into()
    }
}

struct AnvilWorld {
    l1: AnvilL1,
    author: Author,
    verifier: Verifier,
    beacon: StandInBeacon,
    fallback: StandInBeacon,
    channels: u8,
    _folder: tempfile::TempDir,
}

impl AnvilWorld {
    fn new() -> Option<Self> {
        let mut l1 = AnvilL1::start()?;
        let plan = ActionPlan {
            window: 40,
            ..ActionPlan::default()
        };
        let mut files = ActionFiles::new(&plan);
        files.l1_genesis["config"]["pragueTime"] = 0.into();
        let genesis = &l1.chain[0].block;
        files.rollup.genesis.l1 = BlockId {
            hash: genesis.hash,
            number: 0,
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        files.write(folder.path());
        let schedule = L1ChainConfig::from_json(&files.l1_config());
        let schedule = schedule.expect("a config").blobs;
        l1.inbox = files.rollup.batch_inbox_address;
        let genesis = files.l2_genesis.to_string();
        let author = Author::new(&genesis, files.rollup, schedule, account(USER));
        let [beacon, fallback] = [(), ()].map(|()| StandInBeacon::start(&l1.url, &l1.url));
        let options = [
            format!("--l1.beacon={}", beacon.url),
            format!("--l1.beacon-fallbacks={}", fallback.url),
        ];
        let verifier = Verifier::start(folder.path(), &l1.url, &options);
        Some(Self {
            l1,
            author,
            verifier,
            beacon,
            fallback,
            channels: 0,
            _folder: folder,
        })
    }

    fn extend(&mut self, epoch: u64) -> Vec<Arc<Payload>> {
        let user = |author: &Author| vec![author.transfer()];
        self.author.extend_by(&self.l1.chain, epoch, user)
    }

    /// The data items of a channel with a span batch of these blocks, cut into `pieces` frames.
    fn frames(&mut self, blocks: &[Arc<Payload>], pieces: usize) -> Vec<Vec<u8>> {
        self.channels += 1;
        cut_channel(self.channels, &self.author.span(blocks), pieces)
    }

    /// Waits until the verifier has derived all of L1, and checks that its safe head is the
    /// author's head.
    fn settle(&mut self) {
        let status = self.verifier.wait_until_derived(&self.l1.head_hash());
        let head = json!(self.author.head().hash);
        assert_eq!(status["safe_l2"]["hash"], head, "{status}");
    }

    /// Mines a block that contains a batch in two blobs.
    fn mine_in_blobs(&mut self) {
        self.l1.mine_to(self.l1.height() + 1);
        let blocks = self.extend(self.l1.height() - 1);
        let items = self.frames(&blocks, 2);
        let raw = self.l1.blobs(&items);
        self.l1.mine(&[raw]);
    }
}

/// One channel in one L1 block, partly in calldata and partly in blobs of two transactions.
fn blobs_and_calldata_in_one_block(world: &mut AnvilWorld) {
    world.l1.mine_to(3);
    let blocks = world.extend(2);
    let items = world.frames(&blocks, 6);
    assert_eq!(items.len(), 6);
    let raw = [
        world.l1.calldata(items[0].clone()),
        world.l1.blobs(&items[1..3]),
        world.l1.calldata(items[3].clone()),
        world.l1.blobs(&items[4..]),
    ];
    world.l1.mine(&raw);
    world.settle();
}

/// The safe head stays while no beacon node has the blobs, and rises once one has them.
fn a_beacon_that_fails(world: &mut AnvilWorld, fault: BeaconFault) {
    let before = world.author.head().number();
    for beacon in [&world.beacon, &world.fallback] {
        beacon.set(fault);
    }
    world.mine_in_blobs();
    wait("requests for blobs", Duration::from_secs(60), || {
        let asked = [&world.beacon, &world.fallback].map(StandInBeacon::requests);
        asked.iter().all(|requests| *requests > 0).then_some(())
    });
    let safe = world.verifier.safe();
    assert_eq!(safe, Some(before), "{fault:?}");
    for beacon in [&world.beacon, &world.fallback] {
        beacon.set(BeaconFault::None);
    }
    world.settle();
}

/// The safe head keeps rising: the fallback beacon node has the blobs, or the main node's response
/// is wrong only in appearance.
fn a_beacon_that_fails_in_part(world: &mut AnvilWorld, fault: BeaconFault) {
    world.beacon.set(fault);
    world.fallback.set(BeaconFault::None);
    world.mine_in_blobs();
    world.settle();
    world.beacon.set(BeaconFault::None);
}

#[test]
fn blobs_and_calldata_of_anvil_through_a_beacon_node_that_fails() {
    let Some(mut world) = AnvilWorld::new() else {
        return;
    };
    blobs_and_calldata_in_one_block(&mut world);
    a_beacon_that_fails_in_part(&mut world, BeaconFault::Reordered);
    for fault in [
        BeaconFault::NotFound,
        BeaconFault::Broken,
        BeaconFault::Wrong,
        BeaconFault::Missing,
        BeaconFault::Html,
    ] {
        a_beacon_that_fails(&mut world, fault);
    }
    a_beacon_that_fails_in_part(&mut world, BeaconFault::Silence);
    a_beacon_that_fails_in_part(&mut world, BeaconFault::OnlySidecars);
    let log = world.verifier.log();
    for cause in ["HTTP status 404", "HTTP status 500", "untrue", "a web page"] {
        assert!(log.contains(cause), "the log names {cause:?}");
    }
}

#[test]
fn reorgs_of_anvil_are_followed() {
    let Some(mut world) = AnvilWorld::new() else {
        return;
    };
    world.l1.mine_to(20);
    world.mine_in_blobs();
    world.settle();
    for depth in [1, 5, 20] {
        let safe = world.author.head().number();
        world.l1.reorganise(depth);
        world.author.rewind_to(&world.l1.chain);
        let status = world.verifier.wait_until_derived(&world.l1.head_hash());
        let head = json!(world.author.head().hash);
        assert_eq!(status["unsafe_l2"]["hash"], head, "{status}");
        assert!(
            status["safe_l2"]["number"].as_u64() < Some(safe),
            "{status}"
        );
        // Post the batches again that the L1 reorg removed.
        let from = status["safe_l2"]["number"].as_u64().expect("a number") as usize + 1;
        world.author.rewind(from as u64 - 1);
        world.mine_in_blobs();
        world.settle();
    }
}
