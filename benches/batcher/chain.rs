//! A long L2 chain without batches and the L1 of its origins, made as data directories, and the
//! processes that serve the two chains.

use super::{
    net::{self, Running, call, starling, wait},
    process::BatcherLinks,
    support::{Ground, Unsigned, unix_now},
};
use alloy_primitives::{Address, B256, Bytes};
use alloy_rpc_types_engine::PayloadAttributes;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use rayon::prelude::*;
use serde_json::{Value, json};
use starling::{
    chain::{self, Chain, Options, Threads, genesis},
    devnet::{
        accounts,
        genesis::{L1_CHAIN_ID, l1_genesis_of},
        l1_config,
    },
};
use starling_proto::{
    attributes::{L1Block, attributes},
    config::RollupConfig,
    fork::BlobSchedule,
    payload::Payload,
};
use starling_testkit::free_port;
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

const L1_PERIOD: u64 = 12;
/// Accounts that send transfers.
const SENDERS: usize = 1_000;
const PATIENCE: Duration = Duration::from_secs(600);

/// L1 and L2 data directories in one folder.
pub struct Backlog {
    folder: tempfile::TempDir,
    pub blocks: u64,
}

fn open(datadir: &Path) -> (Chain, Threads) {
    let options = Options {
        datadir: datadir.to_owned(),
        cache: 128 << 20,
        commit_interval: Duration::from_secs(1),
    };
    Chain::open(&options).expect("the chain opens")
}

fn l1_block(payload: &Payload) -> L1Block {
    L1Block {
        number: payload.number(),
        hash: payload.hash,
        parent_hash: payload.parent_hash(),
        time: payload.timestamp(),
        base_fee: payload.header.base_fee_per_gas.unwrap_or_default(),
        mix_hash: payload.header.mix_hash,
        excess_blob_gas: payload.header.excess_blob_gas,
        parent_beacon_root: payload.header.parent_beacon_block_root,
        receipts_root: payload.header.receipts_root,
        state_root: payload.header.state_root,
    }
}

/// Mines `count` empty L1 blocks.
async fn mine(chain: &Chain, count: u64) -> Vec<L1Block> {
    let first = chain.view().payload(0).expect("a read").expect("a genesis");
    let mut blocks = vec![l1_block(&first)];
    for number in 1..=count {
        let parent = &blocks[blocks.len() - 1];
        let attributes = OpPayloadAttributes {
            payload_attributes: PayloadAttributes {
                timestamp: parent.time + L1_PERIOD,
                prev_randao: B256::ZERO,
                suggested_fee_recipient: Address::repeat_byte(0xfe),
                withdrawals: Some(vec![]),
                parent_beacon_block_root: Some(B256::with_last_byte(number as u8)),
                ..Default::default()
            },
            transactions: Some(vec![]),
            no_tx_pool: Some(true),
            ..Default::default()
        };
        let id = chain.start(parent.hash, attributes).await;
        let block = chain.seal(id.expect("a build")).await.expect("a block");
        let moved = chain.forkchoice(block.payload.hash, None, None).await;
        moved.expect("the head moves");
        blocks.push(l1_block(&block.payload));
    }
    blocks
}

/// Builds the L2 chain of the backlog, block by block.
struct BacklogMaker {
    chain: Chain,
    rollup: RollupConfig,
    ground: Ground,
    transfers: usize,
    turn: usize,
}

impl BacklogMaker {
    fn transactions(&mut self) -> Vec<Bytes> {
        let chain_id = self.rollup.l2_chain_id;
        let unsigned = (self.turn..self.turn + self.transfers).map(|turn| {
            let to = self.ground.senders[(turn * 31 + 7) % SENDERS].address;
            self.ground.senders[turn % SENDERS].transfer(chain_id, to)
        });
        let unsigned: Vec<_> = unsigned.collect();
        self.turn += self.transfers;
        unsigned.into_par_iter().map(Unsigned::sign).collect()
    }

    /// Appends the next L2 block, with the attributes that derivation will compute for it.
    async fn extend(&mut self, l1: &[L1Block]) {
        let head = self.chain.view().head().number;
        let parent = self.chain.view().payload(head).expect("a read");
        let parent = parent.expect("the head is there");
        let time = parent.timestamp() + self.rollup.block_time;
        let epoch = (time - l1[0].time) / L1_PERIOD;
        let schedule = BlobSchedule::new(vec![(0, BlobSchedule::CANCUN)]);
        let origin = &l1[epoch as usize];
        let derived = attributes(&self.rollup, &schedule, &parent, origin, Some(&[]));
        let mut attributes = derived.expect("attributes").attributes;
        attributes.no_tx_pool = Some(true);
        let all = attributes.transactions.get_or_insert_default();
        all.extend(self.transactions());
        let id = self.chain.start(parent.hash, attributes).await;
        let block = self.chain.seal(id.expect("a build")).await;
        let block = block.expect("the block is sealed");
        let moved = self.chain.forkchoice(block.payload.hash, None, None).await;
        moved.expect("the head moves");
    }
}

