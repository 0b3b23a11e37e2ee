//! `starling execution` in the role of op-geth: the real binary, driven only over its Engine API by
//! a small rollup node.

use crate::net::{Running, l1_attributes, number, starling, wait};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, address, keccak256};
use op_alloy_consensus::TxDeposit;
use op_alloy_rpc_types_engine::{OpExecutionPayload, OpExecutionPayloadV4};
use serde_json::{Value, json};
use starling::jwt::JwtSecret;
use starling_proto::payload::{Payload, PayloadVersion, WirePayload};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

mod attacks;

const GENESIS_TIME: u64 = 1_700_000_000;
/// Contract that emits an empty log when called.
pub const LOGGER: Address = address!("00000000000000000000000000000000000010c5");
/// Contract that emits a log of 48 KiB when called.
pub const BIG_LOGGER: Address = address!("00000000000000000000000000000000000b10c5");
const DEADLINE: Duration = Duration::from_secs(120);

fn genesis() -> Value {
    let mut config = json!({
        "chainId": 901,
        "londonBlock": 0,
        "optimism": { "eip1559Elasticity": 6, "eip1559Denominator": 50, "eip1559DenominatorCanyon": 250 },
    });
    for fork in [
        "regolith", "canyon", "ecotone", "fjord", "granite", "holocene", "isthmus", "jovian",
    ] {
        config[format!("{fork}Time")] = 0.into();
    }
    json!({
        "config": config,
        "timestamp": GENESIS_TIME,
        "gasLimit": "0x1c9c380",
        "difficulty": "0x0",
        "baseFeePerGas": "0x3e8",
        "extraData": "0x01000000fa000000060000000000000000",
        "alloc": {
            LOGGER.to_string(): { "balance": "0x0", "code": "0x60006000a000" },
            BIG_LOGGER.to_string(): { "balance": "0x0", "code": "0x61c0005fa000" },
        },
    })
}

fn seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// A core process without peers, and a rollup node's connection to it.
pub struct Core {
    _process: Running,
    pub address: String,
    secret: JwtSecret,
    connection: BufReader<TcpStream>,
    dir: tempfile::TempDir,
}

/// Reads one response of an HTTP server that keeps the connection open. Returns status and body.
fn read_answer(connection: &mut BufReader<TcpStream>) -> (u16, String) {
    let (mut line, mut status, mut length) = (String::new(), 0, 0);
    loop {
        line.clear();
        assert!(
            connection.read_line(&mut line).expect("an answer") > 0,
            "the connection ended"
        );
        let text = line.trim().to_ascii_lowercase();
        if let Some(rest) = text.strip_prefix("http/1.1 ") {
            status = rest[..3].parse().unwrap();
        } else if let Some(rest) = text.strip_prefix("content-length: ") {
            length = rest.parse().unwrap();
        } else if text.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).expect("a body");
    (status, String::from_utf8(body).unwrap())
}

fn connect(address: &str) -> BufReader<TcpStream> {
    let socket = TcpStream::connect(address).expect("the Engine API");
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    BufReader::new(socket)
}

