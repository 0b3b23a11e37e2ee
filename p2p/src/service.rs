//! The swarm's task: the loop that dispatches events between the rooms.
//!
//! The loop never waits: channels are tried, disks and hashes belong to other threads, and each
//! turn handles one event. [`Host`] owns libp2p, [`Gossip`] the messages, [`Peers`] what is decided
//! about peers, and [`Sync`] the gaps. Each gets its events here, and its results are passed on by
//! [`Service::dispatch`] until none is left. Discovery, NAT and the servers are tasks beside this
//! one ([`SideTasks`]).
//!
//! Towards the chain: [`Event`]s through a channel as large as the number of unsettled payloads
//! that `sync.rs` allows, so it is never full. From the chain: commands, in order.

mod control;
mod range;

pub use crate::host::transport::StartError;
use crate::{
    clock::unix_now,
    config::Config,
    discovery::{Contact, Discovery, ReportRequest},
    gossip::{Gossip, GossipAction, check::Checker, timing::SharedTimings, topics::Topics},
    handle::{Network, SwarmCommand},
    host::{Host, HostEvent, dial::is_unanswered, streams::Incoming},
    metrics::{self as meters, Side},
    nat::{MappedPorts, Nat},
    peers::{Offence, Peers, PeersAction, TrimCandidate},
    serve::{SwarmView, by_number::NumberServer, by_range::RangeServer},
    sync::{
        FetchError, Sync, SyncAction,
        client::{
            by_number::{self, NumberClient},
            by_range::{self, RangeClient},
        },
    },
    types::{Arrival, Blocks, ChainHeads, Event, Settled},
};
use libp2p::{PeerId, swarm::DialError};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, watch},
    task::{Id, JoinSet},
};
use tokio_util::sync::CancellationToken;

/// Commands that wait for the swarm.
const COMMANDS: usize = 256;
/// Offences that serving tasks have reported and the swarm has not taken in; more are lost.
const OFFENCES: usize = 256;
/// The libraries' protocols, which our report of ourselves names.
const PROTOCOLS: [&str; 6] = [
    "/ipfs/id/1.0.0",
    "/ipfs/id/push/1.0.0",
    "/ipfs/ping/1.0.0",
    "/meshsub/1.2.0",
    "/meshsub/1.1.0",
    "/meshsub/1.0.0",
];
/// Interval of [`Service::tick`].
const SECOND: Duration = Duration::from_secs(1);

/// A request of a block by number that is in flight.
struct Fetching {
    id: u64,
    since: Instant,
    peer: PeerId,
    number: u64,
}

/// The servers that answer peers, with the streams that peers open to them.
struct Servers {
    by_number: (NumberServer, mpsc::Receiver<Incoming>),
    by_range: (RangeServer, mpsc::Receiver<Incoming>),
}

impl Servers {
    fn new(
        config: &Config,
        host: &mut Host,
        blocks: &Arc<dyn Blocks>,
        offences: mpsc::Sender<(PeerId, Offence)>,
        heads: watch::Receiver<ChainHeads>,
    ) -> Self {
        let seen = || SwarmView {
            peers: host.peers(),
            offences: offences.clone(),
        };
        let by_number =
            NumberServer::new(config.genesis, config.forks.clone(), blocks.clone(), seen());
        let by_range = RangeServer::new(
            config.chain_id,
            config.genesis.id,
            blocks.clone(),
            heads,
            seen(),
            config.serve_rate,
        );
        let streams = host.streams();
        Self {
            by_number: (
                by_number,
                streams.accept(by_number::protocols(config.chain_id)),
            ),
            by_range: (
                by_range,
                streams.accept(by_range::protocol(config.chain_id)),
            ),
        }
    }
}

/// Tasks that run beside the swarm's, before they run.
struct SideTasks {
    servers: Option<Servers>,
    discovery: Option<Discovery>,
    nat: Option<Nat>,
}

