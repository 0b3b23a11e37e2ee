//! A complete test environment: an L1 that the test controls, an author that builds L2 blocks and
//! batches, and a verifier that reads only L1.

use super::{
    author::Author,
    l1::{CoreL1, L1Call, L1Chain},
};
use crate::{derive::verifier::Verifier, net::Account};
use alloy_primitives::{Bytes, U256, keccak256};
use serde_json::Value;
use starling::{
    chain::genesis,
    devnet::{
        accounts,
        genesis::{Files, Plan, SYSTEM_CONFIG, build},
        l1_config,
    },
};
use starling_proto::{
    channel::{ChannelCompression, ChannelWriter},
    config::RollupConfig,
    fork::{Fork, ForkSchedule},
    frame::{self, ChannelId, Frame},
    l1_config::L1ChainConfig,
    payload::Payload,
};
use std::{path::Path, sync::Arc};

/// Unix time of both genesis blocks, for tests that do not depend on the clock.
pub const START: u64 = 1_700_000_000;

/// Indices of the network's accounts by role.
pub const OWNER: usize = 0;
pub const USER: usize = 2;
const NEW_BATCHER: usize = 8;
pub const BATCHER: usize = 9;

/// Largest frame of a channel, in bytes.
const FRAME: usize = 100_000;

/// The parameters of a test environment. Times are in seconds.
pub struct ActionPlan {
    /// Unix time of both genesis blocks.
    pub start: u64,
    pub l1_period: u64,
    pub l2_period: u64,
    /// The sequencing window, in L1 blocks.
    pub window: u64,
    pub forks: ForkSchedule,
    /// A function that changes L1's genesis file.
    pub l1_genesis: fn(&mut Value),
}

impl Default for ActionPlan {
    /// All forks through Jovian are active from genesis on.
    fn default() -> Self {
        Self {
            start: START,
            l1_period: 12,
            l2_period: 2,
            window: 10,
            forks: ForkSchedule::from_genesis(Fork::Jovian),
            l1_genesis: |_| {},
        }
    }
}

/// The config and genesis files of a chain.
pub struct ActionFiles {
    pub rollup: RollupConfig,
    pub l1_genesis: Value,
    pub l2_genesis: Value,
}

impl ActionFiles {
    pub fn new(plan: &ActionPlan) -> Self {
        let devnet = Plan {
            time: plan.start,
            l2_block_time: plan.l2_period,
            sequencer: accounts::owner(),
        };
        let Files {
            mut l1_genesis,
            mut l2_genesis,
            mut rollup,
        } = build(&devnet).expect("genesis files");
        (plan.l1_genesis)(&mut l1_genesis);
        let hash = |file: &Value| {
            let parsed = genesis::parse(&file.to_string()).expect("a genesis");
            parsed.header.hash_slow()
        };
        rollup.genesis.l1.hash = hash(&l1_genesis);
        rollup.forks = plan.forks.clone();
        rollup.seq_window_size = plan.window;
        if plan.forks.at(plan.start) < Fork::Ecotone {
            // The scalar is in millionths, and a plain number until Ecotone.
            rollup.genesis.system_config.scalar = U256::from(684_000).into();
        }
        l2_genesis["config"] = genesis::config_of_rollup(&rollup).expect("a config");
        l2_genesis["extraData"] = match plan.forks.at(plan.start) {
            fork if fork < Fork::Holocene => "0x".into(),
            fork if fork < Fork::Jovian => "0x00000000fa00000006".into(),
            _ => l2_genesis["extraData"].take(),
        };
        rollup.genesis.l2.hash = hash(&l2_genesis);
        Self {
            rollup,
            l1_genesis,
            l2_genesis,
        }
    }

    /// L1's chain config as JSON.
    pub fn l1_config(&self) -> String {
        l1_config::of_genesis(&self.l1_genesis).to_string()
    }

    /// Writes the files that the node processes read.
    pub fn write(&self, folder: &Path) {
        let write = |name: &str, text: String| {
            std::fs::write(folder.join(name), text).expect("a file");
        };
        write("rollup.json", self.rollup.to_json());
        write("l1-chain-config.json", self.l1_config());
        let genesis = self.l2_genesis.to_string();
        let packed = zstd::encode_all(genesis.as_bytes(), 1).expect("zstd");
        std::fs::write(folder.join("l2-genesis.json.zst"), packed).expect("a file");
    }
}

