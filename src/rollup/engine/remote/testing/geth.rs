//! A stand-in for op-geth: a core behind a server that stores blocks, marks and states apart, as
//! op-geth does (eth/catalyst/api.go, core/blockchain.go, eth/downloader/syncmode.go).
//!
//! - A fork choice to a block that is marked canonical does not move the head.
//! - After a kill the head is the highest block whose state was on disk. Later blocks and their marks
//!   are still there; payloads that it has are VALID unexecuted, and their children ACCEPTED.
//! - A block without a mark becomes the head with all its ancestors, which are executed again.
//! - If no state but that of genesis was on disk, no payload is executed before one was fetched
//!   from a peer: answers are SYNCING.

use super::{EngineClient, EngineEndpoint, ServedCore, secret};
use crate::rollup::{
    engine::Engine,
    http::HttpTarget,
    http_fake::{Canned, CannedServer},
};
use alloy_primitives::B256;
use http::{HeaderMap, HeaderValue, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use starling_proto::config::RollupConfig;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};
use tokio::runtime::Handle;

#[derive(Default)]
struct GethState {
    /// Blocks as `eth_getBlockByNumber` returns them.
    blocks: HashMap<B256, Value>,
    marks: BTreeMap<u64, B256>,
    states: HashSet<B256>,
    head: B256,
    builds: HashSet<String>,
    /// Whether payloads are not executed before a state is fetched.
    is_waiting: bool,
    /// Blocks that a peer has.
    of_peer: HashMap<B256, Value>,
    /// The reason of refusing the next payload.
    refusal: Option<&'static str>,
}

impl GethState {
    fn number(&self, block: B256) -> u64 {
        number(self.blocks[&block]["number"].as_str().unwrap())
    }

    fn parent(&self, block: B256) -> B256 {
        hash(&self.blocks[&block]["parentHash"])
    }

    fn add(&mut self, block: Value) -> B256 {
        let hash = hash(&block["hash"]);
        self.blocks.insert(hash, block);
        hash
    }

    /// Makes a block without a mark the head, and executes its ancestors up to the first one with a
    /// state (op-geth: SetCanonical).
    fn set_canonical(&mut self, block: B256) {
        let mut at = block;
        while self.states.insert(at) {
            at = self.parent(at);
        }
        if self.parent(block) != self.head {
            self.move_marks(block);
        }
        self.marks.insert(self.number(block), block);
        self.head = block;
    }

    /// Marks the branch from the head to a block, and removes all marks above the fork point
    /// (op-geth: reorg).
    fn move_marks(&mut self, block: B256) {
        let (mut old, mut new) = (self.head, block);
        while old != new {
            if self.number(old) > self.number(new) {
                old = self.parent(old);
            } else {
                new = self.parent(new);
            }
        }
        self.marks.split_off(&(self.number(old) + 1));
        let mut at = block;
        while at != old {
            self.marks.insert(self.number(at), at);
            at = self.parent(at);
        }
    }

    /// Fetches a block with its ancestors from the peer. Returns false if the peer lacks it.
    fn fetch(&mut self, block: B256) -> bool {
        if !self.of_peer.contains_key(&block) {
            return false;
        }
        self.blocks.extend(self.of_peer.clone());
        self.set_canonical(block);
        self.is_waiting = false;
        true
    }
}

fn number(hex: &str) -> u64 {
    u64::from_str_radix(hex.trim_start_matches("0x"), 16).unwrap()
}

fn hash(value: &Value) -> B256 {
    serde_json::from_value(value.clone()).unwrap_or_default()
}

/// A running stand-in.
pub(crate) struct GethStandIn {
    state: Arc<Mutex<GethState>>,
    server: CannedServer,
}

