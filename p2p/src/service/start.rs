//! The start of the swarm: builds the modules and their channels, binds the sockets, and starts the
//! tasks that run beside the swarm's.

use super::{SECOND, Service, StartError};
use crate::{
    address::{ip_of, static_peer},
    clock::Moment,
    config::Config,
    discovery::{Discovery, DiscoveryChannels},
    gossip::{Gossip, check::Checker, timing::SharedTimings, topics::Topics},
    handle::Network,
    host::Host,
    nat::{MappedPorts, Nat},
    peers::{Offence, Peers},
    serve::{SwarmView, by_number::NumberServer, by_range::RangeServer},
    sync::{
        Sync,
        client::{SyncClient, by_number, by_range},
        progress::GapProgressLog,
    },
    types::{Blocks, ChainHeads, Event},
};
use futures::future::BoxFuture;
use libp2p::{Multiaddr, PeerId, multiaddr::Protocol};
use std::{net::UdpSocket, sync::Arc};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Capacity of the channel of commands to the swarm.
const COMMANDS: usize = 256;
/// Capacity of the channel of offences that serving tasks report. Further offences are lost.
const OFFENCES: usize = 256;
/// Protocols that our libraries implement, for the report about this node.
const PROTOCOLS: [&str; 6] = [
    "/ipfs/id/1.0.0",
    "/ipfs/id/push/1.0.0",
    "/ipfs/ping/1.0.0",
    "/meshsub/1.2.0",
    "/meshsub/1.1.0",
    "/meshsub/1.0.0",
];

/// Logs the static peers with our own peer id, which are not dialled. Nodes often share one list of
/// static peers, so this node may be in it. Anything at another address is a second node with the
/// same key.
fn log_own_static_peers(config: &Config) {
    let local = config.identity.public().to_peer_id();
    let own = |address: &&Multiaddr| static_peer(address).is_some_and(|(_, peer)| peer == local);
    for address in config.static_peers.iter().filter(own) {
        if is_here(address, config.listen_tcp) {
            tracing::info!(%address, "static peer is this node, skipped");
        } else {
            tracing::warn!(
                %address,
                "static peer has the peer id of this node, skipped: if it is another node, the two share one network key, and other peers stay connected with one of them only; give each its own key (--p2p.priv.path)"
            );
        }
    }
}

/// Whether the address is of this machine, with the port that we listen on.
fn is_here(address: &Multiaddr, listen_tcp: u16) -> bool {
    let port = |part| match part {
        Protocol::Tcp(port) => Some(port),
        _ => None,
    };
    let is_of_machine = |ip| UdpSocket::bind((ip, 0)).is_ok();
    address.iter().find_map(port) == Some(listen_tcp) && ip_of(address).is_some_and(is_of_machine)
}

impl Service {
    /// Binds the listening socket and prepares everything; must be called inside a tokio runtime.
    /// The receiver yields payloads for the chain, parents first. The node must report its verdict
    /// on each with [`Network::settled`].
    pub fn new(
        config: Config,
        blocks: Arc<dyn Blocks>,
    ) -> Result<(Self, Network, mpsc::Receiver<Event>), StartError> {
        let now = Moment::now();
        config.peer_limits.check().map_err(StartError::PeerLimits)?;
        let (topics, timings) = (Topics::new(config.chain_id), SharedTimings::default());
        log_own_static_peers(&config);
        let peers = Peers::new(config.peers(), now)?;
        let shared_addresses = peers.statics.ips();
        let mut host = Host::new(
            config.host(),
            &topics,
            &peers.rules(),
            &timings,
            shared_addresses,
        )?;
        let (offences_in, offences) = mpsc::channel(OFFENCES);
        let (heads, heads_seen) = watch::channel(ChainHeads::default());
        let servers = servers(&config, &mut host, &blocks, offences_in, heads_seen);
        let (side, discovery) = SideTasks::new(&config, &host, &peers, servers)?;
        // Without discovery the channel is closed, so the loop never takes a contact from it.
        let (found, report_requests) = match discovery {
            Some(channels) => (channels.found, Some(channels.report_requests)),
            None => (mpsc::channel(1).1, None),
        };
        let (commands_in, commands) = mpsc::channel(COMMANDS);
        let (events, events_out) = mpsc::channel(config.limits.unsettled.max(1));
        let network = Network {
            commands: commands_in,
            peers: host.peers(),
            listen_addrs: host.listen_addrs(),
            report_requests,
            local: host.local_peer_id(),
        };
        tracing::info!(peer = %network.local, chain = config.chain_id, "p2p identity");
        let service = Self {
            sync: Sync::new(config.limits, config.genesis.id, rand::random()),
            client: client(&config, &mut host, blocks.clone()),
            fetching: config.sync_req_resp,
            only_static: config.only_request_static,
            progress: GapProgressLog::default(),
            heads,
            protocols: protocols(&config),
            gossip: gossip(config, topics, timings, &mut host, blocks),
            host,
            peers,
            side,
            found,
            offences,
            next_tick: now.instant + SECOND,
            commands,
            events,
        };
        Ok((service, network, events_out))
    }
}

