//! Blocks that peers send and that this node publishes.
//!
//! The flow of a message: its connection unpacks it ([`router`]) → gossipsub passes it on to
//! [`Gossip`] → [`check`] runs the gossip check on a thread of its own → gossipsub gets the
//! verdict, and the service gets an accepted block ([`GossipAction::Accepted`]), which it hands to
//! sync. Blocks of our own pass through [`check`] too, and are then published ([`publish`]).
//!
//! [`topics`] has the four topics and gossipsub's parameters, [`unknown_signer`] holds offences
//! while L1 may name a new signer, and [`timing`] measures how blocks arrive.
//!
//! The module owns no socket: gossipsub belongs to the host, and every function that needs
//! gossipsub gets the [`Router`] as a parameter. Decisions about peers are returned as
//! [`GossipAction`]s.
//!
//! Overload: messages. [`router`] bounds the unpacking; [`check`] bounds the checks and the
//! messages that wait for one. At most one block of our own waits to be sent again.

pub mod check;
mod publish;
pub mod router;
pub mod timing;
pub mod topics;
pub mod unknown_signer;

use crate::{
    metrics::{self as meters, GossipEvent},
    peers::Offence,
    types::{Arrival, MeshReport},
};
use alloy_primitives::{Address, B256};
use check::{
    Accepted, CheckOutcome, CheckedMessage, Checker, MessageOrigin, QueueFull, RefusedMessage,
    Unchecked,
};
use libp2p::{
    PeerId,
    gossipsub::{self, MessageAcceptance, MessageId},
};
use publish::UnsentBlock;
use router::{Router, RouterEvent};
use starling_proto::{
    gossip::Reason,
    payload::{Payload, PayloadVersion},
};
use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};
use timing::{BlockTiming, SharedTimings};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use topics::Topics;
use unknown_signer::{RejectionCost, UnknownSignerHold};

/// Shortest time between two warnings about the clock.
const CLOCK_WARNING: Duration = Duration::from_secs(30);
/// Shortest time between two errors about own blocks that are refused for one reason.
const OWN_REFUSED_ERROR: Duration = Duration::from_secs(60);
/// Largest number of offences charged per second to a peer that repeats messages: more than a ban
/// needs.
const REPLAYS: u32 = 200;

/// A channel for the blocks that peers send, that the check accepts, and that `signer` has signed.
#[derive(Debug)]
pub struct OwnKeyWatch {
    pub signer: Address,
    /// The channel; blocks are dropped while it is full.
    pub blocks: mpsc::Sender<Arc<Payload>>,
}

/// An action for the other modules, to be carried out in order.
#[derive(Debug)]
pub enum GossipAction {
    /// A peer broke a rule.
    Offence {
        peer: PeerId,
        offence: Offence,
        evidence: String,
    },
    /// Write an entry into the ledger that costs the peer nothing.
    Note {
        peer: PeerId,
        reason: &'static str,
        evidence: String,
    },
    /// A peer's block passed the check.
    Accepted { arrival: Arrival, signer: Address },
    /// Our own block of this hash passed the check and is published.
    Own(B256),
}

/// The gossip module.
pub struct Gossip {
    topics: Topics,
    timings: SharedTimings,
    /// Largest age of a block that is accepted or sent.
    max_age: Duration,
    checker: Checker,
    unknown_signer: UnknownSignerHold,
    own_key: Option<OwnKeyWatch>,
    /// Our newest block that has reached no peer yet.
    unsent: Option<UnsentBlock>,
    last_clock_warning: Option<Instant>,
    own_refusals: OwnRefusals,
    actions: VecDeque<GossipAction>,
}

impl Gossip {
    /// A module that checks with `checker`. The router counts copies in the same `timings`.
    pub fn new(
        topics: Topics,
        timings: SharedTimings,
        max_age: Duration,
        checker: Checker,
    ) -> Self {
        Self {
            topics,
            timings,
            max_age,
            checker,
            unknown_signer: UnknownSignerHold::default(),
            own_key: None,
            unsent: None,
            last_clock_warning: None,
            own_refusals: OwnRefusals::default(),
            actions: VecDeque::new(),
        }
    }

    /// The next action. Call after every event, until `None`.
    pub fn poll(&mut self) -> Option<GossipAction> {
        self.actions.pop_front()
    }

    /// The next check that ends; pends while no check is in flight.
    pub async fn next_checked(&mut self) -> CheckedMessage {
        self.checker.next().await
    }

