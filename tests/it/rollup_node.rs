//! `starling rollup`, under the name op-node and with op-node's command line, drives an execution
//! client in another process: `starling execution`, and real op-geth if `STARLING_OP_GETH` is its
//! path.

use crate::{
    derive::{RecordedL1, Recording},
    foreign::{
        GETH,
        network::{Network, PATIENCE, our_core, reaches, same_chain, turn},
        programs::{Started, bare_op_node, op_geth, programs},
    },
    net::{ask, call, hash_at, starling, wait},
};
use alloy_primitives::hex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use starling_testkit::free_port;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

mod lost_states;

/// Makes a link to the program with op-node's name.
fn link(dir: &Path) -> PathBuf {
    let link = dir.join("op-node");
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_starling"), &link).expect("a link");
    }
    link
}

/// Starts our rollup node over a core, with a data directory in `dir`.
fn rollup_node(dir: &Path, name: &str, core: &Started, options: &[String]) -> Started {
    let datadir = format!("--datadir={}", dir.join(name).display());
    let options = [&[datadir], options].concat();
    bare_op_node(dir, &link(dir), name, core, &options)
}

/// A recorded chain, and a folder with its genesis and a JWT secret.
struct Recorded {
    recording: Recording,
    folder: tempfile::TempDir,
}

impl Recorded {
    fn new(name: &str) -> Option<Self> {
        let recording = Recording::of(name)?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let packed = fs::read(recording.folder.join("l2-genesis.json.zst")).expect("a genesis");
        let genesis = zstd::decode_all(&packed[..]).expect("zstd");
        fs::write(folder.path().join("l2-genesis.json"), genesis).expect("a file");
        fs::write(folder.path().join("jwt"), hex::encode([7; 32])).expect("a file");
        Some(Self { recording, folder })
    }

    fn options(&self, l1: &RecordedL1) -> Vec<String> {
        let file = |name: &str| self.recording.folder.join(name).display().to_string();
        let safedb = self.folder.path().join("safedb");
        vec![
            format!("--l1={}", l1.url),
            format!("--l1.beacon={}", l1.beacon),
            "--l1.http-poll-interval=200ms".into(),
            "--l1.epoch-poll-interval=1s".into(),
            format!("--rollup.config={}", file("rollup.json")),
            format!("--rollup.l1-chain-config={}", file("l1-chain-config.json")),
            format!("--safedb.path={}", safedb.display()),
            "--p2p.disable".into(),
        ]
    }

    fn verifier(&self, l1: &RecordedL1, core: &Started) -> Started {
        rollup_node(self.folder.path(), "rollup", core, &self.options(l1))
    }
}

fn safe(rollup: &Started) -> Option<u64> {
    let status = call(&rollup.url, "optimism_syncStatus", json!([])).ok()?;
    status["safe_l2"]["number"].as_u64()
}

fn until_safe(rollup: &mut Started, number: u64) {
    wait(&format!("safe block {number}"), PATIENCE, || {
        rollup.check();
        (safe(rollup)? >= number).then_some(())
    });
}

fn a_pair_derives(name: &str) {
    let Some(chain) = Recorded::new(name) else {
        return;
    };
    let l1 = chain.recording.serve(&[]);
    let core = our_core(chain.folder.path(), "core", "l2-genesis.json");
    let mut rollup = chain.verifier(&l1, &core);
    until_safe(&mut rollup, chain.recording.last_safe());
    chain.recording.check_at(&core.url, &rollup.url);
}

#[test]
fn a_pair_derives_every_fork_from_regolith_to_jovian() {
    a_pair_derives("ladder-singular");
}

#[test]
fn a_pair_derives_span_batches() {
    a_pair_derives("jovian-span");
}

#[test]
fn a_pair_derives_from_a_batcher_that_misbehaves() {
    a_pair_derives("hostile-1");
}

