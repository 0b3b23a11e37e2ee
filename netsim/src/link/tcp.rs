//! TCP through a link: a listener that clients dial instead of the target, and for each of their
//! connections a connection to the target.
//!
//! The dial is delayed like data. A connection is thus established after a round trip, waits while
//! the link is unplugged, and is never established while the link is half-open. Ends and resets are
//! delayed, too: if a process is killed behind an unplugged link, its peer notices no earlier than
//! on a real link.
//!
//! Peers can open connections without sending on them, so [`CONNECTIONS`] bounds their number. The
//! direction bounds the memory of their data.

use super::{
    conditions::LinkConditions,
    direction::{FlowId, StreamCapacity},
    lane::{Lane, LinkPacket, RelayLanes, StreamOut, StreamPart},
};
use bytes::Bytes;
use socket2::SockRef;
use std::{
    io,
    net::{Shutdown, SocketAddr},
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{
    io::{Interest, Ready},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Semaphore, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

/// Largest number of connections through one address at a time. Further ones wait in the listener's
/// backlog.
const CONNECTIONS: usize = 4_096;

const BACKLOG: u32 = 1_024;

/// Size of the receive buffer of each socket. The kernel would choose up to several megabytes,
/// which would be a hidden queue before a slow direction.
const RECEIVE_BUFFER: u32 = 256 << 10;

/// Pause after the listener has failed: the process is out of files, or the port is not free yet.
const LISTEN_PAUSE: Duration = Duration::from_millis(50);

/// Time after which a dialler that has closed its side counts as gone if the target has not
/// accepted its dial. A quick dialler may close its side earlier, since our kernel accepts its dial
/// before the target does.
const DIAL_PATIENCE: Duration = Duration::from_secs(3);
const DIAL_CHECKS: Duration = Duration::from_millis(200);

/// The error that the connection was reset, or must be.
struct Reset;

/// An address of the link, with the target that it leads to.
pub(super) struct TcpRelay {
    /// Keeps the port reserved while the link refuses traffic and no socket listens.
    _reservation: TcpSocket,
    pub address: SocketAddr,
    pub target: SocketAddr,
    pub forth: Arc<Lane>,
    pub back: Arc<Lane>,
    pub conditions: watch::Receiver<LinkConditions>,
    /// Changes when all connections must be reset.
    pub resets: watch::Receiver<u64>,
    pub token: CancellationToken,
}

impl TcpRelay {
    /// Opens the listener at `address`; port zero is any free one.
    pub fn open(
        address: SocketAddr,
        target: SocketAddr,
        lanes: RelayLanes,
        conditions: watch::Receiver<LinkConditions>,
        resets: watch::Receiver<u64>,
        token: CancellationToken,
    ) -> io::Result<(Self, TcpListener)> {
        let reservation = bound(address)?;
        let relay = Self {
            address: reservation.local_addr()?,
            _reservation: reservation,
            target,
            forth: lanes.forth,
            back: lanes.back,
            conditions,
            resets,
            token,
        };
        let listener = relay.listen()?;
        Ok((relay, listener))
    }

    fn listen(&self) -> io::Result<TcpListener> {
        bound(self.address)?.listen(BACKLOG)
    }

    /// Accepts connections until the link ends. While the link refuses traffic no socket listens, so
    /// dials are refused.
    pub async fn serve(self, first: TcpListener) {
        let relay = Arc::new(self);
        let mut listener = Some(first).filter(|_| !relay.conditions.borrow().refuse);
        let mut conditions = relay.conditions.clone();
        loop {
            if !becomes(&mut conditions, false).await {
                return;
            }
            let Some(open) = listener.take().or_else(|| relay.listen().ok()) else {
                sleep(LISTEN_PAUSE).await;
                continue;
            };
            tokio::select! {
                () = relay.accept(&open) => {}
                _ = becomes(&mut conditions, true) => {}
            }
        }
    }

    async fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        while let Ok(permit) = permits.clone().acquire_owned().await {
            let near = match listener.accept().await {
                Ok((near, _)) => near,
                Err(_) => {
                    sleep(LISTEN_PAUSE).await;
                    continue;
                }
            };
            let mut resets = self.resets.clone();
            resets.mark_unchanged();
            let connection = connection(near, self.clone(), resets);
            let ended = self.token.clone().run_until_cancelled_owned(connection);
            tokio::spawn(async move {
                ended.await;
                drop(permit);
            });
        }
    }
}

/// A socket that shares its port with the relay's other sockets.
fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Waits until the link refuses traffic, or accepts it if `refuse` is false; `false` when the link
/// ends.
async fn becomes(conditions: &mut watch::Receiver<LinkConditions>, refuse: bool) -> bool {
    let reached = conditions.wait_for(|it| it.refuse == refuse).await;
    reached.is_ok()
}

/// Carries one connection. `resets` has its state from when the connection was accepted.
async fn connection(near: TcpStream, relay: Arc<TcpRelay>, mut resets: watch::Receiver<u64>) {
    let far = OnceLock::new();
    // The listener may have accepted this connection just before the link refused traffic.
    let refuse = relay.conditions.borrow().refuse;
    let by_link = || {
        relay.forth.access(|lane| lane.direction.count_reset());
        Err(Reset)
    };
    let end = tokio::select! {
        biased;
        () = std::future::ready(()), if refuse => by_link(),
        _ = resets.changed() => by_link(),
        end = carry(&near, &far, &relay) => end,
    };
    if end.is_err() {
        for socket in [Some(&near), far.get()].into_iter().flatten() {
            // If this fails, the socket is closed by an end instead of a reset.
            let _ = socket.set_zero_linger();
        }
    }
}

async fn carry(near: &TcpStream, far: &OnceLock<TcpStream>, relay: &TcpRelay) -> Result<(), Reset> {
    let _ = near.set_nodelay(true);
    let accept_delay = relay.conditions.borrow().accept_delay;
    if !accept_delay.is_zero() {
        sleep(accept_delay).await;
    }
    let (forth, back) = (StreamPath::new(&relay.forth), StreamPath::new(&relay.back));
    forth.send(StreamPart::Open);
    let dialled = tokio::select! {
        part = forth.out.next() => part,
        () = given_up(near) => return Ok(()),
    };
    match dialled {
        Some(StreamPart::Open) => forth.done(0),
        Some(_) => return Err(Reset),
        None => return discard(near).await,
    }
    let far = match dial(relay.target).await {
        Ok(stream) => far.get_or_init(|| stream),
        Err(_) => return Err(Reset),
    };
    back.send(StreamPart::Open);
    let dialler = async {
        if !back.out.opened().await {
            discard(near).await?;
            return Err(Reset);
        }
        forth.read(near).await;
        Ok(())
    };
    let target = async {
        back.read(far).await;
        Ok(())
    };
    tokio::try_join!(
        dialler,
        target,
        forth.write(far, &back),
        back.write(near, &forth)
    )?;
    Ok(())
}

async fn dial(target: SocketAddr) -> io::Result<TcpStream> {
    let socket = if target.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.set_nodelay(true)?;
    socket.connect(target).await
}

/// Reads and drops the data of a half-open connection, until the peer ends the connection.
async fn discard(socket: &TcpStream) -> Result<(), Reset> {
    let mut buffer = [0; 4_096];
    loop {
        socket.readable().await.map_err(|_| Reset)?;
        match socket.try_read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(Reset),
        }
    }
}

