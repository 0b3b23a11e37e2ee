//! The requests of sync in flight: [`SyncClient`] owns a task for each of them.
//!
//! [`Sync`](super::Sync) decides what is requested from which peer; this module sends the requests.
//! Single blocks by number are requested in `client/by_number.rs`, headers and blocks by range in
//! `client/by_range.rs` and `client/ranges.rs`. `client/statuses.rs` regularly requests from each
//! peer which blocks it has. One stream carries one request. [`SyncClient::next`] returns the
//! results as [`ClientEvent`]s, which `service/sync.rs` passes on.
//!
//! Overload: slow peers and large responses. The fetcher (`sync/fetcher.rs`) bounds the requests in
//! flight, and `client/statuses.rs` bounds those for statuses. Every step of a request has a
//! deadline, and memory for large responses needs a permit.

pub mod by_number;
pub mod by_range;
mod ranges;
pub mod statuses;

use super::{Arrival, FetchError, HashLinks, PeerStatus, RangeRequest};
use crate::{
    host::streams::Control,
    peers::Offence,
    types::{Blocks, ChainGenesis},
};
use by_number::{NumberClient, NumberTasks};
use by_range::RangeClient;
use libp2p::{PeerId, StreamProtocol};
use ranges::RangeTasks;
use statuses::StatusTasks;
use std::{sync::Arc, time::Instant};

/// A result of a request.
#[derive(Debug)]
pub enum ClientEvent {
    /// A request by number has ended.
    Fetched {
        id: u64,
        peer: PeerId,
        number: u64,
        outcome: Result<Arrival, FetchError>,
    },
    /// A part of the response to a request for headers.
    Links { id: u64, links: HashLinks },
    /// A part of the response to a request for blocks.
    Blocks { id: u64, blocks: Vec<Arrival> },
    /// A range request has ended.
    RangeEnded {
        id: u64,
        peer: PeerId,
        outcome: Result<(), FetchError>,
    },
    /// A peer has reported which blocks it has.
    Status { peer: PeerId, status: PeerStatus },
    /// A peer has responded to a status request with a lie or with garbage.
    Offence {
        peer: PeerId,
        offence: Offence,
        evidence: String,
    },
}

/// The client of range requests, with its tasks.
struct RangeSide {
    client: RangeClient,
    requests: RangeTasks,
    statuses: StatusTasks,
}

/// Sends the requests of sync. Dropping it cancels the requests in flight.
pub struct SyncClient {
    numbers: NumberTasks,
    /// The client of range requests; `None` if this node requests no ranges.
    range: Option<RangeSide>,
}

impl SyncClient {
    /// `with_ranges`: whether this client also requests ranges.
    pub fn new(
        control: Control,
        chain_id: u64,
        genesis: ChainGenesis,
        blocks: Arc<dyn Blocks>,
        with_ranges: bool,
    ) -> Self {
        let range = || RangeClient::new(control.clone(), chain_id, genesis.id.hash, blocks.clone());
        let range = with_ranges.then(range).flatten();
        Self {
            range: range.map(|client| RangeSide {
                client,
                requests: RangeTasks::new(),
                statuses: StatusTasks::new(genesis),
            }),
            numbers: NumberTasks::new(NumberClient::new(control, chain_id, blocks)),
        }
    }

    /// Requests one block. The result is returned as [`ClientEvent::Fetched`].
    pub fn fetch_number(&mut self, id: u64, peer: PeerId, number: u64) {
        self.numbers.fetch(id, peer, number);
    }

    /// Requests headers or blocks. The last event of the request is [`ClientEvent::RangeEnded`].
    pub fn fetch_range(&mut self, id: u64, peer: PeerId, request: RangeRequest) {
        if let Some(range) = &mut self.range {
            range.requests.fetch(&range.client, id, peer, request);
        }
    }

    /// Cancels a range request. No [`ClientEvent::RangeEnded`] follows, but parts of the response
    /// that have already arrived may still be returned.
    pub fn cancel_range(&mut self, id: u64) {
        if let Some(range) = &mut self.range {
            range.requests.cancel(id);
        }
    }

    /// Handles the protocols that a connected peer speaks. If range sync is among them, the peer's
    /// status is requested from now on.
    pub fn on_identified(&mut self, peer: PeerId, protocols: &[StreamProtocol], now: Instant) {
        if let Some(range) = &mut self.range
            && protocols.contains(range.client.protocol())
        {
            range.statuses.track(peer, now);
        }
    }

    /// Handles the end of the last connection to a peer.
    pub fn on_peer_gone(&mut self, peer: &PeerId) {
        if let Some(range) = &mut self.range {
            range.statuses.untrack(peer);
        }
    }

    /// The next result; pends while there is none. Cancel safe.
    pub async fn next(&mut self) -> ClientEvent {
        let Self { numbers, range } = self;
        let Some(range) = range else {
            return numbers.next().await;
        };
        tokio::select! {
            event = numbers.next() => event,
            event = range.requests.next() => event,
            event = range.statuses.next() => event,
        }
    }

    /// Requests the statuses that are due.
    pub fn on_timer(&mut self, now: Instant) {
        if let Some(range) = &mut self.range {
            range.statuses.request_due(&range.client, now);
        }
    }

    /// The time at which [`SyncClient::on_timer`] should be called next.
    pub fn next_wake(&self) -> Option<Instant> {
        self.range.as_ref()?.statuses.next_wake()
    }
}
