//! The context that the nodes of a world act in: time, dice, wires, L1, history and checks.

use super::{
    active::ActiveFaults,
    chain::{ChainKind, SharedChain},
    checks::{Checks, origin_of},
    history::SimHistory,
    keys,
    l1::SimL1,
    node::block_on,
    plan::SimPlan,
    planted::PlantedBug,
    queue::{EventQueue, SimTime},
    real::RealWorld,
    rollup::{SimRollup, USER, user_transaction},
    wires::{SimMessage, Wires},
    world::SimEvent,
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
    /// The rollup of a world whose nodes derive or execute.
    pub rollup: Option<SimRollup>,
    /// The parts that the execution cores of a real world share.
    pub real: Option<Arc<RealWorld>>,
    pub connections: u64,
    pub active: ActiveFaults,
}

impl SimContext {
    pub fn new(plan: &SimPlan, trace: bool) -> Self {
        let mut dice = StdRng::seed_from_u64(plan.seed.rotate_left(17) ^ 0x5eed);
        let l1 = SimL1::new();
        let rollup = |genesis| SimRollup::new(l1.hash(0), genesis);
        let real = (plan.chain == ChainKind::Real).then(|| {
            // The genesis block follows from the rules, which do not depend on it.
            let unknown = BlockId {
                number: 0,
                hash: B256::repeat_byte(1),
            };
            let world = RealWorld::new(&rollup(unknown).config, &plan.folder);
            Arc::new(world.expect("the temporary files of a world"))
        });
        let genesis = real
            .as_ref()
            .map_or_else(|| tree_genesis(&l1), |real| real.genesis());
        let has_rollup = real.is_some() || plan.derivation.is_some();
        let genesis = Arc::new(genesis);
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
            rollup: has_rollup.then(|| rollup(genesis.id())),
            real,
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

    /// The block that a sequencer builds on `parent` with this L1 origin. In real worlds its
    /// execution core builds the block.
    pub fn build_on(
        &self,
        chain: &SharedChain,
        parent: &Payload,
        origin: &L1Block,
        salt: B256,
    ) -> Option<Arc<Payload>> {
        let mut chain = chain.lock();
        let (Some(real), Some(rollup)) = (chain.real(), &self.rollup) else {
            return self.build(parent, origin, salt).map(Arc::new);
        };
        let mut attributes = rollup.attributes(parent, origin).ok()?;
        let nonce = real.nonce(parent.hash, USER)?;
        let transactions = attributes.transactions.get_or_insert_default();
        transactions.push(user_transaction(nonce, salt));
        real.build(parent.hash, attributes)
    }

    /// The L1 origin of a block. A real genesis block does not name it.
    pub fn origin_of(&self, block: &Payload) -> B256 {
        if block.number() == 0 {
            self.l1.hash(0)
        } else {
            origin_of(block)
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

/// The genesis block of a tree world, with its L1 origin as extra data.
fn tree_genesis(l1: &SimL1) -> Payload {
    let header = Header {
        timestamp: GENESIS_TIME,
        extra_data: l1.hash(0).to_vec().into(),
        ..Header::default()
    };
    Payload::sealed(header, Vec::new())
}
