//! The requesting side of a node: the requests of sync in flight, their responses frame by frame,
//! verified by the functions of the swarm's clients, and the statuses of peers.

use super::LiveNode;
use crate::sim::{
    chain::SharedChain,
    context::{CHAIN_ID, SimContext},
    planted::PlantedBug,
    queue::{SECOND, SimTime},
    wires::{SimMessage, SimRequest},
};
use alloy_primitives::B256;
use starling_p2p::{
    ChainGenesis, PeerId,
    machines::{
        Arrival, ClientEvent, FetchError, HashLinks, Offence, PeerStatus, RangeRequest,
        StatusSchedule, by_number, decode_frame, first_known, read_status, verify_blocks,
        verify_headers,
    },
};
use starling_proto::{
    payload::BlockId,
    wire::{
        BodiesRequest, HeadersRequest, LENGTH, Request, RequestBody, ResponseBody, StatusRequest,
        frame,
    },
};
use std::{collections::BTreeMap, sync::Arc, time::Instant};

/// Time limit of a response by number, and of each frame of a response by range.
const RESPONSE: SimTime = 10 * SECOND;

enum PendingKind {
    Number {
        sync: u64,
        number: u64,
    },
    Headers {
        sync: u64,
        at: BlockId,
        missing: usize,
        count: usize,
    },
    Bodies {
        sync: u64,
        first: u64,
        hashes: Arc<[B256]>,
        done: usize,
    },
    Status {
        status: Option<PeerStatus>,
    },
}

struct PendingRequest {
    to: usize,
    deadline: SimTime,
    kind: PendingKind,
}

impl PendingRequest {
    /// The id that sync gave the request.
    fn sync_id(&self) -> Option<u64> {
        match self.kind {
            PendingKind::Number { sync, .. }
            | PendingKind::Headers { sync, .. }
            | PendingKind::Bodies { sync, .. } => Some(sync),
            PendingKind::Status { .. } => None,
        }
    }

    /// Whether the whole response has arrived.
    fn is_complete(&self) -> bool {
        match &self.kind {
            PendingKind::Number { .. } => false,
            PendingKind::Headers { missing, .. } => *missing == 0,
            PendingKind::Bodies { hashes, done, .. } => *done == hashes.len(),
            PendingKind::Status { status } => status.is_some(),
        }
    }

    /// The outcome of a response that has ended. A busy peer ends it before the first item.
    fn outcome(&self) -> Result<(), FetchError> {
        let empty = match &self.kind {
            PendingKind::Number { .. } => true,
            PendingKind::Headers { missing, count, .. } => missing == count,
            PendingKind::Bodies { done, .. } => *done == 0,
            PendingKind::Status { status } => status.is_none(),
        };
        if empty {
            Err(FetchError::Unreachable)
        } else {
            Ok(())
        }
    }
}

/// The requests of a node in flight.
pub struct Requests {
    pending: BTreeMap<u64, PendingRequest>,
    next: u64,
    statuses: StatusSchedule,
    view: SharedChain,
    genesis: ChainGenesis,
}

impl Requests {
    pub fn new(view: &SharedChain, genesis: ChainGenesis) -> Self {
        Self {
            pending: BTreeMap::new(),
            next: 0,
            statuses: StatusSchedule::new(genesis),
            view: view.clone(),
            genesis,
        }
    }

    pub fn len(&self) -> usize {
        self.pending.len()
    }

    pub fn track(&mut self, peer: PeerId, now: Instant) {
        self.statuses.track(peer, now);
    }

    pub fn untrack(&mut self, peer: &PeerId) {
        self.statuses.untrack(peer);
    }

    /// Cancels the range request that sync knows by this id.
    pub fn cancel(&mut self, sync: u64) {
        let is_number = |kind: &PendingKind| matches!(kind, PendingKind::Number { .. });
        self.pending
            .retain(|_, request| request.sync_id() != Some(sync) || is_number(&request.kind));
    }

    fn statuses_in_flight(&self) -> usize {
        let is_status = |request: &&PendingRequest| request.sync_id().is_none();
        self.pending.values().filter(is_status).count()
    }

    pub fn next_status(&self) -> Option<Instant> {
        self.statuses.next_wake(self.statuses_in_flight())
    }

    pub fn next_deadline(&self) -> Option<SimTime> {
        self.pending.values().map(|request| request.deadline).min()
    }
}

impl LiveNode {
    fn request(
        &mut self,
        peer: &PeerId,
        kind: PendingKind,
        body: SimRequest,
        context: &mut SimContext,
    ) {
        let Some(to) = context.directory.index(peer) else {
            return;
        };
        if !self.connections.is_connected(to) {
            let detail = format!("requests blocks from node {to}, which is not connected");
            context
                .checks
                .fail(context.now, self.me, "request_to_nobody", detail);
        }
        self.requests.next += 1;
        let (id, deadline) = (self.requests.next, context.now + RESPONSE);
        let request = PendingRequest { to, deadline, kind };
        self.requests.pending.insert(id, request);
        context.send(self.me, to, SimMessage::Request { id, body });
    }

