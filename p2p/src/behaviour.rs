//! The protocols of one connection, composed.

use crate::{
    config::Config,
    topics::{Snappy, Topics, gossip_config},
};
use libp2p::{
    connection_limits::{self, ConnectionLimits},
    gossipsub::{self, MessageAuthenticity, TopicHash, WhitelistSubscriptionFilter},
    identify, ping,
    swarm::NetworkBehaviour,
};
use std::time::Duration;

/// A connection that leaves two pings without an answer is closed, within 40 seconds: long before TCP would notice, so that a peer
/// that was cut off is dialled again soon.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Handshakes of strangers at once, and connections of strangers; static peers are not counted.
const MAX_PENDING_INCOMING: u32 = 64;
const MAX_INCOMING: u32 = 256;
/// One is meant; a second may exist for a moment when both sides dial.
const MAX_PER_PEER: u32 = 4;

pub type Gossip = gossipsub::Behaviour<Snappy, WhitelistSubscriptionFilter>;

#[derive(NetworkBehaviour)]
pub struct Behaviour {
    /// Refuses connections past a number.
    pub limits: connection_limits::Behaviour,
    /// Blocks.
    pub gossip: Gossip,
    /// Who the peer is and what it speaks.
    pub identify: identify::Behaviour,
    /// Whether the peer is still there.
    pub ping: ping::Behaviour,
    /// Streams of our own: `payload_by_number`.
    pub streams: libp2p_stream::Behaviour,
}

impl Behaviour {
    /// Joined to the topics; the error is a sentence about the mesh parameters.
    pub fn new(config: &Config, topics: &Topics) -> Result<Self, String> {
        let mesh = gossip_config(config.mesh)?;
        let mut gossip =
            Gossip::new_with_subscription_filter_and_transform(MessageAuthenticity::Anonymous, mesh, topics.filter(), Snappy)?;
        for topic in topics.names() {
            gossip.subscribe(&ident(topic)).map_err(|error| error.to_string())?;
        }
        // The protocol version is empty like everybody's here; nobody looks at it.
        let identify =
            identify::Config::new(String::new(), config.identity.public()).with_agent_version(config.user_agent.clone());
        let limits = ConnectionLimits::default()
            .with_max_pending_incoming(Some(MAX_PENDING_INCOMING))
            .with_max_established_incoming(Some(MAX_INCOMING))
            .with_max_established_per_peer(Some(MAX_PER_PEER));
        Ok(Self {
            limits: connection_limits::Behaviour::new(limits),
            gossip,
            identify: identify::Behaviour::new(identify),
            ping: ping::Behaviour::new(ping::Config::new().with_interval(PING_INTERVAL).with_timeout(PING_TIMEOUT)),
            streams: libp2p_stream::Behaviour::new(),
        })
    }
}

fn ident(topic: &TopicHash) -> gossipsub::IdentTopic {
    gossipsub::IdentTopic::new(topic.as_str())
}
