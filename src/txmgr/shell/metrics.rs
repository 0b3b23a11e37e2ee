//! Metrics of the transaction manager, under the names of op-service.

use crate::txmgr::{
    answer::PublishAnswer,
    fees::{GWEI, L1Fees},
    machine::MinedTx,
};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::time::Duration;

/// The handles, made once.
pub(super) struct TxMetrics {
    prefix: &'static str,
    fee_gwei: Gauge,
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
    /// `prefix` as `op_batcher_default_`.
    pub fn new(prefix: &'static str) -> Self {
        let name = |name: &str| format!("{prefix}{name}");
        Self {
            prefix,
            fee_gwei: gauge!(name("tx_fee_gwei")),
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

    pub fn published(&self, answer: &PublishAnswer) {
        if matches!(answer, PublishAnswer::Unreachable(_)) {
            self.rpc_errors.increment(1);
        }
        if *answer != PublishAnswer::Accepted {
            self.count_error(answer.label());
        }
    }

    pub fn not_bumped(&self) {
        self.count_error("bump_failed");
    }

    fn count_error(&self, error: &'static str) {
        let name = format!("{}tx_publish_error_count", self.prefix);
        counter!(name, "error" => error).increment(1);
    }

    pub fn confirmed(&self, mined: &MinedTx, latency: Duration) {
        let gas = mined.gas_price.saturating_mul(mined.gas_used.into());
        let blobs = mined
            .blob_gas_price
            .saturating_mul(mined.blob_gas_used.into());
        let fee = gas.saturating_add(blobs) as f64 / GWEI as f64;
        self.fee_gwei.set(fee);
        self.fee_gwei_total.increment(fee as u64);
        self.fee_histogram.record(fee);
        self.latency.set(latency.as_millis() as f64);
    }
}
