//! The two nodes that are compared: ours in this process, with blocks made when the test says so,
//! and an anvil that is made to seal the same transactions with the same time, fee recipient and
//! base fee. Both begin from the same genesis file.

use crate::{
    clients::anvil,
    net::{Running, call, wait},
};
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, address, keccak256};
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use serde_json::{Map, Value, json};
use starling::{
    chain::{
        self, Chain, Options,
        evm::{ScriptConnection, ScriptHost},
        genesis::{self, Genesis},
        rules::ChainSpec,
    },
    devnet::genesis::{Files, Plan, build},
    rpc::{HttpEndpoint, RpcConfig, RpcContext, RpcServer, TxRoute},
    script_host,
};
use starling_proto::{
    attributes::{L1Block, attributes},
    config::RollupConfig,
    fork::BlobSchedule,
    payload::Payload,
};
use std::{
    fs::File,
    net::TcpListener,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tokio_util::sync::CancellationToken;

const FEE_RECIPIENT: Address = address!("4200000000000000000000000000000000000011");
const L1_BASE_FEE: u64 = 7_000_000_000;

/// A block that both nodes have.
#[derive(Clone, Debug)]
pub struct Block {
    pub ours: B256,
    pub theirs: B256,
    /// With the L1 attributes.
    pub transactions: Vec<B256>,
}

pub struct Pair {
    pub ours: String,
    pub theirs: String,
    pub chain_id: u64,
    pub blocks: Vec<Block>,
    chain: Chain,
    rollup: RollupConfig,
    runtime: tokio::runtime::Runtime,
    token: CancellationToken,
    _anvil: Running,
    log: PathBuf,
    _dir: tempfile::TempDir,
}

/// A development network's files with these contracts in the genesis of L2, and that genesis.
fn genesis_with(contracts: &Map<String, Value>) -> (Files, Genesis) {
    let time = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
    let mut files = build(&Plan {
        time,
        l2_block_time: 1,
        sequencer: Address::repeat_byte(1),
    })
    .expect("a genesis");
    let alloc = files.l2_genesis["alloc"].as_object_mut().expect("an alloc");
    alloc.extend(contracts.clone());
    let genesis = genesis::parse(&files.l2_genesis.to_string()).expect("our own genesis");
    files.rollup.genesis.l2 = genesis.payload().id();
    (files, genesis)
}

/// Starts anvil, and gives its URL.
fn start_anvil(program: &Path, genesis: &Path, chain_id: u64, log: &Path) -> (Running, String) {
    // The port is free until a moment later; nobody else asks for it.
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .expect("a port")
        .port();
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
            "--steps-tracing",
            "--quiet",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(log).expect("a log file"))
        .spawn()
        .expect("anvil starts");
    (Running { child }, format!("http://127.0.0.1:{port}"))
}

/// Runs tracers in JavaScript on threads of this process.
fn scripts() -> ScriptHost {
    ScriptHost::new(|| {
        let (stream, theirs) = UnixStream::pair()?;
        std::thread::Builder::new()
            .stack_size(64 << 20)
            .spawn(move || script_host::serve(theirs))?;
        Ok(ScriptConnection {
            stream,
            process: None,
        })
    })
}

/// Serves our chain by HTTP until the token is cancelled, and gives the URL.
async fn serve(chain: &Chain, token: &CancellationToken) -> String {
    let http = HttpEndpoint {
        addr: ([127, 0, 0, 1], 0).into(),
        api: ["eth", "net", "web3", "txpool", "debug", "trace"]
            .map(String::from)
            .into(),
        vhosts: vec![],
        cors: vec![],
        prefix: String::new(),
    };
    let config = RpcConfig {
        http: Some(http),
        ..Default::default()
    };
    let mut context = RpcContext::new(chain.into(), TxRoute::Pool);
    context.scripts = Some(scripts());
    // A loop over all of a block's gas may take longer in a build that is not optimised.
    context.bounds.timeout = Duration::from_secs(60);
    let (server, bound) = RpcServer::bind(config, context).await.expect("a socket");
    tokio::spawn(server.run(token.clone()));
    tokio::spawn(chain::pool_maintenance::run(chain.clone(), token.clone()));
    format!("http://{}", bound.http.expect("an address"))
}

impl Drop for Pair {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- anvil\n{}",
                std::fs::read_to_string(&self.log).unwrap_or_default()
            );
        }
        self.token.cancel();
    }
}

impl Pair {
    /// Starts both on a development network's genesis with these contracts added. `None`, with a
    /// sentence, without an anvil.
    pub fn start(contracts: &Map<String, Value>) -> Option<Self> {
        let program = anvil()?;
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (files, genesis) = genesis_with(contracts);
        let chain_id = files.rollup.l2_chain_id;
        let path = dir.path().join("genesis.json");
        std::fs::write(&path, files.l2_genesis.to_string()).expect("a file");
        let log = dir.path().join("anvil.log");
        let (anvil, theirs) = start_anvil(&program, &path, chain_id, &log);

        let datadir = dir.path().join("node");
        chain::init(&datadir, &genesis).expect("a new directory");
        let options = Options {
            datadir,
            cache: 16 << 20,
            commit_interval: Duration::from_millis(500),
        };
        let chain = Chain::open(&options).expect("an own chain").0;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let token = CancellationToken::new();
        let ours = runtime.block_on(serve(&chain, &token));
        let first = |url: &str| {
            let hash = call(url, "eth_getBlockByNumber", json!(["0x0", false])).ok()?["hash"]
                .as_str()?
                .parse()
                .ok();
            hash as Option<B256>
        };
        let theirs_first = wait("anvil", Duration::from_secs(120), || first(&theirs));
        let blocks = vec![Block {
            ours: first(&ours).expect("our genesis"),
            theirs: theirs_first,
            transactions: vec![],
        }];
        Some(Self {
            ours,
            theirs,
            chain_id,
            blocks,
            chain,
            rollup: files.rollup,
            runtime,
            token,
            _anvil: anvil,
            log,
            _dir: dir,
        })
    }

