//! Fees of L1 transactions: the first ones, replacements that a transaction pool accepts, and the
//! limits of both. Pure; amounts are in wei and saturate at the largest number.
//!
//! Twice the base fee is offered, so that a transaction stays includable while the base fee doubles.
//! A replacement raises every cap by the pool's minimum at least (geth: 10 % and, with blobs,
//! 100 %), and to the present suggestion where that is higher. It is refused when a cap would pass a
//! multiple of the present suggestion (`--fee-limit-multiplier`), unless that cap is below
//! `--txmgr.fee-limit-threshold`, or the transaction offers less than L1's prices: it could not be
//! mined, and all later ones would wait for it (op-service keeps it nevertheless).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

/// Wei of one gwei.
pub const GWEI: u128 = 1_000_000_000;
/// Gas of a transaction besides its data: the least that one has.
pub const INTRINSIC_GAS: u64 = 21_000;
/// Lowest blob fee cap that is offered (geth's pools want 1 gwei).
pub const MIN_BLOB_FEE: u128 = GWEI;
/// Percent of the old cap that a replacement must offer (geth: legacy pool).
const BUMP_PERCENT: u128 = 110;
/// Percent of the old cap that the replacement of a blob transaction must offer (geth: blob pool).
const BLOB_BUMP_PERCENT: u128 = 200;
/// Multiple of the base fee, and of the blob base fee, that is offered.
const HEADROOM: u128 = 2;

/// Limits that an operator sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeeRules {
    /// Lowest tip assumed (`--txmgr.min-tip-cap`).
    pub min_tip: u128,
    /// A higher tip is an error (`--txmgr.max-tip-cap`); `None` is no limit.
    pub max_tip: Option<u128>,
    /// Lowest base fee assumed (`--txmgr.min-basefee`).
    pub min_base_fee: u128,
    /// A higher base fee is an error (`--txmgr.max-basefee`); `None` is no limit.
    pub max_base_fee: Option<u128>,
    /// Lowest blob fee cap offered; only the RPC changes it.
    pub min_blob_fee: u128,
    /// Largest multiple of the present suggestion that a replacement may offer
    /// (`--fee-limit-multiplier`).
    pub limit_multiplier: u64,
    /// Caps below this are not limited (`--txmgr.fee-limit-threshold`).
    pub limit_threshold: u128,
}

/// Fees as L1 has them now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L1Fees {
    /// `eth_maxPriorityFeePerGas`.
    pub tip: u128,
    /// Base fee of the newest block.
    pub base_fee: u128,
    /// `eth_blobBaseFee`; `None` before L1 has blobs.
    pub blob_base_fee: Option<u128>,
    /// Tip that blob transactions paid lately ([`BlobTips`]); `None` uses `tip` for them too.
    pub blob_tip: Option<u128>,
}

/// Fees within the limits of [`FeeRules`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeeSuggestion {
    pub tip: u128,
    /// Tip of a blob transaction.
    pub blob_tip: u128,
    pub base_fee: u128,
    pub blob_base_fee: Option<u128>,
}

/// Whether a transaction carries its data as calldata (EIP-1559) or in blobs (EIP-4844); op-batcher: DA
/// type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TxClass {
    /// Type 2 (EIP-1559).
    Calldata,
    /// Type 3 (EIP-4844).
    Blob,
}

impl TxClass {
    /// The other class. L1's pools take transactions of one class at a time from an account.
    pub fn other(self) -> Self {
        match self {
            Self::Calldata => Self::Blob,
            Self::Blob => Self::Calldata,
        }
    }

    /// Type of its transactions (EIP-2718).
    pub fn tx_type(self) -> u8 {
        match self {
            Self::Calldata => 2,
            Self::Blob => 3,
        }
    }
}

/// Fee fields of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeeCaps {
    /// `maxPriorityFeePerGas`; never above `fee`.
    pub tip: u128,
    /// `maxFeePerGas`.
    pub fee: u128,
    /// `maxFeePerBlobGas`; only blob transactions have one.
    pub blob_fee: Option<u128>,
}

