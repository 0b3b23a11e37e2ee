use super::*;
use crate::cli::{Invocation, parse};
use serde_json::Value;
use starling_proto::l1_config::L1ChainConfig;
use std::{collections::HashSet, os::unix::fs::PermissionsExt};

fn config(datadir: Option<&Path>, replicas: usize) -> DevnetConfig {
    DevnetConfig {
        replicas,
        datadir: datadir.map(Path::to_path_buf),
        l2_block_time: None,
        l1_block_time: None,
        genesis_age: 0,
        base_port: None,
        files: None,
        sequencer_key: None,
        batcher: false,
        proposer: false,
        game_type: 1,
        log_level: "info".into(),
    }
}

fn open(config: &DevnetConfig) -> Result<Directory, DirectoryError> {
    Directory::open(config, "starling", 3)
}

#[test]
fn every_command_line_is_one_this_program_takes() {
    let directory = open(&config(None, 2)).expect("a network");
    let names: Vec<_> = directory
        .nodes()
        .iter()
        .map(|node| node.name.as_str())
        .collect();
    assert_eq!(names, ["l1", "sequencer", "replica-1", "replica-2"]);
    for node in directory.nodes() {
        let parsed = parse(node.command.clone(), &|_| None).expect("a command line");
        assert_eq!(parsed.notices, Vec::<String>::new(), "{}", node.name);
        match (node.role, parsed.invocation) {
            (NodeRole::L1, Invocation::Execution(config)) => {
                assert_eq!(config.dev_period, Some(6));
                assert!(config.dev_beacon.is_some());
            }
            (NodeRole::Sequencer, Invocation::Node(config)) => {
                assert!(config.sequencer.is_some() && config.rpc.sequencer_http.is_none());
                assert_eq!(config.p2p.map(|p2p| p2p.static_peers.len()), Some(2));
            }
            (NodeRole::Replica, Invocation::Node(config)) => {
                assert!(config.sequencer.is_none());
                assert_eq!(
                    config.rpc.sequencer_http.as_ref().map(|url| url.expose()),
                    Some(directory.nodes()[1].http.as_str())
                );
            }
            (role, other) => panic!("{role}: {other:?}"),
        }
        assert!(matches!(
            parse(node.init.clone(), &|_| None)
                .expect("init")
                .invocation,
            Invocation::Init(_)
        ));
    }
}

/// With the L1's chain config, the rollup nodes verify the L1's data instead of trusting the L1.
#[test]
fn rollup_nodes_have_the_chain_config_of_an_l1_that_they_do_not_trust() {
    let directory = open(&config(None, 2)).expect("a network");
    for node in directory
        .nodes()
        .iter()
        .filter(|node| node.role != NodeRole::L1)
    {
        let Invocation::Node(config) = parse(node.command.clone(), &|_| None)
            .expect("a command line")
            .invocation
        else {
            panic!()
        };
        let path = config.l1.chain_config.expect("a chain config");
        let text = fs::read_to_string(path).expect("a file");
        assert_eq!(
            L1ChainConfig::from_json(&text)
                .expect("a chain config")
                .chain_id,
            genesis::L1_CHAIN_ID
        );
        assert!(!config.l1.client.trust);
        assert!(config.l1.beacon.is_some() && !config.l1.beacon_ignored);
    }
}

#[test]
fn no_two_addresses_of_a_network_are_the_same() {
    let directory = open(&config(None, 2)).expect("a network");
    let urls: HashSet<_> = directory
        .nodes()
        .iter()
        .flat_map(|node| {
            [&node.http, &node.ws, &node.metrics]
                .into_iter()
                .chain(&node.rpc)
                .chain(&node.beacon)
        })
        .collect();
    assert_eq!(urls.len(), 16, "no port twice");
}

