//! The table of requests in flight. A request by number stays in the table until it ends, even
//! after its gap or its peer is gone. A range request is cancelled together with its gap or its
//! peer.

use libp2p::PeerId;
use starling_proto::payload::BlockId;
use std::{collections::BTreeMap, time::Instant};

#[derive(Debug)]
pub(super) struct InFlight {
    pub peer: PeerId,
    pub since: Instant,
    pub kind: RequestKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum RequestKind {
    /// A request for one block by number.
    Number(u64),
    /// A request for headers, downward.
    Headers(HeaderWalk),
    /// A request for a window of blocks, upward.
    Window(BlockWindow),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderWalk {
    /// The highest block whose header has not arrived.
    pub from: BlockId,
    /// The last number expected; the walk ends earlier at a known ancestor.
    pub end: u64,
    /// The time from which the request may be reassigned to another peer.
    pub reassign_at: Instant,
}

/// The part of a window that has not arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockWindow {
    pub next: u64,
    pub last: u64,
    /// The time from which the request may be reassigned to another peer.
    pub reassign_at: Instant,
}

impl InFlight {
    pub fn is_range(&self) -> bool {
        !matches!(self.kind, RequestKind::Number(_))
    }

    /// The time from which a range request may be reassigned to another peer.
    pub fn reassign_at(&self) -> Option<Instant> {
        match self.kind {
            RequestKind::Number(_) => None,
            RequestKind::Headers(HeaderWalk { reassign_at, .. })
            | RequestKind::Window(BlockWindow { reassign_at, .. }) => Some(reassign_at),
        }
    }

    pub fn window(&self) -> Option<BlockWindow> {
        match self.kind {
            RequestKind::Window(window) => Some(window),
            RequestKind::Number(_) | RequestKind::Headers(_) => None,
        }
    }

    pub fn walk(&self) -> Option<HeaderWalk> {
        match self.kind {
            RequestKind::Headers(walk) => Some(walk),
            RequestKind::Number(_) | RequestKind::Window(_) => None,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct RequestTable {
    by_id: BTreeMap<u64, InFlight>,
    next_id: u64,
}

impl RequestTable {
    /// Adds a request to the table and returns its id.
    pub fn insert(&mut self, peer: PeerId, kind: RequestKind, now: Instant) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.by_id.insert(
            id,
            InFlight {
                peer,
                since: now,
                kind,
            },
        );
        id
    }

    pub fn remove(&mut self, id: u64) -> Option<InFlight> {
        self.by_id.remove(&id)
    }

    /// Removes a range request.
    pub fn remove_range(&mut self, id: u64) -> Option<InFlight> {
        self.by_id.get(&id).filter(|request| request.is_range())?;
        self.by_id.remove(&id)
    }

    /// Removes a request by number; returns its peer and its number.
    pub fn remove_number(&mut self, id: u64) -> Option<(PeerId, u64)> {
        let RequestKind::Number(number) = self.by_id.get(&id)?.kind else {
            return None;
        };
        self.by_id.remove(&id).map(|request| (request.peer, number))
    }

    pub fn get(&self, id: u64) -> Option<&InFlight> {
        self.by_id.get(&id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut InFlight> {
        self.by_id.get_mut(&id)
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The requests by number in flight, as pairs of peer and number.
    pub fn numbers(&self) -> impl Iterator<Item = (PeerId, u64)> {
        self.by_id
            .values()
            .filter_map(|request| match request.kind {
                RequestKind::Number(number) => Some((request.peer, number)),
                RequestKind::Headers(_) | RequestKind::Window(_) => None,
            })
    }

    /// The number of requests by number in flight to a peer.
    pub fn number_load(&self, peer: &PeerId) -> usize {
        self.numbers().filter(|(asked, _)| asked == peer).count()
    }

    pub fn ranges(&self) -> impl Iterator<Item = (u64, &InFlight)> {
        let all = self.by_id.iter().map(|(id, request)| (*id, request));
        all.filter(|(_, request)| request.is_range())
    }

    pub fn has_ranges(&self) -> bool {
        self.ranges().next().is_some()
    }

    /// The number of range requests in flight to a peer.
    pub fn range_load(&self, peer: &PeerId) -> usize {
        self.ranges()
            .filter(|(_, request)| request.peer == *peer)
            .count()
    }

    /// Ids of the range requests to a peer.
    pub fn ranges_of(&self, peer: &PeerId) -> Vec<u64> {
        self.range_ids(|request| request.peer == *peer)
    }

    /// Ids of the range requests that `select` accepts.
    pub fn range_ids(&self, select: impl Fn(&InFlight) -> bool) -> Vec<u64> {
        self.ranges()
            .filter(|(_, request)| select(request))
            .map(|(id, _)| id)
            .collect()
    }

    /// The request for the window that includes block `number`.
    pub fn window_with(&self, number: u64) -> Option<(u64, &InFlight)> {
        self.ranges().find(|(_, request)| {
            request
                .window()
                .is_some_and(|window| (window.next..=window.last).contains(&number))
        })
    }

    /// Postpones the reassignment of all range requests to `until` or later.
    pub fn postpone_reassignment(&mut self, until: Instant) {
        for request in self.by_id.values_mut() {
            match &mut request.kind {
                RequestKind::Number(_) => {}
                RequestKind::Headers(HeaderWalk { reassign_at, .. })
                | RequestKind::Window(BlockWindow { reassign_at, .. }) => {
                    *reassign_at = until.max(*reassign_at);
                }
            }
        }
    }
}
