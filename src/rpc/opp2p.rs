//! The `opp2p` namespace: the swarm in op-node's shapes, and an operator's commands to it.
//! `starling_p2p*` methods show information for which op-node has no shape: the reasons behind
//! decisions about peers, bans, the mesh, how the newest blocks arrived, and the gap that is being
//! filled. `starling_sequencer` shows whether this node makes blocks, and why it has stopped if it
//! stopped by itself.
//!
//! Some methods change which peers may connect, so `--http.api` and `--ws.api` serve the namespace
//! only if an operator names it (see [`super::RpcServer::bind`]).

use super::{
    api::{Method, Namespace},
    context::RollupContext,
    error::{Reply, RpcError, reply},
    json::read,
    params::{Arg, Args, string},
};
use crate::rollup::sequencer::SequencerHandle;
use data_encoding::BASE64;
use futures::{FutureExt, future::BoxFuture};
use libp2p::identity::PublicKey;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;
use starling_p2p::{
    Direction, DiscoveryReport, IpNet, Multiaddr, Network, NetworkError, PeerId, PeerReport,
    Scores, Subject, SwarmReport,
};
use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

pub const NAMESPACE: Namespace = Namespace {
    name: "opp2p",
    methods: &[
        ("opp2p_self", Method::RollupAsync(ourselves)),
        ("opp2p_peers", Method::RollupAsync(peers)),
        ("opp2p_peerStats", Method::RollupAsync(peer_stats)),
        ("opp2p_discoveryTable", Method::RollupAsync(discovery_table)),
        (
            "opp2p_blockPeer",
            Method::RollupAsync(|context, args| block::<PeerArg>(context, args, true)),
        ),
        (
            "opp2p_unblockPeer",
            Method::RollupAsync(|context, args| block::<PeerArg>(context, args, false)),
        ),
        (
            "opp2p_listBlockedPeers",
            Method::RollupAsync(list_blocked_peers),
        ),
        (
            "opp2p_blockAddr",
            Method::RollupAsync(|context, args| block::<AddressArg>(context, args, true)),
        ),
        (
            "opp2p_unblockAddr",
            Method::RollupAsync(|context, args| block::<AddressArg>(context, args, false)),
        ),
        (
            "opp2p_listBlockedAddrs",
            Method::RollupAsync(list_blocked_addresses),
        ),
        (
            "opp2p_blockSubnet",
            Method::RollupAsync(|context, args| block::<SubnetArg>(context, args, true)),
        ),
        (
            "opp2p_unblockSubnet",
            Method::RollupAsync(|context, args| block::<SubnetArg>(context, args, false)),
        ),
        (
            "opp2p_listBlockedSubnets",
            Method::RollupAsync(list_blocked_subnets),
        ),
        (
            "opp2p_protectPeer",
            Method::RollupAsync(|context, args| protect(context, args, true)),
        ),
        (
            "opp2p_unprotectPeer",
            Method::RollupAsync(|context, args| protect(context, args, false)),
        ),
        ("opp2p_connectPeer", Method::RollupAsync(connect_peer)),
        ("opp2p_disconnectPeer", Method::RollupAsync(disconnect_peer)),
        ("starling_p2pLedger", Method::RollupAsync(ledger)),
        ("starling_p2pBans", Method::RollupAsync(bans)),
        ("starling_p2pMesh", Method::RollupAsync(mesh)),
        ("starling_p2pSync", Method::RollupAsync(sync)),
        ("starling_p2pBlocks", Method::RollupAsync(blocks)),
        ("starling_sequencer", Method::Rollup(sequencer)),
        ("starling_p2pDiscovery", Method::RollupAsync(discovery)),
    ],
    subscriptions: &[],
};

/// Maximum entries of the ledger in one response.
const LEDGER: u64 = 200;

/// The JSON of one peer, in op-node's order of keys.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerInfoResponse {
    #[serde(rename = "peerID")]
    peer_id: String,
    #[serde(rename = "nodeID")]
    node_id: String,
    user_agent: String,
    protocol_version: String,
    #[serde(rename = "ENR")]
    enr: String,
    /// `null` instead of an empty list.
    addresses: Option<Vec<String>>,
    protocols: Option<Vec<String>>,
    /// 0 for not connected, 1 for connected.
    connectedness: u8,
    /// 0 for unknown, 1 for inbound, 2 for outbound.
    direction: u8,
    protected: bool,
    #[serde(rename = "chainID")]
    chain_id: u64,
    /// Latency in nanoseconds.
    latency: u64,
    gossip_blocks: bool,
    scores: Scores,
}

