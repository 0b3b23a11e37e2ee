//! One direction of a link as a pure state machine: chunks of connections and datagrams go in with
//! `now`, and come out at the time of their arrival, or never. It does not sleep, read a clock or
//! do I/O. The caller passes in the random generator, so the same seed and calls give the same
//! history.
//!
//! A packet first waits in the [`Bottleneck`], which all flows share, and then travels for the
//! delay. Its faults are drawn when it is sent. The conditions at its departure and arrival decide
//! their effect, so a change of conditions also applies to packets on the way.
//!
//! Memory is bounded: datagrams above the queue or [`BUDGET`] are dropped, and a connection reads
//! only as much as [`LinkDirection::capacity`] allows. Datagrams and connections have separate
//! budgets, so connections whose peers do not read cause no loss of datagrams.

use super::{
    bottleneck::Bottleneck,
    conditions::{DirectionConditions, Passage, SEGMENT},
    flow::{LinkFlow, hold, stall},
};
use rand::{SeedableRng, rngs::StdRng};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    time::{Duration, Instant},
};

/// Largest chunk, in bytes, that a connection reads at once.
pub const CHUNK: usize = 64 << 10;

/// Largest number of bytes of all datagrams on the way, and of all connections on the way or not
/// yet written. A connection may use half of the free bytes, so that connections whose peers do not
/// read leave capacity for the others.
pub const BUDGET: usize = 64 << 20;

/// Largest number of bytes on the way of one connection: at a delay of 50 ms this allows 320 MB/s.
const WINDOW: usize = 16 << 20;

/// Number of bytes that a connection may always have on the way, even above the budget.
const SMALLEST_WINDOW: usize = 16 << 10;

/// Memory of a packet besides its data, in bytes, so that packets of one byte count too.
const PACKET: usize = 128;

/// Number of chunks per second into which a limited rate is divided. Longer chunks would arrive in
/// bursts and delay the chunks of other connections.
const CHUNKS_PER_SECOND: u64 = 1_000;

/// A flow of a direction: a connection, or the datagrams of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId(u64);

/// The number of bytes that a connection may read now, or the reason why it must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamCapacity {
    Bytes(usize),
    /// The queue before the bottleneck is full. It has capacity again after a departure.
    QueueFull,
    /// Too many bytes of this connection are on the way, or a segment has to be retransmitted. The
    /// window has capacity again after an arrival or after [`LinkDirection::written`].
    WindowFull,
}

/// An item that [`LinkDirection::poll`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkArrival<T> {
    Delivered(T),
    /// A chunk to which the far end responds with a reset of the connection.
    Reset(T),
    /// The first chunk that a connection lost in [`Passage::HalfOpen`]. No later chunk of the
    /// connection arrives.
    Swallowed(T),
}

/// Counts since the start of the direction. Packets are chunks of connections, and datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    pub packets: u64,
    pub bytes: u64,
    pub delivered: u64,
    /// Datagrams that were lost at random, or because the direction was unplugged or refused
    /// traffic.
    pub lost: u64,
    /// Datagrams that were dropped because the queue was full.
    pub dropped: u64,
    pub duplicated: u64,
    pub reordered: u64,
    /// Segments of connections that were retransmitted.
    pub retransmitted: u64,
    /// Connections that the link has reset. On the packet backend these are the resets that the
    /// router has sent.
    pub resets: u64,
    /// Packets that disappeared in [`Passage::HalfOpen`].
    pub swallowed: u64,
}

#[derive(Clone)]
struct Packet<T> {
    flow: FlowId,
    len: usize,
    /// Whether the packet is a chunk of a connection: chunks keep their order and are lost for good
    /// only in [`Passage::HalfOpen`].
    stream: bool,
    /// Number of losses in a row of a segment in the chunk.
    losses: u32,
    reset: bool,
    lost: bool,
    overtaken: bool,
    item: T,
}

