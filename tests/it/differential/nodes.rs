//! The two compared nodes: Starling in this process, with blocks made on command of the test, and
//! an anvil that seals the same blocks. Both begin from the same genesis file.

use crate::{
    anvil::AnvilL2,
    net::{call, wait},
};
use alloy_primitives::{Address, B256, Bytes, keccak256};
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
use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

const L1_BASE_FEE: u64 = 7_000_000_000;

/// A block that both nodes have, with its hash on each.
#[derive(Clone, Debug)]
pub struct Block {
    pub ours: B256,
    pub theirs: B256,
    /// Hashes of all transactions, including the L1 attributes.
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
    anvil: AnvilL2,
    _dir: tempfile::TempDir,
}

/// Files of a development network whose L2 genesis has these contracts, and that genesis parsed.
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

/// Runs JavaScript tracers on threads of this process.
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

/// Serves our chain over HTTP until the token is cancelled. Returns the URL.
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
    // Raise the timeout: an unoptimised build may need longer for a loop over all of a block's gas.
    context.bounds.timeout = Duration::from_secs(60);
    let (server, bound) = RpcServer::bind(config, context).await.expect("a socket");
    tokio::spawn(server.run(token.clone()));
    tokio::spawn(chain::pool_maintenance::run(chain.clone(), token.clone()));
    format!("http://{}", bound.http.expect("an address"))
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

impl Pair {
    /// Starts both nodes on a development network's genesis with these contracts added. `None`,
    /// with a printed sentence, if anvil is not installed.
    pub fn start(contracts: &Map<String, Value>) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (files, genesis) = genesis_with(contracts);
        let chain_id = files.rollup.l2_chain_id;
        let path = dir.path().join("genesis.json");
        std::fs::write(&path, files.l2_genesis.to_string()).expect("a file");
        let anvil = AnvilL2::start(
            &path,
            chain_id,
            dir.path().join("anvil.log"),
            &["--steps-tracing"],
        )?;

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
        let blocks = vec![Block {
            ours: first(&ours).expect("our genesis"),
            theirs: first(&anvil.url).expect("anvil's genesis"),
            transactions: vec![],
        }];
        Some(Self {
            ours,
            theirs: anvil.url.clone(),
            chain_id,
            blocks,
            chain,
            rollup: files.rollup,
            runtime,
            token,
            anvil,
            _dir: dir,
        })
    }

    /// The chain's fork rules.
    pub fn spec(&self) -> &ChainSpec {
        self.chain.spec()
    }

    /// Makes the next block of both nodes from these transactions, which are in anvil's pool in the
    /// same order.
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
        let theirs = self.anvil.seal(&payload.header, &listed);
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

    /// Builds our next block and makes it the head.
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

    /// Sends a transaction to both nodes. If only one node accepts it, the transaction is removed
    /// from that node again.
    pub fn send(&self, raw: &str, params: &Value) -> [Result<Value, Value>; 2] {
        let answers = [&self.ours, &self.theirs]
            .map(|url| call(url, "eth_sendRawTransaction", params.clone()));
        let hash = alloy_primitives::hex::decode(raw).map(keccak256);
        match (&answers, hash) {
            ([Ok(_), Err(_)], Ok(hash)) => self.chain.pool().remove(&hash),
            ([Err(_), Ok(_)], Ok(hash)) => {
                drop(self.anvil.control("anvil_dropTransaction", json!([hash])))
            }
            _ => {}
        }
        answers
    }
}
