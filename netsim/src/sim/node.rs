//! A node of a world: what survives a restart ([`SimNode`]), and the machines of a running process
//! ([`LiveNode`]), wired as the swarm's task wires them (`p2p/src/service.rs`).
//!
//! `node/connections.rs` has dials and connections, `node/gossip.rs` messages of blocks,
//! `node/requests.rs` and `node/serving.rs` the two sides of a request, `node/execution.rs` the
//! follower, `node/derivation.rs` derivation, and `node/sequencer.rs` the sequencer.

mod connections;
mod derivation;
mod execution;
mod gossip;
mod liveness;
mod requests;
mod sequencer;
mod serving;

use super::{
    batcher::SimBatcher,
    chain::{NodeChain, SharedChain},
    context::SimContext,
    keys,
    plan::{NODES, SimFault},
    planted::PlantedBug,
    queue::{SECOND, SimTime},
    real::{CrashKind, RealChain},
    tree::TreeChain,
    wires::SimMessage,
    world::SimEvent,
};
use alloy_primitives::B256;
use connections::SimConnections;
use derivation::{SafeLog, SimDerivation};
use execution::SimExecution;
use gossip::GossipSide;
use parking_lot::Mutex;
use rand::Rng;
use requests::Requests;
pub use sequencer::block_on;
use sequencer::{GuardLog, SimSequencer};
use serving::Serving;
use starling_p2p::{
    LedgerChange, Multiaddr, PeerId, PeerLimits, Policy, SyncLimits,
    machines::{Contact, Peers, PeersAction, PeersConfig, Sync, SyncAction},
};
use starling_proto::payload::{BlockId, Payload};
use std::{sync::Arc, time::Duration};

/// Largest number of requests for single blocks that sync has in flight.
const NUMBER_REQUESTS: usize = 64;
/// Largest number of other requests to one peer in flight: two for ranges, and one for the status.
const PEER_REQUESTS: usize = 3;
/// Number of requests in flight above which a bound of sync is broken. A world has at most 16 nodes.
const REQUESTS: usize = NUMBER_REQUESTS + PEER_REQUESTS * *NODES.end();
/// Bounds of sync. They are smaller than those of production, so that a world of some hundred small
/// blocks reaches the number of unsettled ones.
const LIMITS: SyncLimits = SyncLimits {
    skeleton: 4096,
    bodies: 8 << 20,
    unsettled_bytes: 1 << 20,
    unsettled: 64,
};

/// A node, running or not.
pub struct SimNode {
    index: usize,
    chain: SharedChain,
    guards: Arc<Mutex<GuardLog>>,
    safe_log: Arc<Mutex<SafeLog>>,
    live: Option<Box<LiveNode>>,
    /// The number of the key with which the node sequences.
    key: Option<u8>,
    /// The time until which the process is stopped.
    pub frozen_until: SimTime,
    /// The time of the next wake-up that is queued.
    wake: Option<SimTime>,
    hostile: bool,
    /// The chain before the last loss of power.
    lost: Option<SharedChain>,
}

impl SimNode {
    pub fn new(index: usize, context: &SimContext) -> Self {
        Self {
            index,
            chain: SharedChain::new(new_chain(index, context)),
            guards: Arc::default(),
            safe_log: Arc::default(),
            live: None,
            key: None,
            frozen_until: 0,
            wake: None,
            hostile: context.plan.nodes[index].hostile.is_some(),
            lost: None,
        }
    }

    pub fn is_honest(&self) -> bool {
        !self.hostile
    }

    pub fn head(&self) -> BlockId {
        self.chain.lock().heads().head
    }

    pub fn has(&self, hash: &B256) -> bool {
        self.chain.lock().knows(hash)
    }

    /// The canonical block `lag` blocks below the head.
    pub fn below_head(&self, lag: u64) -> Option<Arc<Payload>> {
        let chain = self.chain.lock();
        let number = chain.heads().head.number.checked_sub(lag)?;
        chain.at(number)
    }

    /// The canonical blocks above genesis up to the safe block.
    pub fn safe_chain(&self) -> Vec<Arc<Payload>> {
        let chain = self.chain.lock();
        let safe = chain.heads().safe.number;
        (1..=safe).filter_map(|number| chain.at(number)).collect()
    }

