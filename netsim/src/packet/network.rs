//! The I/O shell around the router: one namespace and one TUN device for each host, a task per
//! device that reads, and one task, the pump, that wakes when packets arrive later.
//!
//! Every access to the router also writes the packets that have arrived by then. A device accepts a
//! packet at once or drops it, so no queue lies between router and host: packets that wait are on a
//! link, whose queue is bounded, or in the sending kernel's queue before the device.

use super::{
    RouterCounts, device,
    error::PacketRefusal,
    namespace::NetNamespace,
    nat::{NatKind, NatTable},
    netlink::InterfaceSetup,
    port_forward,
    router::{PacketRouter, RouterHost, RouterOutput},
};
use crate::{LinkConditionError, LinkConditions, LinkCounts, link::LinkTimer};
use parking_lot::Mutex;
use rand::{SeedableRng, rngs::StdRng};
use std::{
    fs::File,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Instant,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    sync::Notify,
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Packet size of an Ethernet interface, in bytes.
pub const ETHERNET_MTU: u16 = 1_500;

/// Largest number of hosts: one process for each is more than a machine runs.
const MAX_HOSTS: usize = 1_000;

/// Packets that are read from a device before other tasks get the router.
const BATCH: usize = 64;

/// A host of a network.
#[derive(Clone, Copy, Debug)]
pub struct PacketHostPlan {
    /// Packet size of the host's interface.
    pub mtu: u16,
    pub nat: Option<NatKind>,
}

impl Default for PacketHostPlan {
    fn default() -> Self {
        Self {
            mtu: ETHERNET_MTU,
            nat: None,
        }
    }
}

/// A link between two hosts, by index.
#[derive(Clone, Copy, Debug)]
pub struct PacketLinkPlan {
    pub near: usize,
    pub far: usize,
    pub conditions: LinkConditions,
}

/// Reasons why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum PacketNetworkError {
    #[error(transparent)]
    Refused(#[from] PacketRefusal),
    #[error(transparent)]
    Conditions(#[from] LinkConditionError),
    #[error("{0} hosts are too many; use at most {MAX_HOSTS}")]
    Hosts(usize),
    #[error(
        "a link between the hosts {near} and {far} is impossible with {count} hosts; name two \
         different ones, counted from zero"
    )]
    Ends {
        near: usize,
        far: usize,
        count: usize,
    },
    #[error("the device of host {host} cannot be read: {error}")]
    Device { host: usize, error: io::Error },
    #[error("the hosts {near} and {far} have two links; leave one of them out")]
    Twice { near: usize, far: usize },
    #[error(
        "a detour from host {from} to {to} over {via} needs a link from {via} to each of them; add \
         them to the plan, or name another host"
    )]
    Detour { from: usize, to: usize, via: usize },
}

impl PacketNetworkError {
    /// The reason why this machine cannot have the network. A step that fails after rights and
    /// devices were granted is a fault, which stays an error.
    pub fn refusal(self) -> Result<PacketRefusal, Self> {
        match self {
            Self::Refused(reason) if !matches!(reason, PacketRefusal::Setup { .. }) => Ok(reason),
            error => Err(error),
        }
    }
}

/// A host: a namespace whose only way out is the router.
pub struct PacketHost {
    namespace: NetNamespace,
    /// Address at which other hosts reach this one.
    pub address: Ipv4Addr,
    /// Address of the host's interface. It differs from `address` behind a NAT.
    pub inside: Ipv4Addr,
}

struct RouterState {
    router: PacketRouter,
    /// The time at which the pump wakes next.
    armed: Option<Instant>,
    /// Packets that a device did not accept.
    refused: u64,
    /// First error of a device that can no longer be read, with its host.
    failed: Option<(usize, io::Error)>,
}

struct PacketShared {
    state: Mutex<RouterState>,
    /// Wakes the pump for an arrival that is earlier than the one it waits for.
    wake: Notify,
    devices: Vec<AsyncFd<File>>,
}

/// Hosts with links between them. They end when this value is dropped; a namespace stays as long as
/// a process in it.
pub struct PacketNetwork {
    seed: u64,
    pub hosts: Vec<Arc<PacketHost>>,
    links: Vec<PacketLinkPlan>,
    /// The conditions of all links, also the lock for changes.
    conditions: Mutex<Vec<LinkConditions>>,
    shared: Arc<PacketShared>,
    token: CancellationToken,
    _end: DropGuard,
}

