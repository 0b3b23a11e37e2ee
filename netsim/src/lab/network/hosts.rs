//! The nodes of a run on the packet backend: each honest node on a host of its own. Hostile peers
//! stay on this machine and dial nodes through forwarded ports, past all links.

use super::{LabNetwork, LabNode};
use crate::{
    lab::{
        error::LabError,
        links::{LabBackend, LabLinks},
        topology::{LabRole, TopologyLink},
    },
    packet::{PacketHostPlan, PacketLinkPlan, PacketNetwork, PacketRefusal},
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

impl LabNetwork {
    /// Makes a host for each honest node and all links between them; `None` where this machine
    /// refuses that, which the report then says.
    pub(super) fn hosts(&mut self, seed: u64) -> Result<Option<PacketNetwork>, LabError> {
        let hosts = vec![PacketHostPlan::default(); self.honest()];
        let link = |link: &TopologyLink| PacketLinkPlan {
            near: link.near,
            far: link.far,
            conditions: link.conditions,
        };
        let links: Vec<PacketLinkPlan> = self.topology.links.iter().map(link).collect();
        let network = {
            let _context = self.link_threads.enter();
            PacketNetwork::new(seed, &hosts, &links)
        };
        let error = match network {
            Ok(network) => {
                self.backend = LabBackend::Packet.to_string();
                return Ok(Some(network));
            }
            Err(error) => error,
        };
        self.backend = fallback(&error.refusal()?);
        println!("  links: {}", self.backend);
        Ok(None)
    }

    /// Number of honest nodes, which come before the hostile peers.
    fn honest(&self) -> usize {
        let is_honest = |node: &&LabNode| node.role != LabRole::Hostile;
        self.nodes.iter().filter(is_honest).count()
    }

    /// Puts each honest node on its host, and writes the hosts' addresses into the command lines.
    pub(super) async fn join_hosts(&mut self, hosts: PacketNetwork) -> Result<(), LabError> {
        for planned in &self.topology.links {
            for (from, to) in [(planned.near, planned.far), (planned.far, planned.near)] {
                for target in self.nodes[to].services(self.nodes[from].role) {
                    let address = SocketAddr::from((hosts.hosts[to].address, target.port()));
                    self.nodes[from].redirect(target, address);
                }
            }
        }
        for index in 0..self.honest() {
            let node = &mut self.nodes[index];
            node.listen_everywhere();
            node.process.host = Some(hosts.hosts[index].clone());
            for address in [&mut node.http, &mut node.metrics].into_iter().flatten() {
                let forwarded = hosts.forward_port(index, address.port()).await;
                *address = forwarded.map_err(no_port(&node.process.name))?;
            }
            self.forward_for_hostile_peers(&hosts, index).await?;
        }
        self.links = LabLinks::Packet(hosts);
        Ok(())
    }

    /// Opens a port that leads to the swarm of a node, if hostile peers dial it.
    async fn forward_for_hostile_peers(
        &mut self,
        hosts: &PacketNetwork,
        index: usize,
    ) -> Result<(), LabError> {
        let (first, node) = (self.honest(), &self.nodes[index]);
        let Some(swarm) = node.swarm.filter(|_| first < self.nodes.len()) else {
            return Ok(());
        };
        let forwarded = hosts.forward_port(index, swarm.port()).await;
        let forwarded = forwarded.map_err(no_port(&node.process.name))?;
        for hostile in &mut self.nodes[first..] {
            hostile.redirect(swarm, forwarded);
        }
        Ok(())
    }
}

impl LabNode {
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

    /// Replaces another node's address by that of a host or a forwarded port, in URLs and multiaddrs.
    fn redirect(&mut self, target: SocketAddr, address: SocketAddr) {
        let multiaddr = |at: SocketAddr| format!("/ip4/{}/tcp/{}/", at.ip(), at.port());
        let url = |at: SocketAddr| format!("://{at}");
        self.process.replace(&url(target), &url(address));
        self.process
            .replace(&multiaddr(target), &multiaddr(address));
    }
}

/// The error of a port of this machine that leads to a node.
fn no_port(node: &str) -> impl FnOnce(io::Error) -> LabError {
    LabError::listen("this machine", node, (Ipv4Addr::LOCALHOST, 0))
}

/// The backend of a run for which the packet backend was refused.
fn fallback(reason: &PacketRefusal) -> String {
    format!("{} (packet was refused: {reason})", LabBackend::Stream)
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
