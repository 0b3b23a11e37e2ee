//! The behaviours of the swarm, composed: the protocols that run on every connection.

use super::HostConfig;
use crate::{
    gossip::router::{Gossipsub, Router},
    gossip::timing::SharedTimings,
    gossip::topics::{Snappy, Topics, gossip_config},
    host::streams,
    peers::gate::{Gate, SharedGateRules},
    peers::score::{self, Scoring},
};
use libp2p::{
    gossipsub::{self, MessageAuthenticity, TopicHash},
    identify, ping,
    swarm::NetworkBehaviour,
};
use std::{net::IpAddr, time::Duration};

/// A connection with two failed pings is closed, within 40 seconds. TCP would notice a dead link
/// much later, and the peer is dialled again only after the close.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(NetworkBehaviour)]
pub struct Behaviour {
    /// Refuses connections. The gate is the first field, so no other behaviour sees a refused
    /// connection.
    pub gate: Gate,
    /// Gossip of blocks, with unpacking.
    pub gossip: Router,
    /// Exchanges identity and supported protocols with the peer.
    pub identify: identify::Behaviour,
    /// Pings the peer to detect dead connections.
    pub ping: ping::Behaviour,
    /// Streams of our own: `payload_by_number` and range sync.
    pub streams: streams::StreamsBehaviour,
}

impl Behaviour {
    /// Builds the behaviours and joins the topics. The error is a sentence about the mesh
    /// parameters. Peers that share an address in `shared_addresses` get no penalty for it.
    pub fn new(
        config: &HostConfig,
        topics: &Topics,
        rules: SharedGateRules,
        timings: &SharedTimings,
        shared_addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Self, String> {
        let (mesh, snappy) = (gossip_config(config.mesh, timings)?, Snappy::default());
        let (filter, transform) = (topics.filter(), snappy.clone());
        let mut gossip = Gossipsub::new_with_subscription_filter_and_transform(
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
        if config.scoring == Scoring::Light {
            gossip.with_peer_score(
                score::router_params(config.slot, shared_addresses),
                score::router_thresholds(),
            )?;
        }
        // The protocol version is empty, as in op-node.
        let identify = identify::Config::new(String::new(), config.identity.public())
            .with_agent_version(config.user_agent.clone());
        Ok(Self {
            gate: Gate::new(rules.clone(), config.max_peers),
            gossip: Router::new(gossip, snappy, timings.clone(), rules),
            identify: identify::Behaviour::new(identify),
            ping: ping::Behaviour::new(
                ping::Config::new()
                    .with_interval(PING_INTERVAL)
                    .with_timeout(PING_TIMEOUT),
            ),
            streams: streams::StreamsBehaviour::new(),
        })
    }
}

fn ident(topic: &TopicHash) -> gossipsub::IdentTopic {
    gossipsub::IdentTopic::new(topic.as_str())
}
