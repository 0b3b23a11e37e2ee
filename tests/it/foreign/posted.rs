//! Our batcher and our proposer together with op-node and op-geth. In one part op-node over op-geth
//! derives our sequencer's blocks from L1 alone, in every mode of our batcher. In the other part
//! our batcher and proposer replace op-batcher and op-proposer, with op-node as sequencer.

use super::{
    GETH, NODE,
    network::{Network, PATIENCE, reaches, same_chain, turn},
    programs::{Started, bare_op_node, op_geth, op_node, programs},
    whole::{beacon, read},
};
use crate::{
    batcher::{LARGE, becomes_safe, network, posted, rollup_rpc, safe},
    net::{Devnet, ask, call, head, same_blocks, wait},
    posting::{
        load::{LoadThread, load},
        process::{BatcherLinks, BatcherProcess},
        relay::{DEAR, RpcRelay},
    },
};
use alloy_primitives::{Address, U256, hex};
use serde_json::{Value, json};
use starling::devnet::{accounts, genesis::OUTPUT_ORACLE};
use starling_testkit::free_port;
use std::{fs, time::Duration};

/// Modes of the batcher, each with the number of blobs in a transaction: none, or the maximum.
const MODES: [(&[&str], usize); 4] = [
    (
        &[
            "--data-availability-type=calldata",
            "--batch-type=0",
            "--compression-algo=zlib",
        ],
        0,
    ),
    (
        &[
            "--data-availability-type=calldata",
            "--batch-type=1",
            "--compression-algo=brotli-11",
        ],
        0,
    ),
    (
        &[
            "--data-availability-type=blobs",
            "--batch-type=1",
            "--compression-algo=brotli-10",
            "--target-num-frames=3",
        ],
        3,
    ),
    // No other account uses blobs on this L1, so blobs are cheaper than calldata.
    (
        &[
            "--data-availability-type=auto",
            "--target-num-frames=2",
            "--compressor=none",
        ],
        2,
    ),
];

/// Runs our batcher in every mode under load. Returns the number of the newest safe block.
fn post_in_every_mode(net: &Devnet) -> u64 {
    let mut posted_before = 0;
    for (round, (options, blobs)) in (0..).zip(MODES) {
        load(net, 1, 30, LARGE);
        let last = head(&net.sequencer().http).expect("a head");
        let options = [options, &["--max-channel-duration=2"]].concat();
        let batcher = BatcherProcess::start(
            &BatcherLinks::of(net),
            &format!("batcher-{round}"),
            &options,
        );
        becomes_safe(net, last);
        batcher.stop();
        let posted = posted(net).split_off(posted_before);
        posted_before += posted.len();
        let ty = if blobs == 0 { 2 } else { 3 };
        assert!(posted.iter().all(|(posted, _)| *posted == ty), "{posted:?}");
        assert!(posted.contains(&(ty, blobs)), "{posted:?}");
    }
    safe(net)
}

/// Sets blob fees such that the batcher posts to calldata, to blobs, and to calldata again. Returns
/// the newest safe block then.
fn post_while_prices_flip(net: &Devnet) -> u64 {
    let relay = RpcRelay::start(&net.l1().http);
    let links = BatcherLinks {
        l1: relay.url.clone(),
        ..BatcherLinks::of(net)
    };
    let _load = LoadThread::start(net, 1, LARGE / 4, Duration::from_millis(300));
    let flips = [(DEAR, 2), (0, 3), (DEAR, 2)];
    relay.show_blob_fee(DEAR);
    let options = ["--data-availability-type=auto", "--max-channel-duration=2"];
    let batcher = BatcherProcess::start(&links, "batcher", &options);
    for (fee, ty) in flips {
        relay.show_blob_fee(fee);
        let before = posted(net).len();
        wait(&format!("a transaction of type {ty}"), PATIENCE, || {
            let newest = posted(net).split_off(before);
            newest.iter().any(|(posted, _)| *posted == ty).then_some(())
        });
    }
    becomes_safe(net, head(&net.sequencer().http).expect("a head"));
    batcher.stop();
    let mut types: Vec<u64> = posted(net).into_iter().map(|(ty, _)| ty).collect();
    types.dedup();
    assert_eq!(types, flips.map(|(_, ty)| ty));
    safe(net)
}

