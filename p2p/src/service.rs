//! The swarm's task: one loop that owns all modules and passes events between them.
//!
//! One iteration of the loop ([`Service::run`]) takes one event, from libp2p, a task, the node or
//! the clock, and passes it to the module concerned. Modules do not call each other: each returns
//! from its `poll` the actions that other modules have to take. [`Service::dispatch`] carries these
//! actions out until no module returns another. At the end of the iteration
//! [`Service::dispatch_sync`] hands blocks to the node and sends the requests of sync. The loop
//! sleeps until the earliest `next_wake` of the modules, or the next tick ([`Service::tick`], once
//! a second).
//!
//! | module | event | results | timer |
//! |---|---|---|---|
//! | [`Host`]: libp2p and its connections | `next_swarm_event` | [`HostEvent`] | surplus connections |
//! | [`Gossip`]: messages of blocks | `next_checked` | [`GossipAction`] | tick |
//! | [`Peers`]: decisions about peers | `next_written` | [`PeersAction`] | dials of static peers, tick |
//! | [`Sync`]: gaps below new blocks | | [`SyncAction`] | retries |
//! | [`SyncClient`]: requests of sync in flight | `next` | the same | statuses of peers |
//!
//! The loop never waits for a disk, a hash or a full channel: it sends with `try_send`, and other
//! threads do slow work. Discovery, NAT and the servers are tasks beside this one
//! (`service/start.rs`).
//!
//! The chain gets [`Event`]s through a channel with capacity for all unsettled payloads that
//! `sync.rs` allows, so only a node that settles payloads which it did not get can fill it. The
//! chain sends commands, which are handled in order.

mod connections;
mod control;
mod start;
mod sync;

pub use crate::host::transport::StartError;
use crate::{
    clock::{Moment, unix_now},
    discovery::Contact,
    gossip::{Gossip, GossipAction},
    handle::SwarmCommand,
    host::{Host, HostEvent},
    metrics as meters,
    peers::{Offence, Peers, PeersAction},
    sync::{Sync, SyncAction, client::SyncClient, progress::GapProgressLog},
    types::{Arrival, ChainHeads, Event, Settled},
};
use libp2p::PeerId;
use start::SideTasks;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Interval of [`Service::tick`].
const SECOND: Duration = Duration::from_secs(1);

/// The swarm: its modules, and its channels to the node and to other tasks.
pub struct Service {
    host: Host,
    gossip: Gossip,
    peers: Peers,
    sync: Sync,
    client: SyncClient,
    /// Whether blocks are fetched from peers.
    fetching: bool,
    /// Whether blocks are fetched from static peers alone.
    only_static: bool,
    progress: GapProgressLog,
    /// The tasks that run beside the swarm's; empty once they have been started.
    side: SideTasks,
    /// Peers that discovery found.
    found: mpsc::Receiver<Contact>,
    /// Offences that serving tasks report.
    offences: mpsc::Receiver<(PeerId, Offence)>,
    /// The chain's heads, for the range server.
    heads: watch::Sender<ChainHeads>,
    /// The protocols listed in the report about this node.
    protocols: Vec<String>,
    next_tick: Instant,
    commands: mpsc::Receiver<SwarmCommand>,
    events: mpsc::Sender<Event>,
}

