//! op-node derives recorded chains on our core, over the Engine API. Our own node derives the same
//! chains for comparison.

use super::{
    NODE,
    network::{Folder, PATIENCE, our_core, turn},
    programs::{Started, bare_op_node, programs},
};
use crate::{
    derive::Recording,
    derive_actions::{config_updates, world::ActionWorld},
    net::{call, hash_at, wait},
};
use alloy_primitives::hex;
use serde_json::{Value, json};
use std::{fs, path::Path};

/// op-node over our core, on the chain that the files in the folder `chain` describe.
struct OpNodeBeside {
    core: Started,
    node: Started,
    _folder: Folder,
}

impl OpNodeBeside {
    fn start(program: &Path, chain: &Path, l1: &str, beacon: &str) -> Self {
        let temporary = Folder::new();
        let folder = temporary.path();
        let packed = fs::read(chain.join("l2-genesis.json.zst")).expect("a genesis");
        let genesis = zstd::decode_all(&packed[..]).expect("zstd");
        fs::write(folder.join("l2-genesis.json"), genesis).expect("a file");
        fs::write(folder.join("jwt"), hex::encode([7; 32])).expect("a file");
        let core = our_core(folder, "core", "l2-genesis.json");
        let file = |name: &str| chain.join(name).display().to_string();
        let options = [
            format!("--l1={l1}"),
            "--l1.http-poll-interval=500ms".into(),
            format!("--l1.beacon={beacon}"),
            // A recording has no L1 state, so storage cannot be proven.
            "--l1.trustrpc".into(),
            format!("--rollup.config={}", file("rollup.json")),
            format!("--rollup.l1-chain-config={}", file("l1-chain-config.json")),
            format!("--safedb.path={}", folder.join("safedb").display()),
            "--p2p.disable".into(),
        ];
        let node = bare_op_node(folder, program, "op-node", &core, &options);
        Self {
            core,
            node,
            _folder: temporary,
        }
    }

    fn wait_until_safe(&mut self, number: u64) {
        wait("op-node to derive the chain", PATIENCE, || {
            self.node.check();
            let status = call(&self.node.url, "optimism_syncStatus", json!([])).ok()?;
            (status["safe_l2"]["number"].as_u64()? >= number).then_some(())
        });
    }
}

fn derives_the_same(name: &str) {
    let Some([program]) = programs([NODE]) else {
        return;
    };
    let Some(recording) = Recording::of(name) else {
        return;
    };
    let _turn = turn();
    let l1 = recording.serve(&[]);
    let mut theirs = OpNodeBeside::start(&program, &recording.folder, &l1.url, &l1.beacon);
    let mut ours = recording.verifier(&l1);
    let last = recording.last_safe();
    ours.wait_until_safe(last);
    theirs.wait_until_safe(last);
    for number in 0..=last {
        let hash = hash_at(&theirs.core.url, number);
        assert_eq!(ours.hash_at(number), hash, "block {number}");
    }
    for entry in recording.lines("safe-heads.jsonl.zst") {
        let l1 = entry["l1"].as_u64().expect("a number");
        let at = |url: &str| -> Option<Value> {
            let l1 = json!([format!("{l1:#x}")]);
            call(url, "optimism_safeHeadAtL1Block", l1).ok()
        };
        assert_eq!(at(&ours.rpc), at(&theirs.node.url), "L1 block {l1}");
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

#[test]
fn op_node_ignores_the_config_updates_that_we_ignore() {
    let Some([program]) = programs([NODE]) else {
        return;
    };
    let _turn = turn();
    let mut world = ActionWorld::new(config_updates::plan());
    let (l1, beacon) = (&world.l1.url, &world.l1.beacon);
    let mut theirs = OpNodeBeside::start(&program, world.folder.path(), l1, beacon);
    config_updates::emit_updates(&mut world);
    let head = world.author.head();
    theirs.wait_until_safe(head.number());
    assert_eq!(hash_at(&theirs.core.url, head.number()), json!(head.hash));
}
