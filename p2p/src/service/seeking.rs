//! Peers that discovery found: dialled while there are too few.

use super::Service;
use crate::discovery::Contact;
use libp2p::{Multiaddr, PeerId};
use std::time::Instant;

impl Service {
    pub(super) fn on_found(&mut self, contact: Contact, now: Instant) {
        // Static peers have a schedule of their own.
        if !self.statics.contains(&contact.peer()) {
            let connected = self.peers.contains_key(&contact.peer());
            self.candidates.on_found(contact, connected, now);
            self.dial_candidates(now);
        }
    }

    /// Dials some of those found, while there are fewer peers than the lower tide.
    pub(super) fn dial_candidates(&mut self, now: Instant) {
        let staying = self
            .peers
            .values()
            .filter(|peer| peer.leaving.is_none())
            .count();
        let wanted = self.tides.lo.saturating_sub(staying);
        let rules = self.rules.clone();
        let refused = |peer: &PeerId, addresses: &[Multiaddr]| {
            let rules = rules.lock();
            let refusal = match rules.peer(peer) {
                Ok(()) => {
                    let all = addresses
                        .iter()
                        .map(|address| rules.multiaddr(address).err());
                    all.reduce(|one, other| if one.is_none() { one } else { other })
                        .flatten()
                }
                Err(refusal) => Some(refusal),
            };
            if let Some(refusal) = refusal {
                metrics::counter!("starling_p2p_refused_candidates_total", "reason" => refusal.label()).increment(1);
                tracing::debug!(%peer, reason = refusal.label(), "not dialled: {refusal}");
            }
            refusal
        };
        for (peer, addresses) in self.candidates.due(wanted, now, refused) {
            tracing::debug!(%peer, ?addresses, peers = staying, wanted = self.tides.lo, "dialling a peer that discovery found");
            metrics::counter!("starling_p2p_candidates_dialled_total").increment(1);
            self.dial(peer, addresses);
        }
    }
}
