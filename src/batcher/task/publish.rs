//! Sends channel data to L1: chooses the class, passes transactions to the manager, handles their
//! outcomes. Called by the loop of [`BatcherTask`]; bounded by `--max-pending-tx`.

use super::{
    BatcherError, BatcherEvent, BatcherPhase, BatcherTask, MAX_IN_FLIGHT, SentTx, SyncWait,
};
use crate::{
    batcher::{
        availability::{DataPrices, DataSizes, cheaper},
        metrics::{ChannelStage, TxStage, blob_fill},
        options::DataAvailability,
        state::{BatchTx, BatcherNotice, BatcherState, ClosedChannel, NextTx, PublishContext},
        sync_actions::ClearCause,
        throttle::DataLoad,
    },
    rollup::l1::L1Client,
    txmgr::{
        fees::TxClass,
        l1::{fees, floor_gas},
        machine::{MinedTx, SendFailure},
        shell::{TxCandidate, TxOutcome},
    },
};
use alloy_eips::eip4844::Blob;
use alloy_primitives::{Bytes, U256};
use futures::FutureExt;
use starling_proto::blob;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Timeout of a gas price request. On a timeout the last chosen class stays (as in op-batcher).
const PRICE_TIMEOUT: Duration = Duration::from_secs(10);
// Warning messages. Each one is also logged when its cause is over.
const NOT_SENT: &str = "Transaction failed to send";
const NO_PRICES: &str = "Error querying gas prices, keeping the data availability type";
pub(super) const ORIGIN_GONE: &str = "Clearing state until the rollup node has derived L1's chain";

async fn prices(l1: &L1Client) -> Result<DataPrices, String> {
    let read = tokio::time::timeout(PRICE_TIMEOUT, fees(l1, None, 0)).await;
    let fees = read.map_err(|_| format!("no response within {PRICE_TIMEOUT:?}"))??;
    Ok(DataPrices {
        tip: fees.tip,
        base_fee: fees.base_fee,
        blob_base_fee: fees.blob_base_fee.ok_or("L1 has no blob base fee")?,
    })
}

/// Cost of a mined transaction in wei, blob gas included.
fn cost(mined: &MinedTx) -> u128 {
    let gas = mined.gas_price.saturating_mul(mined.gas_used.into());
    let blobs = mined
        .blob_gas_price
        .saturating_mul(mined.blob_gas_used.into());
    gas.saturating_add(blobs)
}

impl BatcherTask {
    pub(super) fn state_mut(&mut self) -> Option<&mut BatcherState> {
        self.state.as_deref_mut()
    }

    /// Sends all transactions that are ready, up to the limit of transactions in flight, if the key's
    /// account is the batcher.
    pub(super) async fn publish(&mut self, ending: &CancellationToken) -> Result<(), BatcherError> {
        let most = match usize::try_from(self.options.max_pending_tx) {
            Ok(0) | Err(_) => MAX_IN_FLIGHT,
            Ok(most) => most,
        };
        while self.phase == BatcherPhase::Running
            && self.may_publish
            && self.sender.may_post()
            && !self.is_reading_l1
            && self.in_flight < most
            && !ending.is_cancelled()
        {
            match self.next_tx().await? {
                NextTx::Send(tx) => self.send(tx, ending).await,
                NextTx::NeedsOrigin(origin) => self.read_origin(origin),
                NextTx::NeedsClass => self.choose_class(),
                NextTx::Nothing => self.may_publish = false,
            }
            self.note_changes();
        }
        Ok(())
    }

    async fn next_tx(&mut self) -> Result<NextTx, BatcherError> {
        let context = self.publish_context();
        let Some(mut state) = self.state.take() else {
            return Ok(NextTx::Nothing);
        };
        let encoding = tokio::task::spawn_blocking(move || {
            let next = state.next_tx(&context);
            (state, next)
        });
        let (state, next) = encoding.await?;
        let is_closed = |through: &mut u64| state.is_closed_through(*through);
        self.flush_through.take_if(is_closed);
        self.state = Some(state);
        Ok(next)
    }

    fn publish_context(&self) -> PublishContext {
        let state = self.state.as_ref();
        let heads = state.map(|state| (state.newest(), state.unsafe_head().unwrap_or(0)));
        let (newest, unsafe_head) = heads.unwrap_or_default();
        let has_more = newest < unsafe_head.min(self.load_limit());
        let stop = self.stop.as_ref().map(|stop| stop.through.min(unsafe_head));
        PublishContext {
            l1_head: self.l1_head,
            is_loading: !self.is_fetch_paused && (has_more || !self.fetches.is_empty()),
            close_through: self.flush_through.max(stop),
            canonical: self.canonical,
        }
    }

