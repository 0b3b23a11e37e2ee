//! Chains that this process makes block by block, and data directories with their genesis for the
//! measured program.

use crate::{
    server,
    support::{Alloc, Ground, Sender, Unsigned},
};
use alloy_primitives::{Address, B256, Bytes, U256, address};
use serde_json::{Value, json};
use starling::chain::{Chain, Threads};
use starling_proto::payload::Payload;
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

/// Timestamp of every genesis.
pub const GENESIS_TIME: u64 = 1_700_000_000;
/// Address of the logger, a contract that logs a word of its calldata as a topic, with 32 bytes of
/// data.
pub const LOGGER: Address = address!("1099e70000000000000000000000000000000001");
/// Code of the logger: PUSH0 CALLDATALOAD, PUSH1 32, PUSH0, LOG1, STOP
const LOGGER_CODE: &str = "0x5f3560205fa100";
const GAS_OF_LOG: u64 = 40_000;

/// Adds the logger contract to a genesis.
pub fn insert_logger(alloc: &mut Alloc) {
    insert_code(alloc, LOGGER, LOGGER_CODE);
}

/// Adds a contract without storage to a genesis.
pub fn insert_code(alloc: &mut Alloc, at: Address, code: &str) {
    let account = json!({ "balance": "0x0", "nonce": "0x1", "code": code });
    alloc.insert(at.to_string(), account);
}

/// A call of the logger contract with this topic.
pub fn log_topic(sender: &mut Sender, chain_id: u64, topic: B256) -> Unsigned {
    sender.call(chain_id, LOGGER, U256::ZERO, GAS_OF_LOG, topic.0.into())
}

/// Builds a chain, block by block.
pub struct ChainMaker {
    pub ground: Ground,
    chain: Chain,
    threads: Threads,
    runtime: tokio::runtime::Runtime,
}

impl ChainMaker {
    /// Begins a chain in a data directory that this process uses.
    pub fn new(ground: Ground, datadir: &Path) -> Self {
        let (chain, threads) = ground.open(datadir);
        Self {
            ground,
            chain,
            threads,
            runtime: tokio::runtime::Runtime::new().expect("a runtime"),
        }
    }

    /// Appends the next block, with the L1 attributes and these transactions.
    pub fn block(&mut self, transactions: Vec<Bytes>) -> Arc<Payload> {
        let sealed = self.ground.seal(&self.chain, transactions);
        self.runtime.block_on(sealed)
    }

    pub fn finish(self) {
        drop(self.chain);
        self.threads.stop().expect("the chain is stored");
    }
}

/// Makes a data directory called `name` in `folder`. The measured program makes it, since an older
/// program could not open a directory of this version.
pub fn init(folder: &Path, name: &str, genesis: &Value) -> PathBuf {
    let datadir = folder.join(name);
    let file = datadir.with_extension("json");
    std::fs::write(&file, genesis.to_string()).expect("the genesis is written");
    run_tool(&datadir, &["init".as_ref(), file.as_os_str()]);
    datadir
}

/// Runs a subcommand of the measured program on a data directory.
pub fn run_tool(datadir: &Path, words: &[&OsStr]) {
    let status = server()
        .args(words)
        .arg("--datadir")
        .arg(datadir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.expect("it starts").success(), "{words:?}");
}
