//! The proposer on our own L1, a process that makes a block every second: outputs to the oracle of
//! development networks, and dispute games on the published contracts. The rollup node is a
//! stand-in whose L2 blocks are finalized one by one.

use crate::{
    l1_blobs::L1,
    net::{Devnet, ask, call, number, wait},
};
use alloy_primitives::{Address, B256, Bytes, U64, U256, keccak256};
use jsonrpsee::{
    RpcModule,
    server::{ServerBuilder, ServerHandle},
};
use serde_json::{Value, json};
use starling::{
    clock::unix_now,
    devnet::{
        accounts,
        genesis::{self, OUTPUT_ORACLE, Plan},
    },
    l2_source::{L2Endpoints, L2Source, RpcSource},
    proposer::{ProposerOptions, ProposerParts, proposer},
    rollup::l1::{L1Client, L1Config, L1Tag},
    secret::Secret,
    txmgr::{
        options::TxOptions,
        shell::{TxManagerParts, manager},
        sign::TxSigner,
    },
};
use starling_proto::output::output_root;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(180);
/// Number of L2 blocks between two outputs of a development network.
const STEP: u64 = 10;

/// A stand-in rollup node over a real L1.
struct Node {
    url: String,
    finalized: Arc<AtomicU64>,
    _server: ServerHandle,
}

struct NodeState {
    l1: L1Client,
    finalized: Arc<AtomicU64>,
}

fn hash_of(number: u64) -> B256 {
    keccak256(number.to_be_bytes())
}

fn root_of(number: u64) -> B256 {
    output_root(hash_of(number + 1), hash_of(7), hash_of(number))
}

fn l2_ref(number: u64) -> Value {
    json!({
        "hash": hash_of(number), "number": number, "parentHash": B256::ZERO, "timestamp": number,
        "l1origin": { "hash": B256::ZERO, "number": 0 }, "sequenceNumber": 0,
    })
}

async fn sync_status(state: &NodeState) -> Value {
    let head = state.l1.block(L1Tag::Latest).await;
    let head = head.expect("an answer").expect("a head");
    let l1 = json!({
        "hash": head.hash, "number": head.number, "parentHash": head.parent_hash,
        "timestamp": head.time,
    });
    let l2 = l2_ref(state.finalized.load(Ordering::Relaxed));
    json!({
        "current_l1": l1, "current_l1_finalized": l1, "head_l1": l1, "safe_l1": l1,
        "finalized_l1": l1, "unsafe_l2": l2, "safe_l2": l2, "finalized_l2": l2,
        "pending_safe_l2": l2, "cross_unsafe_l2": l2, "local_safe_l2": l2,
    })
}

impl Node {
    async fn start(l1: &str) -> Self {
        let finalized = Arc::new(AtomicU64::new(0));
        let state = NodeState {
            l1: L1Client::new(&L1Config::new(l1)).expect("a client"),
            finalized: finalized.clone(),
        };
        let mut module = RpcModule::new(state);
        let status = |_: jsonrpsee::types::Params<'static>, state: Arc<NodeState>, _| async move {
            sync_status(&state).await
        };
        let registered = module.register_async_method("optimism_syncStatus", status);
        registered.expect("a method");
        let output = |params: jsonrpsee::types::Params<'static>, state: Arc<NodeState>, _| async move {
            let (number,): (U64,) = params.parse().expect("a number");
            let number = number.to();
            json!({
                "version": B256::ZERO, "outputRoot": root_of(number), "blockRef": l2_ref(number),
                "withdrawalStorageRoot": hash_of(7), "stateRoot": hash_of(number + 1),
                "syncStatus": sync_status(&state).await,
            })
        };
        let registered = module.register_async_method("optimism_outputAtBlock", output);
        registered.expect("a method");
        let server = ServerBuilder::default().build("127.0.0.1:0").await;
        let server = server.expect("a server");
        let url = format!("http://{}", server.local_addr().expect("an address"));
        Self {
            url,
            finalized,
            _server: server.start(module),
        }
    }

    fn finalize(&self, number: u64) {
        self.finalized.store(number, Ordering::Relaxed);
    }
}

