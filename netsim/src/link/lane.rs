//! A thin I/O shell around one [`LinkDirection`]: sockets push packets under its lock, and one
//! task, the pump, wakes when packets arrive later.
//!
//! Every access to the direction also delivers the packets that have arrived by then, so a link
//! without delays and limits does not wait for the pump. Datagrams are sent at once. Parts of a
//! connection are pushed to its [`StreamOut`], so a peer that does not read delays only its own
//! connection.

use super::{
    direction::{CHUNK, LinkArrival, LinkDirection},
    timer::LinkTimer,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{collections::VecDeque, io, net::SocketAddr, sync::Arc, time::Instant};
use tokio::{net::UdpSocket, sync::Notify};

/// An item that travels from one end of a connection to the other.
#[derive(Clone)]
pub(super) enum StreamPart {
    /// The dial, or the reply that the dial has been accepted.
    Open,
    Bytes(Bytes),
    /// The sender has closed its writing half.
    End,
    Reset,
}

impl StreamPart {
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Open | Self::End | Self::Reset => 0,
        }
    }
}

/// A packet with the socket on which it leaves the link.
#[derive(Clone)]
pub(super) enum LinkPacket {
    Part(Arc<StreamOut>, StreamPart),
    /// A datagram to a client, or (`None`) to the peer that the socket is connected to.
    Datagram(Arc<UdpSocket>, Option<SocketAddr>, Bytes),
}

#[derive(Default)]
struct Arrived {
    parts: VecDeque<StreamPart>,
    opened: bool,
    swallowed: bool,
    reset: bool,
}

/// The receiving end of one direction of a connection: parts that have arrived and are not yet
/// written. The direction's window bounds them.
#[derive(Default)]
pub(super) struct StreamOut {
    arrived: Mutex<Arrived>,
    ready: Notify,
    opening: Notify,
    resetting: Notify,
    /// Wakes the reader of the connection, because the window may have capacity.
    pub has_capacity: Notify,
}

impl StreamOut {
    fn push(&self, part: StreamPart) {
        self.arrived.lock().parts.push_back(part);
        self.ready.notify_one();
        self.has_capacity.notify_one();
    }

    /// Marks the connection as reset. A reset overtakes the data that are not yet written, since
    /// the receiving kernel drops those.
    fn push_reset(&self) {
        self.arrived.lock().reset = true;
        self.ready.notify_one();
        self.resetting.notify_one();
    }

    fn swallow(&self) {
        self.arrived.lock().swallowed = true;
        self.ready.notify_one();
        self.opening.notify_one();
        self.has_capacity.notify_one();
    }

    /// The next part. `None` once a half-open connection has lost a part, since no part arrives
    /// after that.
    pub async fn next(&self) -> Option<StreamPart> {
        loop {
            {
                let mut arrived = self.arrived.lock();
                if arrived.reset {
                    return Some(StreamPart::Reset);
                }
                if let Some(part) = arrived.parts.pop_front() {
                    return Some(part);
                }
                if arrived.swallowed {
                    return None;
                }
            }
            self.ready.notified().await;
        }
    }

    /// Waits until a reset has arrived.
    pub async fn reset(&self) {
        while !self.arrived.lock().reset {
            self.resetting.notified().await;
        }
    }

    pub fn open(&self) {
        self.arrived.lock().opened = true;
        self.opening.notify_one();
    }

    /// Whether the other end has accepted the dial; `false` if its reply was lost.
    pub async fn opened(&self) -> bool {
        loop {
            {
                let arrived = self.arrived.lock();
                if arrived.opened || arrived.swallowed {
                    return arrived.opened;
                }
            }
            self.opening.notified().await;
        }
    }
}

struct LaneState {
    direction: LinkDirection<LinkPacket>,
    /// The time at which the pump wakes next.
    armed: Option<Instant>,
    /// The buffer into which sockets are read. It is shared, so an idle connection needs no buffer.
    scratch: Box<[u8]>,
}