#[test]
fn either_process_of_a_pair_is_killed_and_the_chain_is_the_same() {
    let Some(chain) = Recorded::new("ladder-singular") else {
        return;
    };
    let l1 = chain.recording.serve(&["--grow", "0.3"]);
    let mut core = our_core(chain.folder.path(), "core", "l2-genesis.json");
    let mut rollup = chain.verifier(&l1, &core);
    for (number, outage) in [(60, 0), (120, 4), (180, 0), (240, 0)] {
        until_safe(&mut rollup, number);
        match number {
            60 => rollup.restart(),
            // The rollup node runs without a core for a while.
            120 | 180 => {
                core.kill9();
                std::thread::sleep(Duration::from_secs(outage));
                core.restart();
            }
            _ => {
                core.kill9();
                rollup.restart();
                std::thread::sleep(Duration::from_secs(2));
                core.restart();
            }
        }
        let back = wait("a safe head", PATIENCE, || {
            rollup.check();
            safe(&rollup).filter(|safe| *safe > 0)
        });
        // Safe heads from the L1 block that was being derived are not recorded yet: allow for 30
        // blocks.
        assert!(back + 30 > number, "the safe head steps back to {back}");
    }
    until_safe(&mut rollup, 296);
    chain.recording.check_at(&core.url, &rollup.url);
    let log = rollup.log();
    assert!(
        log.contains("the execution client does not answer"),
        "{log}"
    );
    assert!(log.contains("waiting for the execution client"), "{log}");
}

/// Options for these static peers, without discovery.
fn peers_with(peers: &[&Started]) -> Vec<String> {
    let peers: Vec<_> = peers.iter().map(|peer| peer.multiaddr()).collect();
    vec![
        "--p2p.no-discovery".into(),
        format!("--p2p.static={}", peers.join(",")),
    ]
}

/// Options of a rollup node that sequences, in a pair with our core.
fn sequencing(net: &Network) -> Vec<String> {
    let alone = vec!["--p2p.no-discovery".into(), "--rpc.enable-admin".into()];
    [net.rollup_options(), net.our_sequencer(), alone].concat()
}

#[test]
fn a_pair_sequences_while_either_process_is_killed() {
    let net = Network::start(20);
    let mut core = net.core("core");
    let mut rollup = rollup_node(net.path(), "rollup", &core, &sequencing(&net));
    let replica = net.node("replica", &peers_with(&[&rollup]));
    net.transfer(&core, 0, &[&core, &replica]);
    net.deposit(&[&core, &replica]);
    let mut random = StdRng::seed_from_u64(20);
    for _ in 0..6 {
        let before = reaches(&replica, 25);
        match random.random_range(0..3) {
            0 => core.restart(),
            1 => rollup.restart(),
            _ => {
                core.kill9();
                rollup.restart();
                core.restart();
            }
        }
        reaches(&replica, before + 8);
    }
    net.transfer(&core, 1, &[&core, &replica]);
    let last = reaches(&core, reaches(&replica, 40));
    same_chain(&core, &replica, last.min(reaches(&replica, last)));
    // If the pair had signed a second block at a height, the peer would log a reorg.
    assert!(!replica.log().contains("reorg"), "{}", replica.log());
    rollup.check();
}

#[test]
fn a_replica_pair_closes_a_gap_and_follows() {
    let net = Network::start(300);
    let alone = vec!["--p2p.no-discovery".into()];
    let sequencer = net.node("sequencer", &[net.our_sequencer(), alone].concat());
    let ahead = reaches(&sequencer, 300);
    let core = net.core("core");
    let options = [net.rollup_options(), peers_with(&[&sequencer])].concat();
    let mut rollup = rollup_node(net.path(), "rollup", &core, &options);
    let head = reaches(&core, ahead + 10);
    same_chain(&sequencer, &core, head);
    // Peers can fetch blocks from the rollup node: the next replica has no other peer.
    let last = net.node("last", &peers_with(&[&rollup]));
    let head = reaches(&last, ahead + 20);
    same_chain(&sequencer, &last, head.min(reaches(&sequencer, head)));
    rollup.check();
}

/// Runs a `starling rollup` that exits at once. Returns its error message.
fn refusal(dir: &Path, engine: u16, jwt: &Path, rollup: &Path) -> String {
    let output = starling()
        .arg("rollup")
        .args([
            "--l1=http://127.0.0.1:9",
            "--l1.beacon.ignore",
            "--p2p.disable",
            "--rpc.port=0",
        ])
        .arg(format!(
            "--rollup.l1-chain-config={}",
            dir.join("l1-chain-config.json").display()
        ))
        .arg(format!("--datadir={}", dir.join("refused").display()))
        .arg(format!("--l2=http://127.0.0.1:{engine}"))
        .arg(format!("--l2.jwt-secret={}", jwt.display()))
        .arg(format!("--rollup.config={}", rollup.display()))
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| line.starts_with("error: "));
    last.unwrap_or_else(|| panic!("no error: {said}"))
        .to_owned()
}

