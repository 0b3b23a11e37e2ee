//! op-node derives recorded chains on our core, over the Engine API. Our own node derives the same
//! chains for comparison.

use super::{
    NODE,
    network::{PATIENCE, our_core, turn},
    programs::{bare_op_node, programs},
};
use crate::{
    derive::Recording,
    net::{ask, call, wait},
};
use alloy_primitives::hex;
use serde_json::{Value, json};
use std::fs;

fn derives_the_same(name: &str) {
    let Some([program]) = programs([NODE]) else {
        return;
    };
    let Some(recording) = Recording::of(name) else {
        return;
    };
    let _turn = turn();
    let l1 = recording.serve(&[]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let packed = fs::read(recording.folder.join("l2-genesis.json.zst")).expect("a genesis");
    let genesis = zstd::decode_all(&packed[..]).expect("zstd");
    fs::write(folder.path().join("l2-genesis.json"), genesis).expect("a file");
    fs::write(folder.path().join("jwt"), hex::encode([7; 32])).expect("a file");
    let core = our_core(folder.path(), "core", "l2-genesis.json");
    let file = |name: &str| recording.folder.join(name).display().to_string();
    let options = [
        format!("--l1={}", l1.url),
        format!("--l1.beacon={}", l1.beacon),
        // The recording has no L1 state, so storage cannot be proven.
        "--l1.trustrpc".into(),
        format!("--rollup.config={}", file("rollup.json")),
        format!("--rollup.l1-chain-config={}", file("l1-chain-config.json")),
        format!("--safedb.path={}", folder.path().join("safedb").display()),
        "--p2p.disable".into(),
    ];
    let mut theirs = bare_op_node(folder.path(), &program, "op-node", &core, &options);
    let mut ours = recording.verifier(&l1);
    let last = recording.last_safe();
    ours.wait_until_safe(last);
    wait("op-node to derive the chain", PATIENCE, || {
        theirs.check();
        let status = call(&theirs.url, "optimism_syncStatus", json!([])).ok()?;
        (status["safe_l2"]["number"].as_u64()? >= last).then_some(())
    });
    for number in 0..=last {
        let at = json!([format!("{number:#x}"), false]);
        let hash = ask(&core.url, "eth_getBlockByNumber", at)["hash"].take();
        assert_eq!(ours.hash_at(number), hash, "block {number}");
    }
    for entry in recording.lines("safe-heads.jsonl.zst") {
        let l1 = entry["l1"].as_u64().expect("a number");
        let at = |url: &str| -> Option<Value> {
            let l1 = json!([format!("{l1:#x}")]);
            call(url, "optimism_safeHeadAtL1Block", l1).ok()
        };
        assert_eq!(at(&ours.rpc), at(&theirs.url), "L1 block {l1}");
    }
}

#[test]
fn op_node_derives_singular_batches_through_all_forks_as_we_do() {
    derives_the_same("ladder-singular");
}

#[test]
fn op_node_derives_blobs_as_we_do() {
    derives_the_same("jovian-blobs");
}

#[test]
fn op_node_derives_from_a_batcher_that_misbehaves_as_we_do() {
    derives_the_same("hostile-1");
}
