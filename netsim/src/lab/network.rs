//! The processes and links of a run. `starling devnet` creates genesis files, keys, ports and
//! command lines; it runs for a moment and its chains are thrown away. The lab then starts every
//! node itself, with the addresses of links instead of the other nodes' addresses.

mod copies;
mod hosts;

use super::{
    discovery,
    dns::LabDns,
    error::LabError,
    hostile::{self, HostilePlan},
    l1,
    link_threads::LinkThreads,
    links::{LabBackend, LabLinks},
    mounts::LabMounts,
    movable::MovableNode,
    plan::LinkChange,
    process::LabProcess,
    rpc,
    scenario::LabScenario,
    topology::{LabRole, LabTopology, SEQUENCER_INDEX},
};
use crate::{FaultyLink, LinkEnd};
use alloy_primitives::Address;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use serde::Deserialize;
use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// Timeout of the creation of a network, and of a node's first response. Fifty processes start at
/// once.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Number of networks that are described in search of one with ports that are not taken.
const DESCRIPTIONS: usize = 5;
/// Pause between requests to a node that does not respond yet.
const RETRY: Duration = Duration::from_millis(50);
/// Option with the static peers of a node.
pub const STATIC: &str = "--p2p.static=";
/// Options of a sequencer, and of a replica that sends transactions to one.
const SEQUENCING: [&str; 2] = ["--sequencer.", "--p2p.sequencer.key.path="];
const FOLLOWING: [&str; 2] = ["--rollup.sequencerhttp=", "--rollup.enabletxpooladmission"];
/// Folder of the network in the run's folder.
pub const NET: &str = "net";

/// The description that `starling devnet` writes.
#[derive(Deserialize)]
struct LabDescription {
    chain_ids: LabChainIds,
    contracts: LabContracts,
    nodes: Vec<Described>,
    accounts: Vec<DescribedAccount>,
}

impl LabDescription {
    /// All ports on which the nodes listen.
    fn ports(&self) -> BTreeSet<u16> {
        let nodes = self.nodes.iter();
        nodes.flat_map(Described::ports).collect()
    }
}

#[derive(Deserialize)]
struct LabChainIds {
    l1: u64,
    l2: u64,
}

#[derive(Deserialize)]
struct LabContracts {
    system_config: Address,
}

#[derive(Deserialize)]
struct DescribedAccount {
    private_key: String,
}

#[derive(Clone, Deserialize)]
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
    #[serde(default)]
    ws: String,
    #[serde(default)]
    metrics: String,
}

impl Described {
    fn ports(&self) -> impl Iterator<Item = u16> {
        let urls = [Some(&self.http), Some(&self.ws), Some(&self.metrics)];
        let urls = urls
            .into_iter()
            .chain([self.rpc.as_ref(), self.beacon.as_ref()]);
        let urls = urls.flatten();
        let ports = urls.filter_map(|url| Some(address(url.trim_end_matches("/metrics"))?.port()));
        ports.chain(self.p2p.as_deref().and_then(swarm_port))
    }
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
    pub swarm: Option<SocketAddr>,
    /// Address of the metrics server.
    pub metrics: Option<SocketAddr>,
    /// Mount point of a file system of limited size, if the node has one.
    pub disk: Option<PathBuf>,
    /// The peer id, as logs have it; empty for a node without a swarm.
    pub peer: String,
}

pub struct LabNetwork {
    pub nodes: Vec<LabNode>,
    pub links: LabLinks,
    /// Carries all links, also those to another network.
    pub link_threads: LinkThreads,
    /// Backend of the links for the report, with the reason if another one was wanted.
    pub backend: String,
    /// Links to nodes of another network, which are not in the topology.
    pub other_links: Vec<FaultyLink>,
    pub topology: LabTopology,
    /// Keys of accounts with funds on both chains. The first one owns the contracts on L1.
    pub keys: Vec<String>,
    /// Chain id of L2.
    pub chain_id: u64,
    /// Chain id of L1.
    pub l1_chain_id: u64,
    /// Contract on L1 that names the block signer.
    pub system_config: Address,
    /// Folder with the network's files.
    pub net: PathBuf,
    /// Ports on which nodes listen.
    pub ports: BTreeSet<u16>,
    pub movable: Vec<MovableNode>,
    pub names: Option<LabDns>,
    pub namespace: Option<LabMounts>,
}

