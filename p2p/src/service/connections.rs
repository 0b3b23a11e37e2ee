//! Who is connected: static peers dialled again, surplus connections closed, dead ones noticed.

use super::{Awaited, Connected, Service};
use crate::{
    behaviour::BehaviourEvent,
    check::unix_now,
    gate::{ip_of, site},
    guard::GuardError,
    handle::PeerInfo,
    metrics::{self as meters, GossipEvent},
    peers::{Link, Offence, surplus},
};
use libp2p::{
    Multiaddr, PeerId, TransportError,
    core::ConnectedPoint,
    identify,
    multiaddr::Protocol,
    ping,
    swarm::{
        ConnectionError, ConnectionId, DialError, SwarmEvent,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use std::{
    error::Error,
    io,
    time::{Duration, Instant},
};

/// A surplus connection may still carry the first messages of a session: it is closed when they have surely arrived.
const SURPLUS_GRACE: Duration = Duration::from_secs(2);

/// Whether a ping failed because nothing came back. The library keeps the first failure to itself and opens a new stream for the next
/// ping, so what it reports of a dead connection is that this stream was never agreed on. Other errors are those of a peer that lives.
fn is_silence(failure: &ping::Failure) -> bool {
    match failure {
        ping::Failure::Timeout => true,
        ping::Failure::Unsupported => false,
        ping::Failure::Other { error } => error
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::TimedOut),
    }
}

impl Service {
    pub(super) fn on_connection(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                endpoint,
                ..
            } => {
                self.on_connected(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed {
                peer_id,
                connection_id,
                num_established,
                cause,
                ..
            } => {
                let guard = match &cause {
                    Some(ConnectionError::IO(error)) => GuardError::of(error),
                    _ => None,
                };
                let offence = match guard {
                    Some(GuardError::Framing) => Some(Offence::Framing),
                    Some(GuardError::HalfFrame) => Some(Offence::HalfFrame),
                    Some(GuardError::Streams) => Some(Offence::StreamFlood),
                    Some(GuardError::Muxer(_)) | None => None,
                };
                if let (Some(offence), Some(error)) = (offence, guard) {
                    self.on_offence(peer_id, offence, &error.to_string());
                }
                let reason = offence.map_or("closed", |offence| offence.label());
                match num_established {
                    0 => self.on_gone(
                        peer_id,
                        reason,
                        cause.map(|cause| cause.to_string()).unwrap_or_default(),
                    ),
                    _ => self.on_link_closed(peer_id, connection_id),
                }
            }
            SwarmEvent::OutgoingConnectionError {
                peer_id: Some(peer),
                connection_id,
                error,
            } => {
                self.on_dial_failed(peer, connection_id, &error);
            }
            SwarmEvent::NewListenAddr { address, .. } => {
                let address = address.with(Protocol::P2p(*self.swarm.local_peer_id()));
                tracing::info!(%address, "p2p listening");
                self.listen_out.send_modify(|all| all.push(address));
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                let address = address.with(Protocol::P2p(*self.swarm.local_peer_id()));
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
                send_back_addr,
                error,
                ..
            } => {
                tracing::debug!(address = %send_back_addr, %error, "incoming connection failed");
            }
            _ => {}
        }
    }

    pub(super) fn on_ping(&mut self, event: ping::Event) {
        let Some(peer) = self.peers.get_mut(&event.peer) else {
            return;
        };
        match event.result {
            Ok(latency) => peer.latency = latency,
            Err(failure) if is_silence(&failure) => {
                // Another connection of the peer may live.
                if peer.links.len() == 1 {
                    peer.leaving
                        .get_or_insert(("no_answer", "two pings without an answer".into()));
                }
                self.swarm.close_connection(event.connection);
            }
            Err(_) => {}
        }
    }

    pub(super) fn dial_statics(&mut self, now: Instant) {
        for (peer, addresses) in self.statics.due(now) {
            self.dial(peer, addresses);
        }
    }

    pub(super) fn dial(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        self.dial_as(
            peer,
            dial_options(peer, addresses, PeerCondition::DisconnectedAndNotDialing),
        );
    }

    pub(super) fn dial_as(&mut self, peer: PeerId, options: DialOpts) {
        let dial = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {}
            // Already connected or dialling: the outcome of that is told.
            Err(DialError::DialPeerConditionFalse(_)) => self.on_dial_over(dial),
            Err(error) => self.on_dial_failed(peer, dial, &error),
        }
    }

    /// Closes a peer's connections, for a reason that the ledger will name.
    pub(super) fn close(&mut self, peer: PeerId, reason: &'static str, evidence: String) {
        if let Some(connected) = self.peers.get_mut(&peer) {
            connected.leaving.get_or_insert((reason, evidence));
            let _ = self.swarm.disconnect_peer_id(peer);
        }
    }

    pub(super) fn on_identified(&mut self, id: PeerId, info: identify::Info) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.identity = Some(info);
            self.greet(id);
            self.tell_peers();
            self.answer_awaited(|awaited| awaited.peer == id, &Ok(()));
        }
    }

    /// Who waits for it waits for what becomes of the connection.
    fn on_dial_over(&mut self, dial: ConnectionId) {
        self.awaited
            .iter_mut()
            .filter(|awaited| awaited.dial == Some(dial))
            .for_each(|awaited| awaited.dial = None);
    }

    fn answer_awaited(
        &mut self,
        which: impl FnMut(&mut Awaited) -> bool,
        outcome: &Result<(), String>,
    ) {
        for awaited in self.awaited.extract_if(.., which) {
            let _ = awaited.done.send(outcome.clone());
        }
    }

    pub(super) fn close_surplus(&mut self, now: Instant) {
        let (due, later) = self.closing.drain(..).partition(|(at, ..)| *at <= now);
        self.closing = later;
        let due: Vec<(Instant, PeerId, ConnectionId)> = due;
        for (_, peer, connection) in due {
            if self
                .peers
                .get(&peer)
                .is_some_and(|peer| peer.links.len() > 1)
            {
                self.swarm.close_connection(connection);
            }
        }
    }

    pub(super) fn tell_peers(&self) {
        let info = |(id, peer): (&PeerId, &Connected)| PeerInfo {
            id: *id,
            address: peer
                .links
                .first()
                .map(|link| link.address.clone())
                .unwrap_or_else(Multiaddr::empty),
            agent: peer
                .identity
                .as_ref()
                .map(|info| info.agent_version.clone())
                .unwrap_or_default(),
            outbound: peer.links.first().is_some_and(|link| link.outbound),
            protected: self.reputation.is_protected(id),
            connections: peer.links.len(),
        };
        self.peers_out
            .send_replace(self.peers.iter().map(info).collect());
        meters::peers(self.peers.len());
    }

    fn on_connected(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        let now = Instant::now();
        let address = endpoint.get_remote_address().clone();
        self.on_dial_over(connection);
        let (ip, outbound) = (ip_of(&address), endpoint.is_dialer());
        if self.statics.contains(&peer) {
            self.rules.lock().friendly_addresses.extend(ip.map(site));
        }
        let entry = self.peers.entry(peer).or_insert_with(|| Connected {
            links: Vec::new(),
            since: now,
            identity: None,
            latency: Duration::ZERO,
            leaving: None,
        });
        entry.links.push(Link {
            id: connection,
            address: address.clone(),
            outbound,
            since: now,
        });
        if entry.links.len() == 1 {
            tracing::info!(%peer, %address, outbound, "peer connected");
            self.reputation.on_connected(peer, ip, outbound, unix_now());
            self.candidates.on_connected(&peer);
            meters::gossip(GossipEvent::AddPeer);
            if self.statics.contains(&peer) {
                self.statics.on_connected(&peer, now);
            }
            if self.fetching && (!self.only_static || self.statics.contains(&peer)) {
                self.sync.on_peer(peer, now);
            }
        } else {
            let surplus = surplus(self.swarm.local_peer_id(), &peer, &entry.links);
            self.closing.retain(|(_, other, _)| *other != peer);
            self.closing.extend(
                surplus
                    .into_iter()
                    .map(|id| (now + SURPLUS_GRACE, peer, id)),
            );
        }
        self.tell_peers();
    }

    /// The peer has others: it is where the oldest of them comes from.
    fn on_link_closed(&mut self, id: PeerId, connection: ConnectionId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.links.retain(|link| link.id != connection);
            self.reputation.on_address(&id, peer.ip());
        }
        self.tell_peers();
    }

    fn on_gone(&mut self, peer: PeerId, reason: &'static str, cause: String) {
        let now = Instant::now();
        let Some(gone) = self.peers.remove(&peer) else {
            return;
        };
        meters::gossip(GossipEvent::RemovePeer);
        let (reason, evidence) = gone.leaving.unwrap_or((reason, cause));
        self.reputation
            .on_disconnected(&peer, reason, &evidence, unix_now());
        if let Some(info) = gone.identity {
            self.known.put(peer, info);
        }
        let outcome = Err(format!("disconnected: {reason}"));
        self.answer_awaited(
            |awaited| awaited.peer == peer && awaited.dial.is_none(),
            &outcome,
        );
        self.statics.on_disconnected(&peer, now);
        self.farewell(&peer);
        self.candidates.on_disconnected(&peer, now);
        self.sync.on_peer_gone(peer, now);
        self.tell_peers();
    }

    fn on_dial_failed(&mut self, peer: PeerId, dial: ConnectionId, error: &DialError) {
        self.answer_awaited(
            |awaited| awaited.dial == Some(dial),
            &Err(error.to_string()),
        );
        self.candidates.on_dial_failed(&peer, Instant::now());
        let first = self
            .statics
            .on_dial_failed(&peer, is_unanswered(error), Instant::now());
        match error {
            DialError::WrongPeerId { obtained, address } if first => {
                tracing::warn!(expected = %peer, %obtained, %address, "another peer answers at a static peer's address");
            }
            error if first => {
                tracing::warn!(%peer, %error, "static peer not reachable, trying again until it is")
            }
            error => tracing::debug!(%peer, %error, "dial failed"),
        }
    }
}

