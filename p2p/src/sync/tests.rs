//! The machine against a model: a chain, peers of every kind, and time moved by hand.

use super::{sources::PATIENCE, *};
use crate::limits::{Bucket, PER_PEER};
use alloy_consensus::Header;
use alloy_primitives::Bytes;
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::collections::{BTreeMap, HashMap, HashSet};

const SIGNER: Address = Address::repeat_byte(7);

/// A branch of `count` blocks on `parent`; `salt` tells branches apart, `weight` is the size of each block's transaction.
fn branch(parent: BlockId, count: u64, salt: u64, weight: usize) -> Vec<Arc<Payload>> {
    let mut parent = parent;
    let mut blocks = Vec::new();
    for _ in 0..count {
        let header = Header {
            parent_hash: parent.hash,
            number: parent.number + 1,
            timestamp: salt,
            ..Default::default()
        };
        let block = Arc::new(Payload::sealed(header, vec![Bytes::from(vec![0; weight])]));
        parent = block.id();
        blocks.push(block);
    }
    blocks
}

fn genesis() -> BlockId {
    BlockId {
        hash: B256::repeat_byte(0xaa),
        number: 5,
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Serves the canonical chain after a delay of so many milliseconds.
    Honest(u64),
    /// The same, no faster than op-node does.
    OpNode,
    /// Serves a chain of its own.
    OtherBranch,
    Lacks,
    Silent,
    Garbles,
}

/// Request, outcome, peer.
type Answer = (u64, Result<Arc<Payload>, Failure>, PeerId);

/// Peers, a chain that executes what it is handed, and a clock.
struct World {
    sync: Sync,
    now: Instant,
    canonical: BTreeMap<u64, Arc<Payload>>,
    other: BTreeMap<u64, Arc<Payload>>,
    peers: BTreeMap<PeerId, Kind>,
    executed: HashSet<B256>,
    /// Blocks that execution will find invalid, and those it has found so.
    invalid: HashSet<B256>,
    judged: HashSet<B256>,
    handed: Vec<B256>,
    provenances: Vec<Provenance>,
    unsettled: BTreeMap<(Instant, usize), Arc<Payload>>,
    answers: BTreeMap<(Instant, u64), Answer>,
    requests: HashMap<u64, u64>,
    asked: HashMap<PeerId, u64>,
    buckets: HashMap<PeerId, Bucket>,
    blames: Vec<(PeerId, Fault)>,
    dropped: Vec<(BlockId, Dropped)>,
    /// How long the chain takes for a block.
    execution: Duration,
}

impl World {
    fn new(limits: Limits, canonical: &[Arc<Payload>]) -> Self {
        Self {
            sync: Sync::new(limits, genesis(), 1),
            now: Instant::now(),
            canonical: canonical.iter().map(|b| (b.number(), b.clone())).collect(),
            other: branch(genesis(), canonical.len() as u64, 999, 10)
                .into_iter()
                .map(|b| (b.number(), b))
                .collect(),
            peers: BTreeMap::new(),
            executed: HashSet::from([genesis().hash]),
            invalid: HashSet::new(),
            judged: HashSet::new(),
            handed: Vec::new(),
            provenances: Vec::new(),
            unsettled: BTreeMap::new(),
            answers: BTreeMap::new(),
            requests: HashMap::new(),
            asked: HashMap::new(),
            buckets: HashMap::new(),
            blames: Vec::new(),
            dropped: Vec::new(),
            execution: Duration::from_millis(2),
        }
    }

    fn connect(&mut self, kind: Kind) -> PeerId {
        let peer = PeerId::random();
        self.peers.insert(peer, kind);
        self.sync.on_peer(peer, self.now);
        self.act();
        peer
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.sync.on_peer_gone(peer, self.now);
        let lost: Vec<_> = self
            .answers
            .iter()
            .filter(|(_, a)| a.2 == peer)
            .map(|(at, a)| (*at, a.0))
            .collect();
        for (at, id) in lost {
            self.answers.remove(&at);
            self.sync
                .on_fetched(id, Err(Failure::Unreachable), self.now);
        }
        self.act();
    }

    fn arrival(&self, payload: &Arc<Payload>, from: Option<PeerId>) -> Arrival {
        let known = self.executed.contains(&payload.hash);
        let parent_known = self.executed.contains(&payload.parent_hash());
        Arrival {
            payload: payload.clone(),
            from,
            known,
            parent_known,
        }
    }

    fn gossip(&mut self, block: &Arc<Payload>) {
        let arrival = self.arrival(block, None);
        self.sync.on_gossip(arrival, SIGNER, self.now);
        self.act();
    }

    /// Does what the machine asks, checking the promises it makes.
    fn act(&mut self) {
        while let Some(action) = self.sync.poll() {
            match action {
                Action::HandOver {
                    payload,
                    provenance,
                    ..
                } => {
                    self.provenances.push(provenance);
                    let parent = payload.parent_hash();
                    assert!(
                        self.executed.contains(&parent) || self.handed.contains(&parent),
                        "parents first"
                    );
                    assert!(
                        !self.judged.contains(&parent),
                        "no child of a block found invalid"
                    );
                    self.handed.push(payload.hash);
                    let free = self
                        .unsettled
                        .last_key_value()
                        .map_or(self.now, |((at, _), _)| *at);
                    self.unsettled
                        .insert((free + self.execution, self.handed.len()), payload);
                    let weight: usize = self.unsettled.values().map(|p| p.weight()).sum();
                    let limits = self.sync.limits;
                    assert!(self.unsettled.len() <= limits.unsettled);
                    assert!(
                        self.unsettled.len() == 1 || weight <= limits.unsettled_bytes,
                        "credit kept"
                    );
                }
                Action::Fetch { id, peer, number } => {
                    *self.requests.entry(number).or_default() += 1;
                    *self.asked.entry(peer).or_default() += 1;
                    let lag = Duration::from_millis;
                    let (wait, answer) = match self.peers[&peer] {
                        Kind::Honest(ms) => (
                            lag(ms),
                            self.canonical
                                .get(&number)
                                .cloned()
                                .ok_or(Failure::NotFound),
                        ),
                        Kind::OpNode => {
                            let bucket = self
                                .buckets
                                .entry(peer)
                                .or_insert_with(|| Bucket::new(PER_PEER, self.now));
                            (
                                lag(20) + bucket.take(self.now),
                                self.canonical
                                    .get(&number)
                                    .cloned()
                                    .ok_or(Failure::NotFound),
                            )
                        }
                        Kind::OtherBranch => (
                            lag(1),
                            self.other.get(&number).cloned().ok_or(Failure::NotFound),
                        ),
                        Kind::Lacks => (lag(1), Err(Failure::NotFound)),
                        Kind::Silent => (lag(10_000), Err(Failure::Unreachable)),
                        Kind::Garbles => (lag(1), Err(Failure::Malformed)),
                    };
                    // Answers come in any order.
                    self.answers.insert(
                        (self.now + wait + Duration::from_micros(id * 7919 % 50), id),
                        (id, answer, peer),
                    );
                    assert!(self.answers.len() <= MAX_FLIGHTS + 8);
                    let from_one = self.answers.values().filter(|a| a.2 == peer).count();
                    assert!(from_one <= WINDOW + 1, "{from_one} at once from one peer");
                }
                Action::Blame { peer, fault, .. } => self.blames.push((peer, fault)),
                Action::Dropped { tip, why } => self.dropped.push((tip, why)),
                Action::Range(order) => panic!("nobody here speaks that: {order:?}"),
            }
        }
        let gap = self.sync.gap.as_ref();
        let largest = self
            .canonical
            .values()
            .chain(self.other.values())
            .map(|b| b.weight())
            .max()
            .unwrap_or_default();
        assert!(
            gap.is_none_or(|gap| gap.bytes() <= self.sync.limits.bodies.max(largest)),
            "bodies within their budget"
        );
    }

    /// Lets the next thing happen; false when nothing will before `end`.
    fn step(&mut self, end: Instant) -> bool {
        let answer = self.answers.first_key_value().map(|((at, _), _)| *at);
        let settled = self.unsettled.first_key_value().map(|((at, _), _)| *at);
        let Some(at) = answer
            .into_iter()
            .chain(settled)
            .chain(self.sync.wakeup())
            .min()
            .filter(|at| *at <= end)
        else {
            return false;
        };
        assert!(
            at > self.now || answer == Some(at) || settled == Some(at),
            "a timer in the past is a hot loop"
        );
        self.now = self.now.max(at);
        if answer == Some(at) {
            if let Some((_, (id, answer, peer))) = self.answers.pop_first() {
                let outcome = answer.map(|payload| self.arrival(&payload, Some(peer)));
                self.sync.on_fetched(id, outcome, self.now);
            }
        } else if settled == Some(at) {
            if let Some((_, payload)) = self.unsettled.pop_first() {
                self.settle(&payload);
            }
        } else {
            self.sync.on_timer(self.now);
        }
        self.act();
        true
    }

    fn settle(&mut self, payload: &Payload) {
        let bad =
            self.invalid.contains(&payload.hash) || self.invalid.contains(&payload.parent_hash());
        let verdict = if bad {
            Settled::Invalid("bad state root".into())
        } else {
            Settled::Ok
        };
        if bad {
            self.invalid.insert(payload.hash);
            self.judged.insert(payload.hash);
        } else {
            self.executed.insert(payload.hash);
        }
        self.sync.on_settled(payload.hash, &verdict, self.now);
    }

    fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        while self.step(end) {}
    }

    fn has(&self, block: &Payload) -> bool {
        self.executed.contains(&block.hash)
    }
}