impl PeerInfoResponse {
    /// The JSON of a peer. A peer that subscribes to our topics is on our chain, because topic
    /// names contain the chain id.
    fn of(peer: PeerReport, chain_id: u64) -> Self {
        let some = |list: Vec<String>| if list.is_empty() { None } else { Some(list) };
        Self {
            peer_id: peer.id.to_string(),
            node_id: node_id(&peer.id),
            user_agent: peer.agent,
            protocol_version: peer.protocol_version,
            enr: peer.record.unwrap_or_default(),
            addresses: some(peer.addresses.iter().map(Multiaddr::to_string).collect()),
            protocols: some(peer.protocols),
            connectedness: peer.connected.into(),
            direction: match peer.direction {
                None => 0,
                Some(Direction::Inbound) => 1,
                Some(Direction::Outbound) => 2,
            },
            protected: peer.protected,
            chain_id: if peer.subscribed { chain_id } else { 0 },
            latency: u64::try_from(peer.latency.as_nanos()).unwrap_or(u64::MAX),
            gossip_blocks: peer.subscribed,
            // Only op-node's two groups of scores; the ledger shows the counters behind them.
            scores: Scores {
                offences: BTreeMap::new(),
                ..peer.scores
            },
        }
    }
}

/// The discovery node id: the hash of the public key, which is contained in a secp256k1 peer id.
fn node_id(peer: &PeerId) -> String {
    let key = PublicKey::try_decode_protobuf(peer.as_ref().digest())
        .ok()
        .and_then(|key| key.try_into_secp256k1().ok());
    key.map(|key| {
        hex::encode(alloy_primitives::keccak256(
            &key.to_bytes_uncompressed()[1..],
        ))
    })
    .unwrap_or_default()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerDump {
    total_connected: usize,
    peers: BTreeMap<String, PeerInfoResponse>,
    #[serde(serialize_with = "texts")]
    banned_peers: Vec<PeerId>,
    #[serde(rename = "bannedIPS")]
    banned_ips: Vec<IpAddr>,
    banned_subnets: Vec<Subnet>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PeerStats {
    connected: usize,
    table: usize,
    blocks_topic: usize,
    blocks_topic_v2: usize,
    blocks_topic_v3: usize,
    blocks_topic_v4: usize,
    banned: usize,
    known: usize,
}

/// A network in the form of Go's `net.IPNet`, with its mask in base64.
#[derive(Serialize)]
struct Subnet {
    #[serde(rename = "IP")]
    ip: IpAddr,
    #[serde(rename = "Mask")]
    mask: String,
}

impl From<IpNet> for Subnet {
    fn from(net: IpNet) -> Self {
        let mask = match net.netmask() {
            IpAddr::V4(mask) => BASE64.encode(&mask.octets()),
            IpAddr::V6(mask) => BASE64.encode(&mask.octets()),
        };
        Self {
            ip: net.network(),
            mask,
        }
    }
}

fn texts<T: ToString, S: Serializer>(all: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().map(ToString::to_string))
}

/// A parameter; `None` if it cannot be parsed, because op-node treats all unreadable parameters
/// alike.
struct PeerArg(Option<PeerId>);
struct AddressArg(Option<IpAddr>);
struct SubnetArg(Option<IpNet>);

impl Arg for PeerArg {
    fn from_json(json: &str) -> Result<Self, String> {
        Ok(Self(string(json).and_then(|text| text.parse().ok())))
    }
}

impl Arg for AddressArg {
    fn from_json(json: &str) -> Result<Self, String> {
        Ok(Self(string(json).and_then(|text| text.parse().ok())))
    }
}

/// Go's object for a subnet.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SubnetMembers {
    #[serde(rename = "IP")]
    ip: Option<String>,
    #[serde(rename = "Mask")]
    mask: Option<String>,
}

