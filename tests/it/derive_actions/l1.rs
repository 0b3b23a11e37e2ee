//! An L1 made of our core in Ethereum mode, served over our JSON-RPC, with its blobs over our
//! Beacon API. The test acts as its consensus client: it determines each block's transactions, time
//! and parent, and which branch is canonical.

use crate::{
    late::Store,
    net::{Account, ask},
};
use alloy_consensus::{SignableTransaction, Signed, TxEip4844, TxEip4844WithSidecar};
use alloy_eips::{
    eip2718::Encodable2718,
    eip4844::{Blob, kzg_to_versioned_hash},
};
use alloy_primitives::{Address, B256, Bytes, Log, LogData, Signature, TxKind, U256};
use alloy_rpc_types_engine::PayloadAttributes;
use op_alloy_rpc_types_engine::OpPayloadAttributes;
use serde_json::{Value, json};
use starling::{
    beacon_api::BeaconServer,
    chain::{Inserted, kzg, pool_maintenance},
    clock::since_epoch,
    devnet::genesis::L1_CHAIN_ID,
    rpc::{HttpEndpoint, RpcConfig, RpcContext, RpcServer, TxRoute},
};
use starling_p2p::Provenance;
use starling_proto::{
    attributes::{L1Block, ReceiptLogs},
    blob,
    payload::Payload,
    sign,
};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Default distance of the finalized block from the head, in L1 blocks: more than the deepest
/// reorg.
const FINALIZED_DEPTH: usize = 70;
/// Time that the builder has to include transactions of the pool.
const POOL_TIME: Duration = Duration::from_millis(200);
/// Fee cap of L1 transactions, for gas and for blob gas, in wei.
pub const MAX_FEE: u128 = 100_000_000_000;

/// A call to be included in an L1 block.
#[derive(Clone)]
pub struct L1Call {
    pub from: Account,
    pub to: Address,
    pub value: u64,
    pub input: Bytes,
    /// Data items of the call, each of which is carried in a blob.
    pub blobs: Vec<Vec<u8>>,
}

/// An L1 block, with the data that L2 derives from.
pub struct L1Entry {
    pub block: L1Block,
    pub receipts: Vec<ReceiptLogs>,
    /// The next nonce of each account that has sent a transaction.
    nonces: HashMap<Address, u64>,
    /// The whole block, if this process mined it.
    pub payload: Option<Arc<Payload>>,
}

impl L1Entry {
    /// Reads the block with this hash over JSON-RPC.
    pub fn read(url: &str, hash: &Value) -> Self {
        let block = ask(url, "eth_getBlockByHash", json!([hash, false]));
        let receipts = ask(url, "eth_getBlockReceipts", json!([hash]));
        let receipts = receipts.as_array().expect("receipts").iter();
        Self {
            block: l1_block(&block),
            receipts: receipts.map(receipt).collect(),
            nonces: HashMap::new(),
            payload: None,
        }
    }

    /// Reads the canonical block at this height over JSON-RPC.
    pub fn read_at(url: &str, number: u64) -> Self {
        let number = json!([format!("{number:#x}"), false]);
        let block = ask(url, "eth_getBlockByNumber", number);
        Self::read(url, &block["hash"])
    }
}

/// A branch of L1 from genesis on, indexed by number.
pub type L1Chain = Vec<Arc<L1Entry>>;

pub struct CoreL1 {
    store: Store,
    runtime: Runtime,
    stop: CancellationToken,
    pub url: String,
    /// URL of the L1's Beacon API, whose slot time is the period.
    pub beacon: String,
    /// The canonical chain.
    pub chain: L1Chain,
    /// Seconds between L1 blocks.
    period: u64,
    /// Number of slots to leave empty before the next block.
    missed_slots: u64,
    /// Number of the branch, which makes the blocks of each branch differ.
    branch: u64,
    /// Number of the finalized block, which never decreases.
    finalized: usize,
    /// Distance of the finalized block from the head, in L1 blocks.
    pub finalized_depth: usize,
    /// Whether the pool requires cell proofs. This depends on the clock, not on the chain's time.
    takes_cell_proofs: bool,
}

impl CoreL1 {
    pub fn start(genesis: &str, period: u64) -> Self {
        let store = Store::new(genesis);
        let runtime = Runtime::new().expect("a runtime");
        let stop = CancellationToken::new();
        let url = runtime.block_on(serve(&store, stop.clone()));
        let beacon = runtime.block_on(serve_blobs(&store, period, stop.clone()));
        let file: Value = serde_json::from_str(genesis).expect("a genesis");
        let osaka = file["config"]["osakaTime"].as_u64();
        let genesis = L1Entry::read_at(&url, 0);
        Self {
            store,
            runtime,
            stop,
            url,
            beacon,
            chain: vec![genesis.into()],
            period,
            missed_slots: 0,
            branch: 0,
            finalized: 0,
            finalized_depth: FINALIZED_DEPTH,
            takes_cell_proofs: osaka.is_some_and(|time| time <= since_epoch().as_secs()),
        }
    }

