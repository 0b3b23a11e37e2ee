//! The posts of our batcher, read by the real derivation: op-node over op-geth, without p2p,
//! derives from L1 alone the blocks of our sequencer, in every mode.

use super::{
    GETH, NODE,
    network::{PATIENCE, turn},
    programs::{bare_op_node, op_geth, programs},
};
use crate::{
    batcher::{BatcherProcess, becomes_safe, load, network, posted, rollup_rpc, safe},
    net::{Devnet, ask, call, head, same_blocks, wait},
};
use alloy_primitives::hex;
use serde_json::json;
use std::fs;

/// Modes of the batcher, and the blobs of a transaction in each: none, or the most that one has.
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
    // Nobody else uses blobs on this L1, so they are cheaper.
    (
        &[
            "--data-availability-type=auto",
            "--target-num-frames=2",
            "--compressor=none",
        ],
        2,
    ),
];

/// Runs our batcher in every mode under load, and returns the last block that was posted.
fn post_in_every_mode(net: &Devnet) -> u64 {
    let mut posted_before = 0;
    for (round, (options, blobs)) in (0..).zip(MODES) {
        load(net, 30 * round, 30);
        let last = head(&net.sequencer().http).expect("a head");
        let options = [options, &["--max-channel-duration=2"]].concat();
        let batcher = BatcherProcess::start(net, &format!("batcher-{round}"), &options);
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

#[test]
fn op_node_over_op_geth_derives_what_our_batcher_posts_in_every_mode() {
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
        format!("--l1.beacon={}", super::whole::beacon(&net)),
        "--l1.http-poll-interval=500ms".into(),
        format!("--rollup.config={}", file("rollup.json")),
        format!("--rollup.l1-chain-config={}", file("l1-chain-config.json")),
        "--p2p.disable".into(),
    ];
    let mut theirs = bare_op_node(&net.dir, &op_node_program, "op-node", &geth, &options);
    let last = post_in_every_mode(&net);
    wait("op-node to derive the blocks", PATIENCE, || {
        theirs.check();
        let status = call(&theirs.url, "optimism_syncStatus", json!([])).ok()?;
        (status["safe_l2"]["number"].as_u64()? >= last).then_some(())
    });
    same_blocks(&net.sequencer().http, &geth.url, last);
    let output = |url: &str| {
        let block = json!([format!("{last:#x}")]);
        ask(url, "optimism_outputAtBlock", block)["outputRoot"].take()
    };
    assert_eq!(output(&theirs.url), output(&rollup_rpc(&net)));
}