    /// Lets the batcher work, and read the chain while the node is running.
    pub fn batch(&self, batcher: &mut SimBatcher, context: &mut SimContext) {
        let chain = self.chain.lock();
        let live = self
            .live
            .as_ref()
            .filter(|_| self.frozen_until <= context.now);
        let source = live.map(|live| (&*chain, live.current_l1()));
        batcher.step(self.index, source, context);
    }

    /// Takes over a safe chain, as derivation does.
    pub fn derive(&mut self, blocks: &[Arc<Payload>], context: &mut SimContext) {
        let Some(top) = blocks.last().map(|block| block.id()) else {
            return;
        };
        let mut chain = self.chain.lock();
        blocks.iter().for_each(|block| chain.insert(block));
        if !chain.is_canonical(top) {
            chain.set_head(top);
        }
        drop(chain);
        if context.plan.derivation.is_none() {
            self.set_safe(top, context);
        }
    }

    /// Gives the node the key with which it sequences, or takes the key away.
    pub fn make_sequencer(&mut self, key: Option<u8>) {
        self.key = key;
        if let Some(live) = &mut self.live {
            live.sequencer = key.map(SimSequencer::new);
            live.gossip.read_soon();
        }
    }

    /// Starts the process, if it is not running.
    pub fn start(&mut self, context: &mut SimContext) {
        if self.live.is_some() {
            return;
        }
        context.history.note(
            context.now,
            self.index,
            format_args!("starts at {}", self.head()),
        );
        // The view of the chain that the machines read.
        let stale = self.lost.clone();
        let stale = stale.filter(|_| context.has_bug(PlantedBug::StaleView));
        let view = stale.unwrap_or_else(|| self.chain.clone());
        let chains = (&self.chain, &view);
        if context.has_bug(PlantedBug::GuardsNotRestored) {
            *self.guards.lock() = GuardLog::default();
        }
        let logs = (&self.guards, &self.safe_log);
        let mut live = LiveNode::start(self.index, chains, logs, context);
        live.sequencer = self.key.map(SimSequencer::new);
        self.live = Some(Box::new(live));
        self.on_wake(context);
    }

    /// Ends the process at once. With `power` everything that was not synced is lost, also if the
    /// process is not running.
    pub fn crash(&mut self, power: bool, context: &mut SimContext) {
        // The kernel closes the connections of a process that ends.
        if let Some(live) = self.live.take().filter(|_| !power) {
            live.close_all(context);
        }
        if power {
            self.lost = self.chain.frozen();
            self.guards.lock().lose_unsynced();
        }
        let kind = if !power {
            CrashKind::Kill
        } else if context.has_bug(PlantedBug::LogLost) {
            CrashKind::LogLost
        } else {
            CrashKind::PowerLoss
        };
        self.chain.lock().crash(kind);
        self.check_core(context);
        context.history.note(
            context.now,
            self.index,
            format_args!("crashed, at {}", self.head()),
        );
    }

    pub fn on_message(&mut self, from: usize, message: SimMessage, context: &mut SimContext) {
        let Some(live) = &mut self.live else {
            if let SimMessage::Dial { connection } = message {
                let unanswered = true;
                let refused = SimMessage::Refused {
                    connection,
                    unanswered,
                };
                context.send(self.index, from, refused);
            }
            return;
        };
        context.checks.on_step(context.now, self.index);
        live.on_message(from, message, context);
        live.dispatch(context);
        self.schedule_wake(context);
    }

    pub fn on_wake(&mut self, context: &mut SimContext) {
        // An earlier wake-up may have been queued since.
        if self.wake.is_some_and(|at| at > context.now) {
            return;
        }
        self.wake = None;
        let Some(live) = &mut self.live else { return };
        context.checks.on_step(context.now, self.index);
        live.on_timer(context);
        live.dispatch(context);
        self.schedule_wake(context);
    }

    pub fn wake_now(&mut self, context: &mut SimContext) {
        self.wake = Some(context.now);
        context.queue.push(context.now, SimEvent::Wake(self.index));
    }

    /// Repeats a wake-up at the end of a freeze.
    pub fn postpone(&mut self, thaw: SimTime, context: &mut SimContext) {
        self.wake = Some(thaw);
        context.queue.push(thaw, SimEvent::Wake(self.index));
    }

