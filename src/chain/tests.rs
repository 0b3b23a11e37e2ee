//! Tests of the chain's threads on temporary data directories. Also helpers for other tests: a
//! genesis, attributes, kills.

pub mod blobs;
mod bounds;
pub mod durable;
pub mod grow;
mod kill;
mod model;
mod value_index;

use super::*;
use crate::chain::evm::tests::{CHAIN, address_of, deposited, l1_attributes, sign, transfer};
use alloy_consensus::{Header, TxEip1559};
use alloy_primitives::{Address, B64, Bytes, U256};
use alloy_rpc_types_engine::PayloadAttributes;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::json;
use starling_proto::fork::Fork;
use std::{collections::BTreeSet, path::PathBuf};
use tempfile::TempDir;

/// Provenance of gossiped blocks, which are logged as soon as they are valid.
const GOSSIP: Provenance = Provenance::Signed(Address::ZERO);

/// Time of the genesis block, Unix seconds.
pub const GENESIS_TIME: u64 = 1_700_000_000;
pub const GAS_LIMIT: u64 = 30_000_000;

/// An OP chain with every fork through Jovian, and funds for keys 1 to 9.
fn test_genesis() -> Genesis {
    let mut config = json!({
        "chainId": CHAIN,
        "londonBlock": 0,
        "optimism": { "eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250 },
    });
    for fork in &Fork::ALL[1..Fork::Karst as usize] {
        config[format!("{}Time", fork.name())] = 0.into();
    }
    let funds = |key| {
        (
            address_of(key).to_string(),
            json!({ "balance": "0x56bc75e2d63100000" }),
        )
    };
    let genesis = json!({
        "config": config,
        "timestamp": GENESIS_TIME,
        "gasLimit": GAS_LIMIT,
        "difficulty": "0",
        "baseFeePerGas": "0x3e8",
        "extraData": "0x01000000fa000000060000000000000000",
        "alloc": (1..10).map(funds).collect::<serde_json::Map<_, _>>(),
    });
    genesis::parse(&genesis.to_string()).unwrap()
}

/// A new data directory of the test chain.
pub fn datadir() -> TempDir {
    let datadir = tempfile::tempdir().unwrap();
    assert!(init(datadir.path(), &test_genesis()).unwrap());
    datadir
}

pub fn open(datadir: &Path) -> (Chain, Threads) {
    let commit_interval = Duration::from_millis(50);
    Chain::open(&Options {
        datadir: datadir.to_owned(),
        cache: 4 << 20,
        commit_interval,
    })
    .unwrap()
}

/// Opens the test chain with these memory limits.
pub fn open_within(datadir: &Path, limits: ExecutorLimits) -> (Chain, Threads) {
    let commit_interval = Duration::from_millis(50);
    let options = Options {
        datadir: datadir.to_owned(),
        cache: 4 << 20,
        commit_interval,
    };
    Chain::open_within(&options, PoolConfig::default(), limits).unwrap()
}

/// A copy of the files that a process would leave on the disk if it were killed now.
pub fn killed(datadir: &Path) -> TempDir {
    fn files(dir: &Path) -> std::io::Result<BTreeSet<PathBuf>> {
        let mut all = BTreeSet::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                all.extend(files(&entry.path())?);
            } else {
                all.insert(entry.path());
            }
        }
        Ok(all)
    }
    let copy = |to: &Path| -> std::io::Result<bool> {
        let before = files(datadir)?;
        let place = |file: &PathBuf| to.join(file.strip_prefix(datadir).unwrap());
        for file in &before {
            std::fs::create_dir_all(place(file).parent().unwrap())?;
            std::fs::copy(file, place(file))?;
        }
        for file in &before {
            if std::fs::read(file)? != std::fs::read(place(file))? {
                return Ok(false);
            }
        }
        Ok(files(datadir)? == before)
    };
    // Retry the copy if a file changed meanwhile. Such a copy mixes several moments, while a kill
    // stops all writes at once.
    for _ in 0..1000 {
        let copied = tempfile::tempdir().unwrap();
        match copy(copied.path()) {
            Ok(true) => return copied,
            Ok(false) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the files of {} never rest", datadir.display());
}

/// Attributes of a block two seconds after its parent: first a deposit, then these transactions.
/// With another `salt` the block has another hash.
pub fn attributes(
    parent: &Header,
    salt: u64,
    transactions: impl IntoIterator<Item = Bytes>,
) -> OpPayloadAttributes {
    let forced = [deposited(l1_attributes(0)).1]
        .into_iter()
        .chain(transactions)
        .collect();
    OpPayloadAttributes {
        payload_attributes: PayloadAttributes {
            timestamp: parent.timestamp + 2,
            prev_randao: B256::from(U256::from(salt)),
            suggested_fee_recipient: Address::repeat_byte(0xfe),
            withdrawals: Some(vec![]),
            parent_beacon_block_root: Some(B256::ZERO),
            ..Default::default()
        },
        transactions: Some(forced),
        no_tx_pool: Some(true),
        gas_limit: Some(GAS_LIMIT),
        eip_1559_params: Some(B64::ZERO),
        min_base_fee: Some(0),
    }
}

/// Builds a block on a block that the chain knows. No head moves.
pub async fn build(
    chain: &Chain,
    parent: B256,
    salt: u64,
    transactions: impl IntoIterator<Item = Bytes>,
) -> Arc<ExecutedBlock> {
    let view = chain
        .request(|reply| ExecutorCommand::ViewOf {
            hash: parent,
            reply,
        })
        .await
        .unwrap();
    let id = chain
        .start(parent, attributes(view.header(), salt, transactions))
        .await
        .unwrap();
    chain.seal(id).await.unwrap()
}

/// Waits until the chain's threads have done something by themselves; `what` is for the error
/// message.
pub async fn until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited too long until {what}");
}
