//! Options of the swarm (`--p2p.*`).

use super::*;
use crate::networks::RollupSource;
use starling_p2p::{DiscoveryConfig, PeerLimits, Policy, Scoring};
use std::path::Path;

/// Swarm configuration of a node with these options, and the notices.
fn p2p(line: &str) -> Result<(P2pConfig, Vec<String>), CliError> {
    node(line, &[]).map(|(config, notices)| (config.p2p.expect("the swarm is on"), notices))
}

#[test]
fn options_of_peers_reach_the_swarm() -> Result<(), CliError> {
    let (config, notices) = p2p("")?;
    assert_eq!(notices, Vec::<String>::new());
    assert_eq!(
        (config.peer_limits, config.policy),
        (PeerLimits::default(), Policy::default())
    );
    assert!(config.restrict.is_empty() && !config.only_request_static);
    assert!(config.peerstore.is_some_and(
        |path| path.ends_with("opnode_peerstore_db") && path.parent() != Some(Path::new(""))
    ));

    let line = "--p2p.scoring=none --p2p.ban.peers=false --p2p.ban.threshold=-20.5 --p2p.ban.duration=90s --p2p.peers.lo=3 \
        --p2p.peers.hi=4 --p2p.peers.grace=5s --p2p.netrestrict=10.0.0.0/8,fd00::/8 --p2p.peerstore.path=here --p2p.sync.onlyreqtostatic";
    let (config, notices) = p2p(line)?;
    assert_eq!(notices, Vec::<String>::new());
    let duration = Duration::from_secs(90);
    assert_eq!(
        config.policy,
        Policy {
            scoring: Scoring::None,
            ban: false,
            threshold: -20.5,
            duration
        }
    );
    assert_eq!(
        config.peer_limits,
        PeerLimits {
            lo: 3,
            hi: 4,
            grace: Duration::from_secs(5)
        }
    );
    assert_eq!(
        config
            .restrict
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["10.0.0.0/8", "fd00::/8"]
    );
    assert_eq!(config.peerstore.as_deref(), Some(Path::new("here")));
    assert!(config.only_request_static);
    assert!(p2p("--p2p.peerstore.path=memory")?.0.peerstore.is_none());
    for line in [
        "--p2p.peers.lo=0",
        "--p2p.peers.lo=31",
        "--p2p.netrestrict=10.0.0.1",
        "--p2p.scoring=heavy",
        "--p2p.ban.threshold=x",
    ] {
        assert!(p2p(line).is_err(), "{line}");
    }
    Ok(())
}

/// Discovery ports: the listen port and the two advertised ports.
fn discovery_ports(discovery: &DiscoveryConfig) -> [u16; 3] {
    [
        discovery.listen_udp,
        discovery.advertise_tcp,
        discovery.advertise_udp,
    ]
}

#[test]
fn discovery_is_on_without_options() -> Result<(), CliError> {
    let (config, notices) = p2p("")?;
    assert_eq!(notices, Vec::<String>::new());
    let discovery = config.discovery.expect("discovery is on");
    assert!(!config.nat && config.bootnodes.is_none() && discovery.advertise_ip.is_none());
    assert_eq!(discovery_ports(&discovery), [0, 0, 0]);
    assert!(discovery.store.is_some_and(
        |path| path.ends_with("opnode_discovery_db") && path.parent() != Some(Path::new(""))
    ));
    Ok(())
}

#[test]
fn options_of_discovery_reach_the_swarm() -> Result<(), CliError> {
    const ENODE: &str = "enode://2d4e7e9d48f4dd4efe9342706dd1b0024681bd4c3300d021f86fc75eab7865d4e0cbec6fbc883f011cfd6a57423e7e2f6e\
        104baad2b744c3cafaec6bc7dc92c1@boot.example.org:0?discport=30305";
    let line = format!(
        "--p2p.nat --p2p.listen.udp=9 --p2p.advertise.ip=node.example.org --p2p.advertise.tcp=7 --p2p.advertise.udp=8 \
         --p2p.bootnodes={ENODE}, --p2p.discovery.path=here"
    );
    let (config, notices) = p2p(&line)?;
    assert_eq!(notices, Vec::<String>::new());
    let discovery = config.discovery.expect("discovery is on");
    assert!(config.nat);
    assert_eq!(discovery_ports(&discovery), [9, 7, 8]);
    assert_eq!(discovery.advertise_ip.as_deref(), Some("node.example.org"));
    assert_eq!(
        config
            .bootnodes
            .unwrap_or_default()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        [ENODE]
    );
    assert_eq!(discovery.store.as_deref(), Some(Path::new("here")));
    Ok(())
}