#[test]
fn blocks_in_order_pass_straight_through() {
    let chain = branch(genesis(), 10, 1, 10);
    let mut world = World::new(Limits::default(), &chain);
    for block in &chain {
        world.gossip(block);
    }
    assert_eq!(
        world.handed,
        chain.iter().map(|b| b.hash).collect::<Vec<_>>()
    );
    assert!(
        world.requests.is_empty(),
        "a parent handed over and not settled counts as known"
    );
}

#[test]
fn while_a_rollup_node_drives_blocks_are_fetched_for_the_heads_that_it_names_alone() {
    let chain = branch(genesis(), 80, 1, 100);
    let mut world = World::new(Limits::default(), &chain);
    world.connect(Kind::Honest(1));
    let named = |world: &mut World, block: &Arc<Payload>| {
        let arrival = world.arrival(block, None);
        world.sync.on_named(arrival, world.now);
        world.act();
        world.run(Duration::from_secs(10));
    };
    // A gap is dropped when the rollup node begins to drive, and gossip opens no other.
    world.gossip(&chain[40]);
    world.sync.on_driven(true, world.now);
    world.act();
    world.run(Duration::from_secs(5));
    world.gossip(&chain[41]);
    world.run(Duration::from_secs(5));
    assert!(
        world.handed.is_empty() && !world.has(&chain[41]),
        "{}",
        world.handed.len()
    );
    // The next block is executed all the same.
    world.gossip(&chain[0]);
    world.run(Duration::from_secs(1));
    assert!(world.has(&chain[0]));
    // Above a named block gossip goes on, and only what is below that leads to it.
    named(&mut world, &chain[20]);
    assert!(world.has(&chain[20]) && !world.has(&chain[21]));
    assert_eq!(
        world.provenances[1..20],
        [Provenance::Ancestor { of: chain[20].id() }; 19]
    );
    assert_eq!(world.provenances[20..], [Provenance::Engine]);
    world.requests.clear();
    named(&mut world, &chain[20]);
    assert!(
        world.requests.is_empty() && world.handed.len() == 21,
        "again: nothing to do"
    );
    world.gossip(&chain[21]);
    world.run(Duration::from_secs(1));
    assert_eq!(world.provenances[21..], [Provenance::Signed(SIGNER)]);
    // The rollup node is silent: gossip opens gaps again.
    world.sync.on_driven(false, world.now);
    world.gossip(&chain[60]);
    world.run(Duration::from_secs(10));
    assert!(world.has(&chain[60]));
    assert_eq!(
        world.provenances[22..60],
        [Provenance::Linked {
            tip: chain[60].number()
        }; 38]
    );
}