#[test]
fn keys_are_in_files_that_only_their_owner_reads() {
    let directory = open(&config(None, 1)).expect("a network");
    let mut keys = 0;
    for entry in fs::read_dir(&directory.path).expect("entries").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with("key") {
            assert_eq!(
                entry.metadata().expect("metadata").permissions().mode() & 0o777,
                0o600,
                "{name}"
            );
            let key = fs::read_to_string(entry.path()).expect("key");
            let printed = directory
                .nodes()
                .iter()
                .flat_map(|node| node.command.clone())
                .collect::<String>();
            assert!(key.trim().len() == 64 && !printed.contains(key.trim()));
            keys += 1;
        }
    }
    assert_eq!(keys, 3);
}

#[test]
fn a_temporary_network_leaves_nothing_and_a_named_one_goes_on() {
    let temporary = open(&config(None, 0)).expect("a network");
    let path = temporary.path.clone();
    assert!(path.join(ROLLUP).exists());
    temporary.close();
    assert!(!path.exists());

    let parent = tempfile::tempdir().expect("a directory");
    let named = config(Some(&parent.path().join("net")), 1);
    let one = open(&named).expect("a network");
    one.write_description([]).expect("a description");
    let rollup = fs::read_to_string(one.path.join(ROLLUP)).expect("a file");
    let (path, peer) = (
        one.path.clone(),
        one.nodes[1]
            .p2p
            .clone()
            .and_then(|p2p| p2p.split("/p2p/").nth(1).map(str::to_string)),
    );
    one.close();
    let two = open(&DevnetConfig {
        replicas: 3,
        ..named.clone()
    })
    .expect("the network again");
    assert!(two.resumed && two.nodes.len() == 5);
    assert_eq!(
        fs::read_to_string(path.join(ROLLUP)).expect("a file"),
        rollup
    );
    assert_eq!(
        two.nodes[1]
            .p2p
            .clone()
            .and_then(|p2p| p2p.split("/p2p/").nth(1).map(str::to_string)),
        peer
    );

    two.close();
    let changed = open(&DevnetConfig {
        l2_block_time: Some(7),
        ..named
    })
    .expect_err("another block time");
    assert!(
        matches!(changed, DirectoryError::BlockTime { kept: 2, .. }),
        "{changed}"
    );
}

#[test]
fn a_new_network_can_have_an_old_genesis() {
    let folder = tempfile::tempdir().expect("a directory");
    let old = DevnetConfig {
        genesis_age: 3_600,
        ..config(Some(folder.path()), 0)
    };
    let directory = open(&old).expect("a network");
    let genesis = read_rollup(&directory.path).expect("its file").genesis;
    let age = unix_now() - genesis.l2_time;
    assert!((3_600..3_660).contains(&age), "{age} s");
    directory.close();
    let kept = open(&old).expect_err("it has a genesis");
    assert!(matches!(kept, DirectoryError::GenesisAge { .. }), "{kept}");
    let before_1970 = open(&DevnetConfig {
        genesis_age: u64::MAX,
        ..config(None, 0)
    });
    assert!(matches!(before_1970, Err(DirectoryError::Clock)));
}

#[test]
fn other_programs_find_the_network_in_its_description() {
    let directory = open(&config(None, 1)).expect("a network");
    directory
        .write_description(directory.nodes().iter().zip(100..))
        .expect("a description");
    let text = fs::read_to_string(directory.description()).expect("a file");
    let description: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        description["chain_ids"],
        serde_json::json!({"l1": 900, "l2": 901})
    );
    assert_eq!(
        description["contracts"]["portal"],
        serde_json::json!(genesis::PORTAL)
    );
    assert_eq!(
        description["contracts"]["system_config"],
        serde_json::json!(genesis::SYSTEM_CONFIG)
    );
    assert_eq!(description["accounts"].as_array().map(Vec::len), Some(10));
    assert_eq!(
        description["accounts"][0]["address"],
        "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"
    );
    let nodes = description["nodes"].as_array().expect("nodes");
    let roles: Vec<_> = nodes
        .iter()
        .filter_map(|node| node["role"].as_str())
        .collect();
    assert_eq!(roles, ["l1", "sequencer", "replica"]);
    assert_eq!(nodes[2]["pid"], 102);
    assert_eq!(
        nodes[2]["command"],
        serde_json::json!(directory.nodes()[2].command)
    );
    assert!(nodes[0].get("p2p").is_none() && nodes[1]["p2p"].is_string());
    assert!(nodes[0]["beacon"].is_string() && nodes[1].get("beacon").is_none());
    assert!(
        fs::read_dir(&directory.path)
            .expect("entries")
            .flatten()
            .all(|entry| !entry.file_name().to_string_lossy().ends_with(".new"))
    );
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("thesis.txt"), "years of work").expect("a file");
    let error = open(&config(Some(directory.path()), 1)).expect_err("not ours");
    assert!(matches!(error, DirectoryError::Foreign(_)), "{error}");
    assert_eq!(fs::read_dir(directory.path()).expect("entries").count(), 1);
}

