//! The swarm task: the only owner of libp2p.
//!
//! It never waits: channels are tried, disks and hashes belong to other threads ([`Checker`], [`Client`], [`Server`]), and each
//! turn handles one event. Towards the chain: [`Event`]s through a channel as large as the number of unanswered payloads `sync.rs`
//! allows, so it is never full. From the chain: commands, in order.

pub(crate) mod connections;
mod control;
mod gossip;
mod range;
mod seeking;
mod standing;

use crate::{
    behaviour::{Behaviour, BehaviourEvent},
    check::{self, Checker},
    config::Config,
    discovery::{Contact, Discovery},
    doubt::Doubt,
    gate::{Rules, SharedRules, site},
    handle::{Blocks, Command, Event, Heads, Network, PeerInfo, Settled, Witness},
    metrics::{self as meters, Side},
    nat::{Mapped, Nat},
    peers::{Candidates, Link, Offence, Reputation, StaticPeers, Tides},
    peerstore::{Peerstore, Record},
    propagation::SharedPropagation,
    range::{client as range_client, serve as range_serve},
    reqresp::{self, Client},
    router,
    serve::{Seen, Server},
    streams::{self, Incoming},
    sync::{Action, Arrival, Failure, Fault, Sync},
    topics::Topics,
    transport,
};
use futures::StreamExt;
use gossip::Unheard;
use libp2p::{
    Multiaddr, PeerId, Swarm, identify,
    swarm::{ConnectionId, SwarmEvent},
};
use lru::LruCache;
use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{Id, JoinSet},
};
use tokio_util::sync::CancellationToken;
pub use transport::StartError;

/// Commands waiting for the swarm.
const COMMANDS: usize = 256;

/// Offences seen by serving tasks and not yet taken in; past it they are lost.
const OFFENCES: usize = 256;
/// Peers that left and are still reported.
const KNOWN: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// The libraries' protocols that every peer is shown.
const PROTOCOLS: [&str; 6] = [
    "/ipfs/id/1.0.0",
    "/ipfs/id/push/1.0.0",
    "/ipfs/ping/1.0.0",
    "/meshsub/1.2.0",
    "/meshsub/1.1.0",
    "/meshsub/1.0.0",
];
/// How often standings are looked at, and how often scores are written down.
const SECOND: Duration = Duration::from_secs(1);
const SAVE_INTERVAL: Duration = Duration::from_secs(15);

