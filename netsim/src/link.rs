//! A link between two ends, near and far. It carries the TCP and UDP traffic of two real processes,
//! under conditions that can change at any time.
//!
//! A node dials an address of the link instead of its peer's address. Each direction has one
//! [`LinkDirection`], which all connections and datagrams of the two processes share. The direction
//! decides when each packet arrives or is lost, and the relays send it. All faults are drawn from
//! one seed.
//!
//! Congestion control is not modelled, neither slow start nor back-off, since the kernels at both
//! ends see loopback. Instead, a lossy direction slows a connection by stalls.
//!
//! ```text
//! near end ── TcpRelay, UdpRelay ── Lane: LinkDirection, pump ── sockets ── far end
//! ```

mod bottleneck;
mod conditions;
mod direction;
mod flow;
mod lane;
mod tcp;
mod timer;
mod udp;

pub use conditions::{
    DirectionConditions, LinkBandwidth, LinkConditionError, LinkConditions, Passage, SEGMENT,
};
pub use direction::{FlowId, LinkArrival, LinkCounts, LinkDirection, StreamCapacity};

pub(crate) use timer::LinkTimer;

use lane::{Lane, RelayLanes};
use parking_lot::Mutex;
use rand::{SeedableRng, rngs::StdRng};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Instant,
};
use tcp::TcpRelay;
use tokio::{runtime::Handle, sync::watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use udp::UdpRelay;

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    Near,
    Far,
}

/// An address of a link that can end before the link does.
pub struct LinkAddress {
    pub address: SocketAddr,
    _end: DropGuard,
}

/// A link with addresses on loopback. The link ends when this value is dropped.
pub struct FaultyLink {
    seed: u64,
    /// Runs all tasks of the link.
    runtime: Handle,
    conditions: watch::Sender<LinkConditions>,
    /// Serialises changes, so that both directions and the listeners end with the same conditions.
    changes: Mutex<()>,
    resets: watch::Sender<u64>,
    up: Arc<Lane>,
    down: Arc<Lane>,
    token: CancellationToken,
    _end: DropGuard,
}

impl FaultyLink {
    /// A link that has no addresses yet. Print `seed` with a failure: it determines every fault.
    ///
    /// The current tokio runtime carries the traffic of all addresses, also of those that are opened
    /// from another runtime.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub fn new(seed: u64, conditions: LinkConditions) -> Result<Self, LinkConditionError> {
        conditions.check()?;
        let mut dice = StdRng::seed_from_u64(seed);
        let mut lane = |direction| {
            let (rng, now) = (StdRng::from_rng(&mut dice), Instant::now());
            let retransmission = conditions.retransmission();
            let direction = LinkDirection::new(direction, retransmission, rng, now);
            Arc::new(Lane::new(direction))
        };
        let token = CancellationToken::new();
        let link = Self {
            seed,
            runtime: Handle::current(),
            up: lane(effective(&conditions, conditions.up)),
            down: lane(effective(&conditions, conditions.down)),
            conditions: watch::Sender::new(conditions),
            changes: Mutex::new(()),
            resets: watch::Sender::new(0),
            _end: token.clone().drop_guard(),
            token,
        };
        for lane in [&link.up, &link.down] {
            let (lane, token) = (lane.clone(), link.token.clone());
            tokio::spawn(token.run_until_cancelled_owned(async move { lane.pump().await }));
        }
        Ok(link)
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Opens a TCP address at which nodes at the other end reach `target`, which is at the end
    /// `to`.
    pub async fn tcp(&self, to: LinkEnd, target: SocketAddr) -> io::Result<SocketAddr> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        self.relay(to, target, any, self.token.clone())
    }

    /// Opens a TCP address like [`Self::tcp`], at a chosen address of this machine; port zero is any
    /// free one. The address and its connections end when the returned value is dropped, as those of
    /// a host that moves away.
    pub async fn tcp_at(
        &self,
        to: LinkEnd,
        target: SocketAddr,
        address: SocketAddr,
    ) -> io::Result<LinkAddress> {
        let token = self.token.child_token();
        Ok(LinkAddress {
            address: self.relay(to, target, address, token.clone())?,
            _end: token.drop_guard(),
        })
    }

    fn relay(
        &self,
        to: LinkEnd,
        target: SocketAddr,
        address: SocketAddr,
        token: CancellationToken,
    ) -> io::Result<SocketAddr> {
        let _context = self.runtime.enter();
        let (conditions, resets) = (self.conditions.subscribe(), self.resets.subscribe());
        let lanes = self.lanes(to);
        let (relay, listener) =
            TcpRelay::open(address, target, lanes, conditions, resets, token.clone())?;
        let address = relay.address;
        tokio::spawn(token.run_until_cancelled_owned(relay.serve(listener)));
        Ok(address)
    }

    /// Opens a UDP address at which nodes at the other end reach `target`, which is at the end
    /// `to`.
    pub async fn udp(&self, to: LinkEnd, target: SocketAddr) -> io::Result<SocketAddr> {
        let opening = UdpRelay::open(target, self.lanes(to), self.token.clone());
        let relay = self
            .runtime
            .spawn(opening)
            .await
            .map_err(io::Error::other)??;
        let address = relay.address()?;
        let serving = self.token.clone().run_until_cancelled_owned(relay.serve());
        self.runtime.spawn(serving);
        Ok(address)
    }

    pub fn conditions(&self) -> LinkConditions {
        *self.conditions.borrow()
    }

    /// Sets new conditions, also for traffic on its way. Listeners follow a moment later.
    pub fn set(&self, conditions: LinkConditions) -> Result<(), LinkConditionError> {
        self.update(|it| *it = conditions)
    }

    /// Changes the current conditions by `change`, and sets them like [`Self::set`].
    pub fn update(
        &self,
        change: impl FnOnce(&mut LinkConditions),
    ) -> Result<(), LinkConditionError> {
        let _changing = self.changes.lock();
        let old = self.conditions();
        let mut new = old;
        change(&mut new);
        new.check()?;
        // Change the conditions before connections are reset: a connection accepted in between then
        // sees the refusal, or is reset itself.
        self.conditions.send_replace(new);
        for (lane, conditions) in [(&self.up, new.up), (&self.down, new.down)] {
            let (conditions, wait) = (effective(&new, conditions), new.retransmission());
            lane.access(|lane| lane.direction.set(conditions, wait, lane.now));
        }
        if new.refuse && !old.refuse {
            self.reset();
        }
        Ok(())
    }

    /// Resets all present connections.
    pub fn reset(&self) {
        self.resets.send_modify(|count| *count += 1);
    }

    /// The counts since the start: first from near to far, then from far to near.
    pub fn counts(&self) -> [LinkCounts; 2] {
        [&self.up, &self.down].map(|lane| lane.access(|lane| lane.direction.counts()))
    }

    fn lanes(&self, to: LinkEnd) -> RelayLanes {
        let (forth, back) = match to {
            LinkEnd::Far => (&self.up, &self.down),
            LinkEnd::Near => (&self.down, &self.up),
        };
        RelayLanes {
            forth: forth.clone(),
            back: back.clone(),
        }
    }
}

/// The conditions of a direction. On a link that refuses traffic all datagrams are lost, also those
/// on the way.
fn effective(link: &LinkConditions, direction: DirectionConditions) -> DirectionConditions {
    if link.refuse {
        DirectionConditions {
            passage: Passage::Unplugged,
            ..direction
        }
    } else {
        direction
    }
}