#[test]
fn a_port_in_use_is_said() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let error = open(&DevnetConfig {
        base_port: Some(port),
        ..config(None, 0)
    })
    .expect_err("in use")
    .to_string();
    assert!(
        error.starts_with(&format!("port {port} is in use")),
        "{error}"
    );
}

#[test]
fn ports_are_those_of_the_last_run_if_they_are_free() {
    let entry = NodeEntry {
        name: "replica-1".into(),
        role: NodeRole::Replica,
        pid: 1,
        command: vec![
            "starling".into(),
            "execution".into(),
            "--dev.period=3".into(),
        ],
        http: "http://127.0.0.1:1001".into(),
        ws: "ws://127.0.0.1:1002".into(),
        rpc: Some("http://127.0.0.1:1005".into()),
        metrics: "http://127.0.0.1:1004/metrics".into(),
        p2p: Some("/ip4/127.0.0.1/tcp/1003/p2p/16Uiu2".into()),
        beacon: Some("http://127.0.0.1:1006".into()),
    };
    assert_eq!(
        NodePorts::of(&entry),
        NodePorts {
            http: 1001,
            ws: 1002,
            p2p: 1003,
            metrics: 1004,
            rpc: 1005,
            beacon: 1006,
        }
    );
    assert_eq!(
        kept_period(&[NodeEntry {
            role: NodeRole::L1,
            ..entry
        }]),
        Some(3)
    );

    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let http = listener.local_addr().expect("an address").port();
    let wanted = NodePorts {
        http,
        ..Default::default()
    };
    let other = Ports::new(None)
        .of_node(Some(wanted.clone()))
        .expect("ports");
    assert_ne!(other.http, http, "it is in use");
    drop(listener);
    let same = Ports::new(None).of_node(Some(wanted)).expect("ports");
    assert_eq!(same.http, http);
}

#[test]
fn devnets_that_start_at_once_choose_different_ports() {
    let choose = || {
        let mut ports = Ports::new(None);
        let nodes: Vec<_> = (0..10)
            .map(|_| ports.of_node(None).expect("ports"))
            .collect();
        (nodes, ports.release())
    };
    // The ports of each are free again when the next one chooses; only the claims are held.
    let networks: Vec<_> = (0..40).map(|_| choose()).collect();
    let all = networks.iter().flat_map(|(nodes, _)| nodes);
    let ports: Vec<_> = all
        .flat_map(|node| {
            [
                node.http,
                node.ws,
                node.rpc,
                node.p2p,
                node.metrics,
                node.beacon,
            ]
        })
        .collect();
    let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
    assert_eq!(distinct.len(), ports.len());
}

#[test]
fn the_sequencers_key_is_the_one_that_the_l1_names() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path();
    let [known, unknown] = [accounts::all()[5].clone(), accounts::all()[6].clone()];
    assert_eq!(
        sequencer_key(path, None, Some(known.address)).expect("a key"),
        known.address
    );
    assert_eq!(
        fs::read_to_string(path.join("sequencer.key"))
            .expect("a file")
            .trim(),
        &known.private_key[2..]
    );
    let file = path.join("given");
    fs::write(&file, format!("{}\n", unknown.private_key)).expect("written");
    assert_eq!(
        sequencer_key(path, Some(&file), None).expect("a key"),
        unknown.address
    );
    assert_eq!(
        sequencer_key(path, Some(&file), Some(unknown.address)).expect("a key"),
        unknown.address
    );
    let refusal = |file, signer| {
        sequencer_key(path, file, Some(signer))
            .expect_err("a refusal")
            .to_string()
    };
    assert!(refusal(Some(&file), known.address).contains("the L1's SystemConfig names"));
    assert!(refusal(None, Address::repeat_byte(1)).contains("give --p2p.sequencer.key.path"));
    fs::write(&file, "no key").expect("written");
    assert!(refusal(Some(&file), known.address).contains("holds no key"));
    fs::remove_file(path.join("sequencer.key")).expect("removed");
    assert!(refusal(Some(&path.join("none")), known.address).contains("cannot be used"));
    assert!(
        !path.join("sequencer.key").exists(),
        "a refusal writes nothing"
    );
}

