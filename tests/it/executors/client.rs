//! An execution client (Starling or op-geth) as a separate process, driven only over its
//! authenticated endpoint.

use crate::{
    engine,
    net::{Running, starling, wait},
};
use alloy_primitives::{Address, B256};
use serde_json::{Value, json};
use starling::jwt::JwtSecret;
use starling_testkit::free_port;
use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

const DEADLINE: Duration = Duration::from_secs(180);
/// JSON-RPC error code of a request that timed out.
const TIMED_OUT: i64 = -32_002;

/// An execution client's program, and how it is started.
pub enum Program {
    /// Starling with these options.
    Starling(&'static [&'static str]),
    OpGeth(PathBuf),
}

pub struct Client {
    program: Program,
    process: Running,
    address: String,
    secret: JwtSecret,
    dir: tempfile::TempDir,
}

/// The result of a call, or its JSON-RPC error object.
pub type Answer = Result<Value, Value>;

impl Client {
    /// Initialises a data directory with this genesis and starts the program on it.
    pub fn start(program: Program, genesis: &Value) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("genesis.json");
        std::fs::write(&path, genesis.to_string()).expect("a file");
        let data = format!("--datadir={}", dir.path().join("data").display());
        let Output { status, stderr, .. } = match &program {
            Program::Starling(_) => starling()
                .args(["init", &data])
                .arg(&path)
                .output()
                .expect("our own binary"),
            Program::OpGeth(binary) => Command::new(binary)
                .args(["init", "--state.scheme=hash", &data])
                .arg(&path)
                .output()
                .expect("op-geth"),
        };
        assert!(
            status.success(),
            "init: {}",
            String::from_utf8_lossy(&stderr)
        );
        let secret = JwtSecret::load_or_create(&dir.path().join("jwt")).expect("a secret");
        let (process, address) = run(&program, &dir);
        Self {
            program,
            process,
            address,
            secret,
            dir,
        }
    }

    /// Kills the process with SIGKILL and restarts it on the same data directory.
    pub fn kill_and_restart(&mut self) {
        self.process.kill9();
        let (process, address) = run(&self.program, &self.dir);
        (self.process, self.address) = (process, address);
    }

    pub fn is_starling(&self) -> bool {
        matches!(self.program, Program::Starling(_))
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Calls a method. The call is repeated if it times out on a busy machine, since every call of
    /// these tests may be repeated.
    pub fn call(&mut self, method: &str, params: Value) -> Answer {
        let started = Instant::now();
        loop {
            match self.try_call(method, params.clone()) {
                Err(error) if error["code"] == TIMED_OUT && started.elapsed() < DEADLINE => {}
                answer => return answer,
            }
        }
    }

    fn try_call(&mut self, method: &str, params: Value) -> Answer {
        let body =
            json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a clock")
            .as_secs();
        let head = format!(
            "POST / HTTP/1.1\r\nhost: localhost\r\nauthorization: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.secret.authorization(now),
            body.len()
        );
        // Opens a new connection for each call, since servers close idle connections.
        let mut connection = connect(&self.address);
        connection
            .get_mut()
            .write_all((head + &body).as_bytes())
            .expect("the process runs");
        let text = read_answer(&mut connection);
        let mut answer: Value =
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{method}: no JSON: {text}"));
        match answer.get_mut("error") {
            Some(error) => Err(error.take()),
            None => Ok(answer["result"].take()),
        }
    }

    /// Calls a method that must succeed, with the error as text (see [`call`](Self::call)).
    pub fn ask(&mut self, method: &str, params: Value) -> Result<Value, String> {
        self.call(method, params)
            .map_err(|error| format!("{method}: {error}"))
    }

    pub fn forkchoice(&mut self, version: u8, head: B256, attributes: Value) -> Answer {
        let state = json!({ "headBlockHash": head, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO });
        self.call(
            &format!("engine_forkchoiceUpdatedV{version}"),
            json!([state, attributes]),
        )
    }

    pub fn new_payload(&mut self, version: u8, payload: &Value, beacon_root: B256) -> Answer {
        let params = match version {
            1 | 2 => json!([payload]),
            3 => json!([payload, [], beacon_root]),
            _ => json!([payload, [], beacon_root, []]),
        };
        self.call(&format!("engine_newPayloadV{version}"), params)
    }

    /// The account's nonce in the latest block.
    pub fn nonce(&mut self, address: Address) -> Result<u64, String> {
        self.ask("eth_getTransactionCount", json!([address, "latest"]))
            .map(|nonce| crate::net::number(&nonce))
    }
}