/// The folder of a network's files.
#[derive(Clone, Copy)]
pub struct LabFolder<'a> {
    /// Folder of the run.
    pub path: &'a Path,
    /// Prefix of the names of nodes and files. Empty for the network of the scenario.
    pub prefix: &'a str,
    /// Ports of nodes of another network that do not run yet.
    pub taken: &'a BTreeSet<u16>,
}

impl LabFolder<'_> {
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{}{name}", self.prefix))
    }
}

impl LabNetwork {
    /// Creates a network. No process runs afterwards. `netsim` is this program, which hostile peers
    /// run.
    pub async fn create(
        folder: LabFolder<'_>,
        program: &Path,
        netsim: &Path,
        scenario: &LabScenario,
        topology: LabTopology,
        seed: u64,
    ) -> Result<Self, LabError> {
        let description = describe_apart(folder, program, scenario, seed).await?;
        let net = folder.file(NET);
        let ports = description.ports();
        let mut nodes = Vec::new();
        let mut described = description.nodes;
        let honest = topology.nodes.iter();
        for planned in honest.filter(|node| node.role != LabRole::Hostile) {
            // Roles are in the order of the topology, and replicas are interchangeable.
            let found = described
                .iter()
                .position(|node| node.role == planned.role.described());
            let found = found.ok_or_else(|| LabError::Description {
                path: net.clone(),
                reason: format!("it has no node for {}", planned.name),
            })?;
            let found = described.remove(found);
            nodes.push(LabNode {
                role: planned.role,
                ..LabNode::new(&planned.name, found, folder, program)
            });
        }
        discovery::connect(&mut nodes);
        for plan in &hostile::peers(&scenario.hostile) {
            let targets = targets(&nodes, plan);
            let hostile = hostile::node(plan, nodes.len(), &targets, netsim, folder, seed)?;
            nodes.push(LabNode::hostile(hostile));
        }
        let accounts = description.accounts.into_iter();
        let mut network = Self {
            nodes,
            links: LabLinks::Stream(Vec::new()),
            link_threads: LinkThreads::start().map_err(LabError::LinkThreads)?,
            backend: LabBackend::Stream.to_string(),
            other_links: Vec::new(),
            topology,
            keys: accounts.map(|account| account.private_key).collect(),
            chain_id: description.chain_ids.l2,
            l1_chain_id: description.chain_ids.l1,
            system_config: description.contracts.system_config,
            net,
            ports,
            movable: Vec::new(),
            names: None,
            namespace: None,
        };
        l1::prepare(&mut network.nodes, scenario);
        network.prepare(folder.path, scenario).await?;
        network.join(scenario.backend, seed).await?;
        Ok(network)
    }

    /// Opens all links on a backend, or on the stream backend where this machine refuses the other.
    async fn join(&mut self, backend: LabBackend, seed: u64) -> Result<(), LabError> {
        let hosts = match backend {
            LabBackend::Stream => None,
            LabBackend::Packet => self.hosts(seed)?,
        };
        match hosts {
            Some(hosts) => self.join_hosts(hosts).await,
            None => self.connect(seed).await,
        }
    }

    /// Opens all links of the stream backend, and writes their addresses into the command lines.
    async fn connect(&mut self, seed: u64) -> Result<(), LabError> {
        let mut dice = StdRng::seed_from_u64(seed);
        let planned = self.topology.links.iter();
        let open = planned.map(|link| FaultyLink::new(dice.next_u64(), link.conditions));
        self.links = {
            let _context = self.link_threads.enter();
            LabLinks::Stream(open.collect::<Result<_, _>>()?)
        };
        for link in 0..self.topology.links.len() {
            let planned = &self.topology.links[link];
            let ends = [
                (planned.near, planned.far, LinkEnd::Far),
                (planned.far, planned.near, LinkEnd::Near),
            ];
            for (from, to, end) in ends {
                for target in self.nodes[to].services(self.nodes[from].role) {
                    self.redirect(link, end, from, target).await?;
                }
            }
        }
        Ok(())
    }

