//! Requests of the batcher to L2 and L1: polls of the heads, the wait for the rollup node, blocks,
//! balance. The loop of [`BatcherTask`] calls these functions and handles the resulting events.
//! Bounded by [`FETCHES`] and by the memory budget for block bodies.

use super::{BatcherEvent, BatcherPhase, BatcherTask, FETCHES, FetchedBlock, PollResult, SyncWait};
use crate::{
    batcher::{
        blocks::{BlockSizes, Insertion},
        node_sync::{SyncTargetError, sync_target},
        sync_actions::SourceStatus,
    },
    clock::unix_now,
};
use alloy_primitives::U256;
use futures::{FutureExt, stream::FuturesOrdered};
use serde_json::json;
use std::time::{Duration, Instant};

/// Interval of balance requests.
const BALANCE_INTERVAL: Duration = Duration::from_secs(60);
// Warning messages. Each one is also logged when its cause is over.
const NO_RANGE: &str = "Error calculating L2 block range";
const OUT_OF_SYNC: &str = "Sequencer is out of sync, retrying next tick.";
const NO_L1: &str = "Failed to query L1 tip";
const NO_BLOCK: &str = "error loading blocks, retrying on next tick";
const EMPTY: &str =
    "the account of the batcher has no ether on L1, so nothing can be posted; send some to it";
const WAITING: &str = "waiting for the rollup node";

impl BatcherTask {
    /// Requests the heads of the rollup node and of L1.
    pub(super) fn poll(&mut self) {
        self.is_polling = true;
        let (source, l1) = (self.source.clone(), self.l1.clone());
        let polled = async move {
            let (heads, l1_head) = tokio::join!(source.heads(), l1.head_number());
            BatcherEvent::Polled(Box::new(PollResult { heads, l1_head }))
        };
        self.events.push(polled.boxed());
        self.read_balance();
        self.read_sender();
    }

    fn read_balance(&mut self) {
        let now = Instant::now();
        if self.balance_at.is_some_and(|at| now < at) {
            return;
        }
        self.balance_at = Some(now + BALANCE_INTERVAL);
        let (l1, account) = (self.l1.clone(), self.txs.address());
        let read = async move {
            let params = json!([account, "latest"]);
            let balance = l1.plain_call::<U256>("eth_getBalance", params).await;
            BatcherEvent::Balance(balance.ok().map(|wei| wei.saturating_to()))
        };
        self.events.push(read.boxed());
    }

    pub(super) fn on_event(&mut self, event: BatcherEvent) {
        match event {
            BatcherEvent::Polled(answer) => self.on_polled(*answer),
            BatcherEvent::SyncTarget(target) => self.on_sync_target(target),
            BatcherEvent::Prices(prices) => self.on_prices(prices),
            BatcherEvent::Origin(origin, hash) => self.on_origin(origin, hash),
            BatcherEvent::Sent(sent, outcome) => self.on_sent(sent, outcome),
            BatcherEvent::Balance(balance) => self.on_balance(balance),
            BatcherEvent::Sender(sender) => self.on_sender(sender),
        }
    }

    pub(super) fn on_polled(&mut self, answer: PollResult) {
        self.is_polling = false;
        if self.phase == BatcherPhase::Stopped {
            return;
        }
        // Loaded data must be sent by its deadline even if this poll has no L2 heads.
        (self.is_fetch_paused, self.may_publish) = (false, true);
        match answer.l1_head {
            Ok(head) => {
                // A reorg of L1 shows in a new head.
                self.canonical = self.canonical.filter(|_| head == self.l1_head);
                self.l1_head = head;
                self.note_success(NO_L1);
            }
            Err(error) => self.warn(NO_L1, error.to_string()),
        }
        let status = match answer.heads {
            Ok(heads) => {
                self.note_success(NO_RANGE);
                SourceStatus::read(&heads)
            }
            Err(error) => {
                // The error text that op-batcher's documentation names.
                let deadline = error.is_timeout().then_some(": context deadline exceeded");
                let deadline = deadline.unwrap_or_default();
                let cause = format!("failed to get sync status: {error}{deadline}");
                return self.warn(NO_RANGE, cause);
            }
        };
        let status = match status {
            Ok(status) => status,
            Err(reason) => return self.warn(OUT_OF_SYNC, reason.to_string()),
        };
        if !self.advance_sync(&status) {
            return;
        }
        let taken = self.state_mut().map(|state| state.on_status(&status));
        if let Some(Err(reason)) = taken {
            return self.warn(OUT_OF_SYNC, reason.to_string());
        }
        self.note_success(OUT_OF_SYNC);
        self.safe = Some(status.local_safe_l2);
        self.note_changes();
        self.report_load();
    }

