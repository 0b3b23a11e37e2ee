//! Servers and clients on loopback that measure a link. The bench uses them, too.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::SockRef;
use starling_netsim::{
    DirectionConditions, FaultyLink, LinkBandwidth, LinkConditions, LinkEnd,
    packet::{PacketHost, PacketHostPlan, PacketLinkPlan, PacketNetwork},
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::mpsc,
};

pub const ANY: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

/// Seed of the links in tests. Every run has the same faults.
pub const SEED: u64 = 22;

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub fn link(conditions: LinkConditions) -> FaultyLink {
    let link = FaultyLink::new(SEED, conditions).expect("sound conditions");
    println!("link of seed {}: {conditions:?}", link.seed());
    link
}

pub fn limited(rate: u64, queue: usize) -> DirectionConditions {
    DirectionConditions {
        bandwidth: Some(LinkBandwidth::new(rate, queue)),
        ..DirectionConditions::CLEAR
    }
}

/// Conditions with this delay in each direction.
pub fn delayed(delay: Duration) -> LinkConditions {
    LinkConditions::symmetric(DirectionConditions {
        delay,
        ..DirectionConditions::CLEAR
    })
}

/// A server that hands each connection to `serve`.
pub async fn server<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    serve_on(TcpListener::bind(ANY).await.unwrap(), serve)
}

/// A server like [`server`], on a listener that the caller has made.
pub fn serve_on<F>(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// A server that sends everything back, and then ends the connection after the client.
pub async fn echo() -> SocketAddr {
    echo_on(TcpListener::bind(ANY).await.unwrap())
}

/// A server like [`echo`], on a listener that the caller has made.
pub fn echo_on(listener: TcpListener) -> SocketAddr {
    serve_on(listener, |mut stream| async move {
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    })
}

pub async fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The round-trip time of one byte.
pub async fn ping(stream: &mut TcpStream) -> Duration {
    let start = Instant::now();
    stream.write_all(&[1]).await.unwrap();
    stream.read_exact(&mut [0]).await.unwrap();
    start.elapsed()
}

/// Data that arrived: the number of bytes, and the time of arrival.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    pub bytes: usize,
    pub at: Instant,
}

/// A server that reports the data that it reads from its connections.
pub async fn sink() -> (SocketAddr, mpsc::Receiver<Received>) {
    sink_on(TcpListener::bind(ANY).await.unwrap())
}

/// A server like [`sink`], on a listener that the caller has made.
pub fn sink_on(listener: TcpListener) -> (SocketAddr, mpsc::Receiver<Received>) {
    let (report, received) = mpsc::channel(1 << 16);
    let address = serve_on(listener, move |mut stream| {
        let report = report.clone();
        async move {
            let mut buffer = vec![0; 256 << 10];
            while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
                let at = Instant::now();
                if report.send(Received { bytes, at }).await.is_err() {
                    return;
                }
            }
        }
    });
    (address, received)
}

/// Bytes per second between the first and the last report, until `total` bytes have arrived.
pub async fn rate(received: &mut mpsc::Receiver<Received>, total: usize) -> f64 {
    rate_within(received, total, Duration::MAX).await
}

/// The rate like [`rate`], until `total` bytes have arrived or `limit` is over.
pub async fn rate_within(
    received: &mut mpsc::Receiver<Received>,
    total: usize,
    limit: Duration,
) -> f64 {
    let first = received.recv().await.unwrap();
    let (mut bytes, mut last) = (0, first);
    while first.bytes + bytes < total && last.at - first.at < limit {
        last = received.recv().await.unwrap();
        bytes += last.bytes;
    }
    bytes as f64 / (last.at - first.at).as_secs_f64()
}

/// The best [`rate`] of three windows of `total` bytes: a busy machine only lowers it.
pub async fn best_rate(received: &mut mpsc::Receiver<Received>, total: usize) -> f64 {
    let mut best: f64 = 0.0;
    for _ in 0..3 {
        best = best.max(rate(received, total).await);
    }
    best
}

/// Lets this process open at least 6,000 files.
pub fn open_many_files() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(
        hard >= 6_000,
        "raise the limit of open files: ulimit -n 6000"
    );
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(20_000)), hard).unwrap();
}

