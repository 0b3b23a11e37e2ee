//! The discovery task: walks, queries to bootnodes, our own record, and the store. `record.rs`
//! decides which records are used, `boot.rs` when a bootnode is queried, and the swarm which
//! contacts are dialled.

use super::{
    Advertise, Contact, Discovery, DiscoveryReport, bind,
    boot::BootSchedule,
    bootnode::{Bootnode, Enode, EnodeHost},
    record::{self, Unfit},
};
use crate::{
    address::{Scope, ip_of},
    clock::unix_now,
    peers::gate::{GateRefusal, SharedGateRules},
    peers::store::{NodeRecord, StoreRecord},
};
use ::enr::{CombinedKey, NodeId};
use discv5::{ConfigBuilder, Discv5, Enr, Event, ListenConfig};
use futures::future::join_all;
use libp2p::{Multiaddr, multiaddr::Protocol};
use lru::LruCache;
use rand::seq::{IndexedRandom, SliceRandom};
use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    num::NonZeroUsize,
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

/// Interval of walks while too few peers are connected, and while enough are (op-node has the same
/// two intervals).
const HURRY: Duration = Duration::from_secs(5);
const CALM: Duration = Duration::from_secs(20);
/// Number of nodes of our chain that one walk looks for.
const PER_WALK: usize = 16;
/// Number of nodes queried at a time under `--p2p.netrestrict`, and the distances for which records
/// are requested from them. Half of all nodes are at distance 256, a quarter at 255, and so on.
const QUERIED: usize = 3;
const DISTANCES: RangeInclusive<u64> = 249..=256;
/// Intervals of the tick, of writes to the store, and of look-ups of our advertised host name.
const TICK: Duration = Duration::from_secs(1);
const SAVE: Duration = Duration::from_secs(30);
const LOOK_UP: Duration = Duration::from_secs(300);
/// Interval of look-ups of our host name while our record has no address.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(15);
/// Largest number of records of our chain that are kept, and the age in seconds above which a
/// stored record is not restored.
const RECORDS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
const KEEP: u64 = 7 * 24 * 3600;

impl Discovery {
    /// Runs until `token` is cancelled. If the socket cannot be bound or our record cannot be made,
    /// the task logs the error and ends.
    pub async fn run(mut self, token: CancellationToken) {
        let started = tokio::select! {
            () = token.cancelled() => return,
            started = self.start() => started,
        };
        match started {
            Ok(task) => task.run(self, token).await,
            Err(error) => tracing::error!(
                error,
                "no discovery: peers are found through --p2p.static only"
            ),
        }
    }

    async fn start(&mut self) -> Result<DiscoveryTask, String> {
        let tcp = self.tcp_port().await.ok_or("the swarm does not listen")?;
        let socket = match self.socket.take() {
            Some(socket) => socket,
            // The TCP port may be any free port, so the same UDP port may be in use: then take any.
            None => bind(SocketAddr::new(self.address.ip(), tcp))
                .or_else(|_| bind(SocketAddr::new(self.address.ip(), 0)))
                .map_err(|error| format!("cannot listen on UDP: {error}"))?,
        };
        let socket = tokio::net::UdpSocket::from_std(socket).map_err(|error| error.to_string())?;
        let udp = socket
            .local_addr()
            .map_err(|error| error.to_string())?
            .port();
        let or = |given: u16, port: u16| if given == 0 { port } else { given };
        let ports = Advertise {
            tcp: or(self.config.advertise_tcp, tcp),
            udp: or(self.config.advertise_udp, udp),
        };
        let ip = self.own_address().await;
        // A sequence number from the clock makes this record newer than those of earlier runs.
        let seq = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |time| time.as_millis() as u64);
        let record = record::ours(&self.key, self.chain_id, seq, ip, ports)
            .ok_or("our record cannot be signed")?;
        tracing::info!(record = %record.to_base64(), ip = ip.map(tracing::field::display), udp, "discovery");

