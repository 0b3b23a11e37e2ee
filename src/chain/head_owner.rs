//! The owner of the unsafe head: the one of two parties that moves it. These are a rollup node, by
//! `engine_forkchoiceUpdated`, and the node itself, which follows the blocks of the swarm.
//!
//! Only one of them owns the head at a time, so that they do not move it to different branches.
//! From its first fork choice on, the rollup node is the owner. Blocks of the swarm are then
//! executed but do not become the head, unless they lead to a missing head that the rollup node has
//! named. After [`SILENCE`] without a call, the node follows the swarm by itself again, until the
//! next fork choice.
//!
//! Pure: the time is a parameter. The chain owns the one instance, and the executor checks it
//! before a block of the swarm becomes the head.

use alloy_primitives::B256;
use starling_proto::provenance::Provenance;
use std::time::{Duration, Instant};

/// Time without a call of the rollup node after which the node follows the swarm by itself. Ten
/// minutes is longer than a rollup node takes to restart or upgrade. It is also longer than the
/// usual time between two batches: a rollup node without gossip moves its head once per batch. It
/// is short enough that the node serves recent blocks again before an operator notices that the
/// rollup node has ended.
pub const SILENCE: Duration = Duration::from_secs(600);

/// The party that moves the unsafe head: the rollup node, or the node itself.
#[derive(Clone, Debug)]
pub struct HeadOwner {
    silence: Duration,
    /// Time of the rollup node's last call; `None` while the node follows the swarm by itself.
    last_call: Option<Instant>,
    /// Whether a rollup node has made a fork choice since the start.
    was_driven: bool,
    /// The lowest received block on the branch of a missing head that the rollup node has named, or
    /// that head itself if no block of its branch was received. The parent of this block is
    /// missing.
    lowest_missing: Option<B256>,
}

impl Default for HeadOwner {
    fn default() -> Self {
        Self::new(SILENCE)
    }
}

impl HeadOwner {
    pub fn new(silence: Duration) -> Self {
        Self {
            silence,
            last_call: None,
            was_driven: false,
            lowest_missing: None,
        }
    }

    /// Whether a rollup node owns the unsafe head.
    pub fn is_rollup_node(&self) -> bool {
        self.last_call.is_some()
    }

    /// Whether a rollup node owns the unsafe head or has owned it since the start. A rollup node
    /// that comes back builds on the head that it finds.
    pub fn was_driven(&self) -> bool {
        self.was_driven
    }

    /// Time at which the rollup node loses the head unless it makes another call; `None` while it
    /// does not own the head.
    pub fn silent_at(&self) -> Option<Instant> {
        self.last_call.map(|last_call| last_call + self.silence)
    }

    /// The rollup node has made a fork choice. Returns true if it was not the owner before.
    pub fn on_forkchoice(&mut self, now: Instant) -> bool {
        self.was_driven = true;
        self.last_call.replace(now).is_none()
    }

    /// The head that the rollup node has named has become the head, or cannot become it, so no
    /// ancestor is awaited any more. The owner stays the same, so this always returns false.
    pub fn on_settled(&mut self) -> bool {
        self.lowest_missing = None;
        false
    }

    /// The rollup node has sent a payload, which restarts the time of [`SILENCE`]. A payload alone
    /// does not make the rollup node the owner, so this always returns false.
    pub fn on_payload(&mut self, now: Instant) -> bool {
        self.last_call = self.last_call.map(|_| now);
        false
    }

    /// The head that the rollup node has named is missing. `block` is the lowest received block on
    /// that head's branch, or the head itself. The owner stays the same, so this always returns
    /// false.
    pub fn on_missing(&mut self, block: B256) -> bool {
        self.lowest_missing = self.last_call.map(|_| block);
        false
    }

    /// Time has passed. Returns true if the rollup node has been silent for too long, so that the
    /// node follows the swarm from now on.
    pub fn on_time(&mut self, now: Instant) -> bool {
        let silent = self.silent_at().is_some_and(|at| now >= at);
        if silent {
            (self.last_call, self.lowest_missing) = (None, None);
        }
        silent
    }

