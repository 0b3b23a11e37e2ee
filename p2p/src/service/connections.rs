//! Dials candidates, trims peers above the limit, and publishes the connected peers.

use super::Service;
use crate::{
    discovery::Contact,
    host::{Connected, dial::is_unanswered},
    peers::TrimCandidate,
};
use libp2p::{PeerId, swarm::DialError};
use std::time::Instant;

impl Service {
    pub(super) fn on_found(&mut self, contact: Contact) {
        let now = Instant::now();
        let connected = self.host.connected().contains_key(&contact.peer());
        self.peers.on_found(contact, connected, now);
        self.dial_candidates(now);
    }

    /// Dials some of the peers that discovery found, while too few peers are connected.
    pub(super) fn dial_candidates(&mut self, now: Instant) {
        let connected = self.host.staying().count();
        for (peer, addresses) in self.peers.candidates_to_dial(connected, now) {
            self.host.dial(peer, addresses);
        }
    }

    pub(super) fn on_dial_failed(&mut self, peer: PeerId, error: &DialError, now: Instant) {
        // Warn once per absence of a static peer: only its first failed dial returns `true`.
        let warns = self.peers.on_dial_failed(&peer, is_unanswered(error), now);
        match error {
            DialError::WrongPeerId { obtained, address } if warns => {
                tracing::warn!(expected = %peer, %obtained, %address, "another peer answers at a static peer's address");
            }
            error if warns => {
                tracing::warn!(%peer, %error, "static peer not reachable, trying again until it is")
            }
            error => tracing::debug!(%peer, %error, "dial failed"),
        }
    }

    /// Disconnects some peers if more than the limit are connected.
    pub(super) fn trim_peers(&mut self, now: Instant) {
        let candidate = |(id, peer): (&PeerId, &Connected)| TrimCandidate {
            peer: *id,
            protected: self.peers.is_protected(id),
            outbound: peer.outbound(),
            since: peer.since,
            score: self.peers.reputation.total(id),
        };
        let staying: Vec<TrimCandidate> = self.host.staying().map(candidate).collect();
        let (count, limits) = (staying.len(), self.peers.limits);
        for peer in limits.trim(staying, now) {
            let evidence = format!("{count} peers, at most {} are kept", limits.hi);
            self.host.close(peer, "too_many_peers", evidence);
        }
    }

    /// Publishes the list of connected peers to the handle, the servers and discovery.
    pub(super) fn publish_peers(&self) {
        self.host
            .publish_peers(|peer| self.peers.is_protected(peer));
    }
}
