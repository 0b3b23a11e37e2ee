//! Options of the transaction manager: defaults, checks, and the settings that follow from them.
//! Error messages begin as op-service's do.

use super::{
    fees::{BlobTips, FeeRules, GWEI, MIN_BLOB_FEE},
    machine::{SendRules, SendSettings},
};
use std::time::Duration;

/// Maximum amount of an option, in gwei: a billion ether. A larger amount must be a typing error.
const MAX_GWEI: f64 = 1e18;

/// Transaction options of op-batcher and op-proposer, except for those of the signer
/// ([`super::sign`]).
#[derive(Clone, Debug, PartialEq)]
pub struct TxOptions {
    /// `--num-confirmations`, in L1 blocks.
    pub num_confirmations: u64,
    /// `--safe-abort-nonce-too-low-count`.
    pub safe_abort_nonce_too_low_count: u64,
    /// `--fee-limit-multiplier`.
    pub fee_limit_multiplier: u64,
    /// `--txmgr.fee-limit-threshold`, in gwei.
    pub fee_limit_threshold: f64,
    /// `--txmgr.min-tip-cap`, in gwei.
    pub min_tip_cap: f64,
    /// `--txmgr.max-tip-cap`, in gwei; zero means no limit.
    pub max_tip_cap: f64,
    /// `--txmgr.min-basefee`, in gwei.
    pub min_basefee: f64,
    /// `--txmgr.max-basefee`, in gwei; zero means no limit.
    pub max_basefee: f64,
    /// `--resubmission-timeout`.
    pub resubmission_timeout: Duration,
    /// `--txmgr.rebroadcast-interval`; zero means never.
    pub rebroadcast_interval: Duration,
    /// `--txmgr.retry-interval`.
    pub retry_interval: Duration,
    /// `--txmgr.max-retries`.
    pub max_retries: u64,
    /// `--network-timeout`.
    pub network_timeout: Duration,
    /// `--txmgr.send-timeout`; zero means no limit.
    pub send_timeout: Duration,
    /// `--txmgr.not-in-mempool-timeout`.
    pub not_in_mempool_timeout: Duration,
    /// `--txmgr.receipt-query-interval`.
    pub receipt_query_interval: Duration,
    /// `--txmgr.already-published-custom-errs`.
    pub already_published_custom_errs: Vec<String>,
    /// `--txmgr.cell-proof-time`, in Unix seconds.
    pub cell_proof_time: u64,
    /// `--txmgr.blob-tip-cap-dynamic`.
    pub blob_tip_cap_dynamic: bool,
    /// `--txmgr.blob-tip-cap-percentile`.
    pub blob_tip_cap_percentile: u64,
    /// `--txmgr.blob-tip-cap-range`, in blocks.
    pub blob_tip_cap_range: u64,
}

impl Default for TxOptions {
    fn default() -> Self {
        Self {
            num_confirmations: 10,
            safe_abort_nonce_too_low_count: 3,
            fee_limit_multiplier: 5,
            fee_limit_threshold: 100.0,
            min_tip_cap: 1.0,
            max_tip_cap: 0.0,
            min_basefee: 1.0,
            max_basefee: 0.0,
            resubmission_timeout: Duration::from_secs(48),
            rebroadcast_interval: Duration::from_secs(12),
            retry_interval: Duration::from_secs(1),
            max_retries: 10,
            network_timeout: Duration::from_secs(10),
            send_timeout: Duration::ZERO,
            not_in_mempool_timeout: Duration::from_secs(120),
            receipt_query_interval: Duration::from_secs(12),
            already_published_custom_errs: Vec::new(),
            cell_proof_time: super::blobs::UNSET_CELL_PROOF_TIME,
            blob_tip_cap_dynamic: false,
            blob_tip_cap_percentile: 60,
            blob_tip_cap_range: 20,
        }
    }
}

