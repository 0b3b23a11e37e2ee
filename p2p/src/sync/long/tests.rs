//! Long gaps against a model: chains of up to a million blocks, peers of every kind, and time moved by hand.

use crate::{
    handle::{Heads, Settled},
    peers::Offence,
    range::{Ask, Links, Order, SHORTEST, Status, Trouble},
    sync::{Action, Arrival, Dropped, Failure, Limits, Sync},
};
use alloy_consensus::Header;
use alloy_primitives::{Address, B256};
use libp2p::PeerId;
use starling_proto::payload::{BlockId, Payload};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

const MS: Duration = Duration::from_millis(1);

/// Block `number`, made when it is wanted. From `salt.0` on it is of the branch `salt.1`.
fn block(hashes: &[B256], number: u64, salt: (u64, u64)) -> Payload {
    let timestamp = if number >= salt.0 { salt.1 } else { 0 };
    let parent_hash = hashes[number as usize - 1];
    Payload::sealed(
        Header {
            parent_hash,
            number,
            timestamp,
            ..Default::default()
        },
        Vec::new(),
    )
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Answers with the chain after so long.
    Honest(Duration),
    /// Says that its blocks are others than asked for.
    Liar,
    /// Has the chain up to this block.
    Short(u64),
    Silent,
    /// Drops every question.
    Resets,
    /// Does not speak this protocol, and has the chain.
    ByNumber,
    /// Brings one block of each window and then nothing.
    Drips,
    /// Brings one header now and one each ten seconds, just in time, and no blocks.
    DripsHeaders,
}

enum Event {
    Links(u64, Links),
    Blocks(u64, Vec<Arrival>),
    End(u64, Result<(), Trouble>),
}

struct World {
    sync: Sync,
    now: Instant,
    hashes: Vec<B256>,
    salt: (u64, u64),
    peers: BTreeMap<PeerId, Kind>,
    events: BTreeMap<(Instant, u64), Event>,
    scheduled: u64,
    flying: BTreeMap<u64, PeerId>,
    head: BlockId,
    charges: Vec<(PeerId, Offence)>,
    dropped: Vec<Dropped>,
    headers: u64,
    /// Blocks asked for by number.
    numbers: u64,
    /// Blocks asked of each peer, and those it delivered.
    asked: BTreeMap<PeerId, u64>,
    delivered: BTreeMap<PeerId, u64>,
    cancelled: usize,
    most_bytes: usize,
    most_hashes: u64,
}

impl World {
    fn new(length: u64) -> Self {
        let genesis = BlockId {
            number: 0,
            hash: B256::repeat_byte(0xaa),
        };
        let mut world = Self {
            sync: Sync::new(Limits::default(), genesis, 1),
            now: Instant::now(),
            hashes: vec![genesis.hash],
            salt: (u64::MAX, 0),
            peers: BTreeMap::new(),
            events: BTreeMap::new(),
            scheduled: 0,
            flying: BTreeMap::new(),
            head: genesis,
            charges: Vec::new(),
            dropped: Vec::new(),
            headers: 0,
            numbers: 0,
            asked: BTreeMap::new(),
            delivered: BTreeMap::new(),
            cancelled: 0,
            most_bytes: 0,
            most_hashes: 0,
        };
        world.grow(length);
        world
    }

    /// The chain up to this length.
    fn grow(&mut self, length: u64) {
        for number in self.hashes.len() as u64..=length {
            self.hashes
                .push(block(&self.hashes, number, self.salt).hash);
        }
    }

    /// The sequencer goes another way from the block `number` on.
    fn reorg(&mut self, number: u64, length: u64) {
        self.hashes.truncate(number as usize);
        self.salt = (number, 1);
        self.grow(length);
        self.greet();
    }

    fn connect(&mut self, kind: Kind) -> PeerId {
        let peer = PeerId::random();
        self.peers.insert(peer, kind);
        self.sync.on_peer(peer, self.now);
        self.greet();
        peer
    }

    fn connect_three(&mut self) -> [PeerId; 3] {
        [(); 3].map(|()| self.connect(Kind::Honest(20 * MS)))
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.sync.on_peer_gone(peer, self.now);
        self.act();
    }