impl GethStandIn {
    /// Starts a stand-in that executes in a served core, at the core's genesis.
    pub(crate) async fn start(core: &ServedCore) -> Self {
        let core = ExecutingCore::new(core);
        let state = Arc::new(Mutex::new(GethState::default()));
        let genesis = core.block("0x0").await;
        {
            let mut state = state.lock();
            let genesis = state.add(genesis);
            state.states.insert(genesis);
            (state.head, state.marks) = (genesis, BTreeMap::from([(0, genesis)]));
        }
        let shared = state.clone();
        let server = CannedServer::start(move |request: &str| {
            let (_, body) = request.split_once("\r\n\r\n").unwrap();
            let request: Value = serde_json::from_str(body).unwrap();
            let (method, params) = (request["method"].as_str().unwrap(), &request["params"]);
            let answered = tokio::task::block_in_place(|| {
                Handle::current().block_on(answer(&core, &mut shared.lock(), method, params))
            });
            let (member, value) = match answered {
                Ok(result) => ("result", result),
                Err(error) => ("error", error),
            };
            Canned::ok(json!({ "jsonrpc": "2.0", "id": 1, member: value }))
        })
        .await;
        Self { state, server }
    }

    /// A connected engine over the stand-in.
    pub(crate) async fn engine(&self, rollup: &Arc<RollupConfig>) -> Engine {
        let endpoint = EngineEndpoint {
            url: self.server.url(),
            secret: secret(),
            timeout: Duration::from_secs(10),
        };
        let client = EngineClient::new(&endpoint, rollup.clone(), None).unwrap();
        client.connect("rollup.json").await.unwrap();
        Engine::Remote(client)
    }

    /// Kills and restarts the client, whose disk has the states up to the block `kept` and the
    /// blocks up to `stored`.
    pub(crate) fn kill(&self, kept: u64, stored: u64) {
        let mut state = self.state.lock();
        let lost: Vec<_> = state.marks.split_off(&(stored + 1)).into_values().collect();
        for lost in lost {
            let block = state.blocks.remove(&lost).unwrap();
            state.of_peer.insert(lost, block);
        }
        state.head = state.marks[&kept];
        let states = std::mem::take(&mut state.states);
        state.states = states
            .into_iter()
            .filter(|block| state.blocks.contains_key(block) && state.number(*block) <= kept)
            .collect();
        state.builds.clear();
        state.is_waiting = kept == 0 && stored > 0;
    }

    /// Lets the client forget the blocks that its peer has.
    pub(crate) fn remove_peer(&self) {
        self.state.lock().of_peer.clear();
    }

    /// Refuses the next payload as invalid for this reason.
    pub(crate) fn refuse_payload(&self, reason: &'static str) {
        self.state.lock().refusal = Some(reason);
    }

    /// Number and hash of the head that the client reports.
    pub(crate) fn head(&self) -> (u64, B256) {
        let state = self.state.lock();
        (state.number(state.head), state.head)
    }

    pub(crate) fn marked(&self, number: u64) -> Option<B256> {
        self.state.lock().marks.get(&number).copied()
    }
}

/// The core that executes payloads and builds blocks.
struct ExecutingCore(HttpTarget);

impl ExecutingCore {
    fn new(core: &ServedCore) -> Self {
        let token = secret().authorization(crate::clock::unix_now());
        let token = HeaderValue::from_str(&token).unwrap();
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, token)]);
        Self(HttpTarget::new(&format!("http://{}", core.addr), headers).unwrap())
    }

    async fn call(&self, method: &str, params: &Value) -> Result<Value, Value> {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let body = body.to_string().into_bytes();
        let sent = self.0.post(body, 1 << 22, Duration::from_secs(10)).await;
        let mut reply: Value = serde_json::from_slice(&sent.unwrap().body).unwrap();
        match reply["error"].take() {
            Value::Null => Ok(reply["result"].take()),
            error => Err(error),
        }
    }

    async fn block(&self, number: &str) -> Value {
        let params = json!([number, true]);
        self.call("eth_getBlockByNumber", &params).await.unwrap()
    }

    /// Makes a block the core's head.
    async fn choose(&self, block: B256) {
        let choice = json!([{ "headBlockHash": block, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO }, null]);
        let chosen = self.call("engine_forkchoiceUpdatedV3", &choice).await;
        assert_eq!(chosen.unwrap()["payloadStatus"]["status"], "VALID");
    }
}

