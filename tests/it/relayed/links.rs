//! Command lines from the documentation of op-batcher and op-proposer, run through links with these
//! names.

use super::*;
use crate::net::{Running, ask, wait};
use alloy_primitives::{B256, Bytes, keccak256};
use serde_json::json;
use starling::devnet::genesis::OUTPUT_ORACLE;
use starling_testkit::free_port;
use std::{
    path::Path,
    process::{Command, Stdio},
};

/// Starts the binary through a link called `name`, with the options in `line`.
fn start(dir: &Path, name: &str, line: &str) -> Running {
    let link = dir.join(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_starling"), &link).expect("a link");
    let log = std::fs::File::create(dir.join(format!("{name}.log"))).expect("a log file");
    let child = Command::new(&link)
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log file"))
        .stderr(log)
        .spawn();
    Running {
        child: child.expect("the link starts"),
    }
}

#[test]
fn the_documented_command_lines_run_under_the_links_of_both_programs() {
    let world = RelayedNetwork::start();
    let net = &world.net;
    let (l1, l2, rollup) = (net.l1().http, net.sequencer().http, rollup_rpc(net));
    let (batcher_port, proposer_port) = (free_port(), free_port());
    let key = |account: usize| net.accounts[account].key_hex();
    // Options of the tutorial for a new chain, except for a channel in each L1 block instead of
    // every 25.
    let batcher = format!(
        "--l2-eth-rpc={l2} --rollup-rpc={rollup} --poll-interval=1s --sub-safety-margin=6 \
         --num-confirmations=1 --safe-abort-nonce-too-low-count=3 --resubmission-timeout=30s \
         --rpc.addr=0.0.0.0 --rpc.port={batcher_port} --rpc.enable-admin \
         --max-channel-duration=1 --l1-eth-rpc={l1} --private-key={}",
        key(BATCHER)
    );
    let _batcher = start(&net.dir, "op-batcher", &batcher);
    let proposer = format!(
        "--poll-interval=12s --rpc.port={proposer_port} --rollup-rpc={rollup} \
         --l2oo-address={OUTPUT_ORACLE} --private-key={} --l1-eth-rpc={l1} \
         --allow-non-finalized=true",
        key(8)
    );
    let _proposer = start(&net.dir, "op-proposer", &proposer);
    world.all_becomes_safe();
    let api = format!("http://127.0.0.1:{batcher_port}");
    wait("the batcher's RPC", PATIENCE, || {
        crate::net::call(&api, "health_status", json!([])).ok()
    });
    assert_eq!(
        ask(&api, "txmgr_getMinBaseFee", json!([])),
        json!(1_000_000_000)
    );
    let selector = keccak256("nextOutputIndex()")[..4].to_vec();
    let call = json!([{ "to": OUTPUT_ORACLE, "data": Bytes::from(selector) }, "latest"]);
    wait("an output", PATIENCE, || {
        let count: B256 = serde_json::from_value(ask(&l1, "eth_call", call.clone())).ok()?;
        (!count.is_zero()).then_some(())
    });
}
