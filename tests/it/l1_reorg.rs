//! An L1 reorg under a network of real processes. The sequencer reads the devnet's L1 through a
//! proxy that switches to another branch on command.

use crate::net::{Devnet, Node, ask, call, head, wait};
use alloy_consensus::{
    Header,
    constants::{EMPTY_RECEIPTS, EMPTY_TRANSACTIONS},
};
use alloy_primitives::{B256, Bloom, Bytes, TxKind, U256};
use jsonrpsee::{RpcModule, server::ServerBuilder, types::ErrorObjectOwned};
use serde_json::{Value, json};
use starling::clock::unix_now;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(180);
/// Seconds between L1 blocks.
const L1_PERIOD: u64 = 3;
const METHODS: [&str; 8] = [
    "eth_chainId",
    "eth_getBlockByNumber",
    "eth_getBlockByHash",
    "eth_getBlockReceipts",
    "eth_getTransactionReceipt",
    "eth_getStorageAt",
    "eth_getProof",
    "eth_call",
];

/// Empty L1 blocks that replace the blocks above a fork point, one for each period until now.
struct Branch {
    /// Seconds between blocks.
    period: u64,
    /// The fork point: the last block that both branches have.
    fork: Header,
    blocks: Vec<Header>,
}

impl Branch {
    fn grow(&mut self) {
        loop {
            let parent = self.blocks.last().unwrap_or(&self.fork);
            let timestamp = parent.timestamp + self.period;
            if timestamp > unix_now() {
                return;
            }
            self.blocks.push(Header {
                parent_hash: parent.hash_slow(),
                number: parent.number + 1,
                timestamp,
                mix_hash: B256::repeat_byte(0xee),
                gas_used: 0,
                logs_bloom: Bloom::ZERO,
                receipts_root: EMPTY_RECEIPTS,
                transactions_root: EMPTY_TRANSACTIONS,
                ..self.fork.clone()
            });
        }
    }

    fn find(&self, holds: impl Fn(&Header) -> bool) -> Option<Value> {
        let header = self.blocks.iter().find(|header| holds(header))?;
        let mut block = serde_json::to_value(alloy_rpc_types_eth::Header::new(header.clone()))
            .expect("a header");
        block["transactions"] = json!([]);
        Some(block)
    }
}

/// An L1 endpoint that serves another one's blocks, or another branch.
pub struct Proxy {
    upstream: String,
    /// Seconds between L1 blocks.
    period: u64,
    branch: Mutex<Option<Branch>>,
}

impl Proxy {
    /// A proxy of the endpoint `upstream`, whose blocks are `period` seconds apart.
    pub fn of(upstream: &str, period: u64) -> Self {
        Self {
            upstream: upstream.into(),
            period,
            branch: Mutex::default(),
        }
    }

    fn answer(&self, method: &str, mut params: Vec<Value>) -> Result<Value, Value> {
        if let Some(branch) = &mut *self.branch.lock().expect("no panic") {
            branch.grow();
            let fork = branch.fork.number;
            let first = params
                .first()
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            let by_hash = |hash: &str| branch.find(|header| header.hash_slow().to_string() == hash);
            match method {
                "eth_getBlockByNumber" if first == "latest" => {
                    let last = branch.blocks.last().expect("blocks").number;
                    return Ok(branch
                        .find(|header| header.number == last)
                        .expect("the last"));
                }
                "eth_getBlockByNumber"
                    if first.starts_with("0x") && crate::net::number(&json!(first)) > fork =>
                {
                    return Ok(branch
                        .find(|header| json!(first) == json!(format!("{:#x}", header.number)))
                        .unwrap_or_default());
                }
                "eth_getBlockByNumber" if !first.starts_with("0x") => {
                    params[0] = json!(format!("{fork:#x}"))
                }
                "eth_getBlockByHash" if by_hash(&first).is_some() => {
                    return Ok(by_hash(&first).unwrap_or_default());
                }
                "eth_getBlockReceipts" if by_hash(&first).is_some() => return Ok(json!([])),
                _ => {}
            }
            // The blocks of this branch are empty, so their state is that of the fork point.
            for param in &mut params {
                if param["blockHash"]
                    .as_str()
                    .is_some_and(|hash| by_hash(hash).is_some())
                {
                    param["blockHash"] = json!(branch.fork.hash_slow());
                }
            }
        }
        call(&self.upstream, method, json!(params))
    }

    /// Hash of the L1 block that the proxy shows at this height.
    fn hash_of(&self, number: u64) -> Value {
        let params = vec![json!(format!("{number:#x}")), json!(false)];
        self.answer("eth_getBlockByNumber", params)
            .expect("a block")["hash"]
            .clone()
    }

    /// Replaces the last `depth` blocks of L1 by empty blocks. Returns the number of the fork
    /// point.
    pub fn reorganise(&self, depth: u64) -> u64 {
        let fork = head(&self.upstream).expect("L1 answers") - depth;
        let block = ask(
            &self.upstream,
            "eth_getBlockByNumber",
            json!([format!("{fork:#x}"), false]),
        );
        let header: alloy_rpc_types_eth::Header = serde_json::from_value(block).expect("a header");
        assert_eq!(header.hash, header.inner.hash_slow());
        *self.branch.lock().expect("no panic") = Some(Branch {
            period: self.period,
            fork: header.inner,
            blocks: vec![],
        });
        fork
    }