impl PacketNetwork {
    /// Creates hosts and links. Print `seed` with a failure: it determines every fault.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime, which carries the traffic.
    pub fn new(
        seed: u64,
        hosts: &[PacketHostPlan],
        links: &[PacketLinkPlan],
    ) -> Result<Self, PacketNetworkError> {
        check(hosts, links)?;
        let mut dice = StdRng::seed_from_u64(seed);
        let (mut opened, mut devices, mut routed) = (Vec::new(), Vec::new(), Vec::new());
        for (index, plan) in hosts.iter().enumerate() {
            let address = outside(index);
            let inside = plan.nat.map_or(address, |_| PRIVATE);
            let host = PacketHost {
                namespace: NetNamespace::create()?,
                address,
                inside,
            };
            devices.push(host.open(plan.mtu)?);
            let nat = plan.nat.map(|kind| {
                let dice = StdRng::from_rng(&mut dice);
                NatTable::new(kind, inside, address, dice)
            });
            routed.push(RouterHost {
                inside,
                outside: address,
                nat,
            });
            opened.push(Arc::new(host));
        }
        let mut router = PacketRouter::new(ROUTER, routed, dice);
        let now = Instant::now();
        for link in links {
            router.connect(link.near, link.far, &link.conditions, now);
        }
        let shared = Arc::new(PacketShared::new(router, devices));
        let token = CancellationToken::new();
        shared.spawn(&token);
        Ok(Self {
            seed,
            hosts: opened,
            conditions: Mutex::new(links.iter().map(|link| link.conditions).collect()),
            links: links.to_vec(),
            shared,
            _end: token.clone().drop_guard(),
            token,
        })
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of links.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether there are no links.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Changes the conditions of a link by `change`, also for packets on their way.
    pub fn update(
        &self,
        link: usize,
        change: impl FnOnce(&mut LinkConditions),
    ) -> Result<(), LinkConditionError> {
        let mut conditions = self.conditions.lock();
        let mut new = conditions[link];
        change(&mut new);
        new.check()?;
        conditions[link] = new;
        let plan = self.links[link];
        self.shared
            .access(|router, now| router.set(plan.near, plan.far, &new, now));
        Ok(())
    }

    /// Sends packets from one host to another over the links of a third host, in this direction
    /// only; `None` for the direct link.
    pub fn detour(
        &self,
        from: usize,
        to: usize,
        via: Option<usize>,
    ) -> Result<(), PacketNetworkError> {
        check_detour(&self.links, from, to, via)?;
        self.shared.access(|router, _| router.detour(from, to, via));
        Ok(())
    }

    /// Opens a port on loopback that leads to a port at the loopback address of a host, past all
    /// links.
    pub async fn forward_port(&self, host: usize, port: u16) -> io::Result<SocketAddr> {
        port_forward::open(self.hosts[host].clone(), port, &self.token).await
    }

    /// The counts of a link: first from near to far, then from far to near.
    pub fn link_counts(&self, link: usize) -> [LinkCounts; 2] {
        let PacketLinkPlan { near, far, .. } = self.links[link];
        self.shared
            .access(|router, _| [router.link_counts(near, far), router.link_counts(far, near)])
    }

    /// Returns an error if the device of a host can no longer be read. It is returned once.
    pub fn check(&self) -> Result<(), PacketNetworkError> {
        let failed = self.shared.state.lock().failed.take();
        failed.map_or(Ok(()), |(host, error)| {
            Err(PacketNetworkError::Device { host, error })
        })
    }

    pub fn counts(&self) -> RouterCounts {
        let refused = self.shared.state.lock().refused;
        RouterCounts {
            refused_by_device: refused,
            ..self.shared.access(|router, _| router.counts())
        }
    }
}

/// Address of the router in its ICMP errors.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 22, 255, 254);
/// Address of a host behind a NAT. Each such host has a network of its own.
const PRIVATE: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 2);

/// Address of a host for the other hosts. Its last byte is between 1 and 250.
fn outside(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 22, (index / 250) as u8, (index % 250) as u8 + 1)
}

fn check(hosts: &[PacketHostPlan], links: &[PacketLinkPlan]) -> Result<(), PacketNetworkError> {
    let count = hosts.len();
    if count > MAX_HOSTS {
        return Err(PacketNetworkError::Hosts(count));
    }
    let mut ends = std::collections::BTreeSet::new();
    for PacketLinkPlan {
        near,
        far,
        conditions,
    } in links
    {
        conditions.check()?;
        let (near, far) = (*near, *far);
        let is_new = ends.insert((near.min(far), near.max(far)));
        if near == far || near.max(far) >= count {
            return Err(PacketNetworkError::Ends { near, far, count });
        }
        if !is_new {
            return Err(PacketNetworkError::Twice { near, far });
        }
    }
    Ok(())
}

