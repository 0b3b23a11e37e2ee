//! An operator's commands, and the report of the swarm.

use super::Service;
use crate::{
    clock::Moment,
    handle::{Direction, OperatorCommand, PeerReport, SwarmReport},
    host::Connected,
    types::MeshReport,
};
use libp2p::{Multiaddr, PeerId, identify, multiaddr::Protocol};
use std::{collections::BTreeSet, time::Instant};

impl Service {
    pub(super) fn on_operator_command(&mut self, command: OperatorCommand, now: Instant) {
        // The caller may have stopped waiting for the reply, so failures to send it are ignored.
        match command {
            OperatorCommand::Report(done) => drop(done.send(self.report_swarm())),
            OperatorCommand::Signer(done) => drop(done.send(self.gossip.signer())),
            OperatorCommand::Ledger { peer, limit, done } => {
                let ledger = self.peers.reputation.ledger();
                let _ = done.send(ledger.read(peer.as_ref(), limit));
            }
            OperatorCommand::Block {
                subject,
                blocked,
                done,
            } => {
                self.peers.block(subject, blocked, Moment::now());
                let _ = done.send(());
            }
            OperatorCommand::Protect {
                peer,
                protected,
                done,
            } => {
                self.peers.protect(peer, protected, Moment::now());
                self.publish_peers();
                let _ = done.send(());
            }
            OperatorCommand::Connect {
                peer,
                address,
                done,
            } => self.host.connect(peer, address, done),
            OperatorCommand::Disconnect { peer, done } => {
                self.peers.forget(&peer, Moment::now());
                self.host.close(peer, "operator", String::new());
                self.host.forget(&peer);
                self.sync.on_peer_gone(peer, now);
                let _ = done.send(());
            }
        }
    }

    fn report_swarm(&self) -> SwarmReport {
        let mesh = self.gossip.mesh(self.host.router_ref());
        let (connected, recent) = (self.host.connected(), self.host.recent());
        let statics = &self.peers.statics;
        let mut peers: Vec<PeerReport> = connected
            .iter()
            .map(|(id, peer)| self.report_connected(*id, peer, &mesh))
            .collect();
        let absent_statics = statics
            .iter()
            .filter(|(peer, _)| !connected.contains_key(peer));
        peers.extend(
            absent_statics.map(|(id, addresses)| {
                self.report_absent(*id, addresses.to_vec(), recent.peek(id))
            }),
        );
        let absent = recent
            .iter()
            .filter(|(peer, _)| !connected.contains_key(peer) && !statics.contains(peer));
        peers.extend(
            absent.map(|(id, info)| self.report_absent(*id, info.listen_addrs.clone(), Some(info))),
        );
        SwarmReport {
            local: self.report_ourselves(),
            peers,
            refused: self.peers.refused(),
            mesh,
            sync: self.report_sync(),
            blocks: self.gossip.block_timings(),
        }
    }

    fn report_connected(&self, id: PeerId, peer: &Connected, mesh: &[MeshReport]) -> PeerReport {
        let listens = peer
            .identity
            .as_ref()
            .map(|info| info.listen_addrs.clone())
            .unwrap_or_default();
        let outbound = peer.outbound();
        // The remote address of an inbound connection is not an address that the peer listens on.
        let dialled = peer
            .links
            .first()
            .filter(|_| outbound || listens.is_empty())
            .map(|link| link.address.clone());
        let addresses = dialled.into_iter().chain(listens).collect();
        PeerReport {
            connected: true,
            direction: Some(if outbound {
                Direction::Outbound
            } else {
                Direction::Inbound
            }),
            latency: peer.latency,
            subscribed: mesh.iter().any(|topic| topic.subscribers.contains(&id)),
            in_mesh: mesh.iter().any(|topic| topic.mesh.contains(&id)),
            ..self.report_absent(id, addresses, peer.identity.as_ref())
        }
    }

    fn report_absent(
        &self,
        id: PeerId,
        addresses: Vec<Multiaddr>,
        info: Option<&identify::Info>,
    ) -> PeerReport {
        let mut seen = BTreeSet::new();
        let addresses = addresses
            .into_iter()
            .map(|address| with_peer(address, id))
            .filter(|a| seen.insert(a.clone()));
        PeerReport {
            id,
            record: self.peers.candidates.record(&id).map(str::to_owned),
            agent: info
                .map(|info| info.agent_version.clone())
                .unwrap_or_default(),
            protocol_version: info
                .map(|info| info.protocol_version.clone())
                .unwrap_or_default(),
            addresses: addresses.collect(),
            protocols: info
                .map(|info| info.protocols.iter().map(ToString::to_string).collect())
                .unwrap_or_default(),
            connected: false,
            direction: None,
            is_static: self.peers.statics.contains(&id),
            protected: self.peers.is_protected(&id),
            latency: Default::default(),
            subscribed: false,
            in_mesh: false,
            scores: self.peers.reputation.scores(&id),
        }
    }

    fn report_ourselves(&self) -> PeerReport {
        let id = self.host.local_peer_id();
        PeerReport {
            agent: self.host.user_agent().to_owned(),
            protocols: self.protocols.clone(),
            subscribed: true,
            ..self.report_absent(id, self.host.listen_addrs().borrow().clone(), None)
        }
    }
}

fn with_peer(address: Multiaddr, peer: PeerId) -> Multiaddr {
    match address.iter().last() {
        Some(Protocol::P2p(_)) => address,
        _ => address.with(Protocol::P2p(peer)),
    }
}
