//! A network on our L1, whose other nodes each test chooses: real op-node and op-geth processes,
//! and our own nodes.

use super::programs::Started;
use crate::net::{Account, ask, call, same_blocks, starling, wait};
use alloy_primitives::{Address, TxKind, U256, hex};
use serde_json::{Value, json};
use starling::devnet::{
    accounts,
    genesis::{L1_CHAIN_ID, L2_CHAIN_ID, PORTAL, Plan, build},
    l1_config,
};
use starling_testkit::free_port;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Longest wait for any condition, since the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(400);

/// Allows one network at a time: two networks have a dozen processes, which would time each other
/// out.
static TURN: Mutex<()> = Mutex::new(());

/// File with the key of the first development account, which signs the blocks.
const SEQUENCER_KEY: &str = "sequencer.key";

pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Network {
    pub l1: Started,
    pub accounts: Vec<Account>,
    dir: Folder,
    _turn: MutexGuard<'static, ()>,
}

/// A temporary folder that is kept for its logs if the test fails.
pub struct Folder(Option<tempfile::TempDir>);

impl Folder {
    pub fn new() -> Self {
        Self(Some(tempfile::tempdir().expect("a temporary folder")))
    }

    pub fn path(&self) -> &Path {
        self.0.as_ref().expect("there until it is dropped").path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(dir) = self.0.take()
        {
            eprintln!("the failed network's logs are in {}", dir.keep().display());
        }
    }
}