    /// Checks a block of our own. The block is published when its check has ended.
    pub fn on_publish(&mut self, payload: Arc<Payload>, signature: [u8; 65]) {
        let number = payload.number();
        if !self.checker.submit_own(payload, signature) {
            tracing::warn!(number, "too many blocks of our own at once, not gossiped");
        }
    }

    /// The signer whose blocks are accepted, if there is one.
    pub fn signer(&self) -> Option<Address> {
        self.checker.signer()
    }

    /// Sets the signer that L1 names now, and charges or drops the offences held for an unknown
    /// signer.
    pub fn on_signer(&mut self, signer: Address, router: &mut Router) {
        if self.checker.set_signer(signer) {
            router.set_accepting(self.checker.has_signer());
            router.forget_bombs();
        }
        if let Some((unknown, held)) = self.unknown_signer.resolve(signer) {
            let reason = Reason::WrongSigner(unknown);
            for (peer, bloat) in held {
                self.charge(peer, Offence::Gossip(reason.label()), reason.to_string());
                if bloat > 0 {
                    self.charge_bomb(peer, bloat);
                }
            }
        }
    }

    /// Registers `waiter`, which gets the next unknown signer.
    pub fn on_unknown_signer_waiter(&mut self, waiter: oneshot::Sender<Address>) {
        self.unknown_signer.set_waiter(waiter);
    }

    /// Reports accepted blocks of one signer to `watch` from now on. It replaces an earlier watch.
    pub fn on_own_key_watch(&mut self, watch: OwnKeyWatch) {
        self.own_key = Some(watch);
    }

    /// Records the time at which this block became the chain's head.
    pub fn on_head(&self, hash: B256) {
        self.timings.on_head(hash);
    }

    /// Called once a second. Charges repeated copies, and sends a kept block again. `now` is Unix
    /// time.
    pub fn on_second(&mut self, now: u64, router: &mut Router, local: PeerId) {
        for (peer, copies) in self.timings.take_replayers() {
            let evidence = format!("{copies} copies of what it had sent before");
            (0..copies.min(REPLAYS))
                .for_each(|_| self.charge(peer, Offence::Replay, evidence.clone()));
        }
        self.retry_unsent(now, router, local);
    }

    /// The subscribers and mesh of every topic, in the order of the topics' names.
    pub fn mesh(&self, router: &Router) -> Vec<MeshReport> {
        let report = |topic| MeshReport {
            topic: ToString::to_string(topic),
            subscribers: router
                .all_peers()
                .filter(|(_, topics)| topics.contains(&topic))
                .map(|(peer, _)| *peer)
                .collect(),
            mesh: router.mesh_peers(topic).copied().collect(),
        };
        let mut mesh: Vec<MeshReport> = self.topics.names().map(report).collect();
        mesh.sort_by(|a, b| a.topic.cmp(&b.topic));
        mesh
    }

    /// The newest blocks that came by gossip, newest first.
    pub fn block_timings(&self) -> Vec<BlockTiming> {
        self.timings.report()
    }

    /// Sets the metrics of the mesh's size.
    pub fn record_mesh(&self, router: &Router) {
        for version in PayloadVersion::ALL {
            let mesh = self
                .topics
                .name(version)
                .map_or(0, |topic| router.mesh_peers(&topic).count());
            let label = ["V1", "V2", "V3", "V4"][version as usize];
            metrics::gauge!("starling_p2p_mesh_peers", "topic" => label).set(mesh as f64);
        }
    }

    /// Handles an event of the router. `is_protected` is called for the sender of a message.
    pub fn on_router_event(
        &mut self,
        event: RouterEvent,
        router: &mut Router,
        local: PeerId,
        is_protected: impl Fn(&PeerId) -> bool,
    ) {
        match event {
            RouterEvent::Offence {
                peer,
                offence,
                evidence,
            } => self.charge(peer, offence, evidence),
            RouterEvent::Gossip { event, permit } => match event {
                gossipsub::Event::Message {
                    propagation_source: peer,
                    message_id,
                    message,
                } => {
                    let protected = is_protected(&peer);
                    self.on_message(peer, protected, message_id, message, permit, router);
                }
                gossipsub::Event::Subscribed { peer_id, topic } => {
                    tracing::debug!(peer = %peer_id, %topic, "peer subscribed");
                    self.on_subscribed(&topic, router, local);
                }
                gossipsub::Event::SlowPeer {
                    peer_id,
                    failed_messages,
                } => {
                    tracing::debug!(peer = %peer_id, ?failed_messages, "peer reads too slowly, messages dropped");
                    self.on_full_queue(peer_id);
                }
                gossipsub::Event::GossipsubNotSupported { peer_id } => {
                    tracing::debug!(peer = %peer_id, "peer does not speak gossipsub");
                }
                gossipsub::Event::Unsubscribed { .. } => {}
            },
        }
    }