/// Builds the gossip module. Without a signer the router accepts no blocks.
fn gossip(
    config: Config,
    topics: Topics,
    timings: SharedTimings,
    host: &mut Host,
    blocks: Arc<dyn Blocks>,
) -> Gossip {
    let checker = Checker::new(
        config.chain_id,
        config.forks,
        config.gossip_threshold.as_secs(),
        config.unsafe_block_signer,
        blocks,
    );
    host.router().set_accepting(checker.has_signer());
    Gossip::new(topics, timings, config.gossip_threshold, checker)
}

fn client(config: &Config, host: &mut Host, blocks: Arc<dyn Blocks>) -> SyncClient {
    let (control, fetches) = (host.streams().control(), config.sync_req_resp);
    SyncClient::new(control, config.chain_id, config.genesis, blocks, fetches)
}

/// The tasks that serve peers, each with the incoming streams of its protocol; none if blocks are
/// not served.
fn servers(
    config: &Config,
    host: &mut Host,
    blocks: &Arc<dyn Blocks>,
    offences: mpsc::Sender<(PeerId, Offence)>,
    heads: watch::Receiver<ChainHeads>,
) -> Vec<BoxFuture<'static, ()>> {
    if !config.sync_req_resp {
        return Vec::new();
    }
    let (peers, chain_id, genesis) = (host.peers(), config.chain_id, config.genesis);
    let swarm = SwarmView { peers, offences };
    let numbers = NumberServer::new(genesis, config.forks.clone(), blocks.clone(), swarm.clone());
    let ranges = RangeServer::new(
        chain_id,
        genesis.id,
        blocks.clone(),
        heads,
        swarm,
        config.serve_rate,
    );
    let streams = host.streams();
    let number_streams = streams.accept(by_number::protocols(chain_id));
    let range_streams = streams.accept(by_range::protocol(chain_id));
    vec![
        Box::pin(Arc::new(numbers).run(number_streams)),
        Box::pin(Arc::new(ranges).run(range_streams)),
    ]
}

/// The protocols that this node speaks.
fn protocols(config: &Config) -> Vec<String> {
    let mut protocols: Vec<String> = PROTOCOLS.map(str::to_owned).into();
    if config.sync_req_resp {
        let by_number = by_number::protocols(config.chain_id);
        protocols.extend(by_number.iter().map(ToString::to_string));
        let by_range = by_range::protocol(config.chain_id);
        protocols.extend(by_range.map(|protocol| protocol.to_string()));
    }
    protocols
}

/// The tasks that run beside the swarm's, before they are started.
#[derive(Default)]
pub(super) struct SideTasks {
    servers: Vec<BoxFuture<'static, ()>>,
    discovery: Option<Discovery>,
    nat: Option<Nat>,
}

/// The running tasks beside the swarm's. Dropping this value ends them.
pub(super) struct RunningSideTasks {
    /// Serving tasks. They are aborted when this value is dropped, at the end of the swarm.
    _servers: JoinSet<()>,
    /// Discovery and NAT. The swarm waits for their end, because they then store records and close
    /// ports.
    closing: JoinSet<()>,
}

impl SideTasks {
    /// Prepares the tasks. The returned channels are `None` without discovery.
    fn new(
        config: &Config,
        host: &Host,
        peers: &Peers,
        servers: Vec<BoxFuture<'static, ()>>,
    ) -> Result<(Self, Option<DiscoveryChannels>), StartError> {
        let (mapped_in, mapped) = watch::channel(MappedPorts::default());
        let discovery = config.discovery.as_ref().map(|discovery| {
            Discovery::new(
                &config.local_node(),
                discovery,
                peers.rules(),
                host.listen_addrs(),
                host.peers(),
                mapped,
            )
        });
        let (discovery, channels) = discovery.transpose()?.unzip();
        let nat = config.nat.map(|config| Nat {
            config,
            listen_addrs: host.listen_addrs(),
            udp: channels.as_ref().map(|channels| channels.udp.clone()),
            mapped: mapped_in,
        });
        let tasks = Self {
            servers,
            discovery,
            nat,
        };
        Ok((tasks, channels))
    }

    /// Starts the tasks. Cancelling `stop` ends discovery and NAT.
    pub fn start(self, stop: &CancellationToken) -> RunningSideTasks {
        let mut closing = JoinSet::new();
        if let Some(discovery) = self.discovery {
            closing.spawn(discovery.run(stop.clone()));
        }
        if let Some(nat) = self.nat {
            closing.spawn(nat.run(stop.clone()));
        }
        RunningSideTasks {
            _servers: self.servers.into_iter().collect(),
            closing,
        }
    }
}

impl RunningSideTasks {
    /// Waits for the end of discovery and NAT.
    pub async fn ended(mut self) {
        while self.closing.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_of_this_machine_with_our_port_is_here() {
        for (address, here) in [
            ("/ip4/127.0.0.1/tcp/9222", true),
            ("/ip4/127.0.0.1/tcp/9223", false),
            ("/ip4/192.0.2.1/tcp/9222", false),
            ("/dns4/node.example/tcp/9222", false),
        ] {
            assert_eq!(is_here(&address.parse().unwrap(), 9222), here, "{address}");
        }
    }
}