    /// Everybody says what it has.
    fn greet(&mut self) {
        for (peer, kind) in self.peers.clone() {
            if kind == Kind::ByNumber {
                continue;
            }
            let top = if let Kind::Short(top) = kind {
                top
            } else {
                self.hashes.len() as u64 - 1
            };
            let head = BlockId {
                number: top,
                hash: self.hashes[top as usize],
            };
            self.sync.on_status(
                peer,
                Status {
                    head,
                    oldest: 0,
                    safe: None,
                    finalized: None,
                },
                self.now,
            );
        }
        self.act();
    }

    fn gossip(&mut self, number: u64) {
        let payload = Arc::new(block(&self.hashes, number, self.salt));
        let arrival = Arrival {
            parent_known: payload.parent_hash() == self.head.hash,
            payload,
            from: None,
            known: false,
        };
        self.sync.on_gossip(arrival, Address::ZERO, self.now);
        self.act();
    }

    fn schedule(&mut self, wait: Duration, event: Event) {
        self.scheduled += 1;
        self.events.insert((self.now + wait, self.scheduled), event);
    }

    fn answer(&mut self, id: u64, peer: PeerId, ask: Ask) {
        self.flying.insert(id, peer);
        let theirs = self.flying.values().filter(|other| **other == peer).count();
        assert!(theirs <= 3, "{theirs} questions at once to one peer");
        let Some(kind) = self.peers.get(&peer).copied() else {
            panic!("a peer that is gone is asked")
        };
        let top = if let Kind::Short(top) = kind {
            top
        } else {
            u64::MAX
        };
        let wait = if let Kind::Honest(wait) = kind {
            wait
        } else {
            MS
        };
        match ask {
            _ if kind == Kind::Silent => {
                self.schedule(10_000 * MS, Event::End(id, Err(Trouble::NoAnswer)))
            }
            _ if kind == Kind::Resets => {
                self.schedule(wait, Event::End(id, Err(Trouble::Unreachable)))
            }
            Ask::Headers { from, count } => {
                self.headers += u64::from(count);
                if from.number > top || self.hashes.get(from.number as usize) != Some(&from.hash) {
                    return self.schedule(wait, Event::End(id, Err(Trouble::NotFound)));
                }
                let parents: Vec<B256> = self.hashes[..from.number as usize]
                    .iter()
                    .rev()
                    .take(count as usize)
                    .copied()
                    .collect();
                if kind == Kind::DripsHeaders {
                    for (index, parent) in parents.into_iter().take(400).enumerate() {
                        let links = Links {
                            parents: vec![parent],
                            known: None,
                        };
                        self.schedule(9_900 * index as u32 * MS, Event::Links(id, links));
                    }
                    return;
                }
                let known = parents
                    .iter()
                    .position(|hash| *hash == self.head.hash || *hash == self.hashes[0]);
                self.schedule(wait, Event::Links(id, Links { parents, known }));
                self.schedule(wait, Event::End(id, Ok(())));
            }
            Ask::Bodies { first, hashes, .. } => {
                *self.asked.entry(peer).or_default() += hashes.len() as u64;
                let last = first as usize + hashes.len() - 1;
                if kind == Kind::Liar {
                    return self
                        .schedule(wait, Event::End(id, Err(Trouble::False("a lie".into()))));
                }
                if last as u64 > top || self.hashes.get(last) != hashes.last() {
                    return self.schedule(wait, Event::End(id, Err(Trouble::NotFound)));
                }
                let payload = |number| Arc::new(block(&self.hashes, number, self.salt));
                let arrival = |number| Arrival {
                    payload: payload(number),
                    from: Some(peer),
                    known: false,
                    parent_known: false,
                };
                let mut blocks: Vec<Arrival> = (first..=last as u64).map(arrival).collect();
                if kind == Kind::Drips {
                    blocks.truncate(1);
                    self.schedule(wait, Event::Blocks(id, blocks));
                    return self.schedule(10_000 * MS, Event::End(id, Err(Trouble::NoAnswer)));
                }
                let rest = blocks.split_off(blocks.len() / 2);
                self.schedule(wait / 2, Event::Blocks(id, blocks));
                self.schedule(wait, Event::Blocks(id, rest));
                self.schedule(wait, Event::End(id, Ok(())));
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.sync.poll() {
            match action {
                Action::HandOver { payload, blame, .. } => {
                    assert_eq!(
                        payload.parent_hash(),
                        self.head.hash,
                        "each on the one before"
                    );
                    self.head = payload.id();
                    *self
                        .delivered
                        .entry(blame.unwrap_or_else(PeerId::random))
                        .or_default() += 1;
                    self.sync.on_settled(payload.hash, &Settled::Ok, self.now);
                    let safe = BlockId {
                        number: 0,
                        hash: self.hashes[0],
                    };
                    self.sync.on_heads(
                        Heads {
                            head: self.head,
                            safe,
                        },
                        self.now,
                    );
                }
                Action::Range(Order::Ask { id, peer, ask }) => self.answer(id, peer, ask),
                Action::Range(Order::Cancel { id }) => {
                    self.flying.remove(&id);
                    self.cancelled += 1;
                }
                Action::Range(Order::Charge { peer, offence, .. }) => {
                    self.charges.push((peer, offence))
                }
                Action::Fetch { id, peer, number } => {
                    self.numbers += 1;
                    let has = matches!(
                        self.peers.get(&peer),
                        Some(Kind::Honest(_) | Kind::ByNumber)
                    ) && number < self.hashes.len() as u64;
                    let answer = has.then(|| {
                        let payload = Arc::new(block(&self.hashes, number, self.salt));
                        let parent_known = payload.parent_hash() == self.head.hash;
                        Arrival {
                            payload,
                            from: Some(peer),
                            known: false,
                            parent_known,
                        }
                    });
                    self.sync
                        .on_fetched(id, answer.ok_or(Failure::NotFound), self.now);
                }
                Action::Dropped { why, .. } => self.dropped.push(why),
                Action::Blame { .. } => {}
            }
        }
        let gap = self.sync.gap.as_ref();
        self.most_bytes = self.most_bytes.max(gap.map_or(0, |gap| gap.bytes()));
        self.most_hashes = self.most_hashes.max(gap.map_or(0, |gap| gap.len()));
    }

    /// The next thing that happens; false if nothing will.
    fn step(&mut self) -> bool {
        let timer = self.sync.wakeup();
        let event = self.events.first_key_value().map(|((at, _), _)| *at);
        let Some(at) = timer.into_iter().chain(event).min() else {
            return false;
        };
        self.now = self.now.max(at);
        if event == Some(at) {
            let Some((_, event)) = self.events.pop_first() else {
                return false;
            };
            let id = match &event {
                Event::Links(id, _) | Event::Blocks(id, _) | Event::End(id, _) => *id,
            };
            if self.flying.contains_key(&id) {
                match event {
                    Event::Links(id, links) => self.sync.on_links(id, &links, self.now),
                    Event::Blocks(id, blocks) => self.sync.on_blocks(id, blocks, self.now),
                    Event::End(id, outcome) => {
                        self.flying.remove(&id);
                        self.sync.on_answered(id, outcome, self.now);
                    }
                }
            }
        } else {
            self.sync.on_timer(self.now);
        }
        self.act();
        true
    }

    fn run_until(&mut self, number: u64) -> Duration {
        let begun = self.now;
        while self.head.number < number {
            assert!(
                self.step(),
                "stands still at {}: {:?}",
                self.head.number,
                self.sync.report()
            );
            let report = || format!("{:?} {:?}", self.sync.report(), self.sync.stall(self.now));
            assert!(
                self.now - begun < Duration::from_secs(3600),
                "an hour, and at {}: {}",
                self.head.number,
                report()
            );
        }
        self.now - begun
    }

    fn run(&mut self) -> Duration {
        let top = self.hashes.len() as u64 - 1;
        let took = self.run_until(top);
        assert_eq!(self.head.hash, self.hashes[top as usize]);
        took
    }
}

#[test]
fn a_million_blocks_in_bounded_memory() {
    let mut world = World::new(1_000_000);
    world.connect_three();
    world.gossip(1_000_000);
    let took = world.run();
    let limits = Limits::default();
    assert!(world.most_hashes <= limits.skeleton as u64 && limits.skeleton * 32 <= 32 << 20);
    assert!(
        world.most_bytes <= limits.bodies,
        "{} bytes of bodies",
        world.most_bytes
    );
    assert!(
        world.headers <= 1_000_000 + 4096,
        "the way down is walked once: {}",
        world.headers
    );
    assert!(
        took < Duration::from_secs(60),
        "round trips do not add up: {took:?}"
    );
    assert!(world.charges.is_empty() && world.dropped.is_empty());
    assert_eq!(
        world.numbers, 0,
        "what comes in ranges is not asked for by number"
    );
    assert!(
        world.asked.values().all(|asked| *asked > 250_000),
        "all take part: {:?}",
        world.asked
    );
}

#[test]
fn a_slow_peer_loses_its_share() {
    let mut world = World::new(50_000);
    let slow = world.connect(Kind::Honest(60_000 * MS));
    let fast = [
        world.connect(Kind::Honest(20 * MS)),
        world.connect(Kind::Honest(20 * MS)),
    ];
    world.gossip(50_000);
    world.run_until(1);
    let took = world.run();
    assert!(took < Duration::from_secs(120), "{took:?}");
    let share = |peer| world.delivered.get(peer).copied().unwrap_or(0);
    assert!(share(&slow) * 10 < share(&fast[0]), "{:?}", world.delivered);
    assert!(world.charges.is_empty(), "slow is no offence");
}

#[test]
fn a_silent_peer_holds_up_nothing_for_long() {
    let mut world = World::new(20_000);
    world.connect(Kind::Silent);
    world.connect(Kind::Honest(20 * MS));
    world.gossip(20_000);
    let took = world.run();
    assert!(took < Duration::from_secs(90), "{took:?}");
}

#[test]
fn headers_that_drip_are_asked_of_another_peer_and_charged_if_there_is_none() {
    let mut world = World::new(20_000);
    let drips = world.connect(Kind::DripsHeaders);
    world.gossip(20_000);
    let begun = world.now;
    while world.now - begun < Duration::from_secs(70) && world.step() {}
    assert!(
        world.charges.contains(&(drips, Offence::NoResponse)),
        "{:?}",
        world.charges
    );
    let headers = world.headers;
    // It has all and serves it in ranges only.
    world.connect(Kind::Short(20_000));
    let took = world.run();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(
        world.headers - headers <= 20_000 + 4_096,
        "what has come is not asked for again: {}",
        world.headers - headers
    );
}

#[test]
fn where_ranges_bring_nothing_blocks_are_asked_for_by_number() {
    for kind in [Kind::Resets, Kind::Silent, Kind::Drips] {
        let mut world = World::new(2_000);
        let stranger = world.connect(kind);
        world.connect(Kind::ByNumber);
        world.gossip(2_000);
        let took = world.run();
        assert!(took < Duration::from_secs(30), "{kind:?}: {took:?}");
        // A silent one is charged by who waits for it.
        assert_eq!(
            world.charges.contains(&(stranger, Offence::NoResponse)),
            kind == Kind::Resets,
            "{kind:?}"
        );
    }
}

#[test]
fn a_peer_that_brings_one_block_of_each_window_is_asked_ever_more_rarely() {
    let mut world = World::new(200_000);
    let drips = world.connect(Kind::Drips);
    world.connect(Kind::Honest(500 * MS));
    world.connect(Kind::Honest(500 * MS));
    world.gossip(200_000);
    let took = world.run();
    let windows = world.delivered.get(&drips).copied().unwrap_or(0);
    println!("{took:?}, {windows} windows were dripped at");
    assert!(windows <= 16, "{windows}");
}

#[test]
fn a_liar_is_charged_at_once_and_asked_no_more() {
    let mut world = World::new(20_000);
    let liar = world.connect(Kind::Liar);
    world.connect_three();
    world.gossip(20_000);
    world.run();
    assert_eq!(
        world
            .charges
            .iter()
            .filter(|charge| **charge == (liar, Offence::FalseBlock))
            .count(),
        world.charges.len()
    );
    assert!(
        (1..=2).contains(&world.charges.len()),
        "as many as it had been asked for: {:?}",
        world.charges
    );
}

#[test]
fn a_reorg_in_the_middle_cuts_the_skeleton_back() {
    let mut world = World::new(40_000);
    world.connect_three();
    world.gossip(40_000);
    world.run_until(10_000);
    let walked = world.headers;
    world.reorg(35_000, 40_100);
    world.gossip(40_100);
    let took = world.run();
    assert!(
        world.headers - walked <= 5_200 + 4_096,
        "only what is new is walked: {}",
        world.headers - walked
    );
    assert!(
        took < Duration::from_secs(20),
        "nothing waits for a time-out: {took:?}"
    );
    assert!(
        world
            .charges
            .iter()
            .all(|(_, offence)| *offence == Offence::FalseStatus),
        "{:?}",
        world.charges
    );
}

#[test]
fn tips_that_gossip_missed_extend_the_skeleton() {
    let mut world = World::new(30_000);
    world.connect_three();
    world.gossip(30_000);
    for tip in 1..20 {
        world.run_until((world.head.number + 1_000).min(world.hashes.len() as u64 - 1));
        world.grow(30_000 + tip * 10);
        world.greet();
        world.gossip(30_000 + tip * 10);
    }
    world.run();
    assert!(
        world.headers <= 30_000 + 4_096 + 20 * SHORTEST,
        "{}",
        world.headers
    );
    assert!(world.charges.is_empty());
}

#[test]
fn a_gap_that_is_not_wanted_any_more_is_cancelled_and_another_one_begun() {
    let mut world = World::new(30_000);
    let peers = world.connect_three();
    world.gossip(30_000);
    world.run_until(5_000);
    assert!(!world.flying.is_empty());
    // Derivation has overtaken it.
    let head = BlockId {
        number: 30_000,
        hash: world.hashes[30_000],
    };
    world.sync.on_heads(Heads { head, safe: head }, world.now);
    world.head = head;
    world.act();
    assert!(
        world.flying.is_empty() && world.cancelled > 0,
        "{:?}",
        world.flying
    );
    assert_eq!(world.sync.report().missing, 0);

    world.grow(50_000);
    world.greet();
    world.gossip(50_000);
    world.run_until(35_000);
    // Peers go, and one comes back: what they were asked for is asked again.
    peers.iter().for_each(|peer| world.disconnect(*peer));
    assert!(world.flying.is_empty());
    world.connect(Kind::Honest(20 * MS));
    world.run();
    assert!(world.charges.is_empty());
}

#[test]
fn a_stall_says_what_is_missing_and_from_whom() {
    let mut world = World::new(5_000);
    let short = world.connect(Kind::Short(2_000));
    let silent = world.connect(Kind::Silent);
    world.gossip(5_000);
    let begun = world.now;
    // The sequencer goes on: new blocks are no news of those below.
    for slot in 1..=20 {
        while world.now - begun < Duration::from_secs(2 * slot) && world.step() {}
        world.now = world.now.max(begun + Duration::from_secs(2 * slot));
        world.grow(5_000 + slot);
        world.gossip(5_000 + slot);
    }
    let (missing, why) = world.sync.stall(world.now).expect("it stands still");
    assert_eq!(missing.number, 4_999, "below the tip");
    assert!(
        why.contains("block 4999 (0x")
            && why.contains(&format!("{short} has only blocks 0 to 2000")),
        "{why}"
    );
    assert!(why.contains(&silent.to_string()), "{why}");
    // Whoever comes with it ends the stall.
    world.connect(Kind::Honest(20 * MS));
    world.run();
    assert!(world.sync.stall(world.now).is_none());
}

#[test]
fn peers_on_another_branch_give_way_to_the_tip_they_have() {
    let mut world = World::new(9_000);
    let peers = world.connect_three();
    // A tip that nobody has: the sequencer was restarted from an earlier block right after.
    let salt = std::mem::replace(&mut world.salt, (9_000, 7));
    let lost = world.hashes.clone();
    world.hashes.truncate(9_000);
    world.grow(9_000);
    world.gossip(9_000);
    (world.hashes, world.salt) = (lost, salt);
    world.grow(9_100);
    world.greet();
    world.gossip(9_100);
    let took = world.run();
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert!(
        world
            .charges
            .iter()
            .all(|(peer, offence)| peers.contains(peer) && *offence == Offence::FalseStatus)
    );
}
