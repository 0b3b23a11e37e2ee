//! Every `--p2p.*` option has an effect on the swarm. A table names the test that shows each
//! effect. The tests here check that the command line reaches the swarm's config, and effects that
//! only a whole process can show.

use crate::net::{Devnet, Node, Running, head, wait};
use alloy_primitives::B256;
use starling::{
    cli::{
        self, Invocation,
        config::NodeConfig,
        flags::{self, Effect, Role},
    },
    node::swarm_config,
};
use starling_p2p::{Blocks, Network, Service};
use starling_proto::{config::RollupConfig, payload::Payload};
use std::{collections::BTreeSet, fs, path::Path, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(120);
const KEY: &str = "59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d";
const PEER: &str = "/ip4/127.0.0.1/tcp/9/p2p/16Uiu2HAm4wN4epAyuj82ix2QC1Uc2vQd833szwvsNpLqhubPz8xa";
const ENODE: &str = "enode://2d4e7e9d48f4dd4efe9342706dd1b0024681bd4c3300d021f86fc75eab7865d4e0cbec6fbc883f011cfd6a57423e7e2f6e\
    104baad2b744c3cafaec6bc7dc92c1@127.0.0.1:30305";

/// An option, a value other than its default, and the test that shows the effect of the option on
/// the swarm.
const OPTIONS: &[(&str, &str, &str)] = &[
    (
        "p2p.advertise.ip",
        "203.0.113.5",
        "p2p/tests/it/discovery.rs: ports_and_addresses_are_advertised_as_told",
    ),
    (
        "p2p.advertise.tcp",
        "7",
        "p2p/tests/it/discovery.rs: ports_and_addresses_are_advertised_as_told",
    ),
    (
        "p2p.advertise.udp",
        "8",
        "p2p/tests/it/discovery.rs: ports_and_addresses_are_advertised_as_told",
    ),
    (
        "p2p.ban.duration",
        "90s",
        "p2p/tests/it/standing.rs: garbage_is_a_ban_with_evidence_that_ends",
    ),
    (
        "p2p.ban.peers",
        "false",
        "p2p/tests/it/standing.rs: options_of_scoring_and_banning_change_who_is_banned",
    ),
    (
        "p2p.ban.threshold",
        "-20",
        "p2p/tests/it/standing.rs: options_of_scoring_and_banning_change_who_is_banned",
    ),
    (
        "p2p.bootnodes",
        ENODE,
        "p2p/tests/it/discovery.rs: two_nodes_find_each_other_through_a_third",
    ),
    (
        "p2p.disable",
        "true",
        "tests/it/p2p_options.rs: a_disabled_swarm_opens_no_socket_and_the_signer_is_the_key_given",
    ),
    (
        "p2p.discovery.path",
        "found",
        "p2p/tests/it/discovery.rs: what_was_found_is_found_again_after_a_restart_without_bootnodes",
    ),
    (
        "p2p.gossip.timestamp.threshold",
        "1s",
        "p2p/tests/it/gossip.rs: the_oldest_block_that_passes_is_as_old_as_told",
    ),
    (
        "p2p.listen.ip",
        "127.0.0.2",
        "p2p/tests/it/peers.rs: the_swarm_listens_where_it_is_told_and_nowhere_else",
    ),
    (
        "p2p.listen.quic",
        "9",
        "p2p/tests/it/quic.rs: blocks_pass_and_gaps_are_filled_over_quic",
    ),
    (
        "p2p.listen.tcp",
        "9",
        "p2p/tests/it/peers.rs: the_swarm_listens_where_it_is_told_and_nowhere_else",
    ),
    (
        "p2p.listen.udp",
        "9",
        "p2p/tests/it/discovery.rs: ports_and_addresses_are_advertised_as_told",
    ),
    (
        "p2p.nat",
        "true",
        "p2p/tests/it/nat.rs: ports_are_opened_by_pmp_renewed_and_closed",
    ),
    (
        "p2p.netrestrict",
        "10.0.0.0/8",
        "p2p/tests/it/gate.rs: netrestrict_holds_for_both_directions_and_for_names",
    ),
    (
        "p2p.no-discovery",
        "true",
        "p2p/tests/it/discovery.rs: without_discovery_there_is_no_udp_socket",
    ),
    (
        "p2p.peers.grace",
        "5s",
        "p2p/tests/it/gate.rs: above_the_high_mark_peers_are_trimmed_to_the_low_and_static_ones_stay",
    ),
    (
        "p2p.peers.hi",
        "25",
        "p2p/tests/it/gate.rs: above_the_high_mark_peers_are_trimmed_to_the_low_and_static_ones_stay",
    ),
    (
        "p2p.peers.lo",
        "3",
        "p2p/tests/it/discovery.rs: enough_peers_are_enough",
    ),
    (
        "p2p.peerstore.path",
        "kept",
        "p2p/tests/it/standing.rs: bans_and_blocks_survive_a_restart",
    ),
    (
        "p2p.priv.path",
        "other-key",
        "tests/it/p2p_options.rs: a_node_is_who_its_key_file_says",
    ),
    (
        "p2p.scoring",
        "none",
        "p2p/tests/it/standing.rs: options_of_scoring_and_banning_change_who_is_banned",
    ),
    (
        "p2p.sequencer.key",
        KEY,
        "tests/it/p2p_options.rs: a_disabled_swarm_opens_no_socket_and_the_signer_is_the_key_given",
    ),
    (
        "p2p.sequencer.key.path",
        "key",
        "tests/it/foreign_peer.rs: js_libp2p_hears_passes_on_asks_and_serves",
    ),
    (
        "p2p.static",
        PEER,
        "p2p/tests/it/peers.rs: a_static_peer_is_found_again_after_its_restart",
    ),
    (
        "p2p.sync.onlyreqtostatic",
        "true",
        "p2p/tests/it/gate.rs: only_static_peers_are_asked_if_that_is_wanted",
    ),
    (
        "p2p.sync.req-resp",
        "false",
        "p2p/tests/it/gossip.rs: without_requests_a_gap_stays_and_blocks_in_order_pass",
    ),
];

/// Options outside of the swarm's config: whether a swarm is started, and the signing key of its
/// blocks.
const BESIDE: [&str; 3] = ["p2p.disable", "p2p.sequencer.key", "p2p.sequencer.key.path"];

#[test]
fn every_option_has_a_test() {
    let shown = flags::of_role(Role::Node).into_iter().map(|flag| flag.flag);
    let known: BTreeSet<&str> = shown
        .filter(|flag| {
            flag.name.starts_with("p2p.") && flag.effect == Effect::Works && !flag.hidden
        })
        .map(|flag| flag.name)
        .collect();
    assert_eq!(
        OPTIONS
            .iter()
            .map(|(name, ..)| *name)
            .collect::<BTreeSet<_>>(),
        known
    );
    for (option, _, test) in OPTIONS {
        let (file, name) = test.split_once(": ").expect("file and name");
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))
            .expect("a file of tests");
        let (before, _) = text
            .split_once(&format!("fn {name}()"))
            .unwrap_or_else(|| panic!("--{option}: no {name} in {file}"));
        let attribute = before
            .lines()
            .rev()
            .find(|line| line.starts_with("#["))
            .expect("an attribute");
        assert!(
            attribute.contains("test") && !attribute.contains("ignore"),
            "--{option}: {attribute} {name}"
        );
    }
}

