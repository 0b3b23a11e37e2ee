//! Measures how blocks reach this node: when the first copy of a message arrived and from which
//! peer, how many copies followed, how long its check took, and when the block became the head.
//! Pure: callers pass in wall clock time as Unix seconds.
//!
//! gossipsub reports a message once. Copies are therefore counted in the function that computes a
//! message's id, which runs for every copy. gossipsub does not report peers that repeat a message
//! either, although each copy is unpacked. So `router.rs` notes the sender of the frame that
//! gossipsub handles, and this file reports peers that repeat messages too often.
//!
//! Overload: garbage in which every message is new. Only the newest [`MESSAGES`] messages and the
//! newest [`BLOCKS`] blocks are kept.

use crate::{
    clock::unix_now_exact,
    metrics::{self, GossipEvent},
};
use alloy_primitives::B256;
use libp2p::{PeerId, gossipsub::MessageId};
use lru::LruCache;
use parking_lot::Mutex;
use serde::Serialize;
use starling_proto::payload::Payload;
use std::{
    collections::{BTreeMap, VecDeque},
    num::NonZeroUsize,
    sync::Arc,
    time::Duration,
};

/// Number of messages whose copies are counted.
const MESSAGES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Number of copies of one message that an honest peer may send: one to its mesh, and up to three
/// in response to IWANT.
const COPIES_PER_PEER: u32 = 4;
/// Number of (sender, message) pairs whose copies are counted.
const SENDERS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Largest number of peers with surplus copies in one report.
const REPLAYERS: usize = 64;
/// Number of accepted blocks whose timings are kept.
const BLOCKS: usize = 64;

/// The timing of a block that came by gossip. Times are in seconds after the block's timestamp.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockTiming {
    /// Height of the block.
    pub number: u64,
    /// Hash of the block.
    pub hash: B256,
    /// Timestamp of the block, in Unix seconds.
    pub timestamp: u64,
    /// Sender of the first copy.
    #[serde(serialize_with = "as_text")]
    pub peer: PeerId,
    /// Arrival of the first copy, in seconds after the block's timestamp. Negative if a clock is
    /// wrong, or if the sequencer is early.
    pub arrived: f64,
    /// Number of copies so far, the first included.
    pub copies: u64,
    /// Duration of the check, in seconds.
    pub check: f64,
    /// Seconds from the block's timestamp until it became the head. `None` if it has not become the
    /// head yet, or if a later block of the same batch did.
    pub head: Option<f64>,
    #[serde(skip)]
    message: MessageId,
}

fn as_text<S: serde::Serializer>(peer: &PeerId, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(peer)
}

struct FirstCopy {
    /// Arrival of the first copy, in Unix seconds.
    first: f64,
    copies: u64,
}

/// The timings of the newest messages and blocks.
pub struct BlockTimings {
    messages: LruCache<MessageId, FirstCopy>,
    /// The accepted blocks, newest last.
    blocks: VecDeque<BlockTiming>,
    /// Sender of the frame that gossipsub handles at the moment.
    sender: Option<PeerId>,
    senders: LruCache<(PeerId, MessageId), u32>,
    /// Peers that sent more than [`COPIES_PER_PEER`] copies of a message, with the number of excess
    /// copies. A large copy counts as several.
    replayers: BTreeMap<PeerId, u32>,
}

impl Default for BlockTimings {
    fn default() -> Self {
        Self {
            messages: LruCache::new(MESSAGES),
            blocks: VecDeque::with_capacity(BLOCKS),
            sender: None,
            senders: LruCache::new(SENDERS),
            replayers: BTreeMap::new(),
        }
    }
}

