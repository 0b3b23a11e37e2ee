//! Dials and connections of a node: the gate, the redial of static peers, candidates, surplus
//! connections, trimming, and connections whose peer is silent.

use super::{LiveNode, contact};
use crate::sim::{
    context::SimContext,
    planted::PlantedBug,
    queue::{SECOND, SimTime},
    wires::SimMessage,
};
use starling_p2p::machines::{
    ConnectionId, Gate, GateRefusal, PeerLink, SharedGateRules, TrimCandidate, surplus,
};
use std::{collections::BTreeMap, time::Instant};

/// Time limit of a dial, as that of the TCP transport.
const DIAL_TIMEOUT: SimTime = 2 * SECOND;
/// Delay before a surplus connection is closed, as in the swarm's host.
const SURPLUS_GRACE: SimTime = 2 * SECOND;
/// Silence after which a peer is pinged, and after which its connections are closed.
const PING_AFTER: SimTime = 15 * SECOND;
const SILENCE: SimTime = 35 * SECOND;
/// Time for a static peer to be connected again after it has disconnected, as a node with too many
/// peers does now and then.
const RECONNECT: SimTime = 5 * SECOND;
/// Time within which a banned peer is disconnected.
const BAN_TIME: SimTime = SECOND;

struct ConnectedPeer {
    /// The connections, with their numbers in the world.
    links: Vec<(u64, PeerLink)>,
    since: Instant,
    heard: SimTime,
    pinged: bool,
}

struct PendingDial {
    to: usize,
    deadline: SimTime,
}

/// The connections of a node.
pub struct SimConnections {
    gate: Gate,
    connected: BTreeMap<usize, ConnectedPeer>,
    /// Time at which each peer last disconnected from this node.
    left: BTreeMap<usize, SimTime>,
    dials: BTreeMap<u64, PendingDial>,
    /// Connections to close: time, peer and connection.
    surplus: Vec<(SimTime, usize, u64)>,
}

impl SimConnections {
    pub fn new(rules: SharedGateRules, hi: usize) -> Self {
        Self {
            gate: Gate::new(rules, hi),
            connected: BTreeMap::new(),
            left: BTreeMap::new(),
            dials: BTreeMap::new(),
            surplus: Vec::new(),
        }
    }

    pub fn is_connected(&self, peer: usize) -> bool {
        self.connected.contains_key(&peer)
    }

    pub fn peers(&self) -> Vec<usize> {
        self.connected.keys().copied().collect()
    }

    pub fn heard(&mut self, peer: usize, now: SimTime) {
        if let Some(connected) = self.connected.get_mut(&peer) {
            (connected.heard, connected.pinged) = (now, false);
        }
    }

    pub fn next_wake(&self) -> Option<SimTime> {
        let dials = self.dials.values().map(|dial| dial.deadline);
        dials.chain(self.surplus.iter().map(|(at, ..)| *at)).min()
    }
}

/// The number of a connection, as libp2p counts it.
fn connection_id(connection: u64) -> ConnectionId {
    ConnectionId::new_unchecked(connection as usize)
}

impl LiveNode {
    /// Closes all connections, as the kernel does for a process that ends.
    pub(super) fn close_all(&self, context: &mut SimContext) {
        for peer in self.connections.peers() {
            context.send(self.me, peer, SimMessage::NotConnected);
        }
    }

    pub(super) fn dial_due(&mut self, context: &mut SimContext) {
        for (peer, _) in self.peers.statics.due(context.instant()) {
            if let Some(to) = context.directory.index(&peer) {
                self.dial(to, context);
            }
        }
    }

    pub(super) fn dial_candidates(&mut self, context: &mut SimContext) {
        let connected = self.connections.connected.len();
        for (peer, _) in self.peers.candidates_to_dial(connected, context.instant()) {
            if let Some(to) = context.directory.index(&peer) {
                self.dial(to, context);
            }
        }
    }

    pub(super) fn on_found(&mut self, other: usize, context: &mut SimContext) {
        let connected = self.connections.is_connected(other);
        let found = contact(other, context);
        self.peers.on_found(found, connected, context.instant());
        self.dial_candidates(context);
    }

    fn dial(&mut self, to: usize, context: &mut SimContext) {
        // libp2p refuses a dial to a peer that is being dialled.
        if self.connections.dials.values().any(|dial| dial.to == to) {
            return;
        }
        context.connections += 1;
        let connection = context.connections;
        let deadline = context.now + DIAL_TIMEOUT;
        self.connections
            .dials
            .insert(connection, PendingDial { to, deadline });
        context.send(self.me, to, SimMessage::Dial { connection });
    }