/// Waits for the dialler to close its side, and for at least `DIAL_PATIENCE`.
async fn given_up(near: &TcpStream) {
    sleep(DIAL_PATIENCE).await;
    while !near
        .ready(Interest::READABLE)
        .await
        .is_ok_and(Ready::is_read_closed)
    {
        sleep(DIAL_CHECKS).await;
    }
}

/// Waits until the peer resets the connection.
async fn failure(socket: &TcpStream) {
    let _ = socket.ready(Interest::ERROR).await;
}

/// One direction of one connection.
struct StreamPath {
    lane: Arc<Lane>,
    flow: FlowId,
    out: Arc<StreamOut>,
}

/// The outcome of one attempt to read.
enum StreamReading {
    /// Some bytes were read, or none are available yet.
    Goes,
    WindowFull,
    QueueFull,
    Last(StreamPart),
}

impl StreamPath {
    fn new(lane: &Arc<Lane>) -> Self {
        Self {
            flow: lane.access(|lane| lane.direction.open_flow()),
            lane: lane.clone(),
            out: Arc::default(),
        }
    }

    fn send(&self, part: StreamPart) {
        let (len, packet) = (part.len(), LinkPacket::Part(self.out.clone(), part));
        self.lane
            .access(|lane| lane.direction.chunk(self.flow, len, lane.now, packet));
    }