    /// Serves the proxy on a free port until the runtime ends. Returns the URL.
    pub async fn serve(self: Arc<Self>) -> String {
        let mut module = RpcModule::from_arc(self);
        for method in METHODS {
            let answer = move |params: jsonrpsee::types::Params<'static>,
                               proxy: Arc<Self>,
                               _: jsonrpsee::Extensions| async move {
                let params = params.parse().unwrap_or_default();
                let answered = tokio::task::spawn_blocking(move || proxy.answer(method, params))
                    .await
                    .expect("no panic");
                answered
                    .map_err(|error| ErrorObjectOwned::owned(-32000, error.to_string(), None::<()>))
            };
            module
                .register_async_method(method, answer)
                .expect("a method of its own");
        }
        let server = ServerBuilder::default()
            .build("127.0.0.1:0")
            .await
            .expect("a port");
        let url = format!("http://{}", server.local_addr().expect("its address"));
        let running = server.start(module);
        tokio::spawn(running.stopped());
        url
    }
}

fn block(node: &Node, number: u64) -> Value {
    ask(
        &node.http,
        "eth_getBlockByNumber",
        json!([format!("{number:#x}"), true]),
    )
}

/// Number and hash of a block's L1 origin, from the calldata of the L1 attributes.
fn origin(block: &Value) -> (u64, String) {
    let data = block["transactions"][0]["input"]
        .as_str()
        .expect("calldata")
        .to_owned();
    // Offsets of hex digits after `0x`: the number is in bytes 28..36, the hash in bytes 100..132.
    (
        u64::from_str_radix(&data[2 + 56..2 + 72], 16).expect("a number"),
        format!("0x{}", &data[2 + 200..2 + 264]),
    )
}

#[test]
fn a_sequencer_survives_an_l1_reorg_and_its_replicas_follow() {
    let period = format!("--l1.block-time={L1_PERIOD}");
    let net = Devnet::start(&["--l2.block-time=1", &period, "--replicas=2"]);
    let (sequencer, replicas) = (net.sequencer(), net.replicas());
    let nodes = [&sequencer, &replicas[0], &replicas[1]];
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let proxy = Arc::new(Proxy::of(&net.l1().http, L1_PERIOD));
    let l1 = runtime.block_on(proxy.clone().serve());
    wait("some blocks", PATIENCE, || {
        head(&replicas[0].http).filter(|number| *number >= 3)
    });
    sequencer.kill9();
    let options = [format!("--l1={l1}"), "--sequencer.l1-confs=0".to_owned()];
    let log = net.dir.join("restarted-sequencer.log");
    let mut running = sequencer.restart_with(&log, &options);
    wait("the devnet's L1", PATIENCE, || {
        head(&net.l1().http).filter(|number| *number >= 8)
    });

    // The transaction is included in a block whose L1 origin is replaced later.
    let sent = send_transfer(&net, &sequencer);
    let receipt = wait("the transaction", PATIENCE, || mined(&replicas[0], &sent));
    let included = block(&replicas[0], crate::net::number(&receipt["blockNumber"]));
    let l1_head = head(&net.l1().http).expect("L1 answers");
    let fork = proxy.reorganise((l1_head + 1 - origin(&included).0).max(3));
    let before = head(&replicas[0].http).expect("it answers");
    let abandoned = block(&replicas[0], before);
    assert!(origin(&abandoned).0 > fork, "the head is rewound");

    pass(&nodes, before, &abandoned);
    (0..=before).for_each(|number| agree(&nodes, number));
    for number in 1..=before {
        let (l1_number, hash) = origin(&block(&sequencer, number));
        assert_eq!(proxy.hash_of(l1_number), json!(hash), "block {number}");
    }
    let again = wait("the transaction again", PATIENCE, || {
        mined(&replicas[1], &sent)
    });
    assert_ne!(again["blockHash"], receipt["blockHash"]);

    // The sequencer continues after a kill and a restart.
    running.kill9();
    let stood = head(&replicas[0].http).expect("it answers");
    let _running = sequencer.restart_with(&log, &options);
    wait("JSON-RPC", PATIENCE, || head(&sequencer.http));
    pass(&nodes, stood + 2, &abandoned);
    (0..=stood).for_each(|number| agree(&nodes, number));
}

/// Sends a transfer as soon as the node responds, and returns the transaction's hash.
fn send_transfer(net: &Devnet, node: &Node) -> Value {
    let account = &net.accounts[2];
    let raw = account.sign(
        net.l2_chain_id,
        0,
        TxKind::Call(account.address),
        U256::from(1),
        Bytes::new(),
        21_000,
    );
    wait("the restarted sequencer", PATIENCE, || {
        call(&node.http, "eth_sendRawTransaction", json!([raw])).ok()
    })
}

/// The receipt of a transaction, or `None` if the transaction is not mined yet.
fn mined(node: &Node, hash: &Value) -> Option<Value> {
    call(&node.http, "eth_getTransactionReceipt", json!([hash]))
        .ok()
        .filter(|receipt| !receipt.is_null())
}

/// Waits until all nodes are above height `number` and have replaced the block `abandoned`.
fn pass(nodes: &[&Node], number: u64, abandoned: &Value) {
    let at = crate::net::number(&abandoned["number"]);
    for node in nodes {
        wait(&format!("{} to follow", node.name), PATIENCE, || {
            (head(&node.http)? > number && block(node, at)["hash"] != abandoned["hash"])
                .then_some(())
        });
    }
}

/// Checks that all nodes have the same block at this height.
fn agree(nodes: &[&Node], number: u64) {
    for node in &nodes[1..] {
        assert_eq!(
            block(node, number)["hash"],
            block(nodes[0], number)["hash"],
            "{} at block {number}",
            node.name
        );
    }
}