/// The reason why the options are invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TxOptionError {
    #[error("{name} must not be 0 ({option})")]
    Zero {
        name: &'static str,
        option: &'static str,
    },
    #[error("must provide {name} ({option})")]
    Missing {
        name: &'static str,
        option: &'static str,
    },
    #[error(
        "minBaseFee smaller than minTipCap, have {base_fee:.6} < {tip:.6} (--txmgr.min-basefee, --txmgr.min-tip-cap)"
    )]
    MinBaseFee { base_fee: f64, tip: f64 },
    #[error(
        "BlobTipCapPercentile must be between 1 and 100, got {0} (--txmgr.blob-tip-cap-percentile)"
    )]
    Percentile(u64),
    #[error("BlobTipCapRange must be at least 1, got {0} (--txmgr.blob-tip-cap-range)")]
    Range(u64),
    #[error("invalid gwei value: {value} ({option})")]
    Gwei { value: f64, option: &'static str },
}

impl TxOptions {
    /// Checks the options in op-service's order.
    pub fn check(&self) -> Result<(), TxOptionError> {
        let zero = |name, option| Err(TxOptionError::Zero { name, option });
        let missing = |name, option| Err(TxOptionError::Missing { name, option });
        if self.num_confirmations == 0 {
            return zero("NumConfirmations", "--num-confirmations");
        }
        if self.network_timeout.is_zero() {
            return missing("NetworkTimeout", "--network-timeout");
        }
        if self.fee_limit_multiplier == 0 {
            return missing("FeeLimitMultiplier", "--fee-limit-multiplier");
        }
        if self.min_basefee < self.min_tip_cap {
            return Err(TxOptionError::MinBaseFee {
                base_fee: self.min_basefee,
                tip: self.min_tip_cap,
            });
        }
        if self.resubmission_timeout.is_zero() {
            return missing("ResubmissionTimeout", "--resubmission-timeout");
        }
        if self.receipt_query_interval.is_zero() {
            return missing("ReceiptQueryInterval", "--txmgr.receipt-query-interval");
        }
        if self.not_in_mempool_timeout.is_zero() {
            return missing("TxNotInMempoolTimeout", "--txmgr.not-in-mempool-timeout");
        }
        if self.safe_abort_nonce_too_low_count == 0 {
            return zero(
                "SafeAbortNonceTooLowCount",
                "--safe-abort-nonce-too-low-count",
            );
        }
        self.check_blob_tips()
    }

    fn check_blob_tips(&self) -> Result<(), TxOptionError> {
        if !self.blob_tip_cap_dynamic {
            return Ok(());
        }
        if !(1..=100).contains(&self.blob_tip_cap_percentile) {
            return Err(TxOptionError::Percentile(self.blob_tip_cap_percentile));
        }
        if self.blob_tip_cap_range < 1 {
            return Err(TxOptionError::Range(self.blob_tip_cap_range));
        }
        Ok(())
    }

    /// Checks the options and converts them to the machine's settings.
    pub fn settings(&self) -> Result<SendSettings, TxOptionError> {
        self.check()?;
        let limit = |gwei: f64, option| {
            let given = (gwei > 0.0).then(|| wei(gwei, option));
            given.transpose()
        };
        let count = self.safe_abort_nonce_too_low_count;
        Ok(SendSettings {
            rules: SendRules {
                confirmations: self.num_confirmations,
                nonce_too_low_limit: u32::try_from(count).unwrap_or(u32::MAX),
                resubmission_timeout: self.resubmission_timeout,
                rebroadcast_interval: self.rebroadcast_interval,
                retry_interval: self.retry_interval,
                max_retries: self.max_retries,
                send_timeout: self.send_timeout,
                mempool_timeout: self.not_in_mempool_timeout,
                receipt_poll_interval: self.receipt_query_interval,
            },
            fees: FeeRules {
                min_tip: wei(self.min_tip_cap, "--txmgr.min-tip-cap")?,
                max_tip: limit(self.max_tip_cap, "--txmgr.max-tip-cap")?,
                min_base_fee: wei(self.min_basefee, "--txmgr.min-basefee")?,
                max_base_fee: limit(self.max_basefee, "--txmgr.max-basefee")?,
                min_blob_fee: MIN_BLOB_FEE,
                limit_multiplier: self.fee_limit_multiplier,
                limit_threshold: wei(self.fee_limit_threshold, "--txmgr.fee-limit-threshold")?,
            },
        })
    }

