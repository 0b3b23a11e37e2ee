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

/// For dialling, or accepting, up to the end of all handshakes.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// For the first answer to a dial over TCP, and to the end of the handshake over QUIC. The system sends its packets at 0, 1, 3 and 7
/// seconds, the library those of QUIC: rather than wait for one that comes late, begin anew ([`crate::peers::StaticPeers`]).
const CONNECT: Duration = Duration::from_secs(2);
const QUIC_CONNECT: Duration = Duration::from_secs(5);
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
    #[error(
        "cannot listen for p2p on {address}: {source}; check --p2p.listen.ip and --p2p.listen.tcp"
    )]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("the p2p identity cannot make a noise handshake: {0}")]
    Noise(#[from] noise::Error),
    #[error("invalid gossip mesh parameters: {0}; each needs 1 <= lo <= d <= hi")]
    Mesh(String),
    #[error("invalid numbers of peers: {0}")]
    Tides(String),
    #[error(
        "cannot listen for discovery on UDP {address}: {source}; choose another port with --p2p.listen.udp, or turn it off with --p2p.no-discovery"
    )]
    Udp {
        address: SocketAddr,
        source: io::Error,
    },
    #[error(
        "cannot listen for QUIC on UDP {address}: {reason}; choose another port with --p2p.listen.quic"
    )]
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
    if let Some(port) = config
        .listen_quic
        .filter(|port| *port != 0 && Some(*port) == config.discovery_port())
    {
        return Err(StartError::SharedPort(port));
    }
    let transport = transport(&config.identity, rules, config.name_server)?;
    let behaviour = Behaviour::new(config, topics, rules.clone(), propagation, crowds)
        .map_err(StartError::Mesh)?;
    let options = swarm::Config::with_tokio_executor().with_idle_connection_timeout(IDLE);
    let mut swarm = Swarm::new(
        transport,
        behaviour,
        config.identity.public().to_peer_id(),
        options,
    );

    let address = SocketAddr::new(config.listen_ip, config.listen_tcp);
    // The transport shares its port with anybody who also shares it, so a second node would bind without an error. Ask first.
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
    // Either of two errors does not tell its cause: a refused dial would not be known for one.
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

/// A dial that took too long is an error of input and output like that of the system.
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
    (peer, StreamMuxerBox::new(Guard::new(muxer, meter.clone())))
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
    use crate::service::connections::is_unanswered;
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

    /// Whether a dial fails for want of an answer.
    async fn is_dialled_in_vain(address: &str) -> bool {
        let address: Multiaddr = address.parse().unwrap();
        let mut transport = transport(
            &Keypair::generate_secp256k1(),
            &SharedRules::default(),
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
            .expect_err("nobody answers");
        is_unanswered(&DialError::Transport(vec![(
            address,
            TransportError::Other(error),
        )]))
    }

    #[tokio::test]
    async fn a_dial_that_is_refused_is_known_for_one() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        drop(socket);
        assert!(is_dialled_in_vain(&format!("/ip4/127.0.0.1/tcp/{port}")).await);
    }

    #[tokio::test]
    async fn a_dial_into_the_dark_is_known_for_one_and_one_that_is_hung_up_on_is_not() {
        // A listener whose queue is full drops what comes.
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
            is_dialled_in_vain(&tcp),
            is_dialled_in_vain(&udp),
            is_dialled_in_vain(&hung_up)
        );
        assert_eq!(known, (true, true, false));
    }
}
