//! A withdrawal from a chain on the published contracts, with viem and anvil: the withdrawal
//! through a replica, the proposer's dispute game, the proof, and the ether on L1 after all delays.
//! One Starling process sequences, posts batches and proposes.

use super::{
    network::{Folder, PATIENCE, our_init, turn},
    programs::Started,
};
use crate::{
    anvil,
    clients::printed_by,
    net::{Account, ask, call, number, script_named, wait},
};
use alloy_primitives::{Address, Bytes, TxKind, U256, hex, keccak256};
use serde_json::{Value, json};
use starling::{
    cli::config::DevnetFiles,
    clock::unix_now,
    devnet::{accounts, given::Given, l1_config},
};
use starling_testkit::free_port;
use std::{fs, path::Path, time::Duration};

const L1_CHAIN: u64 = 1337;
const L2_CHAIN: u64 = 13;
/// The deployment has only the permissioned game.
const GAME_TYPE: u32 = 1;
/// Receiver of the withdrawal, an account without ether.
const RECEIVER: Address = Address::repeat_byte(0x5e);
/// `GameStatus.DEFENDER_WINS` of the published contracts.
const DEFENDER_WINS: u64 = 2;

/// Addresses of the deployed contracts on L1.
struct Deployed {
    portal: Address,
    factory: Address,
    registry: Address,
}

impl Deployed {
    fn read(fixtures: &Path) -> Self {
        let text = fs::read_to_string(fixtures.join("deployments.json")).expect("a file");
        let all: Value = serde_json::from_str(&text).expect("JSON");
        let address = |name: &str| {
            let address = all["opChainDeployments"][0][name].clone();
            serde_json::from_value(address).expect("an address")
        };
        Self {
            portal: address("OptimismPortalProxy"),
            factory: address("DisputeGameFactoryProxy"),
            registry: address("AnchorStateRegistryProxy"),
        }
    }
}

/// Starts anvil on the L1 genesis in this folder.
fn start_l1(dir: &Path, program: &Path) -> Started {
    let port = free_port();
    let mut words = vec![
        program.display().to_string(),
        format!("--init={}", dir.join("l1-genesis.json").display()),
        format!("--port={port}"),
        format!("--chain-id={L1_CHAIN}"),
    ];
    let options = [
        "--hardfork=cancun",
        "--block-time=1",
        // With this option a block is finalized two blocks later.
        "--slots-in-an-epoch=1",
        "--accounts=0",
        "--gas-limit=30000000",
        "--disable-default-create2-deployer",
    ];
    words.extend(options.map(String::from));
    let url = format!("http://127.0.0.1:{port}");
    Started::new(dir, "l1", words, url).ready()
}

/// Writes the files of the published deployment for chains that begin now, and starts their L1.
fn start_chains(fixtures: &Path, dir: &Path, anvil: &Path) -> Started {
    let file = |name: &str| fixtures.join(name);
    let given = Given::read(&DevnetFiles {
        l1: file("l1-allocs.json.zst"),
        l2: file("l2-genesis.json.zst"),
        rollup: file("rollup.json"),
    });
    let files = given
        .expect("the files")
        .files(unix_now(), Some(1), GAME_TYPE);
    let mut files = files.expect("files that fit each other");
    let write = |name: &str, text: String| fs::write(dir.join(name), text).expect("a file");
    write("l1-genesis.json", files.l1_genesis.to_string());
    write("l2-genesis.json", files.l2_genesis.to_string());
    let config = l1_config::of_genesis(&files.l1_genesis);
    write("l1-chain-config.json", config.to_string());
    let l1 = start_l1(dir, anvil);
    // anvil's genesis block has the state root of an empty state, and so its hash differs.
    let genesis = ask(&l1.url, "eth_getBlockByNumber", json!(["0x0", false]));
    let hash = serde_json::from_value(genesis["hash"].clone());
    files.rollup.genesis.l1.hash = hash.expect("a hash");
    write("rollup.json", files.rollup.to_json());
    l1
}

fn key_of(account: Address) -> String {
    let mut all = accounts::all().into_iter();
    let account = all.find(|known| known.address == account);
    account.expect("a development account").private_key
}

/// The process that sequences, and a replica.
struct Nodes {
    sequencer: Started,
    replica: Started,
}

