//! Replicas beyond the number that `starling devnet` creates. Each is a copy of the last replica of
//! its description, with a key, a data directory and ports of its own.

use super::{Described, STATIC};
use crate::lab::{error::LabError, network_key::NetworkKey, topology::LabRole};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, TcpListener},
    ops::Range,
    path::Path,
};

/// Largest number of replicas that `starling devnet` creates.
pub const DESCRIBED: usize = 50;
/// Ports of copies: below those that the kernel gives to links, which open before the nodes start.
const PORTS: Range<u16> = 15_000..30_000;
/// Options with paths that have the node's name.
const OWN_PATHS: [&str; 2] = ["--datadir=", "--p2p.priv.path="];

/// Adds `count` replicas to the description of a network in the folder `net`. Their network keys are
/// drawn from the seed.
pub fn add(
    nodes: &mut Vec<Described>,
    count: usize,
    net: &Path,
    seed: u64,
) -> Result<(), LabError> {
    let last = nodes.iter().rposition(|node| node.role == LabRole::Replica);
    let Some(last) = last.filter(|_| count > 0) else {
        return Ok(());
    };
    let mut dice = StdRng::seed_from_u64(seed);
    let mut taken = BTreeSet::new();
    for argument in nodes.iter().flat_map(|node| &node.command) {
        taken.extend(port(argument).map(|(_, port)| port));
    }
    for number in 1..=count {
        let name = format!("replica-{}", DESCRIBED + number);
        let key = NetworkKey::draw(&mut dice);
        let mut copy = copy(&nodes[last], &name, &key, net, &mut taken)?;
        copy.know(nodes[last].p2p.as_deref());
        for node in nodes.iter_mut().filter(|node| node.role.is_l2()) {
            node.know(copy.p2p.as_deref());
        }
        nodes.push(copy);
    }
    Ok(())
}

fn copy(
    first: &Described,
    name: &str,
    key: &NetworkKey,
    net: &Path,
    taken: &mut BTreeSet<u16>,
) -> Result<Described, LabError> {
    let mut copy = first.clone();
    copy.name = name.to_owned();
    let mut swarm = 0;
    for argument in &mut copy.command {
        if OWN_PATHS.iter().any(|option| argument.starts_with(option)) {
            *argument = argument.replace(&format!("/{}", first.name), &format!("/{name}"));
        }
        let Some((option, old)) = port(argument) else {
            continue;
        };
        let new = free(taken)?;
        if option.ends_with("tcp") {
            swarm = new;
        }
        for url in [&mut copy.http, &mut copy.ws, &mut copy.metrics]
            .into_iter()
            .chain(copy.rpc.as_mut())
        {
            *url = url.replace(&format!(":{old}"), &format!(":{new}"));
        }
        *argument = format!("{option}={new}");
    }
    let file = net.join(format!("{name}.p2p-key"));
    fs::write(&file, &key.hex).map_err(LabError::io(&file))?;
    let (ip, peer) = (Ipv4Addr::LOCALHOST, key.peer);
    copy.p2p = Some(format!("/ip4/{ip}/tcp/{swarm}/p2p/{peer}"));
    Ok(copy)
}

impl Described {
    /// Adds a static peer.
    fn know(&mut self, multiaddr: Option<&str>) {
        let mut arguments = self.command.iter_mut();
        let list = arguments.find(|argument| argument.starts_with(STATIC));
        if let (Some(list), Some(multiaddr)) = (list, multiaddr) {
            list.push(',');
            list.push_str(multiaddr);
        }
    }
}

/// The name and the value of an option with a port.
fn port(argument: &str) -> Option<(String, u16)> {
    let (option, value) = argument.split_once('=')?;
    let is_port = option.ends_with(".port") || option == "--p2p.listen.tcp";
    let port = value.parse().ok().filter(|_| is_port)?;
    Some((option.to_owned(), port))
}

/// A port that no described node has and that nobody listens on.
fn free(taken: &mut BTreeSet<u16>) -> Result<u16, LabError> {
    let mut error = None;
    for _ in 0..PORTS.len() {
        let port = rand::rng().random_range(PORTS);
        if !taken.insert(port) {
            continue;
        }
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(reason) => error = Some(reason),
        }
    }
    let error = error.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into());
    Err(LabError::io("127.0.0.1")(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_p2p::identity;

    fn node(name: &str, role: LabRole, first: u16, peers: &[u16]) -> Described {
        let peers: Vec<String> = peers.iter().map(|port| multiaddr(*port)).collect();
        let command = [
            "starling".to_owned(),
            format!("--datadir=/net/{name}"),
            format!("--http.port={first}"),
            format!("--p2p.listen.tcp={}", first + 1),
            format!("--p2p.priv.path=/net/{name}.p2p-key"),
            format!("{STATIC}{}", peers.join(",")),
            format!("--metrics.port={}", first + 2),
            format!("--ws.port={}", first + 3),
        ];
        Described {
            name: name.to_owned(),
            role,
            pid: 1,
            command: command.to_vec(),
            http: format!("http://127.0.0.1:{first}"),
            ws: format!("ws://127.0.0.1:{}", first + 3),
            rpc: None,
            p2p: Some(multiaddr(first + 1)),
            beacon: None,
            metrics: format!("http://127.0.0.1:{}/metrics", first + 2),
        }
    }

    fn multiaddr(port: u16) -> String {
        format!("/ip4/127.0.0.1/tcp/{port}/p2p/x")
    }

    #[test]
    fn copies_have_their_own_files_and_ports_and_all_nodes_know_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let mut nodes = vec![
            node("sequencer", LabRole::Sequencer, 16_000, &[17_001]),
            node("replica-1", LabRole::Replica, 17_000, &[16_001]),
        ];
        add(&mut nodes, 2, folder.path(), 1).unwrap();
        let names: Vec<&str> = nodes.iter().map(|it| it.name.as_str()).collect();
        let added = ["replica-51", "replica-52"];
        assert_eq!(names, ["sequencer", "replica-1", added[0], added[1]]);
        let mut ports = BTreeSet::new();
        for node in &nodes {
            for (_, port) in node.command.iter().filter_map(|argument| port(argument)) {
                assert!(ports.insert(port), "{port} twice");
            }
            let list = node.command.iter().find(|it| it.starts_with(STATIC));
            let list = list.unwrap();
            for other in &nodes {
                let knows = list.contains(other.p2p.as_deref().unwrap());
                assert_eq!(knows, other.name != node.name, "{list}");
            }
            let datadir = format!("--datadir=/net/{}", node.name);
            assert!(node.command.contains(&datadir));
            assert!(
                node.http
                    .ends_with(&node.command[2]["--http.port=".len()..])
            );
            let ws = node.command.last().unwrap();
            assert!(node.ws.ends_with(&ws["--ws.port=".len()..]), "{ws}");
        }
        let key = folder.path().join("replica-52.p2p-key");
        let key = identity::from_hex(&fs::read_to_string(key).unwrap()).unwrap();
        let peer = key.public().to_peer_id().to_string();
        assert!(nodes[3].p2p.as_ref().unwrap().ends_with(&peer));
    }
}