/// Writes `total` bytes and returns the connection, still open.
pub async fn pour(address: SocketAddr, total: usize) -> TcpStream {
    pour_into(dial(address).await, total).await
}

/// Writes `total` bytes to a connection and returns it, still open.
pub async fn pour_into(mut stream: TcpStream, total: usize) -> TcpStream {
    let chunk = vec![7; 256 << 10];
    let mut left = total;
    while left > 0 {
        let len = left.min(chunk.len());
        stream.write_all(&chunk[..len]).await.unwrap();
        left -= len;
    }
    stream
}

/// Bytes per second of a transfer to `address`, which must lead to a [`sink`].
pub async fn throughput(
    address: SocketAddr,
    received: &mut mpsc::Receiver<Received>,
    total: usize,
) -> f64 {
    let pouring = tokio::spawn(pour(address, total));
    let rate = rate(received, total).await;
    drop(pouring.await.unwrap());
    rate
}

/// A link from the near end to a sink.
pub async fn to_sink(
    conditions: LinkConditions,
) -> (FaultyLink, SocketAddr, mpsc::Receiver<Received>) {
    let link = link(conditions);
    let (target, received) = sink().await;
    let address = link.tcp(LinkEnd::Far, target).await.unwrap();
    (link, address, received)
}

/// A link from the near end to a TCP echo server.
pub async fn to_echo(conditions: LinkConditions) -> (FaultyLink, SocketAddr) {
    let link = link(conditions);
    let address = link.tcp(LinkEnd::Far, echo().await).await.unwrap();
    (link, address)
}

/// A UDP socket with a buffer large enough for a time in which the machine runs other processes.
pub async fn udp_socket() -> UdpSocket {
    with_large_buffer(UdpSocket::bind(ANY).await.unwrap())
}

/// The socket with a receive buffer like that of [`udp_socket`].
pub fn with_large_buffer(socket: UdpSocket) -> UdpSocket {
    let _ = SockRef::from(&socket).set_recv_buffer_size(4 << 20);
    socket
}

/// A UDP server that sends datagrams back.
pub async fn udp_echo() -> SocketAddr {
    udp_echo_on(udp_socket().await)
}

/// A server like [`udp_echo`], on a socket that the caller has made.
pub fn udp_echo_on(socket: UdpSocket) -> SocketAddr {
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 2_048];
        loop {
            if let Ok((len, from)) = socket.recv_from(&mut buffer).await {
                let _ = socket.send_to(&buffer[..len], from).await;
            }
        }
    });
    address
}

/// The network of a test on the packet backend: two or more hosts, and a link between every two.
pub struct PacketLab {
    pub network: PacketNetwork,
}

impl PacketLab {
    /// Hosts with these plans; `None`, recorded as a skip, where namespaces or devices are refused.
    pub fn new(hosts: &[PacketHostPlan], conditions: LinkConditions) -> Option<Self> {
        let mut links = Vec::new();
        for far in 0..hosts.len() {
            links.extend((0..far).map(|near| PacketLinkPlan {
                near,
                far,
                conditions,
            }));
        }
        let network = match PacketNetwork::new(SEED, hosts, &links) {
            Ok(network) => Some(network),
            Err(error) => {
                let reason = error.refusal().expect("a refusal or a network");
                let what = format!("the packet backend: {reason}");
                starling_testkit::require(None, &what)
            }
        };
        network.map(|network| Self { network })
    }

    /// Two hosts, where 0 is the near end.
    pub fn pair(conditions: LinkConditions) -> Option<Self> {
        Self::new(&[PacketHostPlan::default(); 2], conditions)
    }

    pub fn host(&self, index: usize) -> &PacketHost {
        &self.network.hosts[index]
    }

    /// The address at which others reach a server of a host.
    pub fn at(&self, host: usize, bound: SocketAddr) -> SocketAddr {
        (self.host(host).address, bound.port()).into()
    }

    pub fn sink(&self, host: usize) -> (SocketAddr, mpsc::Receiver<Received>) {
        let (address, received) = sink_on(self.host(host).listen(0).unwrap());
        (self.at(host, address), received)
    }