impl Nodes {
    fn start(dir: &Path, l1: &Started, deployed: &Deployed) -> Self {
        let peers = [free_port(), free_port()];
        let sequencer = node(dir, "sequencer", l1, peers[0], &sequencing(deployed));
        let identity = ask(&sequencer.url, "opp2p_self", json!([]));
        let peer = identity["peerID"].as_str().expect("a peer id");
        let replica = [
            format!("--p2p.static=/ip4/127.0.0.1/tcp/{}/p2p/{peer}", peers[0]),
            format!("--rollup.sequencerhttp={}", sequencer.url),
        ];
        let replica = node(dir, "replica", l1, peers[1], &replica);
        Self { sequencer, replica }
    }
}

/// Options of sequencer, batcher and proposer in one process.
fn sequencing(deployed: &Deployed) -> Vec<String> {
    let signer = accounts::all().remove(5);
    let batcher = key_of(accounts::proposer());
    let proposer = key_of(accounts::all().remove(9).address);
    let mut options = vec![
        "--sequencer.enabled".into(),
        "--sequencer.l1-confs=0".into(),
        format!("--p2p.sequencer.key={}", signer.private_key),
        "--batcher.enabled".into(),
        format!("--batcher.private-key={batcher}"),
        "--batcher.data-availability-type=calldata".into(),
        "--batcher.max-channel-duration=1".into(),
        "--proposer.enabled".into(),
        format!("--proposer.private-key={proposer}"),
        format!("--proposer.game-factory-address={}", deployed.factory),
        format!("--proposer.game-type={GAME_TYPE}"),
        "--proposer.proposal-interval=5s".into(),
    ];
    for role in ["batcher", "proposer"] {
        options.push(format!("--{role}.poll-interval=500ms"));
        options.push(format!("--{role}.num-confirmations=1"));
        options.push(format!("--{role}.txmgr.receipt-query-interval=500ms"));
    }
    options
}

fn node(dir: &Path, name: &str, l1: &Started, p2p: u16, options: &[String]) -> Started {
    let [http, rpc] = [free_port(), free_port()];
    let file = |name: &str| dir.join(name).display().to_string();
    let mut words = our_init(dir, name, "node", "l2-genesis.json");
    words.extend([
        format!("--l1={}", l1.url),
        "--l1.http-poll-interval=250ms".into(),
        "--l1.epoch-poll-interval=1s".into(),
        "--l1.beacon.ignore".into(),
        format!("--rollup.config={}", file("rollup.json")),
        format!("--rollup.l1-chain-config={}", file("l1-chain-config.json")),
        "--finality.delay=1".into(),
        "--http".into(),
        "--http.addr=127.0.0.1".into(),
        format!("--http.port={http}"),
        "--http.api=eth,net,web3,txpool,opp2p".into(),
        "--rpc.addr=127.0.0.1".into(),
        format!("--rpc.port={rpc}"),
        "--p2p.no-discovery".into(),
        "--p2p.listen.ip=127.0.0.1".into(),
        format!("--p2p.listen.tcp={p2p}"),
        format!("--p2p.priv.path={}", file(&format!("{name}.p2p-key"))),
    ]);
    words.extend_from_slice(options);
    Started::new(dir, name, words, format!("http://127.0.0.1:{http}"))
        .with_rollup(rpc)
        .ready()
}

/// Calldata of a call: the function's selector and its arguments.
fn data(signature: &str, arguments: &[u64]) -> Bytes {
    let mut data = keccak256(signature)[..4].to_vec();
    for argument in arguments {
        data.extend(U256::from(*argument).to_be_bytes::<32>());
    }
    data.into()
}

fn read(l1: &Started, to: Address, signature: &str) -> u64 {
    let request = json!([{ "to": to, "data": data(signature, &[]) }, "latest"]);
    let answer = ask(&l1.url, "eth_call", request);
    U256::from_be_slice(&hex::decode(answer.as_str().expect("bytes")).expect("hex")).to()
}

/// Advances the time of L1, and waits for a block with the new time.
fn pass(l1: &Started, seconds: u64) {
    let time = |l1: &Started| {
        let block = ask(&l1.url, "eth_getBlockByNumber", json!(["latest", false]));
        number(&block["timestamp"])
    };
    let later = time(l1) + seconds;
    ask(&l1.url, "evm_increaseTime", json!([seconds]));
    wait("a later block", PATIENCE, || {
        (time(l1) >= later).then_some(())
    });
}