impl<T> Packet<T> {
    fn weight(&self) -> usize {
        self.len + PACKET
    }
}

/// A packet behind the bottleneck. In the heap the earliest packet is the greatest, and of several
/// at one time the one that was sent first.
struct Travelling<T> {
    due: Instant,
    number: u64,
    packet: Packet<T>,
}

impl<T> Travelling<T> {
    fn rank(&self) -> (Reverse<Instant>, Reverse<u64>) {
        (Reverse(self.due), Reverse(self.number))
    }
}

impl<T> PartialEq for Travelling<T> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<T> Eq for Travelling<T> {}

impl<T> PartialOrd for Travelling<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Travelling<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// One direction of a link, for items of any type: sockets and bytes in the relays, messages in a
/// simulation, numbers in a test.
pub struct LinkDirection<T> {
    conditions: DirectionConditions,
    /// Wait before a segment is retransmitted; see `LinkConditions::retransmission`.
    retransmission: Duration,
    bottleneck: Bottleneck<Packet<T>>,
    travelling: BinaryHeap<Travelling<T>>,
    /// Number of packets that have left the bottleneck so far.
    departed: u64,
    /// Chunks whose delay is over and that wait until an unplugged direction opens.
    unplugged: VecDeque<Packet<T>>,
    flows: HashMap<FlowId, LinkFlow>,
    opened: u64,
    /// Bytes of datagrams on the way, with their overhead.
    datagrams: usize,
    /// Bytes of chunks on the way or not yet written, with their overhead.
    unwritten: usize,
    rng: StdRng,
    counts: LinkCounts,
}

impl<T: Clone> LinkDirection<T> {
    /// Makes a direction. The conditions must have passed `LinkConditions::check`.
    pub fn new(
        conditions: DirectionConditions,
        retransmission: Duration,
        rng: StdRng,
        now: Instant,
    ) -> Self {
        Self {
            conditions,
            retransmission,
            bottleneck: Bottleneck::new(conditions.bandwidth, now),
            travelling: BinaryHeap::new(),
            departed: 0,
            unplugged: VecDeque::new(),
            flows: HashMap::new(),
            opened: 0,
            datagrams: 0,
            unwritten: 0,
            rng,
            counts: LinkCounts::default(),
        }
    }

    /// Sets new conditions, also for packets on the way: packets in the queue get the new rate and
    /// delay, and packets behind it keep their time of arrival. Poll afterwards.
    pub fn set(&mut self, conditions: DirectionConditions, retransmission: Duration, now: Instant) {
        self.depart(now);
        self.conditions = conditions;
        self.retransmission = retransmission;
        self.bottleneck.set(conditions.bandwidth, now);
    }

    pub fn counts(&self) -> LinkCounts {
        self.counts
    }

    /// Counts a connection that the caller has reset itself.
    pub fn count_reset(&mut self) {
        self.counts.resets += 1;
    }

    /// Opens a new flow. The seed of its random generator is drawn from the direction's.
    pub fn open_flow(&mut self) -> FlowId {
        let id = FlowId(self.opened);
        self.opened += 1;
        let flow = LinkFlow::new(StdRng::from_rng(&mut self.rng));
        self.flows.insert(id, flow);
        id
    }

    /// Forgets a flow and the packets of the flow that are on the way.
    pub fn close_flow(&mut self, id: FlowId) {
        let Some(flow) = self.flows.remove(&id) else {
            return;
        };
        self.unwritten -= flow.unwritten;
        let mut datagrams = 0;
        let mut keep = |packet: &Packet<T>| {
            let keep = packet.flow != id;
            if !keep && !packet.stream {
                datagrams += packet.weight();
            }
            keep
        };
        self.bottleneck.retain(&mut keep);
        self.travelling.retain(|it| keep(&it.packet));
        self.unplugged.retain(&mut keep);
        self.datagrams -= datagrams;
    }