/// Refuses a detour over a link that does not exist, on which all packets would be unroutable.
fn check_detour(
    links: &[PacketLinkPlan],
    from: usize,
    to: usize,
    via: Option<usize>,
) -> Result<(), PacketNetworkError> {
    let has_link = |one: usize, other: usize| {
        let mut ends = links.iter().map(|link| (link.near, link.far));
        ends.any(|ends| ends == (one, other) || ends == (other, one))
    };
    match via.filter(|via| !has_link(from, *via) || !has_link(*via, to)) {
        Some(via) => Err(PacketNetworkError::Detour { from, to, via }),
        None => Ok(()),
    }
}

impl PacketHost {
    #[expect(
        deprecated,
        reason = "the successor is unsafe code; a `File` keeps its descriptor, as it asks for"
    )]
    fn open(&self, mtu: u16) -> Result<AsyncFd<File>, PacketRefusal> {
        let address = self.inside;
        let opened = self.namespace.within(|| {
            let device = device::open()?;
            InterfaceSetup { address, mtu }.apply()?;
            Ok::<File, PacketRefusal>(device)
        });
        let device = opened.map_err(|error| PacketRefusal::Enter { error })??;
        let registered = AsyncFd::with_interest(device, Interest::READABLE);
        registered.map_err(|error| PacketRefusal::Poll { error })
    }

    /// Calls `act` on a thread in the host's namespace, and waits for it. Sockets and processes
    /// that it makes are in the namespace. `act` must not block for long.
    pub fn within<R: Send>(&self, act: impl FnOnce() -> R + Send) -> io::Result<R> {
        let runtime = tokio::runtime::Handle::try_current().ok();
        self.namespace.within(|| {
            let _entered = runtime.as_ref().map(tokio::runtime::Handle::enter);
            act()
        })
    }

    /// A listener on a port of the host; zero for a free one.
    pub fn listen(&self, port: u16) -> io::Result<TcpListener> {
        let bound = self.within(|| -> io::Result<TcpSocket> {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
            Ok(socket)
        });
        bound??.listen(1_024)
    }

    /// A connection from the host to an address.
    pub async fn dial(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.within(TcpSocket::new_v4)??.connect(to).await
    }

    /// A datagram socket on a port of the host; zero for a free one.
    pub fn udp(&self, port: u16) -> io::Result<UdpSocket> {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let bound = self.within(|| {
            let socket = std::net::UdpSocket::bind((any, port))?;
            socket.set_nonblocking(true)?;
            Ok::<_, io::Error>(socket)
        });
        UdpSocket::from_std(bound??)
    }
}

impl PacketShared {
    fn new(router: PacketRouter, devices: Vec<AsyncFd<File>>) -> Self {
        Self {
            state: Mutex::new(RouterState {
                router,
                armed: None,
                refused: 0,
                failed: None,
            }),
            wake: Notify::new(),
            devices,
        }
    }

    /// Starts the pump, and a task for each device.
    fn spawn(self: &Arc<Self>, token: &CancellationToken) {
        let shared = self.clone();
        let pump = async move { shared.pump().await };
        tokio::spawn(token.clone().run_until_cancelled_owned(pump));
        for host in 0..self.devices.len() {
            let shared = self.clone();
            let reading = async move { shared.read(host).await };
            tokio::spawn(token.clone().run_until_cancelled_owned(reading));
        }
    }

    /// Calls `act` on the router, and delivers the packets that have arrived.
    fn access<R>(&self, act: impl FnOnce(&mut PacketRouter, Instant) -> R) -> R {
        let mut state = self.state.lock();
        // Read the clock under the lock, so that time does not go backwards between accesses.
        let now = Instant::now();
        let result = act(&mut state.router, now);
        if self.settle(&mut state, now) {
            self.wake.notify_one();
        }
        result
    }

    /// Delivers the packets that have arrived. Returns whether the pump has to wake earlier than
    /// before.
    fn settle(&self, state: &mut RouterState, now: Instant) -> bool {
        while let Some(RouterOutput { to, bytes }) = state.router.poll(now) {
            let written = self.devices[to].get_ref().write(&bytes);
            state.refused += u64::from(written.is_err());
        }
        let due = state.router.due();
        let earlier = due.is_some_and(|due| state.armed.is_none_or(|armed| due < armed));
        if earlier {
            state.armed = due;
        }
        earlier
    }