/// The ends of the channels to discovery.
struct DiscoveryEnds {
    /// Peers that discovery found.
    found: mpsc::Receiver<Contact>,
    /// `None` without discovery.
    questions: Option<mpsc::Sender<ReportRequest>>,
}

impl SideTasks {
    fn new(
        config: &Config,
        host: &Host,
        peers: &Peers,
        servers: Option<Servers>,
    ) -> Result<(Self, DiscoveryEnds), StartError> {
        let (mapped_in, mapped) = watch::channel(MappedPorts::default());
        let discovery = config
            .discovery
            .as_ref()
            .map(|discovery| {
                Discovery::new(
                    &config.local_node(),
                    discovery,
                    peers.rules(),
                    host.listen_addrs(),
                    host.peers(),
                    mapped,
                )
            })
            .transpose()?;
        let (discovery, ends) = discovery.unzip();
        let (found, questions, udp) = match ends {
            Some(ends) => (ends.found, Some(ends.questions), Some(ends.udp)),
            None => (mpsc::channel(1).1, None, None),
        };
        let nat = config.nat.map(|config| Nat {
            config,
            listen_addrs: host.listen_addrs(),
            udp,
            mapped: mapped_in,
        });
        let tasks = Self {
            servers,
            discovery,
            nat,
        };
        Ok((tasks, DiscoveryEnds { found, questions }))
    }
}

/// The swarm before it runs.
pub struct Service {
    host: Host,
    gossip: Gossip,
    peers: Peers,
    /// `None` once they run.
    side: Option<SideTasks>,
    /// Peers that discovery found.
    found: mpsc::Receiver<Contact>,
    /// Offences that serving tasks have seen.
    offences: mpsc::Receiver<(PeerId, Offence)>,
    sync: Sync,
    /// Whether blocks are fetched from peers.
    fetching: bool,
    /// Whether blocks are fetched from static peers alone.
    only_static: bool,
    client: NumberClient,
    ranging: range::Ranging,
    fetches: JoinSet<Result<Arrival, FetchError>>,
    /// The fetches in flight, by their tasks.
    fetch_ids: HashMap<Id, Fetching>,
    /// The chain's heads, for the range server.
    heads: watch::Sender<ChainHeads>,
    /// The protocols that our report of ourselves names.
    protocols: Vec<String>,
    next_tick: Instant,
    commands: mpsc::Receiver<SwarmCommand>,
    events: mpsc::Sender<Event>,
}

impl Service {
    /// Binds the listening socket and prepares everything; must be called inside a tokio runtime.
    /// The receiver gets payloads for the chain, parents first; each must be answered with
    /// [`Network::settled`].
    pub fn new(
        config: Config,
        blocks: Arc<dyn Blocks>,
    ) -> Result<(Self, Network, mpsc::Receiver<Event>), StartError> {
        let now = Instant::now();
        config.peer_limits.check().map_err(StartError::PeerLimits)?;
        let (topics, timings) = (Topics::new(config.chain_id), SharedTimings::default());
        let peers = Peers::new(config.peers(), now)?;
        let crowds = peers.statics.ips();
        let mut host = Host::new(config.host(), &topics, &peers.rules(), &timings, crowds)?;
        let (offences_in, offences) = mpsc::channel(OFFENCES);
        let (heads, heads_seen) = watch::channel(ChainHeads::default());
        let servers = config
            .sync_req_resp
            .then(|| Servers::new(&config, &mut host, &blocks, offences_in, heads_seen));
        let (side, ends) = SideTasks::new(&config, &host, &peers, servers)?;
        let (commands_in, commands) = mpsc::channel(COMMANDS);
        let (events, events_out) = mpsc::channel(config.limits.unsettled.max(1));
        let network = Network {
            commands: commands_in,
            peers: host.peers(),
            listen_addrs: host.listen_addrs(),
            questions: ends.questions,
            local: host.local_peer_id(),
        };
        tracing::info!(peer = %network.local, chain = config.chain_id, "p2p identity");
        let control = host.streams().control();
        let service = Self {
            sync: Sync::new(config.limits, config.genesis.id, rand::random()),
            fetching: config.sync_req_resp,
            only_static: config.only_request_static,
            client: NumberClient::new(control, config.chain_id, blocks.clone()),
            ranging: ranging(&config, &mut host, &blocks),
            fetches: JoinSet::new(),
            fetch_ids: HashMap::new(),
            heads,
            protocols: protocols(&config),
            gossip: gossip(config, topics, timings, &mut host, blocks),
            host,
            peers,
            side: Some(side),
            found: ends.found,
            offences,
            next_tick: now + SECOND,
            commands,
            events,
        };
        Ok((service, network, events_out))
    }

