//! Connections: handling of their events (made, identified, pinged, closed), dials, and callers
//! that wait for a connection.

use super::{
    Connected, Host, HostEvent, behaviour::BehaviourEvent, dial::dial_options, guard::GuardError,
    streams,
};
use crate::{
    metrics::{self as meters, GossipEvent},
    peers::{Offence, PeerLink, surplus},
};
use libp2p::{
    Multiaddr, PeerId,
    core::ConnectedPoint,
    identify,
    multiaddr::Protocol,
    ping,
    swarm::{
        ConnectionError, ConnectionId, DialError, ListenError, SwarmEvent,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use std::{
    collections::BTreeSet,
    io,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Delay before a surplus connection is closed. The connection may still carry the first messages
/// of a session, which have normally arrived after this time.
const SURPLUS_GRACE: Duration = Duration::from_secs(2);
/// Largest number of callers that wait for a connection.
const MAX_PENDING: usize = 64;

/// A caller that waits until a peer is connected and identified.
pub(super) struct PendingConnect {
    peer: PeerId,
    /// The dial made for the caller. It is `None` once the dial has ended; from then on the
    /// connection's outcome counts.
    dial: Option<ConnectionId>,
    done: oneshot::Sender<Result<(), String>>,
}

/// A connection to close at the time `at`.
pub(super) struct SurplusLink {
    at: Instant,
    peer: PeerId,
    connection: ConnectionId,
}

/// Whether a ping failed because no reply came. libp2p does not report the first failure and opens
/// a new stream for the next ping. For a dead connection it therefore reports that the negotiation
/// of this stream timed out. Any other error is taken as a response of the peer.
fn is_silence(failure: &ping::Failure) -> bool {
    match failure {
        ping::Failure::Timeout => true,
        ping::Failure::Unsupported => false,
        ping::Failure::Other { error } => error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::TimedOut),
    }
}

/// Whether two lists of listen addresses are of two nodes: no TCP port is in both.
fn are_two_nodes(one: &[Multiaddr], other: &[Multiaddr]) -> bool {
    let ports = |addresses: &[Multiaddr]| -> BTreeSet<u16> {
        let parts = addresses.iter().flatten();
        let port = |part| match part {
            Protocol::Tcp(port) => Some(port),
            _ => None,
        };
        parts.filter_map(port).collect()
    };
    let (one, other) = (ports(one), ports(other));
    !one.is_empty() && !other.is_empty() && one.is_disjoint(&other)
}

impl Host {
    /// Handles an event of the swarm. Events for other modules are returned by [`Host::poll`].
    pub fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour_event(event),
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            } => self.on_connected(peer_id, connection_id, &endpoint),
            SwarmEvent::ConnectionClosed {
                peer_id,
                connection_id,
                num_established,
                cause,
                ..
            } => self.on_closed(peer_id, connection_id, num_established, cause),
            SwarmEvent::OutgoingConnectionError {
                peer_id: Some(peer),
                connection_id,
                error,
            } => {
                if let Some(address) = self.own_peer_id_at(&error) {
                    self.on_own_peer_id(address);
                }
                self.on_dial_failed(peer, connection_id, error);
            }
            SwarmEvent::NewListenAddr { address, .. } => {
                let address = address.with(Protocol::P2p(self.local_peer_id()));
                tracing::info!(%address, "p2p listening");
                self.listen_out.send_modify(|all| all.push(address));
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                let address = address.with(Protocol::P2p(self.local_peer_id()));
                self.listen_out
                    .send_modify(|all| all.retain(|other| *other != address));
            }
            SwarmEvent::ListenerClosed { reason, .. } => {
                tracing::error!(
                    error = reason.err().map(tracing::field::display),
                    "p2p listener closed"
                );
            }
            SwarmEvent::ListenerError { error, .. } => tracing::warn!(%error, "p2p listener"),
            SwarmEvent::IncomingConnectionError {
                send_back_addr: address,
                error: ListenError::LocalPeerId { .. },
                ..
            } => self.on_own_peer_id(&address),
            SwarmEvent::IncomingConnectionError {
                send_back_addr,
                error,
                ..
            } => {
                tracing::debug!(address = %send_back_addr, %error, "incoming connection failed");
            }
            _ => {}
        }
    }

    /// The address at which a dial found our own peer id, whichever id it expected there.
    fn own_peer_id_at<'a>(&self, error: &'a DialError) -> Option<&'a Multiaddr> {
        match error {
            DialError::LocalPeerId { address } => Some(address),
            DialError::WrongPeerId { obtained, address } => {
                (*obtained == self.local_peer_id()).then_some(address)
            }
            _ => None,
        }
    }

    /// Handles a connection to a peer that has our own key. It is another node, or this node behind
    /// an address that it does not know as its own. The log names the first one.
    fn on_own_peer_id(&mut self, address: &Multiaddr) {
        metrics::counter!("starling_p2p_own_peer_ids_total").increment(1);
        if !std::mem::replace(&mut self.own_peer_id_met, true) {
            tracing::warn!(
                %address,
                "a peer has the peer id of this node: if it is another node, the two share one network key, and other peers stay connected with one of them only; give each its own key (--p2p.priv.path)"
            );
        }
    }

    fn on_behaviour_event(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Gossip(event) => self.events.push_back(HostEvent::Router(event)),
            BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. }) => {
                self.on_identified(peer_id, info);
            }
            BehaviourEvent::Ping(event) => self.on_ping(event),
            BehaviourEvent::Streams(streams::StreamsEvent::Excess { peer }) => {
                self.charge(
                    peer,
                    Offence::ExcessStreams,
                    "streams opened faster than they are taken".into(),
                );
            }
            _ => {}
        }
    }

    fn charge(&mut self, peer: PeerId, offence: Offence, evidence: String) {
        self.events.push_back(HostEvent::Offence {
            peer,
            offence,
            evidence,
        });
    }

    fn on_connected(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        let now = Instant::now();
        self.on_dial_over(connection);
        let link = PeerLink {
            id: connection,
            address: endpoint.get_remote_address().clone(),
            outbound: endpoint.is_dialer(),
            since: now,
        };
        let (ip, outbound) = (link.ip(), link.outbound);
        let entry = self.connected.entry(peer).or_insert_with(|| Connected {
            links: Vec::new(),
            since: now,
            identity: None,
            latency: Duration::ZERO,
            leaving: None,
        });
        entry.links.push(link);
        let first = entry.links.len() == 1;
        if first {
            tracing::info!(%peer, address = %endpoint.get_remote_address(), outbound, "peer connected");
            meters::gossip(GossipEvent::AddPeer);
        } else {
            let surplus = surplus(self.swarm.local_peer_id(), &peer, &entry.links);
            self.surplus.retain(|link| link.peer != peer);
            self.surplus
                .extend(surplus.into_iter().map(|connection| SurplusLink {
                    at: now + SURPLUS_GRACE,
                    peer,
                    connection,
                }));
        }
        self.events.push_back(HostEvent::Connected {
            peer,
            ip,
            outbound,
            first,
        });
    }

    fn on_closed(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        remaining: u32,
        cause: Option<ConnectionError>,
    ) {
        let guard = match &cause {
            Some(ConnectionError::IO(error)) => GuardError::of(error),
            _ => None,
        };
        let offence = match guard {
            Some(GuardError::Framing) => Some(Offence::Framing),
            Some(GuardError::HalfFrame) => Some(Offence::HalfFrame),
            Some(GuardError::SlowFrame) => Some(Offence::SlowFrame),
            Some(GuardError::Streams) => Some(Offence::StreamFlood),
            Some(GuardError::Muxer(_)) | None => None,
        };
        if let (Some(offence), Some(error)) = (offence, guard) {
            self.charge(peer, offence, error.to_string());
        }
        if remaining > 0 {
            self.on_link_closed(peer, connection);
            return;
        }
        let reason = offence.map_or("closed", |offence| offence.label());
        let cause = cause.map(|cause| cause.to_string()).unwrap_or_default();
        self.on_disconnected(peer, reason, cause);
    }

    /// Handles the close of one of several connections. The peer's address becomes that of the
    /// oldest remaining connection.
    fn on_link_closed(&mut self, id: PeerId, connection: ConnectionId) {
        if let Some(peer) = self.connected.get_mut(&id) {
            peer.links.retain(|link| link.id != connection);
            self.events.push_back(HostEvent::LinkClosed {
                peer: id,
                ip: peer.ip(),
            });
        }
    }

    fn on_disconnected(&mut self, peer: PeerId, reason: &'static str, cause: String) {
        let Some(gone) = self.connected.remove(&peer) else {
            return;
        };
        meters::gossip(GossipEvent::RemovePeer);
        let (reason, evidence) = gone.leaving.unwrap_or((reason, cause));
        if let Some(info) = gone.identity {
            self.recent.put(peer, info);
        }
        self.complete_pending(
            |pending| pending.peer == peer && pending.dial.is_none(),
            &Err(format!("disconnected: {reason}")),
        );
        self.events.push_back(HostEvent::Disconnected {
            peer,
            reason,
            evidence,
        });
    }

    fn on_dial_failed(&mut self, peer: PeerId, dial: ConnectionId, error: DialError) {
        self.complete_pending(
            |pending| pending.dial == Some(dial),
            &Err(error.to_string()),
        );
        self.events.push_back(HostEvent::DialFailed { peer, error });
    }

    fn on_ping(&mut self, event: ping::Event) {
        let Some(peer) = self.connected.get_mut(&event.peer) else {
            return;
        };
        match event.result {
            Ok(latency) => peer.latency = latency,
            Err(failure) if is_silence(&failure) => {
                // Disconnect the peer only if this was its last connection: others may still work.
                if peer.links.len() == 1 {
                    peer.leaving
                        .get_or_insert(("no_answer", "two pings without an answer".into()));
                }
                self.swarm.close_connection(event.connection);
            }
            Err(_) => {}
        }
    }

    fn on_identified(&mut self, id: PeerId, info: identify::Info) {
        let Some(peer) = self.connected.get_mut(&id) else {
            return;
        };
        let before = peer.identity.replace(info);
        if let (Some(before), Some(now)) = (before, &peer.identity)
            && peer.links.len() > 1
            && are_two_nodes(&before.listen_addrs, &now.listen_addrs)
        {
            self.on_shared_key(id);
        }
        self.events.push_back(HostEvent::Identified(id));
    }

    /// Handles a peer id that two nodes connect with. Each connection ends the other one, so neither
    /// node stays connected, and neither of them sees why.
    fn on_shared_key(&mut self, peer: PeerId) {
        metrics::counter!("starling_p2p_shared_peer_ids_total").increment(1);
        if self.shared_keys.put(peer, ()).is_none() {
            tracing::warn!(
                %peer,
                "two nodes connect with this peer id, and each connection ends the other: they share one network key; give each its own (--p2p.priv.path)"
            );
        }
    }

    /// Called when this peer's identity has been published: completes the waiting `connect` calls.
    pub fn on_peers_published(&mut self, identified: PeerId) {
        self.complete_pending(|pending| pending.peer == identified, &Ok(()));
    }

    /// Dials a peer, unless it is connected or being dialled.
    pub fn dial(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        self.dial_with(
            peer,
            dial_options(peer, addresses, PeerCondition::DisconnectedAndNotDialing),
        );
    }

    fn dial_with(&mut self, peer: PeerId, options: DialOpts) {
        let dial = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {}
            // The peer is connected or being dialled: the caller gets the outcome of that
            // connection.
            Err(DialError::DialPeerConditionFalse(_)) => self.on_dial_over(dial),
            Err(error) => self.on_dial_failed(peer, dial, error),
        }
    }

    /// Dials a peer for a caller. The caller gets the outcome once the peer is identified.
    pub fn connect(
        &mut self,
        peer: PeerId,
        address: Multiaddr,
        done: oneshot::Sender<Result<(), String>>,
    ) {
        if self
            .connected
            .get(&peer)
            .is_some_and(|peer| peer.identity.is_some())
        {
            let _ = done.send(Ok(()));
            return;
        }
        self.pending.retain(|pending| !pending.done.is_closed());
        if self.pending.len() >= MAX_PENDING {
            let _ = done.send(Err("too many connections are being waited for".into()));
            return;
        }
        // Dial even while other addresses of the peer are dialled: an operator may know better.
        let options = dial_options(peer, vec![address], PeerCondition::Disconnected);
        self.pending.push(PendingConnect {
            peer,
            dial: Some(options.connection_id()),
            done,
        });
        self.dial_with(peer, options);
    }

    /// Handles a dial that ended because the peer is connected. Its callers now wait for the
    /// outcome of the connection (identified or closed) instead of the outcome of the dial.
    fn on_dial_over(&mut self, dial: ConnectionId) {
        self.pending
            .iter_mut()
            .filter(|pending| pending.dial == Some(dial))
            .for_each(|pending| pending.dial = None);
    }

    fn complete_pending(
        &mut self,
        which: impl FnMut(&mut PendingConnect) -> bool,
        outcome: &Result<(), String>,
    ) {
        for pending in self.pending.extract_if(.., which) {
            let _ = pending.done.send(outcome.clone());
        }
    }

    /// Closes a peer's connections, for a reason that is written to the ledger.
    pub fn close(&mut self, peer: PeerId, reason: &'static str, evidence: String) {
        if let Some(connected) = self.connected.get_mut(&peer) {
            connected.leaving.get_or_insert((reason, evidence));
            let _ = self.swarm.disconnect_peer_id(peer);
        }
    }

    /// Closes the surplus connections that are due at `now`.
    pub fn on_timer(&mut self, now: Instant) {
        for link in self.surplus.extract_if(.., |link| link.at <= now) {
            if self
                .connected
                .get(&link.peer)
                .is_some_and(|peer| peer.links.len() > 1)
            {
                self.swarm.close_connection(link.connection);
            }
        }
    }

    /// The time at which [`Host::on_timer`] should be called next.
    pub fn next_wake(&self) -> Option<Instant> {
        self.surplus.iter().map(|link| link.at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_stream_whose_negotiation_times_out_is_silence_and_a_refused_one_is_not() {
        let other = |kind: io::ErrorKind| ping::Failure::Other {
            error: Box::new(io::Error::from(kind)),
        };
        assert!(is_silence(&ping::Failure::Timeout) && is_silence(&other(io::ErrorKind::TimedOut)));
        assert!(
            !is_silence(&ping::Failure::Unsupported)
                && !is_silence(&other(io::ErrorKind::ConnectionReset))
        );
    }
}