    /// Sets the class of the next channel's transactions, or requests gas prices to choose by.
    fn choose_class(&mut self) {
        let class = match self.options.data_availability {
            DataAvailability::Calldata => TxClass::Calldata,
            DataAvailability::Blobs => TxClass::Blob,
            DataAvailability::Auto if *self.throttling.borrow() => TxClass::Blob,
            DataAvailability::Auto => {
                self.is_reading_l1 = true;
                let l1 = self.l1.clone();
                let read = async move { BatcherEvent::Prices(prices(&l1).await) };
                return self.events.push(read.boxed());
            }
        };
        if let Some(state) = self.state_mut() {
            state.set_class(class);
        }
    }

    pub(super) fn on_prices(&mut self, prices: Result<DataPrices, String>) {
        self.is_reading_l1 = false;
        let sizes = DataSizes {
            calldata: self.rules.calldata.settings.max_frame_size as u64 + 1,
            blobs: self.rules.blobs.settings.target_frames.into(),
        };
        let class = match prices {
            Ok(prices) => {
                self.note_success(NO_PRICES);
                Some(cheaper(prices, sizes))
            }
            Err(error) => {
                self.warn(NO_PRICES, error);
                None
            }
        };
        if let Some(state) = self.state_mut() {
            state.set_class(class.unwrap_or(state.class()));
        }
        self.note_changes();
    }

    async fn send(&mut self, tx: BatchTx, ending: &CancellationToken) {
        let sent = SentTx {
            number: tx.number,
            channel: tx.channel,
        };
        tracing::info!(
            channel = %tx.channel,
            frames = ?tx.range.indices(),
            class = ?tx.class,
            "Building transaction candidate"
        );
        let candidate = match self.candidate(tx) {
            Ok(candidate) => candidate,
            Err(error) => {
                // The encoder limits frames to the size of a blob, so this is a bug. The next poll
                // tries again, so that the log keeps showing it.
                tracing::error!(%error, "a frame does not fit in a blob");
                if let Some(state) = self.state_mut() {
                    state.on_failed(sent.number);
                }
                self.may_publish = false;
                return;
            }
        };
        let outcome = tokio::select! {
            biased;
            () = ending.cancelled() => return,
            outcome = self.txs.send(candidate) => outcome,
        };
        self.in_flight += 1;
        self.metrics.transaction(TxStage::Submitted);
        let answered = async move {
            let outcome = outcome.await.unwrap_or(Err(SendFailure::Closed));
            BatcherEvent::Sent(sent, outcome)
        };
        self.events.push(answered.boxed());
    }

    fn candidate(&self, tx: BatchTx) -> Result<TxCandidate, blob::BlobError> {
        let (data, blobs) = match tx.class {
            TxClass::Calldata => (tx.items.into_iter().next().unwrap_or_default(), Vec::new()),
            TxClass::Blob => {
                self.metrics
                    .last_blob(tx.items.last().map_or(0, |item| item.len()));
                let encoded = tx.items.iter().map(|item| blob::encode(item));
                let blobs: Result<Vec<Vec<u8>>, _> = encoded.collect();
                let blobs = blobs?;
                let blobs = blobs.iter().map(|bytes| Blob::from_slice(bytes));
                (Bytes::new(), blobs.collect())
            }
        };
        Ok(TxCandidate {
            to: Some(self.rollup.batch_inbox_address),
            gas_limit: floor_gas(tx.class, &data),
            data,
            blobs,
            value: U256::ZERO,
        })
    }

    pub(super) fn on_sent(&mut self, sent: SentTx, outcome: TxOutcome) {
        self.in_flight -= 1;
        match outcome {
            Ok(mined) => {
                self.metrics.transaction(TxStage::Success);
                self.metrics.included(mined.delay);
                self.spending
                    .add(sent.channel, cost(&mined), Instant::now());
                self.last_posted_l1 = self.last_posted_l1.max(mined.block);
                if let Some(state) = self.state_mut() {
                    state.on_confirmed(sent.number, mined.block);
                }
                self.note_success(NOT_SENT);
                self.show_runway();
                self.may_publish = true;
            }
            Err(failure) => {
                self.metrics.transaction(TxStage::Failed);
                self.warn(NOT_SENT, failure.to_string());
                if let Some(state) = self.state_mut() {
                    state.on_failed(sent.number);
                }
                // Wait for the next poll before the frames are sent again, since the cause may
                // persist.
                self.may_publish = false;
            }
        }
        self.note_changes();
    }