    /// Runs until the token is cancelled or the node drops its end. Serving, checks and fetches end
    /// with it.
    pub async fn run(mut self, token: CancellationToken) {
        let (mut serving, mut beside) = (JoinSet::new(), JoinSet::new());
        // Discovery and NAT store records and close ports when they end, so they are waited for.
        let stop = token.child_token();
        self.start_side_tasks(&mut serving, &mut beside, &stop);
        let local = self.host.local_peer_id();
        loop {
            let wakeup = self.next_wake();
            tokio::select! {
                () = token.cancelled() => break,
                event = self.host.next_swarm_event() => self.host.on_swarm_event(event),
                checked = self.gossip.next_checked() => {
                    self.gossip.on_checked(checked, self.host.router(), local);
                }
                Some(fetched) = self.fetches.join_next_with_id() => self.on_fetched(fetched),
                Some((id, response)) = self.ranging.responses.recv() => self.on_range_response(id, response),
                Some(Ok((peer, status))) = self.ranging.statuses.join_next() => self.on_status(peer, status),
                Some((peer, offence)) = self.offences.recv() => self.on_offence(peer, offence, ""),
                Some(()) = self.peers.next_written() => {}
                Some(contact) = self.found.recv() => self.on_found(contact),
                command = self.commands.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => break,
                },
                () = sleep_until(wakeup) => {}
            }
            self.dispatch();
            self.on_timer(Instant::now());
            self.dispatch();
            if !self.act() {
                break;
            }
        }
        stop.cancel();
        self.store_at_end().await;
        while beside.join_next().await.is_some() {}
        tracing::info!("p2p stopped");
    }

    fn start_side_tasks(
        &mut self,
        serving: &mut JoinSet<()>,
        beside: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) {
        let Some(side) = self.side.take() else {
            return;
        };
        if let Some(Servers {
            by_number,
            by_range,
        }) = side.servers
        {
            serving.spawn(Arc::new(by_number.0).run(by_number.1));
            serving.spawn(Arc::new(by_range.0).run(by_range.1));
        }
        if let Some(discovery) = side.discovery {
            beside.spawn(discovery.run(stop.clone()));
        }
        if let Some(nat) = side.nat {
            beside.spawn(nat.run(stop.clone()));
        }
    }

    /// The earliest time at which a room has something to do without an event.
    fn next_wake(&self) -> Option<Instant> {
        [
            self.sync.wakeup(),
            self.peers.next_wake(),
            self.host.next_wake(),
            Some(self.next_tick),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Passes the results of each room on to the others, until none is left.
    fn dispatch(&mut self) {
        loop {
            if let Some(event) = self.host.poll() {
                self.on_host_event(event);
            } else if let Some(action) = self.gossip.poll() {
                self.on_gossip_action(action);
            } else if let Some(action) = self.peers.poll() {
                self.on_peers_action(action);
            } else {
                break;
            }
        }
    }

    /// Whatever is due by the clock.
    fn on_timer(&mut self, now: Instant) {
        for (peer, addresses) in self.peers.statics.due(now) {
            self.host.dial(peer, addresses);
        }
        self.host.on_timer(now);
        self.tick(now);
        if self.sync.wakeup().is_some_and(|at| at <= now) {
            self.sync.on_timer(now);
        }
    }

    /// The work of every second.
    fn tick(&mut self, now: Instant) {
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + SECOND;
        let (unix, local) = (unix_now(), self.host.local_peer_id());
        self.peers.reputation.on_time(unix);
        self.gossip.on_second(unix, self.host.router(), local);
        self.dispatch();
        for score in self.host.router_scores() {
            self.peers
                .reputation
                .on_router_score(score.peer, score.score, score.sharing, unix);
        }
        if self.peers.on_second(now, unix) {
            self.peers.record_scores(self.host.connected().keys());
        }
        self.gossip.record_mesh(self.host.router_ref());
        meters::quarantine(self.sync.report().waiting);
        self.trim_peers(now);
        self.request_statuses(now);
        self.log_progress(now);
        self.dial_candidates(now);
    }

    fn on_host_event(&mut self, event: HostEvent) {
        let now = Instant::now();
        match event {
            HostEvent::Router(event) => {
                let local = self.host.local_peer_id();
                let is_protected = |peer: &PeerId| self.peers.is_protected(peer);
                self.gossip
                    .on_router_event(event, self.host.router(), local, is_protected);
            }
            HostEvent::Offence {
                peer,
                offence,
                evidence,
            } => self.on_offence(peer, offence, &evidence),
            HostEvent::Connected {
                peer,
                ip,
                outbound,
                first,
            } => {
                self.peers.on_connected(peer, ip, outbound, first, now);
                if first && self.may_fetch_from(&peer) {
                    self.sync.on_peer(peer, now);
                }
                self.publish_peers();
            }
            HostEvent::Identified(peer) => {
                self.track_status(peer);
                self.publish_peers();
                self.host.on_peers_published(peer);
            }
            HostEvent::LinkClosed { peer, ip } => {
                self.peers.reputation.on_address(&peer, ip);
                self.publish_peers();
            }
            HostEvent::Disconnected {
                peer,
                reason,
                evidence,
            } => {
                self.peers.on_disconnected(peer, reason, &evidence, now);
                self.untrack_status(&peer);
                self.sync.on_peer_gone(peer, now);
                self.publish_peers();
            }
            HostEvent::DialFailed { peer, error } => self.on_dial_failed(peer, &error),
        }
    }

    fn on_gossip_action(&mut self, action: GossipAction) {
        let now = Instant::now();
        match action {
            GossipAction::Offence {
                peer,
                offence,
                evidence,
            } => self.on_offence(peer, offence, &evidence),
            GossipAction::Note {
                peer,
                reason,
                evidence,
            } => self.peers.note(peer, reason, evidence),
            GossipAction::Accepted { arrival, signer } => self.sync.on_gossip(arrival, signer, now),
            GossipAction::Own(hash) => self.sync.on_own(hash, now),
        }
    }

    fn on_peers_action(&mut self, action: PeersAction) {
        match action {
            PeersAction::SetScore { peer, score } => {
                self.host.router().set_application_score(&peer, score);
            }
            PeersAction::Disconnect {
                peer,
                reason,
                evidence,
            } => self.host.close(peer, reason, evidence),
        }
    }

    fn on_offence(&mut self, peer: PeerId, offence: Offence, evidence: &str) {
        self.peers.on_offence(peer, offence, evidence);
    }

    fn on_dial_failed(&mut self, peer: PeerId, error: &DialError) {
        let first = self
            .peers
            .on_dial_failed(&peer, is_unanswered(error), Instant::now());
        match error {
            DialError::WrongPeerId { obtained, address } if first => {
                tracing::warn!(expected = %peer, %obtained, %address, "another peer answers at a static peer's address");
            }
            error if first => {
                tracing::warn!(%peer, %error, "static peer not reachable, trying again until it is")
            }
            error => tracing::debug!(%peer, %error, "dial failed"),
        }
    }

    fn on_found(&mut self, contact: Contact) {
        let now = Instant::now();
        let connected = self.host.connected().contains_key(&contact.peer());
        self.peers.on_found(contact, connected, now);
        self.dial_candidates(now);
    }

    /// Dials some of the peers that discovery found, while there are too few.
    fn dial_candidates(&mut self, now: Instant) {
        let connected = self.host.staying().count();
        for (peer, addresses) in self.peers.candidates_to_dial(connected, now) {
            self.host.dial(peer, addresses);
        }
    }

    /// Disconnects peers above the limit.
    fn trim_peers(&mut self, now: Instant) {
        let candidate = |(id, peer): (&PeerId, &crate::host::Connected)| TrimCandidate {
            peer: *id,
            protected: self.peers.is_protected(id),
            outbound: peer.outbound(),
            since: peer.since,
            score: self.peers.reputation.total(id),
        };
        let staying: Vec<TrimCandidate> = self.host.staying().map(candidate).collect();
        let (count, limits) = (staying.len(), self.peers.limits);
        for peer in limits.trim(staying, now) {
            let evidence = format!("{count} peers, at most {} are kept", limits.hi);
            self.host.close(peer, "too_many_peers", evidence);
        }
    }

    fn may_fetch_from(&self, peer: &PeerId) -> bool {
        self.fetching && (!self.only_static || self.peers.statics.contains(peer))
    }

    fn publish_peers(&self) {
        self.host
            .publish_peers(|peer| self.peers.is_protected(peer));
    }

    fn on_command(&mut self, command: SwarmCommand) {
        let now = Instant::now();
        match command {
            SwarmCommand::Publish { payload, signature } => {
                self.gossip.on_publish(payload, signature)
            }
            SwarmCommand::Settled { hash, settled } => {
                if let Settled::Invalid(reason) = &settled {
                    tracing::warn!(%hash, reason, "the chain found a block from the network invalid");
                }
                self.sync.on_settled(hash, &settled, now);
            }
            SwarmCommand::Heads(heads) => {
                self.gossip.on_head(heads.head.hash);
                self.heads.send_replace(heads);
                self.sync.on_heads(heads, now);
            }
            SwarmCommand::Driven(driven) => self.sync.on_driven(driven, now),
            // The parent was unknown when this was requested. If it has arrived since, the backward
            // walk ends at it.
            SwarmCommand::FetchBelow(payload) => {
                self.sync.on_engine_payload(
                    Arrival {
                        payload,
                        from: None,
                        known: false,
                        parent_known: false,
                    },
                    now,
                );
            }
            SwarmCommand::Signer(signer) => self.gossip.on_signer(signer, self.host.router()),
            SwarmCommand::UnknownSigner(waiter) => self.gossip.on_unknown_signer_waiter(waiter),
            SwarmCommand::OwnKeyWatch(watch) => self.gossip.on_own_key_watch(watch),
            SwarmCommand::Operator(command) => self.on_operator_command(command, now),
        }
    }

    /// Writes all scores and bans before the swarm ends.
    async fn store_at_end(&mut self) {
        self.peers.reputation.save_all(unix_now());
        self.dispatch();
        while self.peers.has_unwritten() {
            self.peers.next_written().await;
            self.dispatch();
        }
    }

    fn on_fetched(
        &mut self,
        fetched: Result<(Id, Result<Arrival, FetchError>), tokio::task::JoinError>,
    ) {
        let (task, outcome) = match fetched {
            Ok((task, outcome)) => (task, outcome),
            Err(error) => (error.id(), Err(FetchError::Unreachable)),
        };
        let result = outcome.as_ref().map_or_else(FetchError::label, |_| "ok");
        metrics::counter!("starling_p2p_fetch_total", "result" => result).increment(1);
        let Some(Fetching {
            id,
            since,
            peer,
            number,
        }) = self.fetch_ids.remove(&task)
        else {
            return;
        };
        let code = match &outcome {
            Ok(_) => 0,
            Err(FetchError::NotFound) => 1,
            Err(_) => 3,
        };
        meters::request(Side::Client, number, code, since.elapsed());
        match &outcome {
            Ok(_) => self.peers.reputation.on_valid_response(peer, unix_now()),
            // A connection that was lost on the way is no offence.
            Err(FetchError::NoResponse) if self.host.connected().contains_key(&peer) => {
                self.on_offence(
                    peer,
                    Offence::NoResponse,
                    &format!("asked for block {number}"),
                );
            }
            Err(_) => {}
        }
        self.sync.on_fetched(id, outcome, Instant::now());
    }

    /// Hands a payload to the node; false when the node has dropped its end.
    fn hand_over(&self, event: Event) -> bool {
        match self.events.try_send(event) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            // The channel holds as many events as sync hands over: only a node that settles
            // payloads that it did not get can fill it.
            Err(mpsc::error::TrySendError::Full(event)) => {
                tracing::error!(
                    number = event.payload.number(),
                    "event channel full, block dropped"
                );
                true
            }
        }
    }

    /// Carries out the actions of sync; false when the node has dropped its end.
    fn act(&mut self) -> bool {
        while let Some(action) = self.sync.poll() {
            match action {
                SyncAction::HandOver {
                    payload,
                    provenance,
                    blame,
                } => {
                    let event = Event {
                        payload,
                        provenance,
                        blame,
                    };
                    if !self.hand_over(event) {
                        return false;
                    }
                }
                SyncAction::FetchNumber { id, peer, number } => {
                    let task = self.fetches.spawn(self.client.clone().fetch(peer, number));
                    self.fetch_ids.insert(
                        task.id(),
                        Fetching {
                            id,
                            since: Instant::now(),
                            peer,
                            number,
                        },
                    );
                }
                SyncAction::FetchRange { id, peer, request } => self.fetch_range(id, peer, request),
                SyncAction::Cancel { id } => self.cancel_range(id),
                SyncAction::Penalize {
                    peer,
                    offence,
                    evidence,
                } => self.on_offence(peer, offence, &evidence),
                SyncAction::Drop { tip, why } => {
                    tracing::warn!(number = tip.number, hash = %tip.hash, reason = ?why, "unsafe block dropped");
                }
            }
        }
        metrics::gauge!("starling_p2p_gap_blocks").set(self.sync.gap_len() as f64);
        true
    }
}