#[test]
fn a_gap_of_300_blocks_is_filled_from_one_peer_in_order() {
    let chain = branch(genesis(), 301, 1, 100);
    let mut world = World::new(Limits::default(), &chain);
    world.connect(Kind::Honest(5));
    world.gossip(&chain[300]);
    world.run(Duration::from_secs(10));
    assert!(world.has(&chain[300]));
    assert_eq!(world.requests.len(), 300);
    assert!(
        world.requests.values().all(|n| *n == 1),
        "nothing is fetched twice"
    );
    assert!(world.blames.is_empty());
}

#[test]
fn many_peers_that_are_slow_by_rule_fill_a_gap_together() {
    let chain = branch(genesis(), 401, 1, 100);
    let mut world = World::new(Limits::default(), &chain);
    for _ in 0..8 {
        world.connect(Kind::OpNode);
    }
    world.gossip(&chain[400]);
    let begun = world.now;
    while !world.has(&chain[400]) && world.step(begun + Duration::from_secs(600)) {}
    let took = world.now - begun;
    // One serves 15 at once and 4 a second: 96 s.
    assert!(
        world.has(&chain[400]) && took < Duration::from_secs(20),
        "{took:?}"
    );
    assert!(
        world.asked.len() == 8 && world.asked.values().all(|asked| *asked > 25),
        "{:?}",
        world.asked
    );
    assert!(
        world.requests.values().all(|times| *times == 1),
        "nothing is asked twice"
    );
}