impl Arg for SubnetArg {
    /// Parses a CIDR string, as kona sends it, or Go's object.
    fn from_json(json: &str) -> Result<Self, String> {
        if let Some(text) = string(json) {
            return Ok(Self(text.parse::<IpNet>().ok().map(|net| net.trunc())));
        }
        let SubnetMembers { ip, mask } = read(json).map_err(|error| error.to_string())?;
        let ip = ip.and_then(|ip| ip.parse::<IpAddr>().ok());
        let mask = mask.and_then(|mask| BASE64.decode(mask.as_bytes()).ok());
        let mask = mask.and_then(|mask| match mask.len() {
            4 => <[u8; 4]>::try_from(mask).ok().map(IpAddr::from),
            _ => <[u8; 16]>::try_from(mask).ok().map(IpAddr::from),
        });
        let net = ip
            .zip(mask)
            .and_then(|(ip, mask)| IpNet::with_netmask(ip, mask).ok());
        Ok(Self(net.map(|net| net.trunc())))
    }
}

trait SubjectArg: Arg + Send {
    fn subject(self) -> Option<Subject>;
}

impl SubjectArg for PeerArg {
    fn subject(self) -> Option<Subject> {
        self.0.map(Subject::Peer)
    }
}

impl SubjectArg for AddressArg {
    fn subject(self) -> Option<Subject> {
        self.0.map(Subject::Address)
    }
}

impl SubjectArg for SubnetArg {
    fn subject(self) -> Option<Subject> {
        self.0.map(Subject::Subnet)
    }
}

impl From<NetworkError> for RpcError {
    fn from(error: NetworkError) -> Self {
        Self::server(error.to_string())
    }
}

fn invalid() -> RpcError {
    RpcError::server("invalid request")
}

/// The swarm of a context, or an error on a node without a swarm.
pub(super) fn network(network: &Option<Network>) -> Result<Network, RpcError> {
    network
        .clone()
        .ok_or_else(|| RpcError::server("p2p is disabled"))
}

async fn report(context: &RollupContext) -> Result<SwarmReport, RpcError> {
    Ok(network(&context.network)?.report().await?)
}

fn ourselves(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        let mut local = report(&context).await?.local;
        local.record = network(&context.network)?
            .discovery()
            .await
            .map(|discovery| discovery.enr);
        reply(PeerInfoResponse::of(local, context.chain_id))
    }
    .boxed()
}

fn peers(context: Arc<RollupContext>, mut args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let connected_only: bool = args.required()?;
        args.at_most(1)?;
        let report = report(&context).await?;
        let chain_id = context.chain_id;
        let shown = report
            .peers
            .into_iter()
            .filter(|peer| peer.connected || !connected_only);
        let peers: BTreeMap<String, PeerInfoResponse> = shown
            .map(|peer| (peer.id.to_string(), PeerInfoResponse::of(peer, chain_id)))
            .collect();
        reply(PeerDump {
            total_connected: peers
                .values()
                .filter(|peer| peer.connectedness == 1)
                .count(),
            peers,
            banned_peers: report.refused.peers,
            banned_ips: report.refused.addresses,
            banned_subnets: report
                .refused
                .subnets
                .into_iter()
                .map(Subnet::from)
                .collect(),
        })
    }
    .boxed()
}

fn peer_stats(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        let report = report(&context).await?;
        // Topics are sorted by name, and therefore by version.
        let topic = |version: usize| {
            report
                .mesh
                .get(version)
                .map_or(0, |topic| topic.subscribers.len())
        };
        reply(PeerStats {
            connected: report.peers.iter().filter(|peer| peer.connected).count(),
            table: network(&context.network)?
                .discovery()
                .await
                .map_or(0, |discovery| discovery.table.len()),
            blocks_topic: topic(0),
            blocks_topic_v2: topic(1),
            blocks_topic_v3: topic(2),
            blocks_topic_v4: topic(3),
            banned: report.refused.peers.len(),
            known: report.peers.len(),
        })
    }
    .boxed()
}

/// `opp2p_discoveryTable()`: all node records in the discovery table, whichever network they belong
/// to.
fn discovery_table(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        reply(discovery_report(&context).await?.table)
    }
    .boxed()
}

async fn discovery_report(context: &RollupContext) -> Result<DiscoveryReport, RpcError> {
    network(&context.network)?
        .discovery()
        .await
        .ok_or_else(|| RpcError::server("discovery disabled"))
}