/// The reason why no fees are offered. Texts as op-batcher has them, so that alerts keep working.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeeError {
    #[error("tip is too high: {tip}, cap:{max} (--txmgr.max-tip-cap)")]
    Tip { tip: u128, max: u128 },
    #[error("blob tip cap is too high: {tip}, cap:{max} (--txmgr.max-tip-cap)")]
    BlobTip { tip: u128, max: u128 },
    #[error("baseFee is too high: {base_fee}, cap:{max} (--txmgr.max-basefee)")]
    BaseFee { base_fee: u128, max: u128 },
    #[error("L1 has no blob base fee: it takes no blob transactions yet")]
    NoBlobs,
    #[error(
        "bumped {name} {value} is over {multiplier}x multiple of the suggested value (--fee-limit-multiplier)"
    )]
    Limit {
        /// `tip cap`, `fee cap` or `blob fee`.
        name: &'static str,
        value: u128,
        multiplier: u64,
    },
}

impl FeeRules {
    /// Raises L1's fees to the lower limits, and refuses them above the upper ones.
    pub fn suggest(&self, l1: &L1Fees) -> Result<FeeSuggestion, FeeError> {
        let tip = l1.tip.max(self.min_tip);
        // The lower limit does not hold for a tip that was measured.
        let blob_tip = l1.blob_tip.unwrap_or(tip);
        let base_fee = l1.base_fee.max(self.min_base_fee);
        if let Some(max) = self.max_tip {
            if tip > max {
                return Err(FeeError::Tip { tip, max });
            }
            if blob_tip > max {
                return Err(FeeError::BlobTip { tip: blob_tip, max });
            }
        }
        match self.max_base_fee.filter(|max| base_fee > *max) {
            Some(max) => Err(FeeError::BaseFee { base_fee, max }),
            None => Ok(FeeSuggestion {
                tip,
                blob_tip,
                base_fee,
                blob_base_fee: l1.blob_base_fee,
            }),
        }
    }

    /// Caps of a transaction that replaces none.
    pub fn first(&self, class: TxClass, now: &FeeSuggestion) -> Result<FeeCaps, FeeError> {
        let (tip, blob_fee) = match class {
            TxClass::Calldata => (now.tip, None),
            TxClass::Blob => {
                let base = now.blob_base_fee.ok_or(FeeError::NoBlobs)?;
                (now.blob_tip, Some(self.blob_fee_cap(base)))
            }
        };
        Ok(FeeCaps {
            tip,
            fee: fee_cap(now.base_fee, tip),
            blob_fee,
        })
    }

    /// Caps of a transaction of `class` that replaces one with `old` in L1's pools. The
    /// replacement may be of the other class than the old one.
    pub fn bump(
        &self,
        class: TxClass,
        old: &FeeCaps,
        now: &FeeSuggestion,
    ) -> Result<FeeCaps, FeeError> {
        let fresh = self.first(class, now)?;
        let percent = if old.blob_fee.is_some() || class == TxClass::Blob {
            BLOB_BUMP_PERCENT
        } else {
            BUMP_PERCENT
        };
        let tip = fresh.tip.max(raised(old.tip, percent));
        let least = raised(old.fee, percent);
        let fee = if fresh.fee < least {
            least
        } else {
            // A raised tip takes more of the cap, and the base fee's part stays as it is.
            fee_cap(now.base_fee, tip)
        };
        let blob_fee = fresh.blob_fee.map(|fresh| {
            let least = old.blob_fee.map_or(0, |old| raised(old, percent));
            fresh.max(least)
        });
        let bumped = FeeCaps { tip, fee, blob_fee };
        if !is_below_price(old, now) {
            self.check_limits(&bumped, &fresh, now)?;
        }
        Ok(bumped)
    }