    /// Sends all data from the socket `from`. Stops reading while the direction has no capacity.
    async fn read(&self, from: &TcpStream) {
        loop {
            let reading = match from.readable().await {
                Ok(()) => self.read_some(from),
                Err(_) => StreamReading::Last(StreamPart::Reset),
            };
            match reading {
                StreamReading::Goes => continue,
                StreamReading::Last(part) => return self.send(part),
                StreamReading::WindowFull => tokio::select! {
                    () = self.out.has_capacity.notified() => continue,
                    () = failure(from) => {}
                },
                StreamReading::QueueFull => tokio::select! {
                    () = self.lane.has_capacity.notified() => continue,
                    () = failure(from) => {}
                },
            }
            // A reset needs no capacity.
            return self.send(StreamPart::Reset);
        }
    }

    fn read_some(&self, from: &TcpStream) -> StreamReading {
        self.lane.access(|lane| {
            let room = match lane.direction.capacity(self.flow) {
                StreamCapacity::Bytes(room) => room.min(lane.scratch.len()),
                StreamCapacity::WindowFull => return StreamReading::WindowFull,
                StreamCapacity::QueueFull => return StreamReading::QueueFull,
            };
            match from.try_read(&mut lane.scratch[..room]) {
                Ok(0) => StreamReading::Last(StreamPart::End),
                Ok(len) => {
                    let part = StreamPart::Bytes(Bytes::copy_from_slice(&lane.scratch[..len]));
                    let packet = LinkPacket::Part(self.out.clone(), part);
                    lane.direction.chunk(self.flow, len, lane.now, packet);
                    StreamReading::Goes
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => StreamReading::Goes,
                Err(_) => StreamReading::Last(StreamPart::Reset),
            }
        })
    }

    /// Writes the parts that arrive, up to the end. If the socket fails, a reset is sent to its
    /// peer on `back`.
    async fn write(&self, to: &TcpStream, back: &Self) -> Result<(), Reset> {
        let mut failed = false;
        while let Some(part) = self.out.next().await {
            let written = match &part {
                StreamPart::Open => {
                    self.out.open();
                    Ok(())
                }
                StreamPart::Bytes(_) if failed => Ok(()),
                StreamPart::Bytes(bytes) => tokio::select! {
                    written = write_all(to, bytes) => written,
                    () = self.out.reset() => return Err(Reset),
                },
                StreamPart::End => return SockRef::from(to).shutdown(Shutdown::Write).or(Ok(())),
                StreamPart::Reset => return Err(Reset),
            };
            if written.is_err() {
                failed = true;
                back.send(StreamPart::Reset);
            }
            self.done(part.len());
        }
        Ok(())
    }

    /// Records that a part of `len` bytes has been written.
    fn done(&self, len: usize) {
        self.lane
            .access(|lane| lane.direction.written(self.flow, len));
        self.out.has_capacity.notify_one();
    }
}

impl Drop for StreamPath {
    fn drop(&mut self) {
        self.lane
            .access(|lane| lane.direction.close_flow(self.flow));
    }
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.try_write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