    fn schedule_wake(&mut self, context: &mut SimContext) {
        self.check_core(context);
        let Some(live) = &self.live else { return };
        let next = live.next_wake(context).max(context.now);
        if self.wake.is_none_or(|at| next < at) {
            self.wake = Some(next);
            context.queue.push(next, SimEvent::Wake(self.index));
        }
    }

    /// Handles a node that discovery found.
    pub fn on_found(&mut self, other: usize, context: &mut SimContext) {
        if let Some(live) = &mut self.live {
            live.on_found(other, context);
            live.dispatch(context);
            self.schedule_wake(context);
        }
    }

    pub fn set_safe(&mut self, safe: BlockId, context: &mut SimContext) {
        self.chain.lock().set_safe(safe);
        if let Some(live) = &mut self.live {
            live.report_heads(context);
            live.dispatch(context);
            self.schedule_wake(context);
        }
    }
}

/// The machines of a running process.
pub struct LiveNode {
    me: usize,
    peer: PeerId,
    chain: SharedChain,
    sync: Sync,
    peers: Peers,
    connections: SimConnections,
    gossip: GossipSide,
    requests: Requests,
    serving: Serving,
    execution: SimExecution,
    guards: Arc<Mutex<GuardLog>>,
    safe_log: Arc<Mutex<SafeLog>>,
    derivation: Option<SimDerivation>,
    sequencer: Option<SimSequencer>,
    next_tick: SimTime,
}

/// The chain of a new node.
fn new_chain(index: usize, context: &SimContext) -> NodeChain {
    let Some(world) = &context.real else {
        return NodeChain::Tree(Box::new(TreeChain::new(&context.genesis)));
    };
    let mut faults = context.plan.active();
    let loses_power = faults.any(
        |(_, timed)| matches!(timed.fault, SimFault::Crash { node, power: true } if node == index),
    );
    let chain = RealChain::new(world, loses_power);
    NodeChain::Real(Box::new(chain.expect("a temporary store opens")))
}

impl LiveNode {
    fn start(
        me: usize,
        (chain, view): (&SharedChain, &SharedChain),
        (guards, safe_log): (&Arc<Mutex<GuardLog>>, &Arc<Mutex<SafeLog>>),
        context: &mut SimContext,
    ) -> Self {
        let (now, genesis) = (context.moment(me), context.chain_genesis());
        let config = peers_config(me, context);
        let peers = Peers::new(config, now).expect("a store in memory opens");
        let signer = context.l1.signer();
        Self {
            me,
            peer: context.directory.peers[me],
            sync: Sync::new(LIMITS, genesis.id, context.dice.random()),
            connections: SimConnections::new(peers.rules(), context.plan.nodes[me].hi),
            gossip: GossipSide::new(me, signer, view, context),
            requests: Requests::new(view, genesis),
            serving: Serving::new(chain, context),
            execution: SimExecution::new(context.now + context.plan.nodes[me].sync_every),
            peers,
            chain: chain.clone(),
            guards: guards.clone(),
            safe_log: safe_log.clone(),
            derivation: SimDerivation::new(me, context),
            sequencer: None,
            next_tick: context.now,
        }
    }

    fn on_message(&mut self, from: usize, message: SimMessage, context: &mut SimContext) {
        match message {
            SimMessage::Dial { connection } => self.on_dial(from, connection, context),
            SimMessage::Accepted { connection } => self.on_accepted(from, connection, context),
            SimMessage::Refused {
                connection,
                unanswered,
            } => self.on_dial_refused(connection, unanswered, context),
            SimMessage::Closed { connection } => {
                self.drop_link(from, connection, "closed", context);
            }
            SimMessage::NotConnected => self.disconnect(from, "reset", "", context),
            _ if !self.connections.is_connected(from) => {
                context.send(self.me, from, SimMessage::NotConnected);
            }
            message => {
                self.connections.heard(from, context.now);
                self.on_connected_message(from, message, context);
            }
        }
    }

    fn on_connected_message(&mut self, from: usize, message: SimMessage, context: &mut SimContext) {
        match message {
            SimMessage::Ping => context.send(self.me, from, SimMessage::Pong),
            SimMessage::Gossip { id, tagged } => self.on_gossip(from, id, tagged, context),
            SimMessage::Request { id, body } => self.serve(from, id, &body, context),
            SimMessage::Frame { id, bytes } => self.on_frame(from, id, bytes, context),
            SimMessage::End { id } => self.on_end(from, id, context),
            _ => {}
        }
    }

