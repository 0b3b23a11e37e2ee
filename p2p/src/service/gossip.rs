//! Messages in and out: to the checker, the verdict back to the router, accepted payloads to `sync.rs`.

use super::Service;
use crate::{
    check::{Accepted, Checked, Excess, GivenUp, Origin, Outcome, Unchecked, unix_now},
    metrics::{self as meters, GossipEvent},
    peers::{
        Offence,
        ledger::{Change, Entry},
    },
    topics::Parts,
};
use alloy_primitives::Address;
use libp2p::{
    PeerId,
    gossipsub::{self, MessageAcceptance, MessageId, PublishError, TopicHash},
};
use starling_proto::{gossip::Reason, payload::PayloadVersion};
use std::{
    collections::HashSet,
    time::{Duration, Instant},
};
use tokio::sync::OwnedSemaphorePermit;

/// Clock warnings at most this often.
const CLOCK_WARNING: Duration = Duration::from_secs(30);

/// A block of ours that reached no peer: no peer subscribed to its topic, or the queues to all of them were full. Only the newest such
/// block is kept, since peers fetch its ancestors by number.
pub(super) struct Unheard {
    version: PayloadVersion,
    number: u64,
    timestamp: u64,
    /// The message as the router takes it.
    sealed: Vec<u8>,
    /// Whether an attempt that found all queues full has put the message in gossipsub's cache.
    cached: bool,
    /// Whether the message has been sent again from gossipsub's cache.
    resent: bool,
    /// Peers whose queues were full since then.
    full: HashSet<PeerId>,
}

/// The action of the one-second tick on a kept block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    /// Keep it for the next subscriber.
    Wait,
    /// Send it again from gossipsub's cache.
    Retry,
    /// Peers have it, or would refuse it as too old.
    Drop,
}

/// Decides by the Unix time `now` and by the peers in the topic's mesh, to which gossipsub forwards from its cache. A block that was sent
/// again has reached every peer of the mesh whose queue was not full.
fn next_step(kept: &Unheard, mesh: &[PeerId], now: u64, max_age: u64) -> NextStep {
    let reached = kept.resent && mesh.iter().any(|peer| !kept.full.contains(peer));
    if reached || now.saturating_sub(kept.timestamp) > max_age {
        NextStep::Drop
    } else if kept.cached {
        NextStep::Retry
    } else {
        NextStep::Wait
    }
}

/// Whether an attempt to publish reached no peer and is worth repeating.
fn reached_nobody(error: &PublishError) -> bool {
    matches!(
        error,
        PublishError::NoPeersSubscribedToTopic | PublishError::AllQueuesFull(_)
    )
}

impl Service {
    /// `place`: of a message that is not light.
    pub(super) fn on_gossip(
        &mut self,
        event: gossipsub::Event,
        place: Option<OwnedSemaphorePermit>,
    ) {
        match event {
            gossipsub::Event::Message {
                propagation_source: peer,
                message_id,
                message,
            } => {
                let Some(version) = self.topics.version(&message.topic) else {
                    return;
                };
                let protected = self.reputation.is_protected(&peer);
                let unchecked = Unchecked {
                    peer,
                    protected,
                    message: message_id,
                    version,
                    sealed: message.data,
                    place,
                };
                if let Some(GivenUp {
                    peer,
                    message,
                    excess,
                }) = self.checker.submit(unchecked)
                {
                    self.report(&message, &peer, MessageAcceptance::Ignore, "overload");
                    // That strangers together send too much is not this one's fault.
                    if excess == Excess::OfPeer {
                        self.on_offence(
                            peer,
                            Offence::Flood,
                            "messages faster than they are checked",
                        );
                    }
                }
            }
            gossipsub::Event::Subscribed { peer_id, topic } => {
                tracing::debug!(peer = %peer_id, %topic, "peer subscribed");
                self.resend(&topic);
            }
            gossipsub::Event::SlowPeer {
                peer_id,
                failed_messages,
            } => {
                tracing::debug!(peer = %peer_id, ?failed_messages, "peer reads too slowly, messages dropped");
                if let Some(kept) = &mut self.unheard {
                    kept.full.insert(peer_id);
                }
            }
            gossipsub::Event::GossipsubNotSupported { peer_id } => {
                tracing::debug!(peer = %peer_id, "peer does not speak gossipsub");
            }
            gossipsub::Event::Unsubscribed { .. } => {}
        }
    }

