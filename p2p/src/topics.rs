//! Gossip: the four block topics, the router's parameters, and what happens to a message's bytes before anybody sees them.
//!
//! The router takes a message's data from [`Snappy`] as one flag byte and the decompressed bytes, so that the message id and the
//! check share one decompression. Our own publishes are given to it in the same form.

use crate::{config::Mesh, propagation::SharedPropagation};
use libp2p::gossipsub::{
    Config, ConfigBuilder, DataTransform, Message, MessageId, RawMessage, TopicHash, ValidationMode, WhitelistSubscriptionFilter,
};
use starling_proto::{
    gossip::{self, Decompressed, MAX_MESSAGE_LEN},
    payload::PayloadVersion,
};
use std::{collections::HashMap, io, time::Duration};

const HEARTBEAT: Duration = Duration::from_millis(500);
/// 130 heartbeats: longer than a block may be old.
const SEEN_TTL: Duration = Duration::from_secs(65);
const FANOUT_TTL: Duration = Duration::from_secs(24);
/// Heartbeats that messages are kept, and announced in.
const HISTORY: (usize, usize) = (12, 3);
/// For larger messages the mesh is told at once that no more copies are wanted. That is a message to every neighbour, before the check
/// has said whether it is worth any: for a small block it costs more than the copies, and a flood of garbage would be multiplied.
const UNWANTED: usize = 16 << 10;
/// Messages in one frame. Others of the network send one, or the few that we asked for; each is unpacked in the swarm's task.
const MESSAGES_PER_FRAME: usize = 128;
/// Messages that wait for one slow connection; past it the newest are dropped for that peer alone.
const QUEUE_LEN: usize = 64;

/// The four topics of a chain. All are joined, all the time; others are not even subscribed to for peers.
#[derive(Clone, Debug)]
pub struct Topics(HashMap<TopicHash, PayloadVersion>);

impl Topics {
    pub fn new(chain_id: u64) -> Self {
        Self(PayloadVersion::ALL.map(|version| (TopicHash::from_raw(gossip::topic(chain_id, version)), version)).into())
    }

    pub fn version(&self, topic: &TopicHash) -> Option<PayloadVersion> {
        self.0.get(topic).copied()
    }

    pub fn name(&self, version: PayloadVersion) -> Option<TopicHash> {
        self.0.iter().find(|(_, other)| **other == version).map(|(name, _)| name.clone())
    }

    pub fn names(&self) -> impl Iterator<Item = &TopicHash> {
        self.0.keys()
    }

    pub fn filter(&self) -> WhitelistSubscriptionFilter {
        WhitelistSubscriptionFilter(self.0.keys().cloned().collect())
    }
}

/// The router's parameters (specs: rollup-node-p2p, gossip parameters). Anonymous validation is the strict no-sign policy: a
/// message with a source, sequence number or signature is refused. `propagation` is told of every copy of a message.
pub fn gossip_config(mesh: Mesh, propagation: &SharedPropagation) -> Result<Config, String> {
    // The library looks at this only for topics with settings of their own.
    let Mesh { d, lo, hi, lazy } = mesh;
    if !(1 <= lo && lo <= d && d <= hi) {
        return Err(format!("d {d}, lo {lo}, hi {hi}, lazy {lazy}"));
    }
    let propagation = propagation.clone();
    ConfigBuilder::default()
        .heartbeat_interval(HEARTBEAT)
        .heartbeat_initial_delay(HEARTBEAT / 5)
        .mesh_n(mesh.d)
        .mesh_n_low(mesh.lo)
        .mesh_n_high(mesh.hi)
        // The library wants min <= lo and 2 min <= d; 2 is the network's value.
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
            let id = message_id(message);
            propagation.on_copy(&id);
            id
        })
        .connection_handler_queue_len(QUEUE_LEN)
        .build()
        .map_err(|error| error.to_string())
}

fn message_id(message: &Message) -> MessageId {
    let (flag, bytes) = Decompressed::untag(&message.data);
    MessageId::new(&gossip::message_id(message.topic.as_str(), flag, bytes))
}

/// Snappy's block format, and a flag byte in front of what came in. Never fails on what a peer sends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snappy;

impl DataTransform for Snappy {
    fn inbound_transform(&self, raw: RawMessage) -> Result<Message, io::Error> {
        Ok(Message {
            source: raw.source,
            data: gossip::decompress_tagged(&raw.data),
            sequence_number: raw.sequence_number,
            topic: raw.topic,
        })
    }

    fn outbound_transform(&self, _: &TopicHash, data: Vec<u8>) -> Result<Vec<u8>, io::Error> {
        let (_, bytes) = Decompressed::untag(&data);
        snap::raw::Encoder::new().compress_vec(bytes).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_proto::gossip::Flag;

    fn raw(data: Vec<u8>) -> RawMessage {
        let topic = TopicHash::from_raw("t");
        RawMessage { source: None, data, sequence_number: None, topic, signature: None, key: None, validated: false }
    }

    #[test]
    fn what_goes_out_comes_in_with_the_same_id() {
        let bytes = b"some bytes that repeat, some bytes that repeat".to_vec();
        let tagged = Decompressed { flag: Flag::Decompressed, bytes }.into_tagged();
        let topic = TopicHash::from_raw("t");
        let wire = Snappy.outbound_transform(&topic, tagged.clone()).unwrap();
        let back = Snappy.inbound_transform(raw(wire)).unwrap();
        assert_eq!(back.data, tagged);
        let own = Message { source: None, data: tagged, sequence_number: None, topic };
        assert_eq!(message_id(&own), message_id(&back));
    }

    #[test]
    fn garbage_passes_through_with_an_id_of_its_own() {
        for data in [vec![], vec![0xff; 3], vec![0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0], vec![7; 100]] {
            let message = Snappy.inbound_transform(raw(data.clone())).unwrap();
            assert_eq!(Decompressed::untag(&message.data), (Flag::Raw, &data[..]));
            assert_eq!(message_id(&message).0, gossip::message_id("t", Flag::Raw, &data));
        }
    }

    #[test]
    fn small_meshes_are_valid_too() {
        for d in 1..20 {
            let mesh = Mesh { d, lo: d.div_ceil(2), hi: d + 4, lazy: 1 };
            assert!(gossip_config(mesh, &SharedPropagation::default()).is_ok(), "{mesh:?}");
        }
        assert!(gossip_config(Mesh { d: 2, lo: 3, hi: 4, lazy: 1 }, &SharedPropagation::default()).is_err());
    }
}
