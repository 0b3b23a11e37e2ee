//! How blocks reach this node: when the first copy of a message came and from whom, how many copies followed, how long its check took,
//! and when the block was the head. Pure; the time of the wall clock comes in, in seconds.
//!
//! The router tells of a message once. That copies of it came is known where its id is computed, which happens for every copy.
//!
//! Nor does the router tell who sends the same again and again, which is unpacked every time. `router.rs` notes whose copy it looks
//! at; who sends more copies of one message than it can have reason to is named.
//!
//! What can overload it: garbage, each piece a new message. The newest [`MESSAGES`] are remembered and the newest [`BLOCKS`].

use crate::metrics::{self, GossipEvent};
use alloy_primitives::B256;
use libp2p::{PeerId, gossipsub::MessageId};
use lru::LruCache;
use parking_lot::Mutex;
use serde::Serialize;
use starling_proto::payload::Payload;
use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Messages whose copies are counted.
const MESSAGES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Copies of one message that a peer may have reason to send: to its mesh, and when it is asked for it (three times at most).
const COPIES_PER_PEER: u32 = 4;
/// Of so many messages and peers copies are counted, and so many peers are named at a time.
const SENDERS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
const REPLAYERS: usize = 64;
/// Accepted blocks that are reported.
const BLOCKS: usize = 64;

/// How a block came, in seconds after its timestamp.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Passage {
    pub number: u64,
    pub hash: B256,
    /// Unix seconds.
    pub timestamp: u64,
    /// Who sent the first copy.
    #[serde(serialize_with = "in_text")]
    pub peer: PeerId,
    /// When the first copy came. Negative if a clock is wrong, or the sequencer is early.
    pub arrived: f64,
    /// Copies until now, the first included.
    pub copies: u64,
    /// Seconds that the check took.
    pub check: f64,
    /// When it was the head; `None` if it is not yet, or became it in one go with others.
    pub head: Option<f64>,
    #[serde(skip)]
    message: MessageId,
}

fn in_text<S: serde::Serializer>(peer: &PeerId, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(peer)
}

struct Message {
    first: f64,
    copies: u64,
}

/// The newest messages and blocks.
pub struct Propagation {
    messages: LruCache<MessageId, Message>,
    /// Newest last.
    blocks: VecDeque<Passage>,
    /// Whose frame the router looks at.
    sender: Option<PeerId>,
    senders: LruCache<(PeerId, MessageId), u32>,
    /// Who sent more copies than it may, and how many; a large one counts for several.
    replayers: HashMap<PeerId, u32>,
}

impl Default for Propagation {
    fn default() -> Self {
        Self {
            messages: LruCache::new(MESSAGES),
            blocks: VecDeque::with_capacity(BLOCKS),
            sender: None,
            senders: LruCache::new(SENDERS),
            replayers: HashMap::new(),
        }
    }
}

impl Propagation {
    /// A copy of a message of so many bytes came, or ours goes out.
    pub fn on_copy(&mut self, id: &MessageId, bytes: usize, now: f64) {
        if let Some(sender) = self.sender {
            let copies = self.senders.get_or_insert_mut((sender, id.clone()), || 0);
            *copies = copies.saturating_add(1);
            if *copies > COPIES_PER_PEER
                && (self.replayers.len() < REPLAYERS || self.replayers.contains_key(&sender))
            {
                // By the work it makes.
                *self.replayers.entry(sender).or_default() += 1 + (bytes >> 20) as u32;
            }
        }
        if let Some(block) = self
            .blocks
            .iter_mut()
            .rev()
            .find(|block| block.message == *id)
        {
            block.copies += 1;
        } else if let Some(message) = self.messages.get_mut(id) {
            message.copies += 1;
        } else {
            self.messages.put(
                id.clone(),
                Message {
                    first: now,
                    copies: 1,
                },
            );
            return;
        }
        metrics::gossip(GossipEvent::Duplicate);
    }

    /// The check accepted the block of a message.
    pub fn on_accepted(
        &mut self,
        id: MessageId,
        peer: PeerId,
        block: &Payload,
        check: Duration,
        now: f64,
    ) {
        let Message { first, copies } = self.messages.pop(&id).unwrap_or(Message {
            first: now,
            copies: 1,
        });
        let arrived = first - block.timestamp() as f64;
        ::metrics::histogram!("starling_p2p_block_arrival_seconds").record(arrived);
        if self.blocks.len() == BLOCKS {
            self.blocks.pop_front();
        }
        self.blocks.push_back(Passage {
            number: block.number(),
            hash: block.hash,
            timestamp: block.timestamp(),
            peer,
            arrived,
            copies,
            check: check.as_secs_f64(),
            head: None,
            message: id,
        });
    }