/// A running proposer with its transaction manager.
struct Running {
    ending: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Running {
    async fn start(l1: &str, node: &Node, key: &str, options: ProposerOptions) -> Self {
        let tx = TxOptions {
            num_confirmations: 1,
            receipt_query_interval: Duration::from_millis(250),
            retry_interval: Duration::from_millis(250),
            resubmission_timeout: Duration::from_secs(20),
            ..TxOptions::default()
        };
        let options = ProposerOptions {
            rollup_rpc: vec![node.url.clone()],
            poll_interval: Duration::from_millis(250),
            tx: tx.clone(),
            ..options
        };
        let l1 = L1Client::new(&L1Config::new(l1)).expect("a client");
        let parts = TxManagerParts {
            options: tx,
            l1: l1.clone(),
            signer: TxSigner::from_hex(&Secret::new(key)).expect("a key"),
            metrics: "test_proposer_",
        };
        let (txs, manager) = manager(parts).await.expect("a manager");
        let endpoints = L2Endpoints {
            rollup: vec![node.url.clone()],
            eth: vec![],
            check_interval: Duration::ZERO,
            timeout: Duration::from_secs(10),
        };
        let source = L2Source::Rpc(Arc::new(RpcSource::new(&endpoints).expect("a source")));
        let parts = ProposerParts {
            options,
            source: source.into(),
            l1,
            txs,
        };
        let (_, task) = proposer(parts).expect("a proposer");
        let ending = CancellationToken::new();
        let (first, second) = (ending.clone(), ending.clone());
        let manager = async move {
            let run = manager.run(CancellationToken::new(), first);
            run.await.expect("no stop");
        };
        let proposer = async move {
            let run = task.run(CancellationToken::new(), second);
            run.await.expect("no stop");
        };
        Self {
            ending,
            tasks: vec![tokio::spawn(manager), tokio::spawn(proposer)],
        }
    }

    /// Stops proposer and transaction manager without waiting for transactions, like a kill.
    async fn kill(self) {
        self.ending.cancel();
        for task in self.tasks {
            task.await.expect("an end");
        }
    }
}

/// The account's nonce at this block tag. This blocks the thread of the async test for a moment.
fn nonce(url: &str, account: Address, tag: &str) -> u64 {
    number(&ask(url, "eth_getTransactionCount", json!([account, tag])))
}

fn words(url: &str, to: Address, signature: &str, arguments: &[u64]) -> Vec<U256> {
    let mut data = keccak256(signature)[..4].to_vec();
    for argument in arguments {
        data.extend(U256::from(*argument).to_be_bytes::<32>());
    }
    let request = json!({ "to": to, "data": Bytes::from(data) });
    let answer: Bytes = serde_json::from_value(ask(url, "eth_call", json!([request, "latest"])))
        .expect("an answer");
    answer.chunks(32).map(U256::from_be_slice).collect()
}

async fn until(what: &str, mut probe: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !probe() {
        assert!(tokio::time::Instant::now() < deadline, "{what} in time");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_outputs_reach_the_oracle_in_order_over_kills() {
    const OUTPUTS: u64 = 20;
    let dir = tempfile::tempdir().expect("a folder");
    let plan = Plan {
        time: unix_now() - 2 * STEP * (OUTPUTS + 2),
        l2_block_time: 2,
        sequencer: accounts::owner(),
    };
    let files = genesis::build(&plan).expect("files");
    let l1 = L1::of_genesis(dir.path(), &files.l1_genesis);
    let node = Node::start(&l1.url).await;
    let account = accounts::all().remove(8);
    assert_eq!(account.address, accounts::proposer());
    let options = || ProposerOptions {
        l2oo_address: Some(OUTPUT_ORACLE),
        ..ProposerOptions::default()
    };
    let start = || Running::start(&l1.url, &node, &account.private_key, options());
    let count = || words(&l1.url, OUTPUT_ORACLE, "nextOutputIndex()", &[])[0].to::<u64>();
    let mut running = start().await;
    for kill in 1..=3u64 {
        node.finalize(kill * 6 * STEP + 3);
        // Kill the proposer as soon as a proposal is in the pool.
        until("a proposal", || {
            nonce(&l1.url, account.address, "pending") > nonce(&l1.url, account.address, "latest")
        })
        .await;
        running.kill().await;
        running = start().await;
        until("six more outputs", || count() == kill * 6).await;
    }
    node.finalize(OUTPUTS * STEP);
    until("the last outputs", || count() == OUTPUTS).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    running.kill().await;
    assert_eq!(count(), OUTPUTS);
    assert_eq!(
        nonce(&l1.url, account.address, "latest"),
        OUTPUTS,
        "one transaction for each output"
    );
    for index in 0..OUTPUTS {
        let block = STEP * (index + 1);
        let output = words(&l1.url, OUTPUT_ORACLE, "getL2Output(uint256)", &[index]);
        assert_eq!(B256::from(output[0]), root_of(block), "{index}");
        assert_eq!(output[2], U256::from(block));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn games_of_the_published_factory_are_one_per_interval_over_kills() {
    const INTERVAL: u64 = 6;
    let Some(fixtures) = starling_testkit::fixture("devnet/jovian") else {
        return;
    };
    let text = std::fs::read_to_string(fixtures.join("deployments.json")).expect("a file");
    let deployments: Value = serde_json::from_str(&text).expect("JSON");
    let chain = &deployments["opChainDeployments"][0];
    let factory: Address =
        serde_json::from_value(chain["DisputeGameFactoryProxy"].clone()).expect("an address");
    let packed = std::fs::read(fixtures.join("l1-allocs.json.zst")).expect("a file");
    let alloc = zstd::decode_all(&packed[..]).expect("zstd");
    let mut alloc: Value = serde_json::from_slice(&alloc).expect("JSON");
    // Give ether to the last development account, which has the deployment's roles.
    let account = accounts::all().remove(9);
    let key = account.address.to_string().to_lowercase();
    alloc[key] = json!({ "balance": format!("{:#x}", accounts::BALANCE) });
    let alloc = alloc.as_object().expect("an object").clone();
    let mut genesis = genesis::l1_genesis_of(1337, alloc);
    genesis["timestamp"] = (unix_now() - 100).into();
    let dir = tempfile::tempdir().expect("a folder");
    let l1 = L1::of_genesis(dir.path(), &genesis);
    let node = Node::start(&l1.url).await;
    let options = || ProposerOptions {
        game_factory_address: Some(factory),
        proposal_interval: Duration::from_secs(INTERVAL),
        game_type: 1,
        ..ProposerOptions::default()
    };
    let start = || Running::start(&l1.url, &node, &account.private_key, options());
    let count = || words(&l1.url, factory, "gameCount()", &[])[0].to::<u64>();
    let mut running = start().await;
    for games in 1..=4u64 {
        node.finalize(100 + games);
        until("a proposal", || {
            nonce(&l1.url, account.address, "pending") > nonce(&l1.url, account.address, "latest")
        })
        .await;
        running.kill().await;
        node.finalize(200 + games);
        running = start().await;
        until("the game", || count() >= games).await;
    }
    running.kill().await;
    let mut last = 0;
    for index in 0..count() {
        let game = words(&l1.url, factory, "gameAtIndex(uint256)", &[index]);
        let created = game[1].to::<u64>();
        assert_eq!(game[0], U256::ONE);
        assert!(created > last + INTERVAL, "game {index}: {created}, {last}");
        last = created;
        let address = Address::from_word(game[2].into());
        let claim = words(&l1.url, address, "rootClaim()", &[])[0];
        let block = words(&l1.url, address, "l2BlockNumber()", &[])[0].to::<u64>();
        assert_eq!(B256::from(claim), root_of(block), "{index}");
    }
    assert_eq!(nonce(&l1.url, account.address, "latest"), count());
}

/// Numbers of the heads with these names in a rollup node's sync status.
fn heads(rpc: &str, names: [&str; 3]) -> [u64; 3] {
    let status = ask(rpc, "optimism_syncStatus", json!([]));
    names.map(|name| status[name]["number"].as_u64().expect("a number"))
}

/// Whether `root` is the block's output root according to a replica, which derives from L1 alone.
fn is_output(net: &Devnet, block: u64, root: B256) -> bool {
    let rpc = net.replicas()[0].rpc.clone().expect("an RPC");
    let output = wait("the output at a replica", PATIENCE, || {
        call(&rpc, "optimism_outputAtBlock", json!([U64::from(block)])).ok()
    });
    output["outputRoot"] == json!(root)
}

#[test]
fn a_development_network_has_safe_final_and_proposed_blocks() {
    let net = Devnet::start_whole(&["--replicas=1", "--l1.block-time=2", "--l2.block-time=1"]);
    assert_eq!(net.role("batcher").len() + net.role("proposer").len(), 2);
    let oracle = net.contract("output_oracle").expect("an oracle");
    assert_eq!(net.contract("dispute_game_factory"), None);
    let l1 = net.l1().http;
    let outputs = || words(&l1, oracle, "nextOutputIndex()", &[])[0].to::<u64>();
    wait("three outputs", PATIENCE, || (outputs() >= 3).then_some(()));
    let sequencer = net.sequencer().rpc.expect("an RPC");
    let [head, safe, finalized] = heads(&sequencer, ["unsafe_l2", "safe_l2", "finalized_l2"]);
    assert!(head >= safe && safe >= finalized && finalized >= 3 * STEP);
    for index in 0..outputs() {
        let output = words(&l1, oracle, "getL2Output(uint256)", &[index]);
        let block = STEP * (index + 1);
        assert_eq!(output[2], U256::from(block));
        assert!(is_output(&net, block, output[0].into()), "{block}");
    }
}

#[test]
fn a_network_on_published_contracts_has_games() {
    let Some(folder) = starling_testkit::fixture("devnet/jovian") else {
        return;
    };
    let option = |name: &str, file: &str| format!("--{name}={}", folder.join(file).display());
    let args = [
        option("l1.genesis", "l1-allocs.json.zst"),
        option("l2.genesis", "l2-genesis.json.zst"),
        option("rollup.config", "rollup.json"),
        "--l1.block-time=2".into(),
        "--replicas=1".into(),
    ];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let net = Devnet::start_whole(&args);
    let factory = net.contract("dispute_game_factory").expect("a factory");
    assert_eq!(net.contract("output_oracle"), None);
    let l1 = net.l1().http;
    let games = || words(&l1, factory, "gameCount()", &[])[0].to::<u64>();
    wait("two games", PATIENCE, || (games() >= 2).then_some(()));
    let mut last = 0;
    for index in 0..games() {
        let game = words(&l1, factory, "gameAtIndex(uint256)", &[index]);
        assert!(game[1].to::<u64>() > last + 30);
        last = game[1].to();
        let address = Address::from_word(game[2].into());
        let root = words(&l1, address, "rootClaim()", &[])[0];
        let block = words(&l1, address, "l2BlockNumber()", &[])[0].to::<u64>();
        assert!(is_output(&net, block, root.into()), "{block}");
    }
}