impl Core {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (datadir, genesis_path) = (dir.path().join("data"), dir.path().join("genesis.json"));
        std::fs::write(&genesis_path, genesis().to_string()).unwrap();
        let datadir_arg = format!("--datadir={}", datadir.display());
        let init = starling()
            .arg("init")
            .arg(&datadir_arg)
            .arg(&genesis_path)
            .output()
            .unwrap();
        assert!(
            init.status.success(),
            "{}",
            String::from_utf8_lossy(&init.stderr)
        );
        let log_path = dir.path().join("log");
        let args = [&[datadir_arg.as_str(), "--authrpc.port=0"], options].concat();
        let (process, address) = execution(&args, &log_path);
        let secret = JwtSecret::load_or_create(&datadir.join("geth/jwtsecret")).unwrap();
        let connection = connect(&address);
        Self {
            _process: process,
            address,
            secret,
            connection,
            dir,
        }
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let body =
            json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        let head = format!(
            "POST / HTTP/1.1\r\nhost: localhost\r\nauthorization: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.secret.authorization(seconds()),
            body.len()
        );
        self.connection
            .get_mut()
            .write_all((head + &body).as_bytes())
            .unwrap();
        let (status, text) = read_answer(&mut self.connection);
        assert_eq!(status, 200, "{text}");
        let mut answer: Value = serde_json::from_str(&text).unwrap();
        match answer.get_mut("error") {
            Some(error) => Err(error.take()),
            None => Ok(answer["result"].take()),
        }
    }

    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        self.call(method, params.clone())
            .unwrap_or_else(|error| panic!("{method}{params}: {error}"))
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn latest(&mut self) -> B256 {
        self.block("latest")["hash"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    }

    fn block(&mut self, number: &str) -> Value {
        self.ask("eth_getBlockByNumber", json!([number, false]))
    }

    fn balance(&mut self, of: Address) -> Value {
        self.ask("eth_getBalance", json!([of, "latest"]))
    }

    pub fn genesis(&mut self) -> Made {
        let hash = self.block("0x0")["hash"].as_str().unwrap().parse().unwrap();
        Made {
            payload: Value::Null,
            hash,
            number: 0,
            time: GENESIS_TIME,
        }
    }

    /// Sends a fork choice without attributes. Returns its payload status.
    fn forkchoice(&mut self, head: B256) -> Value {
        let state = json!({ "headBlockHash": head, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO });
        let answer = self.ask("engine_forkchoiceUpdatedV3", json!([state, null]));
        assert!(answer["payloadId"].is_null());
        answer["payloadStatus"].clone()
    }

    pub fn make_head(&mut self, made: &Made) {
        let status = self.forkchoice(made.hash);
        assert_eq!(
            status,
            json!({ "status": "VALID", "latestValidHash": made.hash, "validationError": null })
        );
    }

    pub fn insert(&mut self, payload: &Value) -> Value {
        self.ask("engine_newPayloadV4", json!([payload, [], B256::ZERO, []]))
    }

    /// Makes `on` the head, builds a block on it and inserts the block, as a sequencer does.
    fn build(&mut self, on: &Made, salt: u64) -> Made {
        self.build_of(on, attributes(on, salt))
    }

    /// Makes `on` the head, builds a block with these attributes and inserts the block.
    pub fn build_of(&mut self, on: &Made, attributes: Value) -> Made {
        let state = json!({ "headBlockHash": on.hash, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO });
        let begun = self.ask("engine_forkchoiceUpdatedV3", json!([state, attributes]));
        assert_eq!(begun["payloadStatus"]["status"], "VALID", "{begun}");
        let envelope = self.ask("engine_getPayloadV4", json!([begun["payloadId"]]));
        let payload = envelope["executionPayload"].clone();
        assert_eq!(self.insert(&payload)["status"], "VALID");
        Made {
            hash: payload["blockHash"].as_str().unwrap().parse().unwrap(),
            number: number(&payload["blockNumber"]),
            time: number(&payload["timestamp"]),
            payload,
        }
    }

    /// Builds `count` blocks on top of each other, and makes each the head.
    fn extend(&mut self, on: &Made, count: u64, salt: u64) -> Vec<Made> {
        let mut made: Vec<Made> = vec![];
        for _ in 0..count {
            let next = self.build(made.last().unwrap_or(on), salt);
            self.make_head(&next);
            made.push(next);
        }
        made
    }
}

/// Starts `starling execution` and reads the address of its Engine API from the log.
pub fn execution(args: &[&str], log_path: &Path) -> (Running, String) {
    let log = std::fs::File::create(log_path).unwrap();
    let mut command: Command = starling();
    command
        .arg("execution")
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let mut process = Running {
        child: command.spawn().unwrap(),
    };
    let address = wait("the Engine API", DEADLINE, || {
        let log = std::fs::read_to_string(log_path).unwrap_or_default();
        if let Ok(Some(status)) = process.child.try_wait() {
            panic!("it ended with {status}: {log}");
        }
        // Require the end of the line, so that the address is complete.
        let found = log.split_once(" authrpc=")?.1.split_once('\n')?.0;
        found.split(' ').next().map(str::to_owned)
    });
    (process, address)
}