    pub fn height(&self) -> u64 {
        self.chain.len() as u64 - 1
    }

    pub fn head(&self) -> &L1Entry {
        self.chain.last().expect("a genesis")
    }

    /// Hash of the head as a JSON string.
    pub fn head_hash(&self) -> Value {
        json!(self.head().block.hash)
    }

    /// Mines a block on the head that contains these calls, all of which must succeed.
    pub fn mine(&mut self, calls: &[L1Call]) {
        let (mut nonces, mut raw) = (self.head().nonces.clone(), vec![]);
        for call in calls {
            let nonce = nonces.entry(call.from.address).or_default();
            raw.push(if call.blobs.is_empty() {
                sign_call(call, *nonce)
            } else {
                self.submit_blobs(call, *nonce)
            });
            *nonce += 1;
        }
        let entry = self.append(Some(raw), nonces);
        let failed = entry.receipts.iter().position(|(success, _)| !success);
        assert_eq!(failed, None, "a transaction of L1 fails");
        assert_eq!(entry.receipts.len(), calls.len());
    }

    /// Updates the pool to the head: mined transactions are removed, and transactions of abandoned
    /// blocks are added again.
    pub fn maintain_pool(&self) {
        let maintenance = pool_maintenance::run(self.store.chain.clone(), self.stop.clone());
        self.runtime.spawn(maintenance);
    }

    /// Mines a block with the transactions in the pool.
    pub fn mine_pool(&mut self) {
        let nonces = self.head().nonces.clone();
        self.append(None, nonces);
    }

    /// Appends a block with the transactions `raw`; if `None`, with transactions from the pool.
    fn append(&mut self, raw: Option<Vec<Bytes>>, nonces: HashMap<Address, u64>) -> &L1Entry {
        let slots = 1 + std::mem::take(&mut self.missed_slots);
        let parent = &self.head().block;
        let takes_pool = raw.is_none();
        let attributes = OpPayloadAttributes {
            payload_attributes: PayloadAttributes {
                timestamp: parent.time + slots * self.period,
                prev_randao: U256::from(self.branch).into(),
                suggested_fee_recipient: Address::repeat_byte(0xfe),
                withdrawals: Some(vec![]),
                parent_beacon_block_root: Some(U256::from(self.chain.len()).into()),
                ..Default::default()
            },
            transactions: Some(raw.unwrap_or_default()),
            no_tx_pool: Some(!takes_pool),
            ..Default::default()
        };
        let (chain, parent) = (&self.store.chain, parent.hash);
        let built = self.runtime.block_on(async {
            let id = chain.start(parent, attributes).await?;
            if takes_pool {
                tokio::time::sleep(POOL_TIME).await;
            }
            chain.seal(id).await
        });
        let payload = built.expect("a valid block").payload.clone();
        self.make_head(payload.hash);
        let mut entry = L1Entry::read(&self.url, &json!(payload.hash));
        (entry.nonces, entry.payload) = (nonces, Some(payload));
        self.chain.push(entry.into());
        self.head()
    }

    /// Adds a call's blob transaction to the pool, where the builder finds its blobs. Returns the
    /// transaction without the blobs, as it is in a block.
    fn submit_blobs(&self, call: &L1Call, nonce: u64) -> Bytes {
        let blobs = call.blobs.iter().map(|item| {
            let bytes = blob::encode(item).expect("room in a blob");
            Blob::from_slice(&bytes)
        });
        let sidecar = if self.takes_cell_proofs {
            kzg::cell_sidecar(blobs.collect()).expect("blobs")
        } else {
            kzg::sidecar(blobs.collect()).expect("blobs")
        };
        let hashes = sidecar.commitments().iter();
        let hashes = hashes.map(|commitment| kzg_to_versioned_hash(commitment.as_slice()));
        let tx = TxEip4844 {
            chain_id: L1_CHAIN_ID,
            nonce,
            gas_limit: 100_000,
            max_fee_per_gas: MAX_FEE,
            max_priority_fee_per_gas: 1_000_000,
            to: call.to,
            value: U256::from(call.value),
            input: call.input.clone(),
            blob_versioned_hashes: hashes.collect(),
            max_fee_per_blob_gas: MAX_FEE,
            ..Default::default()
        };
        let whole = TxEip4844WithSidecar {
            tx: tx.clone(),
            sidecar,
        };
        let network_form: Bytes = signed(&call.from, whole).encoded_2718().into();
        ask(&self.url, "eth_sendRawTransaction", json!([network_form]));
        signed(&call.from, tx).encoded_2718().into()
    }

    /// Leaves `count` slots empty before the next block.
    pub fn miss_slots(&mut self, count: u64) {
        self.missed_slots = count;
    }

