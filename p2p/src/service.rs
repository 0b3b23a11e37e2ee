//! The swarm task: the only owner of libp2p.
//!
//! It never waits: channels are tried, disks and hashes belong to other threads ([`Checker`], [`Client`], [`Server`]), and each
//! turn handles one event. Towards the chain: [`Event`]s through a channel as large as the number of unanswered payloads `sync.rs`
//! allows, so it is never full. From the chain: commands, in order.

mod connections;
mod gossip;

use crate::{
    behaviour::{Behaviour, BehaviourEvent},
    check::Checker,
    config::Config,
    handle::{Blocks, Command, Event, Network, PeerInfo, Settled},
    peers::{Link, Offence, Offences, StaticPeers},
    reqresp::{self, Client},
    serve::Server,
    sync::{Action, Arrival, Failure, Fault, Sync},
    topics::Topics,
    transport,
};
use futures::{StreamExt, stream::SelectAll};
use gossip::Unheard;
use libp2p::{
    Multiaddr, PeerId, Swarm, identify,
    swarm::{ConnectionId, SwarmEvent},
};
use libp2p_stream::IncomingStreams;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{mpsc, watch},
    task::{Id, JoinSet},
};
use tokio_util::sync::CancellationToken;
pub use transport::StartError;

/// Commands waiting for the swarm.
const COMMANDS: usize = 256;

/// A connected peer.
struct Connected {
    links: Vec<Link>,
    address: Multiaddr,
    agent: String,
}

/// The swarm before it runs.
pub struct Service {
    swarm: Swarm<Behaviour>,
    topics: Topics,
    threshold: Duration,
    checker: Checker,
    sync: Sync,
    /// Whether blocks are fetched from peers.
    fetching: bool,
    client: Client,
    server: Option<(Server, SelectAll<IncomingStreams>)>,
    fetches: JoinSet<Result<Arrival, Failure>>,
    /// Request ids of the fetches in flight.
    fetch_ids: HashMap<Id, u64>,
    statics: StaticPeers,
    offences: Offences,
    peers: BTreeMap<PeerId, Connected>,
    /// Surplus connections and when to close them.
    closing: Vec<(Instant, PeerId, ConnectionId)>,
    /// Our newest block that no peer has heard yet.
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
    pub fn new(config: Config, blocks: Arc<dyn Blocks>) -> Result<(Self, Network, mpsc::Receiver<Event>), StartError> {
        let now = Instant::now();
        let topics = Topics::new(config.chain_id);
        let mut swarm = transport::listening_swarm(&config, &topics)?;
        let local = *swarm.local_peer_id();
        let mut control = swarm.behaviour().streams.new_control();
        let server = config.sync_req_resp.then(|| {
            // Cannot be registered twice: the swarm is new.
            let incoming = reqresp::protocols(config.chain_id).into_iter().filter_map(|protocol| control.accept(protocol).ok());
            (Server::new(config.genesis, config.forks.clone(), blocks.clone()), incoming.collect())
        });
        let statics = StaticPeers::new(&config.static_peers, local, now);
        for peer in statics.ids() {
            swarm.behaviour_mut().limits.bypass_peer_id(peer);
        }
        let (commands_in, commands) = mpsc::channel(COMMANDS);
        let (events, events_out) = mpsc::channel(config.limits.unsettled.max(1));
        let (peers_out, peers) = watch::channel(Vec::new());
        let (listen_out, listen_addrs) = watch::channel(Vec::new());
        let threshold = config.gossip_threshold.as_secs();
        let service = Self {
            swarm,
            topics,
            threshold: config.gossip_threshold,
            checker: Checker::new(config.chain_id, config.forks, threshold, config.unsafe_block_signer, blocks.clone()),
            sync: Sync::new(config.limits, config.genesis.id, rand::random()),
            fetching: config.sync_req_resp,
            client: Client::new(control, config.chain_id, blocks),
            server,
            fetches: JoinSet::new(),
            fetch_ids: HashMap::new(),
            statics,
            offences: Offences::default(),
            peers: BTreeMap::new(),
            closing: Vec::new(),
            unheard: None,
            clock_warning: None,
            commands,
            events,
            peers_out,
            listen_out,
        };
        let network = Network { commands: commands_in, peers, listen_addrs, local };
        tracing::info!(peer = %local, chain = config.chain_id, "p2p identity");
        Ok((service, network, events_out))
    }