    /// Publishes the bytes of blocks that are not safe to throttling and to the metrics.
    pub(super) fn report_load(&mut self) {
        let (Some(state), Some(safe)) = (self.state.as_ref(), self.safe) else {
            return;
        };
        let Some(head) = state.unsafe_head() else {
            return;
        };
        let load = state.load();
        self.metrics.load(&load, state.queue_len(), safe, head);
        self.metrics.heads(self.l1_head, state.newest());
        // A load that is unknown must not end throttling.
        if let Some(unsafe_da_bytes) = load.da_bytes() {
            self.load.send_replace(DataLoad { unsafe_da_bytes });
        }
    }

    /// Logs and counts the state's notices since the last call.
    pub(super) fn note_changes(&mut self) {
        let notices = self.state_mut().map(BatcherState::take_notices);
        for notice in notices.into_iter().flatten() {
            self.note(notice);
        }
    }

    fn note_cleared(&mut self, cause: ClearCause) {
        self.forget_fetches();
        self.spending.clear_channels();
        if cause == ClearCause::OriginReorg {
            // Repeats until the rollup node has seen L1's reorg.
            self.warn(ORIGIN_GONE, cause.to_string());
        } else {
            tracing::warn!(%cause, "Clearing state");
        }
        match cause {
            // Frames of the old branch may still be in flight. Wait until they are included and
            // derived.
            ClearCause::UnsafeReorg | ClearCause::OriginReorg => {
                self.phase = BatcherPhase::Syncing(SyncWait::Wanted);
            }
            // Blocks that are lost again and again would cost ether with each L1 block.
            ClearCause::LostChannel => {
                if let Some(at) = self.state.as_ref().and_then(|state| state.repeat_at()) {
                    self.phase = BatcherPhase::Syncing(SyncWait::Until(at));
                }
            }
            ClearCause::SafeBelowOldest | ClearCause::SafeAboveNewest | ClearCause::SafeReorg => {}
        }
    }

    fn note(&mut self, notice: BatcherNotice) {
        match notice {
            BatcherNotice::Cleared(cause) => self.note_cleared(cause),
            BatcherNotice::ClassChanged(class) => {
                tracing::info!(?class, "changing DA type and requeuing blocks");
            }
            BatcherNotice::ChannelOpened { id, class } => {
                self.metrics.channel(ChannelStage::Opened);
                tracing::info!(%id, ?class, l1_head = self.l1_head, "Created channel");
            }
            BatcherNotice::ChannelClosed(channel) => {
                self.metrics.closed(&channel);
                log_closed(&channel);
            }
            BatcherNotice::ChannelSubmitted { id, l1_blocks } => {
                self.metrics.channel(ChannelStage::Submitted);
                let wei = self.spending.take_channel(id).unwrap_or_default();
                self.metrics.channel_cost(wei);
                let (min_inclusion_block, max_inclusion_block) = l1_blocks;
                tracing::info!(%id, min_inclusion_block, max_inclusion_block, wei, "Channel is fully submitted");
            }
            BatcherNotice::ChannelTimedOut { id, l1_blocks } => {
                self.metrics.channel(ChannelStage::TimedOut);
                let (min_inclusion_block, max_inclusion_block) = l1_blocks;
                tracing::warn!(%id, min_inclusion_block, max_inclusion_block, "Channel timed out");
            }
            BatcherNotice::ChannelDropped { id, span } => {
                self.spending.take_channel(id);
                let oldest_l2 = span.map(|span| span.first.id.number);
                let newest_l2 = span.map(|span| span.last.id.number);
                tracing::warn!(%id, oldest_l2, newest_l2, "Dropped channel");
            }
            BatcherNotice::NotEncoded(error) => {
                self.warn("Unable to add a block to a channel", error.to_string());
            }
        }
    }
}

fn log_closed(channel: &ClosedChannel) {
    let sizes = channel.sizes;
    tracing::info!(
        id = %channel.id,
        full_reason = %channel.reason,
        blocks = sizes.blocks,
        num_frames = sizes.frames,
        input_bytes = sizes.input,
        output_bytes = sizes.output,
        oldest_l2 = channel.span.map(|span| span.first.id.number),
        latest_l2 = channel.span.map(|span| span.last.id.number),
        l1_origin = channel.span.map(|span| span.last.origin.number),
        compr_ratio = sizes.output as f64 / sizes.input.max(1) as f64,
        blob_fill = (channel.class == TxClass::Blob).then(|| blob_fill(channel)),
        "Channel closed"
    );
}

#[cfg(test)]
mod tests;