    /// Does the work that is due.
    fn on_timer(&mut self, context: &mut SimContext) {
        let (now, instant) = (context.now, context.instant());
        self.execute(context);
        self.connections_on_timer(context);
        self.dial_due(context);
        self.requests_on_timer(context);
        self.read_signer(context);
        if now >= self.next_tick {
            self.next_tick = now + SECOND;
            self.on_second(context);
        }
        let timer = self.sync.next_wake().is_some_and(|at| at <= instant);
        if timer && !context.has_bug(PlantedBug::TimerForgotten) {
            self.sync.on_timer(instant);
        }
        self.sequence(context);
    }

    fn on_second(&mut self, context: &mut SimContext) {
        let moment = context.moment(self.me);
        self.peers.reputation.on_time(moment.unix);
        self.dispatch_peers(context);
        self.peers.on_second(moment);
        self.gossip_on_second(context);
        self.trim_peers(context);
        self.dial_candidates(context);
        self.keep_alive(context);
        self.derive(context);
        self.sync_store(context);
        if self.requests.len() > REQUESTS {
            let detail = format!("{} requests in flight", self.requests.len());
            context.checks.fail(context.now, self.me, "bounds", detail);
        }
    }

    fn next_wake(&self, context: &SimContext) -> SimTime {
        let timer = self.sync.next_wake();
        let machines = [timer, self.peers.next_wake(), self.requests.next_status()];
        let instants = machines
            .into_iter()
            .flatten()
            .map(|at| context.sim_time(at));
        let own = [
            self.execution.next_wake(),
            self.connections.next_wake(),
            self.requests.next_deadline(),
            self.gossip.next_wake(),
            self.sequencer_wake(context),
        ];
        instants
            .chain(own.into_iter().flatten())
            .fold(self.next_tick, SimTime::min)
    }

    /// The block at the head; `None` if it cannot be read.
    fn head_block(&self) -> Option<Arc<Payload>> {
        let chain = self.chain.lock();
        let head = chain.heads().head;
        chain.at(head.number)
    }

    /// Carries out the actions of all machines, until none has another.
    fn dispatch(&mut self, context: &mut SimContext) {
        self.dispatch_peers(context);
        while let Some(action) = self.sync.poll() {
            self.on_sync_action(action, context);
            // As in the swarm's task, requests are sent before a peer is disconnected.
            while let Some(action) = self.sync.poll() {
                self.on_sync_action(action, context);
            }
            self.dispatch_peers(context);
        }
    }

    fn dispatch_peers(&mut self, context: &mut SimContext) {
        while let Some(action) = self.peers.poll() {
            if let PeersAction::Disconnect {
                peer,
                reason,
                evidence,
            } = action
                && let Some(index) = context.directory.index(&peer)
            {
                self.on_ban(index, &evidence, context);
                if !context.has_bug(PlantedBug::BanIgnored) {
                    self.disconnect(index, reason, &evidence, context);
                }
            }
        }
    }

    fn on_sync_action(&mut self, action: SyncAction, context: &mut SimContext) {
        match action {
            SyncAction::HandOver {
                payload,
                provenance,
                ..
            } => self.queue_block(payload, provenance, context),
            SyncAction::FetchNumber { id, peer, number } => {
                self.request_number(id, &peer, number, context);
            }
            SyncAction::FetchRange { id, peer, request } => {
                self.request_range(id, &peer, request, context);
            }
            SyncAction::Cancel { id } => self.requests.cancel(id),
            SyncAction::Penalize {
                peer,
                offence,
                evidence,
            } => {
                if let Some(index) = self.unrecorded_ban(&peer, context) {
                    self.on_ban(index, &evidence, context);
                    return self.disconnect(index, "banned", &evidence, context);
                }
                let moment = context.moment(self.me);
                self.peers.on_offence(peer, offence, &evidence, moment);
            }
            SyncAction::Note {
                peer,
                reason,
                evidence,
            } => {
                let moment = context.moment(self.me);
                self.peers.note(peer, reason, evidence, moment);
            }
            SyncAction::Drop { tip, why } => context.history.note(
                context.now,
                self.me,
                format_args!("drops tip {tip}: {why:?}"),
            ),
        }
    }