    /// Runs until the token is cancelled or the node drops its end. Serving, checks and fetches end with it.
    pub async fn run(mut self, token: CancellationToken) {
        let mut serving = JoinSet::new();
        if let Some((server, incoming)) = self.server.take() {
            serving.spawn(Arc::new(server).run(incoming));
        }
        loop {
            let wakeup = self.wakeup();
            tokio::select! {
                () = token.cancelled() => break,
                event = self.swarm.select_next_some() => self.on_swarm(event),
                checked = self.checker.next() => self.on_checked(checked),
                Some(fetched) = self.fetches.join_next_with_id() => self.on_fetched(fetched),
                command = self.commands.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => break,
                },
                () = sleep_until(wakeup) => {}
            }
            let now = Instant::now();
            self.dial_statics(now);
            self.close_surplus(now);
            if self.sync.wakeup().is_some_and(|at| at <= now) {
                self.sync.on_timer(now);
            }
            if !self.act() {
                break;
            }
        }
        tracing::info!("p2p stopped");
    }

    fn wakeup(&self) -> Option<Instant> {
        let closing = self.closing.iter().map(|(at, ..)| *at).min();
        [self.sync.wakeup(), self.statics.next_dial(), closing].into_iter().flatten().min()
    }

    fn on_swarm(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Gossip(event)) => self.on_gossip(event),
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. })) => {
                if let Some(peer) = self.peers.get_mut(&peer_id) {
                    peer.agent = info.agent_version;
                    self.tell_peers();
                }
            }
            SwarmEvent::Behaviour(BehaviourEvent::Ping(event)) => self.on_ping(event),
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
            Command::Heads(heads) => self.sync.on_heads(heads, now),
            Command::Signer(signer) => self.checker.set_signer(signer),
        }
    }

    fn on_fetched(&mut self, fetched: Result<(Id, Result<Arrival, Failure>), tokio::task::JoinError>) {
        let (task, outcome) = match fetched {
            Ok((task, outcome)) => (task, outcome),
            Err(error) => (error.id(), Err(Failure::Unreachable)),
        };
        let result = match &outcome {
            Ok(_) => "ok",
            Err(Failure::NotFound) => "not_found",
            Err(Failure::Unreachable) => "unreachable",
            Err(Failure::Unsupported) => "unsupported",
            Err(Failure::Malformed) => "malformed",
        };
        metrics::counter!("starling_p2p_fetch_total", "result" => result).increment(1);
        if let Some(id) = self.fetch_ids.remove(&task) {
            self.sync.on_fetched(id, outcome, Instant::now());
        }
    }

    /// Does what `sync.rs` asks; false when the node no longer listens.
    fn act(&mut self) -> bool {
        while let Some(action) = self.sync.poll() {
            match action {
                Action::HandOver { payload, provenance, blame } => {
                    match self.events.try_send(Event { payload, provenance, blame }) {
                        Ok(()) => {}
                        Err(mpsc::error::TrySendError::Closed(_)) => return false,
                        // As large as the credit: only a node that answers what it was not handed gets here.
                        Err(mpsc::error::TrySendError::Full(event)) => {
                            tracing::error!(number = event.payload.number(), "event channel full, block dropped");
                        }
                    }
                }
                Action::Fetch { id, peer, number } => {
                    let task = self.fetches.spawn(self.client.clone().fetch(peer, number));
                    self.fetch_ids.insert(task.id(), id);
                }
                Action::Blame { peer, fault } => {
                    let fault = match fault {
                        Fault::WrongBlock => Offence::WrongBlock,
                        Fault::Malformed => Offence::MalformedResponse,
                    };
                    self.offences.record(&peer, &fault, Instant::now());
                }
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