/// A connected peer.
struct Connected {
    /// The oldest first, which the peer is known by: one at least, until it is gone.
    links: Vec<Link>,
    since: Instant,
    /// What it said of itself.
    identity: Option<identify::Info>,
    latency: Duration,
    /// Why we close its connections.
    leaving: Option<(&'static str, String)>,
}

impl Connected {
    fn ip(&self) -> Option<IpAddr> {
        self.links.first().and_then(Link::ip)
    }
}

/// When standings are looked at next.
struct Ticks {
    second: Instant,
    slot: Instant,
    save: Instant,
}

/// Who waits for a peer to say who it is.
struct Awaited {
    peer: PeerId,
    /// Its own dial, until that is over.
    dial: Option<ConnectionId>,
    done: oneshot::Sender<Result<(), String>>,
}

struct Fetching {
    id: u64,
    since: Instant,
    peer: PeerId,
    number: u64,
}

/// The swarm before it runs.
pub struct Service {
    swarm: Swarm<Behaviour>,
    propagation: SharedPropagation,
    topics: Topics,
    threshold: Duration,
    checker: Checker,
    doubt: Doubt,
    witness: Option<Witness>,
    sync: Sync,
    /// Whether blocks are fetched from peers.
    fetching: bool,
    /// From static peers alone.
    only_static: bool,
    client: Client,
    ranging: range::Ranging,
    server: Option<(Server, mpsc::Receiver<Incoming>)>,
    range_server: Option<(range_serve::Server, mpsc::Receiver<Incoming>)>,
    /// For those who ask what we have.
    heads: watch::Sender<Heads>,
    fetches: JoinSet<Result<Arrival, Failure>>,
    /// Request ids of the fetches in flight, and whom and what they ask.
    fetch_ids: HashMap<Id, Fetching>,
    statics: StaticPeers,
    /// Runs beside the swarm.
    discovery: Option<Discovery>,
    nat: Option<Nat>,
    /// What it found.
    found: mpsc::Receiver<Contact>,
    candidates: Candidates,
    /// Peers that an operator asked to be connected with, and who waits for it.
    awaited: Vec<Awaited>,
    rules: SharedRules,
    reputation: Reputation,
    peerstore: Peerstore,
    /// The peerstore being written, at most once at a time.
    writing: JoinSet<()>,
    /// What serving tasks saw.
    offences: mpsc::Receiver<(PeerId, Offence)>,
    /// When the last warning about an offence was given, and how many were not since.
    offence_warning: (Option<Instant>, u64),
    tides: Tides,
    /// What peers see of us.
    user_agent: String,
    protocols: Vec<String>,
    slot: Duration,
    ticks: Ticks,
    peers: BTreeMap<PeerId, Connected>,
    /// Peers that were connected lately.
    known: LruCache<PeerId, identify::Info>,
    /// Surplus connections and when to close them.
    closing: Vec<(Instant, PeerId, ConnectionId)>,
    /// Our newest block that has reached no peer yet.
    unheard: Option<Unheard>,
    /// When the last warning about our clock was given.
    clock_warning: Option<Instant>,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
    peers_out: watch::Sender<Vec<PeerInfo>>,
    listen_out: watch::Sender<Vec<Multiaddr>>,
}

impl Service {
    /// Binds the listening socket and prepares everything; must be called inside a tokio runtime. The receiver gets payloads for
    /// the chain, parents first; each must be answered with [`Network::settled`].
    pub fn new(
        config: Config,
        blocks: Arc<dyn Blocks>,
    ) -> Result<(Self, Network, mpsc::Receiver<Event>), StartError> {
        let now = Instant::now();
        let topics = Topics::new(config.chain_id);
        config.tides.check().map_err(StartError::Tides)?;
        let local = config.identity.public().to_peer_id();
        let statics = StaticPeers::new(&config.static_peers, local, now);
        let (peerstore, records) =
            Peerstore::open(config.peerstore.as_deref(), "--p2p.peerstore.path")?;
        let rules = SharedRules::new(Rules {
            restrict: config.restrict.clone(),
            friends: statics.ids().copied().collect(),
            friendly_addresses: statics.ips().map(site).collect(),
            ..Default::default()
        });
        let propagation = SharedPropagation::default();
        let mut swarm =
            transport::listening_swarm(&config, &topics, &rules, &propagation, statics.ips())?;
        let slot = config.slot();
        let mut reputation =
            Reputation::new(config.policy, slot, statics.ids().copied(), statics.ips());
        for record in &records {
            match record {
                Record::BlockedPeer(peer, true) => drop(rules.lock().blocked_peers.insert(*peer)),
                Record::BlockedAddress(address, true) => {
                    drop(rules.lock().blocked_addresses.insert(*address))
                }
                Record::BlockedSubnet(subnet, true) => {
                    drop(rules.lock().blocked_subnets.insert(*subnet))
                }
                _ => {}
            }
        }
        reputation.restore(records, check::unix_now());
        let streams = &mut swarm.behaviour_mut().streams;
        let control = streams.control();
        let (peers_out, peers) = watch::channel(Vec::new());
        let (offences_in, offences) = mpsc::channel(OFFENCES);
        let server = config.sync_req_resp.then(|| {
            let seen = Seen {
                peers: peers.clone(),
                offences: offences_in.clone(),
            };
            (
                Server::new(config.genesis, config.forks.clone(), blocks.clone(), seen),
                streams.accept(reqresp::protocols(config.chain_id)),
            )
        });
        let (heads, heads_seen) = watch::channel(Heads::default());
        let range_server = config.sync_req_resp.then(|| {
            let (seen, id) = (
                Seen {
                    peers: peers.clone(),
                    offences: offences_in,
                },
                config.genesis.id,
            );
            let server = range_serve::Server::new(
                config.chain_id,
                id,
                blocks.clone(),
                heads_seen,
                seen,
                config.serve_rate,
            );
            (
                server,
                streams.accept(range_client::protocol(config.chain_id)),
            )
        });
        let mut protocols: Vec<String> = PROTOCOLS.map(str::to_owned).into();
        if server.is_some() {
            protocols.extend(
                reqresp::protocols(config.chain_id)
                    .iter()
                    .map(ToString::to_string),
            );
            protocols.extend(
                range_client::protocol(config.chain_id).map(|protocol| protocol.to_string()),
            );
        }
        let asking = config.sync_req_resp.then(|| control.clone());
        let asking = asking.and_then(|control| {
            range_client::Client::new(
                control,
                config.chain_id,
                config.genesis.id.hash,
                blocks.clone(),
            )
        });
        let (commands_in, commands) = mpsc::channel(COMMANDS);
        let (events, events_out) = mpsc::channel(config.limits.unsettled.max(1));
        let (listen_out, listen_addrs) = watch::channel(Vec::new());
        let (mapped_in, mapped) = watch::channel(Mapped::default());
        let discovery = config.discovery.as_ref();
        let discovery = discovery
            .map(|discovery| {
                Discovery::new(
                    &config,
                    discovery,
                    rules.clone(),
                    listen_addrs.clone(),
                    peers.clone(),
                    mapped,
                )
            })
            .transpose()?;
        let (discovery, ends) = discovery.unzip();
        let (found, questions, udp) = match ends {
            Some(ends) => (ends.found, Some(ends.questions), Some(ends.udp)),
            None => (mpsc::channel(1).1, None, None),
        };
        let listen = listen_addrs.clone();
        let nat = config.nat.map(|config| Nat {
            config,
            listen_addrs: listen,
            udp,
            mapped: mapped_in,
        });
        let threshold = config.gossip_threshold.as_secs();
        let checker = Checker::new(
            config.chain_id,
            config.forks,
            threshold,
            config.unsafe_block_signer,
            blocks.clone(),
        );
        swarm.behaviour().gossip.listen(checker.has_signer());
        let service = Self {
            swarm,
            propagation,
            topics,
            threshold: config.gossip_threshold,
            checker,
            doubt: Doubt::default(),
            witness: None,
            sync: Sync::new(config.limits, config.genesis.id, rand::random()),
            fetching: config.sync_req_resp,
            only_static: config.only_request_static,
            client: Client::new(control, config.chain_id, blocks),
            ranging: range::Ranging::new(asking, config.genesis, config.chain_id),
            server,
            range_server,
            heads,
            fetches: JoinSet::new(),
            fetch_ids: HashMap::new(),
            statics,
            discovery,
            nat,
            found,
            candidates: Candidates::default(),
            awaited: Vec::new(),
            rules,
            reputation,
            peerstore,
            writing: JoinSet::new(),
            offences,
            offence_warning: (None, 0),
            tides: config.tides,
            user_agent: config.user_agent.clone(),
            protocols,
            slot,
            ticks: Ticks {
                second: now + SECOND,
                slot: now + slot,
                save: now + SAVE_INTERVAL,
            },
            peers: BTreeMap::new(),
            known: LruCache::new(KNOWN),
            closing: Vec::new(),
            unheard: None,
            clock_warning: None,
            commands,
            events,
            peers_out,
            listen_out,
        };
        let network = Network {
            commands: commands_in,
            peers,
            listen_addrs,
            questions,
            local,
        };
        tracing::info!(peer = %local, chain = config.chain_id, "p2p identity");
        Ok((service, network, events_out))
    }