fn run(program: &Program, dir: &tempfile::TempDir) -> (Running, String) {
    let path = |name: &str| dir.path().join(name);
    let data = format!("--datadir={}", path("data").display());
    let secret = format!("--authrpc.jwtsecret={}", path("jwt").display());
    match program {
        Program::Starling(options) => {
            let own = [
                data.as_str(),
                secret.as_str(),
                "--authrpc.port=0",
                "--rpc.geth-exact-receipts",
            ];
            engine::execution(&[&own[..], *options].concat(), &path("log"))
        }
        Program::OpGeth(binary) => {
            let port = free_port();
            let log = File::create(path("log")).expect("a log file");
            let mut command = Command::new(binary);
            command.args([data, secret, format!("--authrpc.port={port}")]);
            command.args([
                "--gcmode=archive",
                "--state.scheme=hash",
                "--syncmode=full",
                "--ipcdisable",
                "--verbosity=3",
            ]);
            command.args([
                "--nodiscover",
                "--maxpeers=0",
                "--port=0",
                "--bootnodes=",
                "--cache=128",
                "--snapshot=false",
            ]);
            command
                .stdin(Stdio::null())
                .stdout(log.try_clone().expect("a log file"))
                .stderr(log);
            let mut process = Running {
                child: command.spawn().expect("op-geth starts"),
            };
            let address = format!("127.0.0.1:{port}");
            wait("op-geth's endpoint", DEADLINE, || {
                if let Ok(Some(status)) = process.child.try_wait() {
                    panic!(
                        "op-geth ended with {status}: {}",
                        std::fs::read_to_string(path("log")).unwrap_or_default()
                    );
                }
                TcpStream::connect(&address).ok()
            });
            (process, address)
        }
    }
}

fn connect(address: &str) -> BufReader<TcpStream> {
    let socket = TcpStream::connect(address).expect("the endpoint");
    socket.set_nodelay(true).expect("a socket");
    socket.set_read_timeout(Some(DEADLINE)).expect("a socket");
    BufReader::new(socket)
}

/// Reads the body of an HTTP response, chunked or not.
fn read_answer(connection: &mut BufReader<TcpStream>) -> String {
    let line = |connection: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        assert!(
            connection.read_line(&mut line).expect("an answer") > 0,
            "the connection ended"
        );
        line.trim().to_ascii_lowercase()
    };
    let (mut length, mut chunked) = (0, false);
    loop {
        let text = line(connection);
        if let Some(rest) = text.strip_prefix("content-length: ") {
            length = rest.parse().expect("a length");
        }
        chunked |= text == "transfer-encoding: chunked";
        if text.is_empty() {
            break;
        }
    }
    let mut body = Vec::new();
    let mut read = |connection: &mut BufReader<TcpStream>, length: usize| {
        let start = body.len();
        body.resize(start + length, 0);
        connection.read_exact(&mut body[start..]).expect("a body");
    };
    if !chunked {
        read(connection, length);
    }
    while chunked {
        let size = usize::from_str_radix(&line(connection), 16).expect("the size of a chunk");
        read(connection, size);
        line(connection);
        chunked = size > 0;
    }
    String::from_utf8(body).expect("text")
}