    /// Whether a block of the swarm may become the head.
    pub fn may_become_head(&self, hash: B256, provenance: Provenance) -> bool {
        let wanted = match provenance {
            // The gap may have been opened for a head that the rollup node named earlier. Its
            // blocks then also lead to the head that is missing now.
            Provenance::Ancestor { .. } => self.lowest_missing.is_some(),
            _ => self.lowest_missing == Some(hash),
        };
        !self.is_rollup_node() || wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::Address;
    use starling_proto::payload::BlockId;

    const GOSSIP: Provenance = Provenance::Signed(Address::ZERO);
    const SECOND: Duration = Duration::from_secs(1);

    fn hash(n: u8) -> B256 {
        B256::repeat_byte(n)
    }

    #[test]
    fn a_rollup_node_drives_from_its_first_fork_choice_until_it_is_silent() {
        let (mut owner, mut now) = (HeadOwner::default(), Instant::now());
        assert!(!owner.on_payload(now) && !owner.is_rollup_node() && owner.silent_at().is_none());
        assert!(owner.may_become_head(hash(1), GOSSIP) && !owner.on_time(now + SILENCE));
        assert!(owner.on_forkchoice(now));
        for _ in 0..100 {
            now += SILENCE - SECOND;
            assert!(!owner.on_time(now) && owner.is_rollup_node());
            assert!(
                !owner.may_become_head(hash(1), GOSSIP)
                    && !owner.may_become_head(hash(1), Provenance::Linked { tip: 9 })
            );
            // A payload also ends the silence.
            now += SECOND / 2;
            assert!(!owner.on_payload(now));
            now += SILENCE - SECOND;
            assert!(!owner.on_time(now));
            assert!(!owner.on_forkchoice(now), "it has driven before");
        }
        assert_eq!(owner.silent_at(), Some(now + SILENCE));
        assert!(!owner.on_time(now + SILENCE - SECOND) && owner.on_time(now + SILENCE));
        assert!(!owner.is_rollup_node() && owner.may_become_head(hash(1), GOSSIP));
        assert!(!owner.on_time(now + 2 * SILENCE), "once");
        assert!(
            !owner.on_payload(now + 2 * SILENCE) && !owner.is_rollup_node(),
            "a payload alone does not take the head back"
        );
        assert!(owner.on_forkchoice(now + 3 * SILENCE));
    }

    #[test]
    fn blocks_on_the_way_to_a_missing_head_may_become_the_head() {
        let (mut owner, now) = (HeadOwner::default(), Instant::now());
        let below = |n| Provenance::Ancestor {
            of: BlockId {
                number: 9,
                hash: hash(n),
            },
        };
        assert!(!owner.on_missing(hash(7)));
        owner.on_forkchoice(now);
        assert!(
            !owner.may_become_head(hash(7), GOSSIP),
            "nobody drove when it was named"
        );
        owner.on_missing(hash(7));
        assert!(
            owner.may_become_head(hash(1), below(7))
                && owner.may_become_head(hash(7), Provenance::Engine)
                && owner.may_become_head(hash(7), GOSSIP)
        );
        assert!(
            owner.may_become_head(hash(1), below(8)),
            "its gap was opened for a head that was named before"
        );
        assert!(!owner.may_become_head(hash(8), GOSSIP));
        owner.on_forkchoice(now);
        assert!(
            owner.may_become_head(hash(1), below(7)),
            "the same head is named again"
        );
        assert!(
            !owner.on_settled() && !owner.may_become_head(hash(1), below(7)),
            "the head is reached"
        );
        owner.on_missing(hash(8));
        owner.on_time(now + SILENCE);
        owner.on_forkchoice(now + SILENCE);
        assert!(
            !owner.may_become_head(hash(1), below(8)),
            "forgotten in the silence"
        );
    }
}
