//! Helpers of the benches: a chain of full blocks made in this process, and statistics for the
//! printed figures.
#![allow(dead_code, reason = "each bench uses its part")]

pub mod frames;
pub mod part;
pub mod process;
pub mod program;
pub mod spread;
pub mod swarm;
pub mod token;

use alloy_consensus::{SignableTransaction, TxEip1559};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, Bytes, Signature, U256};
use op_alloy_consensus::OpTxEnvelope;
use rayon::prelude::*;
use secp256k1::{Message, SECP256K1, SecretKey};
use serde_json::json;
use starling::{
    chain::{
        self, Chain, Options, Threads,
        genesis::{self, Genesis},
    },
    devnet::genesis::{Files, Plan, build},
};
use starling_proto::{
    attributes::{L1Block, attributes},
    config::RollupConfig,
    fork::BlobSchedule,
    payload::Payload,
    sign,
    system_config::Eip1559Params,
};
use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Seconds between blocks.
const BLOCK_TIME: u64 = 1;
const BLOCK_GAS_LIMIT: u64 = 120_000_000;
const GAS_OF_TRANSFER: u64 = 21_000;
const CACHE: u64 = 64 << 20;
const SEQUENCER_KEY: &str = "00000000000000000000000000000000000000000000000000000000000000aa";

/// A size from the environment variable `name`.
pub fn size(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number"))
    })
}

/// Copies a folder with all its files.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in from.read_dir().expect("a folder").flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("a copy");
        }
    }
}

pub fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("the clock stands after 1970")
        .as_secs()
}

/// An account that sends transactions, and its next nonce.
pub struct Sender {
    key: SecretKey,
    pub address: Address,
    nonce: u64,
}

impl Sender {
    /// Makes account number `index` of a bench.
    pub fn new(index: usize) -> Self {
        let key = SecretKey::from_slice(&U256::from(index + 1).to_be_bytes::<32>())
            .expect("small numbers are keys");
        Self {
            address: sign::address(&key),
            key,
            nonce: 0,
        }
    }

    /// The sender's next transaction, a transfer of one wei, signed and in EIP-2718 encoding.
    pub fn pay(&mut self, chain_id: u64, to: Address) -> Bytes {
        self.transfer(chain_id, to).sign()
    }

    /// The sender's next transaction, a transfer of one wei, unsigned.
    pub fn transfer(&mut self, chain_id: u64, to: Address) -> Unsigned {
        self.call(chain_id, to, U256::from(1), GAS_OF_TRANSFER, Bytes::new())
    }

    /// The sender's next transaction, unsigned.
    pub fn call(
        &mut self,
        chain_id: u64,
        to: Address,
        value: U256,
        gas_limit: u64,
        input: Bytes,
    ) -> Unsigned {
        let tx = TxEip1559 {
            chain_id,
            nonce: self.nonce,
            gas_limit,
            max_fee_per_gas: 100_000_000_000,
            max_priority_fee_per_gas: 1_000_000,
            to: to.into(),
            value,
            input,
            ..Default::default()
        };
        self.nonce += 1;
        Unsigned { tx, key: self.key }
    }
}

/// An unsigned transaction and its signer.
pub struct Unsigned {
    tx: TxEip1559,
    key: SecretKey,
}

impl Unsigned {
    /// Signs the transaction. Returns its EIP-2718 encoding.
    pub fn sign(self) -> Bytes {
        let digest = Message::from_digest(self.tx.signature_hash().0);
        let (id, bytes) = SECP256K1
            .sign_ecdsa_recoverable(&digest, &self.key)
            .serialize_compact();
        let signature = Signature::from_bytes_and_parity(&bytes, i32::from(id) == 1);
        OpTxEnvelope::Eip1559(self.tx.into_signed(signature))
            .encoded_2718()
            .into()
    }
}

/// The base of a bench chain: the genesis of an L2 with the devnet's contracts, every fork through
/// Jovian and many funded accounts, and the senders of the chain's transactions.
pub struct Ground {
    pub genesis: Genesis,
    /// The genesis file as JSON.
    pub file: serde_json::Value,
    pub rollup: RollupConfig,
    origin: L1Block,
    pub senders: Vec<Sender>,
    turn: usize,
}

/// The objects of a genesis file's `alloc`, by address.
pub type Alloc = serde_json::Map<String, serde_json::Value>;

impl Ground {
    /// `time` is the genesis timestamp in Unix seconds.
    pub fn new(time: u64, accounts: usize) -> Self {
        Self::with(time, accounts, |_, _| {})
    }