impl Network {
    /// Makes genesis files of chains that began `age` seconds ago, with an L2 block every second,
    /// and starts the L1. A sequencer on these files builds its first `age` blocks without pauses.
    pub fn start(age: u64) -> Self {
        let turn = turn();
        let dir = Folder::new();
        let accounts: Vec<Account> = accounts::all()
            .into_iter()
            .map(|account| Account {
                address: account.address,
                key: account.private_key.parse().expect("a key"),
            })
            .collect();
        let time = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs() - age;
        let files = build(&Plan {
            time,
            l2_block_time: 1,
            sequencer: accounts[0].address,
        })
        .expect("genesis files");
        let write =
            |name: &str, text: String| fs::write(dir.path().join(name), text).expect("a file");
        write("l1-genesis.json", files.l1_genesis.to_string());
        write("l2-genesis.json", files.l2_genesis.to_string());
        write("rollup.json", files.rollup.to_json());
        write(
            "l1-chain-config.json",
            l1_config::of_genesis(&files.l1_genesis).to_string(),
        );
        write(SEQUENCER_KEY, hex::encode(accounts[0].key));
        write("jwt", hex::encode([7; 32]));
        let port = free_port();
        let mut command = our_init(dir.path(), "l1", "execution", "l1-genesis.json");
        command.extend([
            "--dev.period=2".into(),
            format!("--authrpc.port={}", free_port()),
            format!("--http.port={port}"),
        ]);
        command.extend(["--http", "--http.addr=127.0.0.1"].map(String::from));
        let l1 = Started::new(
            dir.path(),
            "l1",
            command,
            format!("http://127.0.0.1:{port}"),
        );
        wait("a block of the L1", PATIENCE, || {
            l1.head().filter(|number| *number > 0)
        });
        Self {
            l1,
            accounts,
            dir,
            _turn: turn,
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Options that our rollup node and op-node both accept.
    pub fn rollup_options(&self) -> Vec<String> {
        vec![
            format!("--l1={}", self.l1.url),
            "--l1.http-poll-interval=500ms".into(),
            format!("--rollup.config={}", self.file("rollup.json").display()),
            format!(
                "--rollup.l1-chain-config={}",
                self.file("l1-chain-config.json").display()
            ),
        ]
    }

    /// Starts our node. `options` override the defaults before them.
    pub fn node(&self, name: &str, options: &[String]) -> Started {
        let (http, p2p) = (free_port(), free_port());
        let mut command = our_init(self.path(), name, "node", "l2-genesis.json");
        command.extend(self.rollup_options());
        command.extend(
            [
                "--l1.beacon.ignore",
                "--http",
                "--http.addr=127.0.0.1",
                "--http.api=eth,net,web3,txpool,opp2p",
            ]
            .map(String::from),
        );
        command.extend([
            format!("--http.port={http}"),
            format!("--p2p.listen.tcp={p2p}"),
            "--p2p.listen.ip=127.0.0.1".into(),
        ]);
        command.push(format!(
            "--p2p.priv.path={}",
            self.file(&format!("{name}.p2p-key")).display()
        ));
        command.extend_from_slice(options);
        Started::new(
            self.path(),
            name,
            command,
            format!("http://127.0.0.1:{http}"),
        )
        .ready()
    }

    pub fn our_sequencer(&self) -> Vec<String> {
        let key = format!(
            "--p2p.sequencer.key.path={}",
            self.file(SEQUENCER_KEY).display()
        );
        vec![
            "--sequencer.enabled".into(),
            "--sequencer.l1-confs=0".into(),
            key,
        ]
    }

    pub fn their_sequencer(&self) -> Vec<String> {
        let key = format!("--p2p.sequencer.key={}", hex::encode(self.accounts[0].key));
        vec![
            "--sequencer.enabled".into(),
            "--sequencer.l1-confs=0".into(),
            key,
        ]
    }

    /// Starts our core instead of op-geth, for an op-node.
    pub fn core(&self, name: &str) -> Started {
        our_core(self.path(), name, "l2-genesis.json")
    }

    /// Sends ether from an account to a new address on L2, and waits until all `nodes` report the
    /// balance.
    pub fn transfer(&self, through: &Started, nonce: u64, nodes: &[&Started]) {
        let to = Address::repeat_byte(0xa0 + nonce as u8);
        let raw = self.accounts[2].sign(
            L2_CHAIN_ID,
            nonce,
            TxKind::Call(to),
            U256::from(77),
            Default::default(),
            21_000,
        );
        let hash = ask(&through.url, "eth_sendRawTransaction", json!([raw]));
        let receipts: Vec<Value> = nodes.iter().map(|node| receipt(node, &hash)).collect();
        assert!(
            receipts.iter().all(|receipt| receipt["status"] == "0x1"),
            "{receipts:?}"
        );
        assert!(
            receipts
                .iter()
                .all(|receipt| receipt["blockHash"] == receipts[0]["blockHash"]),
            "{receipts:?}"
        );
    }

    /// Deposits ether from L1, and waits until all `nodes` report the balance.
    pub fn deposit(&self, nodes: &[&Started]) {
        let to = Address::repeat_byte(0xde);
        // Calldata of depositTransaction(to, value, gasLimit, isCreation, data)
        let mut input = hex::decode("e9e05c42").expect("hex");
        let words = [
            U256::from_be_slice(to.as_slice()),
            U256::from(5_000),
            U256::from(100_000),
            U256::ZERO,
            U256::from(160),
            U256::ZERO,
        ];
        input.extend(words.iter().flat_map(|word| word.to_be_bytes::<32>()));
        let raw = self.accounts[1].sign(
            L1_CHAIN_ID,
            0,
            TxKind::Call(PORTAL),
            U256::from(5_000),
            input.into(),
            300_000,
        );
        let hash = ask(&self.l1.url, "eth_sendRawTransaction", json!([raw]));
        assert_eq!(receipt(&self.l1, &hash)["status"], "0x1");
        for node in nodes {
            wait("the deposit on L2", PATIENCE, || {
                (call(&node.url, "eth_getBalance", json!([to, "latest"])).ok()? == "0x1388")
                    .then_some(())
            });
        }
    }
}

fn receipt(node: &Started, hash: &Value) -> Value {
    wait("a receipt", PATIENCE, || {
        call(&node.url, "eth_getTransactionReceipt", json!([hash]))
            .ok()
            .filter(|receipt| !receipt.is_null())
    })
}

/// Makes a Starling data directory. Returns the command line for the role `role`.
pub fn our_init(dir: &Path, name: &str, role: &str, genesis: &str) -> Vec<String> {
    let datadir = format!("--datadir={}", dir.join(name).display());
    let init = starling()
        .args(["init", &datadir])
        .arg(dir.join(genesis))
        .output()
        .expect("init starts");
    assert!(
        init.status.success(),
        "{}",
        String::from_utf8_lossy(&init.stderr)
    );
    vec![env!("CARGO_BIN_EXE_starling").into(), role.into(), datadir]
}

/// Starts our core with an Engine API, on the genesis file and with the `jwt` file in this folder.
pub fn our_core(dir: &Path, name: &str, genesis: &str) -> Started {
    let [http, engine] = [free_port(), free_port()];
    let mut command = our_init(dir, name, "execution", genesis);
    command.extend(
        [
            "--http",
            "--http.addr=127.0.0.1",
            // op-batcher exits if the `miner` namespace is missing.
            "--http.api=eth,net,web3,txpool,miner",
        ]
        .map(String::from),
    );
    command.extend([
        format!("--http.port={http}"),
        "--authrpc.addr=127.0.0.1".into(),
        format!("--authrpc.port={engine}"),
    ]);
    command.push(format!("--authrpc.jwtsecret={}", dir.join("jwt").display()));
    Started::new(dir, name, command, format!("http://127.0.0.1:{http}"))
        .with_engine(engine)
        .ready()
}

/// Checks that two nodes have the same blocks up to `last`.
pub fn same_chain(one: &Started, two: &Started, last: u64) {
    same_blocks(&one.url, &two.url, last);
}

/// Waits until a node's head is at least `number`. Returns the head.
pub fn reaches(node: &Started, number: u64) -> u64 {
    wait(
        &format!("{} to reach block {number}", node.name),
        PATIENCE,
        || node.head().filter(|head| *head >= number),
    )
}

/// Converts a command line to a process builder.
pub fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}