#[test]
fn a_client_that_cannot_be_driven_is_refused_in_one_sentence() {
    let net = Network::start(5);
    let core = net.core("core");
    let engine = core.engine.expect("an Engine API");
    let (jwt, config) = (net.file("jwt"), net.file("rollup.json"));
    let other = net.file("other-jwt");
    fs::write(&other, hex::encode([8; 32])).expect("a file");
    let said = refusal(net.path(), engine, &other, &config);
    assert!(said.contains("--l2.jwt-secret"), "{said}");
    let text = fs::read_to_string(&config).expect("rollup.json");
    let mut changed: Value = serde_json::from_str(&text).expect("JSON");
    changed["genesis"]["l2"]["hash"] = json!(format!("0x{}", "12".repeat(32)));
    let another = net.file("another.json");
    fs::write(&another, changed.to_string()).expect("a file");
    let said = refusal(net.path(), engine, &jwt, &another);
    assert!(
        said.contains("begins with block") && said.contains("genesis file"),
        "{said}"
    );
    changed["l2_chain_id"] = json!(77);
    fs::write(&another, changed.to_string()).expect("a file");
    let said = refusal(net.path(), engine, &jwt, &another);
    assert!(said.contains("has chain 901"), "{said}");
    // The public HTTP port does not serve the Engine API.
    let http: u16 = core
        .url
        .rsplit(':')
        .next()
        .expect("a port")
        .parse()
        .expect("a port");
    let said = refusal(net.path(), http, &jwt, &config);
    assert!(said.contains("--authrpc.port"), "{said}");
}

#[test]
fn a_second_rollup_node_in_one_directory_is_refused() {
    let net = Network::start(5);
    let core = net.core("core");
    let options = [net.rollup_options(), vec!["--p2p.disable".into()]].concat();
    let _rollup = rollup_node(net.path(), "rollup", &core, &options);
    let mut second = Command::new(env!("CARGO_BIN_EXE_starling"));
    let second = second
        .args(["rollup", "--l1.beacon.ignore", "--rpc.addr=127.0.0.1"])
        .args(&options)
        .arg(format!("--rpc.port={}", free_port()))
        .arg(format!("--datadir={}", net.file("rollup").display()))
        .arg(format!("--l2.jwt-secret={}", net.file("jwt").display()))
        .arg("--l2=http://127.0.0.1:9")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        !second.status.success() && said.contains("in use by another rollup node"),
        "{said}"
    );
}

fn op_geth_is_driven_through(name: &str) {
    let Some([program]) = programs([GETH]) else {
        return;
    };
    let Some(chain) = Recorded::new(name) else {
        return;
    };
    let _turn = turn();
    let l1 = chain.recording.serve(&[]);
    let geth = op_geth(chain.folder.path(), &program, "geth", &[]);
    let mut rollup = chain.verifier(&l1, &geth);
    until_safe(&mut rollup, chain.recording.last_safe());
    chain.recording.check_at(&geth.url, &rollup.url);
}

#[test]
fn op_geth_is_driven_through_every_fork_from_regolith_to_jovian() {
    op_geth_is_driven_through("ladder-singular");
}

#[test]
fn op_geth_is_driven_through_span_batches() {
    op_geth_is_driven_through("jovian-span");
}

/// op-geth has no payload log. After a kill it is some blocks behind, and its heads are read again.
#[test]
fn op_geth_makes_our_sequencers_blocks_and_is_killed() {
    let Some([program]) = programs([GETH]) else {
        return;
    };
    let net = Network::start(30);
    let mut geth = op_geth(net.path(), &program, "geth", &[]);
    let mut rollup = rollup_node(net.path(), "rollup", &geth, &sequencing(&net));
    let replica = net.node("replica", &peers_with(&[&rollup]));
    net.transfer(&geth, 0, &[&geth, &replica]);
    net.deposit(&[&geth, &replica]);
    for _ in 0..2 {
        let before = reaches(&replica, 35);
        geth.restart();
        reaches(&replica, before + 10);
        rollup.restart();
        reaches(&replica, before + 20);
    }
    let last = reaches(&replica, 60);
    reaches(&geth, last);
    same_chain(&geth, &replica, last);
    assert_eq!(hash_at(&geth.url, last), hash_at(&replica.url, last));
    let active = ask(&rollup.url, "admin_sequencerActive", json!([]));
    assert_eq!(active, json!(true));
}
