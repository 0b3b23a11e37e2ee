//! An operator's wishes, and what an operator is shown.

use super::{Awaited, Connected, Service, connections::dial_options};
use crate::{
    check::unix_now,
    handle::{BanReport, Control, Direction, MeshReport, PeerReport, Refused, Report, Subject},
    peers::ledger::{Change, Entry},
    peerstore::Record,
};
use libp2p::{
    Multiaddr, PeerId, gossipsub::TopicHash, identify, multiaddr::Protocol,
    swarm::dial_opts::PeerCondition,
};
use std::{collections::BTreeSet, time::Instant};
use tokio::sync::oneshot;

/// Peers that are waited for at once.
const AWAITED: usize = 64;

impl Service {
    pub(super) fn on_control(&mut self, control: Control, now: Instant) {
        // Nobody has to wait for an answer.
        match control {
            Control::Report(done) => drop(done.send(self.report_swarm())),
            Control::Signer(done) => drop(done.send(self.checker.signer())),
            Control::Ledger { peer, limit, done } => {
                drop(done.send(self.reputation.ledger().read(peer.as_ref(), limit)))
            }
            Control::Block {
                subject,
                blocked,
                done,
            } => {
                self.block(subject, blocked);
                let _ = done.send(());
            }
            Control::Protect {
                peer,
                protected,
                done,
            } => {
                match protected {
                    true => self.reputation.protect(peer, unix_now()),
                    false => self.reputation.unprotect(peer, unix_now()),
                }
                set(
                    &mut self.rules.lock().friends,
                    peer,
                    self.reputation.is_protected(&peer),
                );
                self.tell_peers();
                let _ = done.send(());
            }
            Control::Connect {
                peer,
                address,
                done,
            } => self.connect(peer, address, done),
            Control::Disconnect { peer, done } => {
                self.block(Subject::Peer(peer), false);
                self.reputation.forgive(&peer, "operator", unix_now());
                self.close(peer, "operator", String::new());
                self.known.pop(&peer);
                self.candidates.forget(&peer);
                self.sync.on_peer_gone(peer, now);
                let _ = done.send(());
            }
        }
    }

    fn block(&mut self, subject: Subject, blocked: bool) {
        let now = unix_now();
        let change = if blocked {
            Change::Blocked
        } else {
            Change::Unblocked
        };
        let mut rules = self.rules.lock();
        let (record, changed, entry) = match subject {
            Subject::Peer(peer) => {
                let changed = set(&mut rules.blocked_peers, peer, blocked);
                let score = self.reputation.total(&peer);
                (
                    Record::BlockedPeer(peer, blocked),
                    changed,
                    Entry::of_peer(peer, change, "operator", "", score),
                )
            }
            Subject::Address(address) => {
                let address = address.to_canonical();
                let changed = set(&mut rules.blocked_addresses, address, blocked);
                (
                    Record::BlockedAddress(address, blocked),
                    changed,
                    Entry::of_address(address, change, "operator", ""),
                )
            }
            Subject::Subnet(subnet) => {
                let changed = set(&mut rules.blocked_subnets, subnet, blocked);
                (
                    Record::BlockedSubnet(subnet, blocked),
                    changed,
                    Entry::of_address(subnet, change, "operator", ""),
                )
            }
        };
        drop(rules);
        if changed {
            tracing::info!(?subject, blocked, "an operator changed who may connect");
            self.peerstore.note(&record);
            self.reputation.note(entry, now);
        }
        match subject {
            Subject::Peer(peer) if !blocked => self.reputation.forgive(&peer, "operator", now),
            Subject::Address(address) if !blocked => {
                self.reputation.unban_address(address, "operator", now)
            }
            _ => {}
        }
    }

    fn connect(
        &mut self,
        peer: PeerId,
        address: Multiaddr,
        done: oneshot::Sender<Result<(), String>>,
    ) {
        if self
            .peers
            .get(&peer)
            .is_some_and(|peer| peer.identity.is_some())
        {
            let _ = done.send(Ok(()));
            return;
        }
        self.awaited.retain(|awaited| !awaited.done.is_closed());
        if self.awaited.len() >= AWAITED {
            let _ = done.send(Err("too many connections are being waited for".into()));
            return;
        }
        // Also while other addresses of the peer are dialled: an operator may know better.
        let options = dial_options(peer, vec![address], PeerCondition::Disconnected);
        self.awaited.push(Awaited {
            peer,
            dial: Some(options.connection_id()),
            done,
        });
        self.dial_as(peer, options);
    }