#[test]
fn a_short_gap_is_asked_of_who_brought_the_tip_alone() {
    let chain = branch(genesis(), 9, 1, 100);
    let mut world = World::new(Limits::default(), &chain);
    let peers = [(); 4].map(|()| world.connect(Kind::Honest(20)));
    let tip = Arrival {
        payload: chain[8].clone(),
        from: Some(peers[2]),
        known: false,
        parent_known: false,
    };
    world.sync.on_gossip(tip, SIGNER, world.now);
    world.act();
    world.run(Duration::from_secs(5));
    assert!(world.has(&chain[8]));
    assert_eq!(world.asked.into_iter().collect::<Vec<_>>(), [(peers[2], 8)]);
}

#[test]
fn tips_that_come_during_the_walk_extend_the_gap() {
    let chain = branch(genesis(), 120, 1, 100);
    let mut world = World::new(Limits::default(), &chain);
    world.connect(Kind::Honest(20));
    for block in &chain[100..] {
        world.gossip(block);
        world.run(Duration::from_millis(1));
    }
    world.run(Duration::from_secs(10));
    assert!(world.has(&chain[119]));
    assert_eq!(world.requests.len(), 100);
}

#[test]
fn descendants_of_an_invalid_block_are_not_fetched_again() {
    let chain = branch(genesis(), 60, 1, 100);
    let mut world = World::new(
        Limits {
            unsettled: 4,
            ..Limits::default()
        },
        &chain,
    );
    world.invalid.insert(chain[20].hash);
    world.connect(Kind::Honest(1));
    world.gossip(&chain[50]);
    world.run(Duration::from_secs(30));
    assert!(world.has(&chain[19]) && !world.has(&chain[20]));
    assert_eq!(world.dropped, [(chain[50].id(), Dropped::Invalid)]);

    let before: u64 = world.requests.values().sum();
    let handed = world.handed.len();
    for block in [
        &chain[50], &chain[51], &chain[52], &chain[22], &chain[21], &chain[20],
    ] {
        world.gossip(block);
        world.run(Duration::from_secs(5));
    }
    // One whose parent was never seen is walked down only to the first refused hash.
    world.gossip(&chain[56]);
    world.run(Duration::from_secs(5));
    world.gossip(&chain[57]);
    world.run(Duration::from_secs(5));
    let after: u64 = world.requests.values().sum();
    assert!(
        after - before <= WINDOW as u64 + 6,
        "{} fetched again",
        after - before
    );
    assert_eq!(
        world.handed.len(),
        handed,
        "nothing of it is handed over again"
    );
}

