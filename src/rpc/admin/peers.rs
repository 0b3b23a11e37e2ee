//! Methods about peers, in geth's shapes. Peers are those of the swarm, named by multiaddrs; devp2p
//! nodes are not supported.

use crate::rpc::{
    context::RpcContext,
    error::{Reply, RpcError, reply},
    opp2p::network,
    params::Args,
    subscription::EventStream,
};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use serde::Serialize;
use serde_json::json;
use starling_p2p::{Direction, Multiaddr, PeerId, PeerInfo, PeerReport};
use std::{collections::BTreeMap, sync::Arc};
use tokio_stream::wrappers::WatchStream;

/// The reason why an address names no peer.
#[derive(Debug, thiserror::Error)]
enum PeerAddressError {
    #[error(
        "{0} is the address of a devp2p node, and this node speaks libp2p only: give a multiaddr such as /ip4/192.0.2.1/tcp/9222/p2p/16Uiu2HAm…"
    )]
    Devp2p(String),
    #[error("{address} is no multiaddr: {reason}")]
    Invalid { address: String, reason: String },
    #[error("{0} does not end with /p2p/ and the id of the peer")]
    NoPeer(String),
}

impl From<PeerAddressError> for RpcError {
    fn from(error: PeerAddressError) -> Self {
        Self::server(error.to_string())
    }
}

/// A multiaddr and the peer that it names.
struct PeerAddress {
    address: Multiaddr,
    peer: PeerId,
}

impl PeerAddress {
    fn parse(text: &str) -> Result<Self, PeerAddressError> {
        if text.starts_with("enode://") || text.starts_with("enr:") {
            return Err(PeerAddressError::Devp2p(text.to_owned()));
        }
        let address = text.parse::<Multiaddr>();
        let address = address.map_err(|error| PeerAddressError::Invalid {
            address: text.to_owned(),
            reason: error.to_string(),
        })?;
        let peer = text
            .rsplit_once("/p2p/")
            .and_then(|(_, id)| id.parse().ok());
        let peer = peer.ok_or_else(|| PeerAddressError::NoPeer(text.to_owned()))?;
        Ok(Self { address, peer })
    }

    fn read(args: Args) -> Result<Self, RpcError> {
        let text: String = args.at_most(1)?.required()?;
        Ok(Self::parse(&text)?)
    }
}

/// `admin_addPeer(multiaddr)`: connects to the peer, and protects it from being trimmed.
pub fn add_peer(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let PeerAddress { address, peer } = PeerAddress::read(args)?;
        let network = network(&context.network)?;
        network.protect(peer, true).await?;
        network.connect(&address).await?;
        reply(true)
    }
    .boxed()
}

/// `admin_removePeer(multiaddr)`: disconnects the peer, and ends its protection.
pub fn remove_peer(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let PeerAddress { peer, .. } = PeerAddress::read(args)?;
        let network = network(&context.network)?;
        network.protect(peer, false).await?;
        network.disconnect(peer).await?;
        reply(true)
    }
    .boxed()
}

/// `admin_addTrustedPeer(multiaddr)`: protects the peer, which may then connect even at the
/// connection limit.
pub fn add_trusted_peer(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    protect(context, args, true)
}

/// `admin_removeTrustedPeer(multiaddr)`: ends the peer's protection. The peer stays connected until
/// connections are trimmed.
pub fn remove_trusted_peer(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    protect(context, args, false)
}

fn protect(context: Arc<RpcContext>, args: Args, protected: bool) -> BoxFuture<'static, Reply> {
    async move {
        let PeerAddress { peer, .. } = PeerAddress::read(args)?;
        network(&context.network)?.protect(peer, protected).await?;
        reply(true)
    }
    .boxed()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeInfoJson {
    id: String,
    name: String,
    /// The node's first multiaddr, which another node's `admin_addPeer` accepts.
    enode: String,
    enr: String,
    ip: String,
    ports: PortsJson,
    listen_addr: String,
    multiaddrs: Vec<String>,
    protocols: serde_json::Value,
}

#[derive(Default, Serialize)]
struct PortsJson {
    discovery: u16,
    listener: u16,
}

/// The value after a protocol's name in a multiaddr, such as 9222 after `tcp`.
fn part<'a>(address: &'a str, protocol: &str) -> Option<&'a str> {
    let mut parts = address.split('/').skip_while(|part| *part != protocol);
    parts.nth(1)
}

