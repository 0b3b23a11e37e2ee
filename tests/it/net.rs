//! Helpers of the integration tests: a local network of real processes, a plain JSON-RPC caller,
//! signed transactions.

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256, hex};
use serde_json::{Value, json};
use starling_proto::l1info::L1InfoFormat;
use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The binary under test.
pub fn starling() -> Command {
    Command::new(env!("CARGO_BIN_EXE_starling"))
}

/// Calls a JSON-RPC method over HTTP. `Err` is the error object, or a description of a transport
/// error.
pub fn call(url: &str, method: &str, params: Value) -> Result<Value, Value> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let (status, text) =
        post(url, &body).map_err(|error| json!({"transport": error.to_string()}))?;
    let mut answer: Value = serde_json::from_str(&text)
        .map_err(|_| json!({"transport": format!("HTTP {status}: {text}")}))?;
    match answer.get_mut("error") {
        Some(error) => Err(error.take()),
        None => Ok(answer["result"].take()),
    }
}

/// Calls a JSON-RPC method that must succeed (see [`call`]). Returns its result.
pub fn ask(url: &str, method: &str, params: Value) -> Value {
    call(url, method, params.clone())
        .unwrap_or_else(|error| panic!("{method}{params} at {url}: {error}"))
}

/// Posts a body. Returns the HTTP status and the body of the response.
pub fn post(url: &str, body: &str) -> std::io::Result<(u16, String)> {
    let host = url.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(
        stream,
        "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(0);
    let (head, rest) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let chunked = head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked");
    Ok((
        status,
        if chunked {
            unchunk(rest)
        } else {
            rest.to_owned()
        },
    ))
}

fn unchunk(mut rest: &str) -> String {
    let mut out = String::new();
    while let Some((size, tail)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || tail.len() < size {
            break;
        }
        out.push_str(&tail[..size]);
        rest = tail[size..].trim_start_matches("\r\n");
    }
    out
}

/// Calldata that makes a deposit valid as the L1 attributes of a Jovian block. All values are zero.
pub fn l1_attributes() -> Bytes {
    let jovian = L1InfoFormat::Jovian;
    let mut calldata = jovian.selector().to_vec();
    calldata.resize(jovian.len(), 0);
    calldata.into()
}

/// Parses a quantity in a response.
pub fn number(value: &Value) -> u64 {
    let text = value
        .as_str()
        .unwrap_or_else(|| panic!("not a quantity: {value}"));
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .unwrap_or_else(|_| panic!("not a quantity: {value}"))
}

/// The number of a node's head, or `None` if the node does not respond.
pub fn head(url: &str) -> Option<u64> {
    call(url, "eth_blockNumber", json!([]))
        .ok()
        .map(|n| number(&n))
}

/// The hash of a node's block with this number.
pub fn hash_at(url: &str, number: u64) -> Value {
    let block = json!([format!("{number:#x}"), false]);
    ask(url, "eth_getBlockByNumber", block)["hash"].take()
}

/// Compares every block up to `last`: equal hashes are equal headers, state roots and receipts.
pub fn same_blocks(one: &str, two: &str, last: u64) {
    for number in 0..=last {
        let hash = hash_at(one, number);
        assert!(hash.is_string(), "block {number} at {one}");
        assert_eq!(hash, hash_at(two, number), "block {number} at {one}, {two}");
    }
}

/// Waits until `probe` returns `Some`, and returns its value. Panics after `timeout`.
pub fn wait<T>(what: &str, timeout: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(
            started.elapsed() < timeout,
            "waited {timeout:?} in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// An account of the network that has ether.
#[derive(Clone)]
pub struct Account {
    pub address: Address,
    pub key: B256,
}

impl Account {
    pub fn key_hex(&self) -> String {
        hex::encode_prefixed(self.key)
    }

    /// Signs an EIP-1559 transaction. Returns its raw bytes.
    pub fn sign(
        &self,
        chain_id: u64,
        nonce: u64,
        to: TxKind,
        value: U256,
        input: Bytes,
        gas_limit: u64,
    ) -> Bytes {
        self.sign_tx(TxEip1559 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas: 100_000_000_000,
            max_priority_fee_per_gas: 1_000_000,
            to,
            value,
            access_list: Default::default(),
            input,
        })
    }

    /// A transfer whose fee cap is one wei per gas: a pool accepts it, but no block includes it.
    pub fn sign_underpaid(&self, chain_id: u64, nonce: u64) -> Bytes {
        let (to, price) = (TxKind::Call(self.address), 1);
        self.sign_tx(TxEip1559 {
            chain_id,
            nonce,
            gas_limit: 21_000,
            max_fee_per_gas: price,
            max_priority_fee_per_gas: price,
            to,
            ..Default::default()
        })
    }

    fn sign_tx(&self, tx: TxEip1559) -> Bytes {
        let hash = tx.signature_hash();
        let secp = secp256k1::SECP256K1;
        let key = secp256k1::SecretKey::from_slice(self.key.as_slice()).expect("a key");
        let (id, bytes) = secp
            .sign_ecdsa_recoverable(&secp256k1::Message::from_digest(hash.0), &key)
            .serialize_compact();
        let signature = Signature::from_bytes_and_parity(&bytes, i32::from(id) == 1);
        TxEnvelope::Eip1559(tx.into_signed(signature))
            .encoded_2718()
            .into()
    }
}

/// One node of a network, as devnet.json describes it.
#[derive(Clone)]
pub struct Node {
    pub name: String,
    pub role: String,
    pub pid: i32,
    pub command: Vec<String>,
    pub http: String,
    pub ws: String,
    /// URL of the RPC of a rollup node, a batcher or a proposer.
    pub rpc: Option<String>,
    /// The node's multiaddr with its peer id.
    pub p2p: Option<String>,
}

impl Node {
    /// The path of the node's IPC socket, if the node has a data directory.
    pub fn ipc(&self) -> Option<String> {
        let mut options = self.command.iter();
        let datadir = options.find_map(|option| option.strip_prefix("--datadir="));
        datadir.map(|datadir| format!("{datadir}/geth.ipc"))
    }

    /// Kills the node's process and waits until the devnet process has reaped it. Until then a
    /// killed process may still occupy its ports.
    pub fn kill9(&self) {
        signal(self.pid, nix::sys::signal::Signal::SIGKILL);
        wait("a killed process to die", Duration::from_secs(10), || {
            (!Path::new(&format!("/proc/{}", self.pid)).exists()).then_some(())
        });
    }

    /// Starts the node again with the command line that the devnet printed.
    pub fn restart(&self, log: &Path) -> Running {
        self.restart_with(log, &[])
    }

    /// Starts the node again. `options` replace options of the same name in its command line.
    pub fn restart_with(&self, log: &Path, options: &[String]) -> Running {
        let is_replaced = |given: &str| {
            let name = |option: &str| option.split('=').next().map(str::to_owned);
            options.iter().any(|option| name(option) == name(given))
        };
        let out = std::fs::File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("a log file");
        let err = out.try_clone().expect("a log file");
        let child = Command::new(&self.command[0])
            .args(self.command[1..].iter().filter(|given| !is_replaced(given)))
            .args(options)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .expect("the node's own command line starts it");
        Running { child }
    }
}

/// A process that is killed when dropped.
pub struct Running {
    pub child: Child,
}

impl Running {
    /// Starts a program and discards its output.
    pub fn spawn(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn();
        Self {
            child: child.expect("the program starts"),
        }
    }

    pub fn kill9(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// An external program that is killed when dropped, together with its child processes: npm's
/// commands are scripts that start the actual program.
pub struct RunningGroup {
    child: Child,
}

impl RunningGroup {
    pub fn spawn(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::null()).process_group(0).spawn();
        Self {
            child: child.expect("the program starts"),
        }
    }
}

impl Drop for RunningGroup {
    fn drop(&mut self) {
        let group = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

pub fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

/// A local network started with `starling devnet`, stopped when dropped.
pub struct Devnet {
    child: Child,
    pub dir: PathBuf,
    pub nodes: Vec<Node>,
    pub accounts: Vec<Account>,
    pub l2_chain_id: u64,
    pub portal: Address,
    /// Dropped last, so that the folder exists until the network has stopped.
    _temp: tempfile::TempDir,
}

impl Devnet {
    /// Starts a network without batcher and proposer.
    pub fn start(args: &[&str]) -> Self {
        let args = [&["--batcher=false", "--proposer=false"], args].concat();
        Self::start_whole(&args)
    }

    /// Starts a network with all components, as a user gets it.
    pub fn start_whole(args: &[&str]) -> Self {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = temp.path().join("net");
        let log = std::fs::File::create(temp.path().join("devnet.log")).expect("a log file");
        let child = starling()
            .arg("devnet")
            .arg(format!("--datadir={}", dir.display()))
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log)
            .spawn()
            .expect("the devnet starts");
        let mut net = Self {
            child,
            dir,
            nodes: vec![],
            accounts: vec![],
            l2_chain_id: 0,
            portal: Address::ZERO,
            _temp: temp,
        };
        let info = wait("devnet.json", Duration::from_secs(60), || {
            if let Ok(Some(status)) = net.child.try_wait() {
                panic!("the devnet ended with {status}: {}", net.log());
            }
            let text = std::fs::read_to_string(net.dir.join("devnet.json")).ok()?;
            Some(serde_json::from_str::<Value>(&text).expect("devnet.json is written whole"))
        });
        net.read(&info);
        net
    }

    fn read(&mut self, info: &Value) {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        self.l2_chain_id = info["chain_ids"]["l2"].as_u64().expect("chain_ids.l2");
        self.portal = info["contracts"]["portal"]
            .as_str()
            .expect("contracts.portal")
            .parse()
            .expect("an address");
        self.nodes = info["nodes"]
            .as_array()
            .expect("nodes")
            .iter()
            .map(|node| Node {
                name: text(&node["name"]).expect("name"),
                role: text(&node["role"]).expect("role"),
                pid: node["pid"].as_i64().expect("pid") as i32,
                command: node["command"]
                    .as_array()
                    .expect("command")
                    .iter()
                    .filter_map(text)
                    .collect(),
                http: text(&node["http"]).unwrap_or_default(),
                ws: text(&node["ws"]).unwrap_or_default(),
                rpc: text(&node["rpc"]),
                p2p: text(&node["p2p"]),
            })
            .collect();
        self.accounts = info["accounts"]
            .as_array()
            .expect("accounts")
            .iter()
            .map(|account| Account {
                address: account["address"]
                    .as_str()
                    .expect("address")
                    .parse()
                    .expect("an address"),
                key: account["private_key"]
                    .as_str()
                    .expect("private_key")
                    .parse()
                    .expect("a key"),
            })
            .collect();
    }

    /// Ends the network as Ctrl-C does, and waits until its process has ended.
    pub fn interrupt(&mut self) {
        signal(self.child.id() as i32, nix::sys::signal::Signal::SIGINT);
        wait("the end of the network", Duration::from_secs(60), || {
            self.child.try_wait().ok().flatten()
        });
    }

    /// Process id of the `starling devnet` process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.with_file_name("devnet.log")).unwrap_or_default()
    }

    pub fn role(&self, role: &str) -> Vec<Node> {
        self.nodes
            .iter()
            .filter(|node| node.role == role)
            .cloned()
            .collect()
    }

    /// Address of a contract in `devnet.json`, if it has this name.
    pub fn contract(&self, name: &str) -> Option<Address> {
        let text = std::fs::read_to_string(self.dir.join("devnet.json")).expect("a file");
        let description: Value = serde_json::from_str(&text).expect("JSON");
        serde_json::from_value(description["contracts"][name].clone()).expect("an address or none")
    }

    pub fn l1(&self) -> Node {
        self.role("l1").remove(0)
    }

    pub fn sequencer(&self) -> Node {
        self.role("sequencer").remove(0)
    }

    pub fn replicas(&self) -> Vec<Node> {
        self.role("replica")
    }
}

impl Drop for Devnet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- devnet\n{}", self.log());
            let logs = std::fs::read_dir(&self.dir)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path());
            for path in logs.filter(|path| path.extension().is_some_and(|e| e == "log")) {
                let log = std::fs::read_to_string(&path).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(40).collect();
                eprintln!("--- {} (newest first)\n{}", path.display(), tail.join("\n"));
            }
        }
        signal(self.child.id() as i32, nix::sys::signal::Signal::SIGINT);
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(15) {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Path of an external client in `tests/clients`; `None`, recorded as a skip, if `npm install` has
/// not been run there.
pub fn client(name: &str) -> Option<PathBuf> {
    let path = Path::new(CLIENTS).join("node_modules/.bin").join(name);
    installed(
        path.exists(),
        &format!("{name} (run npm install in tests/clients)"),
    )
    .then_some(path)
}

/// Command for the script in `tests/clients` named after its npm package; `None`, recorded as a
/// skip, if the package is not installed.
pub fn script(package: &str) -> Option<Command> {
    script_named(package, package)
}

/// Command for the script `name` in `tests/clients`, which uses an npm package; `None`, recorded as
/// a skip, if the package is not installed.
pub fn script_named(name: &str, package: &str) -> Option<Command> {
    let there = Path::new(CLIENTS)
        .join("node_modules")
        .join(package)
        .exists();
    if !installed(
        there,
        &format!("{package} (run npm install in tests/clients)"),
    ) {
        return None;
    }
    let mut node = Command::new("node");
    node.arg(Path::new(CLIENTS).join(format!("{name}.mjs")));
    Some(node)
}

const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");

/// Whether a client is installed; if not, the test is recorded as skipped.
pub fn installed(there: bool, what: &str) -> bool {
    starling_testkit::require(there.then_some(()), what).is_some()
}
