//! The four block topics, gossipsub's parameters, and the form of messages inside gossipsub.
//!
//! Inside gossipsub a message has a form of our own ([`MessageParts`]): unpacked, with its id.
//! `router.rs` makes that form once, before gossipsub handles the message. Our own blocks are
//! published in the same form.

use super::timing::SharedTimings;
use libp2p::gossipsub::{
    Config, ConfigBuilder, DataTransform, Message, MessageId, RawMessage, TopicHash,
    ValidationMode, WhitelistSubscriptionFilter,
};
use parking_lot::Mutex;
use starling_proto::{
    gossip::{self, Decompressed, MAX_MESSAGE_LEN},
    payload::PayloadVersion,
};
use std::{collections::HashMap, io, sync::Arc, time::Duration};

const HEARTBEAT: Duration = Duration::from_millis(500);
/// Time for which gossipsub recognises duplicates: 130 heartbeats, longer than the default largest
/// age of a block.
const SEEN_TTL: Duration = Duration::from_secs(65);
const FANOUT_TTL: Duration = Duration::from_secs(24);
/// Heartbeats for which a message is kept, and heartbeats for which it is announced (IHAVE).
const HISTORY: (usize, usize) = (12, 3);
/// Size in bytes above which the arrival of a message makes us send IDONTWANT to the mesh.
/// IDONTWANT is sent to every peer of the mesh before the check. For a small block it costs more
/// than the copies that it saves, and it would multiply a flood of garbage.
const UNWANTED: usize = 16 << 10;
/// Largest number of messages in one frame. Nodes of the network send one, or the few that we
/// requested.
const MESSAGES_PER_FRAME: usize = 128;
/// Largest number of messages queued for one slow connection. Above it, new messages are dropped
/// for that peer alone.
const QUEUE_LEN: usize = 64;
/// Largest unpacked size of a light message, in bytes, which takes a millisecond to unpack. Few
/// blocks are larger.
pub const LIGHT: usize = 512 << 10;
/// Largest unpacked size of a heavy message, in bytes: a few ms to unpack (10 MiB takes 30 ms).
pub const HEAVY: usize = 2 << 20;
/// Largest plausible ratio of a block's unpacked to its packed size. Real blocks unpack to two or
/// three times their packed size.
const GROWTH: usize = 4;

/// The shape of the gossip mesh, in peers per topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Target size of a mesh.
    pub d: usize,
    /// Peers are added to a mesh smaller than this.
    pub lo: usize,
    /// Peers are removed from a mesh larger than this.
    pub hi: usize,
    /// Number of peers outside the mesh that get announcements (IHAVE).
    pub lazy: usize,
}

impl Default for Mesh {
    fn default() -> Self {
        Self {
            d: 8,
            lo: 6,
            hi: 12,
            lazy: 6,
        }
    }
}

/// The work of unpacking a message. Heavy and huge messages have separate permits; a light message
/// needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    Light,
    Heavy,
    Huge,
}

impl Load {
    /// The load of a message that unpacks to `bytes` bytes.
    pub fn of(bytes: usize) -> Self {
        if bytes <= LIGHT {
            Self::Light
        } else if bytes <= HEAVY {
            Self::Heavy
        } else {
            Self::Huge
        }
    }
}

/// The four topics of a chain. The node always joins all four, and ignores peers' subscriptions to
/// any other topic.
#[derive(Clone, Debug)]
pub struct Topics(HashMap<TopicHash, PayloadVersion>);

impl Topics {
    pub fn new(chain_id: u64) -> Self {
        Self(
            PayloadVersion::ALL
                .map(|version| {
                    (
                        TopicHash::from_raw(gossip::topic(chain_id, version)),
                        version,
                    )
                })
                .into(),
        )
    }

    pub fn version(&self, topic: &TopicHash) -> Option<PayloadVersion> {
        self.0.get(topic).copied()
    }

    pub fn name(&self, version: PayloadVersion) -> Option<TopicHash> {
        self.0
            .iter()
            .find(|(_, other)| **other == version)
            .map(|(name, _)| name.clone())
    }

    pub fn names(&self) -> impl Iterator<Item = &TopicHash> {
        self.0.keys()
    }

    pub fn filter(&self) -> WhitelistSubscriptionFilter {
        WhitelistSubscriptionFilter(self.0.keys().cloned().collect())
    }
}