    pub fn echo(&self, host: usize) -> SocketAddr {
        self.at(host, echo_on(self.host(host).listen(0).unwrap()))
    }

    pub async fn dial(&self, host: usize, to: SocketAddr) -> TcpStream {
        let stream = self.host(host).dial(to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// A datagram socket of a host that is connected to an echo server on another one.
    pub async fn udp_to_echo(&self, from: usize, to: usize) -> UdpSocket {
        let server = with_large_buffer(self.host(to).udp(0).unwrap());
        let address = self.at(to, udp_echo_on(server));
        let socket = with_large_buffer(self.host(from).udp(0).unwrap());
        socket.connect(address).await.unwrap();
        socket
    }
}

/// A link to a UDP echo server, and a client's socket that is connected through it.
pub async fn to_udp_echo(conditions: LinkConditions) -> (FaultyLink, UdpSocket) {
    let link = link(conditions);
    let address = link.udp(LinkEnd::Far, udp_echo().await).await.unwrap();
    let socket = udp_socket().await;
    socket.connect(address).await.unwrap();
    (link, socket)
}

/// A reply of the echo server: the number of the datagram and its round-trip time.
#[derive(Clone, Copy, Debug)]
pub struct Echoed {
    pub number: u64,
    pub time: Duration,
}

/// A client that sends datagrams to an echo server.
#[derive(Clone, Copy, Debug)]
pub struct Echo {
    pub count: u64,
    pub len: usize,
    /// Number of datagrams sent at once, before a pause.
    pub batch: u64,
    pub pause: Duration,
    /// Wait for replies after the last datagram.
    pub patience: Duration,
}

impl Echo {
    /// Sends the datagrams; returns the replies in the order of their arrival.
    pub async fn run(self, socket: UdpSocket) -> Vec<Echoed> {
        let socket = Arc::new(socket);
        let start = Instant::now();
        let receiving = tokio::spawn(self.receive(socket.clone(), start));
        let mut datagram = vec![0; self.len];
        let mut tick = tokio::time::interval(self.pause);
        for number in 0..self.count {
            if number % self.batch == 0 {
                tick.tick().await;
            }
            let sent = start.elapsed().as_nanos() as u64;
            datagram[..8].copy_from_slice(&number.to_be_bytes());
            datagram[8..16].copy_from_slice(&sent.to_be_bytes());
            socket.send(&datagram).await.unwrap();
        }
        receiving.await.unwrap()
    }

    async fn receive(self, socket: Arc<UdpSocket>, start: Instant) -> Vec<Echoed> {
        let mut buffer = vec![0; self.len];
        let mut echoed = Vec::new();
        while let Ok(received) = tokio::time::timeout(self.patience, socket.recv(&mut buffer)).await
        {
            assert_eq!(received.unwrap(), self.len);
            let word = |at: usize| u64::from_be_bytes(buffer[at..at + 8].try_into().unwrap());
            echoed.push(Echoed {
                number: word(0),
                time: start.elapsed() - Duration::from_nanos(word(8)),
            });
        }
        echoed
    }
}

/// The time that `percent` of the times do not exceed. A busy machine only makes times longer, so
/// the shortest ones show the link.
pub fn percentile(mut times: Vec<Duration>, percent: usize) -> Duration {
    times.sort_unstable();
    times[times.len() * percent / 100]
}

/// Whether `measured` deviates from `nominal` by at most 10 %.
pub fn within_a_tenth(measured: f64, nominal: f64) -> bool {
    (measured / nominal - 1.0).abs() <= 0.1
}

/// Sends `len` numbers through an echo and asserts that they come back in order.
pub async fn comes_back_whole(stream: TcpStream, len: u32) {
    let data: Vec<u8> = (0..len).flat_map(u32::to_be_bytes).collect();
    let (mut read, mut write) = stream.into_split();
    let sent = data.clone();
    let sending = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write
    });
    let mut back = vec![0; data.len()];
    read.read_exact(&mut back).await.unwrap();
    assert!(back == data, "bytes were lost or out of order");
    drop(sending.await.unwrap());
}
