//! The task: walks, questions to bootnodes, our record, the store. Decisions live in `record.rs`, `boot.rs` and the swarm.

use super::{
    Advertise, Discovery, DiscoveryReport, bind,
    boot::Boot,
    bootnode::{Bootnode, Enode, Host},
    record::{self, Contact, Scope, Unfit},
};
use crate::{
    check::unix_now,
    gate::{Refusal, SharedRules, ip_of},
    peerstore::{NodeRecord, Record},
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

/// Between two walks while peers are missing, and while they are not (op-node's two speeds).
const HURRY: Duration = Duration::from_secs(5);
const CALM: Duration = Duration::from_secs(20);
/// Nodes of our chain that one walk looks for.
const PER_WALK: usize = 16;
/// Nodes asked at a time where only some networks may be, and how far what they know of is from them: of all nodes half are at 256,
/// half of the others at 255, and so on.
const ASKED: usize = 3;
const DISTANCES: RangeInclusive<u64> = 249..=256;
/// How often what is due is looked at, records are written, and our host name is looked up.
const TICK: Duration = Duration::from_secs(1);
const SAVE: Duration = Duration::from_secs(30);
const LOOK_UP: Duration = Duration::from_secs(300);
/// The same, while our record has no address.
const LOOK_UP_AGAIN: Duration = Duration::from_secs(15);
/// Records of our chain that are kept, and for how many seconds after a node was last heard of.
const RECORDS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
const KEEP: u64 = 7 * 24 * 3600;

impl Discovery {
    /// Runs until the token is cancelled. Without a socket or a record of ours nothing is discovered, and the log says why.
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

    async fn start(&mut self) -> Result<Task, String> {
        let tcp = self.tcp_port().await.ok_or("the swarm does not listen")?;
        let socket = match self.socket.take() {
            Some(socket) => socket,
            // The port of TCP was any free one. That of UDP may be taken.
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
        // Newer than any record of an earlier run.
        let seq = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |time| time.as_millis() as u64);
        let record = record::ours(&self.key, self.chain_id, seq, ip, ports)
            .ok_or("our record cannot be signed")?;
        tracing::info!(record = %record.to_base64(), ip = ip.map(tracing::field::display), udp, "discovery");

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
        self.udp.send_replace(udp);
        Ok(Task {
            discv5: Arc::new(discv5),
            events,
            ports,
            udp,
            boot: Boot::new(self.config.bootnodes.len(), Instant::now()),
            asking: JoinSet::new(),
            walk: JoinSet::new(),
            looking_up: JoinSet::new(),
            next_walk: Instant::now(),
            next_save: Instant::now() + SAVE,
            next_look_up: Instant::now() + LOOK_UP_AGAIN,
            nodes: LruCache::new(RECORDS),
            refused: BTreeMap::new(),
        })
    }

    /// The port the swarm listens on, once it does.
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

    /// The address to begin with: the one named, or the one listened on, or the one this machine has towards the bootnodes if it
    /// reaches as far as theirs do. Otherwise none, until others tell us theirs.
    async fn own_address(&self) -> Option<IpAddr> {
        if let Some(name) = &self.config.advertise_ip {
            return look_up(name.clone(), self.address.is_ipv4()).await;
        }
        if !self.address.ip().is_unspecified() {
            return Some(self.address.ip());
        }
        let there = self.config.bootnodes.iter().filter_map(|node| match node {
            Bootnode::Enr(record) => udp_socket(record),
            Bootnode::Enode(enode) => enode.contact().map(|(socket, _)| socket),
        });
        there
            .filter(|there| there.is_ipv4() == self.address.is_ipv4())
            .find_map(|there| {
                let here = towards(there).ok()?;
                (Scope::of(here) >= Scope::of(there.ip())).then_some(here)
            })
    }
}

/// The address that packets to `there` leave from. Sends nothing.
fn towards(there: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if there.is_ipv4() {
        [0, 0, 0, 0].into()
    } else {
        [0u16; 8].into()
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(there)?;
    Ok(socket.local_addr()?.ip())
}

fn udp_socket(record: &Enr) -> Option<SocketAddr> {
    let v4 = record.udp4_socket().map(SocketAddr::V4);
    v4.or_else(|| record.udp6_socket().map(SocketAddr::V6))
}

/// An address of the host, of the family we listen on.
async fn look_up(name: String, v4: bool) -> Option<IpAddr> {
    let host: Host = name.parse().ok()?;
    match host.addresses().await {
        Ok(found) => found.into_iter().find(|ip| ip.is_ipv4() == v4),
        Err(error) => {
            tracing::warn!(name, %error, "--p2p.advertise.ip cannot be looked up, trying again later");
            None
        }
    }
}

/// Discovery that runs.
struct Task {
    discv5: Arc<Discv5>,
    events: mpsc::Receiver<Event>,
    ports: Advertise,
    udp: u16,
    boot: Boot,
    /// Questions to bootnodes, by their place.
    asking: JoinSet<(usize, Result<Enr, String>)>,
    walk: JoinSet<Vec<Enr>>,
    looking_up: JoinSet<Option<IpAddr>>,
    next_walk: Instant,
    next_save: Instant,
    next_look_up: Instant,
    /// Of our chain, with the time they were last heard of.
    nodes: LruCache<NodeId, (Enr, u64)>,
    refused: BTreeMap<&'static str, u64>,
}

impl Task {
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
                Some(Ok((place, answer))) = self.asking.join_next() => self.on_answer(place, answer, &mut to),
                Some(Ok(Some(ip))) = self.looking_up.join_next() => self.move_to(ip),
                Some(question) = to.questions.recv() => drop(question.send(self.report())),
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
        // With the last of its owners the library's tasks end.
        self.asking.shutdown().await;
        drop(self);
        while writing.join_next().await.is_some() {}
        if let Some(write) = to.store.take_changes() {
            let _ = tokio::task::spawn_blocking(write).await;
        }
    }

    /// What an earlier run found, newest first.
    fn restore(&mut self, to: &mut Discovery) {
        let mut rows: Vec<(String, NodeRecord)> = Vec::new();
        for row in std::mem::take(&mut to.stored) {
            if let Record::Node(id, Some(node)) = row {
                rows.push((id, node));
            }
        }
        rows.sort_by_key(|(_, node)| std::cmp::Reverse(node.seen));
        let now = unix_now();
        for (place, (id, node)) in rows.into_iter().enumerate() {
            match node.enr.parse::<Enr>() {
                Ok(record) if place < RECORDS.get() && node.seen.saturating_add(KEEP) > now => {
                    if self.judge(&record, to).is_ok() {
                        // Heard of then, not now.
                        self.nodes
                            .put(record.node_id(), (record.clone(), node.seen));
                        self.add(&to.rules, &record);
                        self.hand_over(&record, to);
                    }
                }
                _ => to.store.note(&Record::Node(id, None)),
            }
        }
    }

    fn tick(&mut self, to: &mut Discovery) {
        let now = Instant::now();
        let lonely = self.discv5.connected_peers() == 0;
        for place in self.boot.due(lonely, now) {
            self.ask(place, to);
        }
        if self.walk.is_empty() && self.next_walk <= now {
            let short = to.peers.borrow().len() < to.lo;
            self.next_walk = now + if short { HURRY } else { CALM };
            if to.rules.lock().restrict.is_empty() {
                let chain_id = to.chain_id;
                let ours = Box::new(move |record: &Enr| record::on_chain(record, chain_id).is_ok());
                let walk = self
                    .discv5
                    .find_node_predicate(NodeId::random(), ours, PER_WALK);
                // A walk without anybody to ask is an error, and finds nobody.
                self.walk
                    .spawn(async move { walk.await.unwrap_or_default() });
            } else {
                self.walk_inside();
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

    /// The library's own walks ask whomever they hear of, in whatever network. Where that is restricted only nodes of the table are asked,
    /// none of which is outside.
    fn walk_inside(&mut self) {
        let mut distances: Vec<u64> = DISTANCES.collect();
        distances.shuffle(&mut rand::rng());
        let table = self.discv5.table_entries_enr();
        let asked = table.choose_multiple(&mut rand::rng(), ASKED).cloned();
        let answers: Vec<_> = asked
            .map(|node| {
                self.discv5
                    .find_node_designated_peer(node, distances.clone())
            })
            .collect();
        self.walk.spawn(async move {
            join_all(answers)
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

    /// Asks a bootnode for its record, wherever its name leads now.
    fn ask(&mut self, place: usize, to: &Discovery) {
        let Some(node) = to.config.bootnodes.get(place) else {
            return;
        };
        let rules = to.rules.clone();
        match node {
            Bootnode::Enr(record) => {
                let refusal =
                    udp_socket(record).and_then(|socket| rules.lock().address(socket.ip()).err());
                let answer = self
                    .discv5
                    .find_node_designated_peer((**record).clone(), vec![0]);
                let known = (**record).clone();
                self.asking.spawn(async move {
                    if let Some(refusal) = refusal {
                        return (place, Err(refusal.to_string()));
                    }
                    let newer = answer.await.map_err(|error| error.to_string());
                    (
                        place,
                        newer.map(|records| {
                            records.into_iter().max_by_key(Enr::seq).unwrap_or(known)
                        }),
                    )
                });
            }
            Bootnode::Enode(enode) => {
                let (discv5, enode, v4) =
                    (self.discv5.clone(), enode.clone(), to.address.is_ipv4());
                self.asking
                    .spawn(async move { (place, record_of(&discv5, enode, v4, &rules).await) });
            }
        }
    }

    fn on_answer(&mut self, place: usize, answer: Result<Enr, String>, to: &mut Discovery) {
        let first = self.boot.on_outcome(place, answer.is_ok(), Instant::now());
        let Some(node) = to.config.bootnodes.get(place) else {
            return;
        };
        match answer {
            Ok(record) => {
                tracing::debug!(%node, "bootnode answers");
                self.add(&to.rules, &record);
                self.on_record(&record, to);
                // It may know somebody at once.
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
                self.keep_inside(&record, socket.ip(), to);
                self.on_record(&record, to);
            }
            Event::Discovered(record) => self.on_record(&record, to),
            Event::NodeInserted { node_id, .. } => {
                if let Some(record) = self.discv5.find_enr(&node_id)
                    && let Some(socket) = udp_socket(&record)
                {
                    self.keep_inside(&record, socket.ip(), to);
                }
            }
            Event::SocketUpdated(socket) => {
                tracing::info!(%socket, record = %self.discv5.local_enr().to_base64(), "peers see this node at a new address");
            }
            _ => {}
        }
    }

    /// Nodes that --p2p.netrestrict keeps out do not stay in the table, so walks do not begin with them.
    fn keep_inside(&mut self, record: &Enr, ip: IpAddr, to: &Discovery) {
        if to.rules.lock().address(ip) == Err(Refusal::Restricted) {
            self.discv5.remove_node(&record.node_id());
        }
    }

    /// A record from anywhere: handed to the swarm if it is one of ours.
    fn on_record(&mut self, record: &Enr, to: &mut Discovery) {
        if let Err(unfit) = self.judge(record, to) {
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
        to.store.note(&Record::Node(
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
            to.store.note(&Record::Node(hex::encode(gone.raw()), None));
        }
    }

    fn judge(&self, record: &Enr, to: &Discovery) -> Result<Contact, Unfit> {
        let contact = Contact::of(record, to.chain_id, self.nearest())?;
        if contact.peer() == to.local {
            return Err(Unfit::Ourselves);
        }
        let rules = to.rules.lock();
        let outside = |address: &Multiaddr| {
            ip_of(address).is_none_or(|ip| rules.address(ip) == Err(Refusal::Restricted))
        };
        if contact.addresses().iter().all(outside) {
            Err(Unfit::Restricted)
        } else {
            Ok(contact)
        }
    }

    /// Nobody elsewhere is on this machine, unless we are nowhere else either.
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
            // Without room: the next walk finds it again.
            let _ = to.found.try_send(contact);
        }
    }

    /// Into the table, for walks to begin with.
    fn add(&self, rules: &SharedRules, record: &Enr) {
        let Some(socket) = udp_socket(record) else {
            return;
        };
        if rules.lock().address(socket.ip()) == Err(Refusal::Restricted) {
            tracing::debug!(node = %record.node_id(), "not asked: {}", Refusal::Restricted);
        } else if let Err(reason) = self.discv5.add_enr(record.clone()) {
            tracing::debug!(node = %record.node_id(), reason, "not added to the table of discovery");
        }
    }

    /// Our address is a new one.
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

    /// The router opened ports for us. What is advertised by hand stays.
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

/// The record of a node of which only key and address are known: it is asked for its own (op-node does the same).
async fn record_of(
    discv5: &Discv5,
    enode: Enode,
    v4: bool,
    rules: &SharedRules,
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