#[test]
fn a_lying_peer_is_blamed_and_another_asked() {
    let chain = branch(genesis(), 50, 1, 100);
    let mut world = World::new(Limits::default(), &chain);
    let liar = world.connect(Kind::OtherBranch);
    world.gossip(&chain[49]);
    world.run(Duration::from_secs(1));
    assert!(world.blames.contains(&(liar, Fault::WrongBlock)));
    world.connect(Kind::Honest(1));
    world.run(Duration::from_secs(15));
    assert!(world.has(&chain[49]));
    assert!(world.blames.iter().all(|(peer, _)| *peer == liar));
}

#[test]
fn whoever_brings_a_tip_and_says_nothing_more_holds_up_what_lies_below_for_a_moment() {
    let chain = branch(genesis(), 40, 1, 100);
    let mut world = World::new(Limits::default(), &chain);
    let silent = world.connect(Kind::Silent);
    world.connect(Kind::Honest(20));
    let begun = world.now;
    let tip = Arrival {
        payload: chain[39].clone(),
        from: Some(silent),
        known: false,
        parent_known: false,
    };
    world.sync.on_gossip(tip, SIGNER, world.now);
    world.act();
    let below = world
        .answers
        .values()
        .filter(|(.., peer)| *peer == silent)
        .count();
    assert_eq!(
        (below, world.requests.len()),
        (SHARE, WINDOW),
        "it is asked first, for what comes next"
    );
    while !world.has(&chain[39]) && world.step(begun + Duration::from_secs(60)) {}
    assert!(
        world.has(&chain[39]) && world.now - begun < PATIENCE * 2,
        "after {:?}",
        world.now - begun
    );
    assert!(world.blames.is_empty(), "slow is no offence");
}

#[test]
fn a_source_that_is_slow_and_alone_is_kept() {
    let chain = branch(genesis(), 40, 1, 100);
    let mut world = World::new(Limits::default(), &chain);
    world.connect(Kind::Honest(5_000));
    world.gossip(&chain[39]);
    world.run(Duration::from_secs(60));
    assert!(world.has(&chain[39]));
    assert!(
        world.requests.values().all(|times| *times == 1),
        "nothing is asked twice"
    );
}

#[test]
fn a_peer_that_goes_and_comes_back_is_used_again() {
    let chain = branch(genesis(), 200, 1, 100);
    let mut world = World::new(Limits::default(), &chain);
    let peer = world.connect(Kind::Honest(10));
    world.gossip(&chain[199]);
    world.run(Duration::from_millis(50));
    world.disconnect(peer);
    world.run(Duration::from_secs(30));
    assert!(!world.has(&chain[0]));
    world.connect(Kind::Honest(10));
    world.run(Duration::from_secs(10));
    assert!(world.has(&chain[199]));
}

#[test]
fn bodies_past_the_budget_are_fetched_again_in_their_turn() {
    let chain = branch(genesis(), 80, 1, 100_000);
    let limits = Limits {
        bodies: 1_000_000,
        unsettled_bytes: 300_000,
        ..Limits::default()
    };
    let mut world = World::new(limits, &chain);
    world.connect(Kind::Honest(1));
    world.gossip(&chain[79]);
    world.run(Duration::from_secs(60));
    assert!(world.has(&chain[79]));
    assert!(
        world.requests.values().all(|n| *n <= 4),
        "{:?}",
        world.requests.values().max()
    );
}