    /// Handles a dial of another node: the gate admits or refuses it.
    pub(super) fn on_dial(&mut self, from: usize, connection: u64, context: &mut SimContext) {
        let (id, peer) = (connection_id(connection), context.directory.peers[from]);
        let address = context.directory.addresses[from].clone();
        let gate = &mut self.connections.gate;
        let admitted: Result<(), GateRefusal> = gate
            .on_inbound(id, &address)
            .and_then(|()| gate.on_established_inbound(id, peer, &address));
        match admitted {
            Ok(()) => {
                context.send(self.me, from, SimMessage::Accepted { connection });
                self.on_link(from, connection, false, context);
            }
            Err(refusal) => {
                context.history.note(
                    context.now,
                    self.me,
                    format_args!("refuses n{from}: {refusal}"),
                );
                let unanswered = false;
                let refused = SimMessage::Refused {
                    connection,
                    unanswered,
                };
                context.send(self.me, from, refused);
            }
        }
    }

    pub(super) fn on_accepted(&mut self, from: usize, connection: u64, context: &mut SimContext) {
        let is_ours = self.connections.dials.remove(&connection).is_some();
        let peer = context.directory.peers[from];
        // The dial timed out, or the peer has been banned since.
        if !is_ours || self.peers.rules().lock().peer(&peer).is_err() {
            if is_ours {
                self.dial_failed(from, false, context);
            }
            return context.send(self.me, from, SimMessage::Closed { connection });
        }
        let id = connection_id(connection);
        self.connections.gate.on_established_outbound(id, peer);
        self.on_link(from, connection, true, context);
    }

    pub(super) fn on_dial_refused(
        &mut self,
        connection: u64,
        unanswered: bool,
        context: &mut SimContext,
    ) {
        if let Some(dial) = self.connections.dials.remove(&connection) {
            self.dial_failed(dial.to, unanswered, context);
        }
    }

    fn dial_failed(&mut self, to: usize, unanswered: bool, context: &mut SimContext) {
        let peer = context.directory.peers[to];
        self.peers
            .on_dial_failed(&peer, unanswered, context.instant());
    }

    fn on_link(&mut self, other: usize, connection: u64, outbound: bool, context: &mut SimContext) {
        let (now, instant, moment) = (context.now, context.instant(), context.moment(self.me));
        let address = context.directory.addresses[other].clone();
        let link = PeerLink {
            id: connection_id(connection),
            address,
            outbound,
            since: instant,
        };
        let (ip, first) = (link.ip(), !self.connections.is_connected(other));
        let entry = self.connections.connected.entry(other);
        let connected = entry.or_insert_with(|| ConnectedPeer {
            links: Vec::new(),
            since: instant,
            heard: now,
            pinged: false,
        });
        connected.links.push((connection, link));
        let peer = context.directory.peers[other];
        let links: Vec<PeerLink> = connected
            .links
            .iter()
            .map(|(_, link)| link.clone())
            .collect();
        let closing = surplus(&self.peer, &peer, &links);
        for (number, link) in &connected.links {
            if closing.contains(&link.id) {
                let at = now + SURPLUS_GRACE;
                self.connections.surplus.push((at, other, *number));
            }
        }
        self.peers.on_connected(peer, ip, outbound, first, moment);
        if first {
            context
                .history
                .note(now, self.me, format_args!("connected to n{other}"));
            if !context.has_bug(PlantedBug::PeerForgotten) || now < 30 * SECOND {
                self.sync.on_peer(peer, instant);
            }
            self.requests.track(peer, instant);
            self.gossip_on_peer(other, context);
        }
    }

    /// Handles the end of one connection.
    pub(super) fn drop_link(
        &mut self,
        other: usize,
        connection: u64,
        reason: &'static str,
        context: &mut SimContext,
    ) {
        let Some(connected) = self.connections.connected.get_mut(&other) else {
            return;
        };
        let before = connected.links.len();
        if before == 1 && connected.links[0].0 == connection {
            return self.disconnect(other, reason, "", context);
        }
        connected.links.retain(|(number, _)| *number != connection);
        if connected.links.len() < before {
            let peer = context.directory.peers[other];
            let ip = connected.links[0].1.ip();
            self.connections
                .gate
                .forget(peer, connection_id(connection));
            self.peers.reputation.on_address(&peer, ip);
        }
    }

