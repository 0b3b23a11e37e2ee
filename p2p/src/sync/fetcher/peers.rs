//! The fetcher's record of a peer: failures and back-off for each of the two protocols.

use crate::sync::messages::PeerStatus;
use std::time::{Duration, Instant};

const FIRST_BACK_OFF: Duration = Duration::from_millis(200);
const MAX_BACK_OFF: Duration = Duration::from_secs(10);
/// Number of blocks above the head in a peer's last status that may be requested from it. The peer
/// has probably received newer blocks since that status.
const HEAD_MARGIN: u64 = 64;

/// The wait after a failure that follows `failures` others in a row; it doubles up to ten seconds.
pub(super) fn back_off(failures: u32) -> Duration {
    FIRST_BACK_OFF
        .saturating_mul(1 << failures.min(16))
        .min(MAX_BACK_OFF)
}

/// The fetcher's record of a connected peer.
#[derive(Debug, Default)]
pub(super) struct FetchPeer {
    pub number: NumberPeer,
    /// The record of range requests; `None` until the peer has sent a status.
    pub range: Option<RangePeer>,
    /// The time of the last charge for a wrong block.
    pub charged: Option<Instant>,
}

/// A peer's record for requests by number.
#[derive(Debug, Default)]
pub(super) struct NumberPeer {
    /// Number of failed requests in a row.
    pub failures: u32,
    /// The end of the peer's back-off.
    pub ready: Option<Instant>,
    /// Set while the peer is active, that is, while blocks are requested from it. The time is that
    /// of its last response, or of its selection if there was none.
    pub active: Option<Instant>,
}

impl NumberPeer {
    pub fn is_ready(&self, now: Instant) -> bool {
        self.ready.is_none_or(|at| at <= now)
    }
}

/// A peer's record for range requests.
#[derive(Debug)]
pub(super) struct RangePeer {
    pub status: PeerStatus,
    /// Number of failed requests in a row.
    pub failures: u32,
    /// The end of the peer's back-off.
    pub ready: Option<Instant>,
    /// Whether the peer has refused a block that its last status claims: it is probably on another
    /// branch.
    pub refused: bool,
    /// Whether the peer has sent a false block. It then gets no more requests while it is
    /// connected.
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

    /// Whether the peer's last status claims this block.
    pub fn claims(&self, number: u64) -> bool {
        (self.status.oldest..=self.status.head.number).contains(&number)
    }

    pub fn is_usable(&self) -> bool {
        !self.sent_false_block && !self.refused
    }
}