/// The gossip room; the router accepts no blocks without a signer.
fn gossip(
    config: Config,
    topics: Topics,
    timings: SharedTimings,
    host: &mut Host,
    blocks: Arc<dyn Blocks>,
) -> Gossip {
    let checker = Checker::new(
        config.chain_id,
        config.forks,
        config.gossip_threshold.as_secs(),
        config.unsafe_block_signer,
        blocks,
    );
    host.router().set_accepting(checker.has_signer());
    Gossip::new(topics, timings, config.gossip_threshold, checker)
}

/// The asking side of range sync; without a client if blocks are not fetched from peers.
fn ranging(config: &Config, host: &mut Host, blocks: &Arc<dyn Blocks>) -> range::Ranging {
    let control = host.streams().control();
    let client = config.sync_req_resp.then(|| {
        RangeClient::new(
            control,
            config.chain_id,
            config.genesis.id.hash,
            blocks.clone(),
        )
    });
    range::Ranging::new(client.flatten(), config.genesis, config.chain_id)
}

/// The protocols that this node speaks.
fn protocols(config: &Config) -> Vec<String> {
    let mut protocols: Vec<String> = PROTOCOLS.map(str::to_owned).into();
    if config.sync_req_resp {
        let by_number = by_number::protocols(config.chain_id);
        protocols.extend(by_number.iter().map(ToString::to_string));
        let by_range = by_range::protocol(config.chain_id);
        protocols.extend(by_range.map(|protocol| protocol.to_string()));
    }
    protocols
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
