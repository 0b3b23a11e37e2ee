//! The real programs as processes on loopback, without discovery unless a test enables it. Their
//! paths are in the environment: `STARLING_OP_NODE`, `STARLING_OP_GETH`, `STARLING_OP_BATCHER`,
//! `STARLING_OP_PROPOSER`.

use super::network::{Network, PATIENCE, command};
use crate::net::{Running, ask, call, head, wait};
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The programs that these variables name; `None`, recorded as a skip, if a variable is unset.
pub fn programs<const N: usize>(variables: [&str; N]) -> Option<[PathBuf; N]> {
    let found: Vec<PathBuf> = variables
        .into_iter()
        .map_while(starling_testkit::program)
        .collect();
    found.try_into().ok()
}

/// A running process of a network, and its command line.
pub struct Started {
    pub name: String,
    /// URL of the process's JSON-RPC over HTTP.
    pub url: String,
    /// Port of the Engine API, if the process is a core.
    pub engine: Option<u16>,
    /// URL of the rollup node's RPC, if it is separate from `url`.
    pub rollup: Option<String>,
    command: Vec<String>,
    log: PathBuf,
    process: Running,
}

impl Started {
    pub fn new(dir: &Path, name: &str, words: Vec<String>, url: String) -> Self {
        let log = dir.join(format!("{name}.log"));
        let process = spawn(command(&words).current_dir(dir), &log);
        Self {
            name: name.into(),
            url,
            engine: None,
            rollup: None,
            command: words,
            log,
            process,
        }
    }

    /// Adds the port of the Engine API.
    pub fn with_engine(self, port: u16) -> Self {
        Self {
            engine: Some(port),
            ..self
        }
    }

    /// Adds the port of the rollup node's RPC.
    pub fn with_rollup(self, port: u16) -> Self {
        Self {
            rollup: Some(format!("http://127.0.0.1:{port}")),
            ..self
        }
    }

    /// Waits until the process responds to JSON-RPC.
    pub fn ready(mut self) -> Self {
        wait(&format!("{} to answer", self.name), PATIENCE, || {
            self.check();
            call(&self.url, "web3_clientVersion", json!([]))
                // A rollup node answers this once its execution client has responded.
                .or_else(|_| call(&self.url, "optimism_rollupConfig", json!([])))
                .ok()
        });
        self
    }