    fn on_message(
        &mut self,
        peer: PeerId,
        protected: bool,
        message: MessageId,
        content: gossipsub::Message,
        permit: Option<OwnedSemaphorePermit>,
        router: &mut Router,
    ) {
        let Some(version) = self.topics.version(&content.topic) else {
            return;
        };
        let unchecked = Unchecked {
            peer,
            protected,
            message,
            version,
            sealed: content.data,
            permit,
        };
        let Some(RefusedMessage {
            peer,
            message,
            full,
        }) = self.checker.submit(unchecked)
        else {
            return;
        };
        report(
            router,
            &message,
            &peer,
            MessageAcceptance::Ignore,
            "overload",
        );
        // The byte limit is for all peers together, so the sender of the largest message is not
        // charged.
        if full == QueueFull::Peer {
            let evidence = "messages faster than they are checked";
            self.charge(peer, Offence::Flood, evidence.into());
        }
    }

    /// Handles the end of a message's check. `local` is our own peer id.
    pub fn on_checked(&mut self, checked: CheckedMessage, router: &mut Router, local: PeerId) {
        metrics::histogram!("starling_p2p_check_seconds").record(checked.elapsed.as_secs_f64());
        let CheckedMessage {
            origin,
            version,
            outcome,
            bloat,
            elapsed,
        } = checked;
        match (origin, outcome) {
            (MessageOrigin::Peer { peer, message, .. }, CheckOutcome::Accepted(accepted)) => {
                report(router, &message, &peer, MessageAcceptance::Accept, "accept");
                self.on_accepted(peer, message, accepted, elapsed);
            }
            (MessageOrigin::Peer { peer, message, .. }, CheckOutcome::Refused(reason)) => {
                self.on_refused(peer, message, &reason, bloat, router);
            }
            (MessageOrigin::Peer { peer, message, .. }, CheckOutcome::Panicked) => {
                tracing::error!(%peer, "the check of a message panicked");
                report(router, &message, &peer, MessageAcceptance::Reject, "panic");
                self.charge(peer, Offence::Gossip("panic"), "the check panicked".into());
            }
            (MessageOrigin::Own, CheckOutcome::Accepted(accepted)) => {
                self.publish(version, accepted, router, local);
            }
            (MessageOrigin::Own, CheckOutcome::Refused(reason)) => self.on_own_refused(&reason),
            (MessageOrigin::Own, CheckOutcome::Panicked) => {
                tracing::error!("the check of our own block panicked, not sent")
            }
        }
    }

    fn on_accepted(
        &mut self,
        peer: PeerId,
        message: MessageId,
        Accepted {
            arrival, signer, ..
        }: Accepted,
        elapsed: Duration,
    ) {
        let payload = &arrival.payload;
        self.timings.on_accepted(message, peer, payload, elapsed);
        tracing::debug!(%peer, number = payload.number(), hash = %payload.hash, "block accepted from gossip");
        if let Some(watch) = self.own_key.as_ref().filter(|watch| watch.signer == signer) {
            let _ = watch.blocks.try_send(payload.clone());
        }
        self.actions
            .push_back(GossipAction::Accepted { arrival, signer });
    }

    fn on_refused(
        &mut self,
        peer: PeerId,
        message: MessageId,
        reason: &Reason,
        bloat: u32,
        router: &mut Router,
    ) {
        if reason.is_ignore() {
            report(
                router,
                &message,
                &peer,
                MessageAcceptance::Ignore,
                reason.label(),
            );
            if let Reason::Seen(_) = reason {
                self.note(peer, reason);
            }
            return;
        }
        report(
            router,
            &message,
            &peer,
            MessageAcceptance::Reject,
            reason.label(),
        );
        tracing::debug!(%peer, %reason, "message rejected");
        match self.unknown_signer.cost_of(reason, peer, bloat) {
            RejectionCost::Nothing => {}
            RejectionCost::Note => {
                self.warn_clock(&peer, reason);
                self.note(peer, reason);
            }
            RejectionCost::Offence { is_bomb } => {
                self.charge(peer, Offence::Gossip(reason.label()), reason.to_string());
                if is_bomb {
                    router.condemn(message);
                    self.charge_bomb(peer, bloat);
                }
            }
        }
    }