    pub(super) fn on_checked(&mut self, checked: Checked) {
        metrics::histogram!("starling_p2p_check_seconds").record(checked.elapsed.as_secs_f64());
        match (checked.origin, checked.outcome) {
            (Origin::Peer { peer, message, .. }, Outcome::Accepted(accepted)) => {
                self.report(&message, &peer, MessageAcceptance::Accept, "accept");
                let payload = &accepted.arrival.payload;
                self.propagation
                    .on_accepted(message, peer, payload, checked.elapsed);
                tracing::debug!(%peer, number = payload.number(), hash = %payload.hash, "block accepted from gossip");
                if let Some(witness) = self
                    .witness
                    .as_ref()
                    .filter(|witness| witness.signer == accepted.signer)
                {
                    let _ = witness.blocks.try_send(payload.clone());
                }
                self.sync
                    .on_gossip(accepted.arrival, accepted.signer, Instant::now());
            }
            (Origin::Peer { peer, message, .. }, Outcome::Refused(reason))
                if reason.is_ignore() =>
            {
                self.report(&message, &peer, MessageAcceptance::Ignore, reason.label());
                if let Reason::Seen(_) = &reason {
                    self.note_replay(peer, &reason);
                }
            }
            (Origin::Peer { peer, message, .. }, Outcome::Refused(reason)) => {
                self.report(&message, &peer, MessageAcceptance::Reject, reason.label());
                tracing::debug!(%peer, %reason, "message rejected");
                match &reason {
                    reason if reason.is_clock() => {
                        self.warn_clock(&peer, reason);
                        self.note_replay(peer, reason);
                    }
                    Reason::RetiredSigner(_) => {}
                    Reason::WrongSigner(signer)
                        if self.doubt.hold(peer, *signer, checked.bloat) => {}
                    reason => {
                        self.on_offence(peer, Offence::Gossip(reason.label()), &reason.to_string());
                        // What the block signer signed may be as it likes: peers pass it on for that.
                        if matches!(reason, Reason::Signature(_) | Reason::WrongSigner(_))
                            && checked.bloat > 0
                        {
                            self.swarm.behaviour_mut().gossip.condemn(message);
                            self.charge_bomb(peer, checked.bloat);
                        }
                    }
                }
            }
            (Origin::Peer { peer, message, .. }, Outcome::Panicked) => {
                tracing::error!(%peer, "the check of a message panicked");
                self.report(&message, &peer, MessageAcceptance::Reject, "panic");
                self.on_offence(peer, Offence::Gossip("panic"), "the check panicked");
            }
            (Origin::Own, Outcome::Accepted(accepted)) => self.publish(checked.version, accepted),
            (Origin::Own, Outcome::Refused(reason)) => self.own_refused(&reason),
            (Origin::Own, Outcome::Panicked) => {
                tracing::error!("the check of our own block panicked, not sent")
            }
        }
    }

    fn charge_bomb(&mut self, peer: PeerId, bloat: u32) {
        let evidence = format!("{bloat} MiB more than such a message can be expected to unpack to");
        self.on_offence(peer, Offence::Bomb(bloat), &evidence);
    }

    /// What comes too late, or again, costs nothing: our clock, or our peers' memory, may be the cause. The ledger names it.
    fn note_replay(&mut self, peer: PeerId, reason: &Reason) {
        let score = self.reputation.total(&peer);
        let entry = Entry::of_peer(
            peer,
            Change::Score(0.0),
            reason.label(),
            reason.to_string(),
            score,
        );
        self.reputation.note(entry, unix_now());
    }