impl Service {
    /// Runs the swarm until `token` is cancelled or the node drops its handles or the receiver of
    /// events. Serving, checks and fetches end with the swarm.
    pub async fn run(mut self, token: CancellationToken) {
        let stop = token.child_token();
        let side = std::mem::take(&mut self.side).start(&stop);
        let local = self.host.local_peer_id();
        loop {
            let wake = self.next_wake();
            tokio::select! {
                () = token.cancelled() => break,
                event = self.host.next_swarm_event() => self.host.on_swarm_event(event),
                checked = self.gossip.next_checked() => {
                    self.gossip.on_checked(checked, self.host.router(), local);
                }
                event = self.client.next() => self.on_client_event(event),
                Some(()) = self.peers.next_written() => {}
                Some((peer, offence)) = self.offences.recv() => self.peers.on_offence(peer, offence, "", Moment::now()),
                Some(contact) = self.found.recv() => self.on_found(contact),
                command = self.commands.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => break,
                },
                () = tokio::time::sleep_until(wake.into()) => {}
            }
            self.dispatch();
            self.on_timer(Instant::now());
            self.dispatch();
            if !self.dispatch_sync() {
                break;
            }
        }
        stop.cancel();
        self.store_scores().await;
        side.ended().await;
        tracing::info!("p2p stopped");
    }

    /// The earliest time at which a module has something to do without an event.
    fn next_wake(&self) -> Instant {
        let modules = [
            self.host.next_wake(),
            self.peers.next_wake(),
            self.sync.next_wake(),
            self.client.next_wake(),
        ];
        modules
            .into_iter()
            .flatten()
            .fold(self.next_tick, Instant::min)
    }

    /// Passes the actions of each module on to the others, until no module returns another.
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

    /// Does the work that is due at `now`.
    fn on_timer(&mut self, now: Instant) {
        for (peer, addresses) in self.peers.statics.due(now) {
            self.host.dial(peer, addresses);
        }
        self.host.on_timer(now);
        self.client.on_timer(now);
        if now >= self.next_tick {
            self.next_tick = now + SECOND;
            self.tick(now);
        }
        if self.sync.next_wake().is_some_and(|at| at <= now) {
            self.sync.on_timer(now);
        }
    }

    /// Does the work that is due every second.
    fn tick(&mut self, now: Instant) {
        let (unix, local) = (unix_now(), self.host.local_peer_id());
        let moment = Moment { instant: now, unix };
        self.peers.reputation.on_time(unix);
        self.gossip.on_second(unix, self.host.router(), local);
        // Offences that gossip has just found count before the scores are read.
        self.dispatch();
        for score in self.host.router_scores() {
            self.peers
                .reputation
                .on_router_score(score.peer, score.score, score.sharing, unix);
        }
        if self.peers.on_second(moment) {
            self.peers.record_scores(self.host.connected().keys());
        }
        self.gossip.record_mesh(self.host.router_ref());
        meters::quarantine(self.sync.report().waiting);
        self.trim_peers(now);
        self.progress.log(&self.sync, now);
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
            } => self
                .peers
                .on_offence(peer, offence, &evidence, Moment::now()),
            HostEvent::Connected {
                peer,
                ip,
                outbound,
                first,
            } => {
                let moment = Moment::now();
                self.peers.on_connected(peer, ip, outbound, first, moment);
                if first && self.may_fetch_from(&peer) {
                    self.sync.on_peer(peer, now);
                }
                self.publish_peers();
            }
            HostEvent::Identified(peer) => {
                self.on_identified(peer, now);
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
                self.peers
                    .on_disconnected(peer, reason, &evidence, Moment::now());
                self.client.on_peer_gone(&peer);
                self.sync.on_peer_gone(peer, now);
                self.publish_peers();
            }
            HostEvent::DialFailed { peer, error } => self.on_dial_failed(peer, &error, now),
        }
    }

    fn on_gossip_action(&mut self, action: GossipAction) {
        let now = Instant::now();
        match action {
            GossipAction::Offence {
                peer,
                offence,
                evidence,
            } => self
                .peers
                .on_offence(peer, offence, &evidence, Moment::now()),
            GossipAction::Note {
                peer,
                reason,
                evidence,
            } => self.peers.note(peer, reason, evidence, Moment::now()),
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
            SwarmCommand::FetchBelow(payload) => {
                // The parent was unknown when the node sent the command. If the parent has arrived
                // since, the backward walk ends at it.
                let arrival = Arrival {
                    payload,
                    from: None,
                    known: false,
                    parent_known: false,
                };
                self.sync.on_engine_payload(arrival, now);
            }
            SwarmCommand::Signer(signer) => self.gossip.on_signer(signer, self.host.router()),
            SwarmCommand::UnknownSigner(waiter) => self.gossip.on_unknown_signer_waiter(waiter),
            SwarmCommand::OwnKeyWatch(watch) => self.gossip.on_own_key_watch(watch),
            SwarmCommand::Operator(command) => self.on_operator_command(command, now),
        }
    }

    /// Writes all scores and bans before the swarm ends.
    async fn store_scores(&mut self) {
        self.peers.reputation.save_all(unix_now());
        self.dispatch();
        while self.peers.has_unwritten() {
            self.peers.next_written().await;
            self.dispatch();
        }
    }
}