impl Backlog {
    /// Makes `blocks` L2 blocks of `transfers` transfers each, one block a second. The last block
    /// has a timestamp three L1 block times before this call.
    pub fn new(blocks: u64, transfers: usize) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let time = unix_now() - blocks - 3 * L1_PERIOD;
        let ground = Ground::new(time, SENDERS);
        let mut alloc = serde_json::Map::new();
        let balance = json!({ "balance": format!("{:#x}", accounts::BALANCE) });
        alloc.insert(accounts::batcher().to_string(), balance);
        let mut l1_genesis = l1_genesis_of(L1_CHAIN_ID, alloc);
        l1_genesis["timestamp"] = time.into();
        let parsed = genesis::parse(&l1_genesis.to_string()).expect("a genesis");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let l1_dir = folder.path().join("l1");
        chain::init(&l1_dir, &parsed).expect("a data directory");
        let (chain, threads) = open(&l1_dir);
        let l1 = runtime.block_on(mine(&chain, blocks / L1_PERIOD + 2));
        drop(chain);
        threads.stop().expect("the chain is stored");
        let mut rollup = ground.rollup.clone();
        rollup.genesis.l1 = l1[0].id();
        let (chain, threads) = ground.open(&folder.path().join("l2"));
        let mut maker = BacklogMaker {
            chain,
            rollup: rollup.clone(),
            ground,
            transfers,
            turn: 0,
        };
        runtime.block_on(async {
            for _ in 0..blocks {
                maker.extend(&l1).await;
            }
        });
        drop(maker);
        threads.stop().expect("the chain is stored");
        let config = l1_config::of_genesis(&l1_genesis).to_string();
        std::fs::write(folder.path().join("l1.json"), config).expect("a file");
        std::fs::write(folder.path().join("rollup.json"), rollup.to_json()).expect("a file");
        Self { folder, blocks }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the L1 and the node that serves the L2 chain.
    pub fn serve(&self) -> BacklogNodes {
        let [l1, beacon] = [free_port(), free_port()];
        let url = |port| format!("http://127.0.0.1:{port}");
        let mut command = starling();
        command
            .arg("execution")
            .arg(format!("--datadir={}", self.path("l1").display()))
            .args(["--http", "--http.addr=127.0.0.1", "--dev.period=1"])
            .arg(format!("--http.port={l1}"))
            .arg(format!("--dev.beacon.port={beacon}"));
        let l1_process = spawn(command, &self.path("l1.log"));
        wait("the L1", PATIENCE, || {
            call(&url(l1), "eth_chainId", json!([])).ok()
        });
        let [http, rpc] = [free_port(), free_port()];
        let mut command = starling();
        command
            .arg("node")
            .arg(format!("--datadir={}", self.path("l2").display()))
            .arg(format!(
                "--rollup.config={}",
                self.path("rollup.json").display()
            ))
            .arg(format!(
                "--rollup.l1-chain-config={}",
                self.path("l1.json").display()
            ))
            .arg(format!("--l1={}", url(l1)))
            .arg(format!("--l1.beacon={}", url(beacon)))
            .args(["--p2p.disable", "--http", "--rpc.addr=127.0.0.1"])
            .args(["--l1.http-poll-interval=500ms"])
            .arg(format!("--http.port={http}"))
            .arg(format!("--rpc.port={rpc}"));
        let node_process = spawn(command, &self.path("l2.log"));
        let nodes = BacklogNodes {
            links: BatcherLinks {
                l1: url(l1),
                l2: url(http),
                rollup: url(rpc),
                key: batcher_key(),
                dir: self.folder.path().to_owned(),
            },
            _l1: l1_process,
            _node: node_process,
        };
        wait("the node", PATIENCE, || {
            let status = nodes.status()?;
            (status["unsafe_l2"]["number"].as_u64()? >= self.blocks
                && status["current_l1"]["number"].as_u64()? >= self.blocks / L1_PERIOD)
                .then_some(())
        });
        nodes
    }
}

/// The running L1 and L2 processes.
pub struct BacklogNodes {
    pub links: BatcherLinks,
    _l1: Running,
    _node: Running,
}

impl BacklogNodes {
    pub fn status(&self) -> Option<Value> {
        net::call(&self.links.rollup, "optimism_syncStatus", json!([])).ok()
    }

    pub fn safe(&self) -> Option<u64> {
        self.status()?["safe_l2"]["number"].as_u64()
    }
}

fn batcher_key() -> String {
    let all = accounts::all();
    let batcher = all
        .iter()
        .find(|account| account.address == accounts::batcher());
    batcher.expect("the batcher's account").private_key.clone()
}

fn spawn(mut command: Command, log: &Path) -> Running {
    let log = std::fs::File::create(log).expect("a log file");
    let child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log file"))
        .stderr(log)
        .spawn();
    Running {
        child: child.expect("the program starts"),
    }
}