    /// Panics with the end of the log if the process has ended.
    pub fn check(&mut self) {
        if let Ok(Some(status)) = self.process.child.try_wait() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(20).collect();
            panic!(
                "{} ended with {status}; newest line first:\n{}",
                self.name,
                tail.join("\n")
            );
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Stops the process with SIGINT and waits until it has exited.
    pub fn stop(&mut self) {
        crate::net::signal(self.pid() as i32, nix::sys::signal::Signal::SIGINT);
        wait(&format!("{} to end", self.name), PATIENCE, || {
            self.process.child.try_wait().expect("a child")
        });
    }

    /// Kills the process and starts it again with the same command line.
    pub fn restart(&mut self) {
        self.kill9();
        let dir = self.log.parent().expect("a folder");
        self.process = spawn(command(&self.command).current_dir(dir), &self.log);
    }

    pub fn head(&self) -> Option<u64> {
        head(&self.url)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The node's own peer info, as `opp2p_self` returns it.
    pub fn itself(&self) -> Value {
        ask(&self.url, "opp2p_self", json!([]))
    }

    /// The node's multiaddr with its peer id.
    pub fn multiaddr(&self) -> String {
        self.itself()["addresses"][0]
            .as_str()
            .expect("an address")
            .to_owned()
    }
}

fn spawn(command: &mut Command, log: &Path) -> Running {
    let out = fs::File::options()
        .create(true)
        .append(true)
        .open(log)
        .expect("a log file");
    let err = out.try_clone().expect("a log file");
    // Clear the options of these programs that may be set in the environment of the test.
    let foreign = std::env::vars_os().map(|(name, _)| name).filter(|name| {
        ["OP_NODE_", "OP_BATCHER_", "OP_PROPOSER_", "GETH_"]
            .iter()
            .any(|prefix| name.to_string_lossy().starts_with(prefix))
    });
    for name in foreign {
        command.env_remove(name);
    }
    let child = command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .expect("the program starts");
    Running { child }
}

/// Storage of op-geth: scheme and mode of garbage collection.
#[derive(Clone, Copy)]
pub enum GethStorage {
    /// Every state is on disk.
    Archive,
    /// A kill loses the states of the last blocks. op-geth's default.
    Path,
}

/// op-geth without peers on the L2 genesis in this folder, with the folder's `jwt` file. It serves
/// the `miner` namespace, without which op-batcher exits.
pub fn op_geth(dir: &Path, program: &Path, name: &str, options: &[String]) -> Started {
    op_geth_on(GethStorage::Archive, dir, program, name, options)
}

/// op-geth as [`op_geth`] starts it, with this storage.
pub fn op_geth_on(
    storage: GethStorage,
    dir: &Path,
    program: &Path,
    name: &str,
    options: &[String],
) -> Started {
    let program = program.display().to_string();
    let (scheme, collection) = match storage {
        GethStorage::Archive => ("hash", "archive"),
        GethStorage::Path => ("path", "full"),
    };
    let shared = [
        format!("--datadir={}", dir.join(name).display()),
        format!("--state.scheme={scheme}"),
    ];
    let mut init = Command::new(&program);
    let init = init
        .arg("init")
        .args(&shared)
        .arg(dir.join("l2-genesis.json"))
        .output()
        .expect("op-geth starts");
    assert!(
        init.status.success(),
        "{}",
        String::from_utf8_lossy(&init.stderr)
    );
    let [http, engine] = [free_port(), free_port()];
    let mut words = vec![program];
    words.extend(shared);
    words.extend(GETH_OPTIONS.map(String::from));
    words.extend([
        format!("--gcmode={collection}"),
        format!("--http.port={http}"),
        format!("--authrpc.port={engine}"),
        format!("--authrpc.jwtsecret={}", dir.join("jwt").display()),
    ]);
    words.extend_from_slice(options);
    Started::new(dir, name, words, format!("http://127.0.0.1:{http}"))
        .with_engine(engine)
        .ready()
}

/// Options of every op-geth. Options after them override them.
const GETH_OPTIONS: [&str; 14] = [
    "--nodiscover",
    "--maxpeers=0",
    "--bootnodes=",
    "--nat=none",
    "--port=0",
    "--ipcdisable",
    "--networkid=901",
    "--syncmode=full",
    "--rollup.disabletxpoolgossip",
    "--http",
    "--http.addr=127.0.0.1",
    "--http.api=eth,net,web3,txpool,miner",
    "--authrpc.addr=127.0.0.1",
    "--verbosity=3",
];

/// Empties the list of bootnodes too: op-node resolves the default bootnodes even without
/// discovery.
pub fn no_discovery() -> Vec<String> {
    vec!["--p2p.no-discovery".into(), "--p2p.bootnodes=".into()]
}

/// Starts op-node over a core, without discovery.
pub fn op_node(
    net: &Network,
    program: &Path,
    name: &str,
    core: &Started,
    options: &[String],
) -> Started {
    let all = [net.rollup_options(), no_discovery(), options.to_vec()].concat();
    bare_op_node(net.path(), program, name, core, &all)
}

/// Starts op-node over a core, with only `options` for its chain, L1 and discovery. `dir` contains
/// the core's `jwt` file.
pub fn bare_op_node(
    dir: &Path,
    program: &Path,
    name: &str,
    core: &Started,
    options: &[String],
) -> Started {
    let [rpc, p2p] = [free_port(), free_port()];
    let mut words = vec![
        program.display().to_string(),
        "--l1.beacon.ignore".into(),
        "--l1.rpckind=standard".into(),
    ];
    words.push(format!(
        "--l2=http://127.0.0.1:{}",
        core.engine.expect("a core has an Engine API")
    ));
    words.push(format!("--l2.jwt-secret={}", dir.join("jwt").display()));
    words.extend([
        "--rpc.addr=127.0.0.1".into(),
        format!("--rpc.port={rpc}"),
        "--p2p.listen.ip=127.0.0.1".into(),
    ]);
    words.extend([
        format!("--p2p.listen.tcp={p2p}"),
        format!("--p2p.listen.udp={p2p}"),
    ]);
    words.push(format!(
        "--p2p.priv.path={}",
        dir.join(format!("{name}.p2p-key")).display()
    ));
    words.extend(["--p2p.peerstore.path=memory", "--p2p.discovery.path=memory"].map(String::from));
    words.extend_from_slice(options);
    Started::new(dir, name, words, format!("http://127.0.0.1:{rpc}")).ready()
}