    /// Mines empty blocks until the head has this number.
    pub fn mine_to(&mut self, number: u64) {
        while self.height() < number {
            self.mine(&[]);
        }
    }

    /// Drops all blocks above this one. Blocks mined from now on differ from the dropped ones.
    pub fn rewind(&mut self, number: u64) {
        self.chain.truncate(number as usize + 1);
        self.branch += 1;
        self.make_head(self.head().block.hash);
    }

    /// Makes this branch canonical; its blocks must all have been mined before.
    pub fn switch_to(&mut self, chain: L1Chain) {
        let old = std::mem::replace(&mut self.chain, chain);
        let same = self.chain.iter().zip(&old);
        let same = same.take_while(|(a, b)| a.block.hash == b.block.hash);
        for entry in &self.chain[same.count()..] {
            let payload = entry.payload.clone().expect("a mined block");
            let inserted = self.store.chain.insert(payload, Provenance::Engine);
            let inserted = self.runtime.block_on(inserted).expect("the chain runs");
            assert_eq!(inserted, Inserted::Valid);
        }
        self.branch += 1;
        self.make_head(self.head().block.hash);
    }

    fn make_head(&mut self, head: B256) {
        let deep = self.chain.len().saturating_sub(self.finalized_depth + 1);
        self.finalized = self.finalized.max(deep);
        let finalized = Some(self.chain[self.finalized].block.hash);
        let choice = self.store.chain.forkchoice(head, finalized, finalized);
        self.runtime.block_on(choice).expect("it can be the head");
    }
}

impl Drop for CoreL1 {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Serves the chain's JSON-RPC on a free port. Returns the URL.
async fn serve(store: &Store, stop: CancellationToken) -> String {
    let http = HttpEndpoint {
        addr: ([127, 0, 0, 1], 0).into(),
        api: vec!["eth".into()],
        vhosts: vec!["*".into()],
        cors: vec![],
        prefix: String::new(),
    };
    let config = RpcConfig {
        http: Some(http),
        ..RpcConfig::default()
    };
    let context = RpcContext::new((&store.chain).into(), TxRoute::Pool);
    let (server, bound) = RpcServer::bind(config, context).await.expect("a port");
    tokio::spawn(async move { server.run(stop).await });
    format!("http://{}", bound.http.expect("an address"))
}

/// Serves the chain's blobs on a free port. Returns the URL.
async fn serve_blobs(store: &Store, slot: u64, stop: CancellationToken) -> String {
    let address = ([127, 0, 0, 1], 0).into();
    let server = BeaconServer::bind(address, store.chain.clone(), slot).await;
    let server = server.expect("a port");
    let url = format!("http://{}", server.address());
    tokio::spawn(server.run(stop));
    url
}

/// Signs a transaction.
pub fn signed<T: SignableTransaction<Signature>>(account: &Account, tx: T) -> Signed<T> {
    let signature = sign_hash(account, tx.signature_hash());
    tx.into_signed(signature)
}

pub fn sign_hash(account: &Account, hash: B256) -> Signature {
    let key = sign::secret_from_hex(&account.key_hex()).expect("a key");
    let signature = sign::sign_hash(&key, hash);
    Signature::from_bytes_and_parity(&signature[..64], signature[64] == 1)
}

fn sign_call(call: &L1Call, nonce: u64) -> Bytes {
    let value = U256::from(call.value);
    let gas = 300_000 + 16 * call.input.len() as u64;
    let (to, input) = (TxKind::Call(call.to), call.input.clone());
    call.from.sign(L1_CHAIN_ID, nonce, to, value, input, gas)
}

/// Converts a JSON-RPC block to the fields that L2 depends on.
fn l1_block(block: &Value) -> L1Block {
    let header: alloy_rpc_types_eth::Header =
        serde_json::from_value(block.clone()).expect("a header");
    let (hash, header) = (header.hash, header.inner);
    assert_eq!(hash, header.hash_slow());
    L1Block {
        number: header.number,
        hash,
        parent_hash: header.parent_hash,
        time: header.timestamp,
        base_fee: header.base_fee_per_gas.expect("London"),
        mix_hash: header.mix_hash,
        excess_blob_gas: header.excess_blob_gas,
        parent_beacon_root: header.parent_beacon_block_root,
        receipts_root: header.receipts_root,
        state_root: header.state_root,
    }
}

/// Converts a JSON-RPC receipt to its status and logs.
fn receipt(receipt: &Value) -> ReceiptLogs {
    let log = |log: &Value| {
        let field = |name: &str| log[name].clone();
        let topics = serde_json::from_value(field("topics")).expect("topics");
        let data = serde_json::from_value(field("data")).expect("data");
        Log {
            address: serde_json::from_value(field("address")).expect("an address"),
            data: LogData::new_unchecked(topics, data),
        }
    };
    let logs = receipt["logs"].as_array().expect("logs").iter();
    (receipt["status"] == "0x1", logs.map(log).collect())
}