    fn check_limits(
        &self,
        bumped: &FeeCaps,
        fresh: &FeeCaps,
        now: &FeeSuggestion,
    ) -> Result<(), FeeError> {
        let multiplier = u128::from(self.limit_multiplier);
        let max_tip = fresh.tip.saturating_mul(multiplier);
        let max_fee = fee_cap(now.base_fee.saturating_mul(multiplier), max_tip);
        let max_blob_fee = fresh.blob_fee.unwrap_or(0).saturating_mul(multiplier);
        let limits = [
            ("tip cap", bumped.tip, max_tip),
            ("fee cap", bumped.fee, max_fee),
            ("blob fee", bumped.blob_fee.unwrap_or(0), max_blob_fee),
        ];
        let over = limits
            .into_iter()
            .find(|(_, value, max)| *value >= self.limit_threshold && value > max);
        match over {
            Some((name, value, _)) => Err(FeeError::Limit {
                name,
                value,
                multiplier: self.limit_multiplier,
            }),
            None => Ok(()),
        }
    }

    /// Blob fee cap at a blob base fee.
    fn blob_fee_cap(&self, blob_base_fee: u128) -> u128 {
        blob_base_fee
            .saturating_mul(HEADROOM)
            .max(self.min_blob_fee)
    }
}

/// Whether no block takes a transaction with these caps.
fn is_below_price(caps: &FeeCaps, now: &FeeSuggestion) -> bool {
    let blob = caps.blob_fee.zip(now.blob_base_fee);
    caps.fee < now.base_fee || blob.is_some_and(|(cap, price)| cap < price)
}

/// Fee cap at a base fee and a tip.
fn fee_cap(base_fee: u128, tip: u128) -> u128 {
    base_fee.saturating_mul(HEADROOM).saturating_add(tip)
}

/// `percent` of an old cap, rounded up, and at least one wei more: pools refuse an equal cap.
fn raised(old: u128, percent: u128) -> u128 {
    let whole = (old / 100).saturating_mul(percent);
    let part = (old % 100 * percent).div_ceil(100);
    whole.saturating_add(part).max(old.saturating_add(1))
}

/// Tips that blob transactions paid in the newest blocks of L1
/// (`--txmgr.blob-tip-cap-dynamic`).
#[derive(Clone, Debug)]
pub struct BlobTips {
    /// Blocks looked at (`--txmgr.blob-tip-cap-range`).
    range: u64,
    /// 1 to 100 (`--txmgr.blob-tip-cap-percentile`).
    percentile: u8,
    /// Tips by block number; never more blocks than `range`.
    blocks: BTreeMap<u64, Vec<u128>>,
}

impl BlobTips {
    /// `range` and `percentile` are at least 1; `percentile` is at most 100.
    pub fn new(range: u64, percentile: u8) -> Self {
        Self {
            range: range.max(1),
            percentile: percentile.clamp(1, 100),
            blocks: BTreeMap::new(),
        }
    }

    /// Numbers of the blocks to read when `head` is the newest one, oldest first. The newest block
    /// is always among them, since a reorg may have replaced it.
    pub fn missing(&self, head: u64) -> Vec<u64> {
        let oldest = head.saturating_sub(self.range - 1);
        (oldest..=head)
            .filter(|number| *number == head || !self.blocks.contains_key(number))
            .collect()
    }

    /// Records the blob transactions of a block, as pairs of `maxPriorityFeePerGas` and
    /// `maxFeePerGas`. Blocks above it, and those out of range, are forgotten.
    pub fn add(&mut self, number: u64, base_fee: u128, caps: impl IntoIterator<Item = FeeCaps>) {
        let paid = caps.into_iter().map(|caps| {
            let above_base = caps.fee.saturating_sub(base_fee);
            caps.tip.min(above_base)
        });
        self.blocks.insert(number, paid.collect());
        let oldest = number.saturating_sub(self.range - 1);
        self.blocks
            .retain(|known, _| (oldest..=number).contains(known));
    }

    /// The tip at the percentile; `None` if no blob transaction is known.
    pub fn suggest(&self) -> Option<u128> {
        let mut tips: Vec<u128> = self.blocks.values().flatten().copied().collect();
        tips.sort_unstable();
        let last = tips.len().checked_sub(1)?;
        tips.get(last * usize::from(self.percentile) / 100).copied()
    }
}
