//! The router between all hosts as a pure machine: packets of hosts go in with `now`, and packets
//! for hosts come out. It does not sleep, read a clock or do I/O.
//!
//! ```text
//! host ── check ── NAT ── route ── link: refusal, MTU, LinkDirection ── (next link) ── NAT ── host
//! ```
//!
//! Each direction of a link has one [`LinkDirection`] with one flow, so packets keep their order
//! unless a fault changes it. Memory is bounded by these directions; a packet that is not on a link
//! leaves at once.

use super::{
    RouterCounts,
    icmp::{self, IcmpReason, error, reset_reply},
    ipv4::Ipv4Packet,
    nat::NatTable,
};
use crate::{
    DirectionConditions, FlowId, LinkArrival, LinkConditions, LinkCounts, LinkDirection, Passage,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    net::Ipv4Addr,
    time::{Duration, Instant},
};

/// Index of a host.
pub(super) type HostIndex = usize;

/// A packet for a host's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RouterOutput {
    pub to: HostIndex,
    pub bytes: Vec<u8>,
}

/// A host as the router sees it.
pub(super) struct RouterHost {
    /// Address of the host's interface.
    pub inside: Ipv4Addr,
    /// Address at which other hosts reach it; without a NAT the same.
    pub outside: Ipv4Addr,
    pub nat: Option<NatTable>,
}

/// A packet on a link.
#[derive(Clone)]
struct Routed {
    packet: Ipv4Packet,
    /// Host that the packet is for, which is not the end of this link if the route has two links.
    to: HostIndex,
    /// Bit to flip on arrival.
    corrupt: Option<usize>,
    /// Whether the far end responds with a reset.
    reset: bool,
}

struct RouterDirection {
    direction: LinkDirection<Routed>,
    flow: FlowId,
    conditions: DirectionConditions,
    refuses: bool,
    /// End of the link.
    to: HostIndex,
    dice: StdRng,
    /// Packets that were sent while the link refused traffic.
    refused: u64,
    /// Resets of connections in place of their segments.
    resets: u64,
    /// Entry of this direction in the schedule.
    scheduled: Option<Instant>,
}

/// Two hosts in the order of travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Hop {
    from: HostIndex,
    to: HostIndex,
}

pub(super) struct PacketRouter {
    address: Ipv4Addr,
    hosts: Vec<RouterHost>,
    by_address: HashMap<Ipv4Addr, HostIndex>,
    directions: Vec<RouterDirection>,
    by_hop: HashMap<Hop, usize>,
    /// Routes over a third host.
    detours: HashMap<Hop, HostIndex>,
    schedule: BTreeSet<(Instant, usize)>,
    /// Packets that have arrived. Each call of [`Self::receive`] or [`Self::poll`] adds those of
    /// one moment, and the caller takes them at once.
    ready: VecDeque<RouterOutput>,
    dice: StdRng,
    counts: RouterCounts,
}

impl PacketRouter {
    pub fn new(address: Ipv4Addr, hosts: Vec<RouterHost>, dice: StdRng) -> Self {
        let addresses = hosts.iter().enumerate();
        Self {
            address,
            by_address: addresses.map(|(index, it)| (it.outside, index)).collect(),
            hosts,
            directions: Vec::new(),
            by_hop: HashMap::new(),
            detours: HashMap::new(),
            schedule: BTreeSet::new(),
            ready: VecDeque::new(),
            dice,
            counts: RouterCounts::default(),
        }
    }

    /// Adds a link; `up` is from `near` to `far`. Two hosts have at most one.
    pub fn connect(
        &mut self,
        near: HostIndex,
        far: HostIndex,
        conditions: &LinkConditions,
        now: Instant,
    ) {
        for (from, to, direction) in [(near, far, conditions.up), (far, near, conditions.down)] {
            let mut dice = StdRng::from_rng(&mut self.dice);
            let own = StdRng::from_rng(&mut dice);
            let effective = effective(direction, conditions.refuse);
            let mut machine = LinkDirection::new(effective, Duration::ZERO, own, now);
            let flow = machine.open_flow();
            self.by_hop.insert(Hop { from, to }, self.directions.len());
            self.directions.push(RouterDirection {
                direction: machine,
                flow,
                conditions: direction,
                refuses: conditions.refuse,
                to,
                dice,
                refused: 0,
                resets: 0,
                scheduled: None,
            });
        }
    }