/// `starling_p2pDiscovery()`: our node record, the discovery table, and the reasons why records
/// were not used.
fn discovery(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        reply(discovery_report(&context).await?)
    }
    .boxed()
}

fn block<T: SubjectArg>(
    context: Arc<RollupContext>,
    mut args: Args,
    blocked: bool,
) -> BoxFuture<'static, Reply> {
    async move {
        let subject = args.required::<T>()?.subject().ok_or_else(invalid)?;
        args.at_most(1)?;
        network(&context.network)?.block(subject, blocked).await?;
        reply(())
    }
    .boxed()
}

fn list_blocked_peers(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        let peers = report(&context).await?.refused.peers;
        reply(peers.iter().map(PeerId::to_string).collect::<Vec<_>>())
    }
    .boxed()
}

fn list_blocked_addresses(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        reply(report(&context).await?.refused.addresses)
    }
    .boxed()
}

fn list_blocked_subnets(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        let subnets = report(&context).await?.refused.subnets;
        reply(subnets.into_iter().map(Subnet::from).collect::<Vec<_>>())
    }
    .boxed()
}

fn protect(
    context: Arc<RollupContext>,
    mut args: Args,
    protected: bool,
) -> BoxFuture<'static, Reply> {
    async move {
        let peer = args.required::<PeerArg>()?.0.ok_or_else(invalid)?;
        args.at_most(1)?;
        network(&context.network)?.protect(peer, protected).await?;
        reply(())
    }
    .boxed()
}

fn connect_peer(context: Arc<RollupContext>, mut args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let text: String = args.required()?;
        args.at_most(1)?;
        let address: Multiaddr = text
            .parse()
            .map_err(|error| RpcError::server(format!("bad peer address: {error}")))?;
        network(&context.network)?.connect(&address).await?;
        reply(())
    }
    .boxed()
}

fn disconnect_peer(context: Arc<RollupContext>, mut args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let peer = args.required::<PeerArg>()?.0.ok_or_else(invalid)?;
        args.at_most(1)?;
        network(&context.network)?.disconnect(peer).await?;
        reply(())
    }
    .boxed()
}

/// `starling_p2pLedger(peerID or null, limit)`: at most `limit` decisions about peers, newest
/// first.
fn ledger(context: Arc<RollupContext>, mut args: Args) -> BoxFuture<'static, Reply> {
    async move {
        let peer = args
            .optional::<PeerArg>()?
            .map(|peer| peer.0.ok_or_else(invalid))
            .transpose()?;
        let limit = args
            .optional::<Number>()?
            .map_or(LEDGER, |limit| limit.0.min(LEDGER));
        args.at_most(2)?;
        reply(
            network(&context.network)?
                .ledger(peer, limit as usize)
                .await?,
        )
    }
    .boxed()
}

/// A plain JSON number.
struct Number(u64);

impl Arg for Number {
    fn from_json(json: &str) -> Result<Self, String> {
        read(json).map(Self).map_err(|error| error.to_string())
    }
}

fn bans(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        reply(report(&context).await?.refused.bans)
    }
    .boxed()
}

fn mesh(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        let names = |peers: Vec<PeerId>| peers.iter().map(PeerId::to_string).collect::<Vec<_>>();
        let topics = report(&context).await?.mesh.into_iter();
        let topics = topics
            .map(|topic| json!({ "topic": topic.topic, "subscribers": names(topic.subscribers), "mesh": names(topic.mesh) }));
        reply(topics.collect::<Vec<_>>())
    }
    .boxed()
}

/// `starling_sequencer()`: the status of the sequencer; `null` on a node that is no sequencer.
fn sequencer(context: &RollupContext, args: Args) -> Reply {
    args.at_most(0)?;
    reply(context.sequencer.as_ref().map(SequencerHandle::status))
}

/// `starling_p2pBlocks()`: how the newest blocks arrived, and from which peers.
fn blocks(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        reply(report(&context).await?.blocks)
    }
    .boxed()
}

fn sync(context: Arc<RollupContext>, args: Args) -> BoxFuture<'static, Reply> {
    async move {
        args.at_most(0)?;
        reply(report(&context).await?.sync)
    }
    .boxed()
}
