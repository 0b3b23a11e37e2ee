//! A model of the environment of sync: a chain, peers that serve blocks by number, and a clock that
//! the test advances.

use crate::{
    peers::Offence,
    serve::bucket::{PEER_RATE, TokenBucket},
    sync::{
        Arrival, FetchError, Sync, SyncAction, SyncLimits, TipDropped,
        fetcher::{MAX_NUMBER_REQUESTS, WINDOW},
    },
    types::{ChainHeads, Provenance, Settled},
};
use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes};
use libp2p::PeerId;
use starling_proto::payload::{BlockId, Payload};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

pub const SIGNER: Address = Address::repeat_byte(7);

/// A branch of `count` blocks on `parent`; `salt` distinguishes branches, `weight` is the size of
/// each block's transaction.
pub fn branch(parent: BlockId, count: u64, salt: u64, weight: usize) -> Vec<Arc<Payload>> {
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

pub fn genesis() -> BlockId {
    BlockId {
        hash: B256::repeat_byte(0xaa),
        number: 5,
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PeerKind {
    /// Serves the canonical chain after this delay in milliseconds.
    Honest(u64),
    /// Serves the canonical chain at the rate limit of op-node.
    OpNode,
    /// Serves a branch of its own.
    OtherBranch,
    Lacks,
    Silent,
    Garbles,
}

/// Id of the request, its outcome, and the peer.
type Response = (u64, Result<Arc<Payload>, FetchError>, PeerId);

/// Peers, a chain that executes the payloads it gets, and a clock.
pub struct NumberWorld {
    pub sync: Sync,
    pub now: Instant,
    pub canonical: BTreeMap<u64, Arc<Payload>>,
    pub other: BTreeMap<u64, Arc<Payload>>,
    pub peers: BTreeMap<PeerId, PeerKind>,
    pub executed: HashSet<B256>,
    /// Blocks that the chain will find invalid, and those that it has found invalid.
    pub invalid: HashSet<B256>,
    pub judged: HashSet<B256>,
    pub handed: Vec<B256>,
    pub provenances: Vec<Provenance>,
    pub unsettled: BTreeMap<(Instant, usize), Arc<Payload>>,
    pub responses: BTreeMap<(Instant, u64), Response>,
    pub requests: HashMap<u64, u64>,
    pub asked: HashMap<PeerId, u64>,
    pub buckets: HashMap<PeerId, TokenBucket>,
    pub penalties: Vec<(PeerId, Offence)>,
    pub dropped: Vec<(BlockId, TipDropped)>,
    /// The time that the chain needs to execute a block.
    pub execution: Duration,
}

impl NumberWorld {
    pub fn new(limits: SyncLimits, canonical: &[Arc<Payload>]) -> Self {
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
            responses: BTreeMap::new(),
            requests: HashMap::new(),
            asked: HashMap::new(),
            buckets: HashMap::new(),
            penalties: Vec::new(),
            dropped: Vec::new(),
            execution: Duration::from_millis(2),
        }
    }

    pub fn connect(&mut self, kind: PeerKind) -> PeerId {
        let peer = PeerId::random();
        self.peers.insert(peer, kind);
        self.sync.on_peer(peer, self.now);
        self.act();
        peer
    }

    pub fn disconnect(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
        self.sync.on_peer_gone(peer, self.now);
        let lost: Vec<_> = self
            .responses
            .iter()
            .filter(|(_, a)| a.2 == peer)
            .map(|(at, a)| (*at, a.0))
            .collect();
        for (at, id) in lost {
            self.responses.remove(&at);
            self.sync
                .on_fetched(id, Err(FetchError::Unreachable), self.now);
        }
        self.act();
    }

    pub fn arrival(&self, payload: &Arc<Payload>, from: Option<PeerId>) -> Arrival {
        let known = self.executed.contains(&payload.hash);
        let parent_known = self.executed.contains(&payload.parent_hash());
        Arrival {
            payload: payload.clone(),
            from,
            known,
            parent_known,
        }
    }

    /// Delivers a block by gossip, from no peer of this model.
    pub fn gossip(&mut self, block: &Arc<Payload>) {
        self.gossip_as(block, None);
    }

    /// Delivers a block by gossip from this peer.
    pub fn gossip_from(&mut self, block: &Arc<Payload>, peer: PeerId) {
        self.gossip_as(block, Some(peer));
    }

    fn gossip_as(&mut self, block: &Arc<Payload>, from: Option<PeerId>) {
        let arrival = self.arrival(block, from);
        self.sync.on_gossip(arrival, SIGNER, self.now);
        self.act();
    }

    /// Reports the chain's heads to sync; the resulting actions wait for the next
    /// [`NumberWorld::act`].
    pub fn set_heads(&mut self, head: BlockId, safe: BlockId) {
        self.sync.on_heads(ChainHeads { head, safe }, self.now);
    }

    /// Carries out the actions of sync and checks its guarantees.
    pub fn act(&mut self) {
        while let Some(action) = self.sync.poll() {
            match action {
                SyncAction::HandOver {
                    payload,
                    provenance,
                    ..
                } => self.execute(payload, provenance),
                SyncAction::FetchNumber { id, peer, number } => self.respond(id, peer, number),
                SyncAction::Penalize { peer, offence, .. } => self.penalties.push((peer, offence)),
                SyncAction::Drop { tip, why } => self.dropped.push((tip, why)),
                SyncAction::FetchRange { .. }
                | SyncAction::Cancel { .. }
                | SyncAction::Note { .. } => {
                    panic!("no peer here serves ranges: {action:?}")
                }
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
            gap.is_none_or(|gap| gap.bodies().bytes() <= self.sync.limits.bodies.max(largest)),
            "bodies within their budget"
        );
    }

    fn execute(&mut self, payload: Arc<Payload>, provenance: Provenance) {
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
        let last = self.unsettled.last_key_value();
        let free = last.map_or(self.now, |((at, _), _)| *at);
        self.unsettled
            .insert((free + self.execution, self.handed.len()), payload);
        let weight: usize = self.unsettled.values().map(|p| p.weight()).sum();
        let limits = self.sync.limits;
        assert!(self.unsettled.len() <= limits.unsettled);
        assert!(
            self.unsettled.len() == 1 || weight <= limits.unsettled_bytes,
            "capacity kept"
        );
    }

    fn respond(&mut self, id: u64, peer: PeerId, number: u64) {
        *self.requests.entry(number).or_default() += 1;
        *self.asked.entry(peer).or_default() += 1;
        let lag = Duration::from_millis;
        let block = |chain: &BTreeMap<u64, Arc<Payload>>| {
            chain.get(&number).cloned().ok_or(FetchError::NotFound)
        };
        let (wait, response) = match self.peers[&peer] {
            PeerKind::Honest(ms) => (lag(ms), block(&self.canonical)),
            PeerKind::OpNode => {
                let bucket = self
                    .buckets
                    .entry(peer)
                    .or_insert_with(|| TokenBucket::new(PEER_RATE, self.now));
                (lag(20) + bucket.take(self.now), block(&self.canonical))
            }
            PeerKind::OtherBranch => (lag(1), block(&self.other)),
            PeerKind::Lacks => (lag(1), Err(FetchError::NotFound)),
            PeerKind::Silent => (lag(10_000), Err(FetchError::Unreachable)),
            PeerKind::Garbles => (lag(1), Err(FetchError::Malformed(String::new()))),
        };
        // Vary the delay, so that responses arrive in any order.
        self.responses.insert(
            (self.now + wait + Duration::from_micros(id * 7919 % 50), id),
            (id, response, peer),
        );
        assert!(self.responses.len() <= MAX_NUMBER_REQUESTS + 8);
        let from_one = self.responses.values().filter(|a| a.2 == peer).count();
        assert!(from_one <= WINDOW + 1, "{from_one} at once from one peer");
    }

    /// Advances to the next event; `false` if there is no event before `end`.
    pub fn step(&mut self, end: Instant) -> bool {
        let response = self.responses.first_key_value().map(|((at, _), _)| *at);
        let settled = self.unsettled.first_key_value().map(|((at, _), _)| *at);
        let Some(at) = response
            .into_iter()
            .chain(settled)
            .chain(self.sync.next_wake())
            .min()
            .filter(|at| *at <= end)
        else {
            return false;
        };
        assert!(
            at > self.now || response == Some(at) || settled == Some(at),
            "a timer in the past is a hot loop"
        );
        self.now = self.now.max(at);
        if response == Some(at) {
            if let Some((_, (id, response, peer))) = self.responses.pop_first() {
                let outcome = response.map(|payload| self.arrival(&payload, Some(peer)));
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

    pub fn settle(&mut self, payload: &Payload) {
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

    pub fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        while self.step(end) {}
    }

    /// The requested numbers in ascending order, each as often as it was requested.
    pub fn requested(&self) -> Vec<u64> {
        let all = self.requests.iter();
        let mut all: Vec<u64> = all
            .flat_map(|(number, times)| vec![*number; *times as usize])
            .collect();
        all.sort_unstable();
        all
    }

    pub fn has(&self, block: &Payload) -> bool {
        self.executed.contains(&block.hash)
    }
}