/// gossipsub's parameters (specs: rollup-node-p2p, gossip parameters). Anonymous validation is the
/// strict no-sign policy: a message with a source, sequence number or signature is refused.
/// `timings` counts every copy of a message.
pub fn gossip_config(mesh: Mesh, timings: &SharedTimings) -> Result<Config, String> {
    // Check the mesh sizes here: the library does so only for topics with settings of their own.
    let Mesh { d, lo, hi, lazy } = mesh;
    if !(1 <= lo && lo <= d && d <= hi) {
        return Err(format!("d {d}, lo {lo}, hi {hi}, lazy {lazy}"));
    }
    let timings = timings.clone();
    ConfigBuilder::default()
        .heartbeat_interval(HEARTBEAT)
        .heartbeat_initial_delay(HEARTBEAT / 5)
        .mesh_n(mesh.d)
        .mesh_n_low(mesh.lo)
        .mesh_n_high(mesh.hi)
        // The library requires min <= lo and 2 min <= d. The network's value is 2.
        .mesh_outbound_min(2.min(mesh.lo).min(mesh.d / 2))
        .gossip_lazy(mesh.lazy)
        .history_length(HISTORY.0)
        .history_gossip(HISTORY.1)
        .duplicate_cache_time(SEEN_TTL)
        .fanout_ttl(FANOUT_TTL)
        .max_transmit_size(MAX_MESSAGE_LEN)
        .max_publish_messages(MESSAGES_PER_FRAME)
        .idontwant_message_size_threshold(UNWANTED)
        .flood_publish(false)
        .validation_mode(ValidationMode::Anonymous)
        .validate_messages()
        .message_id_fn(move |message| {
            let id = MessageId::new(&MessageParts::of(&message.data).id);
            timings.on_copy(&id, message.data.len());
            id
        })
        .connection_handler_queue_len(QUEUE_LEN)
        .build()
        .map_err(|error| error.to_string())
}

/// A message as gossipsub carries it: flag byte ‖ bytes ‖ id ‖ packed size (little-endian). The
/// packed size is the number of bytes that arrived.
#[derive(Clone, Copy, Debug)]
pub struct MessageParts<'a> {
    /// The flag byte and the unpacked bytes.
    pub tagged: &'a [u8],
    pub id: [u8; 20],
    packed: u32,
}

impl<'a> MessageParts<'a> {
    pub fn of(sealed: &'a [u8]) -> Self {
        let (rest, packed) = sealed.split_last_chunk().unwrap_or((sealed, &[0; 4]));
        let (tagged, id) = rest.split_last_chunk().unwrap_or((rest, &[0; 20]));
        Self {
            tagged,
            id: *id,
            packed: u32::from_le_bytes(*packed),
        }
    }

    /// MiB by which the unpacked message is larger than any block of its packed size.
    pub fn bloat(&self) -> u32 {
        let excess = self
            .tagged
            .len()
            .saturating_sub(GROWTH * self.packed as usize);
        u32::try_from(excess >> 20).unwrap_or(u32::MAX)
    }
}

/// Brings an unpacked message into the form of [`MessageParts`]. Hashes it for the id.
pub fn seal(topic: &str, mut tagged: Vec<u8>, packed: usize) -> Vec<u8> {
    let (flag, bytes) = Decompressed::untag(&tagged);
    let id = gossip::message_id(topic, flag, bytes);
    let packed = u32::try_from(packed).unwrap_or(u32::MAX).to_le_bytes();
    tagged.reserve_exact(id.len() + packed.len());
    tagged.extend_from_slice(&id);
    tagged.extend_from_slice(&packed);
    tagged
}

/// Unpacks a message that arrived. Never fails, whatever the peer sent.
pub fn unpack(raw: &RawMessage) -> Vec<u8> {
    seal(
        raw.topic.as_str(),
        gossip::decompress_tagged(&raw.data),
        raw.data.len(),
    )
}

/// The larger of the unpacked size that a message declares and its packed size. A declared size
/// that is not allowed counts as zero.
pub fn weight(raw: &RawMessage) -> usize {
    let declared = snap::raw::decompress_len(&raw.data).unwrap_or(0);
    if declared <= MAX_MESSAGE_LEN {
        declared.max(raw.data.len())
    } else {
        raw.data.len()
    }
}

/// Snappy's block format, with a slot for the unpacked form of the message that gossipsub handles
/// next.
#[derive(Clone, Debug, Default)]
pub struct Snappy(Arc<Mutex<Option<Vec<u8>>>>);

impl Snappy {
    /// Sets the unpacked form of the message that gossipsub handles next; `None` clears it.
    pub fn expect(&self, unpacked: Option<Vec<u8>>) {
        *self.0.lock() = unpacked;
    }
}

