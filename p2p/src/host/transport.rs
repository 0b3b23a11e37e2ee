//! Transports: TCP with noise and yamux, QUIC, and DNS names for both. Opens the listening sockets;
//! the QUIC socket only if it is configured.

use super::HostConfig;
use crate::{
    gossip::timing::SharedTimings,
    gossip::topics::Topics,
    host::behaviour::Behaviour,
    host::guard::ConnectionGuard,
    metrics::Meter,
    peers::gate::{Gated, SharedGateRules},
    peers::store::PeerstoreError,
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
        transport::{
            Boxed,
            timeout::{TransportTimeout, TransportTimeoutError},
        },
        upgrade::Version,
    },
    dns,
    identity::Keypair,
    noise, quic, swarm, tcp, yamux,
};
use std::{
    error::Error,
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    time::Duration,
};

/// Time limit from the start of a dial, or of an inbound connection, to the end of all handshakes.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time limits of the first response to a dial over TCP, and of the handshake over QUIC. The system
/// sends TCP packets at 0, 1, 3 and 7 seconds, and libp2p sends QUIC packets at the same times.
/// Dialling again is faster than waiting for a late packet ([`crate::peers::StaticPeers`]).
const CONNECT: Duration = Duration::from_secs(2);
const QUIC_CONNECT: Duration = Duration::from_secs(5);
/// Time after which a connection without any stream is closed.
const IDLE: Duration = Duration::from_secs(3600);

/// Longest time for which a DNS record is cached, whatever its TTL, so that a peer whose address
/// has changed is found by one of the next dials.
const DNS_TTL: Duration = Duration::from_secs(5);

/// Largest number of open streams of one connection: twice the number that two Starling nodes use.
/// A stream may hold 256 KiB of unread bytes.
const STREAMS: usize = 256;
/// Largest number of unread bytes over QUIC: of one stream, and of all streams of a connection.
const QUIC_STREAM: u32 = 1 << 20;
const QUIC_CONNECTION: u32 = 4 << 20;

/// The reason why the swarm does not start. Each error is one sentence with the next step.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process uses the TCP port.
    #[error("p2p port {port} on {ip} is already in use by another process; stop it or choose another with --p2p.listen.tcp", ip = .0.ip(), port = .0.port())]
    PortInUse(SocketAddr),
    /// The TCP socket cannot be bound.
    #[error(
        "cannot listen for p2p on {address}: {source}; check --p2p.listen.ip and --p2p.listen.tcp"
    )]
    Listen {
        /// The address to bind.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The identity key cannot be used for noise.
    #[error("the p2p identity cannot make a noise handshake: {0}")]
    Noise(#[from] noise::Error),
    /// Invalid parameters of the mesh.
    #[error("invalid gossip mesh parameters: {0}; each needs 1 <= lo <= d <= hi")]
    Mesh(String),
    /// Invalid limits of the number of peers.
    #[error("invalid numbers of peers: {0}")]
    PeerLimits(String),
    /// The UDP socket of discovery cannot be bound.
    #[error(
        "cannot listen for discovery on UDP {address}: {source}; choose another port with --p2p.listen.udp, or turn it off with --p2p.no-discovery"
    )]
    Udp {
        /// The address to bind.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The UDP socket of QUIC cannot be bound.
    #[error(
        "cannot listen for QUIC on UDP {address}: {reason}; choose another port with --p2p.listen.quic"
    )]
    Quic {
        /// The address to bind.
        address: SocketAddr,
        /// The cause, as text.
        reason: String,
    },
    /// QUIC and discovery have the same UDP port.
    #[error(
        "QUIC and discovery cannot share UDP port {0}: give QUIC another one with --p2p.listen.quic, or discovery with --p2p.listen.udp"
    )]
    SharedPort(u16),
    /// The identity key cannot be used for discovery.
    #[error("the p2p identity is no secp256k1 key, which discovery needs")]
    Identity,
    /// A store cannot be opened.
    #[error(transparent)]
    Peerstore(#[from] PeerstoreError),
}

