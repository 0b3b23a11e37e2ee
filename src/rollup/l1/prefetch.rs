//! Fetches L1 blocks ahead of derivation, with several requests at once. Each request is for as
//! many blocks as fit into a response of moderate size.
//!
//! [`FetchPlan`] decides which blocks to request; it is pure. Unless the cause is a rate limit, a
//! failed request is repeated in halves, down to single blocks, so that a limit on response size
//! cannot stop derivation. Memory is bounded by the number of requests in flight, by the expected
//! size of their responses, and by the size of fetched blocks not yet taken. `L1Gate` bounds
//! responses that are larger than expected.

use super::{L1BlockData, L1Blocks, L1Error, RpcCause, blocks::FetchedBlocks};
use std::{
    collections::{BTreeMap, VecDeque},
    ops::ControlFlow,
    sync::Arc,
};
use tokio::task::{JoinError, JoinSet};

/// Largest number of blocks fetched ahead.
const AHEAD: u64 = 512;
/// Size in bytes of the fetched blocks not yet taken, from which on no new block is requested
/// ahead.
const READY_BYTES: usize = 16 << 20;
/// Target size of the response to one request, in bytes of JSON.
const RESPONSE_BYTES: usize = 1 << 20;
/// Largest expected size of all responses in flight, in bytes of JSON: 32 responses of the target
/// size. A single request may be in flight whatever its expected size.
const IN_FLIGHT_BYTES: usize = 32 << 20;

/// A range of consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FetchRange {
    first: u64,
    count: u64,
}

impl FetchRange {
    fn contains(self, number: u64) -> bool {
        (self.first..self.first.saturating_add(self.count)).contains(&number)
    }

    /// The first `count` blocks of the range, and the rest.
    fn split(self, count: u64) -> (Self, Self) {
        let count = count.min(self.count);
        let first = Self { count, ..self };
        let rest = Self {
            first: self.first + count,
            count: self.count - count,
        };
        (first, rest)
    }
}

/// The state of fetching: the next block to take, the requests in flight, and the blocks still to
/// be requested.
#[derive(Debug)]
struct FetchPlan {
    /// Number of the next block that the caller takes.
    wanted: u64,
    /// Number of the lowest block that has never been requested.
    next: u64,
    /// Requested ranges without a usable response, to be requested again.
    missing: VecDeque<FetchRange>,
    in_flight: usize,
    /// Total number of blocks in the requests in flight.
    blocks_in_flight: u64,
    max_in_flight: usize,
    /// Largest number of blocks in one request.
    max_batch: u64,
    /// Moving average of the size of a block with its receipts, in bytes of JSON. The newest
    /// response has a weight of 1/4. A failed request for several blocks may raise it.
    average: usize,
}

impl FetchPlan {
    fn new(wanted: u64, max_in_flight: usize, max_batch: usize) -> Self {
        Self {
            wanted,
            next: wanted,
            missing: VecDeque::new(),
            in_flight: 0,
            blocks_in_flight: 0,
            max_in_flight: max_in_flight.max(1),
            max_batch: max_batch.max(1) as u64,
            // The size of a block is not known yet, so the first request is for one block.
            average: RESPONSE_BYTES,
        }
    }

    /// The next request. `retries` is the number of missing ranges that may still be requested
    /// again. It is lowered when the last part of such a range is requested. `ready_bytes` is the
    /// memory of the fetched blocks not yet taken.
    fn next_request(
        &mut self,
        head: u64,
        ready_bytes: usize,
        retries: &mut usize,
    ) -> Option<FetchRange> {
        let expected = self.average.saturating_mul(self.blocks_in_flight as usize);
        let is_busy = self.in_flight > 0 && expected.saturating_add(self.average) > IN_FLIGHT_BYTES;
        if self.in_flight >= self.max_in_flight || is_busy {
            return None;
        }
        let fitting = (RESPONSE_BYTES / self.average.max(1)) as u64;
        let fitting = fitting.clamp(1, self.max_batch);
        if *retries > 0 {
            if let Some(part) = self.missing.pop_front() {
                let (range, rest) = part.split(fitting);
                if rest.count > 0 {
                    self.missing.push_front(rest);
                } else {
                    *retries -= 1;
                }
                return Some(self.begin(range));
            }
            *retries = 0;
        }
        let last = head.min(self.wanted.saturating_add(AHEAD - 1));
        let is_full = ready_bytes >= READY_BYTES && self.next > self.wanted;
        if self.next > last || is_full {
            return None;
        }
        let count = fitting.min(last - self.next + 1);
        // Wait until enough blocks have been taken for a full request.
        if count < fitting && last < head && self.next > self.wanted {
            return None;
        }
        let range = FetchRange {
            first: self.next,
            count,
        };
        self.next += range.count;
        Some(self.begin(range))
    }