    /// Delivers packets when they arrive.
    async fn pump(&self) {
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

    /// Reads the packets of one host. An error of the device ends the task: the network is then
    /// without the host, which [`PacketNetwork::check`] returns.
    async fn read(&self, host: usize) {
        let device = &self.devices[host];
        let mut buffer = vec![0; usize::from(u16::MAX)];
        loop {
            let mut ready = match device.readable().await {
                Ok(ready) => ready,
                Err(error) => return self.fail(host, error),
            };
            let stop = self.access(|router, now| {
                for _ in 0..BATCH {
                    match device.get_ref().read(&mut buffer) {
                        Ok(len) => router.receive(host, buffer[..len].to_vec(), now),
                        Err(error) => return Some(error),
                    }
                }
                None
            });
            match stop {
                None => tokio::task::yield_now().await,
                Some(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => ready.clear_ready(),
                    io::ErrorKind::Interrupted => {}
                    _ => return self.fail(host, error),
                },
            }
        }
    }

    fn fail(&self, host: usize, error: io::Error) {
        self.state.lock().failed.get_or_insert((host, error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(count: usize, links: &[PacketLinkPlan]) -> String {
        let hosts = vec![PacketHostPlan::default(); count];
        check(&hosts, links).unwrap_err().to_string()
    }

    /// A connection that its peer has reset stands for a device that has gone.
    #[tokio::test]
    #[expect(
        deprecated,
        reason = "the successor is unsafe code; a `File` keeps its descriptor, as it asks for"
    )]
    async fn a_device_that_cannot_be_read_is_reported() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let no_linger = Some(std::time::Duration::ZERO);
        socket2::SockRef::from(&peer).set_linger(no_linger).unwrap();
        drop(peer);
        stream.set_nonblocking(true).unwrap();
        let device = File::from(std::os::fd::OwnedFd::from(stream));
        let device = AsyncFd::with_interest(device, Interest::READABLE).unwrap();
        let router = PacketRouter::new(ROUTER, Vec::new(), StdRng::seed_from_u64(1));
        let shared = PacketShared::new(router, vec![device]);
        shared.read(0).await;
        let failed = shared.state.lock().failed.take();
        let (host, error) = failed.expect("the error is kept");
        assert_eq!((host, error.kind()), (0, io::ErrorKind::ConnectionReset));
    }

    fn link(near: usize, far: usize) -> PacketLinkPlan {
        PacketLinkPlan {
            near,
            far,
            conditions: LinkConditions::CLEAR,
        }
    }

    #[test]
    fn networks_that_cannot_exist_are_refused() {
        let hosts = [PacketHostPlan::default(); 3];
        assert!(check(&hosts, &[link(0, 1), link(2, 1)]).is_ok());
        assert_eq!(
            refused(1_001, &[]),
            "1001 hosts are too many; use at most 1000"
        );
        let ends = refused(2, &[link(0, 2)]);
        let expected = "a link between the hosts 0 and 2 is impossible with 2 hosts; name two \
                        different ones, counted from zero";
        assert_eq!(ends, expected);
        assert!(refused(2, &[link(1, 1)]).contains("1 and 1"));
        let twice = refused(2, &[link(0, 1), link(1, 0)]);
        let expected = "the hosts 1 and 0 have two links; leave one of them out";
        assert_eq!(twice, expected);
        let mut bad = link(0, 1);
        bad.conditions.up.corrupt = 2.0;
        assert!(refused(2, &[bad]).starts_with("corrupt of 2"));
    }

    #[test]
    fn a_failed_setup_is_no_refusal() {
        let error = || io::ErrorKind::PermissionDenied.into();
        let user = PacketRefusal::User { error: error() };
        let refusal = PacketNetworkError::from(user).refusal();
        assert!(matches!(refusal, Ok(PacketRefusal::User { .. })));
        let step = "a route";
        let setup = PacketRefusal::Setup {
            step,
            error: error(),
        };
        let error = PacketNetworkError::from(setup).refusal().unwrap_err();
        assert!(error.to_string().starts_with("a route was refused"));
        assert!(PacketNetworkError::Hosts(9).refusal().is_err());
    }

    #[test]
    fn a_detour_without_its_links_is_refused() {
        let links = [link(0, 1), link(2, 0), link(1, 2), link(3, 0)];
        let detour = |to, via| check_detour(&links, 0, to, via);
        assert!(detour(1, Some(2)).is_ok() && detour(1, None).is_ok());
        assert_eq!(
            detour(1, Some(3)).unwrap_err().to_string(),
            "a detour from host 0 to 1 over 3 needs a link from 3 to each of them; add them to the \
             plan, or name another host"
        );
        assert!(detour(1, Some(9)).is_err() && detour(1, Some(0)).is_err());
    }

    #[test]
    fn every_host_has_an_address_of_its_own() {
        let all: std::collections::BTreeSet<Ipv4Addr> = (0..MAX_HOSTS).map(outside).collect();
        assert_eq!(all.len(), MAX_HOSTS);
        assert!(!all.contains(&ROUTER));
        assert_eq!(outside(250), Ipv4Addr::new(10, 22, 1, 1));
    }
}