pub fn node_info(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        let network = network(&context.network)?;
        let local = network.report().await?.local;
        let discovery = network.discovery().await;
        let addresses: Vec<String> = local.addresses.iter().map(Multiaddr::to_string).collect();
        let first = addresses.first().cloned().unwrap_or_default();
        let ip = ["ip4", "ip6", "dns", "dns4", "dns6"];
        let ip = ip.iter().find_map(|protocol| part(&first, protocol));
        let port = |protocol| part(&first, protocol).and_then(|port| port.parse().ok());
        let listener = port("tcp").or(port("udp")).unwrap_or(0);
        let view = context.view();
        let spec = &context.chain.spec;
        let config = (context.chain.config)();
        let config = config.map_err(|error| RpcError::server(error.to_string()))?;
        reply(NodeInfoJson {
            id: local.id.to_string(),
            name: context.client_version.clone(),
            enr: discovery.map_or_else(String::new, |discovery| discovery.enr),
            ip: ip.unwrap_or_default().to_owned(),
            ports: PortsJson {
                discovery: port("udp").unwrap_or(listener),
                listener,
            },
            listen_addr: format!("{}:{listener}", ip.unwrap_or_default()),
            enode: first,
            multiaddrs: addresses,
            protocols: json!({ "eth": {
                "network": spec.chain_id,
                "genesis": spec.genesis_hash,
                "config": config,
                "head": view.head().hash,
            } }),
        })
    }
    .boxed()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerJson {
    enr: String,
    enode: String,
    id: String,
    name: String,
    caps: Vec<String>,
    network: PeerNetworkJson,
    protocols: BTreeMap<String, serde_json::Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerNetworkJson {
    local_address: String,
    remote_address: String,
    inbound: bool,
    trusted: bool,
    #[serde(rename = "static")]
    is_static: bool,
}

impl PeerJson {
    fn new(peer: PeerReport, local_address: String, remote_address: String) -> Self {
        let address = peer.addresses.first().map(Multiaddr::to_string);
        let blocks = json!({ "subscribed": peer.subscribed, "inMesh": peer.in_mesh });
        Self {
            enr: peer.record.unwrap_or_default(),
            enode: address.unwrap_or_else(|| remote_address.clone()),
            id: peer.id.to_string(),
            name: peer.agent,
            caps: peer.protocols,
            network: PeerNetworkJson {
                local_address,
                remote_address,
                inbound: peer.direction == Some(Direction::Inbound),
                trusted: peer.protected,
                is_static: peer.is_static,
            },
            protocols: BTreeMap::from([("gossip".to_owned(), blocks)]),
        }
    }
}

pub fn peers(context: Arc<RpcContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        let network = network(&context.network)?;
        let report = network.report().await?;
        let local = report.local.addresses.first().map(Multiaddr::to_string);
        let local = local.unwrap_or_default();
        let remote: BTreeMap<String, String> = network
            .peers()
            .into_iter()
            .map(|peer| (peer.id.to_string(), peer.address.to_string()))
            .collect();
        let connected = report.peers.into_iter().filter(|peer| peer.connected);
        let peers = connected.map(|peer| {
            let address = remote.get(&peer.id.to_string()).cloned();
            PeerJson::new(peer, local.clone(), address.unwrap_or_default())
        });
        reply(peers.collect::<Vec<_>>())
    }
    .boxed()
}

/// An event about a peer that has connected or disconnected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PeerEventJson {
    #[serde(rename = "type")]
    kind: &'static str,
    peer: String,
    remote: String,
}

/// Addresses of the connected peers, by peer id.
type PeerAddresses = BTreeMap<String, String>;

fn connected(peers: Vec<PeerInfo>) -> PeerAddresses {
    let each = peers.into_iter();
    each.map(|peer| (peer.id.to_string(), peer.address.to_string()))
        .collect()
}

/// The events between two states of the connected peers. A peer that connected and disconnected in
/// between has no event.
fn differences(before: &PeerAddresses, now: &PeerAddresses) -> Vec<PeerEventJson> {
    let event = |kind, (peer, remote): (&String, &String)| PeerEventJson {
        kind,
        peer: peer.clone(),
        remote: remote.clone(),
    };
    let gone = before.iter().filter(|(peer, _)| !now.contains_key(*peer));
    let new = now.iter().filter(|(peer, _)| !before.contains_key(*peer));
    let gone = gone.map(|peer| event("drop", peer));
    gone.chain(new.map(|peer| event("add", peer))).collect()
}

/// `admin_subscribe("peerEvents")`: an event for each peer that connects or disconnects.
pub fn peer_events(context: &Arc<RpcContext>, args: Args) -> Result<EventStream, RpcError> {
    args.at_most(1)?;
    let watch = network(&context.network)?.peers_watch();
    let before = connected(watch.borrow().clone());
    let changes = WatchStream::from_changes(watch).scan(before, |before, peers| {
        let now = connected(peers);
        let events = differences(before, &now);
        *before = now;
        std::future::ready(Some(stream::iter(events)))
    });
    let told = changes.flatten().map(reply);
    Ok(told.map(|event| Ok(event?.into())).boxed())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "16Uiu2HAmL2uYgsvsT2VTgKuM4TeGsjDkHPsNEbWBPUyNsiBhTyAv";

    #[test]
    fn only_multiaddrs_with_a_peer_are_addresses() {
        let address = format!("/ip4/192.0.2.1/tcp/9222/p2p/{PEER}");
        let parsed = PeerAddress::parse(&address).ok().unwrap();
        assert_eq!(parsed.peer.to_string(), PEER);
        assert_eq!(part(&address, "tcp"), Some("9222"));
        assert_eq!(part(&address, "udp"), None);
        for (text, part) in [
            ("enode://aa@192.0.2.1:30303", "libp2p only"),
            ("192.0.2.1:9222", "is no multiaddr"),
            ("/ip4/192.0.2.1/tcp/9222", "does not end with /p2p/"),
        ] {
            let error = PeerAddress::parse(text).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn events_are_the_differences_between_two_looks() {
        let peers = |names: &[&str]| -> PeerAddresses {
            let each = names.iter();
            each.map(|name| ((*name).to_owned(), format!("/dns/{name}")))
                .collect()
        };
        let events = differences(&peers(&["a", "b"]), &peers(&["b", "c"]));
        let told: Vec<_> = events
            .iter()
            .map(|event| (event.kind, event.peer.as_str(), event.remote.as_str()))
            .collect();
        assert_eq!(told, [("drop", "a", "/dns/a"), ("add", "c", "/dns/c")]);
        assert_eq!(differences(&peers(&["a"]), &peers(&["a"])), []);
    }
}
