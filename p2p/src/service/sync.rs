//! Sync in the swarm's task: carries out the actions of [`Sync`](crate::sync::Sync), and passes the
//! results of its requests back.

use super::{Event, Service, SyncAction};
use crate::{
    clock::{Moment, unix_now},
    peers::Offence,
    sync::{FetchError, client::ClientEvent},
    types::SyncReport,
};
use libp2p::PeerId;
use std::time::Instant;
use tokio::sync::mpsc;

impl Service {
    /// Carries out the actions of sync; `false` when the node has dropped the receiver of events.
    pub(super) fn dispatch_sync(&mut self) -> bool {
        while let Some(action) = self.sync.poll() {
            match action {
                SyncAction::HandOver {
                    payload,
                    provenance,
                    blame,
                } => {
                    let event = Event {
                        payload,
                        provenance,
                        blame,
                    };
                    if !self.hand_over(event) {
                        return false;
                    }
                }
                SyncAction::FetchNumber { id, peer, number } => {
                    self.client.fetch_number(id, peer, number);
                }
                SyncAction::FetchRange { id, peer, request } => {
                    self.client.fetch_range(id, peer, request);
                }
                SyncAction::Cancel { id } => self.client.cancel_range(id),
                SyncAction::Penalize {
                    peer,
                    offence,
                    evidence,
                } => self
                    .peers
                    .on_offence(peer, offence, &evidence, Moment::now()),
                SyncAction::Note {
                    peer,
                    reason,
                    evidence,
                } => self.peers.note(peer, reason, evidence, Moment::now()),
                SyncAction::Drop { tip, why } => {
                    tracing::warn!(number = tip.number, hash = %tip.hash, reason = ?why, "unsafe block dropped");
                }
            }
        }
        metrics::gauge!("starling_p2p_gap_blocks").set(self.sync.gap_len() as f64);
        true
    }

    /// Hands a payload to the node; `false` when the node has dropped the receiver of events.
    fn hand_over(&self, event: Event) -> bool {
        match self.events.try_send(event) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            // The channel has capacity for all events that sync has unsettled at once. Only a node
            // that settles payloads which it did not get can fill the channel.
            Err(mpsc::error::TrySendError::Full(event)) => {
                tracing::error!(
                    number = event.payload.number(),
                    "event channel full, block dropped"
                );
                true
            }
        }
    }

    /// Handles the result of a request.
    pub(super) fn on_client_event(&mut self, event: ClientEvent) {
        let now = Instant::now();
        match event {
            ClientEvent::Fetched {
                id,
                peer,
                number,
                outcome,
            } => {
                self.credit(peer, outcome.as_ref().err(), || {
                    format!("asked for block {number}")
                });
                self.sync.on_fetched(id, outcome, now);
            }
            ClientEvent::Links { id, links } => self.sync.on_links(id, &links, now),
            ClientEvent::Blocks { id, blocks } => self.sync.on_blocks(id, blocks, now),
            ClientEvent::RangeEnded { id, peer, outcome } => {
                self.credit(peer, outcome.as_ref().err(), || {
                    "asked for a range of blocks".into()
                });
                self.sync.on_range_end(id, outcome, now);
            }
            ClientEvent::Status { peer, status } => self.sync.on_status(peer, status, now),
            ClientEvent::Offence {
                peer,
                offence,
                evidence,
            } => self
                .peers
                .on_offence(peer, offence, &evidence, Moment::now()),
        }
    }

    /// Credits the peer with a response, or charges it if none came. [`Sync`](crate::sync::Sync)
    /// penalizes the peer for false and malformed responses.
    fn credit(
        &mut self,
        peer: PeerId,
        error: Option<&FetchError>,
        evidence: impl FnOnce() -> String,
    ) {
        match error {
            None => self.peers.reputation.on_valid_response(peer, unix_now()),
            // A connection that is lost during a request is no offence.
            Some(FetchError::TimedOut) if self.host.connected().contains_key(&peer) => {
                let offence = Offence::NoResponse;
                self.peers
                    .on_offence(peer, offence, &evidence(), Moment::now());
            }
            Some(_) => {}
        }
    }

    pub(super) fn may_fetch_from(&self, peer: &PeerId) -> bool {
        self.fetching && (!self.only_static || self.peers.statics.contains(peer))
    }

    /// Handles the list of protocols that a peer has reported.
    pub(super) fn on_identified(&mut self, peer: PeerId, now: Instant) {
        if !self.may_fetch_from(&peer) {
            return;
        }
        let connected = self.host.connected().get(&peer);
        if let Some(info) = connected.and_then(|peer| peer.identity.as_ref()) {
            self.client.on_identified(peer, &info.protocols, now);
        }
    }

    pub(super) fn report_sync(&self) -> SyncReport {
        let stalled = self.sync.stall(Instant::now()).map(|(_, why)| why);
        SyncReport {
            stalled,
            ..self.sync.report()
        }
    }
}