    /// Closes all connections to a peer.
    pub(super) fn disconnect(
        &mut self,
        other: usize,
        reason: &'static str,
        evidence: &str,
        context: &mut SimContext,
    ) {
        // Requests of earlier steps have been sent by now.
        while let Some(action) = self.sync.poll() {
            self.on_sync_action(action, context);
        }
        let Some(connected) = self.connections.connected.remove(&other) else {
            return;
        };
        if reason == "reset" {
            self.connections.left.insert(other, context.now);
        }
        let (peer, instant) = (context.directory.peers[other], context.instant());
        for (_, link) in connected.links {
            self.connections.gate.forget(peer, link.id);
        }
        if reason != "reset" {
            context.send(self.me, other, SimMessage::NotConnected);
        }
        context.history.note(
            context.now,
            self.me,
            format_args!("disconnected from n{other}: {reason}"),
        );
        let moment = context.moment(self.me);
        if !context.has_bug(PlantedBug::RedialForgotten) {
            let is_explained = !context.has_bug(PlantedBug::DisconnectNotExplained);
            let reason = if is_explained { reason } else { "" };
            self.peers.on_disconnected(peer, reason, evidence, moment);
            self.check_disconnect(other, context);
        }
        self.requests.untrack(&peer);
        if !context.has_bug(PlantedBug::DisconnectForgotten) {
            self.sync.on_peer_gone(peer, instant);
        }
        self.fail_requests_of(other, context);
    }

    pub(super) fn connections_on_timer(&mut self, context: &mut SimContext) {
        let now = context.now;
        let late: Vec<u64> = self
            .connections
            .dials
            .iter()
            .filter(|(_, dial)| dial.deadline <= now)
            .map(|(connection, _)| *connection)
            .collect();
        for connection in late {
            self.on_dial_refused(connection, true, context);
        }
        let due: Vec<_> = self
            .connections
            .surplus
            .extract_if(.., |(at, ..)| *at <= now)
            .collect();
        for (_, other, connection) in due {
            let connected = self.connections.connected.get(&other);
            let held = connected.is_some_and(|peer| {
                peer.links.len() > 1 && peer.links.iter().any(|link| link.0 == connection)
            });
            if held {
                context.send(self.me, other, SimMessage::Closed { connection });
                self.drop_link(other, connection, "surplus", context);
            }
        }
    }

    pub(super) fn keep_alive(&mut self, context: &mut SimContext) {
        for other in self.connections.peers() {
            let Some(connected) = self.connections.connected.get_mut(&other) else {
                continue;
            };
            let silent = context.now.saturating_sub(connected.heard);
            let peer = context.directory.peers[other];
            let bans = self.peers.reputation.bans();
            if bans.contains_key(&peer) && silent < BAN_TIME {
                let detail = format!("node {other} is banned and connected");
                context.checks.fail(context.now, self.me, "ban", detail);
            }
            if silent >= SILENCE {
                self.disconnect(other, "no_answer", "", context);
            } else if silent >= PING_AFTER && !connected.pinged {
                connected.pinged = true;
                context.send(self.me, other, SimMessage::Ping);
            }
        }
    }

    pub(super) fn trim_peers(&mut self, context: &mut SimContext) {
        // So few are all kept, and their scores are not needed.
        if self.connections.connected.len() <= self.peers.limits.hi {
            return;
        }
        let (directory, peers) = (&context.directory, &self.peers);
        let candidate = |(index, connected): (&usize, &ConnectedPeer)| {
            let peer = directory.peers[*index];
            TrimCandidate {
                peer,
                protected: peers.is_protected(&peer),
                outbound: connected
                    .links
                    .first()
                    .is_some_and(|(_, link)| link.outbound),
                since: connected.since,
                score: peers.reputation.total(&peer),
            }
        };
        let all: Vec<TrimCandidate> = self.connections.connected.iter().map(candidate).collect();
        for peer in self.peers.limits.trim(all, context.instant()) {
            if let Some(index) = context.directory.index(&peer) {
                self.disconnect(index, "too_many_peers", "", context);
            }
        }
    }

    /// Honest static peers are connected, or have disconnected moments ago.
    pub(super) fn check_statics(&self, context: &mut SimContext) {
        let plan = context.plan.clone();
        for other in &plan.nodes[self.me].statics {
            let left = self.connections.left.get(other);
            let has_just_left = left.is_some_and(|at| context.now < at + RECONNECT);
            if plan.nodes[*other].hostile.is_none()
                && *other != self.me
                && !self.connections.is_connected(*other)
                && !has_just_left
            {
                let detail = format!("static peer {other} is not connected");
                context
                    .checks
                    .fail(context.now, self.me, "static_peers", detail);
            }
        }
    }
}
