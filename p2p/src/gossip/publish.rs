//! Publishes our own blocks, and sends a block again if it has reached no peer.
//!
//! At most one block is kept, the newest: peers fetch its ancestors by number.

use super::{Gossip, GossipAction, check::Accepted, router::Router, topics::MessageParts};
use crate::{
    clock::unix_now,
    metrics::{self as meters, GossipEvent},
};
use libp2p::{
    PeerId,
    gossipsub::{MessageAcceptance, MessageId, PublishError, TopicHash},
};
use starling_proto::payload::PayloadVersion;
use std::collections::HashSet;

/// A block of ours that reached no peer: no peer was subscribed to its topic, or the queues to all
/// subscribers were full. Only the newest such block is kept, since peers fetch its ancestors by
/// number.
pub struct UnsentBlock {
    version: PayloadVersion,
    number: u64,
    timestamp: u64,
    /// The message in the router's form ([`MessageParts`]).
    sealed: Vec<u8>,
    /// Whether the message is in gossipsub's cache: an earlier attempt found all queues full.
    cached: bool,
    /// Whether the message has been sent again from gossipsub's cache.
    resent: bool,
    /// Peers whose queues were full since the message was sent again.
    full: HashSet<PeerId>,
}

/// The action of the one-second tick on the kept block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetryStep {
    /// Keep the block for the next subscriber.
    Wait,
    /// Send the block again from gossipsub's cache.
    Retry,
    /// Stop keeping the block: peers have it, or would refuse it as too old.
    Drop,
}

/// Decides what to do with the kept block at the Unix time `now`. gossipsub forwards from its cache
/// to the topic's `mesh`, so a block that was sent again has reached every peer of the mesh whose
/// queue was not full.
fn next_step(kept: &UnsentBlock, mesh: &[PeerId], now: u64, max_age: u64) -> RetryStep {
    let reached = kept.resent && mesh.iter().any(|peer| !kept.full.contains(peer));
    if reached || now.saturating_sub(kept.timestamp) > max_age {
        RetryStep::Drop
    } else if kept.cached {
        RetryStep::Retry
    } else {
        RetryStep::Wait
    }
}

/// Whether an attempt to publish reached no peer and should be repeated.
fn reached_nobody(error: &PublishError) -> bool {
    matches!(
        error,
        PublishError::NoPeersSubscribedToTopic | PublishError::AllQueuesFull(_)
    )
}

impl Gossip {
    /// Publishes a block of our own that passed its check.
    pub(super) fn publish(
        &mut self,
        version: PayloadVersion,
        accepted: Accepted,
        router: &mut Router,
        local: PeerId,
    ) {
        let payload = &accepted.arrival.payload;
        self.actions.push_back(GossipAction::Own(payload.hash));
        let Some(sealed) = accepted.sealed else {
            return;
        };
        let block = UnsentBlock {
            version,
            number: payload.number(),
            timestamp: payload.timestamp(),
            sealed,
            cached: false,
            resent: false,
            full: HashSet::new(),
        };
        self.send(block, router, local);
    }

    fn send(&mut self, mut block: UnsentBlock, router: &mut Router, local: PeerId) {
        let Some(topic) = self.topics.name(block.version) else {
            return;
        };
        let number = block.number;
        match router.publish(topic, block.sealed.clone()) {
            Ok(_) => {
                meters::gossip(GossipEvent::Publish);
                tracing::debug!(number, "block published");
                self.unsent.take_if(|unsent| unsent.number <= number);
            }
            Err(error) if reached_nobody(&error) => {
                tracing::debug!(number, %error, "block reached no peer, kept to be sent again");
                block.cached |= matches!(error, PublishError::AllQueuesFull(_));
                self.keep(block);
            }
            Err(PublishError::Duplicate) if block.cached => {
                self.forward_cached(block, router, local)
            }
            Err(PublishError::Duplicate) => {
                tracing::debug!(number, "block was already on the network")
            }
            Err(error) => tracing::warn!(number, %error, "block not published"),
        }
    }