        let (discv5, events) = self.start_discv5(record, socket).await?;
        self.udp.send_replace(udp);
        Ok(DiscoveryTask {
            discv5: Arc::new(discv5),
            events,
            ports,
            udp,
            boot: BootSchedule::new(self.config.bootnodes.len(), Instant::now()),
            queries: JoinSet::new(),
            walk: JoinSet::new(),
            looking_up: JoinSet::new(),
            next_walk: Instant::now(),
            next_save: Instant::now() + SAVE,
            next_look_up: Instant::now() + LOOK_UP_AGAIN,
            nodes: LruCache::new(RECORDS),
            refused: BTreeMap::new(),
        })
    }

    /// Starts discv5 on a bound socket with our initial record.
    async fn start_discv5(
        &self,
        record: Enr,
        socket: tokio::net::UdpSocket,
    ) -> Result<(Discv5, mpsc::Receiver<Event>), String> {
        let v4 = self.address.is_ipv4();
        let socket = Arc::new(socket);
        let (ipv4, ipv6) = if v4 {
            (Some(socket), None)
        } else {
            (None, Some(socket))
        };
        let mut config = ConfigBuilder::new(ListenConfig::FromSockets { ipv4, ipv6 });
        if self.config.advertise_ip.is_some() {
            config.disable_enr_update();
        }
        let mut bytes = self.key.encode();
        let key =
            CombinedKey::secp256k1_from_bytes(&mut bytes).map_err(|error| error.to_string())?;
        let mut discv5 = Discv5::new(record, key, config.build())?;
        discv5.start().await.map_err(|error| format!("{error:?}"))?;
        let events = discv5
            .event_stream()
            .await
            .map_err(|error| format!("{error:?}"))?;
        Ok((discv5, events))
    }

    /// Waits for the TCP port that the swarm listens on.
    async fn tcp_port(&mut self) -> Option<u16> {
        let port = |all: &[Multiaddr]| {
            all.iter()
                .flat_map(Multiaddr::iter)
                .find_map(|part| match part {
                    Protocol::Tcp(port) => Some(port),
                    _ => None,
                })
        };
        let addresses = self
            .listen_addrs
            .wait_for(|all| port(all).is_some())
            .await
            .ok()?;
        port(&addresses)
    }

    /// The first address of our record: the configured address, the address listened on, or the
    /// local address of the route to a bootnode if its scope is as large as the bootnode's.
    /// Otherwise `None`, until peers report the address that they see.
    async fn own_address(&self) -> Option<IpAddr> {
        if let Some(name) = &self.config.advertise_ip {
            return look_up(name.clone(), self.address.is_ipv4()).await;
        }
        if !self.address.ip().is_unspecified() {
            return Some(self.address.ip());
        }
        let remotes = self.config.bootnodes.iter().filter_map(|node| match node {
            Bootnode::Enr(record) => udp_socket(record),
            Bootnode::Enode(enode) => enode.contact().map(|(socket, _)| socket),
        });
        remotes
            .filter(|remote| remote.is_ipv4() == self.address.is_ipv4())
            .find_map(|remote| {
                let local = local_address_towards(remote).ok()?;
                (Scope::of(local) >= Scope::of(remote.ip())).then_some(local)
            })
    }
}

