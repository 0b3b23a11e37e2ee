//! The batcher's task: I/O around [`BatcherState`].
//!
//! One loop owns all state. Calls to L2, L1 and the transaction manager run concurrently, and their
//! results arrive as events. Encoding runs on a blocking thread. Bounds: block requests
//! ([`FETCHES`]), bodies in memory ([`BODY_BUDGET`]), transactions in flight (`--max-pending-tx`,
//! [`MAX_IN_FLIGHT`]), waiting RPC commands ([`MAX_WAITING_COMMANDS`]).
//!
//! **Stop.** Loading ends at the highest block that was loaded. Every block up to it is put into a
//! closed channel, sent, and confirmed. If a channel is lost or a reorg replaces blocks meanwhile,
//! they are posted again. Then the batcher logs `Batch Submitter stopped` and replies to the
//! callers of stop. While SystemConfig names another batcher, a stop waits for transactions in
//! flight only.

mod checks;
mod events;
mod publish;
mod stop;
#[cfg(test)]
mod testing;

use super::{
    handle::{BatcherCommand, BatcherHandle, RunSwitch},
    metrics::BatcherMetrics,
    node_sync::SyncTargetError,
    options::{BatcherOptionError, BatcherOptions, DataAvailability},
    sender::SenderCheck,
    spending::Spending,
    state::{BatcherRules, BatcherState},
    throttle::DataLoad,
};
use crate::{
    batcher::{availability::DataPrices, channels::ChannelPlan, state::BatchTxNumber},
    l2_source::{L2Source, L2SourceError, SourceHeads},
    rollup::l1::{L1Client, L1Error},
    telemetry::LoggedCauses,
    txmgr::{
        fees::TxClass,
        shell::{TxManagerHandle, TxOutcome},
    },
};
use alloy_primitives::{Address, B256};
use futures::{
    StreamExt,
    future::BoxFuture,
    stream::{FuturesOrdered, FuturesUnordered},
};
use starling_proto::{
    channel::BatchContext,
    config::RollupConfig,
    frame::ChannelId,
    l1info::L2BlockRef,
    payload::{BlockId, Payload},
};
use std::{sync::Arc, time::Instant};
use stop::StopOrder;
use tokio::{
    sync::{mpsc, watch},
    time::{Interval, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

/// Maximum number of block requests in flight.
const FETCHES: usize = 8;
/// Bytes of block bodies in memory from which on only the next block to encode is requested.
/// Enough for several channels of the largest size, so
/// that one channel can be encoded while blocks of the next one are loaded.
const BODY_BUDGET: usize = 32 << 20;
/// Maximum number of transactions in flight with `--max-pending-tx=0`. Each one has up to nine
/// blobs with their proofs in memory.
const MAX_IN_FLIGHT: usize = 64;
/// Maximum number of RPC commands that wait for the loop.
const MAX_WAITING_COMMANDS: usize = 16;
/// Number of loaded blocks after which data is sent even while loading continues (as op-batcher).
const BLOCKS_PER_PUBLISH: u64 = 100;

/// Everything that [`batcher()`] needs to create the task.
pub struct BatcherParts {
    /// Options that passed their checks.
    pub options: BatcherOptions,
    /// Whether the batcher is to run; read when the task starts, and set by RPC commands.
    pub run_switch: RunSwitch,
    pub rollup: Arc<RollupConfig>,
    pub source: L2Source,
    pub l1: L1Client,
    pub txs: TxManagerHandle,
    /// Channel to throttling that carries the bytes of blocks that are not safe.
    pub load: watch::Sender<DataLoad>,
    /// Whether the sequencer is throttled. With `--data-availability-type=auto`, channels then use
    /// blobs at any price.
    pub throttling: watch::Receiver<bool>,
}

/// The reason why the batcher could not start, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum BatcherError {
    #[error(transparent)]
    Options(#[from] BatcherOptionError),
    #[error("the encoder of channels has failed: {0}")]
    Encoder(#[from] tokio::task::JoinError),
}

/// Result of a concurrent call, for the loop.
enum BatcherEvent {
    Polled(Box<PollResult>),
    /// L1 block up to which the rollup node must derive before loading begins.
    SyncTarget(Result<u64, SyncTargetError>),
    Prices(Result<DataPrices, String>),
    /// Hash that L1 has at the height of this L1 origin; `None` if it has no such block.
    Origin(BlockId, Result<Option<B256>, L1Error>),
    Sent(SentTx, TxOutcome),
    Balance(Option<u128>),
    /// Batcher address in the SystemConfig contract.
    Sender(Result<Address, L1Error>),
}

/// Heads of the rollup node, and the number of L1's newest block.
struct PollResult {
    heads: Result<SourceHeads, L2SourceError>,
    l1_head: Result<u64, L1Error>,
}

/// A transaction that was handed to the transaction manager.
#[derive(Clone, Copy, Debug)]
struct SentTx {
    number: BatchTxNumber,
    channel: ChannelId,
}

/// Result of a block request.
struct FetchedBlock {
    number: u64,
    block: Result<Option<Arc<Payload>>, L2SourceError>,
}

/// Phase of the batcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatcherPhase {
    Stopped,
    /// Waiting until the L2 chain's genesis time has come and the rollup node has derived up to a
    /// certain L1 block.
    Syncing(SyncWait),
    Running,
}

/// Progress of the wait for the rollup node to derive up to a target L1 block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncWait {
    /// The target is requested once no transaction is in flight.
    Wanted,
    /// The request for the target is in flight.
    Requested,
    Until(u64),
}

/// The batcher's task; [`BatcherTask::run`] runs it.
pub struct BatcherTask {
    options: BatcherOptions,
    run_switch: RunSwitch,
    rollup: Arc<RollupConfig>,
    source: L2Source,
    l1: L1Client,
    txs: TxManagerHandle,
    load: watch::Sender<DataLoad>,
    throttling: watch::Receiver<bool>,
    rules: BatcherRules,
    /// `None` only while the blocking thread encodes.
    state: Option<Box<BatcherState>>,
    phase: BatcherPhase,
    commands: mpsc::Receiver<BatcherCommand>,
    ticker: Interval,
    events: FuturesUnordered<BoxFuture<'static, BatcherEvent>>,
    fetches: FuturesOrdered<BoxFuture<'static, FetchedBlock>>,
    /// Highest block number among the requests in flight; `None` if none is in flight.
    requested: Option<u64>,
    /// Whether a request failed. No block is then requested before the next poll.
    is_fetch_paused: bool,
    /// Number of consecutive block requests for which L2 had no such block.
    missing: u32,
    /// Number of blocks loaded since data was last sent.
    loaded: u64,
    is_polling: bool,
    /// Whether there may be data to send now.
    may_publish: bool,
    /// Whether a request to L1 is in flight on which the next transaction depends.
    is_reading_l1: bool,
    /// L1 origin that was on L1's chain when L1's head was at `l1_head`.
    canonical: Option<BlockId>,
    in_flight: usize,
    l1_head: u64,
    safe: Option<L2BlockRef>,
    /// Number of the block up to which a flush wants all blocks in closed channels; `None` without a
    /// flush.
    flush_through: Option<u64>,
    stop: Option<StopOrder>,
    /// Highest L1 block that includes a transaction of this process; 0 if there is none. After a start
    /// by RPC, loading waits until the rollup node has derived up to this block. With
    /// `--wait-node-sync` or `--check-recent-txs-depth`, it waits for the block that `sync_target`
    /// determines instead.
    last_posted_l1: u64,
    spending: Spending,
    metrics: BatcherMetrics,
    causes: LoggedCauses,
    balance_at: Option<Instant>,
    /// Last balance read, in wei.
    balance: Option<u128>,
    /// Whether the key's account is the batcher in the SystemConfig contract.
    sender: SenderCheck,
}

/// Creates the task and its handle.
pub fn batcher(parts: BatcherParts) -> Result<(BatcherHandle, BatcherTask), BatcherError> {
    let rules = rules(&parts.options, &parts.rollup)?;
    let (sender, commands) = mpsc::channel(MAX_WAITING_COMMANDS);
    let mut ticker = interval(parts.options.poll_interval);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let task = BatcherTask {
        state: Some(Box::new(new_state(&rules))),
        rules,
        phase: BatcherPhase::Stopped,
        commands,
        ticker,
        events: FuturesUnordered::new(),
        fetches: FuturesOrdered::new(),
        requested: None,
        is_fetch_paused: false,
        missing: 0,
        loaded: 0,
        is_polling: false,
        may_publish: false,
        is_reading_l1: false,
        canonical: None,
        in_flight: 0,
        l1_head: 0,
        safe: None,
        flush_through: None,
        stop: None,
        last_posted_l1: 0,
        spending: Spending::default(),
        metrics: BatcherMetrics::new(),
        causes: LoggedCauses::default(),
        balance_at: None,
        balance: None,
        sender: SenderCheck::new(parts.txs.address()),
        options: parts.options,
        run_switch: parts.run_switch,
        rollup: parts.rollup,
        source: parts.source,
        l1: parts.l1,
        txs: parts.txs,
        load: parts.load,
        throttling: parts.throttling,
    };
    Ok((BatcherHandle::new(sender), task))
}

fn rules(options: &BatcherOptions, rollup: &RollupConfig) -> Result<BatcherRules, BatcherError> {
    let plan = |class, settings| ChannelPlan { class, settings };
    Ok(BatcherRules {
        calldata: plan(TxClass::Calldata, options.calldata_settings()),
        blobs: plan(TxClass::Blob, options.blob_settings()),
        first_class: match options.data_availability {
            DataAvailability::Calldata => TxClass::Calldata,
            DataAvailability::Blobs | DataAvailability::Auto => TxClass::Blob,
        },
        times: options.channel_times(rollup)?,
        context: BatchContext {
            genesis_time: rollup.genesis.l2_time,
            block_time: rollup.block_time,
            chain_id: rollup.l2_chain_id,
        },
        forks: rollup.forks.clone(),
        genesis_l1: rollup.genesis.l1.number,
        body_budget: BODY_BUDGET,
    })
}

fn new_state(rules: &BatcherRules) -> BatcherState {
    BatcherState::new(rules.clone(), B256::random())
}

impl BatcherTask {
    /// Runs until `closing` is cancelled and every loaded block is on L1, or until `ending` is
    /// cancelled.
    pub async fn run(
        mut self,
        closing: CancellationToken,
        ending: CancellationToken,
    ) -> Result<(), BatcherError> {
        if self.run_switch.is_on() {
            self.start();
        } else {
            tracing::info!("Batch Submitter is stopped; admin_startBatcher starts it");
        }
        let mut is_closing = false;
        loop {
            self.load_blocks();
            self.publish(&ending).await?;
            self.finish_stop();
            if is_closing && self.phase == BatcherPhase::Stopped {
                return Ok(());
            }
            let may_poll = self.phase != BatcherPhase::Stopped && !self.is_polling;
            tokio::select! {
                biased;
                () = ending.cancelled() => {
                    self.log_unposted();
                    return Ok(());
                }
                () = closing.cancelled(), if !is_closing => {
                    is_closing = true;
                    self.begin_stop(None);
                }
                Some(command) = self.commands.recv() => self.on_command(command, is_closing),
                Some(event) = self.events.next() => self.on_event(event),
                Some(fetched) = self.fetches.next() => self.on_fetched(fetched),
                _ = self.ticker.tick(), if may_poll => self.poll(),
            }
        }
    }

    /// Starts with an empty state, so that loading begins above the safe head.
    fn start(&mut self) {
        tracing::info!("Starting Batch Submitter");
        self.state = Some(Box::new(new_state(&self.rules)));
        self.forget_fetches();
        let waits = self.options.wait_node_sync || self.options.check_recent_txs_depth > 0;
        self.phase = BatcherPhase::Syncing(if waits {
            SyncWait::Wanted
        } else {
            SyncWait::Until(self.last_posted_l1)
        });
        self.sender = SenderCheck::new(self.txs.address());
        self.ticker.reset_immediately();
    }

    /// Drops the block requests in flight and resets their bookkeeping.
    fn forget_fetches(&mut self) {
        self.fetches = FuturesOrdered::new();
        (self.requested, self.is_fetch_paused, self.loaded) = (None, false, 0);
    }

    /// Logs a warning, at most every ten minutes per cause until [`BatcherTask::note_success`] ends
    /// that cause.
    fn warn(&mut self, sentence: &'static str, error: String) {
        if self.causes.note_failure(sentence, &error, Instant::now()) {
            tracing::warn!(error, "{sentence}");
        }
    }

    /// Logs that the cause of this warning is over, if the warning was logged.
    fn note_success(&mut self, sentence: &'static str) {
        if self.causes.note_success(sentence, Instant::now()) {
            tracing::info!(warning = sentence, "the cause of a warning is over");
        }
    }
}
