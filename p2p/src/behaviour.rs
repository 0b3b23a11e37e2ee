//! The protocols of one connection, composed.

use crate::{
    config::Config,
    gate::{Gate, SharedRules},
    peers::score::{self, Scoring},
    propagation::SharedPropagation,
    router::Router,
    streams,
    topics::{Snappy, Topics, gossip_config},
};
use libp2p::{
    gossipsub::{self, MessageAuthenticity, TopicHash, WhitelistSubscriptionFilter},
    identify, ping,
    swarm::NetworkBehaviour,
};
use std::{net::IpAddr, time::Duration};

/// A connection that leaves two pings without an answer is closed, within 40 seconds: long before TCP would notice, so that a peer
/// that was cut off is dialled again soon.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

pub type Gossip = gossipsub::Behaviour<Snappy, WhitelistSubscriptionFilter>;

#[derive(NetworkBehaviour)]
pub struct Behaviour {
    /// Refuses connections. First, so that nobody else hears of those.
    pub gate: Gate,
    /// Blocks.
    pub gossip: Router,
    /// Who the peer is and what it speaks.
    pub identify: identify::Behaviour,
    /// Whether the peer is still there.
    pub ping: ping::Behaviour,
    /// Streams of our own: `payload_by_number` and range sync.
    pub streams: streams::Behaviour,
}

impl Behaviour {
    /// Joined to the topics; the error is a sentence about the mesh parameters. `crowds` may be shared by any number of peers.
    pub fn new(
        config: &Config,
        topics: &Topics,
        rules: SharedRules,
        propagation: &SharedPropagation,
        crowds: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Self, String> {
        let (mesh, snappy) = (gossip_config(config.mesh, propagation)?, Snappy::default());
        let (filter, transform) = (topics.filter(), snappy.clone());
        let mut gossip = Gossip::new_with_subscription_filter_and_transform(
            MessageAuthenticity::Anonymous,
            mesh,
            filter,
            transform,
        )?;
        for topic in topics.names() {
            gossip
                .subscribe(&ident(topic))
                .map_err(|error| error.to_string())?;
        }
        if config.policy.scoring == Scoring::Light {
            gossip.with_peer_score(
                score::router_params(config.slot(), crowds),
                score::router_thresholds(),
            )?;
        }
        // The protocol version is empty like everybody's here; nobody looks at it.
        let identify = identify::Config::new(String::new(), config.identity.public())
            .with_agent_version(config.user_agent.clone());
        Ok(Self {
            gate: Gate::new(rules.clone(), config.tides.hi),
            gossip: Router::new(gossip, snappy, propagation.clone(), rules),
            identify: identify::Behaviour::new(identify),
            ping: ping::Behaviour::new(
                ping::Config::new()
                    .with_interval(PING_INTERVAL)
                    .with_timeout(PING_TIMEOUT),
            ),
            streams: streams::Behaviour::new(),
        })
    }
}

fn ident(topic: &TopicHash) -> gossipsub::IdentTopic {
    gossipsub::IdentTopic::new(topic.as_str())
}