    fn begin(&mut self, range: FetchRange) -> FetchRange {
        self.in_flight += 1;
        self.blocks_in_flight += range.count;
        range
    }

    fn end(&mut self, range: FetchRange) {
        self.in_flight -= 1;
        self.blocks_in_flight -= range.count;
    }

    /// Records that the request for `range` returned its first `came` blocks, in `bytes` bytes of
    /// JSON. The other blocks are missing.
    fn done(&mut self, range: FetchRange, came: u64, bytes: usize) {
        self.end(range);
        if let Some(size) = bytes.checked_div(usize::try_from(came).unwrap_or(usize::MAX)) {
            self.average = (3 * self.average.min(4 * RESPONSE_BYTES) + size) / 4;
        }
        self.add_missing(range.split(came).1);
    }

    /// Records that the request for `range` failed, and not because of a rate limit. Its response
    /// may have been too large, so later requests are smaller.
    fn failed(&mut self, range: FetchRange) {
        self.end(range);
        let half = range.count.div_ceil(2);
        if half < range.count {
            self.average = self.average.max(RESPONSE_BYTES / half as usize);
        }
        let (first, second) = range.split(half);
        self.add_missing(first);
        self.add_missing(second);
    }

    fn add_missing(&mut self, part: FetchRange) {
        if part.count > 0 {
            let place = self
                .missing
                .partition_point(|other| other.first < part.first);
            self.missing.insert(place, part);
        }
    }
}

type Fetch = (FetchRange, Result<FetchedBlocks, L1Error>);

/// Outcome of an ended request that does not yet decide the result for the wanted block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchEnd {
    /// The blocks of the request are ready.
    Came,
    /// The response may have been too large. The halves of the request may be sent at once.
    Refused,
    /// The request failed. Its blocks are requested again later.
    Failed,
}

/// Fetches the blocks of a growing L1 ahead, in order.
///
/// Requests run while the caller does other work, and are aborted when the prefetcher is dropped.
/// The prefetcher does not check whether a block extends the previous one. After a reorg the caller
/// requests an earlier block, and everything fetched ahead is dropped.
pub struct Prefetcher {
    blocks: L1Blocks,
    plan: FetchPlan,
    ready: BTreeMap<u64, Arc<L1BlockData>>,
    requests: JoinSet<Fetch>,
}

impl Prefetcher {
    /// Sends no request before the first call of [`Prefetcher::next`]. Keeps at most
    /// `max_in_flight` requests in flight, of at most `max_batch` blocks each.
    pub fn new(blocks: L1Blocks, max_in_flight: usize, max_batch: usize) -> Self {
        Self {
            plan: FetchPlan::new(0, max_in_flight, max_batch),
            blocks,
            ready: BTreeMap::new(),
            requests: JoinSet::new(),
        }
    }

    /// The canonical block of this height; `None` if L1 has none yet. In the background the blocks
    /// after it up to `head` are fetched. If the request for the block fails, the error is
    /// returned, unless smaller requests may succeed. A later call requests the block again.
    /// Cancelling the call loses nothing.
    pub async fn next(
        &mut self,
        number: u64,
        head: u64,
    ) -> Result<Option<Arc<L1BlockData>>, L1Error> {
        let reached = self.plan.wanted..=self.plan.next;
        if !reached.contains(&number) {
            self.restart(number);
        }
        self.plan.wanted = number;
        self.ready = self.ready.split_off(&number);
        self.plan
            .missing
            .retain(|part| part.first + part.count > number);
        // Handle ended requests first: their blocks are then ready, and their permits are free.
        while let Some(joined) = self.requests.try_join_next() {
            if let ControlFlow::Break(result) = self.on_end(joined, number) {
                return result;
            }
        }
        let mut retries = self.plan.missing.len();
        loop {
            if let Some(data) = self.ready.get(&number).cloned() {
                self.request(head, &mut retries);
                return Ok(Some(data));
            }
            self.request(head.max(number), &mut retries);
            let Some(joined) = self.requests.join_next().await else {
                return Ok(None);
            };
            match self.on_end(joined, number) {
                ControlFlow::Continue(FetchEnd::Refused) => retries += 2,
                ControlFlow::Continue(FetchEnd::Came | FetchEnd::Failed) => {}
                ControlFlow::Break(result) => return result,
            }
        }
    }