    /// Creates the record of blob tips. Needed even if the option is off, since the RPC can enable
    /// it.
    pub fn blob_tips(&self) -> BlobTips {
        let percentile = u8::try_from(self.blob_tip_cap_percentile).unwrap_or(100);
        BlobTips::new(self.blob_tip_cap_range, percentile)
    }
}

/// Converts gwei to wei, rounded down.
fn wei(gwei: f64, option: &'static str) -> Result<u128, TxOptionError> {
    if (0.0..=MAX_GWEI).contains(&gwei) {
        Ok((gwei * GWEI as f64) as u128)
    } else {
        Err(TxOptionError::Gwei {
            value: gwei,
            option,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_gwei_and_upper_limits_are_read() {
        let options = TxOptions {
            min_tip_cap: 0.001,
            min_basefee: 0.5,
            max_tip_cap: 3.0,
            max_basefee: 2500.25,
            fee_limit_threshold: 0.0,
            ..TxOptions::default()
        };
        let fees = options.settings().unwrap().fees;
        assert_eq!((fees.min_tip, fees.min_base_fee), (GWEI / 1000, GWEI / 2));
        assert_eq!(
            (fees.max_tip, fees.max_base_fee),
            (Some(3 * GWEI), Some(2_500_250_000_000))
        );
        assert_eq!(fees.limit_threshold, 0);
    }

    /// A change of one option that makes it invalid, and the beginning of the error message.
    type Wrong = (fn(&mut TxOptions), &'static str);

    const WRONG: [Wrong; 14] = [
        (
            |o| o.num_confirmations = 0,
            "NumConfirmations must not be 0 (--num-confirmations)",
        ),
        (
            |o| o.network_timeout = Duration::ZERO,
            "must provide NetworkTimeout (--network-timeout)",
        ),
        (
            |o| o.fee_limit_multiplier = 0,
            "must provide FeeLimitMultiplier (--fee-limit-multiplier)",
        ),
        (
            |o| o.min_basefee = 0.5,
            "minBaseFee smaller than minTipCap, have 0.500000 < 1.000000",
        ),
        (
            |o| o.resubmission_timeout = Duration::ZERO,
            "must provide ResubmissionTimeout",
        ),
        (
            |o| o.receipt_query_interval = Duration::ZERO,
            "must provide ReceiptQueryInterval",
        ),
        (
            |o| o.not_in_mempool_timeout = Duration::ZERO,
            "must provide TxNotInMempoolTimeout",
        ),
        (
            |o| o.safe_abort_nonce_too_low_count = 0,
            "SafeAbortNonceTooLowCount must not be 0",
        ),
        (
            |o| (o.blob_tip_cap_dynamic, o.blob_tip_cap_percentile) = (true, 0),
            "BlobTipCapPercentile must be between 1 and 100, got 0",
        ),
        (
            |o| (o.blob_tip_cap_dynamic, o.blob_tip_cap_percentile) = (true, 101),
            "BlobTipCapPercentile must be between 1 and 100, got 101",
        ),
        (
            |o| (o.blob_tip_cap_dynamic, o.blob_tip_cap_range) = (true, 0),
            "BlobTipCapRange must be at least 1, got 0",
        ),
        (
            |o| o.max_tip_cap = 1e19,
            "invalid gwei value: 10000000000000000000 (--txmgr.max-tip-cap)",
        ),
        (
            |o| o.fee_limit_threshold = -1.0,
            "invalid gwei value: -1 (--txmgr.fee-limit-threshold)",
        ),
        (
            |o| o.fee_limit_threshold = f64::NAN,
            "invalid gwei value: NaN",
        ),
    ];

    #[test]
    fn each_wrong_option_has_op_services_sentence() {
        for (change, expected) in WRONG {
            let mut options = TxOptions::default();
            change(&mut options);
            let said = options.settings().unwrap_err().to_string();
            assert!(said.starts_with(expected), "{said}");
        }
        let unused = TxOptions {
            blob_tip_cap_percentile: 0,
            ..TxOptions::default()
        };
        assert_eq!(unused.check(), Ok(()), "only read where the tip is dynamic");
    }
}