#[test]
fn large_bodies_of_a_lying_peer_stay_within_the_budget() {
    let chain = branch(genesis(), 60, 1, 100);
    let limits = Limits {
        bodies: 500_000,
        ..Limits::default()
    };
    let mut world = World::new(limits, &chain);
    world.other = branch(genesis(), 60, 999, 400_000)
        .into_iter()
        .map(|b| (b.number(), b))
        .collect();
    let liar = world.connect(Kind::OtherBranch);
    // `World::act` watches the budget.
    world.gossip(&chain[59]);
    world.run(Duration::from_secs(2));
    assert!(world.blames.contains(&(liar, Fault::WrongBlock)));
    world.connect(Kind::Honest(1));
    world.run(Duration::from_secs(30));
    assert!(world.has(&chain[59]));
}

#[test]
fn a_skeleton_past_its_bound_is_walked_in_parts() {
    let chain = branch(genesis(), 100, 1, 10);
    let mut world = World::new(
        Limits {
            skeleton: 30,
            ..Limits::default()
        },
        &chain,
    );
    world.connect(Kind::Honest(1));
    world.gossip(&chain[98]);
    world.run(Duration::from_secs(5));
    assert!(world.has(&chain[20]) && !world.has(&chain[98]));
    for _ in 0..4 {
        world.gossip(&chain[99]);
        world.run(Duration::from_secs(5));
    }
    assert!(world.has(&chain[99]));
}

#[test]
fn a_small_gap_asks_for_what_is_missing_alone() {
    let chain = branch(genesis(), 60, 1, 10);
    let mut world = World::new(Limits::default(), &chain);
    for block in &chain[..30] {
        world.gossip(block);
    }
    world.run(Duration::from_secs(1));
    world.sync.on_heads(
        Heads {
            head: chain[29].id(),
            safe: genesis(),
        },
        world.now,
    );
    world.connect(Kind::OpNode);
    let numbers = |blocks: &[Arc<Payload>]| blocks.iter().map(|b| b.number()).collect::<Vec<_>>();
    let asked = |world: &World| {
        world
            .requests
            .iter()
            .flat_map(|(n, times)| vec![*n; *times as usize])
            .collect::<Vec<_>>()
    };
    world.gossip(&chain[33]);
    world.run(Duration::from_secs(1));
    assert!(world.has(&chain[33]));
    let mut first = asked(&world);
    first.sort_unstable();
    assert_eq!(first, numbers(&chain[30..33]));
    // The next follows before the chain has answered: what was handed over is not missing either.
    world.execution = Duration::from_secs(1);
    world.gossip(&chain[34]);
    world.gossip(&chain[36]);
    world.run(Duration::from_millis(500));
    let mut both = asked(&world);
    both.sort_unstable();
    assert_eq!(both, [first, numbers(&chain[35..36])].concat());
    // A branch that leaves ours below our head is walked down to where it leaves.
    let rival = branch(chain[24].id(), 30, 2, 10);
    world
        .canonical
        .extend(rival.iter().map(|b| (b.number(), b.clone())));
    world.execution = Duration::from_millis(2);
    world.gossip(&rival[14]);
    world.run(Duration::from_secs(20));
    assert!(world.has(&rival[14]), "{:?}", world.dropped);
    // One that leaves ours by a few blocks is not looked for far below.
    world.sync.on_heads(
        Heads {
            head: rival[14].id(),
            safe: genesis(),
        },
        world.now,
    );
    let rival = branch(rival[12].id(), 2, 3, 10);
    world
        .canonical
        .extend(rival.iter().map(|b| (b.number(), b.clone())));
    world.requests.clear();
    world.gossip(&rival[1]);
    world.run(Duration::from_secs(20));
    assert!(world.has(&rival[1]), "{:?}", world.dropped);
    assert_eq!(world.requests.values().sum::<u64>(), 3);
}