    /// The hostile peer that the node bans without its scores, if that bug is planted.
    fn unrecorded_ban(&self, peer: &PeerId, context: &SimContext) -> Option<usize> {
        let index = context.directory.index(peer)?;
        let is_hostile = context.plan.nodes[index].hostile.is_some();
        let is_banned = is_hostile && !self.peers.is_protected(peer);
        (is_banned && context.has_bug(PlantedBug::BanNotRecorded)).then_some(index)
    }

    /// No honest peer is banned by an honest one, and no static peer by any. The ledger has the ban
    /// with its reason.
    fn on_ban(&mut self, index: usize, evidence: &str, context: &mut SimContext) {
        let (now, plan) = (context.now, context.plan.clone());
        context
            .history
            .note(now, self.me, format_args!("bans n{index}: {evidence}"));
        if plan.nodes[self.me].hostile.is_some() {
            return;
        }
        if plan.nodes[index].hostile.is_none() {
            let detail = format!("banned node {index}: {evidence}");
            context
                .checks
                .fail(now, self.me, "honest_peer_banned", detail);
        }
        if plan.nodes[self.me].statics.contains(&index) {
            let detail = format!("banned node {index}: {evidence}");
            context
                .checks
                .fail(now, self.me, "static_peer_banned", detail);
        }
        let peer = context.directory.peers[index];
        let unix = context.moment(self.me).unix;
        let entries = self.peers.reputation.ledger().read(Some(&peer), usize::MAX);
        let mut bans = entries
            .iter()
            .filter(|entry| matches!(entry.change, LedgerChange::Banned { until } if until > unix));
        if !bans.any(|ban| !ban.reason.is_empty() && !ban.evidence.is_empty()) {
            let detail = format!("the ban of node {index} has no reason");
            context.checks.fail(now, self.me, "ledger", detail);
        }
    }

    /// The newest entry about a peer that has just disconnected says why.
    fn check_disconnect(&self, index: usize, context: &mut SimContext) {
        if context.plan.nodes[self.me].hostile.is_some() {
            return;
        }
        let peer = context.directory.peers[index];
        let newest = self.peers.reputation.ledger().read(Some(&peer), 1);
        let is_explained = newest
            .iter()
            .any(|entry| entry.change == LedgerChange::Disconnected && !entry.reason.is_empty());
        if !is_explained {
            let detail = format!("the disconnect of node {index} has no reason");
            context.checks.fail(context.now, self.me, "ledger", detail);
        }
    }

    /// The state of sync, for the detail of a violation.
    fn explain(&self, context: &SimContext) -> String {
        let stalled = self.sync.stall(context.instant()).map(|(_, why)| why);
        format!("{:?}, {stalled:?}", self.sync.report())
    }
}

fn peers_config(me: usize, context: &mut SimContext) -> PeersConfig {
    let (plan, directory) = (context.plan.clone(), &context.directory);
    let node = &plan.nodes[me];
    let address = |other: &usize| -> Option<Multiaddr> {
        let text = format!(
            "{}/p2p/{}",
            directory.addresses[*other], directory.peers[*other]
        );
        text.parse().ok()
    };
    let forgotten = context.has_bug(PlantedBug::StaticPeersForgotten);
    let statics = node.statics.iter().filter(|_| !forgotten);
    PeersConfig {
        local: directory.peers[me],
        static_peers: statics.filter_map(address).collect(),
        restrict: Vec::new(),
        policy: Policy::default(),
        limits: PeerLimits {
            lo: node.lo,
            hi: node.hi,
            ..PeerLimits::default()
        },
        slot: Duration::from_secs(super::context::BLOCK_TIME),
        peerstore: None,
        seed: if context.has_bug(PlantedBug::OwnDice) {
            rand::random()
        } else {
            context.dice.random()
        },
    }
}

/// The contact that discovery would make of a node's record.
fn contact(other: usize, context: &SimContext) -> Contact {
    Contact {
        peer: context.directory.peers[other],
        addresses: vec![context.directory.addresses[other].clone()],
        seq: 1,
        record: String::new(),
    }
}

/// The address of the key with which a sequencer signs.
fn key_address(key: u8) -> alloy_primitives::Address {
    keys::address(key)
}