    /// Runs until the token is cancelled or the node drops its end. Serving, checks and fetches end with it.
    pub async fn run(mut self, token: CancellationToken) {
        let mut serving = JoinSet::new();
        if let Some((server, incoming)) = self.server.take() {
            serving.spawn(Arc::new(server).run(incoming));
        }
        if let Some((server, incoming)) = self.range_server.take() {
            serving.spawn(Arc::new(server).run(incoming));
        }
        // It has things to put in order when it ends.
        let (mut beside, stop) = (JoinSet::new(), token.child_token());
        if let Some(discovery) = self.discovery.take() {
            beside.spawn(discovery.run(stop.clone()));
        }
        if let Some(nat) = self.nat.take() {
            beside.spawn(nat.run(stop.clone()));
        }
        loop {
            let wakeup = self.wakeup();
            tokio::select! {
                () = token.cancelled() => break,
                event = self.swarm.select_next_some() => self.on_swarm(event),
                checked = self.checker.next() => self.on_checked(checked),
                Some(fetched) = self.fetches.join_next_with_id() => self.on_fetched(fetched),
                Some((id, news)) = self.ranging.news.recv() => self.on_news(id, news),
                Some(Ok((peer, status))) = self.ranging.statuses.join_next() => self.on_status(peer, status),
                Some((peer, offence)) = self.offences.recv() => self.on_offence(peer, offence, ""),
                Some(_) = self.writing.join_next() => {}
                Some(contact) = self.found.recv() => self.on_found(contact, Instant::now()),
                command = self.commands.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => break,
                },
                () = sleep_until(wakeup) => {}
            }
            let now = Instant::now();
            self.dial_statics(now);
            self.close_surplus(now);
            self.tick(now);
            self.enforce();
            if self.sync.wakeup().is_some_and(|at| at <= now) {
                self.sync.on_timer(now);
            }
            if !self.act() {
                break;
            }
        }
        stop.cancel();
        self.store_at_end().await;
        while beside.join_next().await.is_some() {}
        tracing::info!("p2p stopped");
    }

