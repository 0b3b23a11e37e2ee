//! Real op-node, op-geth, op-batcher and op-proposer together with our nodes, on one machine. Each
//! test is skipped unless the environment names the programs that it needs. `exit` uses anvil as L1
//! and a client from `tests/clients` instead.

mod derived;
mod exit;
pub mod network;
mod posted;
pub mod programs;
mod whole;

use crate::net::{ask, call, hash_at, starling, wait};
use network::{Network, PATIENCE, reaches, same_chain};
use programs::{bare_op_node, op_geth, op_node, programs};
use serde_json::json;

const NODE: &str = "STARLING_OP_NODE";
pub const GETH: &str = "STARLING_OP_GETH";

fn static_peer(multiaddr: &str) -> Vec<String> {
    vec![
        "--p2p.no-discovery".into(),
        format!("--p2p.static={multiaddr}"),
    ]
}

#[test]
fn op_node_and_op_geth_follow_our_sequencer() {
    let Some([op_node_program, op_geth_program]) = programs([NODE, GETH]) else {
        return;
    };
    let net = Network::start(100);
    let ours = net.node(
        "sequencer",
        &[net.our_sequencer(), vec!["--p2p.no-discovery".into()]].concat(),
    );
    let missed = reaches(&ours, 60);
    // op-geth forwards transactions of its users to our sequencer.
    let geth = op_geth(
        net.path(),
        &op_geth_program,
        "op-geth",
        &[format!("--rollup.sequencerhttp={}", ours.url)],
    );
    let peer = format!("--p2p.static={}", ours.multiaddr());
    let mut theirs = op_node(&net, &op_node_program, "op-node", &geth, &[peer]);
    let caught_up = reaches(&geth, missed);
    net.transfer(&geth, 0, &[&ours, &geth]);
    net.transfer(&ours, 1, &[&ours, &geth]);
    net.deposit(&[&ours, &geth]);
    let last = reaches(&geth, caught_up + 20);
    same_chain(&ours, &geth, last);
    theirs.check();
}

#[test]
fn our_replica_follows_op_node_and_op_geth_300_blocks_late_and_after_a_kill() {
    let Some([op_node_program, op_geth_program]) = programs([NODE, GETH]) else {
        return;
    };
    let net = Network::start(310);
    let geth = op_geth(net.path(), &op_geth_program, "op-geth", &[]);
    let theirs = op_node(
        &net,
        &op_node_program,
        "op-node",
        &geth,
        &net.their_sequencer(),
    );
    let missed = reaches(&geth, 300);
    let mut replica = net.node("replica", &static_peer(&theirs.multiaddr()));
    reaches(&replica, missed);
    net.transfer(&geth, 0, &[&geth, &replica]);
    net.deposit(&[&geth, &replica]);

    replica.kill9();
    let killed_at = geth.head().expect("op-geth answers");
    net.transfer(&geth, 1, &[&geth]);
    let missed = reaches(&geth, killed_at + 20);
    replica.restart();
    let last = reaches(&replica, missed + 10);
    same_chain(
        &geth,
        &replica,
        last.min(geth.head().expect("op-geth answers")),
    );
}

#[test]
fn our_replica_forwards_transactions_to_op_geth() {
    let Some([op_node_program, op_geth_program]) = programs([NODE, GETH]) else {
        return;
    };
    let net = Network::start(5);
    let geth = op_geth(net.path(), &op_geth_program, "op-geth", &[]);
    let theirs = op_node(
        &net,
        &op_node_program,
        "op-node",
        &geth,
        &net.their_sequencer(),
    );
    let forwarding = vec![format!("--rollup.sequencerhttp={}", geth.url)];
    let replica = net.node(
        "replica",
        &[static_peer(&theirs.multiaddr()), forwarding].concat(),
    );
    reaches(&replica, 3);
    for nonce in 0..3 {
        net.transfer(&replica, nonce, &[&geth, &replica]);
    }
    // op-geth returns our sequencer's refusal in op-geth's own words.
    let known = net.accounts[2].sign(
        901,
        0,
        net.accounts[3].address.into(),
        Default::default(),
        Default::default(),
        21_000,
    );
    let [here, there] = [&replica, &geth]
        .map(|node| call(&node.url, "eth_sendRawTransaction", json!([known])).unwrap_err());
    assert_eq!(
        (&here["code"], &here["message"]),
        (&there["code"], &there["message"])
    );
    assert!(
        here["message"]
            .as_str()
            .is_some_and(|text| text.contains("nonce too low")),
        "{here}"
    );
}

