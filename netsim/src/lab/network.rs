//! The processes and links of a run. `starling devnet` creates genesis files, keys, ports and
//! command lines; it runs for a moment and its chains are thrown away. The lab then starts every
//! node itself, with the addresses of links in place of the other nodes' addresses.

use super::{
    error::LabError,
    links::{LabBackend, LabLinks},
    plan::LinkChange,
    process::LabProcess,
    rpc,
    scenario::LabScenario,
    topology::{LabRole, LabTopology, TopologyLink},
};
use crate::{
    FaultyLink, LinkEnd,
    packet::{PacketHostPlan, PacketLinkPlan, PacketNetwork, PacketNetworkError, PacketRefusal},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use serde::Deserialize;
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// Timeout of the creation of a network, and of a node's first response. Fifty processes start at
/// once.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Pause between requests to a node that does not respond yet.
const RETRY: Duration = Duration::from_millis(50);
/// Folder of the network in the run's folder.
const NET: &str = "net";

/// The description that `starling devnet` writes.
#[derive(Deserialize)]
struct LabDescription {
    chain_ids: LabChainIds,
    nodes: Vec<Described>,
    accounts: Vec<DescribedAccount>,
}

#[derive(Deserialize)]
struct LabChainIds {
    l2: u64,
}

#[derive(Deserialize)]
struct DescribedAccount {
    private_key: String,
}

#[derive(Deserialize)]
struct Described {
    name: String,
    role: LabRole,
    pid: i32,
    command: Vec<String>,
    #[serde(default)]
    http: String,
    rpc: Option<String>,
    p2p: Option<String>,
    beacon: Option<String>,
}

/// A node with its process and its addresses.
pub struct LabNode {
    pub role: LabRole,
    pub process: LabProcess,
    /// Address of the execution RPC; `None` for batcher and proposer.
    pub http: Option<SocketAddr>,
    /// Address of the rollup node's RPC.
    rpc: Option<SocketAddr>,
    beacon: Option<SocketAddr>,
    /// Address of the swarm.
    swarm: Option<SocketAddr>,
    /// The peer id, as logs have it; empty for a node without a swarm.
    pub peer: String,
}

pub struct LabNetwork {
    pub nodes: Vec<LabNode>,
    pub links: LabLinks,
    /// Backend of the links for the report, with the reason if another one was wanted.
    pub backend: String,
    pub topology: LabTopology,
    /// Keys of accounts with funds on L2.
    pub keys: Vec<String>,
    pub chain: u64,
}

impl LabNetwork {
    /// Creates a network in `folder`. No process runs afterwards.
    pub async fn create(
        folder: &Path,
        program: &Path,
        scenario: &LabScenario,
        topology: LabTopology,
        seed: u64,
    ) -> Result<Self, LabError> {
        let description = describe(folder, program, scenario).await?;
        let mut nodes = Vec::new();
        let mut described = description.nodes;
        for planned in &topology.nodes {
            // Roles are in the order of the topology, and replicas are interchangeable.
            let found = described.iter().position(|node| node.role == planned.role);
            let found = found.ok_or_else(|| LabError::Description {
                path: folder.join(NET),
                reason: format!("it has no node for {}", planned.name),
            })?;
            let found = described.remove(found);
            nodes.push(LabNode::new(&planned.name, found, folder, program));
        }
        let accounts = description.accounts.into_iter();
        let mut network = Self {
            nodes,
            links: LabLinks::Stream(Vec::new()),
            backend: LabBackend::Stream.to_string(),
            topology,
            keys: accounts.map(|account| account.private_key).collect(),
            chain: description.chain_ids.l2,
        };
        let packet = match scenario.backend {
            LabBackend::Stream => None,
            LabBackend::Packet => network.hosts(seed)?,
        };
        match packet {
            Some(hosts) => network.join_hosts(hosts).await?,
            None => network.connect(seed).await?,
        }
        Ok(network)
    }

    /// Opens all links, and writes their addresses into the command lines.
    async fn connect(&mut self, seed: u64) -> Result<(), LabError> {
        let mut dice = StdRng::seed_from_u64(seed);
        let mut links = Vec::new();
        for planned in &self.topology.links {
            let link = FaultyLink::new(dice.next_u64(), planned.conditions)?;
            for (from, to, end) in [
                (planned.near, planned.far, LinkEnd::Far),
                (planned.far, planned.near, LinkEnd::Near),
            ] {
                for target in self.nodes[to].services(self.nodes[from].role) {
                    let relay = link.tcp(end, target).await;
                    let relay = relay.map_err(LabError::io(&self.nodes[to].process.log))?;
                    self.nodes[from].redirect(target, relay);
                }
            }
            links.push(link);
        }
        self.links = LabLinks::Stream(links);
        Ok(())
    }

    /// Makes a host for each node and all links between them; `None` where this machine refuses
    /// that, which the report then says.
    fn hosts(&mut self, seed: u64) -> Result<Option<PacketNetwork>, LabError> {
        let hosts = vec![PacketHostPlan::default(); self.nodes.len()];
        let link = |link: &TopologyLink| PacketLinkPlan {
            near: link.near,
            far: link.far,
            conditions: link.conditions,
        };
        let links: Vec<PacketLinkPlan> = self.topology.links.iter().map(link).collect();
        match PacketNetwork::new(seed, &hosts, &links) {
            Ok(network) => {
                self.backend = LabBackend::Packet.to_string();
                Ok(Some(network))
            }
            Err(PacketNetworkError::Refused(reason)) => {
                self.backend = fallback(&reason);
                println!("  links: {}", self.backend);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Puts each node on its host, and writes the hosts' addresses into the command lines.
    async fn join_hosts(&mut self, hosts: PacketNetwork) -> Result<(), LabError> {
        for planned in &self.topology.links {
            for (from, to) in [(planned.near, planned.far), (planned.far, planned.near)] {
                for target in self.nodes[to].services(self.nodes[from].role) {
                    let address = SocketAddr::from((hosts.hosts[to].address, target.port()));
                    self.nodes[from].redirect(target, address);
                }
            }
        }
        for (index, node) in self.nodes.iter_mut().enumerate() {
            node.listen_everywhere();
            node.process.host = Some(hosts.hosts[index].clone());
            if let Some(http) = node.http {
                let door = hosts.door(index, http.port()).await;
                node.http = Some(door.map_err(LabError::io(&node.process.log))?);
            }
        }
        self.links = LabLinks::Packet(hosts);
        Ok(())
    }

    /// Changes one link.
    pub fn change(&self, link: usize, change: LinkChange) -> Result<(), LabError> {
        let first = self.topology.links[link].conditions;
        self.links.update(link, |now| change.apply(first, now))?;
        Ok(())
    }

    /// Waits until a node responds.
    pub async fn responds(&mut self, node: usize) -> Result<(), LabError> {
        let begun = Instant::now();
        let node = &mut self.nodes[node];
        loop {
            node.process.check()?;
            let Some(http) = node.http else {
                return Ok(());
            };
            if rpc::block(http, None).await.is_some() {
                return Ok(());
            }
            if begun.elapsed() > START_LIMIT {
                return Err(LabError::Silent {
                    name: node.process.name.clone(),
                    limit: START_LIMIT,
                    tail: node.process.tail(),
                });
            }
            sleep(RETRY).await;
        }
    }
}

impl LabNode {
    fn new(name: &str, described: Described, folder: &Path, program: &Path) -> Self {
        let args = described.command.into_iter().skip(1).collect();
        let log = folder.join(format!("{name}.log"));
        let mut process = LabProcess::new(name, program, args, log, folder);
        let net = folder.join(NET);
        if described.role.has_chain() {
            let datadir = net.join(&described.name);
            let genesis = if described.role == LabRole::L1 {
                "l1-genesis.json"
            } else {
                "l2-genesis.json"
            };
            process.init = vec![
                "init".to_owned(),
                format!("--datadir={}", datadir.display()),
                net.join(genesis).display().to_string(),
            ];
            process.datadir = Some(datadir);
        }
        let multiaddr = described.p2p.unwrap_or_default();
        let words: Vec<&str> = multiaddr.split('/').collect();
        let port = words.get(4).and_then(|port| port.parse::<u16>().ok());
        Self {
            role: described.role,
            process,
            http: address(&described.http),
            rpc: described.rpc.as_deref().and_then(address),
            beacon: described.beacon.as_deref().and_then(address),
            swarm: port.map(|port| (Ipv4Addr::LOCALHOST, port).into()),
            peer: words.last().copied().unwrap_or_default().to_owned(),
        }
    }

    /// Addresses of this node that a node of another role uses.
    fn services(&self, user: LabRole) -> Vec<SocketAddr> {
        let (http, rpc) = (self.http, self.rpc);
        let services = match (user, self.role) {
            (LabRole::L1, _) => [None, None, None],
            (_, LabRole::L1) => [http, self.beacon, None],
            (LabRole::Batcher | LabRole::Proposer, LabRole::Sequencer) => [http, rpc, None],
            (_, LabRole::Sequencer) if user.is_l2() => [http, self.swarm, None],
            _ if user.is_l2() && self.role.is_l2() => [self.swarm, None, None],
            _ => [None, None, None],
        };
        services.into_iter().flatten().collect()
    }

    /// Makes the node listen on all its interfaces: other hosts use that of its host, and the
    /// controller uses loopback.
    fn listen_everywhere(&mut self) {
        for argument in &mut self.process.args {
            if let Some(option) = argument.strip_suffix("=127.0.0.1") {
                *argument = format!("{option}=0.0.0.0");
            }
        }
        if self.beacon.is_some() {
            let option = "--dev.beacon.addr=0.0.0.0";
            self.process.args.push(option.to_owned());
        }
    }

    /// Replaces another node's address by that of a link, in URLs and multiaddrs.
    fn redirect(&mut self, target: SocketAddr, relay: SocketAddr) {
        for argument in &mut self.process.args {
            for (from, to) in [
                (format!("://{target}"), format!("://{relay}")),
                (
                    format!("/ip4/{}/tcp/{}/", target.ip(), target.port()),
                    format!("/ip4/{}/tcp/{}/", relay.ip(), relay.port()),
                ),
            ] {
                if argument.contains(&from) {
                    *argument = argument.replace(&from, &to);
                }
            }
        }
    }
}

/// The backend of a run for which the packet backend was refused.
fn fallback(reason: &PacketRefusal) -> String {
    format!("{} (packet was refused: {reason})", LabBackend::Stream)
}

/// The address in a URL such as `http://127.0.0.1:8545`.
fn address(url: &str) -> Option<SocketAddr> {
    let rest = url.split_once("://")?.1;
    rest.trim_end_matches('/').parse().ok()
}

/// Runs `starling devnet` until it has described its network, then ends it and removes its chains.
async fn describe(
    folder: &Path,
    program: &Path,
    scenario: &LabScenario,
) -> Result<LabDescription, LabError> {
    let net = folder.join(NET);
    let args = vec![
        "devnet".to_owned(),
        format!("--datadir={}", net.display()),
        format!("--replicas={}", scenario.replicas.len()),
        format!("--batcher={}", scenario.batcher),
        format!("--proposer={}", scenario.proposer),
        format!("--l2.block-time={}", scenario.block_time),
        format!("--l1.block-time={}", scenario.l1_block_time),
    ];
    let log = folder.join("devnet.log");
    let mut process = LabProcess::new("starling devnet", program, args, log, folder);
    process.start()?;
    let file = net.join("devnet.json");
    let begun = Instant::now();
    let text = loop {
        process.check()?;
        // The file is written whole, by a rename.
        if let Ok(text) = fs::read_to_string(&file) {
            break text;
        }
        if begun.elapsed() > START_LIMIT {
            return Err(LabError::Silent {
                name: process.name.clone(),
                limit: START_LIMIT,
                tail: process.tail(),
            });
        }
        sleep(RETRY).await;
    };
    let description: LabDescription =
        serde_json::from_str(&text).map_err(|error| LabError::Description {
            path: file,
            reason: error.to_string(),
        })?;
    // The nodes would take seconds to store what is removed in a moment.
    for node in &description.nodes {
        let _ = kill(Pid::from_raw(node.pid), Signal::SIGKILL);
    }
    process.stop().await;
    for node in &description.nodes {
        let datadir = net.join(&node.name);
        if datadir.exists() {
            fs::remove_dir_all(&datadir).map_err(LabError::io(&datadir))?;
        }
    }
    Ok(description)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_backend_is_named_with_its_reason() {
        let error = std::io::ErrorKind::NotFound.into();
        let text = fallback(&PacketRefusal::Device { error });
        let expected = "stream (packet was refused: /dev/net/tun cannot be opened (entity not \
                        found): load the module tun)";
        assert_eq!(text, expected);
    }
}