    pub(super) fn request_number(
        &mut self,
        sync: u64,
        peer: &PeerId,
        number: u64,
        context: &mut SimContext,
    ) {
        context.history.note(
            context.now,
            self.me,
            format_args!("requests block {number}"),
        );
        let kind = PendingKind::Number { sync, number };
        self.request(peer, kind, SimRequest::Number(number), context);
    }

    pub(super) fn request_range(
        &mut self,
        sync: u64,
        peer: &PeerId,
        request: RangeRequest,
        context: &mut SimContext,
    ) {
        let (kind, body) = match request {
            RangeRequest::Headers { from, count } => {
                let note = format_args!("requests {count} headers from {}", from.number);
                context.history.note(context.now, self.me, note);
                headers_request(sync, from, count)
            }
            RangeRequest::Bodies {
                first,
                hashes,
                max_bytes,
            } => {
                let note = format_args!("requests {} blocks from {first}", hashes.len());
                context.history.note(context.now, self.me, note);
                bodies_request(sync, first, hashes, max_bytes)
            }
        };
        self.request(peer, kind, SimRequest::Range(encode(body)), context);
    }

    pub(super) fn requests_on_timer(&mut self, context: &mut SimContext) {
        let in_flight = self.requests.statuses_in_flight();
        for peer in self
            .requests
            .statuses
            .take_due(in_flight, context.instant())
        {
            let body = encode(RequestBody::Status(StatusRequest {}));
            let kind = PendingKind::Status { status: None };
            self.request(&peer, kind, SimRequest::Range(body), context);
        }
        let late = |(id, request): (&u64, &PendingRequest)| {
            (request.deadline <= context.now).then_some(*id)
        };
        let late: Vec<u64> = self.requests.pending.iter().filter_map(late).collect();
        for id in late {
            if let Some(request) = self.requests.pending.remove(&id) {
                self.end(request, Err(FetchError::TimedOut), context);
            }
        }
    }

    pub(super) fn on_frame(
        &mut self,
        from: usize,
        id: u64,
        bytes: Vec<u8>,
        context: &mut SimContext,
    ) {
        let swapped = context.has_bug(PlantedBug::ResponsesSwapped);
        let other = self.requests.pending.keys().find(|other| **other != id);
        let id = other.copied().filter(|_| swapped).unwrap_or(id);
        let Some(mut request) = self.requests.pending.remove(&id) else {
            return;
        };
        request.deadline = context.now + RESPONSE;
        let ended = match request.kind {
            PendingKind::Number { sync, number } => {
                let peer = context.directory.peers[from];
                let outcome = by_number::decode(&bytes, peer, number, &self.requests.view);
                return self.end_number(sync, request.to, outcome, context);
            }
            _ => self.read_frame(&mut request, bytes, context),
        };
        match ended {
            Ok(()) if request.is_complete() => self.end(request, Ok(()), context),
            Ok(()) => drop(self.requests.pending.insert(id, request)),
            Err(error) => self.end(request, Err(error), context),
        }
    }

    /// Reads a frame of a response by range.
    fn read_frame(
        &mut self,
        request: &mut PendingRequest,
        bytes: Vec<u8>,
        context: &SimContext,
    ) -> Result<(), FetchError> {
        // The length prefix was checked by the stream.
        let body = decode_frame(bytes.get(LENGTH..).unwrap_or_default().to_vec())?;
        let (peer, now) = (context.directory.peers[request.to], context.instant());
        match (&mut request.kind, body) {
            (PendingKind::Status { status }, ResponseBody::Status(read)) => {
                *status = Some(read_status(&read, CHAIN_ID, self.requests.genesis.id.hash)?);
            }
            (
                PendingKind::Headers {
                    sync, at, missing, ..
                },
                ResponseBody::Headers(chunk),
            ) => {
                let parents = verify_headers(&chunk, *at, *missing)?;
                *missing -= parents.len();
                at.number -= parents.len() as u64;
                at.hash = parents.last().copied().unwrap_or(at.hash);
                let known = first_known(&parents, &self.requests.view);
                self.sync
                    .on_links(*sync, &HashLinks { parents, known }, now);
            }
            (
                PendingKind::Bodies {
                    sync,
                    first,
                    hashes,
                    done,
                },
                ResponseBody::Bodies(chunk),
            ) => {
                let mut expected = hashes[*done..].to_vec();
                if context.has_bug(PlantedBug::WindowOffByOne) {
                    expected.rotate_left(1);
                }
                let blocks = verify_blocks(&chunk, *first + *done as u64, &expected)?;
                *done += blocks.len();
                let arrival = |payload| Arrival {
                    payload: Arc::new(payload),
                    from: Some(peer),
                    known: false,
                    parent_known: false,
                };
                let arrivals = blocks.into_iter().map(arrival).collect();
                self.sync.on_blocks(*sync, arrivals, now);
            }
            _ => return Err(FetchError::Malformed("another kind of response".into())),
        }
        Ok(())
    }