#[test]
fn a_branch_that_leaves_below_the_safe_block_is_dropped_once() {
    let chain = branch(genesis(), 60, 1, 10);
    let mut world = World::new(Limits::default(), &chain);
    for block in &chain[..30] {
        world.gossip(block);
    }
    world.run(Duration::from_secs(1));
    world.sync.on_heads(
        Heads {
            head: chain[29].id(),
            safe: chain[25].id(),
        },
        world.now,
    );
    world.canonical = world.other.clone();
    world.connect(Kind::Honest(1));
    let foreign: Vec<_> = world.other.values().cloned().collect();
    world.gossip(&foreign[40]);
    world.run(Duration::from_secs(10));
    assert_eq!(world.dropped, [(foreign[40].id(), Dropped::Foreign)]);
    assert!(
        world.requests.keys().all(|n| *n > chain[25].number()),
        "nothing at or below the safe block is asked for"
    );
    let before: u64 = world.requests.values().sum();
    world.gossip(&foreign[41]);
    world.run(Duration::from_secs(10));
    assert_eq!(before, world.requests.values().sum::<u64>());
    // After the safe head went back the branch may become ours.
    world.sync.on_heads(
        Heads {
            head: genesis(),
            safe: genesis(),
        },
        world.now,
    );
    world.gossip(&foreign[42]);
    world.run(Duration::from_secs(10));
    assert!(world.has(&foreign[42]));
}

#[test]
fn two_tips_at_one_height_are_both_handed_over() {
    let chain = branch(genesis(), 40, 1, 10);
    let rival = branch(chain[20].id(), 15, 2, 10);
    let mut world = World::new(Limits::default(), &chain);
    world
        .canonical
        .extend(rival[..0].iter().map(|b| (b.number(), b.clone())));
    world.connect(Kind::Honest(5));
    world.gossip(&chain[30]);
    for block in &rival {
        world.gossip(block);
        world.run(Duration::from_millis(3));
    }
    world.run(Duration::from_secs(60));
    assert!(world.has(&chain[30]), "{:?}", world.dropped);
    world.gossip(&rival[0]);
    world.run(Duration::from_secs(5));
    assert!(world.has(&rival[0]));
}

#[test]
fn a_tip_nobody_can_link_gives_way_to_a_newer_one() {
    let chain = branch(genesis(), 40, 1, 10);
    let lost = branch(
        BlockId {
            hash: B256::repeat_byte(1),
            number: 30,
        },
        1,
        3,
        10,
    );
    let mut world = World::new(Limits::default(), &chain);
    world.connect(Kind::Lacks);
    world.connect(Kind::Honest(1));
    world.gossip(&lost[0]);
    world.run(Duration::from_secs(30));
    world.gossip(&chain[39]);
    world.run(Duration::from_secs(60));
    assert!(world.has(&chain[39]));
    assert_eq!(world.dropped, [(lost[0].id(), Dropped::Stalled)]);
}

#[test]
fn without_credit_nothing_is_lost() {
    let chain = branch(genesis(), 400, 1, 1000);
    let limits = Limits {
        bodies: 20_000,
        unsettled_bytes: 10_000,
        unsettled: 4,
        ..Limits::default()
    };
    let mut world = World::new(limits, &chain);
    world.execution = Duration::from_millis(300);
    world.connect(Kind::Honest(1));
    for block in &chain {
        world.gossip(block);
        world.run(Duration::from_millis(10));
    }
    world.run(Duration::from_secs(300));
    assert!(world.has(&chain[399]));
}

