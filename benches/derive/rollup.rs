//! A synthetic rollup: an L2 chain built by Starling's own core, and an L1 with its batches.

use super::{
    batcher::{BatchCarrier, Batcher},
    crowd::Crowd,
    l1_block::{Posting, SyntheticBlock},
    support::{Ground, copy, spread::Spread},
};
use alloy_primitives::Bytes;
use serde_json::json;
use starling::{
    chain::{self, Chain, Options},
    transfer::block_file::BlockWriter,
};
use starling_proto::{
    attributes::{L1Block, attributes},
    config::RollupConfig,
    fork::BlobSchedule,
    payload::Payload,
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Time of the L1 and L2 genesis blocks, Unix seconds.
pub const GENESIS_TIME: u64 = 1_700_000_000;
/// Number of lists of other users' transactions, which successive L1 blocks use in rotation.
const CROWDS: usize = 8;
const L1_GAS: u64 = 30_000_000;

/// Parameters of a synthetic rollup.
#[derive(Clone, Copy)]
pub struct Recipe {
    /// Number of L1 blocks after genesis.
    pub l1_blocks: usize,
    /// Seconds between L2 blocks.
    pub l2_block_time: u64,
    /// Number of transfers in each L2 block.
    pub transfers: usize,
    /// Number of accounts in L2's genesis.
    pub accounts: usize,
    /// Number of L1 blocks per channel.
    pub epochs_per_channel: usize,
    pub carrier: BatchCarrier,
    /// Numbers of other users' transactions and logs in each L1 block.
    pub crowd: (usize, usize),
}

/// Files that a node is started with, in a folder of the bench.
pub struct NodeFiles {
    folder: PathBuf,
}

/// A synthetic L1 and L2.
pub struct SyntheticRollup {
    pub files: NodeFiles,
    pub l1: Vec<SyntheticBlock>,
    /// Number of the last L2 block that a batch contains.
    pub last: u64,
}

impl NodeFiles {
    /// Writes `rollup.json` and L1's chain config to `folder`. The genesis data directory is made
    /// separately.
    pub fn new(folder: &Path, rollup: &RollupConfig) -> Self {
        let l1 = json!({
            "chainId": super::L1_CHAIN_ID, "cancunTime": 0,
            "blobSchedule": {"cancun": {"target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477}},
        });
        fs::write(folder.join("rollup.json"), rollup.to_json()).expect("a file");
        fs::write(folder.join("l1.json"), l1.to_string()).expect("a file");
        Self {
            folder: folder.to_owned(),
        }
    }

    pub fn rollup(&self) -> PathBuf {
        self.folder.join("rollup.json")
    }

    pub fn l1_config(&self) -> PathBuf {
        self.folder.join("l1.json")
    }

    /// File of L2 blocks for `starling import`.
    pub fn blocks(&self) -> PathBuf {
        self.folder.join("blocks.rlp")
    }

    /// A new data directory with the genesis block only.
    pub fn datadir(&self, name: &str) -> PathBuf {
        let datadir = self.folder.join(name);
        let _ = fs::remove_dir_all(&datadir);
        copy(&self.folder.join("genesis"), &datadir);
        datadir
    }

    /// The data directory that [`NodeFiles::datadir`] copies.
    pub fn genesis(folder: &Path) -> PathBuf {
        folder.join("genesis")
    }
}

/// The rollup config of `ground` for an L1 whose genesis is `l1`.
pub fn config(ground: &Ground, l1: &L1Block, l2_block_time: u64) -> RollupConfig {
    let mut rollup = ground.rollup.clone();
    rollup.genesis.l1 = l1.id();
    rollup.genesis.system_config.batcher_addr = Batcher::address();
    rollup.block_time = l2_block_time;
    rollup
}

/// L1's genesis block.
pub fn l1_genesis() -> SyntheticBlock {
    SyntheticBlock::new(None, GENESIS_TIME, Arc::default(), Posting::default())
}

impl SyntheticRollup {
    pub fn make(recipe: &Recipe, folder: &Path) -> Self {
        let (mut ground, spread) = Spread::new(recipe.accounts);
        let l1 = vec![l1_genesis()];
        let rollup = config(&ground, &l1[0].block, recipe.l2_block_time);
        chain::init(&NodeFiles::genesis(folder), &ground.genesis).expect("a data directory");
        ground.genesis.overlay = Default::default();
        let files = NodeFiles::new(folder, &rollup);
        let (chain, threads) = open(&files.datadir("source"));
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let maker = Maker {
            rollup,
            chain,
            ground,
            spread,
            transfers: recipe.transfers,
        };
        let made = runtime.block_on(maker.run(recipe, files, l1));
        threads.stop().expect("the chain is stored");
        fs::remove_dir_all(folder.join("source")).expect("no longer needed");
        made
    }
}

fn open(datadir: &Path) -> (Chain, chain::Threads) {
    let options = Options {
        datadir: datadir.to_owned(),
        cache: 128 << 20,
        commit_interval: Duration::from_secs(1),
    };
    Chain::open(&options).expect("the chain opens")
}

/// Builds an L2 chain, block by block.
struct Maker {
    rollup: RollupConfig,
    chain: Chain,
    ground: Ground,
    spread: Spread,
    transfers: usize,
}

impl Maker {
    async fn run(
        mut self,
        recipe: &Recipe,
        files: NodeFiles,
        mut l1: Vec<SyntheticBlock>,
    ) -> SyntheticRollup {
        let (count, logs) = recipe.crowd;
        let crowd = |salt| Arc::new(Crowd::new(salt as u64, count, logs, L1_GAS));
        let crowds: Vec<_> = (0..CROWDS).map(crowd).collect();
        let mut batcher = Batcher::new(&self.rollup, recipe.carrier);
        let mut file = BlockWriter::create(&files.blocks(), false).expect("a file");
        let (mut pending, mut last) = (vec![], 0);
        for number in 1..=recipe.l1_blocks {
            let previous = &l1[number - 1];
            self.epoch(&previous.block, &mut pending).await;
            let mut posting = Posting::default();
            if number.is_multiple_of(recipe.epochs_per_channel) {
                posting = batcher.post_blocks(&self.rollup, &pending);
                for payload in pending.drain(..) {
                    last = payload.number();
                    file.write(&payload).expect("the block is written");
                }
            }
            let time = previous.block.time + super::L1_BLOCK_TIME;
            let crowd = crowds[number % CROWDS].clone();
            let block = SyntheticBlock::new(Some(previous), time, crowd, posting);
            l1.push(block);
        }
        file.finish().expect("the file is written");
        SyntheticRollup { files, l1, last }
    }

    /// Appends all L2 blocks with this L1 origin.
    async fn epoch(&mut self, origin: &L1Block, blocks: &mut Vec<Arc<Payload>>) {
        let end = origin.time + super::L1_BLOCK_TIME;
        loop {
            let head = self.chain.view().head().number;
            let parent = self.chain.view().payload(head).expect("a read");
            let parent = parent.expect("the head is there");
            if parent.timestamp() + self.rollup.block_time >= end {
                return;
            }
            let transactions = self.spread.transactions(&mut self.ground, self.transfers);
            blocks.push(self.seal(&parent, origin, transactions).await);
        }
    }

    /// Builds the block after `parent` with the attributes that derivation will compute for it.
    async fn seal(
        &self,
        parent: &Payload,
        origin: &L1Block,
        transactions: Vec<Bytes>,
    ) -> Arc<Payload> {
        let schedule = BlobSchedule::new(vec![(0, BlobSchedule::CANCUN)]);
        let derived = attributes(&self.rollup, &schedule, parent, origin, Some(&[]));
        let mut attributes = derived.expect("attributes").attributes;
        attributes.no_tx_pool = Some(true);
        attributes
            .transactions
            .get_or_insert_default()
            .extend(transactions);
        let id = self.chain.start(parent.hash, attributes).await;
        let block = self.chain.seal(id.expect("a build")).await;
        let block = block.expect("the block is sealed");
        let moved = self.chain.forkchoice(block.payload.hash, None, None).await;
        moved.expect("the head moves");
        block.payload.clone()
    }
}
