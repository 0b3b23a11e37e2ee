//! Reads of blocks over many connections at once: full blocks, their receipts, one receipt, and
//! logs by topic over many blocks.
//!
//! This process makes the chain, and the measured server imports it, so that an older version has a
//! store in its own format. Successive requests are for different blocks. A row either covers the
//! whole chain, most of which is not in the cache of decoded blocks, or only the newest blocks.
//!
//! Sizes: `STARLING_BENCH_BLOCKS` (1000), `STARLING_BENCH_TRANSACTIONS` of a block (250),
//! `STARLING_BENCH_SECONDS` of each row of the table (5).

use crate::{
    Node,
    chain_maker::{self, ChainMaker, GENESIS_TIME},
    client,
    rate::{CONNECTIONS, ServerUnderLoad, measure},
    support::{Alloc, Ground, Unsigned, size},
};
use alloy_primitives::{B256, Bytes, keccak256};
use rayon::prelude::*;
use serde_json::{Value, json};
use starling::transfer::block_file::BlockWriter;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Number of newest blocks that are cached in decoded form.
const RECENT: u64 = 20;
/// Number of blocks that one request for logs covers.
const RANGE: u64 = 1000;
/// The topic of the first log of each block. Every other log has a topic of its own.
const COMMON: B256 = B256::repeat_byte(0xc0);
const ABSENT: B256 = B256::repeat_byte(0xee);

/// A chain in a data directory of the measured server.
pub struct Prepared {
    datadir: PathBuf,
    blocks: u64,
    /// Hash of one transaction of each block, from block 1 on.
    transactions: Vec<B256>,
}

/// Makes a chain in `folder` and imports it with the measured program.
pub fn prepare(folder: &Path) -> Prepared {
    let (blocks, each) = (
        size("STARLING_BENCH_BLOCKS", 1000),
        size("STARLING_BENCH_TRANSACTIONS", 250),
    );
    let ground = Ground::with(GENESIS_TIME, each, |alloc: &mut Alloc, _| {
        chain_maker::insert_logger(alloc);
    });
    let datadir = chain_maker::init(folder, "measured", &ground.file);
    let file = folder.join("blocks");
    let mut maker = ChainMaker::new(ground, &folder.join("made"));
    let mut writer = BlockWriter::create(&file, false).expect("a file");
    let mut transactions = Vec::new();
    for number in 0..blocks {
        let raw = fill(&mut maker.ground, number);
        transactions.push(keccak256(&raw[number % raw.len()]));
        writer
            .write(&maker.block(raw))
            .expect("the block is written");
    }
    writer.finish().expect("the file is written");
    maker.finish();
    chain_maker::run_tool(&datadir, &["import".as_ref(), file.as_os_str()]);
    Prepared {
        datadir,
        blocks: blocks as u64,
        transactions,
    }
}

/// Calls of the logger contract, one by every sender.
fn fill(ground: &mut Ground, number: usize) -> Vec<Bytes> {
    let (chain_id, each) = (ground.rollup.l2_chain_id, ground.senders.len());
    let calls = ground
        .senders
        .iter_mut()
        .enumerate()
        .map(|(index, sender)| {
            let topic = if index == 0 {
                COMMON
            } else {
                keccak256((number * each + index).to_be_bytes())
            };
            chain_maker::log_topic(sender, chain_id, topic)
        });
    let unsigned: Vec<_> = calls.collect();
    unsigned.into_par_iter().map(Unsigned::sign).collect()
}

/// Measures a server on the prepared chain.
pub fn run(chain: &Prepared) {
    let node = Node::start(&chain.datadir, &[]);
    let server = node.under_load();
    let blocks = chain.blocks;
    println!("reads by {CONNECTIONS} connections, of a chain of {blocks} blocks");
    for (kept, oldest) in [
        ("", 1),
        (", recent", blocks.saturating_sub(RECENT - 1).max(1)),
    ] {
        // A large stride, so that successive requests are for distant blocks.
        let count = blocks + 1 - oldest;
        let numbers: Vec<u64> = (0..count)
            .map(|turn| oldest + turn * 7919 % count)
            .collect();
        let each = |params: &dyn Fn(u64) -> Value| -> Vec<Value> {
            numbers.iter().map(|number| params(*number)).collect()
        };
        let full = each(&|number| json!([format!("{number:#x}"), true]));
        row(
            &format!("full block{kept}"),
            server,
            "eth_getBlockByNumber",
            &full,
        );
        let receipts = each(&|number| json!([format!("{number:#x}")]));
        row(
            &format!("receipts of a block{kept}"),
            server,
            "eth_getBlockReceipts",
            &receipts,
        );
        let one = each(&|number| json!([chain.transactions[number as usize - 1]]));
        row(
            &format!("one receipt{kept}"),
            server,
            "eth_getTransactionReceipt",
            &one,
        );
    }
    let last = blocks.min(RANGE);
    let filter = |topic: B256| json!([{ "fromBlock": "0x1", "toBlock": format!("{last:#x}"), "topics": [topic] }]);
    for (name, topic) in [
        ("logs by topic, one in each block", COMMON),
        ("logs by topic, none", ABSENT),
    ] {
        row(name, server, "eth_getLogs", &[filter(topic)]);
    }
}

/// Measures and prints the rate of one kind of request.
fn row(name: &str, server: ServerUnderLoad, method: &str, params: &[Value]) {
    let length = Duration::from_secs(size("STARLING_BENCH_SECONDS", 5) as u64);
    let bodies: Vec<String> = params
        .iter()
        .map(|params| client::body(method, params))
        .collect();
    let figures = measure(server, &bodies, length);
    println!("  {name:<36} {:>10.1} a second", figures.rate);
}
