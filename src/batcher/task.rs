//! The batcher's task: I/O around [`BatcherState`].
//!
//! One loop owns everything. Calls to L2, to L1 and to the transaction manager run beside it and
//! come back as events; encoding runs on a thread that may block. Bounds: block requests
//! ([`FETCHES`]), bodies in memory ([`BODY_BUDGET`]), transactions in flight (`--max-pending-tx`,
//! [`MAX_IN_FLIGHT`]), commands of the RPC that wait ([`MAX_WAITING_COMMANDS`]).
//!
//! **Stop.** Loading ends at the highest block that was loaded; everything up to it is closed into channels,
//! sent and confirmed, whatever happens meanwhile: lost channels and blocks of another branch are
//! posted again. Then the log says `Batch Submitter stopped`, and the callers are answered.

mod events;
mod publish;
mod stop;

use super::{
    handle::{BatcherCommand, BatcherHandle, RunSwitch},
    metrics::BatcherMetrics,
    node_sync::SyncTargetError,
    options::{BatcherOptionError, BatcherOptions, DataAvailability},
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
    channel::BatchContext, config::RollupConfig, frame::ChannelId, l1info::L2BlockRef,
    payload::Payload,
};
use std::{sync::Arc, time::Instant};
use stop::StopOrder;
use tokio::{
    sync::{mpsc, watch},
    time::{Interval, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

/// Blocks requested at once.
const FETCHES: usize = 8;
/// Bytes of bodies in memory. Some channels of the largest size: the next one can be encoded while
/// blocks of the one after it are loaded.
const BODY_BUDGET: usize = 32 << 20;
/// Transactions in flight where `--max-pending-tx=0` sets no limit. Each holds nine blobs at most,
/// with their proofs.
const MAX_IN_FLIGHT: usize = 64;
/// Commands of the RPC that wait.
const MAX_WAITING_COMMANDS: usize = 16;
/// Loaded blocks after which data are sent while more are being loaded (op-batcher).
const BLOCKS_PER_PUBLISH: u64 = 100;

/// Parts that the task is made of.
pub struct BatcherParts {
    /// Checked options.
    pub options: BatcherOptions,
    /// Whether the batcher starts by itself.
    pub run_switch: RunSwitch,
    pub rollup: Arc<RollupConfig>,
    pub source: L2Source,
    pub l1: L1Client,
    pub txs: TxManagerHandle,
    /// Unsafe bytes, for throttling.
    pub load: watch::Sender<DataLoad>,
    /// Whether the sequencer is throttled: then data always go into blobs.
    pub throttling: watch::Receiver<bool>,
}

/// The reason why the batcher cannot begin, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum BatcherError {
    #[error(transparent)]
    Options(#[from] BatcherOptionError),
    #[error("the encoder of channels has failed: {0}")]
    Encoder(#[from] tokio::task::JoinError),
}

/// An answer that the loop waits for.
enum BatcherEvent {
    Polled(Box<PollResult>),
    /// L1 block that the rollup node must have derived.
    SyncTarget(Result<u64, SyncTargetError>),
    Prices(Result<DataPrices, String>),
    Sent(SentTx, TxOutcome),
    Balance(Option<u128>),
    /// Batcher address of SystemConfig.
    Sender(Result<Address, L1Error>),
}

/// Heads of the rollup node, and number of L1's newest block.
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

/// A block that was requested.
struct FetchedBlock {
    number: u64,
    block: Result<Option<Arc<Payload>>, L2SourceError>,
}

/// Stage of the batcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatcherPhase {
    Stopped,
    /// Waits until the L2 chain has begun and the rollup node has derived this L1 block; the number
    /// is found out first.
    Syncing(SyncWait),
    Running,
}

/// Progress of the check that our account is the batcher of SystemConfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SenderCheck {
    /// L1 is asked with the next poll.
    Wanted,
    Requested,
    Done,
}

/// Progress of the wait for the rollup node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncWait {
    /// The target must be found out, once nothing is in flight.
    Wanted,
    /// The target is being found out.
    Requested,
    Until(u64),
}

/// The task. [`BatcherTask::run`] does everything.
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
    /// `None` only while a thread encodes.
    state: Option<Box<BatcherState>>,
    phase: BatcherPhase,
    commands: mpsc::Receiver<BatcherCommand>,
    ticker: Interval,
    events: FuturesUnordered<BoxFuture<'static, BatcherEvent>>,
    fetches: FuturesOrdered<BoxFuture<'static, FetchedBlock>>,
    /// Newest block among the requests in flight; `None` when none is in flight.
    requested: Option<u64>,
    /// Whether a request failed, so that the next poll is waited for.
    is_fetch_paused: bool,
    /// Blocks in a row that L2 did not have.
    missing: u32,
    /// Blocks loaded since data were sent last.
    loaded: u64,
    is_polling: bool,
    /// Whether there may be data to send.
    may_publish: bool,
    /// Whether prices are being read.
    reading_prices: bool,
    in_flight: usize,
    l1_head: u64,
    safe: Option<L2BlockRef>,
    /// Blocks up to this one leave without waiting for more.
    flush_through: Option<u64>,
    stop: Option<StopOrder>,
    /// Highest L1 block with a transaction of this process. After a restart by RPC, loading waits until
    /// the rollup node has derived it.
    last_posted_l1: Option<u64>,
    spending: Spending,
    metrics: BatcherMetrics,
    causes: LoggedCauses,
    balance_at: Option<Instant>,
    /// Balance at the last reading, wei.
    balance: Option<u128>,
    /// Progress of the check that the account is the batcher of SystemConfig.
    sender: SenderCheck,
}

/// Makes the task and its handle.
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
        reading_prices: false,
        in_flight: 0,
        l1_head: 0,
        safe: None,
        flush_through: None,
        stop: None,
        last_posted_l1: None,
        spending: Spending::default(),
        metrics: BatcherMetrics::new(),
        causes: LoggedCauses::default(),
        balance_at: None,
        balance: None,
        sender: SenderCheck::Wanted,
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
    /// Runs until `closing` is cancelled and everything loaded is on L1, or until `ending` is.
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

    /// Begins above the safe head, with nothing.
    fn start(&mut self) {
        tracing::info!("Starting Batch Submitter");
        self.state = Some(Box::new(new_state(&self.rules)));
        self.forget_fetches();
        let waits = self.options.wait_node_sync || self.options.check_recent_txs_depth > 0;
        self.phase = BatcherPhase::Syncing(match self.last_posted_l1.take() {
            _ if waits => SyncWait::Wanted,
            Some(posted) => SyncWait::Until(posted),
            None => SyncWait::Until(0),
        });
        self.sender = SenderCheck::Wanted;
        self.ticker.reset_immediately();
    }

    /// Drops block requests.
    fn forget_fetches(&mut self) {
        self.fetches = FuturesOrdered::new();
        (self.requested, self.is_fetch_paused, self.loaded) = (None, false, 0);
    }

    /// Logs a warning, once for each cause until [`BatcherTask::note_success`].
    fn warn(&mut self, sentence: &'static str, error: String) {
        if self.causes.note_failure(sentence, &error, Instant::now()) {
            tracing::warn!(error, "{sentence}");
        }
    }

    /// Notes that the cause of a warning is over.
    fn note_success(&mut self, sentence: &'static str) {
        if self.causes.note_success(sentence, Instant::now()) {
            tracing::info!(warning = sentence, "the cause of a warning is over");
        }
    }
}
