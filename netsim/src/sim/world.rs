//! A world: its nodes, and the loop over its events.

use super::{
    batcher::SimBatcher,
    checks::{Checks, Violation, origin_of},
    context::{BLOCK_TIME, SimContext},
    keys,
    l1::{L1_BLOCK, SimL1},
    node::SimNode,
    plan::{SimFault, SimPlan, TimedFault},
    queue::{SECOND, SimTime},
    real::ImportTime,
    wires::SimMessage,
};
use rand::Rng;
use starling_proto::payload::{BlockId, Payload};
use std::sync::Arc;

/// Time between two finds of discovery, for each node.
const DISCOVERY: SimTime = 10 * SECOND;
/// Time between two safe heads.
const SAFE: SimTime = 12 * SECOND;
/// Number of blocks from the safe head to the head.
const SAFE_LAG: u64 = 45;
/// Number of L1 blocks from the origin of a safe block to the head of L1: no reorg is as deep.
const SAFE_ORIGIN: u64 = 6;
/// Time between two steps of the batcher.
const BATCHER_STEP: SimTime = 2 * SECOND;
/// Number of blocks by which the safe head of a node may be behind the head at the end: a channel
/// takes up to two minutes from its first block to its last inclusion, and a minute more while the
/// base fee of L1 is high.
const SAFE_BEHIND: u64 = 95;
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
    /// The cost of the blocks that real chains have imported.
    pub import: ImportTime,
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
    /// The old sequencer, which made that block.
    old: usize,
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
        Self {
            batcher: derivation.map(|plan| SimBatcher::new(plan, &mut context)),
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
        let mut import = ImportTime::default();
        for node in &self.nodes {
            import += node.import_time();
        }
        let mut violations = self.context.checks.into_violations().into_iter();
        SimOutcome {
            violation: violations.next(),
            others: violations.collect(),
            history: self.context.history.hash(),
            trace: self.context.history.into_trace(),
            height,
            events: self.events,
            import,
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
        let old = self.sequencer;
        self.nodes[old].make_sequencer(None);
        // The new sequencer of an earlier handover may be far behind.
        self.handover.get_or_insert_with(|| PendingHandover {
            last: self.nodes[old].head(),
            old,
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
        let is_late = self.context.now >= deadline;
        let node = &self.nodes[self.sequencer];
        let ready = |handover: &mut PendingHandover| is_late || node.has(&handover.last.hash);
        let handover = self.handover.take_if(ready);
        let derived = handover.map(|handover| self.safe_chain(handover.old));
        let (context, node) = (&mut self.context, &mut self.nodes[self.sequencer]);
        if let Some(derived) = derived {
            // A node that was behind has derived the safe chain from L1.
            node.derive(&derived, context);
            node.make_sequencer(Some(key));
            node.wake_now(context);
        } else {
            let next = context.now + SECOND;
            let takeover = SimEvent::Takeover { key, deadline };
            context.queue.push(next, takeover);
        }
    }

    /// The safe chain on which a new sequencer builds: that of the old one, or, in worlds without
    /// derivation, the highest of all nodes, since a node that is frozen or down misses safe heads.
    fn safe_chain(&self, old: usize) -> Vec<Arc<Payload>> {
        if self.context.plan.derivation.is_some() {
            return self.nodes[old].safe_chain();
        }
        let chains = self.nodes.iter().map(SimNode::safe_chain);
        chains.max_by_key(Vec::len).unwrap_or_default()
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
        if let Some(batcher) = &mut self.batcher {
            node.batch(batcher, context);
        }
    }

    /// Without derivation: the block [`SAFE_LAG`] below the sequencer's head becomes safe on each node
    /// that is not frozen and has it on its chain, if L1 is reachable, and the block's origin is on it
    /// and deep enough.
    fn on_safe(&mut self) {
        let context = &mut self.context;
        context.queue.push(context.now + SAFE, SimEvent::Safe);
        let Some(safe) = self.nodes[self.sequencer].below_head(SAFE_LAG) else {
            return;
        };
        let origin = origin_of(&safe);
        let is_deep = SimL1::number(&origin) + SAFE_ORIGIN <= SimL1::head(context.now);
        if context.l1.reachable && is_deep && context.l1.is_canonical(&origin, context.now) {
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
        let derives = context.plan.derivation.is_some();
        let least = settled.number.saturating_sub(SAFE_BEHIND);
        for node in self.nodes.iter().filter(|node| node.is_honest()) {
            node.check_liveness(settled, context);
            if derives {
                node.check_safe(least, &self.nodes[self.sequencer], context);
            }
            node.check_store(context);
        }
    }
}