#[test]
fn a_directory_has_one_network_at_a_time_and_a_foreign_one_no_lock() {
    let parent = tempfile::tempdir().expect("a directory");
    let named = config(Some(&parent.path().join("net")), 0);
    let first = open(&named).expect("a network");
    let error = open(&named).expect_err("it runs already");
    assert!(
        error.to_string().contains(&format!(
            "already, as process {}: stop it first",
            std::process::id()
        )),
        "{error}"
    );
    first.close();
    open(&named).expect("it goes on").close();

    fs::write(parent.path().join("notes"), "mine").expect("a file");
    assert!(matches!(
        open(&config(Some(parent.path()), 0)),
        Err(DirectoryError::Foreign(_))
    ));
    assert!(!parent.path().join(Lock::NAME).exists());
}

#[test]
fn batcher_and_proposer_read_the_sequencer_and_have_their_keys_in_files() {
    let whole = DevnetConfig {
        batcher: true,
        proposer: true,
        ..config(None, 1)
    };
    let directory = open(&whole).expect("a network");
    let nodes = directory.nodes();
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    let expected = ["l1", "sequencer", "replica-1", "batcher", "proposer"];
    assert_eq!(names, expected);
    let accounts = [accounts::batcher(), accounts::proposer()];
    for (node, address) in nodes[3..].iter().zip(accounts) {
        let parsed = parse(node.command.clone(), &|_| None).expect("a command line");
        assert_eq!(parsed.notices, Vec::<String>::new(), "{}", node.name);
        match (node.role, parsed.invocation) {
            (NodeRole::Batcher, Invocation::Batcher(_))
            | (NodeRole::Proposer, Invocation::Proposer(_)) => {}
            (role, other) => panic!("{role}: {other:?}"),
        }
        let has = |word: String| assert!(node.command.contains(&word), "{}: {word}", node.name);
        has(format!("--l1-eth-rpc={}", nodes[0].http));
        let rollup = nodes[1].rpc.as_deref().expect("an RPC");
        has(format!("--rollup-rpc={rollup}"));
        let file = directory.path.join(format!("{}.key", node.name));
        has(format!("--private-key.path={}", file.display()));
        let key = fs::read_to_string(&file).expect("a key");
        assert_eq!(accounts::address_of(&key), Some(address));
        let mode = fs::metadata(&file).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(node.init.is_empty() && !node.has_chain());
    }
    let miner = nodes.iter().map(|node| {
        let words = node.command.iter();
        words.filter(|word| word.ends_with(",miner")).count()
    });
    assert_eq!(miner.collect::<Vec<_>>(), [0, 2, 0, 0, 0]);
    let running = nodes.iter().map(|node| (node, 1));
    directory.write_description(running).expect("a description");
    let text = fs::read_to_string(directory.description()).expect("a file");
    let description: Value = serde_json::from_str(&text).expect("JSON");
    let oracle = serde_json::json!(genesis::OUTPUT_ORACLE);
    assert_eq!(description["contracts"]["output_oracle"], oracle);
    assert!(description["contracts"]["dispute_game_factory"].is_null());
    let entries = description["nodes"].as_array().expect("a list");
    assert_eq!(entries[3]["role"], "batcher");
    assert_eq!(entries[4]["role"], "proposer");
    assert!(entries[4]["http"].is_null() && entries[4]["rpc"].is_string());
    assert!(entries[0]["beacon"].is_string());
}