impl DataTransform for Snappy {
    fn inbound_transform(&self, raw: RawMessage) -> Result<Message, io::Error> {
        let unpacked = self.0.lock().take();
        Ok(Message {
            source: raw.source,
            data: unpacked.unwrap_or_else(|| unpack(&raw)),
            sequence_number: raw.sequence_number,
            topic: raw.topic,
        })
    }

    fn outbound_transform(&self, _: &TopicHash, data: Vec<u8>) -> Result<Vec<u8>, io::Error> {
        let (_, bytes) = Decompressed::untag(MessageParts::of(&data).tagged);
        snap::raw::Encoder::new()
            .compress_vec(bytes)
            .map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_proto::gossip::PayloadFlag;

    fn raw(data: Vec<u8>) -> RawMessage {
        let topic = TopicHash::from_raw("t");
        RawMessage {
            source: None,
            data,
            sequence_number: None,
            topic,
            signature: None,
            key: None,
            validated: false,
        }
    }

    #[test]
    fn a_message_goes_out_and_comes_in_with_the_same_id() {
        let bytes = b"some bytes that repeat, some bytes that repeat".to_vec();
        let sealed = seal(
            "t",
            Decompressed {
                flag: PayloadFlag::Decompressed,
                bytes,
            }
            .into_tagged(),
            1,
        );
        let wire = Snappy::default()
            .outbound_transform(&TopicHash::from_raw("t"), sealed.clone())
            .unwrap();
        let back = unpack(&raw(wire));
        let (out, back) = (MessageParts::of(&sealed), MessageParts::of(&back));
        assert_eq!((out.tagged, out.id), (back.tagged, back.id));
    }

    #[test]
    fn garbage_passes_through_with_an_id_of_its_own() {
        for data in [
            vec![],
            vec![0xff; 3],
            vec![0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0],
            vec![7; 100],
        ] {
            let message = Snappy::default()
                .inbound_transform(raw(data.clone()))
                .unwrap();
            let parts = MessageParts::of(&message.data);
            assert_eq!(
                Decompressed::untag(parts.tagged),
                (PayloadFlag::Raw, &data[..])
            );
            assert_eq!(parts.id, gossip::message_id("t", PayloadFlag::Raw, &data));
            assert_eq!(
                (weight(&raw(data.clone())), parts.bloat()),
                (data.len().max(if data == [7; 100] { 7 } else { 0 }), 0)
            );
        }
        assert!(MessageParts::of(&[]).tagged.is_empty());
    }

    #[test]
    fn a_message_that_is_unpacked_already_is_not_unpacked_again() {
        let snappy = Snappy::default();
        let data = |snappy: &Snappy| snappy.inbound_transform(raw(vec![7; 100])).unwrap().data;
        snappy.expect(Some(vec![1; 30]));
        assert_eq!(data(&snappy), [1; 30]);
        assert_eq!(data(&snappy), unpack(&raw(vec![7; 100])), "once");
        snappy.expect(Some(vec![1; 30]));
        snappy.expect(None);
        assert_eq!(data(&snappy).len(), 125);
    }

    #[test]
    fn a_bomb_has_grown_more_than_any_block_does() {
        let packed = |bytes: &[u8]| raw(snap::raw::Encoder::new().compress_vec(bytes).unwrap());
        let bloat = |message: &RawMessage| MessageParts::of(&unpack(message)).bloat();
        let bomb = packed(&vec![0; MAX_MESSAGE_LEN]);
        assert_eq!((weight(&bomb), bloat(&bomb)), (MAX_MESSAGE_LEN, 8));
        // A third of a large block is repetition, so it compresses.
        let mut state = 1u32;
        let mut noise = || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 24) as u8
        };
        let block: Vec<u8> = (0..8 << 20)
            .map(|i| if i % 96 < 64 { 0 } else { noise() })
            .collect();
        assert_eq!(bloat(&packed(&block)), 0);
    }

    #[test]
    fn small_meshes_are_valid_too() {
        for d in 1..20 {
            let mesh = Mesh {
                d,
                lo: d.div_ceil(2),
                hi: d + 4,
                lazy: 1,
            };
            assert!(
                gossip_config(mesh, &SharedTimings::default()).is_ok(),
                "{mesh:?}"
            );
        }
        assert!(
            gossip_config(
                Mesh {
                    d: 2,
                    lo: 3,
                    hi: 4,
                    lazy: 1
                },
                &SharedTimings::default()
            )
            .is_err()
        );
    }
}