    /// Has the node `from` dial an address of a link instead of `target`, which is at its `end`.
    async fn redirect(
        &mut self,
        link: usize,
        end: LinkEnd,
        from: usize,
        target: SocketAddr,
    ) -> Result<(), LabError> {
        let planned = &self.topology.links[link];
        let to = planned.near + planned.far - from;
        // The description has all nodes on one address.
        let multiaddr = format!("/ip4/{}/tcp/{}/", Ipv4Addr::LOCALHOST, target.port());
        let is_swarm = self.nodes[to].swarm == Some(target);
        if is_swarm && self.must_not_dial(from, to) {
            self.nodes[from].process.remove(STATIC, &multiaddr);
            return Ok(());
        }
        if is_swarm && let Some(by_name) = self.open_movable(link, end, [from, to]).await? {
            self.nodes[from].process.replace(&multiaddr, &by_name);
            return Ok(());
        }
        let relay = self.links.tcp(link, end, target).await;
        let [from_name, to_name] = [from, to].map(|node| &self.nodes[node].process.name);
        let failed = LabError::listen(from_name, to_name, (Ipv4Addr::LOCALHOST, 0));
        let relay = relay.map_err(failed)?;
        let process = &mut self.nodes[from].process;
        process.replace(&format!("://{target}"), &format!("://{relay}"));
        let by_relay = format!("/ip4/{}/tcp/{}/", relay.ip(), relay.port());
        process.replace(&multiaddr, &by_relay);
        Ok(())
    }

    /// Changes one link.
    pub fn change(&self, link: usize, change: LinkChange) -> Result<(), LabError> {
        let first = self.topology.links[link].conditions;
        self.links.update(link, |now| change.apply(first, now))?;
        Ok(())
    }