    pub(super) fn on_end(&mut self, from: usize, id: u64, context: &mut SimContext) {
        let is_theirs = |request: &&PendingRequest| request.to == from;
        if self.requests.pending.get(&id).filter(is_theirs).is_some()
            && let Some(request) = self.requests.pending.remove(&id)
        {
            let outcome = request.outcome();
            self.end(request, outcome, context);
        }
    }

    /// Ends the requests to a peer that has disconnected.
    pub(super) fn fail_requests_of(&mut self, other: usize, context: &mut SimContext) {
        let of_peer = |(id, request): (&u64, &PendingRequest)| (request.to == other).then_some(*id);
        let ids: Vec<u64> = self.requests.pending.iter().filter_map(of_peer).collect();
        for id in ids {
            if let Some(request) = self.requests.pending.remove(&id) {
                self.end(request, Err(FetchError::Unreachable), context);
            }
        }
    }

    fn end(
        &mut self,
        request: PendingRequest,
        outcome: Result<(), FetchError>,
        context: &mut SimContext,
    ) {
        let peer = context.directory.peers[request.to];
        let (to, moment) = (request.to, context.moment(self.me));
        match (request.kind, outcome) {
            (PendingKind::Status { status }, outcome) => {
                let status = outcome.and_then(|()| status.ok_or(FetchError::Unreachable));
                match self.requests.statuses.judge(peer, status, moment) {
                    Some(ClientEvent::Status { peer, status }) => {
                        self.sync.on_status(peer, status, moment.instant);
                    }
                    Some(ClientEvent::Offence {
                        peer,
                        offence,
                        evidence,
                    }) => self.peers.on_offence(peer, offence, &evidence, moment),
                    _ => {}
                }
            }
            (PendingKind::Number { sync, .. }, outcome) => {
                let error = outcome.err().unwrap_or(FetchError::Unreachable);
                self.end_number(sync, to, Err(error), context);
            }
            (PendingKind::Headers { sync, .. } | PendingKind::Bodies { sync, .. }, outcome) => {
                self.credit(
                    to,
                    outcome.as_ref().err(),
                    "asked for a range of blocks",
                    context,
                );
                self.sync.on_range_end(sync, outcome, moment.instant);
            }
        }
    }

    fn end_number(
        &mut self,
        sync: u64,
        to: usize,
        outcome: Result<Arrival, FetchError>,
        context: &mut SimContext,
    ) {
        self.credit(to, outcome.as_ref().err(), "asked for a block", context);
        self.sync.on_fetched(sync, outcome, context.instant());
    }

    /// Credits a peer with a response, or charges it if none came, as the swarm's task does.
    fn credit(
        &mut self,
        to: usize,
        error: Option<&FetchError>,
        evidence: &str,
        context: &SimContext,
    ) {
        let (peer, moment) = (context.directory.peers[to], context.moment(self.me));
        match error {
            None => self.peers.reputation.on_valid_response(peer, moment.unix),
            Some(FetchError::TimedOut) if self.connections.is_connected(to) => {
                let offence = Offence::NoResponse;
                self.peers.on_offence(peer, offence, evidence, moment);
            }
            Some(_) => {}
        }
    }
}

/// The bytes of a request, without the length that precedes them on a stream.
fn encode(body: RequestBody) -> Vec<u8> {
    frame(&Request { body: Some(body) })[LENGTH..].to_vec()
}

fn headers_request(sync: u64, from: BlockId, count: u32) -> (PendingKind, RequestBody) {
    let kind = PendingKind::Headers {
        sync,
        at: from,
        missing: count as usize,
        count: count as usize,
    };
    let body = RequestBody::Headers(HeadersRequest {
        number: from.number,
        hash: from.hash.to_vec(),
        count,
    });
    (kind, body)
}

fn bodies_request(
    sync: u64,
    first: u64,
    hashes: Arc<[B256]>,
    max_bytes: u32,
) -> (PendingKind, RequestBody) {
    let body = RequestBody::Bodies(BodiesRequest {
        first,
        last: first + hashes.len() as u64 - 1,
        last_hash: hashes.last().copied().unwrap_or_default().to_vec(),
        max_bytes,
    });
    let kind = PendingKind::Bodies {
        sync,
        first,
        hashes,
        done: 0,
    };
    (kind, body)
}