fn node(options: &[&str]) -> NodeConfig {
    let line = ["starling", "node", "--rollup.config=r"]
        .iter()
        .chain(options)
        .map(|word| word.to_string());
    match cli::parse(line, &|_| None)
        .expect("a command line")
        .invocation
    {
        Invocation::Node(config) => *config,
        other => panic!("{other:?}"),
    }
}

/// The swarm's config that results from this command line; `None` if no swarm is started.
fn told(options: &[&str]) -> Option<starling_p2p::Config> {
    let config = node(options).p2p?;
    Some(
        swarm_config(
            &RollupConfig {
                l2_chain_id: 901,
                ..Default::default()
            },
            &config,
        )
        .expect("a configuration"),
    )
}

#[test]
fn every_option_of_the_command_line_reaches_the_swarm() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = format!("--p2p.priv.path={}", folder.path().join("key").display());
    let text = |options: &[&str]| {
        told(options).map(|config| format!("{config:?}{}", config.identity.public().to_peer_id()))
    };
    let default = text(&[&key]).expect("a swarm");
    assert_eq!(
        text(&[&key]).as_ref(),
        Some(&default),
        "the same for the same"
    );
    for (option, value, _) in OPTIONS.iter().filter(|(name, ..)| !BESIDE.contains(name)) {
        let given = match *option {
            "p2p.priv.path" => vec![format!(
                "--{option}={}",
                folder.path().join(value).display()
            )],
            _ => vec![key.clone(), format!("--{option}={value}")],
        };
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        assert_ne!(
            text(&given).expect("a swarm"),
            default,
            "--{option}={value}"
        );
    }
    assert!(told(&["--p2p.disable=true"]).is_none());
    assert!(told(&[&key, "--p2p.disable=false"]).is_some());
}