/// Lets op-node over op-geth derive, from L1 alone, the batches that `post` posts on our network.
fn op_node_derives(post: fn(&Devnet) -> u64) {
    let Some([op_node_program, op_geth_program]) = programs([NODE, GETH]) else {
        return;
    };
    let _turn = turn();
    let net = network();
    fs::write(net.dir.join("jwt"), hex::encode([7; 32])).expect("a file");
    let geth = op_geth(&net.dir, &op_geth_program, "op-geth", &[]);
    let file = |name: &str| net.dir.join(name).display().to_string();
    let options = [
        format!("--l1={}", net.l1().http),
        format!("--l1.beacon={}", beacon(&net)),
        "--l1.http-poll-interval=500ms".into(),
        format!("--rollup.config={}", file("rollup.json")),
        format!("--rollup.l1-chain-config={}", file("l1-chain-config.json")),
        "--p2p.disable".into(),
    ];
    let mut theirs = bare_op_node(&net.dir, &op_node_program, "op-node", &geth, &options);
    let last = post(&net);
    wait("op-node to derive the blocks", PATIENCE, || {
        theirs.check();
        let status = call(&theirs.url, "optimism_syncStatus", json!([])).ok()?;
        (status["safe_l2"]["number"].as_u64()? >= last).then_some(())
    });
    same_blocks(&net.sequencer().http, &geth.url, last);
    assert_eq!(output(&theirs.url, last), output(&rollup_rpc(&net), last));
}

#[test]
fn op_node_over_op_geth_derives_what_our_batcher_posts_in_every_mode() {
    op_node_derives(post_in_every_mode);
}

#[test]
fn op_node_over_op_geth_derives_what_our_batcher_posts_while_prices_flip_both_ways() {
    op_node_derives(post_while_prices_flip);
}

/// The output root of a block, as the rollup node at `url` reports it.
fn output(url: &str, block: u64) -> Value {
    let block = json!([format!("{block:#x}")]);
    ask(url, "optimism_outputAtBlock", block)["outputRoot"].take()
}

/// Starts our batcher or our proposer as a process, with the options common to both.
fn ours(net: &Network, role: &str, account: Address, options: &[String]) -> Started {
    let port = free_port();
    let mut keys = accounts::all().into_iter();
    let key = keys.find(|known| known.address == account);
    let mut words = vec![
        env!("CARGO_BIN_EXE_starling").to_owned(),
        role.into(),
        format!("--l1-eth-rpc={}", net.l1.url),
        format!("--private-key={}", key.expect("an account").private_key),
        "--rpc.addr=127.0.0.1".into(),
        format!("--rpc.port={port}"),
    ];
    let fast = [
        "--poll-interval=500ms",
        "--num-confirmations=1",
        "--txmgr.receipt-query-interval=500ms",
    ];
    words.extend(fast.map(String::from));
    words.extend_from_slice(options);
    let url = format!("http://127.0.0.1:{port}");
    Started::new(net.path(), role, words, url)
}

#[test]
fn our_batcher_and_our_proposer_serve_op_node_and_op_geth() {
    const OUTPUTS: u64 = 3;
    let Some([op_node_program, op_geth_program]) = programs([NODE, GETH]) else {
        return;
    };
    let net = Network::start(10);
    let geth = op_geth(net.path(), &op_geth_program, "op-geth", &[]);
    let options = net.their_sequencer();
    let mut theirs = op_node(&net, &op_node_program, "op-node", &geth, &options);
    let rollup = format!("--rollup-rpc={}", theirs.url);
    let options = [
        rollup.clone(),
        format!("--l2-eth-rpc={}", geth.url),
        "--max-channel-duration=2".into(),
        "--sub-safety-margin=4".into(),
    ];
    let mut batcher = ours(&net, "batcher", accounts::batcher(), &options);
    let options = [
        rollup,
        format!("--l2oo-address={OUTPUT_ORACLE}"),
        "--allow-non-finalized".into(),
    ];
    let mut proposer = ours(&net, "proposer", accounts::proposer(), &options);
    let oracle = OUTPUT_ORACLE.to_string();
    let words = |signature: &str, argument| -> Vec<U256> {
        let answer = read(&net.l1.url, &oracle, signature, argument);
        answer.chunks(32).map(U256::from_be_slice).collect()
    };
    wait("outputs", PATIENCE, || {
        theirs.check();
        batcher.check();
        proposer.check();
        (words("nextOutputIndex()", None)[0] >= U256::from(OUTPUTS)).then_some(())
    });
    for index in 0..OUTPUTS {
        let found = words("getL2Output(uint256)", Some(index));
        let [root, block] = [found[0], found[2]];
        let claimed = json!(hex::encode_prefixed(root.to_be_bytes::<32>()));
        assert_eq!(claimed, output(&theirs.url, block.to()), "{block}");
    }
    let status = ask(&theirs.url, "optimism_syncStatus", json!([]));
    let safe = status["safe_l2"]["number"].as_u64().expect("a number");
    let replica = net.node("replica", &["--p2p.disable".into()]);
    reaches(&replica, safe);
    same_chain(&geth, &replica, safe);
    batcher.stop();
    proposer.stop();
}