#[test]
fn parts_of_discovery_can_be_turned_off() -> Result<(), CliError> {
    assert!(p2p("--p2p.no-discovery")?.0.discovery.is_none());
    assert!(
        p2p("--p2p.discovery.path=memory")?
            .0
            .discovery
            .is_some_and(|discovery| discovery.store.is_none())
    );
    let none = p2p("--p2p.bootnodes=,")?.0;
    assert!(none.discovery.is_some(), "discovery is on");
    assert_eq!(
        none.bootnodes,
        Some(Vec::new()),
        "a list of nothing is none at all"
    );
    Ok(())
}

#[test]
fn invalid_options_of_discovery_are_refused() {
    for line in [
        "--p2p.bootnodes=127.0.0.1:30303",
        "--p2p.bootnodes=enr:x",
        "--p2p.advertise.ip=a/b",
        "--p2p.listen.udp=70000",
    ] {
        assert!(p2p(line).is_err(), "{line}");
    }
}

/// Swarm configuration of an execution core with these options, and the notices.
fn following(
    line: &str,
    environment: &[(&str, &str)],
) -> Result<(Option<FollowingConfig>, Vec<String>), CliError> {
    let parsed = parse_with(&format!("starling execution {line}"), environment)?;
    match parsed.invocation {
        Invocation::Execution(config) => Ok((config.following, parsed.notices)),
        other => panic!("{other:?}"),
    }
}

const PEER: &str = "/ip4/127.0.0.1/tcp/9/p2p/16Uiu2HAm4wN4epAyuj82ix2QC1Uc2vQd833szwvsNpLqhubPz8xa";

#[test]
fn an_execution_core_joins_no_swarm_unless_it_is_told_to() -> Result<(), CliError> {
    // A rollup node's environment variables have no effect on an execution core.
    let of_a_rollup_node = [
        ("OP_NODE_P2P_STATIC", PEER),
        ("OP_NODE_P2P_LISTEN_TCP_PORT", "7"),
    ];
    for (line, environment) in [
        ("", &of_a_rollup_node[..]),
        ("--rollup.config=r.json", &of_a_rollup_node),
        ("--p2p.disable=true", &[]),
    ] {
        let (following, notices) = following(line, environment)?;
        assert!(
            following.is_none() && notices.is_empty(),
            "{line}: {notices:?}"
        );
    }
    Ok(())
}

#[test]
fn an_execution_core_joins_the_swarm_of_its_options() -> Result<(), CliError> {
    let signer = "--p2p.unsafe.block.signer=0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
    let line = format!("--rollup.config=r.json --p2p.static={PEER} {signer} --p2p.listen.tcp=5");
    let (joined, notices) = following(&line, &[])?;
    let joined = joined.expect("a swarm");
    assert_eq!(
        (joined.p2p.static_peers, joined.p2p.listen_tcp),
        (vec![PEER.to_owned()], 5)
    );
    assert_eq!(
        joined.signer.map(|signer| signer.to_string()).as_deref(),
        Some("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266")
    );
    assert_eq!(
        (joined.rollup, notices),
        (RollupSource::File("r.json".into()), vec![])
    );
    let (joined, notices) = following("--rollup.config=r.json --p2p.no-discovery", &[])?;
    assert!(joined.is_some_and(|joined| joined.signer.is_none()));
    assert!(
        notices.len() == 1 && notices[0].contains("--p2p.unsafe.block.signer"),
        "{notices:?}"
    );
    Ok(())
}

#[test]
fn invalid_options_of_the_swarm_of_an_execution_core_are_refused() {
    let enode = format!("--p2p.static=enode://{}@10.0.0.1:30303", "ab".repeat(64));
    for (line, reason) in [
        (format!("--p2p.static={PEER}"), "--rollup.config is missing"),
        (
            "--rollup.config=r.json --p2p.unsafe.block.signer=0x12".into(),
            "20 bytes",
        ),
        (
            format!("--rollup.config=r.json {enode}"),
            "give the peer as a multiaddr",
        ),
    ] {
        let error = following(&line, &[]).expect_err(&line).to_string();
        assert!(error.contains(reason) && !error.contains('\n'), "{error}");
    }
    assert!(node(&enode, &[]).is_err());
}
