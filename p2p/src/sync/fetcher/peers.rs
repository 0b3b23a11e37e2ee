//! A peer as the fetcher sees it: its record and back-off for each of the two protocols.

use crate::sync::messages::PeerStatus;
use std::time::{Duration, Instant};

const FIRST_BACK_OFF: Duration = Duration::from_millis(200);
const MAX_BACK_OFF: Duration = Duration::from_secs(10);
/// Blocks above the head in its last status that a peer may be asked for: the status ages.
const HEAD_MARGIN: u64 = 64;

/// The wait before the next request after `failures` in a row; it doubles with each.
pub(super) fn back_off(failures: u32) -> Duration {
    FIRST_BACK_OFF
        .saturating_mul(1 << failures.min(16))
        .min(MAX_BACK_OFF)
}

/// A connected peer.
#[derive(Debug, Default)]
pub(super) struct FetchPeer {
    pub number: NumberPeer,
    /// `None` until it has sent a status.
    pub range: Option<RangePeer>,
}

/// The record of requests by number.
#[derive(Debug, Default)]
pub(super) struct NumberPeer {
    /// Failures in a row.
    pub failures: u32,
    /// The end of the back-off.
    pub ready: Option<Instant>,
    /// Set while the peer is active, that is, while blocks are requested from it: the time when it
    /// was selected or last responded.
    pub active: Option<Instant>,
}

impl NumberPeer {
    pub fn is_ready(&self, now: Instant) -> bool {
        self.ready.is_none_or(|at| at <= now)
    }
}

/// The record of range requests.
#[derive(Debug)]
pub(super) struct RangePeer {
    pub status: PeerStatus,
    /// Failures in a row.
    pub failures: u32,
    /// The end of the back-off.
    pub ready: Option<Instant>,
    /// The peer has refused a block that its last status claims: it is on another branch.
    pub refused: bool,
    /// The peer has sent a false block, and is not asked again while it is connected.
    pub sent_false_block: bool,
}

impl RangePeer {
    pub fn new(status: PeerStatus) -> Self {
        Self {
            status,
            failures: 0,
            ready: None,
            refused: false,
            sent_false_block: false,
        }
    }

    /// The highest block that may be requested from the peer.
    pub fn reach(&self) -> u64 {
        self.status.head.number.saturating_add(HEAD_MARGIN)
    }

    pub fn may_have(&self, number: u64) -> bool {
        self.is_usable() && (self.status.oldest..=self.reach()).contains(&number)
    }

    /// Whether its last status says that it has the block.
    pub fn claims(&self, number: u64) -> bool {
        (self.status.oldest..=self.status.head.number).contains(&number)
    }

    pub fn is_usable(&self) -> bool {
        !self.sent_false_block && !self.refused
    }
}
