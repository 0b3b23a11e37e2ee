//! The ledger: every decision about a peer or an address, with its reason. The entries are kept in
//! bounded rings: one ring for all peers, and one for each of the peers with the newest entries.
//! Repeated offences share one entry that counts them.

use libp2p::PeerId;
use lru::LruCache;
use serde::Serialize;
use std::{collections::VecDeque, net::IpAddr, num::NonZeroUsize};

/// Largest numbers of entries kept: altogether, and for one peer.
const ENTRIES: usize = 1024;
const ENTRIES_PER_PEER: usize = 64;
/// Largest number of peers with a ring of their own.
const PEERS: NonZeroUsize = NonZeroUsize::new(512).unwrap();
/// A repeated offence is merged into its earlier entry if that is among this many newest entries.
/// Otherwise a few repeat offenders would evict all other entries.
const REPEAT: usize = 32;
/// Largest number of bytes kept of an entry's evidence, which may include text of the peer.
const EVIDENCE: usize = 240;

/// A decision or event that the ledger records.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LedgerChange {
    /// A change of the application score.
    Score(f64),
    /// The peer connected.
    Connected,
    /// The peer's last connection closed.
    Disconnected,
    /// A ban was imposed.
    Banned {
        /// End of the ban, in Unix seconds.
        until: u64,
    },
    /// A ban ended.
    Unbanned,
    /// A ban was due and not imposed, since the peer is static or protected.
    Spared,
    /// An operator blocked the peer, address or subnet.
    Blocked,
    /// An operator unblocked the peer, address or subnet.
    Unblocked,
    /// An operator protected the peer.
    Protected,
    /// An operator ended the protection.
    Unprotected,
}

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerEntry {
    /// Number of the entry, from 1.
    pub sequence: u64,
    /// Unix time of the last event, in seconds.
    pub time: u64,
    /// The peer; `None` for an entry about an address.
    #[serde(serialize_with = "as_text")]
    pub peer: Option<PeerId>,
    /// The address of the peer, or the address or subnet that the entry is about.
    pub address: Option<String>,
    /// The recorded decision or event.
    pub change: LedgerChange,
    /// The reason for the decision, a fixed label.
    pub reason: &'static str,
    /// The facts behind the reason, as text.
    pub evidence: String,
    /// The peer's total score after the event.
    pub score: f64,
    /// Number of equal events merged into this entry; `change` is their sum.
    pub times: u32,
}

fn as_text<S: serde::Serializer>(peer: &Option<PeerId>, serializer: S) -> Result<S::Ok, S::Error> {
    peer.map(|peer| peer.to_string()).serialize(serializer)
}

impl LedgerEntry {
    /// An entry about a peer.
    pub fn of_peer(
        peer: PeerId,
        change: LedgerChange,
        reason: &'static str,
        evidence: impl Into<String>,
        score: f64,
    ) -> Self {
        Self::new(Some(peer), None, change, reason, evidence.into(), score)
    }

    /// An entry about an address or a subnet.
    pub fn of_address(
        address: impl ToString,
        change: LedgerChange,
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
        change: LedgerChange,
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

    /// Adds the address of the peer to the entry.
    pub fn at(mut self, address: Option<IpAddr>) -> Self {
        self.address = address.map(|address| address.to_string());
        self
    }

    /// Merges `other` into this entry if it is the same offence of the same peer.
    fn absorb(&mut self, other: &LedgerEntry) -> bool {
        let same = (self.peer, self.reason) == (other.peer, other.reason);
        match (&mut self.change, &other.change) {
            (LedgerChange::Score(sum), LedgerChange::Score(more)) if same => *sum += more,
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
    all: VecDeque<LedgerEntry>,
    peers: LruCache<PeerId, VecDeque<LedgerEntry>>,
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
    pub fn write(&mut self, mut entry: LedgerEntry, now: u64) {
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
    pub fn read(&self, peer: Option<&PeerId>, limit: usize) -> Vec<LedgerEntry> {
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

fn push(ring: &mut VecDeque<LedgerEntry>, entry: &LedgerEntry, max: usize) {
    if ring
        .iter_mut()
        .rev()
        .take(REPEAT)
        .any(|earlier| earlier.absorb(entry))
    {
        return;
    }
    if ring.len() == max {
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
            LedgerEntry::of_peer(loud, LedgerChange::Connected, "dialled_us", "", 0.0),
            1,
        );
        for i in 0..10_000u32 {
            let score = -f64::from(i + 1);
            ledger.write(
                LedgerEntry::of_peer(
                    loud,
                    LedgerChange::Score(-1.0),
                    "flood",
                    "x".repeat(1000),
                    score,
                ),
                2,
            );
        }
        let lines = ledger.read(Some(&loud), 10);
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (lines[0].change, lines[0].times, lines[0].score),
            (LedgerChange::Score(-10_000.0), 10_000, -10_000.0)
        );
        assert_eq!(lines[0].evidence.len(), EVIDENCE);
        for _ in 0..2_000 {
            ledger.write(
                LedgerEntry::of_peer(
                    PeerId::random(),
                    LedgerChange::Disconnected,
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