    fn charge(&mut self, peer: PeerId, offence: Offence, evidence: String) {
        self.actions.push_back(GossipAction::Offence {
            peer,
            offence,
            evidence,
        });
    }

    fn charge_bomb(&mut self, peer: PeerId, bloat: u32) {
        let evidence = format!("{bloat} MiB more than such a message can be expected to unpack to");
        self.charge(peer, Offence::Bomb(bloat), evidence);
    }

    /// Records a late, early or repeated block in the ledger without a charge: our clock may be
    /// wrong, and peers may have forgotten that they sent the block.
    fn note(&mut self, peer: PeerId, reason: &Reason) {
        self.actions.push_back(GossipAction::Note {
            peer,
            reason: reason.label(),
            evidence: reason.to_string(),
        });
    }

    /// Warns of late or early blocks. No peer is charged, since the cause may be our own clock.
    fn warn_clock(&mut self, peer: &PeerId, reason: &Reason) {
        if self.may_warn_of_clock() {
            tracing::warn!(%peer, %reason, "blocks outside the clock window: check this machine's clock");
        }
    }

    fn may_warn_of_clock(&mut self) -> bool {
        let now = Instant::now();
        let may = self
            .last_clock_warning
            .is_none_or(|last| now.saturating_duration_since(last) >= CLOCK_WARNING);
        if may {
            self.last_clock_warning = Some(now);
        }
        may
    }

    fn on_own_refused(&mut self, reason: &Reason) {
        match reason {
            Reason::Seen(_) => tracing::debug!(%reason, "our own block has been sent before"),
            // A sequencer that was stopped builds the missing blocks in quick succession after its
            // restart.
            reason if reason.is_clock() => {
                if self.may_warn_of_clock() {
                    tracing::warn!(%reason, "our own blocks are outside the clock window of peers, who must fetch them by number");
                }
            }
            // A sequencer that recovers makes many blocks, which all fail for the same reason.
            reason => {
                if let Some(unlogged) = self.own_refusals.note(reason.label(), Instant::now()) {
                    tracing::error!(%reason, unlogged, "our own block fails the gossip check, not sent: peers must fetch it by number");
                }
            }
        }
    }
}

/// Refusals of our own blocks since the last one that was logged.
#[derive(Debug, Default)]
struct OwnRefusals {
    logged: Option<(&'static str, Instant)>,
    unlogged: u64,
}

impl OwnRefusals {
    /// Notes a refusal. Returns the number of earlier ones that were not logged if this one is to
    /// be logged: the first for its reason, and one a minute while the reason lasts.
    fn note(&mut self, reason: &'static str, now: Instant) -> Option<u64> {
        let is_recent = self.logged.is_some_and(|(logged, at)| {
            logged == reason && now.saturating_duration_since(at) < OWN_REFUSED_ERROR
        });
        if is_recent {
            self.unlogged += 1;
            return None;
        }
        self.logged = Some((reason, now));
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// Reports the verdict on a message to gossipsub and counts it.
fn report(
    router: &mut Router,
    message: &MessageId,
    peer: &PeerId,
    acceptance: MessageAcceptance,
    reason: &'static str,
) {
    metrics::counter!("starling_p2p_gossip_total", "verdict" => reason).increment(1);
    meters::gossip(match acceptance {
        MessageAcceptance::Accept => GossipEvent::Deliver,
        MessageAcceptance::Ignore | MessageAcceptance::Reject => GossipEvent::Reject,
    });
    router.report_message_validation_result(message, peer, acceptance);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_blocks_that_are_refused_for_one_reason_are_one_error_a_minute() {
        let (mut refusals, start) = (OwnRefusals::default(), Instant::now());
        let mut logged = Vec::new();
        for second in 0..130 {
            let now = start + Duration::from_secs(second);
            let reason = if second == 125 {
                "decode"
            } else {
                "too_many_blocks"
            };
            logged.extend(
                refusals
                    .note(reason, now)
                    .map(|unlogged| (second, unlogged)),
            );
        }
        assert_eq!(logged, [(0, 0), (60, 59), (120, 59), (125, 4), (126, 0)]);
    }
}