    pub(super) fn on_signer(&mut self, signer: Address) {
        if self.checker.set_signer(signer) {
            let router = &mut self.swarm.behaviour_mut().gossip;
            router.listen(self.checker.has_signer());
            router.forget_bombs();
        }
        if let Some((stranger, peers)) = self.doubt.settle(signer) {
            let reason = Reason::WrongSigner(stranger);
            for (peer, bloat) in peers {
                self.on_offence(peer, Offence::Gossip(reason.label()), &reason.to_string());
                if bloat > 0 {
                    self.charge_bomb(peer, bloat);
                }
            }
        }
    }

    fn report(
        &mut self,
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
        self.swarm
            .behaviour_mut()
            .gossip
            .report_message_validation_result(message, peer, acceptance);
    }

    /// Late or early blocks may mean that our clock is wrong, so they are nobody's offence.
    fn warn_clock(&mut self, peer: &PeerId, reason: &Reason) {
        if self.may_warn_of_clock() {
            tracing::warn!(%peer, %reason, "blocks outside the clock window: check this machine's clock");
        }
    }

    fn may_warn_of_clock(&mut self) -> bool {
        let now = Instant::now();
        let may = self
            .clock_warning
            .is_none_or(|last| now.saturating_duration_since(last) >= CLOCK_WARNING);
        if may {
            self.clock_warning = Some(now);
        }
        may
    }

    fn own_refused(&mut self, reason: &Reason) {
        match reason {
            Reason::Seen(_) => tracing::debug!(%reason, "our own block has been sent before"),
            // A sequencer that was away makes its missing blocks at once.
            reason if reason.is_clock() => {
                if self.may_warn_of_clock() {
                    tracing::warn!(%reason, "our own blocks are outside the clock window of peers, who must fetch them by number");
                }
            }
            reason => tracing::error!(%reason, "our own block fails the gossip check, not sent"),
        }
    }

    fn publish(&mut self, version: PayloadVersion, accepted: Accepted) {
        let payload = &accepted.arrival.payload;
        self.sync.on_own(payload.hash, Instant::now());
        let Some(sealed) = accepted.sealed else {
            return;
        };
        self.send(Unheard {
            version,
            number: payload.number(),
            timestamp: payload.timestamp(),
            sealed,
            cached: false,
            resent: false,
            full: HashSet::new(),
        });
    }

    fn send(&mut self, mut message: Unheard) {
        let Some(topic) = self.topics.name(message.version) else {
            return;
        };
        let number = message.number;
        match self
            .swarm
            .behaviour_mut()
            .gossip
            .publish(topic, message.sealed.clone())
        {
            Ok(_) => {
                meters::gossip(GossipEvent::Publish);
                tracing::debug!(number, "block published");
                self.unheard.take_if(|unheard| unheard.number <= number);
            }
            Err(error) if reached_nobody(&error) => {
                tracing::debug!(number, %error, "block reached no peer, kept to be sent again");
                message.cached |= matches!(error, PublishError::AllQueuesFull(_));
                self.keep(message);
            }
            Err(PublishError::Duplicate) if message.cached => self.forward_cached(message),
            Err(PublishError::Duplicate) => {
                tracing::debug!(number, "block was already on the network")
            }
            Err(error) => tracing::warn!(number, %error, "block not published"),
        }
    }

    /// Keeps a block that reached no peer, unless a newer block is kept: checks run side by side, so an older block may be published after
    /// a newer one.
    fn keep(&mut self, message: Unheard) {
        if self
            .unheard
            .as_ref()
            .is_none_or(|unheard| unheard.number <= message.number)
        {
            self.unheard = Some(message);
        }
    }