    /// Makes a replica a sequencer at its next start, with the options of the sequencer.
    pub fn promote(&mut self, node: usize) {
        let is_sequencing = |arg: &&String| SEQUENCING.iter().any(|option| arg.starts_with(option));
        let options = self.nodes[SEQUENCER_INDEX].process.args.iter();
        let options: Vec<String> = options.filter(is_sequencing).cloned().collect();
        let args = &mut self.nodes[node].process.args;
        args.retain(|arg| !FOLLOWING.iter().any(|option| arg.starts_with(option)));
        args.extend(options);
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

#[cfg(test)]
impl LabNetwork {
    /// A network of processes without addresses and links.
    pub fn of_processes(topology: LabTopology, process: impl Fn(&str) -> LabProcess) -> Self {
        let nodes = topology.nodes.iter().map(|node| LabNode {
            role: node.role,
            process: process(&node.name),
            http: None,
            rpc: None,
            beacon: None,
            swarm: None,
            metrics: None,
            disk: None,
            peer: String::new(),
        });
        Self {
            nodes: nodes.collect(),
            links: LabLinks::Stream(Vec::new()),
            link_threads: LinkThreads::start().expect("threads"),
            backend: LabBackend::Stream.to_string(),
            other_links: Vec::new(),
            topology,
            keys: Vec::new(),
            chain_id: 0,
            l1_chain_id: 0,
            system_config: Address::ZERO,
            net: PathBuf::new(),
            ports: BTreeSet::new(),
            movable: Vec::new(),
            names: None,
            namespace: None,
        }
    }
}

impl LabNode {
    fn new(name: &str, described: Described, folder: LabFolder, program: &Path) -> Self {
        let args = described.command.into_iter().skip(1).collect();
        let log = folder.file(&format!("{name}.log"));
        let name = format!("{}{name}", folder.prefix);
        let mut process = LabProcess::new(&name, program, args, log, folder.path);
        let net = folder.file(NET);
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
        let port = swarm_port(&multiaddr);
        let peer = multiaddr.rsplit('/').next().unwrap_or_default();
        Self {
            role: described.role,
            process,
            http: address(&described.http),
            rpc: described.rpc.as_deref().and_then(address),
            beacon: described.beacon.as_deref().and_then(address),
            swarm: port.map(|port| (Ipv4Addr::LOCALHOST, port).into()),
            metrics: address(described.metrics.trim_end_matches("/metrics")),
            disk: None,
            peer: peer.to_owned(),
        }
    }

    fn hostile(hostile: hostile::HostileNode) -> Self {
        Self {
            role: LabRole::Hostile,
            process: hostile.process,
            http: None,
            rpc: None,
            beacon: None,
            swarm: None,
            metrics: None,
            disk: None,
            peer: hostile.peer,
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
}

/// Multiaddrs of the nodes that a hostile peer dials.
fn targets(nodes: &[LabNode], plan: &HostilePlan) -> Vec<String> {
    let is_meant = |node: &&LabNode| {
        node.role.is_l2() && (plan.targets.is_empty() || plan.targets.contains(&node.process.name))
    };
    let address = |node: &LabNode| {
        let swarm = node.swarm?;
        let (ip, port, peer) = (swarm.ip(), swarm.port(), &node.peer);
        Some(format!("/ip4/{ip}/tcp/{port}/p2p/{peer}"))
    };
    nodes.iter().filter(is_meant).filter_map(address).collect()
}

/// The address in a URL such as `http://127.0.0.1:8545`.
fn address(url: &str) -> Option<SocketAddr> {
    let rest = url.split_once("://")?.1;
    rest.trim_end_matches('/').parse().ok()
}

/// The port in a multiaddr such as `/ip4/127.0.0.1/tcp/9222/p2p/16Uiu`.
fn swarm_port(multiaddr: &str) -> Option<u16> {
    multiaddr.split('/').nth(4)?.parse().ok()
}

/// Describes networks until one has none of the ports that are taken. `starling devnet` keeps its
/// ports for as long as it runs, which is before the nodes of the other network start.
async fn describe_apart(
    folder: LabFolder<'_>,
    program: &Path,
    scenario: &LabScenario,
    seed: u64,
) -> Result<LabDescription, LabError> {
    for _ in 0..DESCRIPTIONS {
        let description = describe(folder, program, scenario, seed).await?;
        if description.ports().is_disjoint(folder.taken) {
            return Ok(description);
        }
        // A network that is described again in the same folder prefers its earlier ports.
        let net = folder.file(NET);
        fs::remove_dir_all(&net).map_err(LabError::io(&net))?;
    }
    Err(LabError::Description {
        path: folder.file(NET),
        reason: format!("it has ports of another network, {DESCRIPTIONS} times"),
    })
}

/// Runs `starling devnet` until it has described its network, then ends it and removes its chains.
async fn describe(
    folder: LabFolder<'_>,
    program: &Path,
    scenario: &LabScenario,
    seed: u64,
) -> Result<LabDescription, LabError> {
    let net = folder.file(NET);
    let replicas = scenario.replicas.len() + usize::from(scenario.bootnode.is_some());
    let args = vec![
        "devnet".to_owned(),
        format!("--datadir={}", net.display()),
        format!("--replicas={}", replicas.min(copies::DESCRIBED)),
        format!("--batcher={}", scenario.batcher),
        format!("--proposer={}", scenario.proposer),
        format!("--l2.block-time={}", scenario.block_time),
        format!("--l1.block-time={}", scenario.l1_block_time),
        format!("--genesis.age={}", scenario.genesis_age),
    ];
    let log = folder.file("devnet.log");
    let mut process = LabProcess::new("starling devnet", program, args, log, folder.path);
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
    let mut description: LabDescription =
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
    let further = replicas.saturating_sub(copies::DESCRIBED);
    copies::add(&mut description.nodes, further, &net, seed)?;
    Ok(description)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ports_of_a_description_are_found() {
        let text = r#"{
            "chain_ids": {"l1": 1, "l2": 2},
            "contracts": {"system_config": "0x0000000000000000000000000000000000000001"},
            "accounts": [],
            "nodes": [
                {"name": "l1", "role": "l1", "pid": 1, "command": [], "http": "http://127.0.0.1:11",
                 "ws": "ws://127.0.0.1:12", "beacon": "http://127.0.0.1:13",
                 "metrics": "http://127.0.0.1:14/metrics"},
                {"name": "a", "role": "replica", "pid": 2, "command": [],
                 "http": "http://127.0.0.1:21", "ws": "ws://127.0.0.1:22",
                 "rpc": "http://127.0.0.1:23", "p2p": "/ip4/127.0.0.1/tcp/24/p2p/16Uiu",
                 "metrics": "http://127.0.0.1:25/metrics"}
            ]
        }"#;
        let description: LabDescription = serde_json::from_str(text).unwrap();
        let ports: Vec<u16> = description.ports().into_iter().collect();
        assert_eq!(ports, [11, 12, 13, 14, 21, 22, 23, 24, 25]);
    }
}
