//! Nodes that can move to another address, and nodes with a disk of limited size. Both need the
//! run's mount namespace, which is opened only for scenarios with such nodes.
//!
//! [`LabNetwork::create`] calls it before and while it opens links, and the verb `move` during the
//! run. A node has 255 addresses; move 255 gives it the first one again. Each peer of a movable node
//! keeps one listener open.

use super::{
    dns::{self, LabDns},
    error::LabError,
    mounts::LabMounts,
    network::LabNetwork,
    scenario::{LabScenario, LabVerb, NodeVerb},
};
use crate::{LinkAddress, LinkEnd};
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

/// Option of a node with the address that it listens on.
const LISTEN: &str = "--p2p.listen.ip=";

/// A node whose peers dial it by name.
pub struct MovableNode {
    pub node: usize,
    /// Number of the present address.
    address: u8,
    relays: Vec<MovableRelay>,
}

/// An address of a link at which one peer reaches a movable node.
struct MovableRelay {
    /// The peer that dials it.
    from: usize,
    link: usize,
    end: LinkEnd,
    /// `None` while it changes.
    open: Option<LinkAddress>,
    port: u16,
}

impl MovableNode {
    /// The present address: one of 127.1.0.0/16, all of which are this machine's.
    fn ip(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, 1, self.node as u8, self.address)
    }
}

impl LabNetwork {
    /// Opens the namespace that the verbs `fill-disk` and `move` of the scenario need, and has all
    /// nodes enter it. Call this before the links are opened.
    pub async fn prepare(&mut self, folder: &Path, scenario: &LabScenario) -> Result<(), LabError> {
        let (mut disks, mut movable) = (Vec::new(), Vec::new());
        for step in &scenario.steps {
            let (names, nodes) = match &step.verb {
                LabVerb::FillDisk(names, _) => (names, &mut disks),
                LabVerb::Nodes(NodeVerb::Move, names) => (names, &mut movable),
                _ => continue,
            };
            nodes.extend(names.iter().filter_map(|name| self.topology.node(name)));
        }
        for nodes in [&mut disks, &mut movable] {
            nodes.sort_unstable();
            nodes.dedup();
        }
        if disks.is_empty() && movable.is_empty() {
            return Ok(());
        }
        if !movable.is_empty() {
            self.names = Some(LabDns::serve(folder).await?);
        }
        for node in movable {
            self.movable.push(MovableNode {
                node,
                address: 0,
                relays: Vec::new(),
            });
            self.change_address(self.movable.len() - 1);
        }
        let disks: Vec<_> = disks
            .into_iter()
            .filter_map(|node| self.limit_disk(node))
            .collect();
        let resolver = self.names.as_ref().map(|names| names.resolver.as_path());
        let namespace = LabMounts::open(folder, resolver, &disks).await?;
        for node in &mut self.nodes {
            node.process.mount_holder = Some(namespace.holder());
        }
        self.namespace = Some(namespace);
        Ok(())
    }

    /// Moves a node's data into a folder of a file system of its own. Returns where that file
    /// system is to be mounted.
    fn limit_disk(&mut self, node: usize) -> Option<std::path::PathBuf> {
        let node = &mut self.nodes[node];
        let disk = node.process.datadir.take()?;
        let datadir = disk.join("data");
        let option = |path: &Path| format!("--datadir={}", path.display());
        let process = &mut node.process;
        for argument in process.args.iter_mut().chain(&mut process.init) {
            if *argument == option(&disk) {
                *argument = option(&datadir);
            }
        }
        process.datadir = Some(datadir);
        node.disk = Some(disk.clone());
        Some(disk)
    }

    /// Gives a movable node its next address, and its name that address.
    fn change_address(&mut self, at: usize) {
        let movable = &mut self.movable[at];
        movable.address = movable.address.wrapping_add(1).max(1);
        let (ip, node) = (movable.ip(), &mut self.nodes[movable.node]);
        for argument in &mut node.process.args {
            if argument.starts_with(LISTEN) {
                *argument = format!("{LISTEN}{ip}");
            }
        }
        if let Some(swarm) = &mut node.swarm {
            swarm.set_ip(ip.into());
        }
        if let Some(names) = &self.names {
            names.set(&node.process.name, ip.into());
        }
    }

    /// Whether the node `from` must not dial `to`, but wait for its dial. A node that
    /// moves could dial its peers itself, and would be found without its name. Of two nodes that
    /// move, the one with the lower index dials.
    pub fn must_not_dial(&self, from: usize, to: usize) -> bool {
        let is_movable = |node| self.movable.iter().any(|it| it.node == node);
        is_movable(from) && (!is_movable(to) || to < from)
    }

    /// Opens an address of `link` at which the node `from` reaches the swarm of `node`, which may be
    /// movable. Returns the prefix of a multiaddr with that address; `None` if the node is not movable.
    pub async fn open_movable(
        &mut self,
        link: usize,
        end: LinkEnd,
        [from, node]: [usize; 2],
    ) -> Result<Option<String>, LabError> {
        let Some(at) = self.movable.iter().position(|it| it.node == node) else {
            return Ok(None);
        };
        let relay = MovableRelay {
            from,
            link,
            end,
            open: None,
            port: 0,
        };
        self.movable[at].relays.push(relay);
        let last = self.movable[at].relays.len() - 1;
        let port = self.open_relay(at, last).await?;
        let name = dns::name(&self.nodes[node].process.name);
        Ok(Some(format!("/dns4/{name}/tcp/{port}/")))
    }

    /// Opens a relay at the present address of its node, with the port that it had.
    async fn open_relay(&mut self, at: usize, relay: usize) -> Result<u16, LabError> {
        let movable = &mut self.movable[at];
        let (ip, node) = (movable.ip(), &self.nodes[movable.node]);
        let relay = &mut movable.relays[relay];
        let address = SocketAddr::from((ip, relay.port));
        let target = node.swarm.unwrap_or(address);
        let open = self.links.tcp_at(relay.link, relay.end, target, address);
        let open = open.await;
        let dialler = &self.nodes[relay.from].process.name;
        let failed = LabError::listen(dialler, &node.process.name, address);
        let open = open.map_err(failed)?;
        relay.port = open.address.port();
        relay.open = Some(open);
        Ok(relay.port)
    }

    /// Moves a node, which must not run, to its next address. Peers that dial its old one are
    /// refused from now on.
    pub async fn move_node(&mut self, node: usize) -> Result<(), LabError> {
        let Some(at) = self.movable.iter().position(|it| it.node == node) else {
            return Ok(());
        };
        self.change_address(at);
        for relay in 0..self.movable[at].relays.len() {
            self.movable[at].relays[relay].open = None;
            self.open_relay(at, relay).await?;
        }
        Ok(())
    }
}
