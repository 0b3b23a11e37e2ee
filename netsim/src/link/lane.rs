//! The thin shell around one [`LinkDirection`]: sockets put packets in under its lock, one task, the
//! pump, wakes for what arrives later.
//!
//! Whoever changes the direction also hands on what has arrived by then, so a link without faults
//! never waits for the pump. Datagrams go out at once; parts of a connection go to its [`StreamOut`],
//! so a peer that does not read holds up its own connection only.

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
    /// The dial, or the answer that it has been accepted.
    Open,
    Bytes(Bytes),
    /// The sender writes no more.
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

/// A packet with the socket that it leaves by.
#[derive(Clone)]
pub(super) enum LinkPacket {
    Part(Arc<StreamOut>, StreamPart),
    /// To a client, or to the peer that the socket is connected to.
    Datagram(Arc<UdpSocket>, Option<SocketAddr>, Bytes),
}

#[derive(Default)]
struct Arrived {
    parts: VecDeque<StreamPart>,
    opened: bool,
    swallowed: bool,
    reset: bool,
}

/// The far end of one direction of a connection: parts that have arrived and are to be written. The
/// direction's window bounds them.
#[derive(Default)]
pub(super) struct StreamOut {
    arrived: Mutex<Arrived>,
    ready: Notify,
    opening: Notify,
    resetting: Notify,
    /// Wakes the reader of the connection: the window may have room.
    pub has_capacity: Notify,
}

impl StreamOut {
    fn push(&self, part: StreamPart) {
        self.arrived.lock().parts.push_back(part);
        self.ready.notify_one();
        self.has_capacity.notify_one();
    }

    /// A reset overtakes the data that are not written yet: the receiving kernel forgets those.
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

    /// The next part; `None` once a half-open connection has lost a part, since nothing arrives
    /// after it.
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

    /// Waits for a reset.
    pub async fn reset(&self) {
        while !self.arrived.lock().reset {
            self.resetting.notified().await;
        }
    }

    pub fn open(&self) {
        self.arrived.lock().opened = true;
        self.opening.notify_one();
    }

    /// Whether the other end has accepted; false when its answer was swallowed.
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
    /// When the pump wakes.
    armed: Option<Instant>,
    /// Buffer into which sockets are read; a connection at rest has none.
    scratch: Box<[u8]>,
}

/// Access to a direction, at one time.
pub(super) struct LaneAccess<'a> {
    pub direction: &'a mut LinkDirection<LinkPacket>,
    pub scratch: &'a mut [u8],
    pub now: Instant,
}

pub(super) struct Lane {
    state: Mutex<LaneState>,
    /// Wakes the pump for an earlier arrival than it knows of.
    wake: Notify,
    /// Wakes one reader after another while the queue has room.
    pub has_capacity: Notify,
}

/// Both directions as an address of the link has them: from its clients to the target, and back.
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

    /// Changes the direction and hands on what has arrived. `act` must not block.
    pub fn access<R>(&self, act: impl FnOnce(LaneAccess<'_>) -> R) -> R {
        let mut state = self.state.lock();
        // Read under the lock, so that time does not go backwards between accesses.
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

    /// Hands on what arrives later. Runs as long as the link.
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

    /// Hands on what has arrived; whether the pump has to wake earlier than before.
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

/// A datagram that its socket does not take at once is lost, as in any full buffer.
fn send(socket: &UdpSocket, client: Option<SocketAddr>, bytes: &[u8]) {
    let attempt = || match client {
        Some(client) => socket.try_send_to(bytes, client),
        None => socket.try_send(bytes),
    };
    // The kernel reports that the target refused an earlier datagram, and does not send this one.
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if attempt().as_ref().is_err_and(refused) {
        let _ = attempt();
    }
}