    /// Keeps a block that reached no peer, unless a newer block is kept. Checks run in parallel, so
    /// an older block may be published after a newer one.
    fn keep(&mut self, block: UnsentBlock) {
        if self
            .unsent
            .as_ref()
            .is_none_or(|unsent| unsent.number <= block.number)
        {
            self.unsent = Some(block);
        }
    }

    /// Sends a block from gossipsub's cache. gossipsub refuses to publish a cached message again,
    /// even if every queue was full the first time. Reporting the cached message as accepted makes
    /// gossipsub forward it to the mesh. The block is kept until the next tick, because gossipsub
    /// does not report at once whether the queues are full again: its next heartbeat names the
    /// peers with full queues.
    fn forward_cached(&mut self, mut block: UnsentBlock, router: &mut Router, local: PeerId) {
        let id = MessageId::new(&MessageParts::of(&block.sealed).id);
        let cached =
            router.report_message_validation_result(&id, &local, MessageAcceptance::Accept);
        tracing::debug!(
            number = block.number,
            cached,
            "block sent again from gossipsub's cache"
        );
        // After a few seconds gossipsub has forgotten the message's bytes, but still refuses the
        // message as a duplicate: then the block cannot be sent any more.
        if cached {
            (block.resent, block.full) = (true, HashSet::new());
            self.keep(block);
        }
    }

    /// Sends the kept block again if all queues were full. It must not wait for a new subscription,
    /// since all peers may be subscribed already. `now` is Unix time.
    pub(super) fn retry_unsent(&mut self, now: u64, router: &mut Router, local: PeerId) {
        let Some(kept) = self.unsent.take() else {
            return;
        };
        let Some(topic) = self.topics.name(kept.version) else {
            return;
        };
        let mesh: Vec<PeerId> = router.mesh_peers(&topic).copied().collect();
        match next_step(&kept, &mesh, now, self.max_age.as_secs()) {
            RetryStep::Wait => self.unsent = Some(kept),
            RetryStep::Retry => self.forward_cached(kept, router, local),
            RetryStep::Drop => {
                tracing::debug!(number = kept.number, "block is not kept any longer")
            }
        }
    }

    /// Sends the kept block when a peer has subscribed, while the block is young enough to be
    /// accepted.
    pub(super) fn on_subscribed(&mut self, topic: &TopicHash, router: &mut Router, local: PeerId) {
        let Some(block) = self
            .unsent
            .take_if(|unsent| self.topics.version(topic) == Some(unsent.version))
        else {
            return;
        };
        if unix_now().saturating_sub(block.timestamp) <= self.max_age.as_secs() {
            self.send(block, router, local);
        }
    }

    /// Records that gossipsub dropped messages to this peer because its queue was full.
    pub(super) fn on_full_queue(&mut self, peer: PeerId) {
        if let Some(kept) = &mut self.unsent {
            kept.full.insert(peer);
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
        let mut kept = UnsentBlock {
            version: PayloadVersion::V3,
            number,
            timestamp,
            sealed: vec![],
            cached: false,
            resent: false,
            full: HashSet::new(),
        };
        let step = |kept: &UnsentBlock, age| next_step(kept, &mesh, timestamp + age, max_age);
        assert_eq!(step(&kept, 1), RetryStep::Wait, "only a subscriber helps");
        kept.cached = true;
        assert_eq!(step(&kept, 1), RetryStep::Retry);
        kept.resent = true;
        kept.full = HashSet::from([first, second]);
        assert_eq!(
            step(&kept, 2),
            RetryStep::Retry,
            "the queues are still full"
        );
        assert_eq!(
            next_step(&kept, &[], timestamp + 2, max_age),
            RetryStep::Retry,
            "the mesh is empty"
        );
        kept.full.remove(&second);
        assert_eq!(step(&kept, 3), RetryStep::Drop, "one peer had room");
        kept.resent = false;
        assert_eq!(
            [60, 61].map(|age| step(&kept, age)),
            [RetryStep::Retry, RetryStep::Drop]
        );
    }
}