    /// Sends a block from gossipsub's cache. gossipsub refuses to publish a cached message again, even if every queue was full the first
    /// time. Reporting the cached message as accepted makes it forward the message to the mesh. The block is kept until the next tick,
    /// because gossipsub does not say whether the queues are full again: its next heartbeat reports the peers with full queues.
    fn forward_cached(&mut self, mut message: Unheard) {
        let id = MessageId::new(&Parts::of(&message.sealed).id);
        let local = *self.swarm.local_peer_id();
        let router = &mut self.swarm.behaviour_mut().gossip;
        let cached =
            router.report_message_validation_result(&id, &local, MessageAcceptance::Accept);
        tracing::debug!(
            number = message.number,
            cached,
            "block sent again from gossipsub's cache"
        );
        // gossipsub forgets a message's bytes after a few seconds, and refuses it as a duplicate for longer than peers would accept it.
        if cached {
            (message.resent, message.full) = (true, HashSet::new());
            self.keep(message);
        }
    }

    /// Sends the kept block again if it found all queues full: no new subscription need come when all peers are subscribed. `now` is
    /// Unix time.
    pub(super) fn retry_unheard(&mut self, now: u64) {
        let Some(kept) = self.unheard.take() else {
            return;
        };
        let Some(topic) = self.topics.name(kept.version) else {
            return;
        };
        let mesh: Vec<PeerId> = self
            .swarm
            .behaviour()
            .gossip
            .mesh_peers(&topic)
            .copied()
            .collect();
        match next_step(&kept, &mesh, now, self.threshold.as_secs()) {
            NextStep::Wait => self.unheard = Some(kept),
            NextStep::Retry => self.forward_cached(kept),
            NextStep::Drop => tracing::debug!(number = kept.number, "block is not kept any longer"),
        }
    }

    /// A peer subscribed: it gets the block that nobody heard, while it is young enough to be accepted.
    fn resend(&mut self, topic: &TopicHash) {
        let Some(message) = self
            .unheard
            .take_if(|unheard| self.topics.version(topic) == Some(unheard.version))
        else {
            return;
        };
        if unix_now().saturating_sub(message.timestamp) <= self.threshold.as_secs() {
            self.send(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_found_all_queues_full_is_kept_like_one_without_subscribers() {
        assert!(reached_nobody(&PublishError::NoPeersSubscribedToTopic));
        assert!(reached_nobody(&PublishError::AllQueuesFull(3)));
        assert!(!reached_nobody(&PublishError::Duplicate));
        assert!(!reached_nobody(&PublishError::MessageTooLarge));
    }

    #[test]
    fn a_block_that_found_all_queues_full_is_sent_again_until_a_peer_has_room() {
        let [first, second] = [PeerId::random(), PeerId::random()];
        let mesh = [first, second];
        let (number, timestamp, max_age) = (7, 1_000, 60);
        let mut kept = Unheard {
            version: PayloadVersion::V3,
            number,
            timestamp,
            sealed: vec![],
            cached: false,
            resent: false,
            full: HashSet::new(),
        };
        let step = |kept: &Unheard, age| next_step(kept, &mesh, timestamp + age, max_age);
        assert_eq!(step(&kept, 1), NextStep::Wait, "only a subscriber helps");
        kept.cached = true;
        assert_eq!(step(&kept, 1), NextStep::Retry);
        kept.resent = true;
        kept.full = HashSet::from([first, second]);
        assert_eq!(step(&kept, 2), NextStep::Retry, "the queues are still full");
        assert_eq!(
            next_step(&kept, &[], timestamp + 2, max_age),
            NextStep::Retry,
            "the mesh is empty"
        );
        kept.full.remove(&second);
        assert_eq!(step(&kept, 3), NextStep::Drop, "one peer had room");
        kept.resent = false;
        assert_eq!(
            [60, 61].map(|age| step(&kept, age)),
            [NextStep::Retry, NextStep::Drop]
        );
    }
}