#[test]
fn blocks_the_chain_got_by_another_way_are_not_fetched() {
    let chain = branch(genesis(), 100, 1, 10);
    let mut world = World::new(Limits::default(), &chain);
    world.gossip(&chain[99]);
    world.connect(Kind::Honest(50));
    world.run(Duration::from_millis(120));
    // The chain executes up to block 90 from elsewhere.
    world.executed.extend(chain[..90].iter().map(|b| b.hash));
    world.sync.on_heads(
        Heads {
            head: chain[89].id(),
            safe: genesis(),
        },
        world.now,
    );
    world.act();
    world.run(Duration::from_secs(5));
    assert!(world.has(&chain[99]));
    assert!(
        world.requests.keys().all(|n| *n > chain[50].number()),
        "{:?}",
        world.requests.keys().min()
    );
}

#[test]
fn a_block_the_chain_did_not_take_is_fetched_again() {
    let chain = branch(genesis(), 4, 1, 10);
    let mut world = World::new(Limits::default(), &chain);
    world.connect(Kind::Honest(1));
    world.gossip(&chain[0]);
    world.unsettled.clear();
    world
        .sync
        .on_settled(chain[0].hash, &Settled::Dropped, world.now);
    world.gossip(&chain[1]);
    assert_eq!(
        world.handed.len(),
        1,
        "its child does not count as having a known parent"
    );
    world.run(Duration::from_secs(1));
    assert!(world.has(&chain[1]));
    assert_eq!(
        world.requests.keys().copied().collect::<Vec<_>>(),
        [chain[0].number()]
    );
}

#[test]
fn without_peers_the_machine_sleeps() {
    let chain = branch(genesis(), 10, 1, 10);
    let mut world = World::new(Limits::default(), &chain);
    world.gossip(&chain[5]);
    assert_eq!(world.sync.wakeup(), None);
    assert!(!world.step(world.now + Duration::from_secs(3600)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever the peers do and however the tips come: with one honest peer in the end, the whole chain is executed, in order,
    /// within the bounds that `World::act` checks, or up to the block before an invalid one; only those who did wrong are blamed.
    #[test]
    fn every_gap_closes(seed: u64, length in 1usize..200, tips in 1usize..6, bad in 0usize..5, weight in 0usize..20_000,
                        slow: bool, invalid in 0usize..800) {
        let mut rng = StdRng::seed_from_u64(seed);
        let chain = branch(genesis(), length as u64, 1, weight);
        let (bodies, unsettled_bytes) = (rng.random_range(1..400_000), rng.random_range(1..100_000));
        let mut world = World::new(Limits { bodies, unsettled_bytes, unsettled: 8, ..Limits::default() }, &chain);
        world.invalid.extend(chain.get(invalid).map(|block| block.hash));
        if slow {
            world.execution = Duration::from_millis(200);
        }
        let mut honest = world.connect(Kind::Honest(rng.random_range(1..50)));
        for _ in 0..bad {
            let kinds = [Kind::OtherBranch, Kind::Lacks, Kind::Silent, Kind::Garbles];
            world.connect(kinds[rng.random_range(0..kinds.len())]);
        }
        for _ in 0..tips {
            let block = chain[rng.random_range(0..length)].clone();
            world.gossip(&block);
            world.run(Duration::from_millis(rng.random_range(0..300)));
            if rng.random_bool(0.3) {
                world.disconnect(honest);
                world.run(Duration::from_millis(rng.random_range(0..3000)));
                honest = world.connect(Kind::Honest(5));
            }
        }
        world.gossip(&chain[length - 1]);
        world.run(Duration::from_secs(900));
        let valid = &chain[..invalid.min(length)];
        prop_assert!(valid.iter().all(|block| world.has(block)), "dropped {:?}", world.dropped);
        prop_assert!(chain[valid.len()..].iter().all(|block| !world.has(block)));
        prop_assert!(world.blames.iter().all(|(peer, _)| !matches!(world.peers.get(peer), Some(Kind::Honest(_)))));
        prop_assert!(world.sync.gap.is_none() && world.sync.tips.is_empty());
    }
}
