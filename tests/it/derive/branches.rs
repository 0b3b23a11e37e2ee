//! A recorded L1 that grows and reorganises on command of a test.

use super::Recording;
use alloy_consensus::constants::{EMPTY_RECEIPTS, EMPTY_TRANSACTIONS};
use alloy_primitives::{Bloom, Bytes, hex};
use jsonrpsee::{RpcModule, server::ServerBuilder, types::ErrorObjectOwned};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

const METHODS: [&str; 5] = [
    "eth_chainId",
    "eth_getBlockByNumber",
    "eth_getBlockByHash",
    "eth_getBlockReceipts",
    "eth_getTransactionReceipt",
];

/// Depth of the `safe` block below the head, in L1 blocks, and of the `finalized` block.
const SAFE: usize = 20;
const FINALIZED: usize = 60;

#[derive(Clone)]
struct Block {
    block: Value,
    receipts: Value,
}

/// All blocks of the recording on the current branch, and the number of visible blocks.
struct Branches {
    blocks: Vec<Block>,
    visible: usize,
    /// Blocks of abandoned branches, which can still be read by hash.
    abandoned: Vec<Block>,
    chain_id: Value,
}

impl Branches {
    fn answer(&self, method: &str, params: &[Value]) -> Option<Value> {
        let first = params.first().cloned().unwrap_or_default();
        let head = self.visible - 1;
        let shown = &self.blocks[..self.visible];
        let by_hash = |hash: &Value| {
            let all = shown.iter().chain(&self.abandoned);
            all.into_iter().find(|block| block.block["hash"] == *hash)
        };
        match method {
            "eth_chainId" => Some(self.chain_id.clone()),
            "eth_getBlockByNumber" => {
                let number = match first.as_str()? {
                    "latest" => head,
                    "safe" => head.saturating_sub(SAFE),
                    "finalized" => head.saturating_sub(FINALIZED),
                    _ => usize::try_from(crate::net::number(&first)).ok()?,
                };
                Some(shape(shown.get(number)?, &params[1]))
            }
            "eth_getBlockByHash" => Some(shape(by_hash(&first)?, &params[1])),
            "eth_getBlockReceipts" => Some(by_hash(&first)?.receipts.clone()),
            _ => None,
        }
    }

    /// Removes all transactions from this height on.
    fn empty(&mut self, from: usize) {
        for Block { block, receipts } in &mut self.blocks[from..] {
            (block["transactions"], *receipts) = (json!([]), json!([]));
            block["transactionsRoot"] = json!(EMPTY_TRANSACTIONS);
            block["receiptsRoot"] = json!(EMPTY_RECEIPTS);
            block["logsBloom"] = json!(Bloom::ZERO);
            block["gasUsed"] = json!("0x0");
        }
    }

    /// Replaces the headers from this height on; the transactions stay the same.
    fn rewrite(&mut self, from: usize, salt: u8) {
        for number in from..self.blocks.len() {
            let parent = self.blocks[number - 1].block["hash"].clone();
            let changed = &mut self.blocks[number];
            changed.block["parentHash"] = parent;
            changed.block["extraData"] = json!(Bytes::from(vec![salt; 4]));
            let header: alloy_rpc_types_eth::Header =
                serde_json::from_value(changed.block.clone()).expect("a header");
            let hash = json!(header.inner.hash_slow());
            changed.block["hash"] = hash.clone();
            let Block { block, receipts } = changed;
            let lists = [&mut block["transactions"], &mut *receipts];
            for item in lists
                .into_iter()
                .flat_map(|list| list.as_array_mut().expect("a list"))
            {
                item["blockHash"] = hash.clone();
            }
        }
    }
}

fn shape(block: &Block, whole: &Value) -> Value {
    let mut block = block.block.clone();
    if *whole != json!(true) {
        let hashes: Vec<_> = block["transactions"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|transaction| transaction["hash"].clone())
            .collect();
        block["transactions"] = json!(hashes);
    }
    block
}

/// An L1 server with branches that a test controls, until dropped.
pub struct BranchingL1 {
    branches: Arc<Mutex<Branches>>,
    pub url: String,
    _runtime: tokio::runtime::Runtime,
}

impl BranchingL1 {
    /// Starts a server that shows the first `visible` blocks.
    pub fn start(recording: &Recording, visible: usize) -> Self {
        let blocks = recording.lines("l1.jsonl.zst").into_iter();
        let blocks = blocks.map(|mut line| Block {
            block: line["block"].take(),
            receipts: line["receipts"].take(),
        });
        let branches = Arc::new(Mutex::new(Branches {
            blocks: blocks.collect(),
            visible,
            abandoned: vec![],
            chain_id: json!(format!("{:#x}", recording.l1_chain_id())),
        }));
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let mut module = RpcModule::new(branches.clone());
        for method in METHODS {
            module
                .register_method(method, move |params, branches, _| {
                    let params: Vec<Value> = params.parse().unwrap_or_default();
                    let branches = branches.lock().expect("no panic");
                    Ok::<_, ErrorObjectOwned>(branches.answer(method, &params))
                })
                .expect("a new name");
        }
        let url = runtime.block_on(async {
            let server = ServerBuilder::default().build("127.0.0.1:0").await;
            let server = server.expect("a port");
            let address = server.local_addr().expect("an address");
            tokio::spawn(server.start(module).stopped());
            format!("http://{address}")
        });
        Self {
            branches,
            url,
            _runtime: runtime,
        }
    }

    /// Replaces all blocks from height `from` on by empty ones.
    pub fn empty(&self, from: usize) {
        let mut branches = self.branches.lock().expect("no panic");
        branches.empty(from);
        branches.rewrite(from, 0xee);
    }

    /// Makes `more` additional blocks visible. Returns the hash of the new head.
    pub fn grow(&self, more: usize) -> Value {
        let mut branches = self.branches.lock().expect("no panic");
        branches.visible = (branches.visible + more).min(branches.blocks.len());
        branches.blocks[branches.visible - 1].block["hash"].clone()
    }

    /// Replaces the last `depth` visible blocks and shows one more. Returns the hash of the new
    /// head.
    pub fn reorganise(&self, depth: usize, salt: u8) -> Value {
        {
            let mut branches = self.branches.lock().expect("no panic");
            let from = branches.visible - depth;
            let gone = branches.blocks[from..branches.visible].to_vec();
            branches.abandoned.extend(gone);
            branches.rewrite(from, salt);
        }
        self.grow(1)
    }
}

#[test]
fn a_rewritten_header_has_the_hash_of_its_fields() {
    let Some(recording) = Recording::of("hostile-1") else {
        return;
    };
    let l1 = BranchingL1::start(&recording, 10);
    let before = l1.grow(0);
    assert_ne!(l1.reorganise(3, 7), before);
    let branches = l1.branches.lock().expect("no panic");
    let changed = &branches.blocks[8].block;
    let header: alloy_rpc_types_eth::Header =
        serde_json::from_value(changed.clone()).expect("a header");
    assert_eq!(header.hash, header.inner.hash_slow());
    assert_eq!(
        header.inner.parent_hash,
        branches.blocks[7].block["hash"]
            .as_str()
            .unwrap()
            .parse::<alloy_primitives::B256>()
            .unwrap()
    );
    assert_eq!(changed["extraData"], json!(hex::encode_prefixed([7; 4])));
}
