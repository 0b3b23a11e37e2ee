//! The requests of sync in flight: [`SyncClient`] runs a task for each and owns them all.
//!
//! [`Sync`](super::Sync) decides which peer is asked for what; this module asks. Single blocks by
//! number go through `client/by_number.rs`, headers and blocks by range through
//! `client/by_range.rs` and `client/ranges.rs`. `client/statuses.rs` asks peers again and again
//! which blocks they have. One stream carries one request. Results come out of
//! [`SyncClient::next`] as [`ClientEvent`]s, for `service/sync.rs` to pass on.
//!
//! Overload: slow peers and large responses. The fetcher (`sync/fetcher.rs`) bounds the
//! requests in flight, `client/statuses.rs` those for statuses; every step of a request has a
//! deadline, and memory for large responses needs a permit.

pub mod by_number;
pub mod by_range;
mod ranges;
mod statuses;

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
    /// A peer has said which blocks it has.
    Status { peer: PeerId, status: PeerStatus },
    /// A peer has answered a request for its status with a lie or with garbage.
    Offence {
        peer: PeerId,
        offence: Offence,
        evidence: String,
    },
}

/// The range side of the client.
struct RangeSide {
    client: RangeClient,
    requests: RangeTasks,
    statuses: StatusTasks,
}

/// Sends the requests of sync. Dropping it cancels those in flight.
pub struct SyncClient {
    numbers: NumberTasks,
    /// `None` if this node requests no ranges.
    range: Option<RangeSide>,
}

impl SyncClient {
    /// `with_ranges`: whether ranges are requested too.
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

    /// Requests one block; its outcome is [`ClientEvent::Fetched`].
    pub fn fetch_number(&mut self, id: u64, peer: PeerId, number: u64) {
        self.numbers.fetch(id, peer, number);
    }

    /// Requests headers or blocks. The last event of the request is [`ClientEvent::RangeEnded`].
    pub fn fetch_range(&mut self, id: u64, peer: PeerId, request: RangeRequest) {
        if let Some(range) = &mut self.range {
            range.requests.fetch(&range.client, id, peer, request);
        }
    }

    /// Cancels a range request, which then has no [`ClientEvent::RangeEnded`]. Parts of its
    /// response that have arrived may still come out.
    pub fn cancel_range(&mut self, id: u64) {
        if let Some(range) = &mut self.range {
            range.requests.cancel(id);
        }
    }

    /// A connected peer speaks these protocols. If range sync is among them, its status is requested
    /// from now on.
    pub fn on_identified(&mut self, peer: PeerId, protocols: &[StreamProtocol], now: Instant) {
        if let Some(range) = &mut self.range
            && protocols.contains(range.client.protocol())
        {
            range.statuses.track(peer, now);
        }
    }

    /// The last connection of a peer has closed.
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

    /// The time of the next [`SyncClient::on_timer`].
    pub fn next_wake(&self) -> Option<Instant> {
        self.range.as_ref()?.statuses.next_wake()
    }
}
