//! Fetches L1 blocks ahead of the one that is wanted, several requests at once, each for as many
//! blocks as fit an answer of moderate size.
//!
//! [`Window`] decides which blocks to ask for; it is pure. Memory is bounded by requests in flight,
//! by the size of their answers, and by blocks that wait to be taken.

use super::{L1BlockData, L1Blocks, L1Error, blocks::FetchedBlocks};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};
use tokio::task::JoinSet;

/// Blocks fetched ahead at most.
const AHEAD: u64 = 512;
/// Memory of blocks that wait to be taken, bytes; no block is fetched ahead beyond it.
const READY_BYTES: usize = 16 << 20;
/// Wanted size of an answer, bytes of JSON; ten of them may be in memory at once.
const ANSWER_BYTES: usize = 1 << 20;

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: u64,
    count: u64,
}

impl Span {
    fn contains(self, number: u64) -> bool {
        (self.first..self.first.saturating_add(self.count)).contains(&number)
    }
}

/// The blocks that are wanted, asked for, and still to be asked for.
#[derive(Debug)]
struct Window {
    /// Next block that the caller takes.
    wanted: u64,
    /// Lowest block that was never asked for.
    next: u64,
    /// Parts of what was asked for that did not come.
    holes: VecDeque<Span>,
    in_flight: usize,
    max_in_flight: usize,
    /// Blocks in one request at most.
    max_batch: u64,
    /// Average size of a block, bytes of JSON; weighs new blocks with 1/4.
    average: usize,
}

impl Window {
    fn new(wanted: u64, max_in_flight: usize, max_batch: usize) -> Self {
        Self {
            wanted,
            next: wanted,
            holes: VecDeque::new(),
            in_flight: 0,
            max_in_flight: max_in_flight.max(1),
            max_batch: max_batch.max(1) as u64,
            // The first request is for one block: its size is not known.
            average: ANSWER_BYTES,
        }
    }

    /// The next request. `retries` is how many holes may be asked for again, and goes down with
    /// each; `ready_bytes` is the memory of blocks that wait.
    fn plan(&mut self, head: u64, ready_bytes: usize, retries: &mut usize) -> Option<Span> {
        if self.in_flight >= self.max_in_flight {
            return None;
        }
        if *retries > 0 {
            *retries -= 1;
            if let Some(span) = self.holes.pop_front() {
                self.in_flight += 1;
                return Some(span);
            }
        }
        let last = head.min(self.wanted.saturating_add(AHEAD - 1));
        let is_full = ready_bytes >= READY_BYTES && self.next > self.wanted;
        if self.next > last || is_full {
            return None;
        }
        let fitting = (ANSWER_BYTES / self.average.max(1)) as u64;
        let count = fitting.clamp(1, self.max_batch).min(last - self.next + 1);
        let span = Span {
            first: self.next,
            count,
        };
        self.next += count;
        self.in_flight += 1;
        Some(span)
    }

    /// The first `came` blocks of `span` came, with `bytes` of JSON.
    fn done(&mut self, span: Span, came: u64, bytes: usize) {
        self.in_flight -= 1;
        if let Some(size) = bytes.checked_div(usize::try_from(came).unwrap_or(usize::MAX)) {
            self.average = (3 * self.average.min(4 * ANSWER_BYTES) + size) / 4;
        }
        if came < span.count {
            self.holes.push_back(Span {
                first: span.first + came,
                count: span.count - came,
            });
            let holes = self.holes.make_contiguous();
            holes.sort_unstable_by_key(|hole| hole.first);
        }
    }
}

type Fetch = (Span, Result<FetchedBlocks, L1Error>);

/// Blocks of a growing L1, in order, fetched ahead.
///
/// Its requests run while the caller does other work; they end when it is dropped. It does not judge
/// whether a block extends the one before: after a reorg the caller asks for an earlier block, and
/// everything that was fetched ahead is dropped.
pub struct Prefetcher {
    blocks: L1Blocks,
    window: Window,
    ready: BTreeMap<u64, Arc<L1BlockData>>,
    requests: JoinSet<Fetch>,
}

impl Prefetcher {
    /// Begins nothing before the first call of [`Prefetcher::next`]. Keeps at most `max_in_flight`
    /// requests in flight, of at most `max_batch` blocks each.
    pub fn new(blocks: L1Blocks, max_in_flight: usize, max_batch: usize) -> Self {
        Self {
            window: Window::new(0, max_in_flight, max_batch),
            blocks,
            ready: BTreeMap::new(),
            requests: JoinSet::new(),
        }
    }

    /// The canonical block of this height, `None` if L1 has none yet; and, in the background, the
    /// blocks after it up to `head`. One attempt for each block, as with [`L1Blocks::get`]: a block
    /// that could not be fetched is asked for again at a later call. Cancelling it loses nothing.
    pub async fn next(
        &mut self,
        number: u64,
        head: u64,
    ) -> Result<Option<Arc<L1BlockData>>, L1Error> {
        let reached = self.window.wanted..=self.window.next;
        if !reached.contains(&number) {
            self.restart(number);
        }
        self.window.wanted = number;
        self.ready = self.ready.split_off(&number);
        self.window
            .holes
            .retain(|hole| hole.first + hole.count > number);
        let mut retries = self.window.holes.len();
        loop {
            if let Some(data) = self.ready.get(&number).cloned() {
                self.request(head, &mut retries);
                return Ok(Some(data));
            }
            self.request(head.max(number), &mut retries);
            let Some(joined) = self.requests.join_next().await else {
                return Ok(None);
            };
            // A request that panicked or was aborted leaves no trace here but its span.
            let Ok((span, result)) = joined else {
                self.restart(number);
                return Ok(None);
            };
            let (fetched, error) = match result {
                Ok(fetched) => (fetched, None),
                Err(error) => (FetchedBlocks::default(), Some(error)),
            };
            let came = fetched.blocks.len() as u64;
            self.window.done(span, came, fetched.json_bytes);
            let came_blocks = fetched.blocks.into_iter();
            self.ready
                .extend(came_blocks.map(|data| (data.block.number, data)));
            if span.contains(number) && !self.ready.contains_key(&number) {
                return error.map_or(Ok(None), Err);
            }
        }
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
        let Window {
            max_in_flight,
            max_batch,
            average,
            ..
        } = self.window;
        self.window = Window {
            average,
            ..Window::new(number, max_in_flight, max_batch as usize)
        };
        self.ready.clear();
        self.requests = JoinSet::new();
    }

    fn request(&mut self, head: u64, retries: &mut usize) {
        loop {
            let ready_bytes = self.ready.values().map(|data| data.size()).sum();
            let Some(span) = self.window.plan(head, ready_bytes, retries) else {
                return;
            };
            let blocks = self.blocks.clone();
            self.requests.spawn(async move {
                let fetched = blocks.range(span.first, span.count as usize).await;
                (span, fetched)
            });
        }
    }
}

#[cfg(test)]
mod tests;