    /// Sets new conditions of a link, also for packets on their way.
    pub fn set(
        &mut self,
        near: HostIndex,
        far: HostIndex,
        conditions: &LinkConditions,
        now: Instant,
    ) {
        for (from, to, direction) in [(near, far, conditions.up), (far, near, conditions.down)] {
            let Some(index) = self.by_hop.get(&Hop { from, to }).copied() else {
                continue;
            };
            let it = &mut self.directions[index];
            it.conditions = direction;
            it.refuses = conditions.refuse;
            let effective = effective(direction, conditions.refuse);
            it.direction.set(effective, Duration::ZERO, now);
            self.reschedule(index);
        }
    }

    /// Sends packets from one host to another over the links of a third host, in this direction
    /// only; `None` for the direct link.
    pub fn detour(&mut self, from: HostIndex, to: HostIndex, via: Option<HostIndex>) {
        let hop = Hop { from, to };
        match via {
            Some(via) => self.detours.insert(hop, via),
            None => self.detours.remove(&hop),
        };
    }

    pub fn counts(&self) -> RouterCounts {
        self.counts
    }

    /// The counts of a link's direction; zeros if there is no such link.
    pub fn link_counts(&self, from: HostIndex, to: HostIndex) -> LinkCounts {
        let index = self.by_hop.get(&Hop { from, to });
        index.map_or(LinkCounts::default(), |index| {
            let it = &self.directions[*index];
            let counts = it.direction.counts();
            LinkCounts {
                lost: counts.lost + it.refused,
                resets: counts.resets + it.resets,
                ..counts
            }
        })
    }

    /// Takes a packet that a host has sent. Poll afterwards.
    pub fn receive(&mut self, from: HostIndex, bytes: Vec<u8>, now: Instant) {
        self.counts.received += 1;
        let Ok(mut packet) = Ipv4Packet::parse(bytes) else {
            self.counts.invalid += 1;
            return;
        };
        let host = &mut self.hosts[from];
        if packet.source() != host.inside {
            self.counts.foreign += 1;
            return;
        }
        if let Some(nat) = &mut host.nat
            && !nat.outbound(&mut packet, now)
        {
            self.counts.refused_by_nat += 1;
            return;
        }
        let Some(to) = self.by_address.get(&packet.destination()).copied() else {
            self.counts.unroutable += 1;
            self.report(from, &packet, IcmpReason::HostUnreachable, now);
            return;
        };
        let next = self.detours.get(&Hop { from, to }).copied().unwrap_or(to);
        self.forward(Hop { from, to: next }, to, packet, now);
    }

    /// The next packet that has arrived by `now`. Call until it returns `None`.
    pub fn poll(&mut self, now: Instant) -> Option<RouterOutput> {
        loop {
            if let Some(output) = self.ready.pop_front() {
                return Some(output);
            }
            let (_, index) = self.schedule.first().filter(|(due, _)| *due <= now)?;
            let index = *index;
            let it = &mut self.directions[index];
            let arrival = it.direction.poll(now);
            self.reschedule(index);
            if let Some(LinkArrival::Delivered(routed)) = arrival {
                self.arrive(index, routed, now);
            }
        }
    }

    /// The time at which [`Self::poll`] should be called next.
    pub fn due(&self) -> Option<Instant> {
        self.schedule.first().map(|(due, _)| *due)
    }

    /// Puts a packet on a link.
    fn forward(&mut self, hop: Hop, to: HostIndex, mut packet: Ipv4Packet, now: Instant) {
        let source = self.by_address.get(&packet.source()).copied();
        let source = source.unwrap_or(hop.from);
        if !packet.hop() {
            self.counts.expired += 1;
            self.report(source, &packet, IcmpReason::TimeExceeded, now);
            return;
        }
        let Some(index) = self.by_hop.get(&hop).copied() else {
            self.counts.unroutable += 1;
            self.report(source, &packet, IcmpReason::HostUnreachable, now);
            return;
        };
        let it = &mut self.directions[index];
        if it.refuses {
            self.counts.refused_by_link += 1;
            it.refused += 1;
            if let Some(reset) = reset_reply(&packet) {
                it.resets += 1;
                self.deliver(source, reset, now);
            }
            return;
        }
        let mtu = it.conditions.mtu.unwrap_or(u16::MAX);
        if packet.len() <= usize::from(mtu) {
            self.send(index, to, packet, now);
        } else if packet.must_not_be_fragmented() {
            self.counts.too_large += 1;
            self.report(source, &packet, IcmpReason::TooLarge { mtu }, now);
        } else {
            self.counts.fragmented += 1;
            for fragment in icmp::fragments(&packet, usize::from(mtu)) {
                self.send(index, to, fragment, now);
            }
        }
    }

