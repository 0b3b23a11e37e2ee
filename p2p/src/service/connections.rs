//! Who is connected: static peers dialled again, surplus connections closed, dead ones noticed.

use super::{Connected, Service};
use crate::{
    behaviour::BehaviourEvent,
    guard::GuardError,
    handle::PeerInfo,
    peers::{Link, Offence, surplus},
};
use libp2p::{
    PeerId,
    core::ConnectedPoint,
    multiaddr::Protocol,
    ping,
    swarm::{
        ConnectionError, ConnectionId, DialError, SwarmEvent,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use std::{
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
        ping::Failure::Other { error } => {
            error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
        }
    }
}

impl Service {
    pub(super) fn on_connection(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_connected(peer_id, connection_id, &endpoint);
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, cause, .. } => {
                if let Some(peer) = self.peers.get_mut(&peer_id) {
                    peer.links.retain(|link| link.id != connection_id);
                }
                if matches!(&cause, Some(ConnectionError::IO(error)) if GuardError::is_framing(error)) {
                    self.offences.record(&peer_id, &Offence::Gossip("framing"), Instant::now());
                }
                match num_established {
                    0 => self.on_gone(peer_id, cause.map(|cause| cause.to_string())),
                    _ => self.tell_peers(),
                }
            }
            SwarmEvent::OutgoingConnectionError { peer_id: Some(peer), error, .. } => self.on_dial_failed(peer, &error),
            SwarmEvent::NewListenAddr { address, .. } => {
                let address = address.with(Protocol::P2p(*self.swarm.local_peer_id()));
                tracing::info!(%address, "p2p listening");
                self.listen_out.send_modify(|all| all.push(address));
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                let address = address.with(Protocol::P2p(*self.swarm.local_peer_id()));
                self.listen_out.send_modify(|all| all.retain(|other| *other != address));
            }
            SwarmEvent::ListenerClosed { reason, .. } => tracing::error!(?reason, "p2p listener closed"),
            SwarmEvent::ListenerError { error, .. } => tracing::warn!(%error, "p2p listener"),
            SwarmEvent::IncomingConnectionError { send_back_addr, error, .. } => {
                tracing::debug!(address = %send_back_addr, %error, "incoming connection failed");
            }
            _ => {}
        }
    }

    pub(super) fn on_ping(&mut self, event: ping::Event) {
        if event.result.is_err_and(|failure| is_silence(&failure)) {
            tracing::info!(peer = %event.peer, "peer does not answer, connection closed");
            self.swarm.close_connection(event.connection);
        }
    }

    pub(super) fn dial_statics(&mut self, now: Instant) {
        for (peer, addresses) in self.statics.due(now) {
            // A port of its own: from the listening port a second connection to the same peer could not be told from a closed one.
            let options = DialOpts::peer_id(peer)
                .condition(PeerCondition::DisconnectedAndNotDialing)
                .addresses(addresses)
                .allocate_new_port()
                .build();
            match self.swarm.dial(options) {
                // Already connected or dialling: the outcome of that is told.
                Ok(()) | Err(DialError::DialPeerConditionFalse(_)) => {}
                Err(error) => self.on_dial_failed(peer, &error),
            }
        }
    }

    pub(super) fn close_surplus(&mut self, now: Instant) {
        let (due, later) = self.closing.drain(..).partition(|(at, ..)| *at <= now);
        self.closing = later;
        let due: Vec<(Instant, PeerId, ConnectionId)> = due;
        for (_, peer, connection) in due {
            if self.peers.get(&peer).is_some_and(|peer| peer.links.len() > 1) {
                self.swarm.close_connection(connection);
            }
        }
    }

    pub(super) fn tell_peers(&self) {
        let info = |(id, peer): (&PeerId, &Connected)| PeerInfo {
            id: *id,
            address: peer.address.clone(),
            agent: peer.agent.clone(),
            outbound: peer.links.first().is_some_and(|link| link.outbound),
            protected: self.statics.contains(id),
            connections: peer.links.len(),
        };
        self.peers_out.send_replace(self.peers.iter().map(info).collect());
        metrics::gauge!("starling_p2p_peers").set(self.peers.len() as f64);
    }

    fn on_connected(&mut self, peer: PeerId, connection: ConnectionId, endpoint: &ConnectedPoint) {
        let now = Instant::now();
        let address = endpoint.get_remote_address().clone();
        let link = Link { id: connection, outbound: endpoint.is_dialer(), since: now };
        let entry = self.peers.entry(peer).or_insert_with(|| Connected { links: Vec::new(), address, agent: String::new() });
        entry.links.push(link);
        if entry.links.len() == 1 {
            tracing::info!(%peer, address = %entry.address, outbound = link.outbound, "peer connected");
            self.statics.on_connected(&peer, now);
            if self.fetching {
                self.sync.on_peer(peer, now);
            }
        } else {
            let surplus = surplus(self.swarm.local_peer_id(), &peer, &entry.links);
            self.closing.retain(|(_, other, _)| *other != peer);
            self.closing.extend(surplus.into_iter().map(|id| (now + SURPLUS_GRACE, peer, id)));
        }
        self.tell_peers();
    }

    fn on_gone(&mut self, peer: PeerId, cause: Option<String>) {
        let now = Instant::now();
        tracing::info!(%peer, cause, "peer disconnected");
        self.peers.remove(&peer);
        self.statics.on_disconnected(&peer, now);
        self.sync.on_peer_gone(peer, now);
        self.tell_peers();
    }

    fn on_dial_failed(&mut self, peer: PeerId, error: &DialError) {
        let first = self.statics.on_dial_failed(&peer, Instant::now());
        match error {
            DialError::WrongPeerId { obtained, address } if first => {
                tracing::warn!(expected = %peer, %obtained, %address, "another peer answers at a static peer's address");
            }
            error if first => tracing::warn!(%peer, %error, "static peer not reachable, trying again until it is"),
            error => tracing::debug!(%peer, %error, "dial failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_stream_that_is_never_agreed_on_is_silence_and_a_refused_one_is_not() {
        let other = |kind: io::ErrorKind| ping::Failure::Other { error: Box::new(io::Error::from(kind)) };
        assert!(is_silence(&ping::Failure::Timeout) && is_silence(&other(io::ErrorKind::TimedOut)));
        assert!(!is_silence(&ping::Failure::Unsupported) && !is_silence(&other(io::ErrorKind::ConnectionReset)));
    }
}