/// A block that the core made.
#[derive(Clone)]
pub struct Made {
    pub payload: Value,
    pub hash: B256,
    pub number: u64,
    time: u64,
}

/// Account that receives one wei in the block at this height of the branch with this salt.
fn depositor(height: u64, salt: u64) -> Address {
    Address::from_word(keccak256(
        [height.to_be_bytes(), salt.to_be_bytes()].concat(),
    ))
}

/// Attributes of a block on `on`, on the branch with this salt. The block has one log.
pub fn attributes(on: &Made, salt: u64) -> Value {
    let from = depositor(on.number + 1, salt);
    let deposit = TxDeposit {
        source_hash: from.into_word(),
        from,
        to: TxKind::Call(LOGGER),
        mint: 1,
        gas_limit: 100_000,
        input: l1_attributes(),
        ..Default::default()
    };
    json!({
        "timestamp": format!("{:#x}", on.time + 2),
        "prevRandao": B256::from(U256::from(salt)),
        "suggestedFeeRecipient": Address::repeat_byte(0xfe),
        "withdrawals": [],
        "parentBeaconBlockRoot": B256::ZERO,
        "transactions": [Bytes::from(deposit.encoded_2718())],
        "noTxPool": true,
        "gasLimit": "0x1c9c380",
        "eip1559Params": "0x0000000000000000",
        "minBaseFee": 0,
    })
}

/// A payload with a changed header or body, and the hash that results.
fn changed(payload: &Value, change: impl FnOnce(&mut Payload)) -> Value {
    let v4: OpExecutionPayloadV4 = serde_json::from_value(payload.clone()).unwrap();
    let wire =
        WirePayload::from_execution_payload(OpExecutionPayload::V4(v4), Some(B256::ZERO)).unwrap();
    let mut payload = wire.into_payload().unwrap();
    change(&mut payload);
    payload.header.transactions_root =
        alloy_trie::root::ordered_trie_root_encoded(&payload.transactions);
    let payload = Payload::sealed(payload.header, payload.transactions);
    serde_json::to_value(payload.to_execution_payload(PayloadVersion::V4)).unwrap()
}

#[test]
fn a_rollup_node_builds_reorganises_and_rewinds() {
    let mut core = Core::start();
    let filter = core.ask("eth_newFilter", json!([{ "address": LOGGER }]));
    let genesis = core.genesis();
    let trunk = core.extend(&genesis, 5, 0);
    let fork = trunk[4].clone();
    let ours = core.extend(&fork, 5, 0);
    let told = core.ask("eth_getFilterChanges", json!([filter]));
    assert_eq!(told.as_array().unwrap().len(), 10);

    // A rollup node that builds on an ancestor of the head replaces its own unsafe blocks.
    let theirs = core.extend(&fork, 4, 1);
    let told = core.ask("eth_getFilterChanges", json!([filter]));
    let [removed, added] = log_heights(&told);
    assert_eq!(removed, [10, 9, 8, 7, 6]);
    assert_eq!(added, [6, 7, 8, 9]);

    switch_often(&mut core, &ours[4], &theirs[3]);
    // Build more siblings at one height than the core keeps, so that the oldest are dropped.
    for salt in 100..140 {
        let made = core.build(&fork, salt);
        core.make_head(&made);
        assert_eq!(core.latest(), made.hash);
    }

    // Moves the head far below the blocks in memory and on disk, extends it, switches back to the
    // abandoned branch, and to the new branch again.
    core.make_head(&fork);
    let long = core.extend(&fork, 520, 2);
    let base = &long[19];
    core.make_head(base);
    assert_eq!(
        (
            core.latest(),
            number(&core.ask("eth_blockNumber", json!([])))
        ),
        (base.hash, base.number)
    );
    assert_eq!(core.balance(depositor(long[20].number, 2)), "0x0");
    let on = core.extend(base, 10, 3);
    core.make_head(&long[519]);
    assert_eq!(core.balance(depositor(long[519].number, 2)), "0x1");
    core.make_head(&on[9]);
    let canonical: Vec<&Made> = trunk.iter().chain(&long[..20]).chain(&on).collect();
    equals_a_fresh_core(&mut core, &canonical);
}