    /// Same as [`Ground::new`], except that `add` may insert more accounts into the genesis.
    pub fn with(time: u64, senders: usize, add: impl FnOnce(&mut Alloc, &[Sender])) -> Self {
        let senders: Vec<_> = (0..senders).into_par_iter().map(Sender::new).collect();
        let plan = Plan {
            time,
            l2_block_time: BLOCK_TIME,
            sequencer: sign::address(&sequencer()),
        };
        let Files {
            l1_genesis,
            mut l2_genesis,
            mut rollup,
        } = build(&plan).expect("the genesis builds");
        let alloc = l2_genesis["alloc"].as_object_mut().expect("an alloc");
        for sender in &senders {
            alloc.insert(
                sender.address.to_string(),
                json!({"balance": "0x3635c9adc5dea00000"}),
            );
        }
        add(alloc, &senders);
        let genesis = genesis::parse(&l2_genesis.to_string()).expect("our genesis parses");
        rollup.genesis.l2 = genesis.payload().id();
        let l1 = genesis::parse(&l1_genesis.to_string())
            .expect("our L1 genesis parses")
            .payload();
        // Every block has the first L1 block as its origin, since L1 is not measured.
        let origin = L1Block {
            number: l1.number(),
            hash: l1.hash,
            parent_hash: l1.parent_hash(),
            time: l1.timestamp(),
            base_fee: l1.header.base_fee_per_gas.unwrap_or_default(),
            mix_hash: l1.header.mix_hash,
            excess_blob_gas: l1.header.excess_blob_gas,
            parent_beacon_root: l1.header.parent_beacon_block_root,
            receipts_root: l1.header.receipts_root,
            state_root: l1.header.state_root,
        };
        Self {
            genesis,
            file: l2_genesis,
            rollup,
            origin,
            senders,
            turn: 0,
        }
    }

    /// Makes a data directory and opens it.
    pub fn open(&self, datadir: &Path) -> (Chain, Threads) {
        chain::init(datadir, &self.genesis).expect("the data directory is made");
        let options = Options {
            datadir: datadir.to_owned(),
            cache: CACHE,
            commit_interval: Duration::from_secs(1),
        };
        Chain::open(&options).expect("the chain opens")
    }

    /// Sets the senders' nonces to continue at the head of this chain.
    pub fn resume(&mut self, chain: &Chain) {
        let state = chain.view().state();
        for sender in &mut self.senders {
            sender.nonce = state
                .account(sender.address)
                .expect("a read")
                .map_or(0, |account| account.nonce);
        }
    }

    /// Appends the next block: the L1 attributes and `transfers` transfers, each from a different
    /// account to yet another account.
    pub async fn extend(&mut self, chain: &Chain, transfers: usize) -> Arc<Payload> {
        let count = self.senders.len();
        let transactions = (self.turn..self.turn + transfers).map(|turn| {
            let to = self.senders[(turn * 31 + 7) % count].address;
            self.senders[turn % count].pay(self.rollup.l2_chain_id, to)
        });
        let transactions = transactions.collect();
        self.turn += transfers;
        self.seal(chain, transactions).await
    }

    /// Builds and seals the next block: the L1 attributes and these transactions.
    pub async fn seal(&self, chain: &Chain, transactions: Vec<Bytes>) -> Arc<Payload> {
        let parent = chain.view();
        let number = parent.head().number;
        let parent = parent
            .payload(number)
            .expect("the head can be read")
            .expect("the head is there");
        let derived = attributes(
            &self.rollup,
            &BlobSchedule::default(),
            &parent,
            &self.origin,
            None,
        );
        let mut attributes = derived.expect("the attributes can be derived").attributes;
        attributes.no_tx_pool = Some(true);
        // A gas limit far above what the blocks use keeps the base fee from rising.
        attributes.gas_limit = Some(BLOCK_GAS_LIMIT);
        attributes.eip_1559_params = Some(
            Eip1559Params {
                denominator: 250,
                elasticity: 1,
            }
            .encode(),
        );
        attributes
            .transactions
            .get_or_insert_default()
            .extend(transactions);
        let id = chain
            .start(parent.hash, attributes)
            .await
            .expect("the block is started");
        let block = chain.seal(id).await.expect("the block is sealed");
        chain
            .forkchoice(block.payload.hash, None, None)
            .await
            .expect("the head moves");
        block.payload.clone()
    }
}

/// Key of the sequencer's block signer, which the swarm accepts.
pub fn sequencer() -> sign::SecretKey {
    sign::secret_from_hex(SEQUENCER_KEY).expect("a key")
}

/// Durations of one action, measured many times.
#[derive(Default)]
pub struct Times(Vec<Duration>);

impl Times {
    pub fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub fn append(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    pub fn sum(&self) -> Duration {
        self.0.iter().sum()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn mean(&self) -> Duration {
        self.sum() / (self.0.len().max(1) as u32)
    }

    /// A percentile of the durations.
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or_default()
    }
}

/// Sets the flag on drop, also on a panic, so that the clients of a measurement stop with it.
pub struct EndOnDrop<'a>(pub &'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The word that is printed after a figure with a bar.
pub fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}

/// The median of some figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Prints one line of a table of times.
pub fn print_times(name: &str, times: &Times) {
    let [p50, p99, max] = [50, 99, 100].map(|percent| ms(times.percentile(percent)));
    println!("  {name:<44} p50 {p50:>8.3} ms   p99 {p99:>8.3} ms   max {max:>8.3} ms");
}
