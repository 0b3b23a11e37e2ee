//! The host: TCP with DNS names, noise, yamux; and the one listening socket.

use crate::{
    behaviour::Behaviour,
    config::Config,
    gate::{Gated, SharedRules},
    guard::Guard,
    metrics::Meter,
    peerstore::StoreError,
    propagation::SharedPropagation,
    topics::Topics,
};
use hickory_resolver::{
    config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts},
    system_conf::read_system_conf,
};
use libp2p::{
    PeerId, Swarm, Transport,
    core::{muxing::StreamMuxerBox, transport::Boxed, upgrade::Version},
    dns,
    identity::Keypair,
    noise, swarm, tcp, yamux,
};
use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    time::Duration,
};

/// For dialling, or accepting, up to the end of all handshakes.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A connection that carries no stream at all is closed after this.
const IDLE: Duration = Duration::from_secs(3600);

/// What names stand for is believed no longer than this, whatever their servers say: a peer that moved is found by its next dials.
const DNS_TTL: Duration = Duration::from_secs(5);

/// Streams of one connection at once: twice what two nodes of our kind use. A stream that nobody reads may hold 256 KiB.
const STREAMS: usize = 256;

/// Why the swarm does not start. One sentence each, with the next step.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("p2p port {port} on {ip} is already in use by another process; stop it or choose another with --p2p.listen.tcp", ip = .0.ip(), port = .0.port())]
    PortInUse(SocketAddr),
    #[error("cannot listen for p2p on {address}: {source}; check --p2p.listen.ip and --p2p.listen.tcp")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the p2p identity cannot make a noise handshake: {0}")]
    Noise(#[from] noise::Error),
    #[error("invalid gossip mesh parameters: {0}; each needs 1 <= lo <= d <= hi")]
    Mesh(String),
    #[error("invalid numbers of peers: {0}")]
    Tides(String),
    #[error(
        "cannot listen for discovery on UDP {address}: {source}; choose another port with --p2p.listen.udp, or turn it off with --p2p.no-discovery"
    )]
    Udp { address: SocketAddr, source: io::Error },
    #[error("the p2p identity is no secp256k1 key, which discovery needs")]
    Identity,
    #[error(transparent)]
    Peerstore(#[from] StoreError),
}

/// A swarm that listens and has dialled nobody yet. `crowds`: see [`Behaviour::new`].
pub fn listening_swarm(
    config: &Config,
    topics: &Topics,
    rules: &SharedRules,
    propagation: &SharedPropagation,
    crowds: impl IntoIterator<Item = IpAddr>,
) -> Result<Swarm<Behaviour>, StartError> {
    let transport = transport(&config.identity, rules, config.name_server)?;
    let behaviour = Behaviour::new(config, topics, rules.clone(), propagation, crowds).map_err(StartError::Mesh)?;
    let options = swarm::Config::with_tokio_executor().with_idle_connection_timeout(IDLE);
    let mut swarm = Swarm::new(transport, behaviour, config.identity.public().to_peer_id(), options);

    let address = SocketAddr::new(config.listen_ip, config.listen_tcp);
    // The transport shares its port with anybody who also shares it, so a second node would bind without an error. Ask first.
    if config.listen_tcp != 0 {
        TcpListener::bind(address).map_err(|source| listen_error(address, source))?;
    }
    swarm.listen_on(config.listen_addr()).map_err(|error| listen_error(address, io::Error::other(error)))?;
    Ok(swarm)
}

fn listen_error(address: SocketAddr, source: io::Error) -> StartError {
    match source.kind() {
        io::ErrorKind::AddrInUse => StartError::PortInUse(address),
        _ => StartError::Listen { address, source },
    }
}

fn transport(
    identity: &Keypair,
    rules: &SharedRules,
    name_server: Option<SocketAddr>,
) -> Result<Boxed<(PeerId, StreamMuxerBox)>, StartError> {
    let tcp = Gated::new(tcp::tokio::Transport::new(tcp::Config::new().nodelay(true)), rules.clone());
    let (servers, mut resolving) = match name_server {
        Some(address) => (only(address), ResolverOpts::default()),
        // A machine without a resolver configuration can still dial addresses.
        None => read_system_conf().unwrap_or_else(|error| {
            tracing::warn!(%error, "no system DNS configuration, using public resolvers for peers given by name");
            Default::default()
        }),
    };
    (resolving.positive_max_ttl, resolving.negative_max_ttl) = (Some(DNS_TTL), Some(DNS_TTL));
    let named = dns::tokio::Transport::custom(tcp, servers, resolving);
    let meter = Meter::new();
    let mut muxer = yamux::Config::default();
    muxer.set_max_num_streams(STREAMS);
    Ok(named
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(identity)?)
        .multiplex(muxer)
        .timeout(HANDSHAKE)
        .map(move |(peer, muxer), _| (peer, StreamMuxerBox::new(Guard::new(muxer, meter.clone()))))
        .boxed())
}

fn only(address: SocketAddr) -> ResolverConfig {
    let mut connection = ConnectionConfig::udp();
    connection.port = address.port();
    ResolverConfig::from_parts(None, Vec::new(), vec![NameServerConfig::new(address.ip(), true, vec![connection])])
}