    /// The rules of the chain.
    pub fn spec(&self) -> &ChainSpec {
        self.chain.spec()
    }

    fn control(&self, method: &str, params: Value) -> Value {
        call(&self.theirs, method, params)
            .unwrap_or_else(|error| panic!("anvil's {method}: {error}"))
    }

    /// Makes the next block of both out of these transactions, which are in anvil's pool in this
    /// order.
    pub fn mine(&mut self, transactions: &[Bytes]) {
        let attributes = self.next_attributes(transactions);
        let listed = attributes.transactions.clone().expect("set there");
        let hashes: Vec<B256> = listed.iter().map(keccak256).collect();
        let payload = self.runtime.block_on(self.build(attributes));
        wait("the pool to see the block", Duration::from_secs(60), || {
            hashes
                .iter()
                .all(|hash| self.chain.pool().get(hash).is_none())
                .then_some(())
        });
        let mined = self.mine_in_anvil(&payload.header, &listed);
        let theirs = mined["hash"]
            .as_str()
            .and_then(|hash| hash.parse().ok())
            .expect("a hash");
        assert_eq!(
            mined["transactions"],
            json!(hashes),
            "the blocks differ: the comparison would mean nothing"
        );
        self.blocks.push(Block {
            ours: payload.hash,
            theirs,
            transactions: hashes,
        });
    }

    /// Attributes of the block after the head, with these transactions after the L1 attributes.
    fn next_attributes(&self, transactions: &[Bytes]) -> OpPayloadAttributes {
        let view = self.chain.view();
        let parent = view
            .payload(view.head().number)
            .expect("a readable store")
            .expect("the head");
        let origin = L1Block {
            number: self.rollup.genesis.l1.number,
            hash: self.rollup.genesis.l1.hash,
            parent_hash: B256::ZERO,
            time: self.rollup.genesis.l2_time,
            base_fee: L1_BASE_FEE,
            mix_hash: B256::ZERO,
            excess_blob_gas: Some(0),
            parent_beacon_root: Some(B256::ZERO),
            receipts_root: B256::ZERO,
            state_root: B256::ZERO,
        };
        let schedule = BlobSchedule::default();
        let mut attributes = attributes(&self.rollup, &schedule, &parent, &origin, None)
            .expect("attributes")
            .attributes;
        attributes.no_tx_pool = Some(true);
        let listed = attributes.transactions.as_mut().expect("the L1 attributes");
        listed.extend(transactions.iter().cloned());
        attributes
    }

    /// Our next block, made the head.
    async fn build(&self, attributes: OpPayloadAttributes) -> Arc<Payload> {
        let parent = self.chain.view().head().hash;
        let id = self.chain.start(parent, attributes).await.expect("a build");
        let block = self.chain.seal(id).await.expect("a block");
        let ancestor = |n: usize| {
            self.blocks
                .get(self.blocks.len().saturating_sub(n))
                .map(|block| block.ours)
        };
        self.chain
            .forkchoice(block.payload.hash, ancestor(1), ancestor(2))
            .await
            .expect("a head");
        block.payload.clone()
    }

    /// The block that anvil makes with the time, base fee and fee recipient of this header.
    fn mine_in_anvil(&self, header: &Header, transactions: &[Bytes]) -> Value {
        self.control("evm_setNextBlockTimestamp", json!([header.timestamp]));
        self.control(
            "anvil_setNextBlockBaseFeePerGas",
            json!([format!("{:#x}", header.base_fee_per_gas.unwrap_or(0))]),
        );
        self.control("anvil_setCoinbase", json!([FEE_RECIPIENT]));
        // anvil mines in order of arrival, and the L1 attributes must be first.
        self.control("anvil_dropAllTransactions", json!([]));
        for raw in transactions {
            self.control("eth_sendRawTransaction", json!([raw]));
        }
        self.control("evm_mine", json!([]));
        self.control("eth_getBlockByNumber", json!(["latest", false]))
    }

    /// Sends a transaction to both. If only one takes it, it is taken out again.
    pub fn send(&self, raw: &str, params: &Value) -> [Result<Value, Value>; 2] {
        let answers = [&self.ours, &self.theirs]
            .map(|url| call(url, "eth_sendRawTransaction", params.clone()));
        let hash = alloy_primitives::hex::decode(raw).map(keccak256);
        match (&answers, hash) {
            ([Ok(_), Err(_)], Ok(hash)) => self.chain.pool().remove(&hash),
            ([Err(_), Ok(_)], Ok(hash)) => {
                drop(self.control("anvil_dropTransaction", json!([hash])))
            }
            _ => {}
        }
        answers
    }
}