    fn wakeup(&self) -> Option<Instant> {
        let closing = self.closing.iter().map(|(at, ..)| *at).min();
        [
            self.sync.wakeup(),
            self.statics.next_dial(),
            closing,
            Some(self.ticks.second),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn on_swarm(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Gossip(router::Event::Gossip {
                event,
                place,
            })) => self.on_gossip(event, place),
            SwarmEvent::Behaviour(BehaviourEvent::Gossip(router::Event::Offence {
                peer,
                offence,
                evidence,
            })) => {
                self.on_offence(peer, offence, &evidence);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                peer_id,
                info,
                ..
            })) => {
                self.on_identified(peer_id, info);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Ping(event)) => self.on_ping(event),
            SwarmEvent::Behaviour(BehaviourEvent::Streams(streams::Event::Excess { peer })) => {
                self.on_offence(
                    peer,
                    Offence::ExcessStreams,
                    "streams opened faster than they are taken",
                );
            }
            SwarmEvent::Behaviour(_) => {}
            event => self.on_connection(event),
        }
    }

    fn on_command(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Publish { payload, signature } => {
                let number = payload.number();
                if !self.checker.submit_own(payload, signature) {
                    tracing::warn!(number, "too many blocks of our own at once, not gossiped");
                }
            }
            Command::Settled { hash, settled } => {
                if let Settled::Invalid(reason) = &settled {
                    tracing::warn!(%hash, reason, "the chain found a block from the network invalid");
                }
                self.sync.on_settled(hash, &settled, now);
            }
            Command::Heads(heads) => {
                self.propagation.on_head(heads.head.hash);
                self.heads.send_replace(heads);
                self.sync.on_heads(heads, now);
            }
            Command::Driven(driven) => self.sync.on_driven(driven, now),
            // The parent was unknown when this was requested. If it has arrived since, the backward walk ends at it.
            Command::FetchBelow(payload) => {
                self.sync.on_named(
                    Arrival {
                        payload,
                        from: None,
                        known: false,
                        parent_known: false,
                    },
                    now,
                );
            }
            Command::Signer(signer) => self.on_signer(signer),
            Command::Doubt(asker) => self.doubt.wait(asker),
            Command::Witness(witness) => self.witness = Some(witness),
            Command::Control(control) => self.on_control(control, now),
        }
    }

    fn on_fetched(
        &mut self,
        fetched: Result<(Id, Result<Arrival, Failure>), tokio::task::JoinError>,
    ) {
        let (task, outcome) = match fetched {
            Ok((task, outcome)) => (task, outcome),
            Err(error) => (error.id(), Err(Failure::Unreachable)),
        };
        let result = match &outcome {
            Ok(_) => "ok",
            Err(Failure::NotFound) => "not_found",
            Err(Failure::Unreachable) => "unreachable",
            Err(Failure::NoAnswer) => "no_answer",
            Err(Failure::Unsupported) => "unsupported",
            Err(Failure::Malformed) => "malformed",
        };
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
            Err(Failure::NotFound) => 1,
            Err(_) => 3,
        };
        meters::request(Side::Client, number, code, since.elapsed());
        match &outcome {
            Ok(_) => self.reputation.on_valid_response(peer, check::unix_now()),
            // That a connection was lost on the way is nobody's offence.
            Err(Failure::NoAnswer) if self.peers.contains_key(&peer) => {
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

    /// Does what `sync.rs` asks; false when the node no longer listens.
    fn act(&mut self) -> bool {
        while let Some(action) = self.sync.poll() {
            match action {
                Action::HandOver {
                    payload,
                    provenance,
                    blame,
                } => {
                    match self.events.try_send(Event {
                        payload,
                        provenance,
                        blame,
                    }) {
                        Ok(()) => {}
                        Err(mpsc::error::TrySendError::Closed(_)) => return false,
                        // As large as the credit: only a node that answers what it was not handed gets here.
                        Err(mpsc::error::TrySendError::Full(event)) => {
                            tracing::error!(
                                number = event.payload.number(),
                                "event channel full, block dropped"
                            );
                        }
                    }
                }
                Action::Fetch { id, peer, number } => {
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
                Action::Blame {
                    peer,
                    fault,
                    number,
                } => {
                    let (offence, evidence) = match fault {
                        Fault::WrongBlock => (
                            Offence::WrongBlock,
                            format!("its block {number} is not the one its child names"),
                        ),
                        Fault::Malformed => (
                            Offence::MalformedResponse,
                            format!("asked for block {number}"),
                        ),
                    };
                    self.on_offence(peer, offence, &evidence);
                }
                Action::Range(order) => self.on_order(order),
                Action::Dropped { tip, why } => {
                    tracing::warn!(number = tip.number, hash = %tip.hash, reason = ?why, "unsafe block dropped");
                }
            }
        }
        metrics::gauge!("starling_p2p_gap_blocks").set(self.sync.gap_len() as f64);
        true
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
