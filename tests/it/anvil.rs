//! anvil as an independent L2 that seals the blocks of another chain: the same transactions with
//! the same time, fee recipient and base fee. If both chains begin from one genesis file, their
//! states stay equal.

use crate::net::{Running, call, client, head, wait};
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, address, keccak256};
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

const FEE_RECIPIENT: Address = address!("4200000000000000000000000000000000000011");

/// Path of the anvil program; `None`, recorded as a skip, if it is not installed. npm's command is
/// a wrapper script. The program itself is started, since killing the script would leave anvil
/// running.
pub fn program() -> Option<PathBuf> {
    let script = client("anvil")?.canonicalize().expect("a link to a script");
    let packages = script
        .ancestors()
        .nth(2)?
        .read_dir()
        .expect("a folder")
        .flatten();
    let programs =
        packages.filter(|entry| entry.file_name().to_string_lossy().starts_with("anvil-"));
    let program = programs
        .map(|entry| entry.path().join("bin/anvil"))
        .find(|path| path.exists());
    Some(program.expect("the package has a program for this machine"))
}

/// An anvil process that seals a block only on request.
pub struct AnvilL2 {
    pub url: String,
    process: Running,
    log: PathBuf,
}

impl AnvilL2 {
    /// Starts anvil on this genesis file, with `options` in addition to the default ones, and waits
    /// until it responds. `None`, recorded as a skip, if anvil is not installed.
    pub fn start(genesis: &Path, chain_id: u64, log: PathBuf, options: &[&str]) -> Option<Self> {
        let program = program()?;
        let port = free_port();
        let child = Command::new(program)
            .arg(format!("--init={}", genesis.display()))
            .args([format!("--port={port}"), format!("--chain-id={chain_id}")])
            .args([
                "--optimism",
                "--hardfork=jovian",
                "--no-mining",
                "--order=fifo",
                "--gas-limit=60000000",
                "--accounts=0",
            ])
            .args([
                "--slots-in-an-epoch=1",
                "--disable-default-create2-deployer",
                "--disable-min-priority-fee",
                "--quiet",
            ])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("a log file"))
            .spawn()
            .expect("anvil starts");
        let anvil = Self {
            url: format!("http://127.0.0.1:{port}"),
            process: Running { child },
            log,
        };
        wait("anvil", Duration::from_secs(120), || head(&anvil.url));
        Some(anvil)
    }

    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    /// Calls an RPC method that must succeed.
    pub fn control(&self, method: &str, params: Value) -> Value {
        call(&self.url, method, params).unwrap_or_else(|error| panic!("anvil's {method}: {error}"))
    }

    /// Seals a block with the time and the base fee of this header, and returns the hash of anvil's
    /// block, which differs from the header's hash.
    pub fn seal(&self, header: &Header, transactions: &[Bytes]) -> B256 {
        self.control("evm_setNextBlockTimestamp", json!([header.timestamp]));
        self.control(
            "anvil_setNextBlockBaseFeePerGas",
            json!([format!("{:#x}", header.base_fee_per_gas.unwrap_or(0))]),
        );
        self.control("anvil_setCoinbase", json!([FEE_RECIPIENT]));
        // Empty the pool first: anvil mines in order of arrival, and the L1 attributes must be
        // first.
        self.control("anvil_dropAllTransactions", json!([]));
        for raw in transactions {
            self.control("eth_sendRawTransaction", json!([raw]));
        }
        self.control("evm_mine", json!([]));
        let sealed = self.control("eth_getBlockByNumber", json!(["latest", false]));
        let hashes: Vec<B256> = transactions.iter().map(keccak256).collect();
        assert_eq!(
            sealed["transactions"],
            json!(hashes),
            "the blocks differ: the comparison would mean nothing"
        );
        sealed["hash"]
            .as_str()
            .and_then(|hash| hash.parse().ok())
            .expect("a hash")
    }
}

impl Drop for AnvilL2 {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            eprintln!("--- anvil, process {}\n{log}", self.pid());
        }
    }
}