/// Heights of the removed logs, and heights of the added logs.
fn log_heights(logs: &Value) -> [Vec<u64>; 2] {
    [true, false].map(|removed| {
        logs.as_array()
            .unwrap()
            .iter()
            .filter(|log| (log["removed"] == true) == removed)
            .map(|log| number(&log["blockNumber"]))
            .collect()
    })
}

/// Alternates the head between the tips of two branches that fork above block 5.
fn switch_often(core: &mut Core, ours: &Made, theirs: &Made) {
    for round in 0..1000 {
        let (tip, other) = if round % 2 == 0 {
            (ours, 1)
        } else {
            (theirs, 0)
        };
        core.make_head(tip);
        if round % 100 < 2 {
            assert_eq!(core.latest(), tip.hash);
            assert_eq!(core.balance(depositor(6, other)), "0x0");
            assert_eq!(core.balance(depositor(6, 1 - other)), "0x1");
        }
    }
}

/// Compares chain and state with a second core that gets only the canonical blocks.
fn equals_a_fresh_core(core: &mut Core, canonical: &[&Made]) {
    let mut fresh = Core::start();
    let genesis = fresh.genesis();
    for made in canonical {
        assert_eq!(fresh.insert(&made.payload)["status"], "VALID");
    }
    assert_eq!(fresh.latest(), genesis.hash, "a new payload moves no head");
    fresh.make_head(canonical.last().unwrap());
    let heights = (0..=canonical.len() as u64).map(|height| format!("{height:#x}"));
    for height in heights {
        assert_eq!(core.block(&height), fresh.block(&height));
    }
    for (height, salt) in (1..560)
        .flat_map(|height| (0..4).map(move |salt| (height, salt)))
        .step_by(7)
    {
        let of = depositor(height, salt);
        assert_eq!(
            core.balance(of),
            fresh.balance(of),
            "block {height} of branch {salt}"
        );
    }
    let proof = json!([LOGGER, [], "latest"]);
    assert_eq!(
        core.ask("eth_getProof", proof.clone()),
        fresh.ask("eth_getProof", proof)
    );
}

#[test]
fn old_states_are_kept_as_far_as_the_options_say() {
    for (options, oldest) in [
        (&["--history.state=10"][..], 20),
        (&["--history.state=10", "--gcmode=archive"], 0),
        (&["--history.state=0"], 0),
    ] {
        let mut core = Core::start_with(options);
        let genesis = core.genesis();
        let made = core.extend(&genesis, 30, 0);
        // A head that moves down is acknowledged only when all blocks are stored. The second call
        // therefore proves that block 30 is stored, too.
        core.make_head(&made[28]);
        core.make_head(&made[29]);
        core.make_head(&made[28]);
        for block in [0, 2, 19, 20, 28] {
            let params = json!([depositor(block.max(1), 0), format!("{block:#x}")]);
            match core.call("eth_getBalance", params) {
                Ok(balance) => assert_eq!(
                    (balance, block >= oldest),
                    (json!(if block > 0 { "0x1" } else { "0x0" }), true)
                ),
                Err(error) => {
                    let said = format!(
                        "state at block #{block} is pruned, the oldest state is at block #{oldest}"
                    );
                    assert_eq!(
                        (&error["message"], block < oldest),
                        (&json!(said), true),
                        "{options:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_core_says_what_it_imports_and_what_it_waits_for() {
    let mut core = Core::start();
    let says = |core: &Core, words: &[&str]| {
        wait(words[0], DEADLINE, || {
            let log = core.log();
            log.lines()
                .any(|line| words.iter().all(|word| line.contains(word)))
                .then_some(())
        });
    };
    says(
        &core,
        &[
            "waiting for blocks",
            "the rollup node has sent no newer block",
        ],
    );
    // The server has closed the idle connection by now.
    core.connection = connect(&core.address);
    let genesis = core.genesis();
    core.extend(&genesis, 20, 0);
    says(&core, &["imported blocks", "number=20"]);
}