async fn answer(
    core: &ExecutingCore,
    state: &mut GethState,
    method: &str,
    params: &Value,
) -> Result<Value, Value> {
    match method {
        "eth_getBlockByNumber" => match params[0].as_str().unwrap() {
            "latest" => Ok(state.blocks[&state.head].clone()),
            "safe" | "finalized" => Err(json!({ "code": -32000, "message": "block not found" })),
            at => {
                let block = state.marks.get(&number(at));
                Ok(block.map_or(Value::Null, |block| state.blocks[block].clone()))
            }
        },
        "eth_getBlockByHash" => Ok(state
            .blocks
            .get(&hash(&params[0]))
            .cloned()
            .unwrap_or_default()),
        "eth_getBalance" if state.states.contains(&hash(&params[1]["blockHash"])) => {
            Ok("0x0".into())
        }
        "eth_getBalance" => {
            Err(json!({ "code": -32000, "message": "historical state is not available" }))
        }
        "engine_newPayloadV4" => Ok(new_payload(core, state, params).await),
        "engine_forkchoiceUpdatedV3" => fork_choice(core, state, params).await,
        "engine_getPayloadV4" if !state.builds.contains(params[0].as_str().unwrap()) => {
            Err(json!({ "code": -38001, "message": "Unknown payload" }))
        }
        _ => core.call(method, params).await,
    }
}

async fn new_payload(core: &ExecutingCore, state: &mut GethState, params: &Value) -> Value {
    let (block, parent) = (&params[0]["blockHash"], hash(&params[0]["parentHash"]));
    let status = |status: &str| json!({ "status": status, "latestValidHash": null, "validationError": null });
    if let Some(reason) = state.refusal.take() {
        return json!({ "status": "INVALID", "latestValidHash": null, "validationError": reason });
    }
    if state.blocks.contains_key(&hash(block)) {
        return status("VALID");
    }
    if state.is_waiting || !state.blocks.contains_key(&parent) {
        return status("SYNCING");
    }
    if !state.states.contains(&parent) {
        return status("ACCEPTED");
    }
    let executed = core.call("engine_newPayloadV4", params).await.unwrap();
    if executed["status"] == "VALID" {
        core.choose(hash(block)).await;
        let block = core.block("latest").await;
        let block = state.add(block);
        state.states.insert(block);
    }
    executed
}

async fn fork_choice(
    core: &ExecutingCore,
    state: &mut GethState,
    params: &Value,
) -> Result<Value, Value> {
    let head = hash(&params[0]["headBlockHash"]);
    let status = |status: &str, id: &Value| json!({ "payloadStatus": { "status": status, "latestValidHash": null }, "payloadId": id });
    if !state.blocks.contains_key(&head) && !state.fetch(head) {
        return Ok(status("SYNCING", &Value::Null));
    }
    if state.marks.get(&state.number(head)) != Some(&head) {
        state.set_canonical(head);
    }
    if params[1].is_null() {
        return Ok(status("VALID", &Value::Null));
    }
    if !state.states.contains(&head) {
        let data = json!({ "err": format!("missing trie node {head} (path ) is not available") });
        return Err(
            json!({ "code": -38003, "message": "Invalid payload attributes", "data": data }),
        );
    }
    core.choose(head).await;
    let choice = json!([{ "headBlockHash": head, "safeBlockHash": B256::ZERO, "finalizedBlockHash": B256::ZERO }, params[1]]);
    let started = core.call("engine_forkchoiceUpdatedV3", &choice).await?;
    let id = started["payloadId"].as_str().unwrap_or_default().to_owned();
    state.builds.insert(id);
    Ok(status("VALID", &started["payloadId"]))
}
