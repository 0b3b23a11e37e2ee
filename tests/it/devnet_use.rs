//! Use of a local network beside the main job: a second start, and replicas with
//! options of their own.

use crate::net::{Devnet, ask, head, starling, wait};
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
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3"]);
    let [keeps, forwards] = net
        .replicas()
        .try_into()
        .unwrap_or_else(|_| panic!("two replicas"));
    forwards.kill9();
    let again = format!(
        "==> to restart {}, run in another terminal:\n{}\n",
        forwards.name,
        forwards.command.join(" ")
    );
    wait(
        "the command that restarts it",
        Duration::from_secs(60),
        || net.log().contains(&again).then_some(()),
    );
    let _running = forwards.restart_with(
        &net.dir.join("forwards.log"),
        &["--rollup.enabletxpooladmission=false".into()],
    );
    wait("the replica", Duration::from_secs(60), || {
        head(&forwards.http)
    });

    let account = &net.accounts[3];
    let count = |url: &str, tag: &str| {
        ask(
            url,
            "eth_getTransactionCount",
            json!([account.address, tag]),
        )
    };
    let mut hash = Value::Null;
    for nonce in 0..2 {
        hash = ask(
            &keeps.http,
            "eth_sendRawTransaction",
            json!([account.sign_underpaid(net.l2_chain_id, nonce)]),
        );
    }
    assert_eq!(
        (count(&keeps.http, "pending"), count(&keeps.http, "latest")),
        (json!("0x2"), json!("0x0"))
    );
    assert_eq!(count(&net.sequencer().http, "pending"), "0x2");
    assert_eq!(
        count(&forwards.http, "pending"),
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

    // Replaced by transactions that pay, which are mined: then the pool forgets them.
    for nonce in 0..2 {
        let paying = account.sign(
            net.l2_chain_id,
            nonce,
            account.address.into(),
            Default::default(),
            Default::default(),
            21_000,
        );
        ask(&keeps.http, "eth_sendRawTransaction", json!([paying]));
    }
    wait(
        "the transactions to be mined",
        Duration::from_secs(60),
        || (count(&keeps.http, "latest") == "0x2").then_some(()),
    );
    wait("the pool to be empty", Duration::from_secs(60), || {
        let status = ask(&keeps.http, "txpool_status", json!([]));
        (status == json!({"pending": "0x0", "queued": "0x0"})).then_some(())
    });
    assert_eq!(count(&keeps.http, "pending"), "0x2");
    for log in net
        .nodes
        .iter()
        .map(|node| format!("{}.log", node.name))
        .chain(["forwards.log".into()])
    {
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
    // No program listens on the discard port, and no other peer knows this node's address.
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
