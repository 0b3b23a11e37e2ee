//! The ledger: every decision about a peer or an address, with its reason. Bounded rings, one for all and one for each of the peers
//! last written about; what repeats is one entry that counts.

use libp2p::PeerId;
use lru::LruCache;
use serde::Serialize;
use std::{collections::VecDeque, net::IpAddr, num::NonZeroUsize};

/// Entries kept altogether, and for one peer.
const ENTRIES: usize = 1024;
const ENTRIES_PER_PEER: usize = 64;
/// Peers with a ring of their own.
const PEERS: NonZeroUsize = NonZeroUsize::new(512).unwrap();
/// How far back a repeated deed is looked for, so that a few peers at once do not push everything else out.
const REPEAT: usize = 32;
/// Bytes of evidence kept; some of it is a peer's own words.
const EVIDENCE: usize = 240;

/// What was decided, or happened.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The application score changed by so much.
    Score(f64),
    Connected,
    Disconnected,
    /// Until when, in Unix seconds.
    Banned {
        until: u64,
    },
    Unbanned,
    /// A ban was due, and is not made.
    Spared,
    /// By an operator.
    Blocked,
    Unblocked,
    Protected,
    Unprotected,
}

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Counts up from 1.
    pub sequence: u64,
    /// Unix seconds, of the last time.
    pub time: u64,
    #[serde(serialize_with = "as_text")]
    pub peer: Option<PeerId>,
    /// An address or a subnet.
    pub address: Option<String>,
    pub change: Change,
    pub reason: &'static str,
    /// What it was seen from.
    pub evidence: String,
    /// The peer's whole score afterwards.
    pub score: f64,
    /// How often the same came again; `change` is the sum.
    pub times: u32,
}

fn as_text<S: serde::Serializer>(peer: &Option<PeerId>, serializer: S) -> Result<S::Ok, S::Error> {
    peer.map(|peer| peer.to_string()).serialize(serializer)
}

impl Entry {
    pub fn of_peer(
        peer: PeerId,
        change: Change,
        reason: &'static str,
        evidence: impl Into<String>,
        score: f64,
    ) -> Self {
        Self::new(Some(peer), None, change, reason, evidence.into(), score)
    }

    pub fn of_address(
        address: impl ToString,
        change: Change,
        reason: &'static str,
        evidence: impl Into<String>,
    ) -> Self {
        Self::new(
            None,
            Some(address.to_string()),
            change,
            reason,
            evidence.into(),
            0.0,
        )
    }

    fn new(
        peer: Option<PeerId>,
        address: Option<String>,
        change: Change,
        reason: &'static str,
        mut evidence: String,
        score: f64,
    ) -> Self {
        evidence.truncate(evidence.floor_char_boundary(EVIDENCE));
        Self {
            sequence: 0,
            time: 0,
            peer,
            address,
            change,
            reason,
            evidence,
            score,
            times: 1,
        }
    }

    pub fn at(mut self, address: Option<IpAddr>) -> Self {
        self.address = address.map(|address| address.to_string());
        self
    }

    /// Takes in `other` if it is the same deed of the same peer again.
    fn absorb(&mut self, other: &Entry) -> bool {
        let same = (self.peer, self.reason) == (other.peer, other.reason);
        match (&mut self.change, &other.change) {
            (Change::Score(sum), Change::Score(more)) if same => *sum += more,
            _ => return false,
        }
        self.time = other.time;
        self.score = other.score;
        self.evidence.clone_from(&other.evidence);
        self.times = self.times.saturating_add(1);
        true
    }
}

#[derive(Debug)]
pub struct Ledger {
    all: VecDeque<Entry>,
    peers: LruCache<PeerId, VecDeque<Entry>>,
    written: u64,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            all: VecDeque::new(),
            peers: LruCache::new(PEERS),
            written: 0,
        }
    }
}

impl Ledger {
    pub fn write(&mut self, mut entry: Entry, now: u64) {
        self.written += 1;
        entry.sequence = self.written;
        entry.time = now;
        if let Some(peer) = entry.peer {
            push(
                self.peers.get_or_insert_mut(peer, VecDeque::new),
                &entry,
                ENTRIES_PER_PEER,
            );
        }
        push(&mut self.all, &entry, ENTRIES);
    }

    /// The newest entries, newest first.
    pub fn read(&self, peer: Option<&PeerId>, limit: usize) -> Vec<Entry> {
        let ring = match peer {
            Some(peer) => self.peers.peek(peer),
            None => Some(&self.all),
        };
        ring.into_iter()
            .flatten()
            .rev()
            .take(limit)
            .cloned()
            .collect()
    }
}

fn push(ring: &mut VecDeque<Entry>, entry: &Entry, most: usize) {
    if ring
        .iter_mut()
        .rev()
        .take(REPEAT)
        .any(|earlier| earlier.absorb(entry))
    {
        return;
    }
    if ring.len() == most {
        ring.pop_front();
    }
    ring.push_back(entry.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_bounded_and_repetition_is_one_line() {
        let mut ledger = Ledger::default();
        let loud = PeerId::random();
        ledger.write(
            Entry::of_peer(loud, Change::Connected, "dialled_us", "", 0.0),
            1,
        );
        for i in 0..10_000u32 {
            let score = -f64::from(i + 1);
            ledger.write(
                Entry::of_peer(loud, Change::Score(-1.0), "flood", "x".repeat(1000), score),
                2,
            );
        }
        let lines = ledger.read(Some(&loud), 10);
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (lines[0].change, lines[0].times, lines[0].score),
            (Change::Score(-10_000.0), 10_000, -10_000.0)
        );
        assert_eq!(lines[0].evidence.len(), EVIDENCE);
        for _ in 0..2_000 {
            ledger.write(
                Entry::of_peer(
                    PeerId::random(),
                    Change::Disconnected,
                    "no_answer",
                    "é".repeat(200),
                    0.0,
                ),
                3,
            );
        }
        assert_eq!(ledger.read(None, usize::MAX).len(), ENTRIES);
        assert_eq!(ledger.peers.len(), PEERS.get());
        assert!(ledger.read(None, 1)[0].sequence == 12_001);
    }
}