pub fn account(index: usize) -> Account {
    let account = accounts::all().swap_remove(index);
    Account {
        address: account.address,
        key: account.private_key.parse().expect("a key"),
    }
}

/// The endpoint over which a verifier reads L1, and its other options.
pub struct VerifierLinks {
    pub l1: String,
    pub options: Vec<String>,
}

pub struct ActionWorld {
    pub l1: CoreL1,
    pub author: Author,
    pub verifier: Verifier,
    batcher: Account,
    channels: u8,
    /// The files of the chain.
    pub folder: tempfile::TempDir,
}

impl ActionWorld {
    pub fn new(plan: ActionPlan) -> Self {
        Self::with_links(plan, |l1| VerifierLinks {
            l1: l1.url.clone(),
            options: vec![],
        })
    }

    /// Makes an environment whose verifier reads L1 over the endpoint that `links` returns.
    pub fn with_links(plan: ActionPlan, links: impl FnOnce(&CoreL1) -> VerifierLinks) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = ActionFiles::new(&plan);
        files.write(folder.path());
        let l1 = CoreL1::start(&files.l1_genesis.to_string(), plan.l1_period);
        assert_eq!(l1.head().block.hash, files.rollup.genesis.l1.hash);
        let schedule = L1ChainConfig::from_json(&files.l1_config()).expect("a config");
        let genesis = files.l2_genesis.to_string();
        let author = Author::new(&genesis, files.rollup, schedule.blobs, account(USER));
        let VerifierLinks { l1: url, options } = links(&l1);
        let verifier = Verifier::start(folder.path(), &url, &options);
        Self {
            l1,
            author,
            verifier,
            batcher: account(BATCHER),
            channels: 0,
            folder,
        }
    }

    /// Appends L2 blocks with one transfer each, as long as their L1 origin is at most `epoch`.
    /// Returns the new blocks.
    pub fn extend(&mut self, epoch: u64) -> Vec<Arc<Payload>> {
        self.extend_by(epoch, |author| vec![author.transfer()])
    }

    /// Appends empty L2 blocks as long as their L1 origin is at most `epoch`.
    pub fn extend_empty(&mut self, epoch: u64) -> Vec<Arc<Payload>> {
        self.extend_by(epoch, |_| vec![])
    }

    pub fn extend_by(
        &mut self,
        epoch: u64,
        user: impl Fn(&Author) -> Vec<Bytes>,
    ) -> Vec<Arc<Payload>> {
        self.author.extend_by(&self.l1.chain, epoch, user)
    }

    /// A transaction to the batch inbox that carries a data item as calldata.
    pub fn inbox(&self, from: &Account, item: Vec<u8>) -> L1Call {
        L1Call {
            from: from.clone(),
            to: self.author.rollup.batch_inbox_address,
            value: 0,
            input: item.into(),
            blobs: vec![],
        }
    }

    /// A data item that contains a complete channel with these batches.
    pub fn channel(&mut self, batches: &[Vec<u8>]) -> Vec<u8> {
        self.channels += 1;
        frame::encode(&channel(self.channels, batches))
    }

    /// The transaction by which the batcher posts these batches in one channel.
    pub fn post(&mut self, batches: &[Vec<u8>]) -> L1Call {
        let item = self.channel(batches);
        self.inbox(&self.batcher.clone(), item)
    }

    /// The data items of a channel with a span batch of these blocks; the channel is cut into
    /// `pieces` frames.
    pub fn items(&mut self, blocks: &[Arc<Payload>], pieces: usize) -> Vec<Vec<u8>> {
        self.channels += 1;
        cut_channel(self.channels, &self.author.span(blocks), pieces)
    }

    /// The batcher's transaction to the batch inbox with a data item as calldata.
    pub fn calldata(&self, item: &[u8]) -> L1Call {
        self.inbox(&self.batcher, item.to_vec())
    }

    /// The batcher's transaction to the batch inbox with each data item in a blob.
    pub fn blobs(&self, items: &[Vec<u8>]) -> L1Call {
        L1Call {
            blobs: items.to_vec(),
            ..self.inbox(&self.batcher, vec![])
        }
    }

    /// The transaction by which the batcher posts these blocks as singular batches.
    pub fn post_singular(&mut self, blocks: &[Arc<Payload>]) -> L1Call {
        let batches = blocks.iter();
        let batches = batches.map(|block| self.author.singular(block).encode());
        let batches: Vec<_> = batches.collect();
        self.post(&batches)
    }

    /// The transaction by which the batcher posts these blocks as one span batch.
    pub fn post_span(&mut self, blocks: &[Arc<Payload>]) -> L1Call {
        let span = self.author.span(blocks);
        self.post(&[span])
    }

    /// A call by SystemConfig's owner to one of its setters. `words` are the arguments.
    pub fn configure(&self, setter: &str, words: &[U256]) -> L1Call {
        let mut input = keccak256(setter)[..4].to_vec();
        input.extend(words.iter().flat_map(|word| word.to_be_bytes::<32>()));
        L1Call {
            from: account(OWNER),
            to: SYSTEM_CONFIG,
            value: 0,
            input: input.into(),
            blobs: vec![],
        }
    }

    /// Switches the batcher to the other one of two keys. Returns the call that announces the new
    /// key, and the old key.
    pub fn replace_batcher(&mut self) -> (L1Call, Account) {
        let keys = [NEW_BATCHER, BATCHER].map(account);
        let other = |key: &Account| key.address != self.batcher.address;
        let new = keys.into_iter().find(other).expect("two keys");
        let call = self.configure("setBatcherHash(bytes32)", &[new.address.into_word().into()]);
        (call, std::mem::replace(&mut self.batcher, new))
    }

    /// Waits until the verifier has derived all of L1, and checks that its safe head is the
    /// author's head.
    pub fn settle(&mut self) -> Value {
        let status = self.derived();
        let head = self.author.head();
        let safe = &status["safe_l2"];
        assert_eq!(safe["number"], head.number(), "{status}");
        assert_eq!(safe["hash"], serde_json::json!(head.hash), "{status}");
        status
    }

    /// Waits until the verifier has derived all of L1. Returns its status.
    pub fn derived(&mut self) -> Value {
        let head = self.l1.head_hash();
        self.verifier.wait_until_derived(&head)
    }

    /// The current L1 chain and the current L2 chain.
    pub fn branch(&self) -> (L1Chain, Vec<Arc<Payload>>) {
        (self.l1.chain.clone(), self.author.chain.clone())
    }

    pub fn switch_to(&mut self, branch: &(L1Chain, Vec<Arc<Payload>>)) {
        self.l1.switch_to(branch.0.clone());
        self.author.switch_to(branch.1.clone());
    }
}

/// The frames of a complete channel with these batches.
pub fn channel(id: u8, batches: &[Vec<u8>]) -> Vec<Frame> {
    let id = ChannelId::repeat_byte(id);
    let compression = ChannelCompression::Zlib;
    let mut channel = ChannelWriter::new(id, compression, true).expect("a channel");
    for batch in batches {
        channel.add(batch).expect("room");
    }
    channel.close().expect("a whole channel");
    std::iter::from_fn(|| channel.next_frame(FRAME).expect("a frame")).collect()
}

/// The data items of a channel with this batch, one frame each and at most `pieces`.
pub fn cut_channel(id: u8, batch: &[u8], pieces: usize) -> Vec<Vec<u8>> {
    let whole = channel(id, &[batch.to_vec()]);
    let [Frame { id, data, .. }] = &whole[..] else {
        panic!("{} frames", whole.len());
    };
    let size = data.len().div_ceil(pieces);
    let frames = data.chunks(size).enumerate().map(|(number, piece)| {
        let is_last = (number + 1) * size >= data.len();
        frame::encode(&[Frame {
            id: *id,
            number: number as u16,
            data: Bytes::copy_from_slice(piece),
            is_last,
        }])
    });
    frames.collect()
}