/// A stand-in for a chain without blocks.
struct Nothing;

impl Blocks for Nothing {
    fn knows(&self, _: B256) -> bool {
        false
    }

    fn block(&self, _: u64) -> Option<Payload> {
        None
    }
}

async fn swarm(key: &Path, others: &[&Network]) -> (Network, CancellationToken) {
    let mut options = vec![
        format!("--p2p.priv.path={}", key.display()),
        "--p2p.listen.ip=127.0.0.1".into(),
        "--p2p.listen.tcp=0".into(),
        "--p2p.no-discovery".into(),
        "--p2p.peerstore.path=memory".into(),
    ];
    for other in others {
        let address = other
            .listen_addrs()
            .wait_for(|all| !all.is_empty())
            .await
            .expect("it listens")[0]
            .clone();
        options.push(format!("--p2p.static={address}"));
    }
    let config = told(&options.iter().map(String::as_str).collect::<Vec<_>>()).expect("a swarm");
    let (service, network, _) = Service::new(config, Arc::new(Nothing)).expect("a swarm");
    let token = CancellationToken::new();
    tokio::spawn(service.run(token.clone()));
    (network, token)
}

#[tokio::test]
async fn a_node_is_who_its_key_file_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let (first, first_token) = swarm(&one, &[]).await;
    let (second, second_token) = swarm(&two, &[&first]).await;
    tokio::time::timeout(PATIENCE, async {
        while first.peer_count() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("they meet");
    assert_eq!(first.peers()[0].id, second.local_peer_id());
    let (again, again_token) = swarm(&one, &[]).await;
    assert_eq!(again.local_peer_id(), first.local_peer_id());
    assert_ne!(second.local_peer_id(), first.local_peer_id());
    [first_token, second_token, again_token]
        .iter()
        .for_each(CancellationToken::cancel);
}

/// The ports on which a process listens, by protocol (TCP, UDP) and IP version.
fn sockets(pid: u32) -> BTreeSet<(&'static str, u16)> {
    let open: BTreeSet<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|link| {
            Some(
                link.to_str()?
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .to_owned(),
            )
        })
        .collect();
    let mut found = BTreeSet::new();
    for (kind, table) in [
        ("tcp", "tcp"),
        ("tcp", "tcp6"),
        ("udp", "udp"),
        ("udp", "udp6"),
    ] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for fields in text
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
        {
            let [_, local, _, state, ..] = fields[..] else {
                continue;
            };
            // State 0A is LISTEN of TCP; 07 is that of a bound UDP socket.
            if fields.get(9).is_some_and(|inode| open.contains(*inode))
                && (state == "0A" || state == "07")
            {
                let port = local
                    .rsplit(':')
                    .next()
                    .and_then(|port| u16::from_str_radix(port, 16).ok());
                found.extend(port.map(|port| (kind, port)));
            }
        }
    }
    found
}

