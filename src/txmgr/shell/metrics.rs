//! Metrics of the transaction manager, under op-service's names.

use crate::{
    clock::since_epoch,
    txmgr::{
        fees::{GWEI, L1Fees, TxClass},
        machine::MinedTx,
        publish_result::PublishResult,
    },
};
use metrics::{Counter, Gauge, Histogram, Label, counter, gauge, histogram};
use std::time::Duration;

/// Metrics of a repeated event: how often it occurred, and when last.
struct TxEvent {
    total: Counter,
    last: Gauge,
}

impl TxEvent {
    /// `labels` is empty, or has the `status` label.
    fn new(prefix: &str, name: &str, labels: Vec<Label>) -> Self {
        let total = format!("{prefix}txmgr_{name}_total");
        let last = format!("{prefix}txmgr_last_{name}_unix");
        Self {
            total: counter!(total, labels.clone()),
            last: gauge!(last, labels),
        }
    }

    fn record(&self) {
        self.total.increment(1);
        self.last.set(since_epoch().as_secs_f64());
    }
}

/// A transaction that is confirmed.
pub(super) struct ConfirmedTx<'a> {
    pub mined: &'a MinedTx,
    pub class: TxClass,
    /// Number of replacements with higher fees that were signed.
    pub bumps: u32,
    /// Time from the request until confirmation.
    pub latency: Duration,
}

/// Metric handles, created once.
pub(super) struct TxMetrics {
    prefix: &'static str,
    fee_gwei: Gauge,
    gas_bump: Gauge,
    tx_type: Gauge,
    published: TxEvent,
    /// Confirmed transactions: those that succeeded, and those that reverted.
    confirmed: [TxEvent; 2],
    fee_gwei_total: Counter,
    fee_histogram: Histogram,
    latency: Gauge,
    nonce: Gauge,
    pending: Gauge,
    base_fee: Gauge,
    blob_base_fee: Gauge,
    tip: Gauge,
    blob_tip: Gauge,
    rpc_errors: Counter,
}

impl TxMetrics {
    /// `prefix` is for example `op_batcher_default_`.
    pub fn new(prefix: &'static str) -> Self {
        let name = |name: &str| format!("{prefix}txmgr_{name}");
        let confirmed = |status: &'static str| {
            TxEvent::new(prefix, "confirm", vec![Label::new("status", status)])
        };
        Self {
            prefix,
            fee_gwei: gauge!(name("tx_fee_gwei")),
            gas_bump: gauge!(name("tx_gas_bump")),
            tx_type: gauge!(name("tx_type")),
            published: TxEvent::new(prefix, "publish", Vec::new()),
            confirmed: ["success", "failed"].map(confirmed),
            fee_gwei_total: counter!(name("tx_fee_gwei_total")),
            fee_histogram: histogram!(name("tx_fee_histogram_gwei")),
            latency: gauge!(name("tx_confirmed_latency_ms")),
            nonce: gauge!(name("current_nonce")),
            pending: gauge!(name("pending_txs")),
            base_fee: gauge!(name("basefee_wei")),
            blob_base_fee: gauge!(name("blob_basefee_wei")),
            tip: gauge!(name("tipcap_wei")),
            blob_tip: gauge!(name("blob_tipcap_wei")),
            rpc_errors: counter!(name("rpc_error_count")),
        }
    }

    pub fn state(&self, pending: usize, next_nonce: u64) {
        self.pending.set(pending as f64);
        self.nonce.set(next_nonce.saturating_sub(1) as f64);
    }

    pub fn fees(&self, fees: &L1Fees) {
        self.tip.set(fees.tip as f64);
        self.base_fee.set(fees.base_fee as f64);
        self.blob_base_fee
            .set(fees.blob_base_fee.unwrap_or_default() as f64);
        self.blob_tip.set(fees.blob_tip.unwrap_or(fees.tip) as f64);
    }

    pub fn published(&self, answer: &PublishResult) {
        if matches!(answer, PublishResult::Unreachable(_)) {
            self.rpc_errors.increment(1);
        }
        if *answer == PublishResult::Accepted {
            self.published.record();
        } else {
            self.count_error(answer.label());
        }
    }

    pub fn not_bumped(&self) {
        self.count_error("bump_failed");
    }

    fn count_error(&self, error: &'static str) {
        let name = format!("{}txmgr_tx_publish_error_count", self.prefix);
        counter!(name, "error" => error).increment(1);
    }

    pub fn confirmed(&self, confirmed: &ConfirmedTx<'_>) {
        let mined = confirmed.mined;
        let gas = mined.gas_price.saturating_mul(mined.gas_used.into());
        let blobs = mined
            .blob_gas_price
            .saturating_mul(mined.blob_gas_used.into());
        let fee = gas.saturating_add(blobs) as f64 / GWEI as f64;
        self.confirmed[usize::from(!mined.success)].record();
        self.fee_gwei.set(fee);
        self.fee_gwei_total.increment(fee as u64);
        self.fee_histogram.record(fee);
        self.gas_bump.set(f64::from(confirmed.bumps));
        self.tx_type.set(f64::from(confirmed.class.tx_type()));
        self.latency.set(confirmed.latency.as_millis() as f64);
    }
}
