//! The host: TCP with noise and yamux, QUIC, names of DNS for both; and the listening sockets, that of QUIC if it is wanted.

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
use either::Either;
use hickory_resolver::{
    config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts},
    system_conf::read_system_conf,
};
use libp2p::{
    PeerId, Swarm, Transport, TransportError,
    core::{
        muxing::{StreamMuxer, StreamMuxerBox},
        transport::{Boxed, timeout::TransportTimeout},
        upgrade::Version,
    },
    dns,
    identity::Keypair,
    noise, quic, swarm, tcp, yamux,
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
/// Bytes of one stream, and of all streams of a connection, that may come before they are read, over QUIC.
const QUIC_STREAM: u32 = 1 << 20;
const QUIC_CONNECTION: u32 = 4 << 20;

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
    #[error("cannot listen for QUIC on UDP {address}: {reason}; choose another port with --p2p.listen.quic")]
    Quic { address: SocketAddr, reason: String },
    #[error(
        "QUIC and discovery cannot share UDP port {0}: give QUIC another one with --p2p.listen.quic, or discovery with --p2p.listen.udp"
    )]
    SharedPort(u16),
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
    // Before anything is opened: what is told does not hang on who else listens where.
    if let Some(port) = config.listen_quic.filter(|port| *port != 0 && Some(*port) == config.discovery_port()) {
        return Err(StartError::SharedPort(port));
    }
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
    if let Some(port) = config.listen_quic {
        let address = SocketAddr::new(config.listen_ip, port);
        let refused = |error: TransportError<io::Error>| StartError::Quic { address, reason: error.to_string() };
        swarm.listen_on(config.quic_addr(port)).map_err(refused)?;
    }
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
    let (servers, mut resolving) = match name_server {
        Some(address) => (only(address), ResolverOpts::default()),
        // A machine without a resolver configuration can still dial addresses.
        None => read_system_conf().unwrap_or_else(|error| {
            tracing::warn!(%error, "no system DNS configuration, using public resolvers for peers given by name");
            Default::default()
        }),
    };
    (resolving.positive_max_ttl, resolving.negative_max_ttl) = (Some(DNS_TTL), Some(DNS_TTL));
    let meter = Meter::new();
    let mut muxer = yamux::Config::default();
    muxer.set_max_num_streams(STREAMS);
    let tcp = tcp::tokio::Transport::new(tcp::Config::new().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(identity)?)
        .multiplex(muxer);
    let mut datagrams = quic::Config::new(identity);
    datagrams.handshake_timeout = HANDSHAKE;
    datagrams.max_concurrent_stream_limit = STREAMS as u32;
    (datagrams.max_stream_data, datagrams.max_connection_data) = (QUIC_STREAM, QUIC_CONNECTION);
    let meters = meter.clone();
    // Either of two errors does not tell its cause: a refused dial would not be known for one.
    let tcp = tcp.map(move |connected, _| guarded(connected, &meter)).map_err(|error| match error {
        Either::Left(Either::Left(error)) => error,
        error => io::Error::other(error),
    });
    let quic = quic::tokio::Transport::new(datagrams).map(move |connected, _| guarded(connected, &meters));
    let either =
        tcp.or_transport(quic.map_err(io::Error::other)).map(|connected, _| connected.into_inner()).map_err(Either::into_inner);
    let named = dns::tokio::Transport::custom(Gated::new(either.boxed(), rules.clone()), servers, resolving);
    Ok(TransportTimeout::new(named, HANDSHAKE).boxed())
}

fn guarded<M>((peer, muxer): (PeerId, M), meter: &Meter) -> (PeerId, StreamMuxerBox)
where
    M: StreamMuxer + Send + Unpin + 'static,
    M::Substream: Send + Unpin + 'static,
    M::Error: Send + Sync + 'static,
{
    (peer, StreamMuxerBox::new(Guard::new(muxer, meter.clone())))
}

fn only(address: SocketAddr) -> ResolverConfig {
    let mut connection = ConnectionConfig::udp();
    connection.port = address.port();
    ResolverConfig::from_parts(None, Vec::new(), vec![NameServerConfig::new(address.ip(), true, vec![connection])])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::connections::is_refused;
    use libp2p::{
        Multiaddr,
        core::{
            Endpoint,
            transport::{DialOpts, PortUse},
        },
        swarm::DialError,
    };

    #[tokio::test]
    async fn a_dial_that_is_refused_is_known_for_one() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: Multiaddr = format!("/ip4/127.0.0.1/tcp/{}", socket.local_addr().unwrap().port()).parse().unwrap();
        drop(socket);
        let mut transport = transport(&Keypair::generate_secp256k1(), &SharedRules::default(), None).unwrap();
        let how = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
        let error = transport.dial(address.clone(), how).unwrap().await.expect_err("nobody listens");
        assert!(is_refused(&DialError::Transport(vec![(address, TransportError::Other(error))])));
    }
}