/// Sends transactions to a contract on L1, and waits until they have succeeded.
fn transact(l1: &Started, account: &Account, to: Address, calls: &[Bytes]) {
    let sent = json!([account.address, "latest"]);
    let first = number(&ask(&l1.url, "eth_getTransactionCount", sent));
    for (nonce, input) in (first..).zip(calls) {
        let to = TxKind::Call(to);
        let raw = account.sign(L1_CHAIN, nonce, to, U256::ZERO, input.clone(), 1_000_000);
        let hash = ask(&l1.url, "eth_sendRawTransaction", json!([raw]));
        let receipt = wait("a receipt", PATIENCE, || {
            let receipt = call(&l1.url, "eth_getTransactionReceipt", json!([hash]));
            receipt.ok().filter(|receipt| !receipt.is_null())
        });
        assert_eq!(receipt["status"], "0x1", "{receipt}");
    }
}

/// Resolves an undisputed game, which any account may do.
fn resolve(l1: &Started, game: Address) {
    let account = accounts::all().remove(2);
    let account = Account {
        address: account.address,
        key: account.private_key.parse().expect("a key"),
    };
    let calls = [
        data("resolveClaim(uint256,uint256)", &[0, 0]),
        data("resolve()", &[]),
    ];
    transact(l1, &account, game, &calls);
    assert_eq!(read(l1, game, "status()"), DEFENDER_WINS);
}

/// The client's script, which is run step by step.
struct Script {
    target: Value,
}

impl Script {
    fn new(l1: &Started, replica: &Started, deployed: &Deployed) -> Self {
        let target = json!({
            "l1": { "http": l1.url, "chainId": L1_CHAIN },
            "l2": { "http": replica.url, "chainId": L2_CHAIN },
            "key": accounts::all().remove(1).private_key,
            "to": RECEIVER,
            "contracts": { "portal": deployed.portal, "factory": deployed.factory },
        });
        Self { target }
    }

    /// Runs a step and returns its output. `hash` is the withdrawal's transaction hash.
    fn run(&self, step: &str, hash: &Value) -> String {
        let mut argument = self.target.clone();
        argument["step"] = step.into();
        argument["hash"] = hash.clone();
        let mut command = script_named("exit", "viem").expect("it was there before");
        command.arg(argument.to_string());
        let printed = printed_by(command, Duration::from_secs(240));
        printed.unwrap_or_else(|error| panic!("the step {step}: {error}"))
    }
}

#[test]
fn a_withdrawal_leaves_a_chain_on_the_published_contracts() {
    let Some(program) = anvil::program() else {
        return;
    };
    let Some(fixtures) = starling_testkit::fixture("devnet/jovian") else {
        return;
    };
    if script_named("exit", "viem").is_none() {
        return;
    }
    let _turn = turn();
    let dir = Folder::new();
    let deployed = Deployed::read(&fixtures);
    let l1 = start_chains(&fixtures, dir.path(), &program);
    let mut nodes = Nodes::start(dir.path(), &l1, &deployed);
    let script = Script::new(&l1, &nodes.replica, &deployed);
    let proven: Value = serde_json::from_str(&script.run("prove", &Value::Null)).expect("JSON");
    let rollup = nodes.replica.rollup.clone().expect("a rollup node");
    let block = proven["block"].as_u64().expect("a number");
    let output = json!([format!("{block:#x}")]);
    let output = ask(&rollup, "optimism_outputAtBlock", output);
    assert_eq!(proven["claim"], output["outputRoot"]);
    let game = proven["game"].as_str().and_then(|it| it.parse().ok());
    let game: Address = game.expect("an address");

    // Stop the sequencer: L2 would need a block for every second that L1's time is advanced.
    nodes.sequencer.stop();
    let maturity = read(&l1, deployed.portal, "proofMaturityDelaySeconds()");
    let clock = read(&l1, game, "maxClockDuration()");
    assert!(maturity > 0 && clock > 0);
    pass(&l1, maturity.max(clock) + 1);
    script.run("early", &proven["hash"]);
    resolve(&l1, game);
    script.run("early", &proven["hash"]);
    let delay = read(&l1, deployed.registry, "disputeGameFinalityDelaySeconds()");
    assert!(delay > 0);
    pass(&l1, delay + 1);
    script.run("finalize", &proven["hash"]);
    nodes.replica.check();
}
