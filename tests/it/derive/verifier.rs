//! A replica as a process, usually without a swarm, whose safe chain is derived from L1 alone.

use crate::net::{Running, ask, call, starling, wait};
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

/// Longest wait until a whole chain is derived, in a debug build on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(300);

/// A replica, usually without a swarm. Its chain is described by a folder with `rollup.json`,
/// `l1-chain-config.json` and `l2-genesis.json.zst`.
pub struct Verifier {
    pub process: Option<Running>,
    pub folder: tempfile::TempDir,
    pub http: String,
    pub rpc: String,
    command: Vec<String>,
}

impl Verifier {
    pub fn start(chain: &Path, l1: &str, options: &[String]) -> Self {
        Self::stopped(chain, l1, options).started()
    }

    /// Prepares a node without a swarm and without starting it: an empty data directory and a
    /// command line.
    pub fn stopped(chain: &Path, l1: &str, options: &[String]) -> Self {
        let alone = vec!["--p2p.disable".into()];
        Self::prepared(chain, l1, &[alone, options.to_vec()].concat())
    }

    /// Starts a node with a swarm. `options` name its peers.
    pub fn in_swarm(chain: &Path, l1: &str, options: &[String]) -> Self {
        Self::prepared(chain, l1, options).started()
    }

    fn prepared(chain: &Path, l1: &str, options: &[String]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let datadir = folder.path().join("data");
        init(chain, &datadir);
        let [http, rpc] = [free_port(), free_port()];
        let path = |name: &str| chain.join(name).display().to_string();
        let mut command = vec![
            "node".into(),
            format!("--datadir={}", datadir.display()),
            format!("--rollup.config={}", path("rollup.json")),
            format!("--rollup.l1-chain-config={}", path("l1-chain-config.json")),
            format!("--l1={l1}"),
            "--l1.http-poll-interval=200ms".into(),
            "--l1.epoch-poll-interval=1s".into(),
            format!("--safedb.path={}", folder.path().join("safedb").display()),
            "--http".into(),
            format!("--http.port={http}"),
            "--rpc.addr=127.0.0.1".into(),
            format!("--rpc.port={rpc}"),
        ];
        if !options
            .iter()
            .any(|option| option.starts_with("--l1.beacon="))
        {
            // This chain's batcher posts calldata only, so no beacon API is needed.
            command.push("--l1.beacon.ignore".into());
        }
        command.extend_from_slice(options);
        Self {
            process: None,
            folder,
            http: format!("http://127.0.0.1:{http}"),
            rpc: format!("http://127.0.0.1:{rpc}"),
            command,
        }
    }

    pub fn started(mut self) -> Self {
        self.restart();
        self
    }

    /// Kills the process if it is running, and starts it again.
    pub fn restart(&mut self) {
        self.process = None;
        self.process = Some(spawn(&self.command, self.folder.path()));
    }

    fn datadir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Imports a file of blocks as the unsafe chain, while the process is not running.
    pub fn import(&self, file: &Path) {
        assert!(self.process.is_none(), "the data directory is in use");
        let status = starling()
            .arg("import")
            .arg(format!("--datadir={}", self.datadir().display()))
            .arg(file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(status.expect("import runs").success(), "import");
    }

    /// Calls `optimism_syncStatus` and checks the order of the heads.
    pub fn status(&self) -> Option<Value> {
        let status = call(&self.rpc, "optimism_syncStatus", json!([])).ok()?;
        let number = |head: &str| status[head]["number"].as_u64().expect("a number");
        if status["safe_l2"]["timestamp"] != json!(0) {
            assert!(number("finalized_l2") <= number("safe_l2"), "{status}");
            assert!(number("safe_l2") <= number("unsafe_l2"), "{status}");
        }
        Some(status)
    }

    pub fn safe(&self) -> Option<u64> {
        self.status()?["safe_l2"]["number"].as_u64()
    }

    /// Hash of the block at this height.
    pub fn hash_at(&self, number: u64) -> Value {
        let block = json!([format!("{number:#x}"), false]);
        ask(&self.http, "eth_getBlockByNumber", block)["hash"].take()
    }

    /// Waits until everything up to the L1 block with this hash is derived. Returns the status
    /// then.
    pub fn wait_until_derived(&mut self, l1_hash: &Value) -> Value {
        let what = format!("L1 block {l1_hash} to be derived");
        wait(&what, DEADLINE, || {
            self.check_running();
            let status = self.status()?;
            (status["current_l1"]["hash"] == *l1_hash).then_some(status)
        })
    }

    pub fn wait_until_safe(&mut self, number: u64) {
        wait(&format!("safe block {number}"), DEADLINE, || {
            self.check_running();
            (self.safe()? >= number).then_some(())
        });
    }

    fn check_running(&mut self) {
        let process = self.process.as_mut().expect("a started process");
        if let Ok(Some(status)) = process.child.try_wait() {
            panic!("the node ended with {status}: {}", self.log());
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(60).collect();
            eprintln!("--- the verifier's log (newest first)\n{}", tail.join("\n"));
        }
    }
}

/// Makes a data directory for the chain described in the folder `chain`.
pub fn init(chain: &Path, datadir: &Path) {
    let packed = std::fs::read(chain.join("l2-genesis.json.zst")).expect("a genesis");
    let genesis = datadir.with_extension("genesis.json");
    std::fs::write(&genesis, zstd::decode_all(&packed[..]).expect("zstd")).expect("a file");
    let status = starling()
        .arg("init")
        .arg(format!("--datadir={}", datadir.display()))
        .arg(&genesis)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.expect("init runs").success(), "init");
}

fn spawn(command: &[String], folder: &Path) -> Running {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(folder.join("log"))
        .expect("a log file");
    let child = starling()
        .args(command)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log file"))
        .stderr(log)
        .spawn()
        .expect("the node starts");
    Running { child }
}