impl BlockTimings {
    /// Counts a copy of a message of `bytes` bytes: one that arrived, or our own going out.
    pub fn on_copy(&mut self, id: &MessageId, bytes: usize, now: f64) {
        if let Some(sender) = self.sender {
            let copies = self.senders.get_or_insert_mut((sender, id.clone()), || 0);
            *copies = copies.saturating_add(1);
            if *copies > COPIES_PER_PEER
                && (self.replayers.len() < REPLAYERS || self.replayers.contains_key(&sender))
            {
                // A large copy costs more work, so it counts more.
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
                FirstCopy {
                    first: now,
                    copies: 1,
                },
            );
            return;
        }
        metrics::gossip(GossipEvent::Duplicate);
    }

    /// Records that the check accepted the block of a message.
    pub fn on_accepted(
        &mut self,
        id: MessageId,
        peer: PeerId,
        block: &Payload,
        check: Duration,
        now: f64,
    ) {
        let FirstCopy { first, copies } = self.messages.pop(&id).unwrap_or(FirstCopy {
            first: now,
            copies: 1,
        });
        let arrived = first - block.timestamp() as f64;
        ::metrics::histogram!("starling_p2p_block_arrival_seconds").record(arrived);
        if self.blocks.len() == BLOCKS {
            self.blocks.pop_front();
        }
        self.blocks.push_back(BlockTiming {
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
    pub fn report(&self) -> Vec<BlockTiming> {
        self.blocks.iter().rev().cloned().collect()
    }
}

/// Timings shared by the router, which counts copies, and the swarm's task. The lock is held for
/// one call.
#[derive(Clone, Default)]
pub struct SharedTimings(Arc<Mutex<BlockTimings>>);

impl SharedTimings {
    pub fn on_copy(&self, id: &MessageId, bytes: usize) {
        self.0.lock().on_copy(id, bytes, unix_now_exact());
    }

    /// Sets the sender of the frame that gossipsub handles; `None` when no frame is handled.
    pub fn set_sender(&self, sender: Option<PeerId>) {
        self.0.lock().sender = sender;
    }

    pub fn on_accepted(&self, id: MessageId, peer: PeerId, block: &Payload, check: Duration) {
        self.0
            .lock()
            .on_accepted(id, peer, block, check, unix_now_exact());
    }

    pub fn on_head(&self, hash: B256) {
        self.0.lock().on_head(hash, unix_now_exact());
    }

    pub fn report(&self) -> Vec<BlockTiming> {
        self.0.lock().report()
    }

    /// Peers that repeated messages too often since the last call, each with its number of excess
    /// copies.
    pub fn take_replayers(&self) -> BTreeMap<PeerId, u32> {
        std::mem::take(&mut self.0.lock().replayers)
    }
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
        let (mut all, peer) = (BlockTimings::default(), PeerId::random());
        let check = Duration::from_millis(250);
        for now in [101.5, 101.75, 102.0] {
            all.on_copy(&id(1), 100, now);
        }
        all.on_accepted(id(1), peer, &block(1), check, 102.0);
        all.on_copy(&id(1), 100, 102.5);
        all.on_head(block(1).hash, 103.0);
        all.on_head(block(1).hash, 104.0);
        all.on_head(block(2).hash, 104.0);
        let [timing] = &all.report()[..] else {
            panic!("one block")
        };
        assert_eq!(
            (timing.number, timing.peer, timing.timestamp),
            (1, peer, 101)
        );
        assert_eq!(
            (timing.arrived, timing.copies, timing.check, timing.head),
            (0.5, 4, 0.25, Some(2.0))
        );
    }

    #[test]
    fn only_a_peer_that_repeats_a_message_too_often_is_reported() {
        let mut all = BlockTimings::default();
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
            // Copies that we send have no sender.
            for sender in [None, Some(replayer)] {
                all.sender = sender;
                all.on_copy(&id(1), 100, f64::from(copy));
            }
        }
        assert_eq!(
            all.replayers,
            BTreeMap::from([(replayer, 10 - COPIES_PER_PEER)])
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
    fn garbage_and_blocks_are_bounded() {
        let mut all = BlockTimings::default();
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
