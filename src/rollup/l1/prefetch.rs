//! Fetches L1 blocks ahead of the one that is wanted, several requests at once, each for as many
//! blocks as fit a response of moderate size.
//!
//! [`FetchPlan`] decides which blocks to request; it is pure. A request that fails is repeated in
//! halves, down to single blocks, so that no limit on the size of a response stops derivation. Memory
//! is bounded by requests in flight, by the expected size of their responses, and by blocks that wait
//! to be taken; `L1Gate` bounds responses that are larger than expected.

use super::{L1BlockData, L1Blocks, L1Error, RpcCause, blocks::FetchedBlocks};
use std::{
    collections::{BTreeMap, VecDeque},
    ops::ControlFlow,
    sync::Arc,
};
use tokio::task::{JoinError, JoinSet};

/// Blocks fetched ahead at most.
const AHEAD: u64 = 512;
/// Memory of blocks that wait to be taken, bytes; no block is fetched ahead beyond it.
const READY_BYTES: usize = 16 << 20;
/// Wanted size of the responses of one request, bytes of JSON.
const RESPONSE_BYTES: usize = 1 << 20;
/// Expected size of all responses in flight, bytes of JSON; one request may be in flight whatever it
/// brings. More than ten responses of the wanted size.
const IN_FLIGHT_BYTES: usize = 32 << 20;

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FetchRange {
    first: u64,
    count: u64,
}

impl FetchRange {
    fn contains(self, number: u64) -> bool {
        (self.first..self.first.saturating_add(self.count)).contains(&number)
    }

    /// The first `count` blocks, and the others.
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

/// The blocks that are wanted, requested, and still to be requested.
#[derive(Debug)]
struct FetchPlan {
    /// Next block that the caller takes.
    wanted: u64,
    /// Lowest block that was never requested.
    next: u64,
    /// Parts of what was requested that did not come.
    missing: VecDeque<FetchRange>,
    in_flight: usize,
    /// Blocks of the requests in flight.
    blocks_in_flight: u64,
    max_in_flight: usize,
    /// Blocks in one request at most.
    max_batch: u64,
    /// Average size of a block with its receipts, bytes of JSON; weighs new blocks with 1/4.
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
            // The first request is for one block: its size is not known.
            average: RESPONSE_BYTES,
        }
    }

    /// The next request. `retries` is how many missing ranges may be requested again, and goes down with
    /// each; `ready_bytes` is the memory of blocks that wait.
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
        // Wait until enough blocks are taken for a full request.
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

    /// The first `came` blocks of `range` came, with `bytes` of JSON.
    fn done(&mut self, range: FetchRange, came: u64, bytes: usize) {
        self.end(range);
        if let Some(size) = bytes.checked_div(usize::try_from(came).unwrap_or(usize::MAX)) {
            self.average = (3 * self.average.min(4 * RESPONSE_BYTES) + size) / 4;
        }
        self.add_missing(range.split(came).1);
    }

    /// The request for `range` failed, and the endpoint did not only demand a slower pace: the
    /// response may have been too large, so no later request is as large.
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

/// Outcome of a request that has ended, if it says nothing about the wanted block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FetchEnd {
    /// Its blocks are ready.
    Came,
    /// Its response may have been too large; its halves may be requested at once.
    Refused,
    /// Its blocks are requested again later.
    Failed,
}

/// Blocks of a growing L1, in order, fetched ahead.
///
/// Its requests run while the caller does other work; they end when it is dropped. It does not judge
/// whether a block extends the one before: after a reorg the caller requests an earlier block, and
/// everything that was fetched ahead is dropped.
pub struct Prefetcher {
    blocks: L1Blocks,
    plan: FetchPlan,
    ready: BTreeMap<u64, Arc<L1BlockData>>,
    requests: JoinSet<Fetch>,
}

impl Prefetcher {
    /// Begins nothing before the first call of [`Prefetcher::next`]. Keeps at most `max_in_flight`
    /// requests in flight, of at most `max_batch` blocks each.
    pub fn new(blocks: L1Blocks, max_in_flight: usize, max_batch: usize) -> Self {
        Self {
            plan: FetchPlan::new(0, max_in_flight, max_batch),
            blocks,
            ready: BTreeMap::new(),
            requests: JoinSet::new(),
        }
    }

    /// The canonical block of this height, `None` if L1 has none yet; and, in the background, the
    /// blocks after it up to `head`. One attempt for each block, as with [`L1Blocks::get`]: a block
    /// that could not be fetched is requested again at a later call. Cancelling it loses nothing.
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
        // Requests that have ended come first: their blocks count as ready, and their permits are free.
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

    /// Fetches on while the caller waits for something else, until a request fails. Cancelling it
    /// loses nothing.
    pub async fn fetch_ahead(&mut self, head: u64) {
        let Some(joined) = self.requests.join_next().await else {
            return std::future::pending().await;
        };
        let ended = self.on_end(joined, self.plan.wanted);
        if let ControlFlow::Continue(FetchEnd::Came | FetchEnd::Refused) = ended {
            self.request(head, &mut 0);
        }
    }

    /// Takes the blocks of a request that has ended. `Break` has the result for the wanted block.
    fn on_end(
        &mut self,
        joined: Result<Fetch, JoinError>,
        wanted: u64,
    ) -> ControlFlow<Result<Option<Arc<L1BlockData>>, L1Error>, FetchEnd> {
        // A request that panicked or was aborted leaves no trace here but its range.
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

    /// The blocks from `number` on that wait to be taken, in order, up to the first that is missing.
    pub fn ready_from(&self, number: u64) -> impl Iterator<Item = &L1BlockData> {
        let ready = self.ready.range(number..).zip(number..);
        ready
            .take_while(|((ready, _), expected)| **ready == *expected)
            .map(|((_, data), _)| &**data)
    }

    /// Forgets what was fetched ahead, for instance after a reorg.
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

/// Whether the endpoint works and refuses a request for several blocks: its halves are sent
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