    fn report_swarm(&self) -> Report {
        let gossip = &self.swarm.behaviour().gossip;
        let topics: Vec<&TopicHash> = self.topics.names().collect();
        let mut mesh = Vec::new();
        for topic in topics {
            let subscribers = gossip
                .all_peers()
                .filter(|(_, topics)| topics.contains(&topic))
                .map(|(peer, _)| *peer)
                .collect();
            mesh.push(MeshReport {
                topic: topic.to_string(),
                subscribers,
                mesh: gossip.mesh_peers(topic).copied().collect(),
            });
        }
        mesh.sort_by(|a, b| a.topic.cmp(&b.topic));
        let absent_statics = self
            .statics
            .iter()
            .filter(|(peer, _)| !self.peers.contains_key(peer));
        let absent_statics = absent_statics.map(|(peer, addresses)| (*peer, addresses.to_vec()));
        let absent = self
            .known
            .iter()
            .filter(|(peer, _)| !self.peers.contains_key(peer) && !self.statics.contains(peer));
        let mut peers: Vec<PeerReport> = self
            .peers
            .iter()
            .map(|(id, peer)| self.connected(*id, peer, &mesh))
            .collect();
        peers.extend(
            absent_statics.map(|(id, addresses)| self.absent(id, addresses, self.known.peek(&id))),
        );
        peers.extend(
            absent.map(|(id, info)| self.absent(*id, info.listen_addrs.clone(), Some(info))),
        );
        Report {
            local: self.ourselves(),
            peers,
            refused: self.refused(),
            mesh,
            sync: self.report_sync(),
            blocks: self.propagation.report(),
        }
    }

    fn connected(&self, id: PeerId, peer: &Connected, mesh: &[MeshReport]) -> PeerReport {
        let said = peer
            .identity
            .as_ref()
            .map(|info| info.listen_addrs.clone())
            .unwrap_or_default();
        let outbound = peer.links.first().is_some_and(|link| link.outbound);
        // Where a peer came from is not where it listens.
        let seen = peer
            .links
            .first()
            .filter(|_| outbound || said.is_empty())
            .map(|link| link.address.clone());
        let addresses = seen.into_iter().chain(said).collect();
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
            ..self.absent(id, addresses, peer.identity.as_ref())
        }
    }

    fn absent(
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
            record: self.candidates.record(&id).map(str::to_owned),
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
            is_static: self.statics.contains(&id),
            protected: self.reputation.is_protected(&id),
            latency: Default::default(),
            subscribed: false,
            in_mesh: false,
            scores: self.reputation.scores(&id),
        }
    }

    fn ourselves(&self) -> PeerReport {
        let id = *self.swarm.local_peer_id();
        PeerReport {
            agent: self.user_agent.clone(),
            protocols: self.protocols.clone(),
            subscribed: true,
            ..self.absent(id, self.listen_out.borrow().clone(), None)
        }
    }

    fn refused(&self) -> Refused {
        let rules = self.rules.lock();
        let peers = self
            .reputation
            .bans()
            .iter()
            .map(|(peer, ban)| (peer.to_string(), ban));
        let addresses = self
            .reputation
            .address_bans()
            .iter()
            .map(|(address, ban)| (address.to_string(), ban));
        let report = |(subject, ban): (String, &crate::peers::reputation::Ban)| BanReport {
            subject,
            until: ban.until,
            reason: ban.reason.clone(),
        };
        Refused {
            peers: rules.blocked_peers.iter().copied().collect(),
            addresses: rules.blocked_addresses.iter().copied().collect(),
            subnets: rules.blocked_subnets.iter().copied().collect(),
            bans: peers.chain(addresses).map(report).collect(),
        }
    }
}

fn set<T: Ord>(all: &mut BTreeSet<T>, one: T, there: bool) -> bool {
    if there {
        all.insert(one)
    } else {
        all.remove(&one)
    }
}

fn with_peer(address: Multiaddr, peer: PeerId) -> Multiaddr {
    match address.iter().last() {
        Some(Protocol::P2p(_)) => address,
        _ => address.with(Protocol::P2p(peer)),
    }
}