    /// Advances the wait for the rollup node, and returns whether loading may begin.
    fn advance_sync(&mut self, status: &SourceStatus) -> bool {
        let BatcherPhase::Syncing(wait) = self.phase else {
            return self.phase == BatcherPhase::Running;
        };
        let genesis = self.rollup.genesis.l2_time;
        if unix_now() < genesis {
            self.warn("Waiting for L2 genesis", format!("it begins at {genesis}"));
            return false;
        }
        match wait {
            SyncWait::Wanted if self.in_flight == 0 => self.request_sync_target(),
            SyncWait::Wanted | SyncWait::Requested => {}
            SyncWait::Until(target) if status.current_l1 >= target => {
                self.note_success(WAITING);
                tracing::info!(l1_block = target, "Batch Submitter started");
                self.phase = BatcherPhase::Running;
                return true;
            }
            SyncWait::Until(target) => {
                let cause = format!("derivation has not come to L1 block {target}");
                self.warn(WAITING, cause);
            }
        }
        false
    }

    fn request_sync_target(&mut self) {
        self.phase = BatcherPhase::Syncing(SyncWait::Requested);
        let (l1, txs) = (self.l1.clone(), self.txs.clone());
        let depth = self.options.check_recent_txs_depth;
        let target = async move { BatcherEvent::SyncTarget(sync_target(l1, txs, depth).await) };
        self.events.push(target.boxed());
    }

    fn on_sync_target(&mut self, target: Result<u64, SyncTargetError>) {
        if self.phase != BatcherPhase::Syncing(SyncWait::Requested) {
            return;
        }
        self.phase = BatcherPhase::Syncing(match target {
            Ok(number) => SyncWait::Until(number),
            Err(error) => {
                self.warn("error waiting for node sync", error.to_string());
                SyncWait::Wanted
            }
        });
    }

    /// Requests blocks as far as the limits on requests and memory allow.
    pub(super) fn load_blocks(&mut self) {
        if self.phase != BatcherPhase::Running || self.is_fetch_paused {
            return;
        }
        if self.fetches.is_empty() {
            self.requested = None;
        }
        let last = self.load_limit();
        while self.fetches.len() < FETCHES {
            let state = self.state.as_ref();
            let Some(number) = state.and_then(|state| state.wanted(self.requested, last)) else {
                break;
            };
            self.requested = Some(number);
            let source = self.source.clone();
            let fetch = async move {
                let block = source.block(number).await;
                FetchedBlock { number, block }
            };
            self.fetches.push_back(fetch.boxed());
        }
        if self.fetches.is_empty() && self.loaded > 0 {
            self.publish_before_loading();
        }
    }

    /// Highest number of a block to load: that of the stop in progress, otherwise no limit.
    pub(super) fn load_limit(&self) -> u64 {
        self.stop.as_ref().map_or(u64::MAX, |stop| stop.through)
    }

    /// Enables [`Self::publish`] and reports the load, before more blocks are loaded.
    fn publish_before_loading(&mut self) {
        self.loaded = 0;
        self.may_publish = true;
        self.report_load();
    }

    pub(super) fn on_fetched(&mut self, fetched: FetchedBlock) {
        let number = fetched.number;
        let payload = match fetched.block {
            Ok(Some(payload)) => payload,
            Ok(None) => {
                self.missing += 1;
                // A first missing block may be due to a reorg, which the next status shows.
                if self.missing > 1 {
                    let cause = format!(
                        "getting L2 block {number}: not found, though the rollup node's unsafe head is not below it"
                    );
                    self.warn(NO_BLOCK, cause);
                }
                return self.pause_fetches();
            }
            Err(error) => {
                let cause = format!("getting L2 block {number}: {error}");
                self.warn(NO_BLOCK, cause);
                return self.pause_fetches();
            }
        };
        let raw = BlockSizes::of(&payload).raw;
        let transactions = payload.transactions.len();
        match self.state_mut().map(|state| state.on_block(payload)) {
            Some(Insertion::Held) => {
                tracing::debug!(number, transactions, "Added L2 block to local state");
                self.note_success(NO_BLOCK);
                self.missing = 0;
                self.metrics.loaded(raw);
                self.loaded += 1;
                if self.loaded >= super::BLOCKS_PER_PUBLISH {
                    self.publish_before_loading();
                }
            }
            Some(Insertion::Reorg) => {
                if let Some(state) = self.state_mut() {
                    state.on_reorg();
                }
                self.note_changes();
            }
            Some(Insertion::Unwanted) | None => {}
        }
    }

    fn pause_fetches(&mut self) {
        self.fetches = FuturesOrdered::new();
        (self.requested, self.is_fetch_paused) = (None, true);
        self.publish_before_loading();
    }

    fn on_balance(&mut self, balance: Option<u128>) {
        self.balance = balance.or(self.balance);
        let account = self.txs.address();
        match balance {
            Some(0) if self.causes.note_failure(EMPTY, "", Instant::now()) => {
                tracing::error!(%account, "{EMPTY}");
            }
            Some(0) | None => {}
            Some(_) => self.note_success(EMPTY),
        }
        self.show_runway();
    }

    /// Updates the runway metric, and warns if the balance lasts less than a day.
    pub(super) fn show_runway(&mut self) {
        let Some(balance) = self.balance else {
            return;
        };
        let hours = self.spending.runway(balance, Instant::now());
        self.metrics.balance(balance, hours);
        if self.spending.warns(hours) {
            let hours = hours.unwrap_or_default().floor();
            let account = self.txs.address();
            tracing::warn!(%account, hours, "the batcher's balance lasts less than a day at the spending of the last hour");
        }
    }
}

#[cfg(test)]
mod tests;