/// Access to a direction at one moment.
pub(super) struct LaneAccess<'a> {
    pub direction: &'a mut LinkDirection<LinkPacket>,
    pub scratch: &'a mut [u8],
    pub now: Instant,
}

pub(super) struct Lane {
    state: Mutex<LaneState>,
    /// Wakes the pump for an arrival that is earlier than the one it waits for.
    wake: Notify,
    /// Wakes one waiting reader after another while the queue has capacity.
    pub has_capacity: Notify,
}

/// Both directions as an address of the link uses them: from its clients to the target, and back.
pub(super) struct RelayLanes {
    pub forth: Arc<Lane>,
    pub back: Arc<Lane>,
}

impl Lane {
    pub fn new(direction: LinkDirection<LinkPacket>) -> Self {
        Self {
            state: Mutex::new(LaneState {
                direction,
                armed: None,
                scratch: vec![0; CHUNK].into(),
            }),
            wake: Notify::new(),
            has_capacity: Notify::new(),
        }
    }

    /// Calls `act` on the direction, and delivers the packets that have arrived. `act` must not
    /// block.
    pub fn access<R>(&self, act: impl FnOnce(LaneAccess<'_>) -> R) -> R {
        let mut state = self.state.lock();
        // Read the clock under the lock, so that time does not go backwards between accesses.
        let now = Instant::now();
        let LaneState {
            direction, scratch, ..
        } = &mut *state;
        let result = act(LaneAccess {
            direction,
            scratch,
            now,
        });
        if self.settle(&mut state, now) {
            self.wake.notify_one();
        }
        result
    }

    /// Delivers packets when they arrive. Runs as long as the link.
    pub async fn pump(&self) {
        let mut timer = LinkTimer::default();
        loop {
            let armed = self.state.lock().armed;
            let due = async {
                match armed {
                    Some(due) => timer.until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {
                    let mut state = self.state.lock();
                    state.armed = None;
                    let now = Instant::now();
                    self.settle(&mut state, now);
                }
                () = self.wake.notified() => {}
            }
        }
    }

    /// Delivers the packets that have arrived. Returns whether the pump has to wake earlier than
    /// before.
    fn settle(&self, state: &mut LaneState, now: Instant) -> bool {
        while let Some(arrival) = state.direction.poll(now) {
            hand_on(arrival);
        }
        if state.direction.queue_has_capacity() {
            self.has_capacity.notify_one();
        }
        let due = state.direction.due();
        let earlier = due.is_some_and(|due| state.armed.is_none_or(|armed| due < armed));
        if earlier {
            state.armed = due;
        }
        earlier
    }
}

fn hand_on(arrival: LinkArrival<LinkPacket>) {
    match arrival {
        LinkArrival::Delivered(LinkPacket::Part(out, StreamPart::Reset))
        | LinkArrival::Reset(LinkPacket::Part(out, _)) => out.push_reset(),
        LinkArrival::Delivered(LinkPacket::Part(out, part)) => out.push(part),
        LinkArrival::Swallowed(LinkPacket::Part(out, _)) => out.swallow(),
        LinkArrival::Delivered(LinkPacket::Datagram(socket, client, bytes)) => {
            send(&socket, client, &bytes);
        }
        LinkArrival::Reset(LinkPacket::Datagram(..))
        | LinkArrival::Swallowed(LinkPacket::Datagram(..)) => {}
    }
}

/// Sends a datagram. A datagram that its socket does not accept at once is lost, as with any full
/// buffer.
fn send(socket: &UdpSocket, client: Option<SocketAddr>, bytes: &[u8]) {
    let attempt = || match client {
        Some(client) => socket.try_send_to(bytes, client),
        None => socket.try_send(bytes),
    };
    // This error concerns an earlier datagram that the target refused, and the kernel did not send
    // this one: try again.
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if attempt().as_ref().is_err_and(refused) {
        let _ = attempt();
    }
}
