//! UDP through a link: one socket that clients use instead of the target, and for each client a
//! socket to the target, as in a NAT. The target's replies to that socket are sent back to the
//! client.
//!
//! A client costs an attacker only a source port, so [`CLIENTS`] bounds their number. A new client
//! replaces the one that was idle longest. Datagrams that a socket does not accept at once are
//! lost.

use super::{
    direction::FlowId,
    lane::{Lane, LinkPacket, RelayLanes},
};
use bytes::Bytes;
use parking_lot::Mutex;
use socket2::SockRef;
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{net::UdpSocket, time::sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Largest number of clients per address at a time.
const CLIENTS: usize = 1_024;

/// Idle time after which a client is forgotten: the lower bound of RFC 4787 for a NAT.
const IDLE: Duration = Duration::from_secs(120);

/// Size of the receive buffer in bytes. The kernel's default has space for some 250 small
/// datagrams, fewer than arrive while a busy machine runs other processes.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Pause after a socket has failed, so that a failing socket does not use a whole core.
const ERROR_PAUSE: Duration = Duration::from_millis(1);

/// A client and the link's socket for it.
struct UdpClient {
    socket: Arc<UdpSocket>,
    forth: FlowId,
    used: Instant,
    /// Ends the task that carries the replies to this client.
    _answers: DropGuard,
}

/// An address of the link, with the target that it leads to.
pub(super) struct UdpRelay {
    front: Arc<UdpSocket>,
    target: SocketAddr,
    forth: Arc<Lane>,
    back: Arc<Lane>,
    clients: Mutex<HashMap<SocketAddr, UdpClient>>,
    token: CancellationToken,
}

impl UdpRelay {
    pub async fn open(
        target: SocketAddr,
        lanes: RelayLanes,
        token: CancellationToken,
    ) -> io::Result<Self> {
        let front = bound(IpAddr::V4(Ipv4Addr::LOCALHOST)).await?;
        front.writable().await?;
        Ok(Self {
            front: Arc::new(front),
            target,
            forth: lanes.forth,
            back: lanes.back,
            clients: Mutex::default(),
            token,
        })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.front.local_addr()
    }

    /// Receives datagrams of clients and sends them on. Runs as long as the link.
    pub async fn serve(self) {
        let relay = Arc::new(self);
        let mut buffer = vec![0; usize::from(u16::MAX)];
        loop {
            let received = relay.front.recv_from(&mut buffer).await;
            let forwarded = match received {
                Ok((len, client)) => relay.forward(client, &buffer[..len]).await,
                Err(error) => Err(error),
            };
            if forwarded.is_err() {
                sleep(ERROR_PAUSE).await;
            }
        }
    }

    async fn forward(self: &Arc<Self>, client: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        let known = self.find(client);
        let (socket, flow) = match known {
            Some(known) => known,
            None => self.add(client).await?,
        };
        let bytes = Bytes::copy_from_slice(datagram);
        let packet = LinkPacket::Datagram(socket, None, bytes);
        self.forth.access(|lane| {
            lane.direction
                .datagram(flow, datagram.len(), lane.now, packet);
        });
        Ok(())
    }

    fn find(&self, client: SocketAddr) -> Option<(Arc<UdpSocket>, FlowId)> {
        let mut clients = self.clients.lock();
        let known = clients.get_mut(&client)?;
        known.used = Instant::now();
        Some((known.socket.clone(), known.forth))
    }

    async fn add(self: &Arc<Self>, client: SocketAddr) -> io::Result<(Arc<UdpSocket>, FlowId)> {
        let any = match self.target {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        let full = self.clients.lock().len() >= CLIENTS;
        if full {
            self.remove_longest_idle();
        }
        // If the process is out of files, close the socket of the client that was idle longest.
        let opened = bound(any).await.inspect_err(|_| self.remove_longest_idle());
        let socket = Arc::new(opened?);
        socket.connect(self.target).await?;
        // Datagrams are sent without waiting, which fails until tokio has seen the socket writable.
        socket.writable().await?;
        let forth = self.forth.access(|lane| lane.direction.open_flow());
        let token = self.token.child_token();
        let answers = self.clone().answers(client, socket.clone());
        tokio::spawn(token.clone().run_until_cancelled_owned(answers));
        let added = UdpClient {
            socket: socket.clone(),
            forth,
            used: Instant::now(),
            _answers: token.drop_guard(),
        };
        self.clients.lock().insert(client, added);
        Ok((socket, forth))
    }

    fn remove_longest_idle(&self) {
        let mut clients = self.clients.lock();
        let oldest = clients.iter().min_by_key(|(_, it)| it.used);
        let oldest = oldest.map(|(client, _)| *client);
        let removed = oldest.and_then(|client| clients.remove(&client));
        drop(clients);
        self.forget(removed);
    }

    /// Removes the client if it has been idle; returns whether it was removed.
    fn remove_idle(&self, client: SocketAddr) -> bool {
        let mut clients = self.clients.lock();
        let idle = clients
            .get(&client)
            .is_none_or(|it| it.used.elapsed() >= IDLE);
        let removed = if idle { clients.remove(&client) } else { None };
        drop(clients);
        self.forget(removed);
        idle
    }

    fn forget(&self, removed: Option<UdpClient>) {
        if let Some(removed) = removed {
            self.forth
                .access(|lane| lane.direction.close_flow(removed.forth));
        }
    }

    /// Carries the target's datagrams to one client.
    async fn answers(self: Arc<Self>, client: SocketAddr, socket: Arc<UdpSocket>) {
        let flow = BackFlow::new(&self.back);
        loop {
            let ready = tokio::time::timeout(IDLE, socket.readable()).await;
            let result = match ready {
                Ok(Ok(())) => self.answer(client, &socket, flow.id),
                Ok(Err(error)) => Err(error),
                Err(_) if self.remove_idle(client) => return,
                Err(_) => Ok(()),
            };
            // This error mostly means that the target's port is closed, because its node is down.
            if result.is_err() {
                sleep(ERROR_PAUSE).await;
            }
        }
    }

    fn answer(&self, client: SocketAddr, socket: &UdpSocket, flow: FlowId) -> io::Result<()> {
        self.back
            .access(|lane| match socket.try_recv(lane.scratch) {
                Ok(len) => {
                    let bytes = Bytes::copy_from_slice(&lane.scratch[..len]);
                    let packet = LinkPacket::Datagram(self.front.clone(), Some(client), bytes);
                    lane.direction.datagram(flow, len, lane.now, packet);
                    Ok(())
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                Err(error) => Err(error),
            })
    }
}

/// The flow of replies to a client. It is closed when the client's task ends.
struct BackFlow {
    lane: Arc<Lane>,
    id: FlowId,
}

impl BackFlow {
    fn new(lane: &Arc<Lane>) -> Self {
        Self {
            id: lane.access(|lane| lane.direction.open_flow()),
            lane: lane.clone(),
        }
    }
}

impl Drop for BackFlow {
    fn drop(&mut self) {
        self.lane.access(|lane| lane.direction.close_flow(self.id));
    }
}

async fn bound(address: IpAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, 0)).await?;
    // The kernel grants at most what its own limit allows.
    let _ = SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER);
    Ok(socket)
}