/// The local address of the route to `remote`. No packet is sent.
fn local_address_towards(remote: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if remote.is_ipv4() {
        [0, 0, 0, 0].into()
    } else {
        [0u16; 8].into()
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

fn udp_socket(record: &Enr) -> Option<SocketAddr> {
    let v4 = record.udp4_socket().map(SocketAddr::V4);
    v4.or_else(|| record.udp6_socket().map(SocketAddr::V6))
}

/// Looks up a host name. Returns an address of the family that we listen on.
async fn look_up(name: String, v4: bool) -> Option<IpAddr> {
    let host: EnodeHost = name.parse().ok()?;
    match host.addresses().await {
        Ok(found) => found.into_iter().find(|ip| ip.is_ipv4() == v4),
        Err(error) => {
            tracing::warn!(name, %error, "--p2p.advertise.ip cannot be looked up, trying again later");
            None
        }
    }
}

/// The running discovery.
struct DiscoveryTask {
    discv5: Arc<Discv5>,
    events: mpsc::Receiver<Event>,
    ports: Advertise,
    udp: u16,
    boot: BootSchedule,
    /// Queries to bootnodes in flight, each with the index of its bootnode.
    queries: JoinSet<(usize, Result<Enr, String>)>,
    walk: JoinSet<Vec<Enr>>,
    looking_up: JoinSet<Option<IpAddr>>,
    next_walk: Instant,
    next_save: Instant,
    next_look_up: Instant,
    /// Nodes of our chain, each with the Unix time at which it was last found.
    nodes: LruCache<NodeId, (Enr, u64)>,
    refused: BTreeMap<&'static str, u64>,
}

impl DiscoveryTask {
    async fn run(mut self, mut to: Discovery, token: CancellationToken) {
        self.restore(&mut to);
        for node in &to.config.bootnodes {
            if let Bootnode::Enr(record) = node {
                self.add(&to.rules, record);
            }
        }
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut writing = JoinSet::new();
        loop {
            tokio::select! {
                () = token.cancelled() => break,
                Some(event) = self.events.recv() => self.on_event(event, &mut to),
                Some(Ok(found)) = self.walk.join_next() => self.on_walked(&found, &mut to),
                Some(Ok((index, response))) = self.queries.join_next() => self.on_response(index, response, &mut to),
                Some(Ok(Some(ip))) = self.looking_up.join_next() => self.move_to(ip),
                Some(done) = to.report_requests.recv() => drop(done.send(self.report())),
                Ok(()) = to.mapped.changed() => self.on_mapped(&mut to),
                Some(_) = writing.join_next() => {}
                _ = tick.tick() => self.tick(&mut to),
            }
            if writing.is_empty() && Instant::now() >= self.next_save {
                self.next_save = Instant::now() + SAVE;
                if let Some(write) = to
                    .store
                    .has_changes()
                    .then(|| to.store.take_changes())
                    .flatten()
                {
                    writing.spawn_blocking(write);
                }
            }
        }
        // discv5 ends its tasks when its last owner is dropped, so end our queries first.
        self.queries.shutdown().await;
        drop(self);
        while writing.join_next().await.is_some() {}
        if let Some(write) = to.store.take_changes() {
            let _ = tokio::task::spawn_blocking(write).await;
        }
    }

    /// Restores the records that earlier runs have stored, the newest first.
    fn restore(&mut self, to: &mut Discovery) {
        let mut rows: Vec<(String, NodeRecord)> = Vec::new();
        for row in std::mem::take(&mut to.stored) {
            if let StoreRecord::Node(id, Some(node)) = row {
                rows.push((id, node));
            }
        }
        rows.sort_by_key(|(_, node)| std::cmp::Reverse(node.seen));
        let now = unix_now();
        for (index, (id, node)) in rows.into_iter().enumerate() {
            match node.enr.parse::<Enr>() {
                Ok(record) if index < RECORDS.get() && node.seen.saturating_add(KEEP) > now => {
                    if self.check(&record, to).is_ok() {
                        // Keep the stored time, since the node has not been found in this run.
                        self.nodes
                            .put(record.node_id(), (record.clone(), node.seen));
                        self.add(&to.rules, &record);
                        self.hand_over(&record, to);
                    }
                }
                _ => to.store.note(&StoreRecord::Node(id, None)),
            }
        }
    }

    fn tick(&mut self, to: &mut Discovery) {
        let now = Instant::now();
        let alone = self.discv5.connected_peers() == 0;
        for index in self.boot.due(alone, now) {
            self.query_bootnode(index, to);
        }
        if self.walk.is_empty() && self.next_walk <= now {
            let short = to.peers.borrow().len() < to.min_peers;
            self.next_walk = now + if short { HURRY } else { CALM };
            if to.rules.lock().restrict.is_empty() {
                let chain_id = to.chain_id;
                let ours = Box::new(move |record: &Enr| record::on_chain(record, chain_id).is_ok());
                let walk = self
                    .discv5
                    .find_node_predicate(NodeId::random(), ours, PER_WALK);
                // A walk with an empty table returns an error: treat it as a walk that finds no
                // node.
                self.walk
                    .spawn(async move { walk.await.unwrap_or_default() });
            } else {
                self.walk_restricted();
            }
        }
        if let Some(name) = &to.config.advertise_ip
            && self.looking_up.is_empty()
            && self.next_look_up <= now
        {
            let own = self.discv5.local_enr();
            let has_address = own.ip4().is_some() || own.ip6().is_some();
            self.next_look_up = now + if has_address { LOOK_UP } else { LOOK_UP_AGAIN };
            self.looking_up
                .spawn(look_up(name.clone(), to.address.is_ipv4()));
        }
        metrics::gauge!("starling_p2p_discovery_table")
            .set(self.discv5.table_entries_id().len() as f64);
        metrics::gauge!("starling_p2p_discovery_alive").set(self.discv5.connected_peers() as f64);
        metrics::gauge!("starling_p2p_discovery_known").set(self.nodes.len() as f64);
    }

    /// Walks under `--p2p.netrestrict`. The walks of discv5 query every node that they learn of,
    /// even outside the restriction. So this walk queries only nodes of the table, from which nodes
    /// outside are removed.
    fn walk_restricted(&mut self) {
        let mut distances: Vec<u64> = DISTANCES.collect();
        distances.shuffle(&mut rand::rng());
        let table = self.discv5.table_entries_enr();
        let queried = table.choose_multiple(&mut rand::rng(), QUERIED).cloned();
        let responses: Vec<_> = queried
            .map(|node| {
                self.discv5
                    .find_node_designated_peer(node, distances.clone())
            })
            .collect();
        self.walk.spawn(async move {
            join_all(responses)
                .await
                .into_iter()
                .flatten()
                .flatten()
                .collect()
        });
    }

    fn on_walked(&mut self, found: &[Enr], to: &mut Discovery) {
        for record in found {
            self.on_record(record, to);
            if !to.rules.lock().restrict.is_empty() {
                self.add(&to.rules, record);
            }
        }
    }

    /// Requests the record of a bootnode, at the current address of its host.
    fn query_bootnode(&mut self, index: usize, to: &Discovery) {
        let Some(node) = to.config.bootnodes.get(index) else {
            return;
        };
        let rules = to.rules.clone();
        match node {
            Bootnode::Enr(record) => {
                let refusal =
                    udp_socket(record).and_then(|socket| rules.lock().address(socket.ip()).err());
                let response = self
                    .discv5
                    .find_node_designated_peer((**record).clone(), vec![0]);
                let known = (**record).clone();
                self.queries.spawn(async move {
                    if let Some(refusal) = refusal {
                        return (index, Err(refusal.to_string()));
                    }
                    let newer = response.await.map_err(|error| error.to_string());
                    (
                        index,
                        newer.map(|records| {
                            records.into_iter().max_by_key(Enr::seq).unwrap_or(known)
                        }),
                    )
                });
            }
            Bootnode::Enode(enode) => {
                let (discv5, enode, v4) =
                    (self.discv5.clone(), enode.clone(), to.address.is_ipv4());
                self.queries
                    .spawn(async move { (index, record_of(&discv5, enode, v4, &rules).await) });
            }
        }
    }

    fn on_response(&mut self, index: usize, response: Result<Enr, String>, to: &mut Discovery) {
        let first = self
            .boot
            .on_outcome(index, response.is_ok(), Instant::now());
        let Some(node) = to.config.bootnodes.get(index) else {
            return;
        };
        match response {
            Ok(record) => {
                tracing::debug!(%node, "bootnode answers");
                self.add(&to.rules, &record);
                self.on_record(&record, to);
                // Walk at once: the bootnode may know nodes of our chain.
                self.next_walk = Instant::now();
            }
            Err(error) if first => {
                tracing::warn!(%node, error, "bootnode does not answer, asking again later")
            }
            Err(error) => tracing::debug!(%node, error, "bootnode does not answer"),
        }
    }

    fn on_event(&mut self, event: Event, to: &mut Discovery) {
        match event {
            Event::SessionEstablished(record, socket) => {
                self.remove_restricted(&record, socket.ip(), to);
                self.on_record(&record, to);
            }
            Event::Discovered(record) => self.on_record(&record, to),
            Event::NodeInserted { node_id, .. } => {
                if let Some(record) = self.discv5.find_enr(&node_id)
                    && let Some(socket) = udp_socket(&record)
                {
                    self.remove_restricted(&record, socket.ip(), to);
                }
            }
            Event::SocketUpdated(socket) => {
                tracing::info!(%socket, record = %self.discv5.local_enr().to_base64(), "peers see this node at a new address");
            }
            _ => {}
        }
    }

    /// Removes a node outside `--p2p.netrestrict` from the table, so that no walk starts at it.
    fn remove_restricted(&mut self, record: &Enr, ip: IpAddr, to: &Discovery) {
        if to.rules.lock().address(ip) == Err(GateRefusal::Restricted) {
            self.discv5.remove_node(&record.node_id());
        }
    }

    /// Handles a record that was found: if its node is on our chain, the swarm gets it as a
    /// contact.
    fn on_record(&mut self, record: &Enr, to: &mut Discovery) {
        if let Err(unfit) = self.check(record, to) {
            *self.refused.entry(unfit.label()).or_default() += 1;
            metrics::counter!("starling_p2p_refused_records_total", "reason" => unfit.label())
                .increment(1);
            tracing::debug!(node = %record.node_id(), reason = unfit.label(), "record not used: {unfit}");
            return;
        }
        let (id, seen) = (record.node_id(), unix_now());
        let newest = self
            .nodes
            .get(&id)
            .filter(|(known, _)| known.seq() > record.seq())
            .map(|(known, _)| known.clone());
        let record = newest.unwrap_or_else(|| record.clone());
        to.store.note(&StoreRecord::Node(
            hex::encode(id.raw()),
            Some(NodeRecord {
                enr: record.to_base64(),
                seen,
            }),
        ));
        self.hand_over(&record, to);
        if let Some((gone, _)) = self
            .nodes
            .push(id, (record, seen))
            .filter(|(gone, _)| *gone != id)
        {
            to.store
                .note(&StoreRecord::Node(hex::encode(gone.raw()), None));
        }
    }

    fn check(&self, record: &Enr, to: &Discovery) -> Result<Contact, Unfit> {
        let contact = Contact::of(record, to.chain_id, self.nearest())?;
        if contact.peer() == to.local {
            return Err(Unfit::Ourselves);
        }
        let rules = to.rules.lock();
        let outside = |address: &Multiaddr| {
            ip_of(address).is_none_or(|ip| rules.address(ip) == Err(GateRefusal::Restricted))
        };
        if contact.addresses().iter().all(outside) {
            Err(Unfit::Restricted)
        } else {
            Ok(contact)
        }
    }

    /// The smallest scope of addresses to dial. Loopback addresses are dialled only while the
    /// address in our own record is loopback, too.
    fn nearest(&self) -> Scope {
        let own = self.discv5.local_enr();
        let ip = own.ip4().map(IpAddr::from).or(own.ip6().map(IpAddr::from));
        if ip.map(Scope::of) == Some(Scope::Machine) {
            Scope::Machine
        } else {
            Scope::Site
        }
    }

    fn hand_over(&self, record: &Enr, to: &Discovery) {
        if let Ok(contact) = Contact::of(record, to.chain_id, self.nearest()) {
            // If the channel is full, drop the contact: a later walk finds it again.
            let _ = to.found.try_send(contact);
        }
    }

    /// Adds a node to the table, from which walks start.
    fn add(&self, rules: &SharedGateRules, record: &Enr) {
        let Some(socket) = udp_socket(record) else {
            return;
        };
        if rules.lock().address(socket.ip()) == Err(GateRefusal::Restricted) {
            tracing::debug!(node = %record.node_id(), "not asked: {}", GateRefusal::Restricted);
        } else if let Err(reason) = self.discv5.add_enr(record.clone()) {
            tracing::debug!(node = %record.node_id(), reason, "not added to the table of discovery");
        }
    }

    /// Changes the address in our record to `ip`.
    fn move_to(&mut self, ip: IpAddr) {
        if Scope::of(ip) == Scope::None {
            return;
        }
        let udp = self
            .discv5
            .update_local_enr_socket(SocketAddr::new(ip, self.ports.udp), false);
        let tcp = self
            .discv5
            .update_local_enr_socket(SocketAddr::new(ip, self.ports.tcp), true);
        if udp || tcp {
            tracing::info!(%ip, record = %self.discv5.local_enr().to_base64(), "our record has a new address");
        }
    }

    /// Handles ports that the router has mapped for us. Configured addresses and ports take
    /// precedence.
    fn on_mapped(&mut self, to: &mut Discovery) {
        let mapped = *to.mapped.borrow_and_update();
        let or = |given: u16, mapped: Option<u16>, now: u16| {
            if given == 0 {
                mapped.unwrap_or(now)
            } else {
                given
            }
        };
        self.ports.tcp = or(to.config.advertise_tcp, mapped.tcp, self.ports.tcp);
        self.ports.udp = or(to.config.advertise_udp, mapped.udp, self.ports.udp);
        let own = self.discv5.local_enr();
        let ip = match &to.config.advertise_ip {
            Some(_) => None,
            None => mapped.ip.filter(|ip| {
                ip.is_ipv4() == to.address.is_ipv4() && Scope::of(*ip) == Scope::World
            }),
        };
        if let Some(ip) = ip
            .or(own.ip4().map(IpAddr::from))
            .or(own.ip6().map(IpAddr::from))
        {
            self.move_to(ip);
        }
    }

    fn report(&self) -> DiscoveryReport {
        DiscoveryReport {
            enr: self.discv5.local_enr().to_base64(),
            udp: self.udp,
            table: self
                .discv5
                .table_entries_enr()
                .iter()
                .map(Enr::to_base64)
                .collect(),
            alive: self.discv5.connected_peers(),
            known: self.nodes.len(),
            refused: self.refused.clone(),
        }
    }
}

/// Requests the record of a node of which only the key and the address are known (as op-node does).
async fn record_of(
    discv5: &Discv5,
    enode: Enode,
    v4: bool,
    rules: &SharedGateRules,
) -> Result<Enr, String> {
    let addresses = enode
        .host
        .addresses()
        .await
        .map_err(|error| error.to_string())?;
    let ip = addresses
        .into_iter()
        .find(|ip| ip.is_ipv4() == v4)
        .ok_or("it has no address of the kind we listen on")?;
    rules
        .lock()
        .address(ip)
        .map_err(|refusal| refusal.to_string())?;
    let (_, address) = enode.at(ip).contact().ok_or("it has no address")?;
    discv5
        .request_enr(address)
        .await
        .map_err(|error| error.to_string())
}