    pub fn on_head(&mut self, hash: B256, now: f64) {
        let block = self
            .blocks
            .iter_mut()
            .rev()
            .find(|block| block.hash == hash);
        if let Some(block) = block.filter(|block| block.head.is_none()) {
            let after = now - block.timestamp as f64;
            block.head = Some(after);
            ::metrics::histogram!("starling_p2p_block_head_seconds").record(after);
        }
    }

    /// The newest blocks, newest first.
    pub fn report(&self) -> Vec<Passage> {
        self.blocks.iter().rev().cloned().collect()
    }
}

/// Shared by the router, which sees copies, and the swarm's task. Locked for moments.
#[derive(Clone, Default)]
pub struct SharedPropagation(Arc<Mutex<Propagation>>);

impl SharedPropagation {
    pub fn on_copy(&self, id: &MessageId, bytes: usize) {
        self.0.lock().on_copy(id, bytes, now());
    }

    /// The router looks at what this peer sent.
    pub fn looks_at(&self, sender: Option<PeerId>) {
        self.0.lock().sender = sender;
    }

    pub fn on_accepted(&self, id: MessageId, peer: PeerId, block: &Payload, check: Duration) {
        self.0.lock().on_accepted(id, peer, block, check, now());
    }

    pub fn on_head(&self, hash: B256) {
        self.0.lock().on_head(hash, now());
    }

    pub fn report(&self) -> Vec<Passage> {
        self.0.lock().report()
    }

    /// Who has sent copies without reason since the last question, and how many.
    pub fn take_replayers(&self) -> HashMap<PeerId, u32> {
        std::mem::take(&mut self.0.lock().replayers)
    }
}

fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::Header;

    fn block(number: u64) -> Payload {
        Payload::sealed(
            Header {
                number,
                timestamp: 100 + number,
                ..Default::default()
            },
            Vec::new(),
        )
    }

    fn id(number: u64) -> MessageId {
        MessageId::new(&number.to_be_bytes())
    }

    #[test]
    fn copies_before_and_after_the_check_count_and_the_first_one_has_the_time() {
        let (mut all, peer) = (Propagation::default(), PeerId::random());
        let check = Duration::from_millis(250);
        for now in [101.5, 101.75, 102.0] {
            all.on_copy(&id(1), 100, now);
        }
        all.on_accepted(id(1), peer, &block(1), check, 102.0);
        all.on_copy(&id(1), 100, 102.5);
        all.on_head(block(1).hash, 103.0);
        all.on_head(block(1).hash, 104.0);
        all.on_head(block(2).hash, 104.0);
        let [passage] = &all.report()[..] else {
            panic!("one block")
        };
        assert_eq!(
            (passage.number, passage.peer, passage.timestamp),
            (1, peer, 101)
        );
        assert_eq!(
            (passage.arrived, passage.copies, passage.check, passage.head),
            (0.5, 4, 0.25, Some(2.0))
        );
    }

    #[test]
    fn whoever_sends_the_same_again_and_again_is_named_and_nobody_else() {
        let mut all = Propagation::default();
        let (replayer, others) = (PeerId::random(), [PeerId::random(), PeerId::random()]);
        for sender in others
            .into_iter()
            .cycle()
            .take(2 * COPIES_PER_PEER as usize)
        {
            all.sender = Some(sender);
            all.on_copy(&id(1), 100, 0.0);
        }
        for copy in 0..10 {
            // What goes out is nobody's.
            for sender in [None, Some(replayer)] {
                all.sender = sender;
                all.on_copy(&id(1), 100, f64::from(copy));
            }
        }
        assert_eq!(
            all.replayers,
            HashMap::from([(replayer, 10 - COPIES_PER_PEER)])
        );
        all.sender = Some(replayer);
        all.on_copy(&id(1), 10 << 20, 0.0);
        assert_eq!(
            all.replayers[&replayer],
            10 - COPIES_PER_PEER + 11,
            "a large copy makes more work"
        );
        for sender in 0..200 {
            all.sender = Some(PeerId::random());
            (0..5).for_each(|_| all.on_copy(&id(sender), 100, 0.0));
        }
        assert!(all.replayers.len() <= REPLAYERS && all.senders.len() <= SENDERS.get());
    }

    #[test]
    fn neither_garbage_nor_blocks_fill_the_memory() {
        let mut all = Propagation::default();
        for number in 0..5000 {
            all.on_copy(&id(number), 100, 0.0);
        }
        assert_eq!(all.messages.len(), MESSAGES.get());
        for number in 0..200 {
            all.on_accepted(
                id(number),
                PeerId::random(),
                &block(number),
                Duration::ZERO,
                0.0,
            );
        }
        let numbers: Vec<u64> = all.report().iter().map(|block| block.number).collect();
        assert_eq!(
            numbers,
            (200 - BLOCKS as u64..200).rev().collect::<Vec<_>>()
        );
    }
}