#[test]
fn a_disabled_swarm_opens_no_socket_and_the_signer_is_the_key_given() {
    let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=3", "--replicas=1"]);
    let (sequencer, replica) = (net.sequencer(), net.replicas().remove(0));
    wait("a block", PATIENCE, || {
        head(&replica.http).filter(|number| *number >= 1)
    });
    replica.kill9();
    let log = net.dir.join("restarted.log");
    opens_sockets_for_its_swarm_only(&replica, &log);
    let _running = restart(&replica, &log, &["--p2p.no-discovery=true"]);
    let _sequencing = signs_with_the_key_given(&net, &sequencer, &replica);
}

fn restart(node: &Node, log: &Path, options: &[&str]) -> Running {
    let options: Vec<_> = options.iter().map(|option| option.to_string()).collect();
    node.restart_with(log, &options)
}

/// Checks that a swarm with discovery opens two sockets, and that a disabled swarm opens none.
fn opens_sockets_for_its_swarm_only(replica: &Node, log: &Path) {
    let port: u16 = replica
        .p2p
        .as_deref()
        .and_then(|address| address.split('/').nth(4)?.parse().ok())
        .expect("its port");
    let named = |option: &str| {
        replica
            .command
            .iter()
            .find_map(|given| given.strip_prefix(option)?.parse().ok())
            .expect("a port")
    };
    let servers = BTreeSet::from(
        [
            "--http.port=",
            "--ws.port=",
            "--metrics.port=",
            "--rpc.port=",
        ]
        .map(|option| ("tcp", named(option))),
    );
    let swarm = BTreeSet::from([("tcp", port), ("udp", port)]);

    let discovering = ["--p2p.no-discovery=false", "--p2p.bootnodes=,"];
    let seeking = restart(replica, log, &discovering);
    wait("the swarm's sockets and all others", PATIENCE, || {
        let open = sockets(seeking.child.id());
        (head(&replica.http).is_some() && open.is_superset(&servers) && open.is_superset(&swarm))
            .then_some(())
    });
    drop(seeking);
    let disabled = restart(replica, log, &["--p2p.disable=true", "--p2p.static="]);
    let without = wait("the node without a swarm", PATIENCE, || {
        let open = sockets(disabled.child.id());
        (head(&replica.http).is_some() && open.is_superset(&servers)).then_some(open)
    });
    assert_eq!(without, servers, "only the swarm's are missing");
}

/// Checks that a sequencer signs with the key on its command line: peers accept its blocks, and
/// with another key it does not start. Returns the running sequencer.
fn signs_with_the_key_given(net: &Devnet, sequencer: &Node, replica: &Node) -> Running {
    let key = fs::read_to_string(net.dir.join("sequencer.key")).expect("the key");
    sequencer.kill9();
    let with_key = |key: &str| {
        [
            format!("--p2p.sequencer.key={}", key.trim()),
            "--p2p.sequencer.key.path=".into(),
        ]
    };
    let mut wrong = sequencer.restart_with(&net.dir.join("wrong.log"), &with_key(KEY));
    let status = wait("an end", PATIENCE, || {
        wrong.child.try_wait().expect("a child")
    });
    let said = fs::read_to_string(net.dir.join("wrong.log")).expect("a log");
    assert!(
        !status.success()
            && said.contains("the sequencer signs as")
            && said.contains("--p2p.sequencer.key"),
        "{said}"
    );
    assert!(!said.contains(KEY), "a key is shown nowhere");
    let before = head(&replica.http).expect("the replica answers");
    let running = sequencer.restart_with(&net.dir.join("restarted.log"), &with_key(&key));
    wait("blocks signed with the key given", PATIENCE, || {
        head(&replica.http).filter(|number| *number > before + 2)
    });
    running
}
