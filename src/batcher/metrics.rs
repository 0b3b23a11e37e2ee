//! Metrics of the batcher under op-batcher's names, and additional ones of our own: cost and blob
//! fill of channels, blocks and bytes behind, delay until inclusion, runway.

use super::state::{ClosedChannel, UnsafeLoad};
use crate::{
    clock::since_epoch,
    txmgr::fees::{GWEI, TxClass},
};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use starling_proto::{blob::MAX_BLOB_DATA, l1info::L2BlockRef};
use std::time::Duration;

/// Stage of a channel: the `stage` label of op-batcher's channel metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelStage {
    Opened,
    Closed,
    Submitted,
    TimedOut,
}

/// Metric handles, created once.
pub(super) struct BatcherMetrics {
    channels: [Counter; 4],
    last_channel: [Gauge; 4],
    transactions: [Counter; 3],
    last_transaction: [Gauge; 3],
    pending_blocks: [Gauge; 3],
    pending_bytes: Gauge,
    pending_bytes_total: Counter,
    pending_da_bytes: Gauge,
    unsafe_da_bytes: Gauge,
    blocks_added: Gauge,
    input: [Gauge; 2],
    output: Gauge,
    input_total: Counter,
    output_total: Counter,
    ready: Gauge,
    frames: Gauge,
    compression: Histogram,
    queue: Gauge,
    blob_used: Histogram,
    latest_l1: Gauge,
    loaded: Gauge,
    balance: Gauge,
    cost: Histogram,
    blob_fill: Histogram,
    blocks_behind: Gauge,
    bytes_behind: Gauge,
    inclusion_delay: Histogram,
    runway: Gauge,
}

/// Stage of a transaction: the `stage` label of op-batcher's transaction metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxStage {
    Submitted,
    Success,
    Failed,
}

macro_rules! name {
    ($name:literal) => {
        concat!("op_batcher_default_", $name)
    };
}

fn now_unix() -> f64 {
    since_epoch().as_secs_f64()
}

/// Used share of the blobs of a channel. Each blob carries one frame and a version byte.
pub(super) fn blob_fill(channel: &ClosedChannel) -> f64 {
    let frames = channel.sizes.frames.max(1);
    (channel.sizes.output as f64 + frames as f64) / (frames * MAX_BLOB_DATA) as f64
}

impl BatcherMetrics {
    pub fn new() -> Self {
        let channels = ["opened", "closed", "fully_submitted", "timed_out"];
        let transactions = ["submitted", "success", "failed"];
        let pending = |stage: &'static str| gauge!(name!("pending_blocks_count"), "stage" => stage);
        let input = |stage: &'static str| gauge!(name!("input_bytes"), "stage" => stage);
        // op-batcher registers this metric too, and leaves it at zero.
        gauge!(name!("channel_closed_reason")).set(0.0);
        Self {
            channels: channels.map(|stage| counter!(name!("channel_total"), "stage" => stage)),
            last_channel: channels
                .map(|stage| gauge!(name!("last_channel_unix"), "stage" => stage)),
            transactions: transactions
                .map(|stage| counter!(name!("batcher_tx_total"), "stage" => stage)),
            last_transaction: transactions
                .map(|stage| gauge!(name!("last_batcher_tx_unix"), "stage" => stage)),
            pending_blocks: ["opened", "added", "closed"].map(pending),
            pending_bytes: gauge!(name!("pending_blocks_bytes_current")),
            pending_bytes_total: counter!(name!("pending_blocks_bytes_total")),
            pending_da_bytes: gauge!(name!("pending_da_bytes")),
            unsafe_da_bytes: gauge!(name!("unsafe_da_bytes")),
            blocks_added: gauge!(name!("blocks_added_count")),
            input: ["added", "closed"].map(input),
            output: gauge!(name!("output_bytes")),
            input_total: counter!(name!("input_bytes_total")),
            output_total: counter!(name!("output_bytes_total")),
            ready: gauge!(name!("ready_bytes")),
            frames: gauge!(name!("channel_num_frames")),
            compression: histogram!(name!("channel_compr_ratio")),
            queue: gauge!(name!("channel_queue_length")),
            blob_used: histogram!(name!("blob_used_bytes")),
            latest_l1: gauge!(name!("refs_number"), "layer" => "l1", "type" => "latest"),
            loaded: gauge!(name!("refs_number"), "layer" => "l2", "type" => "loaded"),
            balance: gauge!(name!("balance")),
            cost: histogram!("starling_batcher_channel_cost_gwei"),
            blob_fill: histogram!("starling_batcher_blob_fill_ratio"),
            blocks_behind: gauge!("starling_batcher_blocks_behind"),
            bytes_behind: gauge!("starling_batcher_bytes_behind"),
            inclusion_delay: histogram!("starling_batcher_inclusion_delay_seconds"),
            runway: gauge!("starling_batcher_runway_hours"),
        }
    }

    pub fn channel(&self, stage: ChannelStage) {
        self.channels[stage as usize].increment(1);
        self.last_channel[stage as usize].set(now_unix());
    }

    pub fn closed(&self, channel: &ClosedChannel) {
        let sizes = channel.sizes;
        self.channel(ChannelStage::Closed);
        self.blocks_added.set(sizes.blocks as f64);
        self.frames.set(sizes.frames as f64);
        for input in &self.input {
            input.set(sizes.input as f64);
        }
        self.output.set(sizes.output as f64);
        self.input_total.increment(sizes.input);
        self.output_total.increment(sizes.output);
        self.ready.set(0.0);
        self.compression
            .record(sizes.output as f64 / sizes.input.max(1) as f64);
        if channel.class == TxClass::Blob {
            self.blob_fill.record(blob_fill(channel));
        }
    }

    pub fn transaction(&self, stage: TxStage) {
        self.transactions[stage as usize].increment(1);
        self.last_transaction[stage as usize].set(now_unix());
    }

    /// Records the bytes of data in the last blob of a transaction.
    pub fn last_blob(&self, bytes: usize) {
        self.blob_used.record(bytes as f64);
    }

    pub fn heads(&self, l1_head: u64, newest: u64) {
        self.latest_l1.set(l1_head as f64);
        self.loaded.set(newest as f64);
    }

    /// Counts the uncompressed bytes of a block that was loaded.
    pub fn loaded(&self, raw: u64) {
        self.pending_bytes_total.increment(raw);
    }

    pub fn load(&self, load: &UnsafeLoad, queue: usize, safe: L2BlockRef, unsafe_head: u64) {
        let waiting = load.waiting;
        for pending in &self.pending_blocks {
            pending.set(waiting.blocks as f64);
        }
        self.pending_bytes.set(waiting.sizes.raw as f64);
        self.pending_da_bytes.set(waiting.sizes.da as f64);
        if let Some(bytes) = load.da_bytes() {
            self.unsafe_da_bytes.set(bytes as f64);
            self.bytes_behind.set(bytes as f64);
        }
        self.blocks_behind
            .set(unsafe_head.saturating_sub(safe.id.number) as f64);
        self.queue.set(queue as f64);
    }

    pub fn included(&self, delay: Duration) {
        self.inclusion_delay.record(delay);
    }

    /// Records the cost of a complete channel, in wei.
    pub fn channel_cost(&self, wei: u128) {
        self.cost.record(wei as f64 / GWEI as f64);
    }

    /// Sets the account's balance (wei) and the hours for which it is expected to last.
    pub fn balance(&self, wei: u128, hours: Option<f64>) {
        // In ETH, as in op-service.
        self.balance.set(wei as f64 / 1e18);
        self.runway.set(hours.unwrap_or(f64::INFINITY));
    }
}
