//! A world: its nodes, the context that they act in, and the loop over its events.

use super::{
    active::ActiveFaults,
    batcher::SimBatcher,
    checks::{Checks, Violation, origin_of},
    history::SimHistory,
    keys,
    l1::{L1_BLOCK, SimL1},
    node::{SimNode, block_on},
    plan::{SimFault, SimPlan, TimedFault},
    planted::PlantedBug,
    queue::{EventQueue, SECOND, SimTime},
    rollup::SimRollup,
    wires::{SimMessage, Wires},
};
use alloy_consensus::Header;
use alloy_primitives::{B256, map::HashMap};
use rand::{Rng, SeedableRng, rngs::StdRng};
use starling_p2p::{ChainGenesis, Multiaddr, PeerId, machines::Moment};
use starling_proto::{
    attributes::L1Block,
    fork::ForkSchedule,
    payload::{BlockId, Payload, PayloadVersion},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// L2 chain id of every world.
pub const CHAIN_ID: u64 = 901;
/// Unix time at which every world begins, which is the time of its first block.
pub const GENESIS_TIME: u64 = 1_700_000_000;
pub const BLOCK_TIME: u64 = 2;
/// Time between two finds of discovery, for each node.
const DISCOVERY: SimTime = 10 * SECOND;
/// Time between two safe heads.
const SAFE: SimTime = 12 * SECOND;
/// Number of blocks from the safe head to the head.
const SAFE_LAG: u64 = 45;
/// Number of L1 blocks from the origin of a safe block to the head of L1: no reorg is as deep.
const SAFE_ORIGIN: u64 = 6;
/// Time between two steps of the batcher.
const BATCHER_STEP: SimTime = 4 * SECOND;
/// Number of blocks by which the safe head of a node may be behind the head at the end: a channel
/// takes up to two minutes from its first block to its last confirmation.
const SAFE_BEHIND: u64 = 75;
/// Time for which a new sequencer waits for the last block of the old one.
const TAKEOVER: SimTime = 45 * SECOND;
/// Time before the end of a world at which the block is taken that all nodes must have.
const SETTLED: SimTime = 12 * SECOND;

/// An event of a world.
pub enum SimEvent {
    Deliver {
        from: usize,
        to: usize,
        message: SimMessage,
    },
    Wake(usize),
    /// A fault begins (`true`) or ends.
    Fault(usize, bool),
    /// The link of a flapping pair is cut (`true`) or connected.
    Flap(usize, bool),
    Discovery,
    Safe,
    /// L1 is about to have another block.
    L1Block,
    Batcher,
    /// The new sequencer, which signs with this key, starts if it has the last block of the old
    /// one, or at `deadline`.
    Takeover {
        key: u8,
        deadline: SimTime,
    },
    /// The block is taken that all nodes must have at the end.
    Settled,
}

/// The result of a world.
#[derive(Debug)]
pub struct SimOutcome {
    /// The first violation.
    pub violation: Option<Violation>,
    /// The first violation of each other check, if the world went on.
    pub others: Vec<Violation>,
    /// Hash of the history.
    pub history: u64,
    pub trace: Option<String>,
    /// Height of the sequencer at the end.
    pub height: u64,
    pub events: u64,
}

/// Names of the nodes.
pub struct SimDirectory {
    pub peers: Vec<PeerId>,
    pub addresses: Vec<Multiaddr>,
    indices: HashMap<PeerId, usize>,
}

impl SimDirectory {
    fn new(count: usize, dice: &mut StdRng) -> Self {
        let peer = |_| {
            // A multihash: the code of SHA-256, and its length.
            let mut bytes = vec![0x12, 0x20];
            bytes.extend(dice.random::<[u8; 32]>());
            PeerId::from_bytes(&bytes).expect("a multihash of SHA-256 is a peer id")
        };
        let peers: Vec<PeerId> = (0..count).map(peer).collect();
        let address = |index: usize| {
            let text = format!("/ip4/20.0.{index}.1/tcp/9222");
            text.parse().expect("an address of the right form")
        };
        Self {
            addresses: (0..count).map(address).collect(),
            indices: peers.iter().copied().zip(0..).collect(),
            peers,
        }
    }

    pub fn index(&self, peer: &PeerId) -> Option<usize> {
        self.indices.get(peer).copied()
    }
}

/// Everything outside of a node.
pub struct SimContext {
    pub now: SimTime,
    pub base: Instant,
    pub plan: Arc<SimPlan>,
    pub queue: EventQueue<SimEvent>,
    pub wires: Wires,
    pub dice: StdRng,
    pub history: SimHistory,
    pub checks: Checks,
    pub l1: SimL1,
    pub directory: SimDirectory,
    pub genesis: Arc<Payload>,
    /// The rollup of a world whose nodes derive.
    pub rollup: Option<SimRollup>,
    pub connections: u64,
    pub active: ActiveFaults,
}

impl SimContext {
    fn new(plan: &SimPlan, trace: bool) -> Self {
        let mut dice = StdRng::seed_from_u64(plan.seed.rotate_left(17) ^ 0x5eed);
        let l1 = SimL1::new();
        let header = Header {
            timestamp: GENESIS_TIME,
            extra_data: l1.hash(0).to_vec().into(),
            ..Header::default()
        };
        let genesis = Arc::new(Payload::sealed(header, Vec::new()));
        let derivation = plan.derivation.as_ref();
        Self {
            now: 0,
            base: Instant::now(),
            plan: Arc::new(plan.clone()),
            queue: EventQueue::new(),
            wires: Wires::new(plan),
            directory: SimDirectory::new(plan.nodes.len(), &mut dice),
            dice,
            history: SimHistory::new(trace),
            checks: Checks::new(keys::address(0)),
            rollup: derivation.map(|_| SimRollup::new(l1.hash(0), genesis.id())),
            l1,
            genesis,
            connections: 0,
            active: ActiveFaults::default(),
        }
    }

    pub fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    /// The virtual time of an instant, rounded up.
    pub fn sim_time(&self, at: Instant) -> SimTime {
        super::queue::sim_time(at.saturating_duration_since(self.base))
    }

    /// The wall clock of a node.
    pub fn wall(&self, node: usize) -> Duration {
        let wall = Duration::from_secs(GENESIS_TIME) + Duration::from_micros(self.now);
        let seconds = self.active.skew(node);
        let skew = Duration::from_secs(seconds.unsigned_abs());
        if seconds < 0 {
            wall - skew
        } else {
            wall + skew
        }
    }

    /// The virtual time at which a node's wall clock shows `wall`.
    pub fn time_of_wall(&self, node: usize, wall: Duration) -> SimTime {
        let wait = wall.saturating_sub(self.wall(node));
        self.now + super::queue::sim_time(wait)
    }

    pub fn moment(&self, node: usize) -> Moment {
        Moment {
            instant: self.instant(),
            unix: self.wall(node).as_secs(),
        }
    }

    pub fn chain_genesis(&self) -> ChainGenesis {
        ChainGenesis {
            id: self.genesis.id(),
            time: GENESIS_TIME,
            block_time: BLOCK_TIME,
        }
    }

    /// The forks of all blocks.
    pub fn forks(&self) -> ForkSchedule {
        let config = self.rollup.as_ref().map(|rollup| &rollup.config);
        config.map_or_else(ForkSchedule::default, |config| config.forks.clone())
    }

    /// The encoding of all blocks in gossip.
    pub fn payload_version(&self) -> PayloadVersion {
        self.forks().payload_version(GENESIS_TIME)
    }

    /// A block on `parent` with this L1 origin. `salt` distinguishes blocks that are otherwise
    /// equal. `None` if no block on `parent` can have the origin.
    pub fn build(&self, parent: &Payload, origin: &L1Block, salt: B256) -> Option<Payload> {
        match &self.rollup {
            Some(rollup) => rollup.build(parent, origin, salt).ok(),
            None => Some(block_on(parent, origin.hash, salt)),
        }
    }

    pub fn has_bug(&self, bug: PlantedBug) -> bool {
        self.plan.bug == bug
    }

    /// The peers in the order in which they are sent to.
    pub fn ordered(&self, peers: Vec<usize>) -> Vec<usize> {
        if self.has_bug(PlantedBug::MapOrder) {
            let set: std::collections::HashSet<usize> = peers.into_iter().collect();
            return set.into_iter().collect();
        }
        peers
    }

    /// Sends a message after `wait`.
    pub fn send_after(&mut self, wait: SimTime, from: usize, to: usize, message: SimMessage) {
        let now = self.now + wait;
        let arrivals = self
            .wires
            .arrivals((from, to), &message, now, &mut self.dice);
        for at in arrivals.into_iter().flatten() {
            let message = message.clone();
            self.queue.push(at, SimEvent::Deliver { from, to, message });
        }
    }

    pub fn send(&mut self, from: usize, to: usize, message: SimMessage) {
        self.send_after(0, from, to, message);
    }
}

/// Runs a plan to its end, or to the first violation.
pub fn simulate(plan: &SimPlan, trace: bool) -> SimOutcome {
    SimWorld::new(plan, trace).run(|checks| checks.violation().is_some())
}

/// Runs a plan to its end, also after violations, unless time no longer advances.
pub fn simulate_to_end(plan: &SimPlan) -> SimOutcome {
    SimWorld::new(plan, false).run(Checks::is_hot)
}

/// The last sequencer of a handover.
struct PendingHandover {
    /// The last block, for which the new sequencer waits.
    last: BlockId,
    derived: Vec<Arc<Payload>>,
}

struct SimWorld {
    context: SimContext,
    nodes: Vec<SimNode>,
    /// The node that sequences, and the number of keys used so far.
    sequencer: usize,
    keys: u8,
    /// The handover whose new sequencer has not started yet.
    handover: Option<PendingHandover>,
    batcher: Option<SimBatcher>,
    /// The block that all nodes must have at the end.
    settled: Option<BlockId>,
    events: u64,
}

impl SimWorld {
    fn new(plan: &SimPlan, trace: bool) -> Self {
        let mut context = SimContext::new(plan, trace);
        let mut nodes: Vec<SimNode> = (0..plan.nodes.len())
            .map(|index| SimNode::new(index, &context))
            .collect();
        nodes[0].make_sequencer(Some(0));
        for (index, fault) in plan.active() {
            context.queue.push(fault.from, SimEvent::Fault(index, true));
            context
                .queue
                .push(fault.until, SimEvent::Fault(index, false));
        }
        context.queue.push(SECOND, SimEvent::Discovery);
        if plan.derivation.is_some() {
            context.queue.push(L1_BLOCK - 1, SimEvent::L1Block);
            context.queue.push(BATCHER_STEP, SimEvent::Batcher);
        } else {
            context.queue.push(SAFE, SimEvent::Safe);
        }
        context.queue.push(plan.end() - SETTLED, SimEvent::Settled);
        for node in &mut nodes {
            node.start(&mut context);
        }
        let derivation = plan.derivation.as_ref();
        let genesis = context.genesis.id();
        Self {
            batcher: derivation.map(|plan| SimBatcher::new(plan, genesis)),
            context,
            nodes,
            sequencer: 0,
            keys: 1,
            handover: None,
            settled: None,
            events: 0,
        }
    }

    fn run(mut self, stops: impl Fn(&Checks) -> bool) -> SimOutcome {
        let end = self.context.plan.end();
        while !stops(&self.context.checks)
            && let Some((at, event)) = self.context.queue.pop(end)
        {
            self.context.now = at;
            self.events += 1;
            self.on_event(event);
        }
        self.context.now = self.context.now.max(end.min(self.context.now + 1));
        if !stops(&self.context.checks) {
            self.context.now = end;
            self.check_liveness();
        }
        let height = self.nodes[self.sequencer].head().number;
        let mut violations = self.context.checks.into_violations().into_iter();
        SimOutcome {
            violation: violations.next(),
            others: violations.collect(),
            history: self.context.history.hash(),
            trace: self.context.history.into_trace(),
            height,
            events: self.events,
        }
    }

    fn on_event(&mut self, event: SimEvent) {
        match event {
            SimEvent::Deliver { from, to, message } => {
                if self.delays_frozen(to) {
                    let event = SimEvent::Deliver { from, to, message };
                    self.context.queue.push(self.nodes[to].frozen_until, event);
                } else {
                    self.nodes[to].on_message(from, message, &mut self.context);
                }
            }
            SimEvent::Wake(node) => {
                if self.delays_frozen(node) {
                    let thaw = self.nodes[node].frozen_until;
                    self.nodes[node].postpone(thaw, &mut self.context);
                } else {
                    self.nodes[node].on_wake(&mut self.context);
                }
            }
            SimEvent::Fault(index, begins) => self.on_fault(index, begins),
            SimEvent::Flap(index, cut) => self.on_flap(index, cut),
            SimEvent::Discovery => self.on_discovery(),
            SimEvent::Safe => self.on_safe(),
            SimEvent::L1Block => self.on_l1_block(),
            SimEvent::Batcher => self.on_batcher(),
            SimEvent::Takeover { key, deadline } => self.on_takeover(key, deadline),
            SimEvent::Settled => self.settled = Some(self.nodes[self.sequencer].head()),
        }
    }

    fn delays_frozen(&self, node: usize) -> bool {
        self.nodes[node].frozen_until > self.context.now
    }

    fn on_fault(&mut self, index: usize, begins: bool) {
        let plan = self.context.plan.clone();
        let timed = &plan.faults[index];
        let context = &mut self.context;
        let (from, text) = (timed.fault, if begins { "begins" } else { "ends" });
        context.history.note(
            context.now,
            0,
            format_args!("fault {index} {text}: {from:?}"),
        );
        if begins {
            context.active.begin(index, *timed);
        } else {
            context.active.end(index);
        }
        context.wires.apply(&context.active);
        context.l1.reachable = !context.active.is_l1_down();
        match timed.fault {
            SimFault::Flap { .. } if begins => self.on_flap(index, true),
            SimFault::Crash { node, power } if begins => self.nodes[node].crash(power, context),
            // Another crash may keep the node down.
            SimFault::Crash { node, .. } if !context.active.is_down(node) => {
                self.nodes[node].start(context);
            }
            SimFault::Freeze { node } => {
                self.nodes[node].frozen_until = context.active.frozen_until(node);
            }
            SimFault::Skew { node, .. } => self.nodes[node].wake_now(context),
            SimFault::L1Reorg { depth } if begins => {
                context.checks.may_reorg = true;
                context.l1.reorg(depth, context.now, &mut context.dice);
            }
            SimFault::Handover { to } if begins => self.hand_over(to, timed),
            _ => {}
        }
    }

    /// Cuts or connects a flapping link, until the fault ends.
    fn on_flap(&mut self, index: usize, cut: bool) {
        let context = &mut self.context;
        let TimedFault { until, fault, .. } = context.plan.faults[index];
        let SimFault::Flap { period, .. } = fault else {
            return;
        };
        if context.now >= until {
            return;
        }
        context.active.flap(index, cut);
        context.wires.apply(&context.active);
        let next = context.now + period;
        context.queue.push(next, SimEvent::Flap(index, !cut));
    }

    /// The old sequencer stops, L1 names a new key, and the new sequencer waits for the last block.
    fn hand_over(&mut self, to: usize, fault: &TimedFault) {
        let old = &mut self.nodes[self.sequencer];
        old.make_sequencer(None);
        // The new sequencer of an earlier handover may be far behind.
        self.handover.get_or_insert_with(|| PendingHandover {
            last: old.head(),
            derived: old.safe_chain(),
        });
        self.sequencer = to;
        let key = self.keys;
        let signer = keys::address(key);
        self.keys += 1;
        let context = &mut self.context;
        context.checks.may_reorg = true;
        context.checks.on_signer_named(signer);
        context.l1.set_signer(signer);
        let deadline = (context.now + TAKEOVER).min(fault.until.max(context.now + SECOND));
        let takeover = SimEvent::Takeover { key, deadline };
        context.queue.push(context.now + SECOND, takeover);
    }

    fn on_takeover(&mut self, key: u8, deadline: SimTime) {
        // A later handover has named another sequencer.
        if key + 1 != self.keys {
            return;
        }
        let context = &mut self.context;
        let node = &mut self.nodes[self.sequencer];
        let is_late = context.now >= deadline;
        let ready = |handover: &mut PendingHandover| is_late || node.has(&handover.last.hash);
        if let Some(handover) = self.handover.take_if(ready) {
            // A node that was behind has derived the safe chain from L1.
            node.derive(&handover.derived, context);
            node.make_sequencer(Some(key));
            node.wake_now(context);
        } else {
            let next = context.now + SECOND;
            let takeover = SimEvent::Takeover { key, deadline };
            context.queue.push(next, takeover);
        }
    }

    /// Each node finds one other node.
    fn on_discovery(&mut self) {
        let (context, count) = (&mut self.context, self.nodes.len());
        for index in 0..count {
            let other = context.dice.random_range(0..count);
            let frozen = self.nodes[index].frozen_until > context.now;
            if other != index && !frozen && !context.wires.is_cut(index, other) {
                self.nodes[index].on_found(other, context);
            }
        }
        context
            .queue
            .push(context.now + DISCOVERY, SimEvent::Discovery);
    }

    fn on_l1_block(&mut self) {
        let context = &mut self.context;
        context.l1.mine(context.now, &mut context.dice);
        context
            .queue
            .push(context.now + L1_BLOCK, SimEvent::L1Block);
    }

    /// The batcher, which runs beside the sequencer's node, does its work.
    fn on_batcher(&mut self) {
        let (context, node) = (&mut self.context, &self.nodes[self.sequencer]);
        context
            .queue
            .push(context.now + BATCHER_STEP, SimEvent::Batcher);
        if let Some(batcher) = &mut self.batcher
            && node.frozen_until <= context.now
        {
            node.batch(batcher, context);
        }
    }

    /// Without derivation: the block [`SAFE_LAG`] below the sequencer's head becomes safe on each node
    /// that is not frozen and has it on its chain, if L1 is reachable and the block's origin is deep
    /// enough.
    fn on_safe(&mut self) {
        let context = &mut self.context;
        context.queue.push(context.now + SAFE, SimEvent::Safe);
        let Some(safe) = self.nodes[self.sequencer].below_head(SAFE_LAG) else {
            return;
        };
        let origin = SimL1::number(&origin_of(&safe));
        if context.l1.reachable && origin + SAFE_ORIGIN <= SimL1::head(context.now) {
            let safe = safe.id();
            for node in &mut self.nodes {
                if node.frozen_until <= context.now {
                    node.set_safe(safe, context);
                }
            }
        }
    }

    /// All honest nodes have the block that the sequencer had a while ago, and it is a new one.
    fn check_liveness(&mut self) {
        let context = &mut self.context;
        let Some(settled) = self.settled else { return };
        let expected = (context.now - SETTLED) / SECOND / BLOCK_TIME;
        if settled.number + 5 < expected {
            let detail = format!("the sequencer is at {settled}, not at {expected}");
            let at = context.now;
            context
                .checks
                .fail(at, self.sequencer, "sequencer_behind", detail);
        }
        let derives = context.rollup.is_some();
        let least = settled.number.saturating_sub(SAFE_BEHIND);
        for node in self.nodes.iter().filter(|node| node.is_honest()) {
            node.check_liveness(settled, context);
            if derives {
                node.check_safe(least, &self.nodes[self.sequencer], context);
            }
        }
    }
}
