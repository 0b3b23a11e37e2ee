//! An L1 test endpoint: a real HTTP server. The test sets its responses, true or false.

use super::{L1Block, response};
use alloy_consensus::{Header, constants::EMPTY_RECEIPTS};
use alloy_primitives::{Address, B64, B256, Bytes, U256, keccak256};
use alloy_trie::{HashBuilder, Nibbles, TrieAccount, proof::ProofRetainer};
use jsonrpsee::{
    RpcModule,
    server::{ServerBuilder, ServerHandle},
    types::{ErrorCode, ErrorObjectOwned},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;

const METHODS: [&str; 10] = [
    "eth_chainId",
    "eth_getBlockByNumber",
    "eth_getBlockByHash",
    "eth_getBlockReceipts",
    "eth_getTransactionReceipt",
    "eth_getRawTransactionByHash",
    "debug_getRawReceipts",
    "eth_getStorageAt",
    "eth_getProof",
    "eth_call",
];

#[derive(Default)]
pub(crate) struct State {
    /// Canonical blocks in order, the head last.
    pub blocks: Vec<Value>,
    /// The blocks with the tags `safe` and `finalized`.
    pub tagged: HashMap<&'static str, Value>,
    /// Responses by method, used before all other data.
    pub answers: HashMap<&'static str, Result<Value, (i32, String)>>,
    /// Receipts by the first parameter of the call.
    pub receipts: HashMap<String, Value>,
    /// The method of every call so far.
    pub calls: Vec<&'static str>,
    /// The first parameter of each of these calls, if it is a string.
    pub parameters: Vec<String>,
    pub delay: Duration,
    /// Calls with this first parameter get no response.
    pub silent: Option<&'static str>,
}

pub(crate) struct FakeL1 {
    pub port: u16,
    pub state: Arc<Mutex<State>>,
    /// The header sent to subscribers next, over a WebSocket on the same port.
    pub new_head: watch::Sender<Value>,
    _server: ServerHandle,
}

impl FakeL1 {
    pub(crate) async fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let mut module = RpcModule::from_arc(state.clone());
        for method in METHODS {
            let answer = move |params: jsonrpsee::types::Params<'static>,
                               state: Arc<Mutex<State>>,
                               _: jsonrpsee::Extensions| async move {
                let params: Vec<Value> = params.parse().unwrap_or_default();
                let delay = state.lock().delay;
                tokio::time::sleep(delay).await;
                let silent = state.lock().silent;
                if silent.is_some_and(|silent| params.first() == Some(&silent.into())) {
                    std::future::pending::<()>().await;
                }
                state.lock().answer(method, params)
            };
            module.register_async_method(method, answer).unwrap();
        }
        let new_head = watch::Sender::new(Value::Null);
        let sender = new_head.clone();
        let subscribe = move |_: jsonrpsee::types::Params<'static>,
                              pending: jsonrpsee::PendingSubscriptionSink,
                              _: Arc<Mutex<State>>,
                              _: jsonrpsee::Extensions| {
            let mut heads = sender.subscribe();
            async move {
                let Ok(sink) = pending.accept().await else {
                    return;
                };
                while heads.changed().await.is_ok() {
                    let head = serde_json::value::to_raw_value(&*heads.borrow_and_update());
                    if sink.send(head.unwrap()).await.is_err() {
                        return;
                    }
                }
            }
        };
        module
            .register_subscription(
                "eth_subscribe",
                "eth_subscription",
                "eth_unsubscribe",
                subscribe,
            )
            .unwrap();
        let server = ServerBuilder::default().build("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        Self {
            port,
            state,
            new_head,
            _server: server.start(module),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn calls(&self, method: &str) -> usize {
        self.state
            .lock()
            .calls
            .iter()
            .filter(|call| **call == method)
            .count()
    }

    /// Replaces all blocks by `headers`.
    pub(crate) fn set(&self, headers: &[Header]) {
        self.state.lock().blocks = headers.iter().map(block_json).collect();
    }

    /// Replaces the blocks by recorded whole blocks and their receipts.
    pub(crate) fn set_recorded(&self, recorded: &[Value]) {
        let mut state = self.state.lock();
        state.blocks = recorded.iter().map(|line| line["block"].clone()).collect();
        for line in recorded {
            let hash = line["block"]["hash"].as_str().unwrap().to_owned();
            state.receipts.insert(hash, line["receipts"].clone());
        }
    }

    /// Replaces the blocks by `headers`. Their state has `value` in a slot of `contract`, with a
    /// valid proof.
    pub(crate) fn set_with_storage(
        &self,
        headers: Vec<Header>,
        contract: Address,
        slot: B256,
        value: B256,
    ) {
        let (state_root, proof) = prove(contract, slot, value);
        let blocks = headers
            .into_iter()
            .map(|header| {
                block_json(&Header {
                    state_root,
                    ..header
                })
            })
            .collect();
        let mut state = self.state.lock();
        state.blocks = blocks;
        state.answers.insert("eth_getProof", Ok(proof));
    }
}

impl State {
    fn answer(
        &mut self,
        method: &'static str,
        params: Vec<Value>,
    ) -> Result<Value, ErrorObjectOwned> {
        self.calls.push(method);
        let first = params
            .first()
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        self.parameters.push(first.clone());
        if let Some(answer) = self.answers.get(method) {
            return answer
                .clone()
                .map_err(|(code, message)| ErrorObjectOwned::owned(code, message, None::<()>));
        }
        let find = |field: &str| {
            self.blocks
                .iter()
                .find(|block| block[field] == first.as_str())
                .cloned()
        };
        Ok(match method {
            "eth_getBlockByNumber" if first == "latest" => {
                self.blocks.last().cloned().unwrap_or_default()
            }
            "eth_getBlockByNumber" => {
                let tagged = self.tagged.get(first.as_str()).cloned();
                tagged.or_else(|| find("number")).unwrap_or_default()
            }
            "eth_getBlockByHash" => find("hash").unwrap_or_default(),
            // Most real endpoints lack this method.
            "debug_getRawReceipts" => {
                let code = ErrorCode::MethodNotFound.code();
                return Err(ErrorObjectOwned::owned(
                    code,
                    "method not found",
                    None::<()>,
                ));
            }
            _ => self.receipts.get(&first).cloned().unwrap_or_default(),
        })
    }
}

/// A header after the merge. Different values of `salt` make different branches.
pub(crate) fn header(number: u64, parent_hash: B256, timestamp: u64, salt: u8) -> Header {
    Header {
        number,
        parent_hash,
        timestamp,
        mix_hash: B256::repeat_byte(salt),
        base_fee_per_gas: Some(7),
        difficulty: U256::ZERO,
        nonce: B64::ZERO,
        receipts_root: EMPTY_RECEIPTS,
        ..Default::default()
    }
}

/// A chain of headers, one every 12 seconds.
pub(crate) fn chain(first: u64, time: u64, count: u64, salt: u8) -> Vec<Header> {
    let mut headers: Vec<Header> = Vec::new();
    for i in 0..count {
        let parent = headers.last().map_or(B256::ZERO, Header::hash_slow);
        headers.push(header(first + i, parent, time + 12 * i, salt));
    }
    headers
}

/// A state root, and the `eth_getProof` response for a contract's slot in that state. A `value` of
/// zero makes the slot empty. Further slots make the proof deeper.
pub(crate) fn prove(contract: Address, slot: B256, value: B256) -> (B256, Value) {
    let slots = (0..50)
        .map(|n| (B256::with_last_byte(n), U256::from(n) + U256::from(1)))
        .chain([(slot, value.into())]);
    let slots = slots
        .filter(|(_, value)| !value.is_zero())
        .map(|(slot, value)| (path(slot), alloy_rlp::encode(value)));
    let (storage_root, storage_proof) = trie(slots.collect(), path(slot));
    let account = TrieAccount {
        nonce: 1,
        balance: U256::from(5),
        storage_root,
        code_hash: B256::repeat_byte(0xc0),
    };
    let (state_root, account_proof) = prove_account(contract, Some(account));
    let proof = json!({
        "address": contract, "balance": "0x5", "nonce": "0x1", "codeHash": account.code_hash, "storageHash": storage_root,
        "accountProof": account_proof,
        "storageProof": [{ "key": slot, "value": U256::from_be_bytes(value.0), "proof": storage_proof }],
    });
    (state_root, proof)
}

/// A state root, and the nodes that prove an account or its absence in that state. Further accounts
/// make the proof deeper.
pub(crate) fn prove_account(at: Address, account: Option<TrieAccount>) -> (B256, Vec<Bytes>) {
    let others = (0..50).map(|n| {
        (
            Address::with_last_byte(n),
            TrieAccount {
                nonce: n.into(),
                ..Default::default()
            },
        )
    });
    let accounts = others.chain(account.map(|account| (at, account)));
    trie(
        accounts
            .map(|(at, account)| (path(at), alloy_rlp::encode(account)))
            .collect(),
        path(at),
    )
}

fn path(key: impl AsRef<[u8]>) -> Nibbles {
    Nibbles::unpack(keccak256(key))
}

/// The root of a trie with these leaves, and the nodes on the path to one leaf.
fn trie(leaves: BTreeMap<Nibbles, Vec<u8>>, path: Nibbles) -> (B256, Vec<Bytes>) {
    let mut builder = HashBuilder::default().with_proof_retainer(ProofRetainer::new(vec![path]));
    for (path, value) in &leaves {
        builder.add_leaf(*path, value);
    }
    let root = builder.root();
    let nodes = builder.take_proof_nodes().into_nodes_sorted();
    (root, nodes.into_iter().map(|(_, node)| node).collect())
}

pub(crate) fn block_json(header: &Header) -> Value {
    let mut value = serde_json::to_value(alloy_rpc_types_eth::Header::new(header.clone())).unwrap();
    value["transactions"] = json!([]);
    value
}

pub(crate) fn block(header: &Header) -> L1Block {
    response::block(block_json(header), false).unwrap()
}

/// The L1 blocks recorded in a folder of `derivation-live`: one line for each block from 0 on, with
/// its receipts.
pub(crate) fn recorded(folder: &str) -> Option<Vec<Value>> {
    let path = starling_testkit::fixture(&format!("derivation-live/{folder}/l1.jsonl.zst"))?;
    let text = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    let lines = std::str::from_utf8(&text).unwrap().lines();
    Some(
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    )
}
