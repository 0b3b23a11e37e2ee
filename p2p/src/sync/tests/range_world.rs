//! A model of the environment of sync: chains of up to a million blocks, peers that serve ranges,
//! and a clock that the test advances.

use crate::{
    peers::Offence,
    sync::{
        Arrival, FetchError, HashLinks, PeerStatus, RangeRequest, Sync, SyncAction, SyncLimits,
        TipDropped,
    },
    types::{ChainHeads, Settled},
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

pub const MS: Duration = Duration::from_millis(1);

/// Builds block `number`. From number `salt.0` on the block belongs to the branch `salt.1`.
pub fn block(hashes: &[B256], number: u64, salt: (u64, u64)) -> Payload {
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
pub enum PeerBehaviour {
    /// Serves the chain after this delay.
    Honest(Duration),
    /// Sends other blocks than those requested.
    Lies,
    /// Has the chain only up to this block.
    Short(u64),
    Silent,
    /// Drops every request.
    Resets,
    /// Has the chain, but does not support range sync.
    ByNumber,
    /// Sends one block of each window and then nothing more.
    Drips,
    /// Sends one header at once and one every ten seconds, just in time, and no blocks.
    DripsHeaders,
}

pub enum PeerEvent {
    Links(u64, HashLinks),
    Blocks(u64, Vec<Arrival>),
    End(u64, Result<(), FetchError>),
}

pub struct RangeWorld {
    pub sync: Sync,
    pub now: Instant,
    pub hashes: Vec<B256>,
    pub salt: (u64, u64),
    pub peers: BTreeMap<PeerId, PeerBehaviour>,
    pub events: BTreeMap<(Instant, u64), PeerEvent>,
    pub scheduled: u64,
    pub in_flight: BTreeMap<u64, PeerId>,
    pub head: BlockId,
    pub penalties: Vec<(PeerId, Offence)>,
    /// Peers about which the ledger got an entry, with the reason.
    pub notes: Vec<(PeerId, &'static str)>,
    pub dropped: Vec<TipDropped>,
    pub headers: u64,
    /// Number of blocks requested by number.
    pub numbers: u64,
    /// Number of blocks requested from each peer, and number of blocks that each delivered.
    pub asked: BTreeMap<PeerId, u64>,
    pub delivered: BTreeMap<PeerId, u64>,
    pub cancelled: usize,
    pub most_bytes: usize,
    pub most_hashes: u64,
}

impl RangeWorld {
    pub fn new(length: u64) -> Self {
        let genesis = BlockId {
            number: 0,
            hash: B256::repeat_byte(0xaa),
        };
        let mut world = Self {
            sync: Sync::new(SyncLimits::default(), genesis, 1),
            now: Instant::now(),
            hashes: vec![genesis.hash],
            salt: (u64::MAX, 0),
            peers: BTreeMap::new(),
            events: BTreeMap::new(),
            scheduled: 0,
            in_flight: BTreeMap::new(),
            head: genesis,
            penalties: Vec::new(),
            notes: Vec::new(),
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

    /// Extends the chain to this length.
    pub fn grow(&mut self, length: u64) {
        for number in self.hashes.len() as u64..=length {
            self.hashes
                .push(block(&self.hashes, number, self.salt).hash);
        }
    }

    /// Replaces the chain from block `number` on by another branch of the sequencer.
    pub fn reorg(&mut self, number: u64, length: u64) {
        self.hashes.truncate(number as usize);
        self.salt = (number, 1);
        self.grow(length);
        self.send_statuses();
    }

    pub fn connect(&mut self, kind: PeerBehaviour) -> PeerId {
        let peer = PeerId::random();
        self.peers.insert(peer, kind);
        self.sync.on_peer(peer, self.now);
        self.send_statuses();
        peer
    }

    pub fn connect_three(&mut self) -> [PeerId; 3] {
        [(); 3].map(|()| self.connect(PeerBehaviour::Honest(20 * MS)))
    }

    pub fn disconnect(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.sync.on_peer_gone(peer, self.now);
        self.act();
    }

    /// Lets every peer send its status.
    pub fn send_statuses(&mut self) {
        for (peer, kind) in self.peers.clone() {
            if kind == PeerBehaviour::ByNumber {
                continue;
            }
            let top = if let PeerBehaviour::Short(top) = kind {
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
                PeerStatus {
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

    pub fn gossip(&mut self, number: u64) {
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

    pub fn schedule(&mut self, wait: Duration, event: PeerEvent) {
        self.scheduled += 1;
        self.events.insert((self.now + wait, self.scheduled), event);
    }

    pub fn respond(&mut self, id: u64, peer: PeerId, request: RangeRequest) {
        self.in_flight.insert(id, peer);
        let theirs = self
            .in_flight
            .values()
            .filter(|other| **other == peer)
            .count();
        assert!(theirs <= 3, "{theirs} requests at once to one peer");
        let Some(kind) = self.peers.get(&peer).copied() else {
            panic!("a disconnected peer is asked")
        };
        let wait = if let PeerBehaviour::Honest(wait) = kind {
            wait
        } else {
            MS
        };
        match request {
            _ if kind == PeerBehaviour::Silent => {
                let end = PeerEvent::End(id, Err(FetchError::TimedOut));
                self.schedule(10_000 * MS, end);
            }
            _ if kind == PeerBehaviour::Resets => {
                let end = PeerEvent::End(id, Err(FetchError::Unreachable));
                self.schedule(wait, end);
            }
            RangeRequest::Headers { from, count } => {
                self.respond_headers(id, kind, wait, from, count);
            }
            RangeRequest::Bodies { first, hashes, .. } => {
                *self.asked.entry(peer).or_default() += hashes.len() as u64;
                self.respond_bodies(id, peer, wait, first, &hashes);
            }
        }
    }

    fn top_of(&self, kind: PeerBehaviour) -> u64 {
        if let PeerBehaviour::Short(top) = kind {
            top
        } else {
            u64::MAX
        }
    }

    fn respond_headers(
        &mut self,
        id: u64,
        kind: PeerBehaviour,
        wait: Duration,
        from: BlockId,
        count: u32,
    ) {
        self.headers += u64::from(count);
        if from.number > self.top_of(kind)
            || self.hashes.get(from.number as usize) != Some(&from.hash)
        {
            return self.schedule(wait, PeerEvent::End(id, Err(FetchError::NotFound)));
        }
        let parents: Vec<B256> = self.hashes[..from.number as usize]
            .iter()
            .rev()
            .take(count as usize)
            .copied()
            .collect();
        if kind == PeerBehaviour::DripsHeaders {
            for (index, parent) in parents.into_iter().take(400).enumerate() {
                let links = HashLinks {
                    parents: vec![parent],
                    known: None,
                };
                self.schedule(9_900 * index as u32 * MS, PeerEvent::Links(id, links));
            }
            return;
        }
        let known = parents
            .iter()
            .position(|hash| *hash == self.head.hash || *hash == self.hashes[0]);
        self.schedule(wait, PeerEvent::Links(id, HashLinks { parents, known }));
        self.schedule(wait, PeerEvent::End(id, Ok(())));
    }

    fn respond_bodies(
        &mut self,
        id: u64,
        peer: PeerId,
        wait: Duration,
        first: u64,
        hashes: &[B256],
    ) {
        let kind = self.peers[&peer];
        let last = first as usize + hashes.len() - 1;
        if kind == PeerBehaviour::Lies {
            let outcome = Err(FetchError::False("a lie".into()));
            return self.schedule(wait, PeerEvent::End(id, outcome));
        }
        if last as u64 > self.top_of(kind) || self.hashes.get(last) != hashes.last() {
            return self.schedule(wait, PeerEvent::End(id, Err(FetchError::NotFound)));
        }
        let arrival = |number| Arrival {
            payload: Arc::new(block(&self.hashes, number, self.salt)),
            from: Some(peer),
            known: false,
            parent_known: false,
        };
        let mut blocks: Vec<Arrival> = (first..=last as u64).map(arrival).collect();
        if kind == PeerBehaviour::Drips {
            blocks.truncate(1);
            self.schedule(wait, PeerEvent::Blocks(id, blocks));
            let end = PeerEvent::End(id, Err(FetchError::TimedOut));
            return self.schedule(10_000 * MS, end);
        }
        let rest = blocks.split_off(blocks.len() / 2);
        self.schedule(wait / 2, PeerEvent::Blocks(id, blocks));
        self.schedule(wait, PeerEvent::Blocks(id, rest));
        self.schedule(wait, PeerEvent::End(id, Ok(())));
    }

    pub fn act(&mut self) {
        while let Some(action) = self.sync.poll() {
            match action {
                SyncAction::HandOver { payload, blame, .. } => {
                    assert_eq!(
                        payload.parent_hash(),
                        self.head.hash,
                        "each extends the one before"
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
                        ChainHeads {
                            head: self.head,
                            safe,
                        },
                        self.now,
                    );
                }
                SyncAction::FetchRange { id, peer, request } => self.respond(id, peer, request),
                SyncAction::Cancel { id } => {
                    self.in_flight.remove(&id);
                    self.cancelled += 1;
                }
                SyncAction::Penalize { peer, offence, .. } => self.penalties.push((peer, offence)),
                SyncAction::FetchNumber { id, peer, number } => {
                    self.respond_by_number(id, peer, number);
                }
                SyncAction::Note { peer, reason, .. } => self.notes.push((peer, reason)),
                SyncAction::Drop { why, .. } => self.dropped.push(why),
            }
        }
        let gap = self.sync.gap.as_ref();
        self.most_bytes = self
            .most_bytes
            .max(gap.map_or(0, |gap| gap.bodies().bytes()));
        self.most_hashes = self.most_hashes.max(gap.map_or(0, |gap| gap.len()));
    }

    fn respond_by_number(&mut self, id: u64, peer: PeerId, number: u64) {
        self.numbers += 1;
        let has = matches!(
            self.peers.get(&peer),
            Some(PeerBehaviour::Honest(_) | PeerBehaviour::ByNumber)
        ) && number < self.hashes.len() as u64;
        let response = has.then(|| {
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
            .on_fetched(id, response.ok_or(FetchError::NotFound), self.now);
    }

    /// Advances to the next event; `false` if there is none.
    pub fn step(&mut self) -> bool {
        let timer = self.sync.next_wake();
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
                PeerEvent::Links(id, _) | PeerEvent::Blocks(id, _) | PeerEvent::End(id, _) => *id,
            };
            if self.in_flight.contains_key(&id) {
                match event {
                    PeerEvent::Links(id, links) => self.sync.on_links(id, &links, self.now),
                    PeerEvent::Blocks(id, blocks) => self.sync.on_blocks(id, blocks, self.now),
                    PeerEvent::End(id, outcome) => {
                        self.in_flight.remove(&id);
                        self.sync.on_range_end(id, outcome, self.now);
                    }
                }
            }
        } else {
            self.sync.on_timer(self.now);
        }
        self.act();
        true
    }

    pub fn run_until(&mut self, number: u64) -> Duration {
        let begun = self.now;
        while self.head.number < number {
            assert!(
                self.step(),
                "stalled at {}: {:?}",
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

    pub fn run(&mut self) -> Duration {
        let top = self.hashes.len() as u64 - 1;
        let took = self.run_until(top);
        assert_eq!(self.head.hash, self.hashes[top as usize]);
        took
    }
}