    /// Waits until a request in flight has ended, and sends further requests unless it failed. For
    /// a caller that waits for something else meanwhile: never returns if no request is in flight.
    /// Cancelling the call loses nothing.
    pub async fn fetch_ahead(&mut self, head: u64) {
        let Some(joined) = self.requests.join_next().await else {
            return std::future::pending().await;
        };
        let ended = self.on_end(joined, self.plan.wanted);
        if let ControlFlow::Continue(FetchEnd::Came | FetchEnd::Refused) = ended {
            self.request(head, &mut 0);
        }
    }

    /// Stores the blocks of an ended request. `Break` contains the final result for the wanted
    /// block.
    fn on_end(
        &mut self,
        joined: Result<Fetch, JoinError>,
        wanted: u64,
    ) -> ControlFlow<Result<Option<Arc<L1BlockData>>, L1Error>, FetchEnd> {
        // The request panicked or was aborted, and its range is unknown: restart.
        let Ok((range, result)) = joined else {
            self.restart(wanted);
            return ControlFlow::Break(Ok(None));
        };
        let fetched = match result {
            Ok(fetched) => fetched,
            Err(error) if is_refused(&error, range) => {
                self.plan.failed(range);
                return ControlFlow::Continue(FetchEnd::Refused);
            }
            Err(error) => {
                if error.cause.is_rate_limit() {
                    self.plan.done(range, 0, 0);
                } else {
                    self.plan.failed(range);
                }
                if range.contains(wanted) {
                    return ControlFlow::Break(Err(error));
                }
                return ControlFlow::Continue(FetchEnd::Failed);
            }
        };
        let came = fetched.blocks.len() as u64;
        self.plan.done(range, came, fetched.json_bytes);
        let blocks = fetched.blocks.into_iter();
        self.ready
            .extend(blocks.map(|data| (data.block.number, data)));
        if range.contains(wanted) && !self.ready.contains_key(&wanted) {
            return ControlFlow::Break(Ok(None));
        }
        ControlFlow::Continue(FetchEnd::Came)
    }

    /// The fetched blocks from `number` on that have not been taken, in order, up to the first
    /// missing one.
    pub fn ready_from(&self, number: u64) -> impl Iterator<Item = &L1BlockData> {
        let ready = self.ready.range(number..).zip(number..);
        ready
            .take_while(|((ready, _), expected)| **ready == *expected)
            .map(|((_, data), _)| &**data)
    }

    /// Drops everything that was fetched ahead, for instance after a reorg. Fetching continues at
    /// `number`.
    pub fn restart(&mut self, number: u64) {
        let FetchPlan {
            max_in_flight,
            max_batch,
            average,
            ..
        } = self.plan;
        self.plan = FetchPlan {
            average,
            ..FetchPlan::new(number, max_in_flight, max_batch as usize)
        };
        self.ready.clear();
        self.requests = JoinSet::new();
    }

    fn request(&mut self, head: u64, retries: &mut usize) {
        loop {
            let ready_bytes = self.ready.values().map(|data| data.size()).sum();
            let Some(range) = self.plan.next_request(head, ready_bytes, retries) else {
                return;
            };
            let blocks = self.blocks.clone();
            self.requests.spawn(async move {
                let fetched = blocks.range(range.first, range.count as usize).await;
                (range, fetched)
            });
        }
    }
}

/// Whether a working endpoint refused a request for several blocks. Its halves are then sent
/// without a pause.
fn is_refused(error: &L1Error, range: FetchRange) -> bool {
    let is_response = matches!(
        error.cause,
        RpcCause::Refused { .. } | RpcCause::TooLarge(_)
    );
    range.count > 1 && is_response && error.cause.may_be_size()
}

#[cfg(test)]
mod tests;