    /// The number of bytes that a connection may read now, or the reason why it must wait.
    pub fn capacity(&mut self, id: FlowId) -> StreamCapacity {
        let queue_has_capacity = self.queue_has_capacity();
        let Some(flow) = self.flows.get_mut(&id) else {
            return StreamCapacity::WindowFull;
        };
        if flow.dead {
            return StreamCapacity::Bytes(CHUNK);
        }
        let free = BUDGET.saturating_sub(self.unwritten);
        let window = (free / 2).clamp(SMALLEST_WINDOW, WINDOW);
        if flow.stalls > 0 || flow.unwritten >= window {
            return StreamCapacity::WindowFull;
        }
        if !queue_has_capacity {
            return StreamCapacity::QueueFull;
        }
        let chunk = self.conditions.bandwidth.map_or(CHUNK, |it| {
            let chunk = usize::try_from(it.rate.get() / CHUNKS_PER_SECOND).unwrap_or(CHUNK);
            chunk.clamp(SEGMENT, CHUNK)
        });
        let chunk = chunk.min((window - flow.unwritten).max(SEGMENT));
        StreamCapacity::Bytes(chunk.min(flow.clean(&self.conditions)))
    }

    /// Whether connections may put further data into the queue.
    pub fn queue_has_capacity(&self) -> bool {
        let bandwidth = self.conditions.bandwidth;
        self.bottleneck.is_empty()
            || bandwidth.is_none_or(|it| self.bottleneck.queued() < it.queue / 2)
    }

    /// Sends data of a connection, or a mark of length zero such as the connection's end.
    pub fn chunk(&mut self, id: FlowId, len: usize, now: Instant, item: T) {
        let conditions = self.conditions;
        self.count(len);
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        if flow.dead {
            self.counts.swallowed += 1;
            return;
        }
        let outcome = flow.chunk(&conditions, len);
        let packet = Packet {
            flow: id,
            len,
            stream: true,
            losses: outcome.losses,
            reset: outcome.reset,
            lost: false,
            overtaken: false,
            item,
        };
        flow.stalls += u32::from(outcome.losses > 0);
        flow.unwritten += packet.weight();
        self.unwritten += packet.weight();
        self.counts.retransmitted += u64::from(outcome.losses);
        self.bottleneck.push(len, packet, now);
        self.depart(now);
    }

    /// Records that an arrived chunk of `len` bytes has been written.
    pub fn written(&mut self, id: FlowId, len: usize) {
        if let Some(flow) = self.flows.get_mut(&id) {
            let weight = (len + PACKET).min(flow.unwritten);
            flow.unwritten -= weight;
            self.unwritten -= weight;
        }
    }

    /// Sends a datagram; drops it if the queue is full.
    pub fn datagram(&mut self, id: FlowId, len: usize, now: Instant, item: T) {
        let conditions = self.conditions;
        self.count(len);
        let Some(flow) = self.flows.get_mut(&id) else {
            return;
        };
        let outcome = flow.datagram(&conditions);
        let packet = Packet {
            flow: id,
            len,
            stream: false,
            losses: 0,
            reset: false,
            lost: outcome.lost,
            overtaken: outcome.overtaken,
            item,
        };
        let bandwidth = conditions.bandwidth.filter(|_| !self.bottleneck.is_empty());
        let full = bandwidth.is_some_and(|it| self.bottleneck.queued() + len > it.queue);
        let copy = (outcome.twice && !outcome.lost).then(|| packet.clone());
        let weight = packet.weight() * (1 + usize::from(copy.is_some()));
        if full || self.datagrams + weight > BUDGET {
            self.counts.dropped += 1;
            return;
        }
        self.datagrams += weight;
        self.bottleneck.push(len, packet, now);
        if let Some(mut copy) = copy {
            self.counts.duplicated += 1;
            copy.overtaken = false;
            // The copy is made behind the bottleneck and uses nothing of its rate.
            self.bottleneck.push(0, copy, now);
        }
        self.depart(now);
    }