/// Builds a swarm that listens and has not dialled any peer. `shared_addresses`: see
/// [`Behaviour::new`].
pub fn listening_swarm(
    config: &HostConfig,
    topics: &Topics,
    rules: &SharedGateRules,
    timings: &SharedTimings,
    shared_addresses: impl IntoIterator<Item = IpAddr>,
) -> Result<Swarm<Behaviour>, StartError> {
    // Check this before any socket is opened, so the error does not depend on other processes.
    if let Some(port) = config
        .listen_quic
        .filter(|port| *port != 0 && Some(*port) == config.discovery_udp)
    {
        return Err(StartError::SharedPort(port));
    }
    let transport = transport(&config.identity, rules, config.name_server)?;
    let behaviour = Behaviour::new(config, topics, rules.clone(), timings, shared_addresses)
        .map_err(StartError::Mesh)?;
    let options = swarm::Config::with_tokio_executor().with_idle_connection_timeout(IDLE);
    let mut swarm = Swarm::new(
        transport,
        behaviour,
        config.identity.public().to_peer_id(),
        options,
    );

    let address = SocketAddr::new(config.listen_ip, config.listen_tcp);
    // The transport sets SO_REUSEPORT, so a second node would bind the same port without an error.
    // Bind without it first.
    if config.listen_tcp != 0 {
        TcpListener::bind(address).map_err(|source| listen_error(address, source))?;
    }
    swarm
        .listen_on(config.listen_addr())
        .map_err(|error| listen_error(address, io::Error::other(error)))?;
    if let Some(port) = config.listen_quic {
        let address = SocketAddr::new(config.listen_ip, port);
        let refused = |error: TransportError<io::Error>| StartError::Quic {
            address,
            reason: error.to_string(),
        };
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
    rules: &SharedGateRules,
    name_server: Option<SocketAddr>,
) -> Result<Boxed<(PeerId, StreamMuxerBox)>, StartError> {
    let (servers, mut resolving) = match name_server {
        Some(address) => (only(address), ResolverOpts::default()),
        // A machine without a resolver configuration can still dial peers by IP address.
        None => read_system_conf().unwrap_or_else(|error| {
            tracing::warn!(%error, "no system DNS configuration, using public resolvers for peers given by name");
            Default::default()
        }),
    };
    (resolving.positive_max_ttl, resolving.negative_max_ttl) = (Some(DNS_TTL), Some(DNS_TTL));
    let meter = Meter::new();
    let mut muxer = yamux::Config::default();
    muxer.set_max_num_streams(STREAMS);
    let tcp = TransportTimeout::with_outgoing_timeout(
        tcp::tokio::Transport::new(tcp::Config::new().nodelay(true)),
        CONNECT,
    )
    .map_err(in_time)
    .upgrade(Version::V1Lazy)
    .authenticate(noise::Config::new(identity)?)
    .multiplex(muxer);
    let mut datagrams = quic::Config::new(identity);
    datagrams.handshake_timeout = HANDSHAKE;
    datagrams.max_concurrent_stream_limit = STREAMS as u32;
    (datagrams.max_stream_data, datagrams.max_connection_data) = (QUIC_STREAM, QUIC_CONNECTION);
    let meters = meter.clone();
    // Map to one type, since `Either` hides the cause of an error: a refused dial would not be
    // recognised.
    let tcp = tcp
        .map(move |connected, _| guarded(connected, &meter))
        .map_err(|error| match error {
            Either::Left(Either::Left(error)) => error,
            error => io::Error::other(error),
        });
    let quic = TransportTimeout::with_outgoing_timeout(
        quic::tokio::Transport::new(datagrams),
        QUIC_CONNECT,
    );
    let quic = quic.map(move |connected, _| guarded(connected, &meters));
    let either = tcp
        .or_transport(quic.map_err(in_time))
        .map(|connected, _| connected.into_inner())
        .map_err(Either::into_inner);
    let named = dns::tokio::Transport::custom(
        Gated::new(either.boxed(), rules.clone()),
        servers,
        resolving,
    );
    Ok(TransportTimeout::new(named, HANDSHAKE).boxed())
}

/// Turns the timeout of a dial into an I/O error, as the system reports its own timeouts.
fn in_time<E: Into<Box<dyn Error + Send + Sync>>>(error: TransportTimeoutError<E>) -> io::Error {
    match error {
        TransportTimeoutError::Timeout => io::ErrorKind::TimedOut.into(),
        TransportTimeoutError::TimerError(error) => error,
        TransportTimeoutError::Other(error) => io::Error::other(error),
    }
}

fn guarded<M>((peer, muxer): (PeerId, M), meter: &Meter) -> (PeerId, StreamMuxerBox)
where
    M: StreamMuxer + Send + Unpin + 'static,
    M::Substream: Send + Unpin + 'static,
    M::Error: Send + Sync + 'static,
{
    (
        peer,
        StreamMuxerBox::new(ConnectionGuard::new(muxer, meter.clone())),
    )
}

fn only(address: SocketAddr) -> ResolverConfig {
    let mut connection = ConnectionConfig::udp();
    connection.port = address.port();
    ResolverConfig::from_parts(
        None,
        Vec::new(),
        vec![NameServerConfig::new(address.ip(), true, vec![connection])],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::dial::is_unanswered;
    use libp2p::{
        Multiaddr,
        core::{
            Endpoint,
            transport::{DialOpts, PortUse},
        },
        swarm::DialError,
    };
    use std::net::UdpSocket;
    use tokio::time::timeout;

    /// Whether a dial of this address counts as unanswered.
    async fn is_dial_unanswered(address: &str) -> bool {
        let address: Multiaddr = address.parse().unwrap();
        let mut transport = transport(
            &Keypair::generate_secp256k1(),
            &SharedGateRules::default(),
            None,
        )
        .unwrap();
        let how = DialOpts {
            role: Endpoint::Dialer,
            port_use: PortUse::New,
        };
        let error = transport
            .dial(address.clone(), how)
            .unwrap()
            .await
            .expect_err("unanswered");
        is_unanswered(&DialError::Transport(vec![(
            address,
            TransportError::Other(error),
        )]))
    }

    #[tokio::test]
    async fn a_refused_dial_is_recognised() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        drop(socket);
        assert!(is_dial_unanswered(&format!("/ip4/127.0.0.1/tcp/{port}")).await);
    }

    #[tokio::test]
    async fn an_unanswered_dial_is_recognised_and_one_that_is_closed_is_not() {
        // A listener with a full queue drops new connections.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(1).unwrap();
        let address = full.local_addr().unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = timeout(
            Duration::from_millis(300),
            tokio::net::TcpStream::connect(address),
        )
        .await
        {
            waiting.push(stream.unwrap());
        }
        let dark = UdpSocket::bind("127.0.0.1:0").unwrap();
        let rude = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let [tcp, udp, hung_up] = [
            address,
            dark.local_addr().unwrap(),
            rude.local_addr().unwrap(),
        ]
        .map(|address| address.port());
        let (tcp, udp) = (
            format!("/ip4/127.0.0.1/tcp/{tcp}"),
            format!("/ip4/127.0.0.1/udp/{udp}/quic-v1"),
        );
        tokio::spawn(async move { drop(rude.accept().await) });
        let hung_up = format!("/ip4/127.0.0.1/tcp/{hung_up}");
        let known = tokio::join!(
            is_dial_unanswered(&tcp),
            is_dial_unanswered(&udp),
            is_dial_unanswered(&hung_up)
        );
        assert_eq!(known, (true, true, false));
    }
}