#[test]
fn op_node_drives_our_core_for_1000_blocks_through_a_kill() {
    let Some([op_node_program]) = programs([NODE]) else {
        return;
    };
    let net = Network::start(1_000);
    let mut core = net.core("core");
    let mut theirs = op_node(
        &net,
        &op_node_program,
        "op-node",
        &core,
        &net.their_sequencer(),
    );
    let before = reaches(&core, 400);
    let hash = hash_at(&core.url, before);

    core.kill9();
    core.restart();
    let mut core = core.ready();
    reaches(&core, before);
    assert_eq!(
        hash_at(&core.url, before),
        hash,
        "a block that op-node knows survives the kill"
    );
    net.transfer(&core, 0, &[&core]);
    net.deposit(&[&core]);
    reaches(&core, 1_000);
    theirs.check();
    // op-node and our core must agree on the block.
    let output = ask(&theirs.url, "optimism_outputAtBlock", json!(["0x3e8"]));
    assert_eq!(output["blockRef"]["hash"], hash_at(&core.url, 1_000));

    // Every row of the stopped core must follow from its blocks.
    core.stop();
    let verify = starling()
        .args(["db", "verify"])
        .arg(format!("--datadir={}", net.file("core").display()))
        .output()
        .unwrap();
    assert!(
        verify.status.success(),
        "{}{}",
        String::from_utf8_lossy(&verify.stdout),
        String::from_utf8_lossy(&verify.stderr)
    );
}

/// A port on which no program listens: a node that advertises it can dial, but cannot be dialled.
/// op-node refuses ports below 1024.
const UNREACHABLE: &str = "--p2p.advertise.tcp=65535";

/// Starts our sequencer and an op-node that know only a common bootnode. One of the two advertises
/// an unreachable port, so that it must find and dial the other.
fn meets_through_a_bootnode(op_node_dials: bool) {
    let Some([op_node_program]) = programs([NODE]) else {
        return;
    };
    let net = Network::start(20);
    let advertise = "--p2p.advertise.ip=127.0.0.1".to_owned();
    let bootnode = net.node(
        "bootnode",
        &[
            advertise.clone(),
            "--p2p.bootnodes=,".into(),
            UNREACHABLE.into(),
        ],
    );
    let record = bootnode.itself()["ENR"]
        .as_str()
        .expect("a record")
        .to_owned();
    let known = |is_unreachable: bool| {
        let mut options = vec![advertise.clone(), format!("--p2p.bootnodes={record}")];
        options.extend(is_unreachable.then(|| UNREACHABLE.to_owned()));
        options
    };
    let ours = net.node(
        "sequencer",
        &[net.our_sequencer(), known(!op_node_dials)].concat(),
    );
    let core = net.core("core");
    let options = [net.rollup_options(), known(op_node_dials)].concat();
    let mut theirs = bare_op_node(net.path(), &op_node_program, "op-node", &core, &options);

    let peer = ours.itself()["peerID"]
        .as_str()
        .expect("a peer id")
        .to_owned();
    let found = wait("the two to meet", PATIENCE, || {
        theirs.check();
        let peers = call(&theirs.url, "opp2p_peers", json!([true])).ok()?;
        peers["peers"].get(&peer).cloned()
    });
    // libp2p's numbers for directions: 1 is inbound, 2 is outbound.
    assert_eq!(
        found["direction"],
        if op_node_dials { 2 } else { 1 },
        "{found}"
    );
    let last = reaches(&core, 25);
    same_chain(&ours, &core, last);
}

#[test]
fn op_node_finds_our_sequencer_through_a_bootnode_alone() {
    meets_through_a_bootnode(true);
}

#[test]
fn our_sequencer_finds_op_node_through_a_bootnode_alone() {
    meets_through_a_bootnode(false);
}
