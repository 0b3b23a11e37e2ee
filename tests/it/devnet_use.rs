//! Further uses of a local network: a second start, and replicas with their own options.

use crate::net::{Account, Devnet, Node, Running, ask, head, starling, wait};
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn a_second_network_in_one_directory_is_refused_and_the_first_goes_on() {
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=1"]);
    let read =
        |name: &str| std::fs::read_to_string(net.dir.join(name)).expect("a file of the network");
    let before = ["devnet.json", "rollup.json", "sequencer.p2p-key"].map(read);
    let second = starling()
        .arg("devnet")
        .arg(format!("--datadir={}", net.dir.display()))
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success(), "{said}");
    assert!(
        said.contains(&format!("already, as process {}: stop it first", net.pid())),
        "{said}"
    );
    assert_eq!(
        ["devnet.json", "rollup.json", "sequencer.p2p-key"].map(read),
        before
    );
    for node in &net.nodes {
        assert!(
            !read(&format!("{}.log", node.name)).contains("in use"),
            "no second {} was started",
            node.name
        );
        let at = head(&node.http).expect("it answers");
        wait("the next block", Duration::from_secs(60), || {
            head(&node.http).filter(|now| *now > at)
        });
    }
}

#[test]
fn a_replica_that_keeps_what_it_passes_on_knows_pending_nonces() {
    let mut net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3"]);
    let [keeps, forwards] = net
        .replicas()
        .try_into()
        .unwrap_or_else(|_| panic!("two replicas"));
    let mut running = restart_without_a_pool(&net, &forwards);

    let account = &net.accounts[3];
    let mut hash = Value::Null;
    for nonce in 0..2 {
        let underpaid = account.sign_underpaid(net.l2_chain_id, nonce);
        hash = ask(&keeps.http, "eth_sendRawTransaction", json!([underpaid]));
    }
    let count = |node: &Node, tag: &str| {
        ask(
            &node.http,
            "eth_getTransactionCount",
            json!([account.address, tag]),
        )
    };
    assert_eq!(
        (count(&keeps, "pending"), count(&keeps, "latest")),
        (json!("0x2"), json!("0x0"))
    );
    assert_eq!(count(&net.sequencer(), "pending"), "0x2");
    assert_eq!(
        count(&forwards, "pending"),
        "0x0",
        "without the option nothing is kept"
    );
    let pooled = ask(&keeps.http, "eth_getTransactionByHash", json!([hash]));
    assert_eq!(
        (&pooled["hash"], &pooled["blockHash"]),
        (&hash, &Value::Null)
    );
    assert_eq!(
        ask(&forwards.http, "eth_getTransactionByHash", json!([hash])),
        Value::Null
    );

    replace_by_paying_transactions(&net, &keeps, account);
    wait(
        "the transactions to be mined",
        Duration::from_secs(60),
        || (count(&keeps, "latest") == "0x2").then_some(()),
    );
    wait("the pool to be empty", Duration::from_secs(60), || {
        let status = ask(&keeps.http, "txpool_status", json!([]));
        (status == json!({"pending": "0x0", "queued": "0x0"})).then_some(())
    });
    assert_eq!(count(&keeps, "pending"), "0x2");
    no_log_has_debug_output(&net, &["forwards.log"]);
    net.interrupt();
    wait("the restarted node to end", Duration::from_secs(10), || {
        running.child.try_wait().ok().flatten()
    });
}

/// Restarts a replica so that it only forwards transactions, and checks that the network prints how
/// to restart a replica.
fn restart_without_a_pool(net: &Devnet, replica: &Node) -> Running {
    replica.kill9();
    let again = format!(
        "==> to restart {}, run in another terminal:\n{}\n",
        replica.name,
        replica.command.join(" ")
    );
    wait(
        "the command that restarts it",
        Duration::from_secs(60),
        || net.log().contains(&again).then_some(()),
    );
    let running = replica.restart_with(
        &net.dir.join("forwards.log"),
        &["--rollup.enabletxpooladmission=false".into()],
    );
    wait("the replica", Duration::from_secs(60), || {
        head(&replica.http)
    });
    running
}

/// Replaces the account's first two transactions by ones with sufficient fees, which will be mined.
fn replace_by_paying_transactions(net: &Devnet, node: &Node, account: &Account) {
    for nonce in 0..2 {
        let paying = account.sign(
            net.l2_chain_id,
            nonce,
            account.address.into(),
            Default::default(),
            Default::default(),
            21_000,
        );
        ask(&node.http, "eth_sendRawTransaction", json!([paying]));
    }
}

/// Checks that the logs of all nodes, and of `others`, contain no `Option` formatted with `Debug`.
fn no_log_has_debug_output(net: &Devnet, others: &[&str]) {
    let logs = net.nodes.iter().map(|node| format!("{}.log", node.name));
    for log in logs.chain(others.iter().map(|name| name.to_string())) {
        let log = std::fs::read_to_string(net.dir.join(log)).expect("a log");
        for debug in ["Some(", "=None"] {
            assert!(
                log.contains("JSON-RPC is served") && !log.contains(debug),
                "{debug} is in a log: {log}"
            );
        }
    }
}

#[test]
fn a_replica_without_peers_says_what_it_waits_for() {
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=1"]);
    let replica = net.replicas().remove(0);
    replica.kill9();
    // No program listens on the discard port, and no other peer knows this address.
    let peer = net.sequencer().p2p.expect("an address");
    let nobody = format!(
        "/ip4/127.0.0.1/tcp/9/p2p/{}",
        peer.rsplit('/').next().expect("a peer")
    );
    let options = [
        format!("--p2p.static={nobody}"),
        "--p2p.listen.tcp=0".into(),
    ];
    let log = net.dir.join("alone.log");
    let _running = replica.restart_with(&log, &options);
    wait("the reason", Duration::from_secs(400), || {
        let log = std::fs::read_to_string(&log).ok()?;
        log.lines()
            .any(|line| {
                line.contains("waiting for blocks") && line.contains("no peer is connected")
            })
            .then_some(())
    });
}