pub(super) fn dial_options(
    peer: PeerId,
    addresses: Vec<Multiaddr>,
    condition: PeerCondition,
) -> DialOpts {
    // A port of its own: from the listening port a second connection to the same peer could not be told from a closed one.
    DialOpts::peer_id(peer)
        .condition(condition)
        .addresses(addresses)
        .allocate_new_port()
        .build()
}

/// Whether nobody answered at one of the addresses: no process there, no machine, or no way to it.
pub(crate) fn is_unanswered(error: &DialError) -> bool {
    const UNANSWERED: [io::ErrorKind; 4] = [
        io::ErrorKind::ConnectionRefused,
        io::ErrorKind::TimedOut,
        io::ErrorKind::HostUnreachable,
        io::ErrorKind::NetworkUnreachable,
    ];
    let DialError::Transport(errors) = error else {
        return false;
    };
    errors.iter().any(|(_, error)| match error {
        TransportError::Other(error) => {
            io_errors(error).any(|error| UNANSWERED.contains(&error.kind()))
        }
        TransportError::MultiaddrNotSupported(_) => false,
    })
}

/// The errors of input and output in a chain of causes.
fn io_errors(error: &io::Error) -> impl Iterator<Item = &io::Error> {
    std::iter::successors(Some(error as &(dyn Error + 'static)), |error| {
        next_cause(*error)
    })
    .filter_map(|error| error.downcast_ref())
}

fn next_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>() {
        // Its source is the source of what it holds.
        Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
        None => error.source(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_stream_that_is_never_agreed_on_is_silence_and_a_refused_one_is_not() {
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