    /// Sends a packet that fits. It always takes three draws, so that changing one condition does
    /// not shift the draws of the others.
    fn send(&mut self, index: usize, to: HostIndex, packet: Ipv4Packet, now: Instant) {
        let it = &mut self.directions[index];
        let [corrupt, reset] = [it.conditions.corrupt, it.conditions.reset]
            .map(|share| it.dice.random::<f64>() < share);
        let bit = it.dice.random_range(0..packet.len() * 8);
        let len = packet.len();
        let routed = Routed {
            packet,
            to,
            corrupt: corrupt.then_some(bit),
            reset,
        };
        it.direction.datagram(it.flow, len, now, routed);
        self.reschedule(index);
    }

    /// Takes a packet from the end of the direction `index`.
    fn arrive(&mut self, index: usize, routed: Routed, now: Instant) {
        let at = self.directions[index].to;
        let Routed {
            mut packet,
            to,
            corrupt,
            reset,
        } = routed;
        if reset && let Some(in_place) = icmp::reset_in_place(&packet) {
            self.counts.resets += 1;
            self.directions[index].resets += 1;
            self.reset_sender(at, &packet, now);
            packet = in_place;
        }
        if let Some(bit) = corrupt {
            self.counts.corrupted += 1;
            // A packet whose header is no longer sound is dropped by the next router.
            match Ipv4Packet::parse(packet.flip(bit)) {
                Ok(flipped) => packet = flipped,
                Err(_) => return,
            }
        }
        if at == to {
            self.deliver(to, packet, now);
        } else {
            self.forward(Hop { from: at, to }, to, packet, now);
        }
    }

    /// Sends the reset of a connection back to the sender of a segment.
    fn reset_sender(&mut self, at: HostIndex, segment: &Ipv4Packet, now: Instant) {
        let sender = self.by_address.get(&segment.source()).copied();
        let reply = reset_reply(segment);
        if let Some((sender, reply)) = sender.zip(reply) {
            let hop = Hop {
                from: at,
                to: sender,
            };
            self.forward(hop, sender, reply, now);
        }
    }

    /// Sends an ICMP error to the host that sent a packet.
    fn report(&mut self, host: HostIndex, about: &Ipv4Packet, reason: IcmpReason, now: Instant) {
        if let Some(error) = error(self.address, about, reason) {
            self.deliver(host, error, now);
        }
    }

    /// Hands a packet to a host, through its NAT.
    fn deliver(&mut self, to: HostIndex, mut packet: Ipv4Packet, now: Instant) {
        if let Some(nat) = &mut self.hosts[to].nat
            && !nat.inbound(&mut packet, now)
        {
            self.counts.refused_by_nat += 1;
            return;
        }
        self.counts.delivered += 1;
        let bytes = packet.into_bytes();
        self.ready.push_back(RouterOutput { to, bytes });
    }

    fn reschedule(&mut self, index: usize) {
        let it = &mut self.directions[index];
        let due = it.direction.due();
        if due == it.scheduled {
            return;
        }
        let old = std::mem::replace(&mut it.scheduled, due);
        if let Some(old) = old {
            self.schedule.remove(&(old, index));
        }
        if let Some(due) = due {
            self.schedule.insert((due, index));
        }
    }
}

/// The conditions of a direction for packets on their way: on a link that refuses traffic they are
/// lost.
fn effective(direction: DirectionConditions, refuses: bool) -> DirectionConditions {
    let passage = if refuses {
        Passage::Unplugged
    } else {
        direction.passage
    };
    DirectionConditions {
        passage,
        ..direction
    }
}

#[cfg(test)]
mod tests;