    /// The next packet that has arrived by `now`. Call until it returns `None`.
    pub fn poll(&mut self, now: Instant) -> Option<LinkArrival<T>> {
        self.depart(now);
        loop {
            let waits = self.chunks_wait();
            let stored = if waits {
                None
            } else {
                self.unplugged.pop_front()
            };
            let packet = match stored {
                Some(packet) => packet,
                None => self.arrived(now)?,
            };
            if packet.stream && waits {
                self.unplugged.push_back(packet);
            } else if let Some(arrival) = self.arrive(packet) {
                return Some(arrival);
            }
        }
    }

    /// The time at which [`LinkDirection::poll`] should be called next.
    pub fn due(&self) -> Option<Instant> {
        let arrival = self.travelling.peek().map(|it| it.due);
        arrival.into_iter().chain(self.bottleneck.next()).min()
    }

    /// Whether arrived chunks wait for the direction to open instead of being delivered.
    fn chunks_wait(&self) -> bool {
        match self.conditions.passage {
            Passage::Open => self.conditions.loss >= 1.0,
            Passage::Unplugged => true,
            Passage::HalfOpen => false,
        }
    }

    fn count(&mut self, len: usize) {
        self.counts.packets += 1;
        self.counts.bytes += len as u64;
    }

    /// Lets the packets that have left the bottleneck by `now` travel on.
    fn depart(&mut self, now: Instant) {
        while let Some((departure, packet)) = self.bottleneck.pop(now) {
            if packet.lost {
                self.datagrams -= packet.weight();
                self.counts.lost += 1;
                continue;
            }
            let Some(flow) = self.flows.get_mut(&packet.flow) else {
                continue;
            };
            let delay = flow.delay(&self.conditions, departure);
            let due = departure + delay + stall(self.retransmission, packet.losses);
            let late = Some(hold(&self.conditions)).filter(|_| packet.overtaken);
            let due = flow.order(due, late.unwrap_or_default());
            self.counts.reordered += u64::from(packet.overtaken);
            self.travelling.push(Travelling {
                due,
                number: self.departed,
                packet,
            });
            self.departed += 1;
        }
    }

    fn arrived(&mut self, now: Instant) -> Option<Packet<T>> {
        self.travelling.peek().filter(|it| it.due <= now)?;
        self.travelling.pop().map(|it| it.packet)
    }

    /// Handles the arrival of a packet; `None` if the packet disappears.
    fn arrive(&mut self, packet: Packet<T>) -> Option<LinkArrival<T>> {
        if packet.stream {
            return self.arrive_in_order(packet);
        }
        self.datagrams -= packet.weight();
        match self.conditions.passage {
            Passage::Open => {
                self.counts.delivered += 1;
                return Some(LinkArrival::Delivered(packet.item));
            }
            Passage::Unplugged => self.counts.lost += 1,
            Passage::HalfOpen => self.counts.swallowed += 1,
        }
        None
    }

    fn arrive_in_order(&mut self, packet: Packet<T>) -> Option<LinkArrival<T>> {
        let flow = self.flows.get_mut(&packet.flow)?;
        flow.stalls -= u32::from(packet.losses > 0);
        let half_open = self.conditions.passage == Passage::HalfOpen;
        if flow.dead || half_open {
            let first = !flow.dead;
            flow.dead = true;
            flow.unwritten -= packet.weight();
            self.unwritten -= packet.weight();
            self.counts.swallowed += 1;
            return first.then_some(LinkArrival::Swallowed(packet.item));
        }
        self.counts.delivered += 1;
        self.counts.resets += u64::from(packet.reset);
        Some(if packet.reset {
            LinkArrival::Reset(packet.item)
        } else {
            LinkArrival::Delivered(packet.item)
        })
    }
}

#[cfg(test)]
mod tests;
